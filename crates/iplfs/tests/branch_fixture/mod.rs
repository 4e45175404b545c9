//! Volumes with branches in scratch directories, for the tests of branches.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_iplfs::backend::{ZoneDir, open_branch};
use tuff_iplfs::{
    Allocate, BlockDevice, Caller, CheckOptions, FormatOptions, Geometry, MountOptions, Nid,
    Result, SetAttr, Time, Volume, branches, check, mode,
};

pub(crate) const NOW: Time = Time { sec: 1, nsec: 0 };
pub(crate) const CALLER: Caller = Caller {
    now: NOW,
    uid: 0,
    gid: 0,
};
pub(crate) const GEOMETRY: Geometry = Geometry {
    area_bits: 40,
    section_bits: 12,
    zone_bits: 6,
    pack_blocks: 16,
};

pub(crate) type Model = BTreeMap<String, Vec<u8>>;

/// Directory of a test, removed at its end. Memory if there is some: nothing here asks whether the host is durable.
pub(crate) struct Scratch(PathBuf);

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn scratch(name: &str) -> Scratch {
    let memory = Path::new("/dev/shm");
    let name = format!("tuff-branches-{name}-{}", std::process::id());
    let path = memory.join(&name);
    let _ = std::fs::remove_dir_all(&path);
    if std::fs::create_dir(&path).is_ok() {
        return Scratch(path);
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    Scratch(path)
}

pub(crate) fn create(name: &str) -> Scratch {
    create_with(name, GEOMETRY)
}

pub(crate) fn create_with(name: &str, geometry: Geometry) -> Scratch {
    let path = scratch(name);
    let options = FormatOptions {
        geometry,
        reserve_blocks: 256,
        ..FormatOptions::new([3; 16], [5; 16], 1 << 20)
    };
    Volume::format(Arc::new(ZoneDir::create(&path, 64).unwrap()), &options).unwrap();
    path
}

pub(crate) fn options() -> MountOptions {
    MountOptions {
        window_blocks: 512,
        journal_max: 8,
        ..MountOptions::default()
    }
}

pub(crate) fn mount(path: &Path, branch: &str) -> Volume {
    Volume::mount(open_branch(path, Some(branch), false).unwrap(), options()).unwrap()
}

pub(crate) fn write(v: &mut Volume, name: &str, bytes: &[u8]) {
    let ino = match v.lookup(Nid::ROOT, name.as_bytes()) {
        Ok(ino) => ino,
        Err(_) => {
            let made = v.create(Nid::ROOT, name.as_bytes(), mode::FILE | 0o644, 0, &CALLER);
            made.unwrap().ino
        }
    };
    v.write(ino, 0, bytes, NOW).unwrap();
}

/// Reserves, releases or keeps a range past the end of a file of 9,000 bytes, by a number.
pub(crate) fn reserve(v: &mut Volume, ino: Nid, number: u8) -> Result<()> {
    // In the slots of the inode, or in those of a direct node.
    let offset = if number & 8 == 0 { 64 << 10 } else { 8 << 20 };
    let (is_cut, len) = (number & 16 == 0, 4096 * u64::from(1 + number % 40));
    match number % 8 {
        0 | 1 => v.fallocate(ino, Allocate::KeepSize, offset, len, NOW),
        2 => {
            let zero = Allocate::ZeroRange { keep_size: true };
            v.fallocate(ino, zero, offset, len, NOW)
        }
        3 => v.fallocate(
            ino,
            Allocate::PunchHole,
            offset,
            4096 * u64::from(number),
            NOW,
        ),
        4 if is_cut => {
            let size = SetAttr {
                size: Some(9000),
                ..SetAttr::default()
            };
            v.set_attr(ino, &size, NOW).map(drop)
        }
        _ => Ok(()),
    }
}

pub(crate) fn remove(v: &mut Volume, name: &str) {
    v.unlink(Nid::ROOT, name.as_bytes(), &CALLER).unwrap();
}

pub(crate) fn content(v: &mut Volume) -> Model {
    let entries = v.read_dir(Nid::ROOT, 2, usize::MAX).unwrap();
    entries
        .into_iter()
        .map(|entry| {
            let bytes = v.read(entry.ino, 0, 1 << 20).unwrap();
            (String::from_utf8(entry.name).unwrap(), bytes)
        })
        .collect()
}

/// Blocks that zone files hold, by address.
pub(crate) fn held(path: &Path) -> BTreeSet<u64> {
    let dirs = std::fs::read_dir(path.join("regions")).map_or(Vec::new(), |dirs| {
        dirs.map(|dir| dir.unwrap().path()).collect()
    });
    let mut blocks = BTreeSet::new();
    for dir in dirs.into_iter().chain([path.join("zones")]) {
        for file in std::fs::read_dir(dir).unwrap() {
            let file = file.unwrap();
            let zone = u64::from_str_radix(file.file_name().to_str().unwrap(), 16).unwrap();
            let bytes = std::fs::read(file.path()).unwrap();
            for (at, block) in bytes.chunks(4096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    blocks.insert(zone * 64 + at as u64);
                }
            }
        }
    }
    // Superblocks and packs of the first branch.
    let fixed = GEOMETRY.fixed_end();
    blocks.retain(|addr| *addr >= fixed && *addr != 7 << GEOMETRY.area_bits);
    blocks
}

