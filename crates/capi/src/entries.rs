//! Iteration over a directory, and over a whole tree.

use crate::error::{Failure, guard, tuff_error, tuff_status};
use crate::image::tuff_image;
use crate::pointers::{drop_object, give, object, object_mut, put, text};
use std::ffi::{CString, c_char};
use std::sync::Arc;
use tuff_erofs::read::{FileType, Image, Nid, ReadDir};
use tuff_erofs::walk::Walk;
use tuff_format::dirent::is_name;

/// Open directory. One thread at a time may use it.
pub struct tuff_dir {
    entries: ReadDir<Arc<Image>>,
    name: CString,
}

/// Walk over an inode and everything below it. One thread at a time may use it.
pub struct tuff_walk {
    walk: Walk<Arc<Image>>,
    path: CString,
}

/// Entry of a directory or a walk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tuff_entry {
    /// Name, or path from the start of the walk, with a NUL at its end. Valid until the next call with the same handle.
    pub name: *const c_char,
    /// Length of the name without the NUL. Unit: bytes.
    pub name_len: usize,
    /// Inode number of the entry.
    pub nid: u64,
    /// Type: the type bits of `st_mode`. 0 if the directory does not state it.
    pub file_type: u32,
    /// Reserved for later versions, 0.
    pub reserved: u32,
}

/// Opens a directory.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_dir_open(
    image: *const tuff_image,
    nid: u64,
    dir: *mut *mut tuff_dir,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let image = &unsafe { object(image) }?.0;
        let opened = tuff_dir {
            entries: image.read_dir_shared(&image.inode(Nid(nid))?)?,
            name: CString::default(),
        };
        // SAFETY: promised by the caller.
        unsafe { give(dir, opened) }?;
        Ok(tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Stores the next entry at `entry`. "." and ".." are left out. Returns TUFF_END after the last entry, and also after an
/// error. With a `tuff_ranges`, open the directory again after TUFF_AGAIN.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_dir_next(
    dir: *mut tuff_dir,
    entry: *mut tuff_entry,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let dir = unsafe { object_mut(dir) }?;
        for next in dir.entries.by_ref() {
            let next = next?;
            if next.name == b"." || next.name == b".." {
                continue;
            }
            if !is_name(&next.name) {
                let what = format!(
                    "entry {:?} is not a name",
                    next.name.escape_ascii().to_string()
                );
                return Err(Failure::new(tuff_status::TUFF_CORRUPT, what));
            }
            dir.name = c_string(next.name)?;
            let kind = next.file_type.map_or(0, type_bits);
            // SAFETY: promised by the caller.
            unsafe { put(entry, entry_of(&dir.name, next.nid, kind)) }?;
            return Ok(tuff_status::TUFF_OK);
        }
        Ok(tuff_status::TUFF_END)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Closes a directory.
///
/// # Safety
/// `dir` is NULL or open, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_dir_close(dir: *mut tuff_dir) {
    // SAFETY: promised by the caller.
    unsafe { drop_object(dir) };
}

/// Starts a walk over everything at and below `path`. Directories come before their entries, and entries in the order of
/// their names.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_walk_open(
    image: *const tuff_image,
    path: *const c_char,
    walk: *mut *mut tuff_walk,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let (image, path) = unsafe { (&object(image)?.0, text(path, "a path")?) };
        let Some(inode) = image.find(path)? else {
            let what = format!("{}: does not exist", String::from_utf8_lossy(path));
            return Err(Failure::new(tuff_status::TUFF_NOT_FOUND, what));
        };
        let opened = tuff_walk {
            walk: Walk::new(Arc::clone(image), Vec::new(), inode),
            path: CString::default(),
        };
        // SAFETY: promised by the caller.
        unsafe { give(walk, opened) }?;
        Ok(tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Stores the next entry at `entry`, with its path from the start of the walk; that of the start itself is empty. Returns
/// TUFF_END after the last entry. Another status is about one entry: the walk can go on. With a `tuff_ranges`, start
/// again after TUFF_AGAIN.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_walk_next(
    walk: *mut tuff_walk,
    entry: *mut tuff_entry,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let walk = unsafe { object_mut(walk) }?;
        let Some(next) = walk.walk.next().transpose()? else {
            return Ok(tuff_status::TUFF_END);
        };
        walk.path = c_string(next.path)?;
        let inode = next.inode;
        let found = entry_of(&walk.path, inode.nid(), type_bits(inode.file_type()));
        // SAFETY: promised by the caller.
        unsafe { put(entry, found) }?;
        Ok(tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Leaves out the entries below the directory that the walk returned last.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_walk_skip(
    walk: *mut tuff_walk,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        unsafe { object_mut(walk) }?.walk.skip_below();
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Ends a walk.
///
/// # Safety
/// `walk` is NULL or open, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_walk_close(walk: *mut tuff_walk) {
    // SAFETY: promised by the caller.
    unsafe { drop_object(walk) };
}

fn entry_of(name: &CString, nid: Nid, file_type: u32) -> tuff_entry {
    tuff_entry {
        name: name.as_ptr(),
        name_len: name.as_bytes().len(),
        nid: nid.0,
        file_type,
        reserved: 0,
    }
}

fn c_string(bytes: Vec<u8>) -> Result<CString, Failure> {
    let what = "a name contains a NUL";
    CString::new(bytes).map_err(|_| Failure::new(tuff_status::TUFF_CORRUPT, what))
}

/// Returns the type bits of `st_mode`.
fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::File => 0o100_000,
        FileType::Dir => 0o040_000,
        FileType::Symlink => 0o120_000,
        FileType::Char => 0o020_000,
        FileType::Block => 0o060_000,
        FileType::Fifo => 0o010_000,
        FileType::Socket => 0o140_000,
    }
}
