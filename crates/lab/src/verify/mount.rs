//! Read-only mounts of images by the kernel.

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time after which a mount is busy for another reason than a process that has just been started.
const BUSY_MAX: Duration = Duration::from_secs(20);

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
        if let Err(e) = unmounted(&self.point) {
            eprintln!(
                "tuff-lab: warning: {} stays mounted: {e}",
                self.point.display()
            );
        }
    }
}

/// Unmounts, again while the mount is busy: a process that another thread starts has copies of open files until it executes its
/// program.
pub(crate) fn unmounted(point: &Path) -> rustix::io::Result<()> {
    let end = Instant::now() + BUSY_MAX;
    loop {
        match unmount(point, UnmountFlags::empty()) {
            Err(Errno::BUSY) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}