/// Drains every branch that has a name, checks all, and compares the blocks that zone files hold with those that a
/// branch, a snapshot or a fork point refers to.
pub(crate) fn exact(path: &Path) {
    let mut reachable = BTreeSet::new();
    for info in branches(path).unwrap() {
        let Some(name) = info.name else { continue };
        let mut v = mount(path, &name);
        v.drain().unwrap();
        v.unmount().unwrap();
    }
    for info in branches(path).unwrap() {
        let dev: Arc<dyn BlockDevice> = match &info.name {
            Some(name) => open_branch(path, Some(name), true).unwrap(),
            None => Arc::new(ZoneDir::open_number(path, info.number).unwrap()),
        };
        let options = CheckOptions {
            data: true,
            ..CheckOptions::default()
        };
        let report = check(&dev, options).unwrap();
        assert!(
            report.findings.is_empty(),
            "{:?}: {:?}",
            info.name,
            report.findings
        );
        assert!(
            report.leaked.is_empty(),
            "{:?}: {:x?}",
            info.name,
            report.leaked
        );
        reachable.extend(report.reachable);
    }
    let found = held(path);
    let missing: Vec<_> = reachable
        .iter()
        .filter(|addr| !found.contains(addr) && **addr >= GEOMETRY.fixed_end())
        .collect();
    assert!(missing.is_empty(), "reachable but not held: {missing:x?}");
    let leaked: Vec<_> = found.difference(&reachable).collect();
    assert!(leaked.is_empty(), "held but not reachable: {leaked:x?}");
}

pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            copy_sparse(&path, &to);
        }
    }
}

/// Copies a file without its holes, which the device takes for free space.
fn copy_sparse(from: &Path, to: &Path) {
    let bytes = std::fs::read(from).unwrap();
    let file = File::create(to).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (at, block) in (0..).zip(bytes.chunks(4096)) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, at * 4096).unwrap();
        }
    }
}

/// Contents of the branches that have names.
pub(crate) fn contents(path: &Path) -> BTreeMap<String, Model> {
    let infos = branches(path).unwrap().into_iter();
    infos
        .filter_map(|info| info.name)
        .map(|name| {
            let mut v = mount(path, &name);
            let content = content(&mut v);
            v.unmount().unwrap();
            (name, content)
        })
        .collect()
}

/// Directory of the branch `name`.
pub(crate) fn directory(path: &Path, name: &str) -> PathBuf {
    let mut dirs = std::fs::read_dir(path.join("branches")).unwrap();
    dirs.find_map(|dir| {
        let path = dir.unwrap().path();
        let found = path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .ends_with(&format!("+{name}"));
        found.then_some(path)
    })
    .unwrap()
}
