//! Filesystems on a device that fails: device-mapper's flakey target, or changed bytes below a linear mapping.

use super::job::{Fault, Reason, forget, size};
use crate::engines::filesystem::{Place, detach};
use crate::guest::inside::{self, POINT, dmsetup};
use crate::measure::helper::noise;
use crate::measure::root;
use crate::record::{Line, labels};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tuff_testkit::Rng;

/// Number of files written before and during a fault.
const FILES: u32 = 32;
/// Length of each of these files. Unit: bytes.
const LENGTH: usize = 48 << 10;
/// Distance between two changed bytes of the device, and the place of the first one. Unit: bytes.
const STRIDE: u64 = 32 << 10;
const FIRST: u64 = 16 << 10;
/// Name of the mapped device.
const NAME: &str = "faulty";

/// Result of a fault. Files are those that were synced without an error.
#[derive(Default)]
pub(super) struct Seen {
    /// Files that were synced, and are read again.
    files: usize,
    /// Operations during the fault that returned an error.
    errors: u32,
    /// Error of creating, writing and syncing a file after the fault, if any.
    write_error: Option<String>,
    /// Error of the mount after the fault, if any.
    mount_error: Option<String>,
    /// Files that return an error or are missing. After faults of writes: after a mount without the fault.
    lost: usize,
    /// Files with wrong content and no error.
    wrong: usize,
}

impl Seen {
    pub(super) fn sample(&self, filesystem: &str, fault: Fault) -> Line {
        let result = |error: &Option<String>| error.as_deref().unwrap_or("succeeds").to_owned();
        let cell = labels([
            ("fault", fault.name()),
            ("filesystem", filesystem),
            ("write after the fault", &result(&self.write_error)),
            ("next mount", &result(&self.mount_error)),
        ]);
        // Counts are far below the limit of exact numbers.
        let values = [
            ("failed_operations", f64::from(self.errors)),
            ("files", self.files as f64),
            ("lost", self.lost as f64),
            ("wrong", self.wrong as f64),
        ];
        Line::sample(cell, 1, values)
    }

    /// Compares the files with their expected content.
    fn compare(&mut self, expected: &Files) {
        (self.lost, self.wrong) = (0, 0);
        for (path, digest) in expected {
            match fs::read(path) {
                Err(_) => self.lost += 1,
                Ok(bytes) if blake3::hash(&bytes) != *digest => self.wrong += 1,
                Ok(_) => {}
            }
        }
    }

    /// Compares the files after another mount.
    fn remount(&mut self, place: &Place<'_>, expected: &Files) -> Reason<()> {
        self.lost = expected.len();
        forget()?;
        self.mount_error = place.mount("").err();
        if self.mount_error.is_none() {
            self.compare(expected);
            self.mount_error = place.unmount().err();
        }
        Ok(())
    }
}

/// Tests a filesystem with a fault of its device.
pub(super) fn run(place: &Place<'_>, fault: Fault) -> Reason<Seen> {
    let seen = match place.kind.is_flash() {
        true => flash_fault(place),
        false => block_fault(place, fault),
    };
    if seen.is_err() {
        // An earlier test that failed may have left its device, mounted or not.
        let _ = detach(POINT);
        let _ = inside::unmap(NAME);
    }
    seen
}

/// Content of files by path, as digests.
type Files = BTreeMap<PathBuf, blake3::Hash>;

/// Reads the first files below `top`, at most `most`.
fn files(top: &Path, most: usize) -> Reason<Files> {
    let mut found = Vec::new();
    root::list(top, &mut found).map_err(|e| e.to_string())?;
    let read = |(path, _): (PathBuf, u64)| {
        let bytes = fs::read(&path).map_err(|e| e.to_string())?;
        Ok((path, blake3::hash(&bytes)))
    };
    found.into_iter().take(most).map(read).collect()
}

/// Maps a device without a fault. Returns the path of the mapped device.
fn map(device: &str) -> Reason<String> {
    let sectors = size(device)? / 512;
    inside::map(NAME, &format!("0 {sectors} linear {device} 0"), false)
}

