//! Loop devices on files.

use super::helper;
use crate::{Error, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Option for a device that cannot be written.
pub const READ_ONLY: &str = "--read-only";
/// Option with which no page of the file is cached, and every read of the device is a read of the disk.
pub const DIRECT: &str = "--direct-io=on";

/// Loop device. Dropping it detaches the device.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    /// Sectors read before the device was attached. The counters of a device persist across attachments.
    sectors_before: u64,
}

impl Device {
    /// Attaches a file with options of losetup.
    pub fn attach(file: &Path, options: &[&str]) -> Result<Device> {
        let words = ["--find", "--show"].iter().chain(options).map(OsStr::new);
        let path = helper::output("losetup", words.chain([file.as_os_str()]))?;
        let mut device = Device {
            path: PathBuf::from(path.trim()),
            sectors_before: 0,
        };
        if options.contains(&DIRECT) && device.attribute("loop/dio").is_none_or(|on| on != "1") {
            return Err(Error::Usage(
                "the filesystem of the work folder has no direct I/O; --work DIR selects another"
                    .to_owned(),
            ));
        }
        device.sectors_before = device.sectors().unwrap_or(0);
        Ok(device)
    }

    /// Returns the path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes read from the device since it was attached.
    pub fn read_bytes(&self) -> Option<u64> {
        Some(self.sectors()?.saturating_sub(self.sectors_before) * 512)
    }

    /// Returns the third field of /sys/block/NAME/stat.
    fn sectors(&self) -> Option<u64> {
        let stat = self.attribute("stat")?;
        stat.split_whitespace().nth(2)?.parse().ok()
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let device = self.path.file_name()?.to_str()?;
        let text = std::fs::read_to_string(format!("/sys/block/{device}/{name}")).ok()?;
        Some(text.trim().to_owned())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(e) = helper::output("losetup", [OsStr::new("--detach"), self.path.as_os_str()]) {
            let path = self.path.display();
            eprintln!("tuff-lab: warning: {path} stays attached: {e}");
        }
    }
}
