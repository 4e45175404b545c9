//! Quotas of a mounted volume: usage is counted, charged and compared with the limits.

use crate::disk::address::{BlockAddr, Nid};
use crate::disk::inode::{Content, Time};
use crate::disk::node::NodeBody;
use crate::disk::slot::Slot;
use crate::disk::xattr::Xattrs;
use crate::error::{Errno, Error, Result};
use crate::nodes::tree::span;
use crate::quota::{Limit, Owners, Subject, Usage};
use crate::vfs::attr::SetXattr;
use crate::volume::state::Volume;
use std::ops::Range;

impl Volume {
    /// Returns every limit with the usage of its subject.
    pub fn quotas(&self) -> Vec<(Subject, Limit, Usage)> {
        self.quotas.list()
    }

    /// Sets the limit of a subject. Usage beyond the limit stays. A limit without bounds removes the limit.
    ///
    /// # Errors
    /// Those of [`set_xattr`](Self::set_xattr): about a hundred limits fit.
    pub fn set_quota(&mut self, subject: Subject, limit: Limit, now: Time) -> Result<()> {
        let name = subject.attribute();
        if limit != Limit::default() {
            return self.set_xattr(Nid::ROOT, &name, &limit.encode(), SetXattr::Any, now);
        }
        match self.remove_xattr(Nid::ROOT, &name, now) {
            Err(Error::Posix(Errno::NoAttribute)) => Ok(()),
            other => other,
        }
    }

    /// Reads the limits from the root directory. The first limit has the usage of all subjects counted.
    pub(crate) fn load_quotas(&mut self) -> Result<()> {
        let attributes = match self.xattrs(Nid::ROOT) {
            // Damaged attributes must not keep the sound files out of reach.
            Err(Error::Corrupt(_)) => Xattrs::new(),
            other => other?,
        };
        if self.quotas.load_limits(&attributes) {
            self.count_usage()?;
        }
        Ok(())
    }

    fn count_usage(&mut self) -> Result<()> {
        let mut inos = Vec::new();
        let dev = self.dev.clone();
        let walked = self.nat.walk(
            &*dev,
            |nid, entry| inos.extend((nid == entry.ino).then_some((nid, entry.addr))),
            |_| {},
        );
        match walked {
            Ok(()) | Err(Error::Corrupt(_)) => {}
            Err(e) => return Err(e),
        }
        // Inodes created since the last checkpoint may exist in memory only.
        inos.extend(
            self.roll_forward
                .changes
                .created
                .iter()
                .map(|ino| (*ino, BlockAddr::HOLE)),
        );
        inos.sort_unstable_by_key(|(ino, addr)| (*ino, addr.0));
        inos.dedup_by_key(|(ino, _)| *ino);
        self.quotas.clear_usage();
        for (ino, addr) in inos {
            let found = match self.nodes.get(ino) {
                Some(node) => match &node.body {
                    NodeBody::Inode(inode) => Some((Owners::from_inode(inode), inode.blocks)),
                    _ => None,
                },
                // Read past the cache, which cannot hold all inodes. An unreadable inode is charged to no subject;
                // its users get the error.
                None if addr.is_mapped() => match self.read_node_at(addr) {
                    Ok((NodeBody::Inode(inode), _)) => {
                        Some((Owners::from_inode(&inode), inode.blocks))
                    }
                    _ => None,
                },
                None => None,
            };
            if let Some((owners, blocks)) = found {
                self.quotas.add_inode(owners, blocks);
            }
        }
        self.charge_promises();
        Ok(())
    }

