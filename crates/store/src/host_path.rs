//! Paths of the host from bytes.

use std::io;
use std::path::Path;

/// Returns bytes that a caller without Rust's types passed as a path of the host. On Unix they may be any bytes,
/// elsewhere they must be UTF-8.
pub fn host_path(bytes: &[u8]) -> io::Result<&Path> {
    #[cfg(unix)]
    let path: io::Result<&std::ffi::OsStr> = Ok(std::os::unix::ffi::OsStrExt::from_bytes(bytes));
    #[cfg(not(unix))]
    let path =
        std::str::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e));
    path.map(Path::new)
}
