//! Opening of images by path or URL.

use crate::error::{Failure, guard, tuff_error, tuff_status};
use crate::image::tuff_image;
use crate::pointers::{give, host_path, text};
use std::ffi::c_char;
use std::sync::Arc;
use tuff_open::{Device, ImageRef, OpenOptions};

/// Option for opening an image: a name, and a value as on the command line of `tuff`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tuff_option {
    /// "root-hash", "verity-tree" after it, "trust", "device", "offset", "no-checksum", "cache-dir", "cache-max" or
    /// "fetch-timeout". "device" may occur several times.
    pub name: *const c_char,
    /// Value. Sizes are in bytes. A device is a path or URL, followed by a comma and its root hash if the image is verified.
    pub value: *const c_char,
}

/// Opens the image at a path or URL: a file, a block device, a disk, https://, s3:// or oci://.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_open(
    path: *const c_char,
    image: *mut *mut tuff_image,
    error: *mut tuff_error,
) -> tuff_status {
    // SAFETY: promised by the caller. There are no options to read.
    unsafe { tuff_image_open_with(path, std::ptr::null(), 0, image, error) }
}

/// Opens an image with its `count` extra devices, in the order of its device table.
///
/// # Safety
/// `devices` has `count` strings. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_open_devices(
    path: *const c_char,
    devices: *const *const c_char,
    count: usize,
    image: *mut *mut tuff_image,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        let mut options = OpenOptions::default();
        for i in 0..count {
            if devices.is_null() {
                return Err(Failure::usage("the list of devices is NULL"));
            }
            // SAFETY: the caller promises `count` strings.
            let device = unsafe { host_path(*devices.add(i)) }?;
            options.devices.push(Device::from(device.to_owned()));
        }
        // SAFETY: promised by the caller.
        unsafe { open(path, &options, image) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Opens an image with `count` options. With a root hash or a certificate ("trust"), all that is read is verified, and each device
/// needs a root hash too. An image behind a URL is not used in the child of a fork: the child opens it again.
///
/// # Safety
/// `options` has `count` elements. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_open_with(
    path: *const c_char,
    options: *const tuff_option,
    count: usize,
    image: *mut *mut tuff_image,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        let mut set = OpenOptions::default();
        for i in 0..count {
            if options.is_null() {
                return Err(Failure::usage("the list of options is NULL"));
            }
            // SAFETY: the caller promises `count` elements.
            let option = unsafe { *options.add(i) };
            // SAFETY: promised by the caller.
            let (name, value) = unsafe { (text(option.name, "a name")?, host_path(option.value)?) };
            set.set(&String::from_utf8_lossy(name), value.as_os_str())?;
        }
        // SAFETY: promised by the caller.
        unsafe { open(path, &set, image) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Opens an image and stores its handle.
///
/// # Safety
/// `path` is as for [`host_path`], and `image` is NULL or may be written.
unsafe fn open(
    path: *const c_char,
    options: &OpenOptions,
    image: *mut *mut tuff_image,
) -> Result<(), Failure> {
    // SAFETY: promised by the caller.
    let reference = ImageRef::from(unsafe { host_path(path) }?);
    let opened = tuff_open::open(&reference, options)?.into_image();
    // SAFETY: promised by the caller.
    unsafe { give(image, tuff_image(Arc::new(opened))) }
}
