//! Exceptions of the package, and the conversion of errors.

use pyo3::create_exception;
use pyo3::exceptions::{PyBlockingIOError, PyException, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::io;

create_exception!(
    tuff,
    Error,
    PyException,
    "Base of the exceptions of this package."
);
create_exception!(
    tuff,
    CorruptError,
    Error,
    "The image violates a rule of its format."
);
create_exception!(
    tuff,
    UnsupportedError,
    Error,
    "The image uses a feature that this version does not support."
);
create_exception!(tuff, LimitError, Error, "A named limit was reached.");
create_exception!(
    tuff,
    SourceError,
    Error,
    "A source of a build is damaged or has an unknown form."
);

create_exception!(
    tuff,
    UntrustedError,
    Error,
    "No signature by the trusted certificate comes with the image."
);

/// Adds the exceptions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("CorruptError", py.get_type::<CorruptError>())?;
    module.add("UnsupportedError", py.get_type::<UnsupportedError>())?;
    module.add("LimitError", py.get_type::<LimitError>())?;
    module.add("SourceError", py.get_type::<SourceError>())?;
    module.add("UntrustedError", py.get_type::<UntrustedError>())
}

/// Converts an error of the libraries. A missing range of a file object becomes `BlockingIOError`.
pub(crate) fn convert(error: tuff_erofs::Error) -> PyErr {
    use tuff_erofs::Error as E;
    let text = error.to_string();
    match error {
        E::Corrupt(_) => CorruptError::new_err(text),
        E::Unsupported(_) => UnsupportedError::new_err(text),
        E::Untrusted(_) => UntrustedError::new_err(text),
        E::Source(_) => SourceError::new_err(text),
        E::Usage(_) => PyValueError::new_err(text),
        E::Io(_, e) if e.kind() == io::ErrorKind::WouldBlock => PyBlockingIOError::new_err(text),
        // With an error number, Python chooses the subclass, such as FileNotFoundError.
        E::Io(_, e) => match e.raw_os_error() {
            Some(number) => PyOSError::new_err((number, text)),
            None => PyOSError::new_err(text),
        },
        _ => LimitError::new_err(text),
    }
}