/// Begins a fault of the mapped device, or ends it.
fn set(device: &str, fault: Fault, begins: bool) -> Reason<()> {
    let sectors = size(device)? / 512;
    let features = match fault {
        Fault::WriteErrors => "1 error_writes",
        Fault::WrongWrites => "5 corrupt_bio_byte 64 w 165 0",
        Fault::ReadErrors => "0",
        // The flakey target of Linux 6.1 does not change data that is read.
        Fault::WrongReads => {
            return invert(device, sectors * 512).map_err(|e| format!("{device}: {e}"));
        }
        _ => return Err("a fault of flash is a parameter of nandsim".to_owned()),
    };
    let table = match begins {
        // Never up, always down.
        true => format!("0 {sectors} flakey {device} 0 0 60 {features}"),
        false => format!("0 {sectors} linear {device} 0"),
    };
    dmsetup(&["suspend", "--nolockfs", NAME])?;
    dmsetup(&["load", NAME, "--table", &table])?;
    dmsetup(&["resume", NAME])
}

/// Inverts one byte in each [`STRIDE`] below the mapping. A second call restores the content.
fn invert(device: &str, length: u64) -> std::io::Result<()> {
    let file = File::options().read(true).write(true).open(device)?;
    for offset in (FIRST..length).step_by(STRIDE as usize) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        file.write_all_at(&[!byte[0]], offset)?;
    }
    file.sync_all()?;
    // The cache of the device below the mapping would be stale at the second call.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Creates, writes and syncs a file. Returns the error of the first step that fails.
fn write_error() -> Option<String> {
    let written = write_synced(&Path::new(POINT).join("after"), 0);
    written.err().map(|e| e.to_string())
}

/// Writes a file of random content and syncs it and the directory.
fn write_synced(path: &Path, seed: u64) -> std::io::Result<blake3::Hash> {
    let mut rng = Rng::new(seed);
    let bytes = noise(&mut rng, LENGTH);
    let mut file = File::create(path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    File::open(POINT)?.sync_all()?;
    Ok(blake3::hash(&bytes))
}

/// Writes and syncs files. Adds those without an error to `expected` and returns the number of others.
fn write(prefix: &str, expected: &mut Files) -> u32 {
    let mut errors = 0;
    for number in 0..FILES {
        let path = Path::new(POINT).join(format!("{prefix}{number}"));
        match write_synced(&path, u64::from(number)) {
            Ok(digest) => _ = expected.insert(path, digest),
            Err(_) => errors += 1,
        }
    }
    errors
}

/// Tests a filesystem on flash whose fault was there from the beginning.
fn flash_fault(place: &Place<'_>) -> Reason<Seen> {
    let mut seen = Seen::default();
    place.make()?;
    place.mount("")?;
    let mut expected = Files::new();
    for prefix in ["first", "second", "third"] {
        seen.errors += write(prefix, &mut expected);
    }
    seen.files = expected.len();
    seen.write_error = write_error();
    place.unmount()?;
    seen.remount(place, &expected)?;
    Ok(seen)
}

/// Tests a faulty device under a filesystem that can be written, or under an image, whose own files are read.
fn block_fault(place: &Place<'_>, fault: Fault) -> Reason<Seen> {
    let mut seen = Seen::default();
    let (device, is_image) = (place.device, place.kind.is_image());
    if !is_image {
        place.make()?;
    }
    let place = &Place {
        device: &map(device)?,
        ..*place
    };
    place.mount("")?;
    let mut expected = Files::new();
    if is_image {
        expected = files(Path::new(POINT), FILES as usize)?;
    } else if write("before", &mut expected) > 0 {
        return Err("files cannot be written before the fault".to_owned());
    }
    forget()?;
    set(device, fault, true)?;
    match fault.is_of_writes() {
        true => {
            seen.errors = write("during", &mut expected);
            // Writes the metadata, too. Its errors show in the files after it.
            rustix::fs::sync();
            seen.errors += write("later", &mut expected);
            seen.lost = expected.len();
        }
        false => seen.compare(&expected),
    }
    seen.files = expected.len();
    set(device, fault, false)?;
    seen.write_error = write_error();
    seen.mount_error = place.unmount().err();
    if fault.is_of_writes() && seen.mount_error.is_none() {
        seen.remount(place, &expected)?;
    }
    inside::unmap(NAME)?;
    Ok(seen)
}
