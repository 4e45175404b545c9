//! Mounts by the kernel, of images with and without an extra device.

use super::{Ignore, Record, assert_same, host_tree, image_tree, is_root, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_image::check;
use tuff_image::read::{Image, OpenOptions};
use tuff_store::{FileStore, ReadAt};

/// What the kernel makes of an image and its extra device: from files and from loop devices, as far as it can.
pub fn by_kernel(image: &Path, device: Option<&Path>, dir: &Path, see: &dyn Fn(&str, &Path)) {
    if !is_root() {
        _ = writeln!(std::io::stderr(), "SKIPPED: mounting needs root");
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
                _ = writeln!(std::io::stderr(), "SKIPPED: mount of {way}: {e}");
            }
            Err(e) => panic!("mount of {way}: {e}"),
        }
    };
    look("files", image, device);
    match (Loop::over(image), device.map(Loop::over)) {
        (Some(image), None) => look("loop devices", &image.0, None),
        (Some(image), Some(Some(device))) => look("loop devices", &image.0, Some(&device.0)),
        _ => _ = writeln!(std::io::stderr(), "SKIPPED: no loop devices"),
    }
}

/// An image with its device behind it, in one file.
pub fn appended(image: &Path, device: &Path) -> PathBuf {
    let both = image.with_extension("both");
    fs::write(
        &both,
        [fs::read(image).unwrap(), fs::read(device).unwrap()].concat(),
    )
    .unwrap();
    both
}

/// Opens an image with its device beside it.
pub fn open_with(image: &Path, device: &Path) -> tuff_image::Result<Image> {
    let device: Arc<dyn ReadAt> = Arc::new(FileStore::open(device).unwrap());
    let options = OpenOptions {
        devices: vec![device],
        ..OpenOptions::default()
    };
    Image::open(FileStore::open(image).unwrap(), options)
}

/// Two readers of an image, both ways in which it finds its device: all see what is expected.
pub fn all_agree(what: &str, image: &Path, device: &Path, expected: &[Record], ignore: Ignore) {
    let both = appended(image, device);
    for (way, image) in [
        ("behind", open(&both)),
        ("beside", open_with(image, device).unwrap()),
    ] {
        let report = check::check(&image, &check::Options::default(), |_| ());
        let said: Vec<_> = report.findings.iter().map(|f| f.what.to_string()).collect();
        assert!(report.is_clean(), "{what}, {way}: {said:?}");
        assert_same(
            &format!("{what}, {way}"),
            expected,
            &image_tree(&image),
            ignore,
        );
    }
    let dir = image.with_extension("mnt");
    for (image, device) in [(&*both, None), (image, Some(device))] {
        by_kernel(image, device, &dir, &|way, at| {
            let what = format!("{what}: mounted by {way}, device {}", device.is_some());
            assert_same(&what, expected, &host_tree(at), ignore);
        });
    }
    fs::remove_file(both).unwrap();
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
