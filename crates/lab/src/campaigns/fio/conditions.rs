//! Conditions of a measurement.

use std::path::PathBuf;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Programs by name: `tuff` and `fio`, and those of rivals that are there.
    pub programs: Vec<(String, PathBuf)>,
    /// How often everything is done.
    pub rounds: u32,
    /// Only places whose name contains this.
    pub place: Option<String>,
    /// Only cells whose name contains this.
    pub only: Option<String>,
    /// Length of the file. Unit: MiB.
    pub file_mib: u64,
    /// Folder for filesystems, images and mount points, on the host that is measured.
    pub work: PathBuf,
}
