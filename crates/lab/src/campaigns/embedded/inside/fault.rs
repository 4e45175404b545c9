//! Filesystems on a device that fails: device-mapper's flakey target, or changed bytes below a linear mapping.

use super::super::kind::Kind;
use super::job::{Fault, Reason, forget};
use crate::guest::inside::{self, POINT, command, detach};
use crate::record::{Sample, labels};
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
    pub(super) fn sample(&self, kind: Kind, fault: Fault) -> Sample {
        let result = |error: &Option<String>| error.as_deref().unwrap_or("succeeds").to_owned();
        let cell = labels([
            ("fault", fault.name()),
            ("filesystem", kind.name()),
            ("write after the fault", &result(&self.write_error)),
            ("next mount", &result(&self.mount_error)),
        ]);
        let values = [
            ("failed_operations", self.errors as usize),
            ("files", self.files),
            ("lost", self.lost),
            ("wrong", self.wrong),
        ];
        Sample {
            cell,
            round: 1,
            // Counts are far below the limit of exact numbers.
            values: values.map(|(name, v)| (name.to_owned(), v as f64)).into(),
        }
    }
}

/// Tests a filesystem with a fault of its device.
pub(super) fn run(kind: Kind, device: &str, fault: Fault) -> Reason<Seen> {
    let seen = match (kind.is_image(), kind.is_flash()) {
        (true, _) => image_fault(kind, device, fault),
        (_, true) => flash_fault(kind, device),
        _ => files_fault(kind, device, fault),
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

/// Reads all files below `top`, at most `most`.
fn files(top: &Path, most: usize) -> Reason<Files> {
    let mut found = Files::new();
    let mut stack = vec![top.to_owned()];
    while let Some(directory) = stack.pop() {
        for entry in fs::read_dir(&directory)
            .map_err(|e| e.to_string())?
            .flatten()
        {
            let path = entry.path();
            let kind = entry.file_type().map_err(|e| e.to_string())?;
            if kind.is_dir() {
                stack.push(path);
            } else if kind.is_file() && found.len() < most {
                let bytes = fs::read(&path).map_err(|e| e.to_string())?;
                found.insert(path, blake3::hash(&bytes));
            }
        }
    }
    Ok(found)
}

/// Counts the files that are lost and those with wrong content.
fn compare(expected: &Files) -> (usize, usize) {
    let (mut lost, mut wrong) = (0, 0);
    for (path, digest) in expected {
        match fs::read(path) {
            Err(_) => lost += 1,
            Ok(bytes) if blake3::hash(&bytes) != *digest => wrong += 1,
            Ok(_) => {}
        }
    }
    (lost, wrong)
}

/// Maps a device without a fault. Returns the path of the mapped device.
fn map(device: &str) -> Reason<String> {
    inside::map(
        NAME,
        &format!("0 {} linear {device} 0", sectors(device)?),
        false,
    )
}

/// Returns the length of a device in sectors.
fn sectors(device: &str) -> Reason<u64> {
    let path = format!("/sys/block/{}/size", device.trim_start_matches("/dev/"));
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    text.trim().parse().map_err(|e| format!("{path}: {e}"))
}

/// Begins a fault of the mapped device, or ends it.
fn set(device: &str, fault: Fault, begins: bool) -> Reason<()> {
    let sectors = sectors(device)?;
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
    let dmsetup = |words: &[&str]| command(0, &[&["/sbin/dmsetup"], words].concat());
    dmsetup(&["suspend", "--nolockfs", NAME])?;
    dmsetup(&["load", NAME, "--table", &table])?;
    dmsetup(&["resume", "--noudevsync", "--noudevrules", NAME]).map(|_| ())
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
    let bytes: Vec<u8> = (0..LENGTH / 8)
        .flat_map(|_| rng.draw().to_le_bytes())
        .collect();
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
fn flash_fault(kind: Kind, device: &str) -> Reason<Seen> {
    kind.format(device)?;
    kind.mount(device, POINT)?;
    let mut expected = Files::new();
    let errors = ["first", "second", "third"].map(|prefix| write(prefix, &mut expected));
    let write_error = write_error();
    kind.unmount(device, POINT)?;
    forget()?;
    let mut mount_error = kind.mount(device, POINT).err();
    let mut counts = (expected.len(), 0);
    if mount_error.is_none() {
        counts = compare(&expected);
        mount_error = kind.unmount(device, POINT).err();
    }
    Ok(Seen {
        files: expected.len(),
        errors: errors.iter().sum(),
        write_error,
        mount_error,
        lost: counts.0,
        wrong: counts.1,
    })
}

/// Tests a faulty device under a filesystem that can be written.
fn files_fault(kind: Kind, device: &str, fault: Fault) -> Reason<Seen> {
    kind.format(device)?;
    let mapped = map(device)?;
    kind.mount(&mapped, POINT)?;
    let mut expected = Files::new();
    if write("before", &mut expected) > 0 {
        return Err("files cannot be written before the fault".to_owned());
    }
    forget()?;
    set(device, fault, true)?;
    let mut errors = 0;
    let mut counts = None;
    match fault.is_of_writes() {
        true => {
            errors = write("during", &mut expected);
            // Writes the metadata, too. Its errors show in the files after it.
            rustix::fs::sync();
            errors += write("later", &mut expected);
        }
        false => counts = Some(compare(&expected)),
    }
    set(device, fault, false)?;
    let write_error = write_error();
    let unmounted = kind.unmount(&mapped, POINT);
    let mut mount_error = unmounted.err();
    if counts.is_none() && mount_error.is_none() {
        forget()?;
        mount_error = kind.mount(&mapped, POINT).err();
        if mount_error.is_none() {
            counts = Some(compare(&expected));
            mount_error = kind.unmount(&mapped, POINT).err();
        }
    }
    inside::unmap(NAME)?;
    let (lost, wrong) = counts.unwrap_or((expected.len(), 0));
    Ok(Seen {
        files: expected.len(),
        errors,
        write_error,
        mount_error,
        lost,
        wrong,
    })
}

/// Tests a faulty device under an image.
fn image_fault(kind: Kind, device: &str, fault: Fault) -> Reason<Seen> {
    let mapped = map(device)?;
    kind.mount(&mapped, POINT)?;
    let expected = files(Path::new(POINT), FILES as usize)?;
    forget()?;
    set(device, fault, true)?;
    let (lost, wrong) = compare(&expected);
    set(device, fault, false)?;
    let write_error = write_error();
    kind.unmount(&mapped, POINT)?;
    inside::unmap(NAME)?;
    Ok(Seen {
        files: expected.len(),
        errors: 0,
        write_error,
        mount_error: None,
        lost,
        wrong,
    })
}
