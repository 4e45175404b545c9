//! Foreground cleaning: moves valid blocks out of sections when free sections run short.

use super::{BATCH, Cleaner, F2fs, Log, NODE, NONE, ROOT, SEGMENT, State, get};
use crate::experiment::error::{Result, failed};
use crate::experiment::filesystem::FileId;
use std::ops::Range;

impl F2fs {
    /// Sections needed to write all dirty nodes and directory blocks.
    pub(super) fn demand(&self) -> u64 {
        let size = self.options.section_blocks;
        let nodes = (self.dirty_nodes.len() as u64).div_ceil(size);
        let dentries = self.dirty_data.range((ROOT, 0)..=(ROOT, NONE)).count() as u64;
        nodes + 2 * dentries.div_ceil(size)
    }

    pub(super) fn short_of(&self, sections: u64) -> bool {
        (self.free.len() as u64) <= self.demand() + sections
    }

    /// Cleans if there are too few free sections for a write.
    pub(super) fn balance(&mut self) -> Result<()> {
        // An exact count of dirty directory blocks for every block would cost more time than it
        // saves.
        if self.cleaning || self.free.len() as u64 > self.reserved + self.demand() {
            return Ok(());
        }
        self.cleaning = true;
        let result = self.clean();
        self.cleaning = false;
        result
    }

    pub(super) fn clean(&mut self) -> Result<()> {
        self.submit()?;
        let mut rounds = 0;
        while self.short_of(self.reserved) {
            // Sections that only the last checkpoint uses are the cheapest to free.
            let waiting = self.prefree.len() as u64;
            if waiting > 0 && (self.free.len() as u64) + waiting > self.demand() + self.reserved {
                self.checkpoint()?;
                continue;
            }
            let onset = self.appended;
            self.cleaned.onset_blocks.get_or_insert(onset);
            self.cleaned.rounds += 1;
            rounds += 1;
            if rounds > 100_000 {
                return Err(failed("clean", &"no end"));
            }
            let moved = self.clean_round()?;
            // Cleaning itself needs free sections to move blocks to.
            let tight = (self.free.len() as u64) < self.reserved / 2;
            match self.options.cleaner {
                Cleaner::Synchronous | Cleaner::ReadAhead => {
                    self.disk.lock().wait();
                    self.checkpoint()?;
                }
                Cleaner::Batched if rounds % BATCH == 0 || tight || !moved => self.checkpoint()?,
                Cleaner::Batched => {}
            }
        }
        Ok(())
    }

    /// Moves the valid blocks of victim sections with the total size of an F2FS segment. Returns
    /// false if there is no victim.
    pub(super) fn clean_round(&mut self) -> Result<bool> {
        let size = self.options.section_blocks;
        // The reserved sections limit the size of a round.
        let round = SEGMENT.min(self.reserved * size / 2);
        let count = (round / size).max(1) as usize;
        let mut used: Vec<u32> = (0..self.sections.len() as u32)
            .filter(|s| {
                let s = &self.sections[*s as usize];
                s.state == State::Used && u64::from(s.valid) < size
            })
            .collect();
        if used.is_empty() {
            return Ok(false);
        }
        let by = |s: &u32| (self.sections[*s as usize].valid, *s);
        let count = count.min(used.len());
        used.select_nth_unstable_by_key(count - 1, by);
        used.truncate(count);
        used.sort_unstable_by_key(by);
        // One summary block for each 512 blocks of victims.
        self.victims += count as u64 * size;
        let summaries = self.victims / SEGMENT;
        self.victims %= SEGMENT;
        let mut runs: Vec<Range<u64>> = (0..summaries).map(|i| 1 + i..2 + i).collect();
        for &section in &used {
            let start = u64::from(section) * size;
            for block in (start..start + size).filter(|b| get(&self.valid, *b)) {
                let lba = self.main_start + block;
                self.cleaned.read_blocks += 1;
                match runs.last_mut() {
                    Some(run) if run.end == lba => run.end += 1,
                    _ => runs.push(lba..lba + 1),
                }
            }
        }
        match self.options.cleaner {
            Cleaner::Synchronous => {
                for block in runs.into_iter().flatten() {
                    self.disk.lock().read(block, 1)?;
                }
            }
            Cleaner::ReadAhead => {
                for run in runs {
                    self.disk.lock().read(run.start, run.end - run.start)?;
                }
            }
            Cleaner::Batched => self.disk.lock().read_all(&runs)?,
        }
        for &section in &used {
            let start = u64::from(section) * size;
            for block in start..start + size {
                if !get(&self.valid, block) {
                    continue;
                }
                let owner = self.owner[block as usize];
                if owner & NODE != 0 {
                    self.write_node(owner as u32)?;
                } else {
                    let (file, index) = ((owner >> 32) as FileId, owner as u32);
                    // A dirty page in memory supersedes the block on the disk.
                    self.dirty_data.remove(&(file, index));
                    self.write_data(file, index, Log::ColdData)?;
                }
                self.cleaned.moved_blocks += 1;
            }
        }
        self.submit()?;
        Ok(true)
    }
}
