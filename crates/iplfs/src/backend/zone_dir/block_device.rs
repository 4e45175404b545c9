//! Blocks of the device: reading, writing, flushing and releasing them.

use super::files::ZoneDir;
use super::header::write_headers;
use crate::backend::host::{self, BS, data_runs, punch, read_sparse, write_zeros};
use crate::device::{BlockDevice, BranchDevice};
use crate::disk::address::{BLOCK_SIZE, BlockAddr};
use crate::finding::Finding;
use rustix::fs::fstatvfs;
use rustix::io::retry_on_intr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl BlockDevice for ZoneDir {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        if let Some((fixed, block)) = self.branch.fixed_block(addr.0) {
            return read_sparse(fixed, block, buf);
        }
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

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        if let Some((fixed, block)) = self.branch.fixed_block(addr.0) {
            let written = fixed.write_all_at(data, block * BS);
            self.branch.fixed_dirty.store(true, Relaxed);
            return written;
        }
        let mut rest = data;
        for (zone, piece) in self.pieces(addr.0..addr.0 + (rest.len() / BLOCK_SIZE) as u64) {
            let (now, later) = rest.split_at((piece.end - piece.start) as usize * BLOCK_SIZE);
            if let Some(file) = self.file(zone, true)? {
                let written = file.write_all_at(now, piece.start * BS);
                // A flush may have taken the file between its opening and its writing: mark it again.
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
            // Hosts report a loss only once.
            return Err(io::Error::other("an earlier flush failed"));
        }
        let (dirty, names, dirs) = {
            let mut state = self.lock_state();
            (
                std::mem::take(&mut state.dirty),
                std::mem::take(&mut state.names_dirty),
                std::mem::take(&mut state.dirs_dirty),
            )
        };
        // File names first: data in a file that a crash forgets is lost.
        let result = if names {
            self.zones_dir.sync_all()
        } else {
            Ok(())
        };
        let result = result
            .and_then(|()| {
                let mut dirs = dirs.iter();
                dirs.try_for_each(|dir| File::open(dir)?.sync_all())
            })
            .and_then(|()| {
                dirty.iter().try_for_each(|(zone, file)| {
                    file.sync_data()?;
                    self.has_name(*zone, file)
                })
            })
            .and_then(|()| match &self.branch.fixed {
                Some(fixed) if self.branch.fixed_dirty.swap(false, Relaxed) => fixed.sync_data(),
                _ => Ok(()),
            });
        *failed = result.is_err();
        result
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.own_pieces(blocks) {
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

    fn branch(&self) -> Option<&dyn BranchDevice> {
        Some(self)
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn granule(&self) -> u64 {
        // Without hole punching only a whole file can be released.
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
        if let Some((fixed, _)) = self.branch.fixed_block(blocks.start) {
            return host::reserve(fixed, blocks);
        }
        for (zone, piece) in self.pieces(blocks) {
            if let Some(file) = self.file(zone, true)? {
                host::reserve(&file, piece)?;
            }
        }
        Ok(())
    }

    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.own_pieces(blocks) {
            if let Some(file) = self.file(zone, false)? {
                host::release_preallocated(&file, piece)?;
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
        let host = retry_on_intr(|| fstatvfs(&self.zones_dir))?;
        Ok(Some(host.f_bavail.saturating_mul(host.f_frsize) / BS))
    }

    fn damaged_files(&self) -> Vec<Finding> {
        let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged
            .iter()
            .map(|name| Finding::new(format_args!("file {name}"), "is damaged or missing"))
            .collect()
    }

    fn rewrite_damaged_files(&self) -> io::Result<()> {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if !damaged.is_empty() {
            write_headers(&self.path, &damaged, self.zone_blocks)?;
            damaged.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_flush_waits_for_the_one_in_progress() {
        // Bug: the flush of a checkpoint found the files clean that the flush of an fsync was still writing, and
        // sealed data that was not durable. Cause: the list of files was taken, and its lock released, before the
        // files were synced. Fix: one flush at a time.
        let dir = std::env::temp_dir().join(format!("tuff-flush-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let device = ZoneDir::create(&dir, 16).unwrap();
        device.write(BlockAddr(3), &[1; BLOCK_SIZE]).unwrap();
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
        // After a failed flush every later one fails.
        *device.flushing.lock().unwrap() = true;
        assert!(device.flush().is_err());
        drop(device);
        fs::remove_dir_all(&dir).unwrap();
    }
}
