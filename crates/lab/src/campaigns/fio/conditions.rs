//! Conditions of a measurement with fio.

use std::path::PathBuf;

/// Programs, selection and sizes of a measurement.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Programs by name: `tuff` and `fio`, and the installed programs of other filesystems.
    pub programs: Vec<(String, PathBuf)>,
    /// Number of rounds of the whole matrix.
    pub rounds: u32,
    /// Selects places whose name contains this text. None selects all.
    pub place: Option<String>,
    /// Selects cells whose name contains this text. None selects all.
    pub only: Option<String>,
    /// Length of the test file. Unit: MiB.
    pub file_mib: u64,
    /// Folder on the measured host for filesystems, images and mount points.
    pub work: PathBuf,
}
