//! Extraction and check of images.

use crate::error::{Failure, guard, tuff_error, tuff_status};
use crate::image::tuff_image;
use crate::pointers::{host_path, object, text};
use std::ffi::{CString, c_char, c_int, c_void};
use tuff_erofs::check::{self, Severity};
use tuff_erofs::extract;
use tuff_open::OpenOptions;

/// Function that receives the findings of a check: the `context` of the call, a line of text, and whether it is an
/// error rather than a note or a warning.
pub type tuff_finding = Option<unsafe extern "C" fn(*mut c_void, *const c_char, c_int)>;

/// Extracts the path `path` of an image, and everything below it, into the directory `target`, which is created if it
/// does not exist. The path "" is the whole tree. Existing files are replaced only if `overwrite` is not 0.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_image_extract(
    image: *const tuff_image,
    path: *const c_char,
    target: *const c_char,
    overwrite: c_int,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let (image, path, target) =
            unsafe { (&object(image)?.0, text(path, "a path")?, host_path(target)?) };
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let options = extract::Options {
            paths: match path.is_empty() {
                true => Vec::new(),
                false => vec![path.to_vec()],
            },
            overwrite: overwrite != 0,
            ..extract::Options::default()
        };
        extract::extract(image, target, &options, |_| ())?;
        Ok(tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Checks the image at `path`: every structure, and all data. Calls `finding`, unless it is NULL, with each violation.
/// Returns TUFF_CORRUPT if there is an error among them.
///
/// # Safety
/// `finding` may be called with `context`, and does not unwind or jump out. The other pointers are valid as described at
/// the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_check(
    path: *const c_char,
    finding: tuff_finding,
    context: *mut c_void,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let path = unsafe { host_path(path) }?;
        let options = OpenOptions {
            ignores_checksum: true,
            ..OpenOptions::default()
        };
        let image = tuff_open::open(&path.into(), &options)?;
        let report = check::check(&image, &check::Options::default(), |_| ());
        for found in &report.findings {
            let text = CString::new(found.to_string().replace('\0', "?")).unwrap_or_default();
            let is_error = c_int::from(found.severity == Severity::Error);
            if let Some(finding) = finding {
                // SAFETY: promised by the caller. The text lives until the function returns.
                unsafe { finding(context, text.as_ptr(), is_error) };
            }
        }
        let errors = report.count(Severity::Error);
        if errors > 0 {
            let what = format!("{}: {errors} errors", path.display());
            return Err(Failure::new(tuff_status::TUFF_CORRUPT, what));
        }
        Ok(tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}
