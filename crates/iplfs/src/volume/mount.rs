//! Formatting and mounting volumes.

use crate::checkpoint::pack::{
    FoundCheckpoint, clear_fixed, damaged_superblocks, find_checkpoint, first_version,
    newest_seal_version, read_superblock, rewrite_damaged_copies, write_superblocks,
};
use crate::device::{BlockDevice, is_full};
use crate::disk::address::{Log, Nid};
use crate::disk::checkpoint::{Phase, SEALS};
use crate::disk::inode::{INLINE_MAX, Inode, mode};
use crate::disk::nat::NatPointer;
use crate::disk::node::NodeBody;
use crate::disk::superblock::{GROUPS_WITH_DATA, Superblock};
use crate::error::{Error, Result};
use crate::options::{FormatOptions, MountOptions};
use crate::volume::state::{Volume, WriteState};
use std::sync::Arc;

impl Volume {
    /// Formats a device with an empty volume. Anything on the device is lost.
    pub fn format(dev: Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
        let mut label = [0; 64];
        let Some(field) = label.get_mut(..options.label.len()) else {
            return Err(Error::Usage(format!(
                "label of {} bytes, at most 64 fit",
                options.label.len()
            )));
        };
        field.copy_from_slice(options.label.as_bytes());
        let sb = Superblock {
            incompat: GROUPS_WITH_DATA,
            uuid: options.uuid,
            hash_key: options.hash_key,
            geometry: options.geometry,
            quota_blocks: options.quota_blocks,
            reserve_blocks: options.reserve_blocks,
            generation: 1,
            label,
        };
        sb.verify()
            .map_err(|e| Error::Usage(format!("invalid options: {e}")))?;
        let g = sb.geometry;
        let io = |e| Error::io(e, "preparing the device");
        clear_fixed(&*dev, &g)?;
        if dev.knows_allocated() {
            for run in dev.allocated(g.fixed_end()..7 << g.area_bits).map_err(io)? {
                dev.discard(run).map_err(io)?;
            }
        }
        let mut volume = Volume::empty(dev.clone(), sb.clone(), MountOptions::default());
        for log in Log::ALL {
            let head = if log == Log::Meta { g.fixed_end() } else { 0 };
            let m = &mut volume.logs.marks[log.index()];
            (m.scan, m.head, m.limit) = (head, head, head + volume.options.window_blocks);
            m.far = m.limit + volume.options.window_blocks;
        }
        volume.checkpoint.version = first_version(&options.uuid);
        volume.checkpoint.pack = 1;
        volume.nat.next_nid = Nid::ROOT.0;
        let caller = &options.caller;
        let mut root = Inode::new(mode::DIR | 0o755, caller.uid, caller.gid, caller.now);
        root.nlink = 2;
        root.parent = Nid::ROOT;
        root.size = INLINE_MAX as u64;
        let nid = volume.new_node(None, 0, NodeBody::Inode(Box::new(root)))?;
        assert_eq!(nid, Nid::ROOT, "the first number given out is the root's");
        volume.inodes = 1;
        volume.unmount()?;
        let copies = damaged_superblocks(&*dev, &sb)?;
        write_superblocks(&*dev, &sb, &copies)
    }

    /// Mounts a volume, after a recovery if it was not unmounted. See [`MountOptions::read_only`] for a mount without
    /// writes.
    pub fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Self> {
        let sb = read_superblock(&*dev)?;
        let found = find_checkpoint(&*dev, &sb, options.fallback)?;
        let phase = found.seal.phase;
        let read_only = options.read_only;
        if !read_only {
            match rewrite_damaged_copies(&*dev, &sb) {
                // A full host still takes deletes, and the next mount tries again.
                Err(Error::Io(e, _)) if is_full(&e) => {}
                other => other?,
            }
        }
        let mut volume = Self::at(dev, sb, options, found);
        volume.load_fork_points()?;
        volume.inode(Nid::ROOT).map_err(|e| match e {
            Error::Posix(_) => Error::corrupt("root directory", "its inode is missing"),
            other => other,
        })?;
        if read_only {
            if phase != Phase::Clean {
                volume.roll_forward()?;
            }
            volume.state = WriteState::ReadOnly;
            volume.load_quotas()?;
            volume.join_claims()?;
            return Ok(volume);
        }
        if phase == Phase::Clean {
            volume.maintain_preallocation();
            // From here on the newest checkpoint is not clean.
            volume.commit_unchanged(Phase::Mounted)?;
            volume.evict_orphans();
        } else {
            volume.recover()?;
        }
        volume.load_quotas()?;
        if volume.fork_points.has_dead {
            volume.release_forks()?;
        }
        volume.join_claims()?;
        Ok(volume)
    }

    /// Creates the state in memory that a checkpoint describes.
    pub(crate) fn at(
        dev: Arc<dyn BlockDevice>,
        sb: Superblock,
        options: MountOptions,
        found: FoundCheckpoint,
    ) -> Self {
        let FoundCheckpoint {
            seal,
            body,
            pack,
            damage,
        } = found;
        let mut volume = Self::empty(dev, sb, options);
        volume.checkpoint.newest = newest_seal_version(&*volume.dev, &volume.sb);
        volume.logs.marks = seal.logs;
        volume.checkpoint.version = seal.version;
        volume.checkpoint.pack = pack;
        volume.roll_forward.tag = seal.roll_tag;
        volume.roll_forward.next_seq = seal.next_seq;
        volume.roll_forward.base_seq = seal.next_seq;
        volume.next_generation = seal.next_generation;
        volume.nat.height = seal.nat_height;
        volume.nat.root = NatPointer {
            addr: seal.nat_root,
            crc: seal.nat_root_crc,
        };
        volume.nat.blocks = seal.nat_blocks;
        volume.nat.next_nid = seal.next_nid;
        volume.nat.replay(body.journal);
        volume.snapshots.records = body.snapshots;
        volume.snapshots.held_blocks = seal.held_blocks;
        volume.fork_points.shared_blocks = seal.shared_blocks;
        volume.fork_points.released = seal.released;
        volume.live = seal.live_blocks;
        volume.inodes = seal.inodes;
        // A trim finds the blocks of the lost discard log, and the other blocks of the body.
        volume.needs_trim = seal.needs_trim || damage.body;
        if !damage.body {
            let capacity = u64::from(volume.sb.geometry.pack_blocks) - SEALS;
            let blocks = seal.body_blocks() + u64::from(seal.copy_blocks);
            volume.checkpoint.overflow =
                seal.overflow.0..seal.overflow.0 + blocks.saturating_sub(capacity);
        }
        volume.checkpoint.body_crc = seal.body_crc;
        volume.orphans = body.orphans.into_iter().collect();
        let runs = body
            .discards
            .into_iter()
            .map(|e| e.start.0..e.start.0 + u64::from(e.blocks));
        volume.discard_log.add(runs, seal.version);
        volume
    }

    pub(crate) fn evict_orphans(&mut self) {
        let orphans: Vec<Nid> = self.orphans.iter().copied().collect();
        for ino in orphans {
            self.evict_if_unused(ino);
        }
    }
}
