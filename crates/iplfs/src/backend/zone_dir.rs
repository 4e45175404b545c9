//! A directory with one sparse file per zone.
//!
//! ```text
//!  DIR/volume            what this is, the size of a zone, and the lock
//!  DIR/zones/0000000000  … one file per zone that holds anything, named by its number in hexadecimal
//! ```
//!
//! Zone files because no common host filesystem has files of 8 EiB (ext4 ends at 16 TiB), and because a dead zone is one `unlink` where a
//! large file would need a hole punched for every block. The directory plays the part of the root of an interval map, the
//! extent tree of each file that of its map node.

use super::{BS, data_runs, lock, punch, read_sparse, write_in_place, write_zeros};
use crate::areas::{Addr, BLOCK_SIZE};
use crate::device::BlockDevice;
use crate::room::is_full;
use rustix::fs::{AtFlags, StatxFlags, fstatvfs, statx};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: &str = "tuff volume in zone files, version 1";
/// Zone files kept open.
const OPEN_MAX: usize = 128;

/// A volume's device in a directory.
pub struct ZoneDir {
    zones_path: PathBuf,
    /// Held open for its lock.
    _volume: File,
    zones_dir: File,
    zone_blocks: u64,
    read_only: bool,
    can_punch: bool,
    state: Mutex<State>,
    /// Held by the flush under way: another one must not find its files clean and go ahead. True after one failed.
    flushing: Mutex<bool>,
}

#[derive(Default)]
struct State {
    /// Zones that have a file.
    zones: BTreeSet<u64>,
    open: BTreeMap<u64, Arc<File>>,
    /// Files changed since the last flush.
    dirty: BTreeMap<u64, Arc<File>>,
    /// The directory of zones changed since the last flush.
    names_dirty: bool,
}

