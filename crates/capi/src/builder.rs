//! Building of images from sources and options.

use crate::error::{Failure, guard, tuff_error, tuff_status};
use crate::pointers::{bytes, drop_object, give, host_path, object_mut, text};
use std::ffi::{c_char, c_void};
use tuff_mkfs::settings::Settings;
use tuff_mkfs::source::{Device, Kind};
use tuff_mkfs::{MemoryEntry, MemoryTree, Progress, Source};
use tuff_store::Target;

/// Image to be built: sources, and options by name. One thread at a time may use it.
///
/// Directories and tars are merged in the order in which they are added. Files, directories and links that are added
/// one by one form a tree that is merged last.
#[derive(Default)]
pub struct tuff_builder {
    settings: Settings,
    sources: Vec<Source>,
    tree: MemoryTree,
}

/// Attributes of an entry that is added.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tuff_attributes {
    /// Permission, set-id and sticky bits. Type bits are ignored.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the owner.
    pub gid: u32,
    /// Nanoseconds of the modification time.
    pub mtime_nsec: u32,
    /// Modification time in seconds since 1970.
    pub mtime: i64,
}

/// Creates a builder.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_new(
    builder: *mut *mut tuff_builder,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        unsafe { give(builder, tuff_builder::default()) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Sets an option of `tuff build --help-all` by its name without dashes, or one of those of its `--set`, such as "compress" to
/// "zstd:9". The value of a flag is "on" or "off". An option that may be repeated gets one more value by each call. Invalid
/// values are reported here.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_set(
    builder: *mut tuff_builder,
    name: *const c_char,
    value: *const c_char,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let (name, value) = unsafe { (text(name, "a name")?, text(value, "a value")?) };
        let utf8 = |text: &[u8]| {
            let text = String::from_utf8(text.to_vec());
            text.map_err(|_| Failure::usage("an option is not UTF-8"))
        };
        Ok(builder.settings.set(&utf8(name)?, utf8(value)?)?)
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds a directory of the host, with everything below it.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_directory(
    builder: *mut tuff_builder,
    host: *const c_char,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let path = unsafe { host_path(host) }?;
        builder.sources.push(Source::Dir(path.to_owned()));
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds the members of a tar, plain or compressed, or of cpio archives.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_tar(
    builder: *mut tuff_builder,
    host: *const c_char,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let path = unsafe { host_path(host) }?;
        builder.sources.push(Source::Tar(path.to_owned()));
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds a regular file with a content of `len` bytes, which are copied. `attributes` is NULL for mode 0644, owner 0 and
/// time 0.
///
/// # Safety
/// `data` has `len` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_file(
    builder: *mut tuff_builder,
    path: *const c_char,
    data: *const c_void,
    len: usize,
    attributes: *const tuff_attributes,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let (path, data) = unsafe { (text(path, "a path")?, bytes(data, len)?) };
        // SAFETY: promised by the caller.
        unsafe { describe(builder.tree.add_file(path, data)?, attributes) };
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds a regular file with the content of the host's file `host`, which is read when the image is written.
/// `attributes` is NULL for mode 0644, owner 0 and time 0.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_host_file(
    builder: *mut tuff_builder,
    path: *const c_char,
    host: *const c_char,
    attributes: *const tuff_attributes,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let (path, host) = unsafe { (text(path, "a path")?, host_path(host)?) };
        // SAFETY: promised by the caller.
        unsafe { describe(builder.tree.add_host_file(path, host)?, attributes) };
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds a directory. `attributes` is NULL for mode 0755, owner 0 and time 0, which directories that are not added have,
/// too.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_dir(
    builder: *mut tuff_builder,
    path: *const c_char,
    attributes: *const tuff_attributes,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let path = unsafe { text(path, "a path") }?;
        // SAFETY: promised by the caller.
        unsafe { describe(builder.tree.add_dir(path)?, attributes) };
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds a symbolic link. `attributes` is NULL for mode 0777, owner 0 and time 0.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_symlink(
    builder: *mut tuff_builder,
    path: *const c_char,
    target: *const c_char,
    attributes: *const tuff_attributes,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let (path, target) = unsafe { (text(path, "a path")?, text(target, "a target")?) };
        // SAFETY: promised by the caller.
        unsafe { describe(builder.tree.add_symlink(path, target)?, attributes) };
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds another name of the file at `target`, which may be added later.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_hard_link(
    builder: *mut tuff_builder,
    path: *const c_char,
    target: *const c_char,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let (path, target) = unsafe { (text(path, "a path")?, text(target, "a target")?) };
        builder.tree.add_hard_link(path, target)?;
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Adds a device, named pipe or socket: `file_type` has the type bits of `st_mode`. `major` and `minor` are those of a device.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_add_special(
    builder: *mut tuff_builder,
    path: *const c_char,
    file_type: u32,
    major: u32,
    minor: u32,
    attributes: *const tuff_attributes,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let path = unsafe { text(path, "a path") }?;
        let device = Device { major, minor };
        let kind = match file_type & 0o170_000 {
            0o020_000 => Kind::Char(device),
            0o060_000 => Kind::Block(device),
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            _ => {
                return Err(Failure::usage(format!(
                    "type {file_type:o}: expected S_IFCHR, S_IFBLK, S_IFIFO or S_IFSOCK"
                )));
            }
        };
        // SAFETY: promised by the caller.
        unsafe { describe(builder.tree.add_special(path, kind)?, attributes) };
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Sets an extended attribute of an entry that was added. Its full name is, for example, "user.comment".
///
/// # Safety
/// `value` has `len` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_set_xattr(
    builder: *mut tuff_builder,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: usize,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let (path, name, value) = unsafe {
            (
                text(path, "a path")?,
                text(name, "a name")?,
                bytes(value, len)?,
            )
        };
        let Some(entry) = builder.tree.entry(path) else {
            let what = format!("{}: was not added", String::from_utf8_lossy(path));
            return Err(Failure::new(tuff_status::TUFF_NOT_FOUND, what));
        };
        entry.set_xattr(name, value);
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Builds the image and writes it to the file `host`, which is created or replaced when the image is complete. The
/// builder may be used again.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_write(
    builder: *mut tuff_builder,
    host: *const c_char,
    error: *mut tuff_error,
) -> tuff_status {
    let body = |builder: &mut tuff_builder| {
        // SAFETY: promised by the caller.
        let target = Target::Path(unsafe { host_path(host) }?.to_owned());
        let mut options = builder.settings.options()?;
        tuff_open::open_bases(&mut options)?;
        let mut sources = builder.sources.clone();
        if !builder.tree.is_empty() || sources.is_empty() {
            sources.push(Source::Memory(builder.tree.clone()));
        }
        tuff_mkfs::build(&sources, &options, &target, &Progress::default())?;
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { change(builder, error, body) }
}

/// Releases a builder.
///
/// # Safety
/// `builder` is NULL or open, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_builder_free(builder: *mut tuff_builder) {
    // SAFETY: promised by the caller.
    unsafe { drop_object(builder) };
}

/// Runs the body of a function on a builder.
///
/// # Safety
/// `builder` is NULL or an open handle that no other thread uses. `error` is NULL or may be written.
unsafe fn change(
    builder: *mut tuff_builder,
    error: *mut tuff_error,
    body: impl FnOnce(&mut tuff_builder) -> Result<(), Failure>,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        body(unsafe { object_mut(builder) }?)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Sets attributes, unless they are NULL.
///
/// # Safety
/// `attributes` is NULL or points to initialised attributes.
unsafe fn describe(entry: &mut MemoryEntry, attributes: *const tuff_attributes) {
    // SAFETY: promised by the caller.
    if let Some(given) = unsafe { attributes.as_ref() } {
        // Fits: at most 12 bits.
        let mode = (given.mode & 0o7777) as u16;
        entry.set_mode(mode).set_owner(given.uid, given.gid);
        entry.set_mtime(given.mtime, given.mtime_nsec);
    }
}
