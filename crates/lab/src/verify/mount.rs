//! Images mounted by the running kernel, read-only, for as long as a value lives.

use crate::engines::Format;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Reason for which an image is not mounted.
#[derive(Debug)]
pub struct Refusal {
    /// No image could be, so that it is no fault of this one.
    pub unable: bool,
    /// Text of the reason.
    pub text: String,
}

/// A mounted image; unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
}

impl Mount {
    /// Mounts `image` at `point`, which is made when it does not exist. The error is a sentence: no rights, no loop
    /// devices, or a kernel without this filesystem or algorithm are no fault of the image.
    pub fn new(image: &Path, format: Format, point: &Path) -> Result<Mount, String> {
        std::fs::create_dir_all(point).map_err(|e| format!("no mount point: {e}"))?;
        let output = Command::new("mount")
            .args(["-t", format.name(), "-o", "ro,loop"])
            .args([image, point])
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .output()
            .map_err(|e| format!("mount does not run: {e}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text
                .lines()
                .find(|l| !l.trim().is_empty())
                .unwrap_or("mount failed");
            let reason = line.rsplit(": ").next().unwrap_or(line);
            return Err(reason.trim().trim_end_matches('.').to_owned());
        }
        Ok(Mount {
            point: point.to_owned(),
        })
    }

    /// Mounts an EROFS image straight from its file, with its extra devices.
    pub fn erofs(image: &Path, devices: &[PathBuf], point: &Path) -> Result<Mount, Refusal> {
        let refused = |unable, text: String| Refusal { unable, text };
        std::fs::create_dir_all(point)
            .map_err(|e| refused(true, format!("no mount point: {e}")))?;
        let device = |path: &PathBuf| [b"device=", path.as_os_str().as_bytes()].concat();
        let options = devices.iter().map(device).collect::<Vec<_>>().join(&b',');
        let text = |_| refused(true, "a path holds a zero".to_owned());
        let options = CString::new(options).map_err(text)?;
        match rustix::mount::mount(image, point, c"erofs", MountFlags::RDONLY, &*options) {
            Ok(()) => Ok(Mount {
                point: point.to_owned(),
            }),
            // A kernel before 6.12 wants a block device, one without EROFS nothing; one is built without an algorithm.
            Err(e @ (Errno::NOTBLK | Errno::NODEV | Errno::PERM | Errno::OPNOTSUPP)) => {
                Err(refused(true, std::io::Error::from(e).to_string()))
            }
            Err(e) => Err(refused(false, std::io::Error::from(e).to_string())),
        }
    }

    /// Returns the mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.point).status();
        if !done.is_ok_and(|s| s.success()) {
            eprintln!("tuff-lab: warning: {} stays mounted", self.point.display());
        }
    }
}