impl ZoneDir {
    /// Makes an empty device in a directory that does not exist or is empty. `zone_blocks` is a power of two.
    pub fn create(path: &Path, zone_blocks: u64) -> io::Result<Self> {
        if !zone_blocks.is_power_of_two() || !(16..=1 << 24).contains(&zone_blocks) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("zones of {zone_blocks} blocks"),
            ));
        }
        fs::create_dir_all(path)?;
        if fs::read_dir(path)?.next().is_some() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the directory is not empty",
            ));
        }
        // Of several who make a volume here, this is for one.
        fs::create_dir(path.join("zones"))?;
        Self::fill(path, zone_blocks).inspect_err(|_| Self::unmake(path))
    }

    fn fill(path: &Path, zone_blocks: u64) -> io::Result<Self> {
        write_in_place(&File::open(path.join("zones"))?);
        fs::write(
            path.join("volume"),
            format!("{MAGIC}\nzone_blocks {zone_blocks}\n"),
        )?;
        File::open(path.join("volume"))?.sync_all()?;
        File::open(path)?.sync_all()?;
        Self::open(path, false)
    }

    /// Takes away what [`create`](Self::create) made in the directory `path`, which stays. Nobody is told of what does not go:
    /// what failed before is what matters.
    pub fn unmake(path: &Path) {
        let _ = fs::remove_file(path.join("volume"));
        let _ = fs::remove_dir_all(path.join("zones"));
    }

    /// Opens a device that `create` made. `ResourceBusy` if it is open.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        // A process that goes into the background leaves its working directory.
        let path = &std::path::absolute(path)?;
        let volume = File::open(path.join("volume")).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(e.kind(), "is no volume: the directory has no file `volume`")
            }
            _ => e,
        })?;
        lock(&volume, read_only)?;
        let text = fs::read_to_string(path.join("volume"))?;
        let mut lines = text.lines();
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        if lines.next() != Some(MAGIC) {
            return Err(bad("is no volume in zone files"));
        }
        let zone_blocks = lines
            .next()
            .and_then(|line| line.strip_prefix("zone_blocks "))
            .and_then(|n| n.parse::<u64>().ok())
            .filter(|n| n.is_power_of_two() && (16..=1 << 24).contains(n))
            .ok_or_else(|| bad("does not say how large its zones are"))?;
        let zones_path = path.join("zones");
        let mut zones = BTreeSet::new();
        for entry in fs::read_dir(&zones_path)? {
            let name = entry?.file_name();
            // Another way to write the number is another file than the one that is opened for it.
            let zone = name
                .to_str()
                .and_then(|name| u64::from_str_radix(name, 16).ok())
                .filter(|zone| name == *zone_name(*zone));
            zones.insert(zone.ok_or_else(|| bad(&format!("zones/{} is no zone", name.display())))?);
        }
        let zones_dir = File::open(&zones_path)?;
        let can_punch = read_only || can_punch(&path.join("volume"))?;
        if !read_only {
            // Earlier versions kept space there for a host that is full.
            let _ = fs::remove_file(path.join("ballast"));
        }
        Ok(Self {
            zones_path,
            _volume: volume,
            zones_dir,
            zone_blocks,
            read_only,
            can_punch,
            state: Mutex::new(State {
                zones,
                ..State::default()
            }),
            flushing: Mutex::new(false),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // Every change below is a single insertion or removal: a panic elsewhere leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file_path(&self, zone: u64) -> PathBuf {
        self.zones_path.join(zone_name(zone))
    }

    /// The file of a zone; `None` if there is none and none is to be made.
    fn file(&self, zone: u64, make: bool) -> io::Result<Option<Arc<File>>> {
        let mut state = self.lock_state();
        let file = match state.open.get(&zone) {
            Some(file) => file.clone(),
            None => {
                let exists = state.zones.contains(&zone);
                if !exists && !make {
                    return Ok(None);
                }
                let mut options = OpenOptions::new();
                options.read(true).write(!self.read_only);
                // `create` is not `create_new`: a file may be left by a crash before its name was in our list.
                let file = Arc::new(
                    options
                        .create(make && !exists)
                        .truncate(false)
                        .open(self.file_path(zone))?,
                );
                if !exists {
                    state.zones.insert(zone);
                    state.names_dirty = true;
                }
                if state.open.len() >= OPEN_MAX {
                    state.open.pop_first();
                }
                state.open.insert(zone, file.clone());
                file
            }
        };
        if make {
            state.dirty.insert(zone, file.clone());
        }
        Ok(Some(file))
    }

    /// What is written to a file that somebody else removed is durable for nobody. Nothing is asked but that: whoever asks for a file's times has Linux
    /// (6.13 and later) give the next change a time of its own, which is one more block to write at each flush.
    fn has_name(&self, zone: u64, file: &File) -> io::Result<()> {
        let names = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK)?.stx_nlink;
        let ours_to_remove = self.lock_state();
        if names == 0 && ours_to_remove.zones.contains(&zone) {
            let what = format!("zones/{} was removed by somebody else", zone_name(zone));
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        Ok(())
    }

    /// Cuts a range of addresses at zone boundaries: zone and blocks inside it.
    fn pieces(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let size = self.zone_blocks;
        let mut at = blocks.start;
        std::iter::from_fn(move || {
            if at >= blocks.end {
                return None;
            }
            let zone = at / size;
            let end = blocks.end.min((zone + 1) * size);
            let piece = (zone, at % size..end - zone * size);
            at = end;
            Some(piece)
        })
    }

    fn remove(&self, zone: u64) -> io::Result<()> {
        let mut state = self.lock_state();
        state.open.remove(&zone);
        state.dirty.remove(&zone);
        if state.zones.contains(&zone) {
            fs::remove_file(self.file_path(zone))?;
            state.zones.remove(&zone);
            state.names_dirty = true;
        }
        Ok(())
    }
}

/// The name of a zone's file.
fn zone_name(zone: u64) -> String {
    format!("{zone:010x}")
}

/// Asks for a hole where nothing is, to learn whether the host can punch any. It takes no space, which a full host would not have.
fn can_punch(volume: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).open(volume)?;
    match punch(&file, 1..2) {
        Err(e) if matches!(e.raw_os_error(), Some(95 | 38)) => Ok(false),
        Err(e) if !is_full(&e) => Err(e),
        _ => Ok(true),
    }
}

impl BlockDevice for ZoneDir {
    fn read(&self, addr: Addr, buf: &mut [u8]) -> io::Result<()> {
        let mut rest = buf;
        for (zone, piece) in self.pieces(addr.0..addr.0 + (rest.len() / BLOCK_SIZE) as u64) {
            let (now, later) = rest.split_at_mut((piece.end - piece.start) as usize * BLOCK_SIZE);
            match self.file(zone, false)? {
                Some(file) => read_sparse(&file, piece.start, now)?,
                None => now.fill(0),
            }
            rest = later;
        }
        Ok(())
    }

