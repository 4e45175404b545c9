//! Read-only mounts of images by the kernel.

use crate::engines::Format;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Reason for which an image could not be mounted.
#[derive(Debug)]
pub struct Refusal {
    /// True if the environment cannot mount such images. False if the image is at fault.
    pub unable: bool,
    /// Text of the error.
    pub text: String,
}

/// Mounted image, unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
}

impl Mount {
    /// Mounts `image` at `point`, which is created if necessary. The error is a reason without a
    /// trailing period. Missing privileges, loop devices, or kernel support are not faults of the
    /// image.
    pub fn new(image: &Path, format: Format, point: &Path) -> Result<Mount, String> {
        std::fs::create_dir_all(point)
            .map_err(|e| format!("cannot create the mount point: {e}"))?;
        let output = Command::new("mount")
            .args(["-t", format.name(), "-o", "ro,loop"])
            .args([image, point])
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .output()
            .map_err(|e| format!("cannot run mount: {e}"))?;
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

    /// Mounts an EROFS image directly from its file, with its additional devices.
    pub fn erofs(image: &Path, devices: &[PathBuf], point: &Path) -> Result<Mount, Refusal> {
        let refused = |unable, text: String| Refusal { unable, text };
        std::fs::create_dir_all(point)
            .map_err(|e| refused(true, format!("cannot create the mount point: {e}")))?;
        let device = |path: &PathBuf| [b"device=", path.as_os_str().as_bytes()].concat();
        let options = devices.iter().map(device).collect::<Vec<_>>().join(&b',');
        let text = |_| refused(true, "a path contains a NUL byte".to_owned());
        let options = CString::new(options).map_err(text)?;
        match rustix::mount::mount(image, point, c"erofs", MountFlags::RDONLY, &*options) {
            Ok(()) => Ok(Mount {
                point: point.to_owned(),
            }),
            // Kernels before 6.12 require a block device. EROFS or an algorithm may be missing in
            // the kernel.
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