    /// Changes the count of blocks of an inode, and the usage of its owners.
    pub(crate) fn count_blocks(&mut self, ino: Nid, more: i64) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.blocks = inode.blocks.saturating_add_signed(more);
        let owners = Owners::from_inode(inode);
        self.quotas.charge(owners, more, 0);
        Ok(())
    }

    /// Fails with EDQUOT if the owners of an inode may not have the blocks that filling `first..end` would take.
    pub(crate) fn check_quota_to_fill(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        let blocks = self.blocks_to_fill(ino, first, end)?;
        let owners = Owners::from_inode(self.inode(ino)?);
        self.quotas.check(owners, blocks, 0)
    }

    /// Fails with EDQUOT if the owners of a directory may not have the blocks that another entry would take.
    pub(crate) fn check_quota_to_enter(&mut self, dir: Nid, name: &[u8]) -> Result<()> {
        let blocks = self.blocks_to_enter(dir, name)?;
        let owners = Owners::from_inode(self.inode(dir)?);
        self.quotas.check(owners, blocks, 0)
    }

    /// Fails with EDQUOT if `owners` may not have a new inode of `blocks` blocks, itself included, or the owners of the
    /// directory its entry.
    pub(crate) fn check_quota_to_create(
        &mut self,
        dir: Nid,
        name: &[u8],
        owners: Owners,
        blocks: u64,
    ) -> Result<()> {
        let dir_blocks = self.blocks_to_enter(dir, name)?;
        let dir_owners = Owners::from_inode(self.inode(dir)?);
        self.quotas
            .check_new((owners, blocks), (dir_owners, dir_blocks))
    }

    /// Maximum number of new blocks for a range of an inode, 0 if its owners have no limits of space. EDQUOT if they
    /// are far beyond those.
    pub(crate) fn blocks_to_fill(&mut self, ino: Nid, first: u64, end: u64) -> Result<u64> {
        let inode = self.inode(ino)?;
        let (owners, has) = (Owners::from_inode(inode), inode.blocks);
        if !self.quotas.limits_blocks_of(owners) {
            return Ok(0);
        }
        // At least so many blocks are new. Beyond the limit there is no need to look at each.
        self.quotas
            .check(owners, (end - first).saturating_sub(has), 0)?;
        let new = end - first - self.count_slots(ino, first..end, |slot, _| slot.counts())?;
        // Direct nodes; indirect ones are few.
        let nodes = if new > 0 { new.div_ceil(span(0)) } else { 0 };
        Ok(new + nodes)
    }

    /// Number of blocks of a range whose slots `counts` selects. It also gets whether the node is still that of another branch.
    fn count_slots(
        &mut self,
        ino: Nid,
        range: Range<u64>,
        counts: impl Fn(Slot, bool) -> bool,
    ) -> Result<u64> {
        let (mut count, mut last) = (0, None);
        if !matches!(self.inode(ino)?.content, Content::Map(_)) {
            return Ok(0);
        }
        for index in range {
            let Some((nid, at)) = self.find_dnode(ino, index)? else {
                continue;
            };
            let is_inherited = match last {
                Some((known, is_inherited)) if known == nid => is_inherited,
                _ => self.is_inherited(nid)?,
            };
            last = Some((nid, is_inherited));
            count += u64::from(counts(self.slot_at(nid, at)?, is_inherited));
        }
        Ok(count)
    }

    /// Number of blocks of a range that are reserved, without data on the device. A fork has not what its parent reserved.
    pub(crate) fn reserved_blocks(&mut self, ino: Nid, first: u64, end: u64) -> Result<u64> {
        self.count_slots(ino, first..end, |slot, is_inherited| {
            slot == Slot::RESERVED && !is_inherited
        })
    }

    /// Number of blocks of a range that have space.
    pub(crate) fn blocks_with_space(&mut self, ino: Nid, range: Range<u64>) -> Result<u64> {
        self.count_slots(ino, range, |slot, is_inherited| {
            slot.counts() && (slot.addr.is_mapped() || !is_inherited)
        })
    }

    /// Maximum number of new blocks for another entry of a directory, 0 if its owners have no limits of space.
    fn blocks_to_enter(&mut self, dir: Nid, name: &[u8]) -> Result<u64> {
        let owners = Owners::from_inode(self.inode(dir)?);
        if !self.quotas.limits_blocks_of(owners) {
            return Ok(0);
        }
        match self.blocks_for_entry(dir, name)? {
            Some(blocks) => self.blocks_to_fill(dir, blocks.start, blocks.end),
            None => Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemDevice;
    use crate::disk::xattr;
    use crate::{BlockDevice, CheckOptions, FormatOptions, MountOptions, check, repair};
    use std::sync::Arc;

    #[test]
    fn a_malformed_limit_is_found_and_repaired() {
        let bad = (Subject::User(2).attribute(), b"much".to_vec());
        // Inline and in a node.
        for other in [10, 1000] {
            let kept = Xattrs::from([(b"user.other".to_vec(), vec![7; other])]);
            let dev = Arc::new(MemDevice::new());
            let options = FormatOptions::new([1; 16], [2; 16], 1 << 16);
            Volume::format(dev.clone(), &options).unwrap();
            let mut v = Volume::mount(dev.clone(), MountOptions::default()).unwrap();
            let mut all = kept.clone();
            all.extend([bad.clone()]);
            v.mutate(|v| v.put_xattrs(Nid::ROOT, xattr::encode(&all)))
                .unwrap();
            v.unmount().unwrap();
            let dev: Arc<dyn BlockDevice> = dev;
            let found = check(&dev, CheckOptions::default()).unwrap().findings;
            assert_eq!(found.len(), 1, "{found:?}");
            repair(&dev, false, Time::default()).unwrap();
            let found = check(&dev, CheckOptions::default()).unwrap().findings;
            assert_eq!(found, []);
            let mut v = Volume::mount(dev, MountOptions::default()).unwrap();
            assert_eq!(v.xattrs(Nid::ROOT).unwrap(), kept);
        }
    }
}
