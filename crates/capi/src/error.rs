//! Status codes and errors, and the boundary that no panic crosses.

use std::ffi::c_char;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tuff_erofs::Error;

/// Result of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tuff_status {
    /// The function has succeeded.
    TUFF_OK = 0,
    /// An iteration has no more entries.
    TUFF_END = 1,
    /// The path, or the extended attribute, does not exist.
    TUFF_NOT_FOUND = 2,
    /// A range of a `tuff_ranges` is missing: supply it and call the function again.
    TUFF_AGAIN = 3,
    /// The request is invalid, such as a NULL or a path that names no directory.
    TUFF_USAGE = 4,
    /// The image violates a rule of its format.
    TUFF_CORRUPT = 5,
    /// The image uses a feature that this version does not support.
    TUFF_UNSUPPORTED = 6,
    /// A named limit was reached.
    TUFF_LIMIT = 7,
    /// The host failed, for example in a read. `os_error` may have its error number.
    TUFF_IO = 8,
    /// A source of a build is damaged or has an unknown form.
    TUFF_SOURCE = 9,
    /// A bug of the library. Close the handle and report it.
    TUFF_PANIC = 10,
    /// No signature by the trusted certificate comes with the image.
    TUFF_UNTRUSTED = 11,
}

/// Description of a failure, in memory of the caller.
#[repr(C)]
pub struct tuff_error {
    /// Status that the function returned.
    pub status: tuff_status,
    /// Error number of the host, `errno`. 0 if there is none.
    pub os_error: i32,
    /// One line in UTF-8 with a NUL at its end, shortened if it is too long.
    pub message: [c_char; TUFF_MESSAGE_LEN],
}

/// Length of a message with its NUL. Unit: bytes.
pub const TUFF_MESSAGE_LEN: usize = 1024;

/// Failure on its way to the caller.
pub(crate) struct Failure {
    status: tuff_status,
    os_error: i32,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: tuff_status, message: impl Into<String>) -> Self {
        Self {
            status,
            os_error: 0,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(tuff_status::TUFF_USAGE, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut os_error = 0;
        let status = match &error {
            Error::Corrupt(_) => tuff_status::TUFF_CORRUPT,
            Error::Unsupported(_) => tuff_status::TUFF_UNSUPPORTED,
            Error::Io(_, e) if e.kind() == io::ErrorKind::WouldBlock => tuff_status::TUFF_AGAIN,
            Error::Io(_, e) => {
                os_error = e.raw_os_error().unwrap_or_default();
                tuff_status::TUFF_IO
            }
            Error::Untrusted(_) => tuff_status::TUFF_UNTRUSTED,
            Error::Source(_) => tuff_status::TUFF_SOURCE,
            Error::Usage(_) => tuff_status::TUFF_USAGE,
            // The limits of an image, the budget of a build, and kinds that are added later.
            _ => tuff_status::TUFF_LIMIT,
        };
        Self {
            status,
            os_error,
            message: error.to_string(),
        }
    }
}

impl From<()> for tuff_status {
    fn from((): ()) -> Self {
        Self::TUFF_OK
    }
}

/// Runs the body of a function: a panic becomes a status, and a failure is described at `error`.
///
/// # Safety
/// `error` is NULL or points to a `tuff_error` that may be written.
pub(crate) unsafe fn guard<T: Into<tuff_status>>(
    error: *mut tuff_error,
    body: impl FnOnce() -> Result<T, Failure>,
) -> tuff_status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status.into(),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(tuff_status::TUFF_PANIC, message_of(&*panic)),
    };
    // SAFETY: promised by the caller. Only initialised plain data is written.
    if let Some(error) = unsafe { error.as_mut() } {
        error.status = failure.status;
        error.os_error = failure.os_error;
        let message = &failure.message;
        let longest = message.len().min(TUFF_MESSAGE_LEN - 1);
        let end = (0..=longest)
            .rev()
            .find(|end| message.is_char_boundary(*end));
        let text = message.as_bytes()[..end.unwrap_or(0)].iter().copied();
        let text = text.map(|b| if b == 0 { b'?' } else { b }).chain([0]);
        error.message.iter_mut().zip(text).for_each(|(to, b)| {
            *to = b as c_char; // the same bits
        });
    }
    failure.status
}

/// Runs a body that only releases memory. A panic is dropped: the caller expects no status.
pub(crate) fn release(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("bug in libtuff: {}", text.unwrap_or("panic"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_a_status_with_its_message() {
        let mut error = tuff_error {
            status: tuff_status::TUFF_OK,
            os_error: 7,
            message: [1; TUFF_MESSAGE_LEN],
        };
        // SAFETY: the error is a local variable.
        let status =
            unsafe { guard::<()>(&mut error, || panic!("{}", "é".repeat(TUFF_MESSAGE_LEN))) };
        assert_eq!(status, tuff_status::TUFF_PANIC);
        assert_eq!(error.status, tuff_status::TUFF_PANIC);
        assert_eq!(error.os_error, 0);
        // SAFETY: `guard` wrote a NUL.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
        let message = message
            .to_str()
            .expect("the message is cut between characters");
        assert!(message.starts_with("bug in libtuff: éé"), "{message}");
        assert!(message.len() > TUFF_MESSAGE_LEN - 4);
    }
}
