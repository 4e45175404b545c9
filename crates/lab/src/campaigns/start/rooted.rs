//! Mounted tree as a root directory for programs, with `/proc` and its own `/dev` and `/tmp`.

use crate::campaigns::serve::server::Served;
use crate::{At, Result};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use std::path::{Path, PathBuf};

/// Devices that programs open: name, major and minor number. Source: the kernel's list of devices.
const DEVICES: [(&str, u32, u32); 5] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
];

/// Root directory for programs. Dropping it unmounts the inner mounts, then the tree.
#[derive(Debug)]
pub struct Rooted {
    point: PathBuf,
    /// Mount points, in the order of mounting.
    inner: Vec<PathBuf>,
    /// Dropped after `Drop::drop` has unmounted the inner mounts.
    served: Option<Served>,
}

impl Rooted {
    /// Creates a root on a mounted image.
    pub fn on(served: Served) -> Result<Rooted> {
        let mut rooted = Rooted {
            point: served.point().to_owned(),
            inner: Vec::new(),
            served: Some(served),
        };
        rooted.furnish()?;
        Ok(rooted)
    }

    /// Binds a tree read-only at `point` and creates a root there.
    pub fn of_tree(tree: &Path, point: &Path) -> Result<Rooted> {
        Rooted::bind(tree, point, true)
    }

    /// Binds a tree at `point` and creates a writable root there, to prepare a tree.
    pub fn to_prepare(tree: &Path, point: &Path) -> Result<Rooted> {
        Rooted::bind(tree, point, false)
    }

    fn bind(tree: &Path, point: &Path, read_only: bool) -> Result<Rooted> {
        std::fs::create_dir_all(point).at("create", point)?;
        mount_bind(tree, point).at("mount", point)?;
        let mut rooted = Rooted {
            point: point.to_owned(),
            inner: vec![point.to_owned()],
            served: None,
        };
        // Prevents inner mounts from propagating to the tree.
        mount_change(point, MountPropagationFlags::PRIVATE).at("mount", point)?;
        if read_only {
            let flags = MountFlags::BIND | MountFlags::RDONLY;
            mount_remount(point, flags, c"").at("mount", point)?;
        }
        rooted.furnish()?;
        Ok(rooted)
    }

    /// Returns the path of the root.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the server of the mounted image. None for a tree.
    pub fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    fn furnish(&mut self) -> Result<()> {
        let safe = MountFlags::NOSUID | MountFlags::NOEXEC;
        for (name, filesystem, flags) in [
            ("proc", "proc", safe | MountFlags::NODEV),
            ("dev", "tmpfs", safe),
            ("tmp", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV),
        ] {
            let place = self.point.join(name);
            mount(filesystem, &place, filesystem, flags, None).at("mount", &place)?;
            self.inner.push(place);
        }
        for (name, major, minor) in DEVICES {
            let place = self.point.join("dev").join(name);
            let mode = Mode::from_raw_mode(0o666);
            let device = makedev(major, minor);
            mknodat(CWD, &place, FileType::CharacterDevice, mode, device).at("create", &place)?;
        }
        Ok(())
    }
}

impl Drop for Rooted {
    fn drop(&mut self) {
        while let Some(place) = self.inner.pop() {
            if let Err(e) = unmount(&place, UnmountFlags::DETACH) {
                eprintln!("tuff-lab: warning: {} stays mounted: {e}", place.display());
            }
        }
    }
}
