//! Checkpoints: metadata writes, and discards of blocks that the previous checkpoint used.

use super::{
    F2fs, Log, NAT_ENTRIES, NAT_JOURNAL, NONE, PACK_BLOCKS, SEGMENT, SIT_ENTRIES, SIT_JOURNAL,
    State, get, put,
};
use crate::Payload;
use crate::experiment::error::Result;
use std::collections::BTreeSet;
use std::ops::Range;

impl F2fs {
    pub(super) fn meta(&mut self, blocks: u64) -> Result<()> {
        // The device is sensitive to overwrites, hardly to the exact address within the tables.
        let room = self.main_start - 1;
        for _ in 0..blocks {
            self.word += 1;
            let lba = 1 + self.meta_at % (room - 1);
            self.meta_at += 1;
            self.disk
                .lock()
                .write(lba, vec![Payload::Fill(self.word)], 0)?;
        }
        Ok(())
    }

    pub(super) fn checkpoint(&mut self) -> Result<()> {
        for file in self
            .dirty_data
            .iter()
            .map(|(f, _)| *f)
            .collect::<BTreeSet<_>>()
        {
            if self.file(file)?.directory {
                let dirty: Vec<_> = self
                    .dirty_data
                    .range((file, 0)..=(file, NONE))
                    .copied()
                    .collect();
                for (file, index) in dirty {
                    self.dirty_data.remove(&(file, index));
                    self.write_data(file, index, Log::HotData)?;
                }
            }
        }
        while let Some(nid) = self.dirty_nodes.first().copied() {
            self.write_node(nid)?;
        }
        self.submit()?;
        let distinct = |set: &BTreeSet<u32>, size: u64| {
            set.iter()
                .map(|n| u64::from(*n) / size)
                .collect::<BTreeSet<_>>()
                .len() as u64
        };
        let nat = if self.changed_nids.len() <= NAT_JOURNAL {
            0
        } else {
            distinct(&self.changed_nids, NAT_ENTRIES)
        };
        // A model section smaller than an F2FS segment has a proportionally smaller SIT entry.
        let per_block = (SIT_ENTRIES * SEGMENT / self.options.section_blocks).max(1);
        let sit = if self.changed_sections.len() <= SIT_JOURNAL {
            0
        } else {
            distinct(&self.changed_sections, per_block)
        };
        self.meta(nat + sit + self.summaries + PACK_BLOCKS - 1)?;
        self.disk.lock().flush()?;
        self.meta(1)?;
        self.disk.lock().flush()?;
        self.summaries = 0;
        self.changed_nids.clear();
        let changed = std::mem::take(&mut self.changed_sections);
        self.discard_dead(&changed)?;
        for section in std::mem::take(&mut self.prefree) {
            self.sections[section as usize].state = State::Free;
            self.free.insert(section);
            let size = self.options.section_blocks;
            let start = self.main_start + u64::from(section) * size;
            self.disk.lock().discard(start..start + size)?;
        }
        self.next_checkpoint = self.disk.lock().now() + self.shape.checkpoint_every;
        Ok(())
    }

    /// Discards the blocks that belong to the previous checkpoint but not to the current one.
    pub(super) fn discard_dead(&mut self, changed: &BTreeSet<u32>) -> Result<()> {
        let size = self.options.section_blocks;
        for &section in changed {
            let start = u64::from(section) * size;
            let died = std::mem::take(&mut self.sections[section as usize].died);
            let empty = self.sections[section as usize].state == State::Prefree;
            let mut run: Option<Range<u64>> = None;
            for block in start..start + size {
                let dead = get(&self.checkpointed, block) && !get(&self.valid, block);
                put(&mut self.checkpointed, block, get(&self.valid, block));
                if !dead || !died || empty || self.options.zoned {
                    continue;
                }
                match &mut run {
                    Some(run) if run.end == block => run.end += 1,
                    _ => {
                        if let Some(run) = run.replace(block..block + 1) {
                            self.discard_run(run)?;
                        }
                    }
                }
            }
            if let Some(run) = run {
                self.discard_run(run)?;
            }
        }
        Ok(())
    }

    pub(super) fn discard_run(&self, run: Range<u64>) -> Result<()> {
        self.disk
            .lock()
            .discard(self.main_start + run.start..self.main_start + run.end)
    }
}