    fn write(&self, addr: Addr, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        for (zone, piece) in self.pieces(addr.0..addr.0 + (rest.len() / BLOCK_SIZE) as u64) {
            let (now, later) = rest.split_at((piece.end - piece.start) as usize * BLOCK_SIZE);
            if let Some(file) = self.file(zone, true)? {
                let written = file.write_all_at(now, piece.start * BS);
                // Again: a flush may have begun and taken the file between its being opened and its being written.
                self.lock_state().dirty.insert(zone, file);
                written?;
            }
            rest = later;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut failed = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            // Hosts report what they lost once, and forget that they ever had it.
            return Err(io::Error::other("an earlier flush failed"));
        }
        let (dirty, names) = {
            let mut state = self.lock_state();
            (
                std::mem::take(&mut state.dirty),
                std::mem::take(&mut state.names_dirty),
            )
        };
        // The names first: data in a file that a crash forgets is lost.
        let result = if names {
            self.zones_dir.sync_all()
        } else {
            Ok(())
        };
        let result = result.and_then(|()| {
            dirty.iter().try_for_each(|(zone, file)| {
                file.sync_data()?;
                self.has_name(*zone, file)
            })
        });
        *failed = result.is_err();
        result
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.pieces(blocks) {
            if piece == (0..self.zone_blocks) {
                self.remove(zone)?;
            } else if let Some(file) = self.file(zone, false)? {
                punch(&file, piece)?;
                self.lock_state().dirty.insert(zone, file);
            }
        }
        Ok(())
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        if blocks.start >= blocks.end {
            return Ok(Vec::new());
        }
        let zones: Vec<u64> = {
            let state = self.lock_state();
            state
                .zones
                .range(blocks.start / self.zone_blocks..=(blocks.end - 1) / self.zone_blocks)
                .copied()
                .collect()
        };
        let mut runs: Vec<Range<u64>> = Vec::new();
        for zone in zones {
            let base = zone * self.zone_blocks;
            let Some(file) = self.file(zone, false)? else {
                continue;
            };
            let inside =
                blocks.start.max(base) - base..blocks.end.min(base + self.zone_blocks) - base;
            for run in data_runs(&file, inside)? {
                match runs.last_mut() {
                    Some(last) if last.end == base + run.start => last.end = base + run.end,
                    _ => runs.push(base + run.start..base + run.end),
                }
            }
        }
        Ok(runs)
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn granule(&self) -> u64 {
        // Without holes only a whole file comes back.
        if self.can_punch { 1 } else { self.zone_blocks }
    }

    fn zone_blocks(&self) -> Option<u64> {
        Some(self.zone_blocks)
    }

    fn release_zone(&self, zone: u64) -> io::Result<()> {
        self.remove(zone)
    }

    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        Ok(self.lock_state().zones.range(zones).copied().collect())
    }

    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.pieces(blocks) {
            if let Some(file) = self.file(zone, true)? {
                super::reserve(&file, piece)?;
            }
        }
        Ok(())
    }

    fn give_up(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.pieces(blocks) {
            if let Some(file) = self.file(zone, false)? {
                super::give_up(&file, piece)?;
            }
        }
        Ok(())
    }

    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        for (zone, piece) in self.pieces(blocks) {
            if let Some(file) = self.file(zone, true)? {
                let written = write_zeros(&file, piece);
                self.lock_state().dirty.insert(zone, file);
                written?;
            }
        }
        Ok(true)
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        let host = fstatvfs(&self.zones_dir)?;
        Ok(Some(host.f_bavail.saturating_mul(host.f_frsize) / BS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_the_one_under_way() {
        // Seen: a checkpoint's flush found the files clean that an fsync's flush had only begun to write, and sealed what was not there yet. Cause: the list
        // of files was taken, and its lock given up, before the files were synced. Cure: one flush at a time.
        let dir = std::env::temp_dir().join(format!("tuff-flush-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let device = ZoneDir::create(&dir, 16).unwrap();
        device.write(Addr(3), &[1; BLOCK_SIZE]).unwrap();
        std::thread::scope(|scope| {
            let under_way = device.flushing.lock().unwrap();
            let second = scope.spawn(|| device.flush());
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!second.is_finished());
            assert_eq!(device.lock_state().dirty.len(), 1);
            drop(under_way);
            second.join().unwrap().unwrap();
        });
        assert!(device.lock_state().dirty.is_empty());
        // After one that failed there is no other.
        *device.flushing.lock().unwrap() = true;
        assert!(device.flush().is_err());
        drop(device);
        fs::remove_dir_all(&dir).unwrap();
    }
}
