//! Mounts by the kernel, of images with and without an extra device.

use super::is_root;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the kernel makes of an image and its extra device: from files and from loop devices, as far as it can.
pub fn by_kernel(image: &Path, device: Option<&Path>, dir: &Path, see: &dyn Fn(&str, &Path)) {
    if !is_root() {
        eprintln!("SKIPPED: mounting needs root");
        return;
    }
    fs::create_dir_all(dir).unwrap();
    let look = |way: &str, image: &Path, device: Option<&Path>| {
        let data = device.map(|d| CString::new(format!("device={}", d.display())).unwrap());
        match mount(image, dir, "erofs", MountFlags::RDONLY, data.as_deref()) {
            Ok(()) => {
                see(way, dir);
                // Another test may just be starting a command, which has our files until it is one.
                unmount(dir, UnmountFlags::DETACH).unwrap();
            }
            Err(e) if e == rustix::io::Errno::NOTBLK || e == rustix::io::Errno::NODEV => {
                eprintln!("SKIPPED: mount of {way}: {e}");
            }
            Err(e) => panic!("mount of {way}: {e}"),
        }
    };
    look("files", image, device);
    match (Loop::over(image), device.map(Loop::over)) {
        (Some(image), None) => look("loop devices", &image.0, None),
        (Some(image), Some(Some(device))) => look("loop devices", &image.0, Some(&device.0)),
        _ => eprintln!("SKIPPED: no loop devices"),
    }
}

struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let out = Command::new("losetup")
            .args(["-rf", "--show"])
            .arg(file)
            .output()
            .ok()?;
        let said = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        out.status.success().then(|| Self(said.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}
