//! Mounts of images by the kernel, with and without extra devices.

use crate::is_root;
use crate::tree::{Ignore, Record, assert_same, host_tree, image_tree, open};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount,
    unmount,
};
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_erofs::check;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_mkfs::InputImage;
use tuff_store::{FileStore, ReadAt};

/// Mounts an image and its extra devices by the kernel, from files and from loop devices, and calls `see` with each mount.
/// Reports a skipped test for kinds of mounts that this host lacks.
pub fn by_kernel(image: &Path, devices: &[&Path], dir: &Path, see: &dyn Fn(&str, &Path)) {
    if !is_root() {
        crate::skipped("mounting needs root");
        return;
    }
    fs::create_dir_all(dir).unwrap();
    let see_mount = |way: &str, mounted: rustix::io::Result<()>| match mounted {
        Ok(()) => {
            let mounted = Detached(dir);
            see(way, dir);
            drop(mounted);
        }
        Err(e) if e == rustix::io::Errno::NOTBLK || e == rustix::io::Errno::NODEV => {
            crate::skipped(format_args!("mount of {way}: {e}"));
        }
        Err(e) => panic!("mount of {way}: {e}"),
    };
    see_mount("files", mount_files(image, devices, dir));
    let loops: Option<Vec<Loop>> = devices.iter().copied().map(Loop::over).collect();
    match (Loop::over(image), loops) {
        (Some(image), Some(loops)) => {
            let devices: Vec<&Path> = loops.iter().map(|l| &*l.0).collect();
            let data: Vec<String> = (devices.iter())
                .map(|d| format!("device={}", d.display()))
                .collect();
            let data = CString::new(data.join(",")).unwrap();
            let mounted = mount(&image.0, dir, "erofs", MountFlags::RDONLY, Some(&*data));
            see_mount("loop devices", mounted);
        }
        _ => crate::skipped("no loop devices"),
    }
}

/// Mounts files by fsopen(2), one option at a time, because the names of many do not fit into the options of mount(2).
fn mount_files(image: &Path, devices: &[&Path], dir: &Path) -> rustix::io::Result<()> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_set_string(&context, "source", image)?;
    for device in devices {
        fsconfig_set_string(&context, "device", *device)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&mounted, "", CWD, dir, flags)
}

/// Mount that is detached when the value is dropped, also by a test that fails.
struct Detached<'a>(&'a Path);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        // A concurrent test may have forked a child, which holds copies of our descriptors until it calls exec.
        let detached = unmount(self.0, UnmountFlags::DETACH);
        assert!(detached.is_ok() || std::thread::panicking(), "{detached:?}");
    }
}

/// Writes a file with the image followed by its devices.
pub fn appended(image: &Path, devices: &[&Path]) -> PathBuf {
    let both = image.with_extension("both");
    let parts = std::iter::once(image).chain(devices.iter().copied());
    let bytes: Vec<Vec<u8>> = parts.map(|part| fs::read(part).unwrap()).collect();
    fs::write(&both, bytes.concat()).unwrap();
    both
}

/// Opens an image with its devices as separate files.
pub fn open_with(image: &Path, devices: &[&Path]) -> tuff_erofs::Result<Image> {
    let device = |path: &&Path| Arc::new(FileStore::open(path).unwrap()) as Arc<dyn ReadAt>;
    let options = OpenOptions {
        devices: devices.iter().map(device).collect(),
        ..OpenOptions::default()
    };
    Image::open(FileStore::open(image).unwrap(), options)
}

/// Opens an image, with its devices as separate files, as an input of a build.
pub fn input_with(image: &Path, devices: &[&Path]) -> InputImage {
    let names = devices.iter().map(|path| path.to_path_buf()).collect();
    InputImage::new(open_with(image, devices).unwrap(), image.to_owned(), names)
}

/// Asserts that the library and the kernel read the expected tree, with devices appended to the image and as separate files.
pub fn all_agree(what: &str, image: &Path, devices: &[&Path], expected: &[Record], ignore: Ignore) {
    let both = appended(image, devices);
    for (way, image) in [
        ("appended devices", open(&both)),
        ("separate devices", open_with(image, devices).unwrap()),
    ] {
        let report = check::check(&image, &check::Options::default(), |_| ());
        let message: Vec<_> = report.findings.iter().map(|f| f.what.to_string()).collect();
        assert!(report.is_clean(), "{what}, {way}: {message:?}");
        assert_same(
            &format!("{what}, {way}"),
            expected,
            &image_tree(&image),
            ignore,
        );
    }
    let dir = image.with_extension("mnt");
    for (image, devices) in [(&*both, &[][..]), (image, devices)] {
        by_kernel(image, devices, &dir, &|way, at| {
            let what = format!("{what}: mounted by {way}, {} devices", devices.len());
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
        let message = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        out.status.success().then(|| Self(message.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}

/// Image mounted by the kernel, unmounted when the value is dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts `image` on `dir`. Reports a skipped test and returns `None` if this host cannot mount it.
    pub fn new(image: &Path, dir: &Path, options: &str) -> Option<Self> {
        if !is_root() {
            crate::skipped("mounting needs root");
            return None;
        }
        std::fs::create_dir_all(dir).unwrap();
        let options = if options.is_empty() {
            "loop,ro".to_owned()
        } else {
            format!("loop,ro,{options}")
        };
        let out = Command::new("mount")
            .args(["-t", "erofs", "-o", &options])
            .arg(image)
            .arg(dir)
            .output();
        match out {
            Ok(out) if out.status.success() => Some(Self(dir.to_owned())),
            Ok(out) => {
                let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
                crate::skipped(format_args!("mount: {why}"));
                None
            }
            Err(e) => {
                crate::skipped(format_args!("mount: {e}"));
                None
            }
        }
    }

    /// Path of the mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}
