//! Loop devices on image files.

use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Read-only loop device. Dropping it detaches the device.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    /// Sectors read before the device was attached. The counters of a device persist across attachments.
    sectors_before: u64,
}

impl Device {
    /// Attaches an image. With `direct_io`, no page of the image file is cached, and every read of the device is a read of
    /// the disk.
    pub fn attach(image: &Path, direct_io: bool) -> Result<Device> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--read-only"]);
        if direct_io {
            command.arg("--direct-io=on");
        }
        let output = command
            .arg(image)
            .output()
            .map_err(|e| Error::io("run", Path::new("losetup"), e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Command(said));
        }
        let mut device = Device {
            path: PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()),
            sectors_before: 0,
        };
        if direct_io && device.attribute("loop/dio").is_none_or(|on| on != "1") {
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

    /// Returns the name of the device in /sys.
    pub fn name(&self) -> &str {
        let name = self.path.file_name().and_then(|n| n.to_str());
        name.unwrap_or_default()
    }

    /// Returns the number of bytes read from the device since it was attached.
    pub fn read_bytes(&self) -> Option<u64> {
        Some(self.sectors()?.saturating_sub(self.sectors_before) * 512)
    }

    fn sectors(&self) -> Option<u64> {
        sectors_read(&self.attribute("stat")?)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(format!("/sys/block/{}/{name}", self.name())).ok()?;
        Some(text.trim().to_owned())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let done = Command::new("losetup").arg("-d").arg(&self.path).status();
        if !done.is_ok_and(|s| s.success()) {
            eprintln!("tuff-lab: warning: {} stays attached", self.path.display());
        }
    }
}

/// Parses the third field of /sys/block/NAME/stat.
fn sectors_read(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_the_third_counter() {
        assert_eq!(sectors_read("   12  3 4567 8 0 0"), Some(4567));
        assert_eq!(sectors_read("12 3"), None);
    }
}
