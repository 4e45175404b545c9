//! Images: those in memory, attributes, data, links and extended attributes.

use crate::error::{Failure, guard, tuff_error, tuff_status};
use crate::pointers::{bytes, copy_out, drop_object, give, object, put, text};
use crate::ranges::tuff_ranges;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use tuff_erofs::read::{Image, Inode, Nid};
use tuff_open::open_stores;
use tuff_store::MemStore;

/// Open image. Any number of threads may use it at once.
pub struct tuff_image(pub(crate) Arc<Image>);

/// Attributes of an inode.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tuff_stat {
    /// Number of the inode.
    pub nid: u64,
    /// Size of the data in bytes.
    pub size: u64,
    /// Modification time in seconds since 1970.
    pub mtime: i64,
    /// Nanoseconds of the modification time.
    pub mtime_nsec: u32,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the owner.
    pub gid: u32,
    /// Number of names, as in `st_nlink`.
    pub nlink: u32,
    /// Major number of a device.
    pub rdev_major: u32,
    /// Minor number of a device.
    pub rdev_minor: u32,
    /// Reserved for later versions, 0.
    pub reserved: u32,
}

/// Opens an image of `len` bytes in memory, which are copied.
///
/// # Safety
/// `data` has `len` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_open_memory(
    data: *const c_void,
    len: usize,
    image: *mut *mut tuff_image,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let store = MemStore::new(unsafe { bytes(data, len) }?);
        let opened = open_stores(Arc::new(store), Vec::new())?;
        // SAFETY: promised by the caller.
        unsafe { give(image, tuff_image(Arc::new(opened))) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Opens an image whose bytes the caller supplies. Returns TUFF_AGAIN until the superblock is there.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_open_ranges(
    ranges: *const tuff_ranges,
    image: *mut *mut tuff_image,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let store = Arc::clone(&unsafe { object(ranges) }?.0);
        let opened = open_stores(store, Vec::new())?;
        // SAFETY: promised by the caller.
        unsafe { give(image, tuff_image(Arc::new(opened))) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Closes an image. Directories and walks that are open stay valid.
///
/// # Safety
/// `image` is NULL or open, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_close(image: *mut tuff_image) {
    // SAFETY: promised by the caller.
    unsafe { drop_object(image) };
}

/// Stores the inode number of the root directory at `nid`.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_root(
    image: *const tuff_image,
    nid: *mut u64,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let root = unsafe { object(image) }?.0.root()?;
        // SAFETY: promised by the caller.
        unsafe { put(nid, root.nid().0) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Stores the inode number of a path from the root at `nid`. Symbolic links are followed only if `follow` is not 0.
/// Returns TUFF_NOT_FOUND if the path does not exist.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_find(
    image: *const tuff_image,
    path: *const c_char,
    follow: i32,
    nid: *mut u64,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let (image, path) = unsafe { (object(image)?, text(path, "a path")?) };
        let found = match follow {
            0 => image.0.find(path)?,
            _ => image.0.find_following(path)?,
        };
        let Some(inode) = found else {
            let path = String::from_utf8_lossy(path);
            let what = format!("{path}: does not exist");
            return Err(Failure::new(tuff_status::TUFF_NOT_FOUND, what));
        };
        // SAFETY: promised by the caller.
        unsafe { put(nid, inode.nid().0) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Stores the attributes of an inode at `stat`.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_stat(
    image: *const tuff_image,
    nid: u64,
    stat: *mut tuff_stat,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let inode = unsafe { object(image) }?.0.inode(Nid(nid))?;
        // SAFETY: promised by the caller.
        unsafe { put(stat, stat_of(&inode)) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

fn stat_of(inode: &Inode) -> tuff_stat {
    let (mtime, mtime_nsec) = inode.mtime();
    let (rdev_major, rdev_minor) = inode.device().unwrap_or_default();
    tuff_stat {
        nid: inode.nid().0,
        size: inode.size(),
        mtime,
        mtime_nsec,
        mode: inode.mode().into(),
        uid: inode.uid(),
        gid: inode.gid(),
        nlink: inode.nlink(),
        rdev_major,
        rdev_minor,
        reserved: 0,
    }
}

/// Reads up to `len` bytes of an inode's data from `offset`. The number that was read is stored at `read`: less than
/// `len` only at the end of the data.
///
/// # Safety
/// `buf` has `len` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_read(
    image: *const tuff_image,
    nid: u64,
    offset: u64,
    buf: *mut c_void,
    len: usize,
    read: *mut usize,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let image = &unsafe { object(image) }?.0;
        let inode = image.inode(Nid(nid))?;
        if buf.is_null() && len > 0 {
            return Err(Failure::usage("a buffer is NULL, but its length is not 0"));
        }
        let mut part;
        let mut done = 0;
        // The caller's bytes may be uninitialised, so data passes through an initialised buffer.
        while done < len {
            part = vec![0; (len - done).min(1 << 20)];
            let at = offset.saturating_add(done as u64);
            let n = image.read_at(&inode, &mut part, at)?;
            // SAFETY: `n` is at most `len - done`, and the caller promises `len` bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), buf.cast::<u8>().add(done), n);
            }
            done += n;
            if n < part.len() {
                break;
            }
        }
        // SAFETY: promised by the caller.
        unsafe { put(read, done) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Copies the target of a symbolic link to `buf`, as far as its `size` bytes suffice, without a NUL. The whole length is
/// stored at `len`.
///
/// # Safety
/// `buf` is NULL or has `size` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_readlink(
    image: *const tuff_image,
    nid: u64,
    buf: *mut c_char,
    size: usize,
    len: *mut usize,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let image = &unsafe { object(image) }?.0;
        let target = image.readlink(&image.inode(Nid(nid))?)?;
        // SAFETY: promised by the caller.
        unsafe { copy_out(&target, buf.cast(), size, len) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Copies the value of an extended attribute to `buf`, as far as its `size` bytes suffice. The whole length is stored at
/// `len`. Returns TUFF_NOT_FOUND if the inode does not have the attribute.
///
/// # Safety
/// `buf` is NULL or has `size` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_xattr(
    image: *const tuff_image,
    nid: u64,
    name: *const c_char,
    buf: *mut c_void,
    size: usize,
    len: *mut usize,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let (image, name) = unsafe { (&object(image)?.0, text(name, "a name")?) };
        let Some(value) = image.xattr(&image.inode(Nid(nid))?, name)? else {
            let name = String::from_utf8_lossy(name);
            let what = format!("nid {nid}: has no attribute {name}");
            return Err(Failure::new(tuff_status::TUFF_NOT_FOUND, what));
        };
        // SAFETY: promised by the caller.
        unsafe { copy_out(&value, buf, size, len) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Copies the names of an inode's extended attributes to `buf`, each with a NUL at its end, as far as its `size` bytes
/// suffice. The whole length is stored at `len`.
///
/// # Safety
/// `buf` is NULL or has `size` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_xattr_names(
    image: *const tuff_image,
    nid: u64,
    buf: *mut c_char,
    size: usize,
    len: *mut usize,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let image = &unsafe { object(image) }?.0;
        let mut names = Vec::new();
        for xattr in image.xattrs(&image.inode(Nid(nid))?)? {
            names.extend(xattr.name);
            names.push(0);
        }
        // SAFETY: promised by the caller.
        unsafe { copy_out(&names, buf.cast(), size, len) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}
