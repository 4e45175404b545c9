//! Limits: how much space and how many inodes a user, a group or a project may have.
//!
//! A limit is an extended attribute of the root directory, so that it is where the volume is, in snapshots and streams too, and whoever may change
//! attributes in `trusted.` may change it, also on a mounted volume:
//!
//! ```text
//!  trusted.tuff.quota.user.1000 = "1073741824 20000"      bytes, inodes; "-" for no limit
//!  trusted.tuff.quota.group.100
//!  trusted.tuff.quota.project.7
//! ```
//!
//! An inode counts for its user, its group and its project, with the space that `stat` says it takes; a directory also with what it grows by for the
//! entries of others. What all of them have is counted when there is a limit, from the inodes, and kept in memory from then on: a volume without
//! limits pays nothing, one with limits reads its inodes when it is mounted.

use crate::areas::{Addr, BLOCK_SIZE, Nid};
use crate::attr::SetXattr;
use crate::disk::inode::{Content, Inode, Time};
use crate::disk::node::{NodeBody, Slot};
use crate::disk::xattr::{self, Xattrs};
use crate::error::{Errno, Error, Result};
use crate::map::span;
use crate::options::Caller;
use crate::volume::Volume;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Before the subject, in names of attributes of the root directory.
const PREFIX: &[u8] = b"trusted.tuff.quota.";

/// Whom a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Who owns an inode.
    User(u32),
    /// The group of an inode.
    Group(u32),
    /// The project of an inode, which it has from the directory it was made in.
    Project(u32),
}

impl Subject {
    /// The word for its kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Group(_) => "group",
            Self::Project(_) => "project",
        }
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Self::User(n) | Self::Group(n) | Self::Project(n) => n,
        }
    }

    fn attribute(self) -> Vec<u8> {
        let name = format!("{}.{}", self.kind(), self.number());
        [PREFIX, name.as_bytes()].concat()
    }

    /// The subject of an attribute of the root directory. `None` if it has none.
    fn of_attribute(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
        let (kind, number) = name.split_once('.')?;
        let number = number.parse().ok()?;
        match kind {
            "user" => Some(Self::User(number)),
            "group" => Some(Self::Group(number)),
            "project" => Some(Self::Project(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.number())
    }
}

/// Whom an inode counts for: one of each kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owners([Subject; 3]);

impl Owners {
    pub(crate) fn new(uid: u32, gid: u32, project: u32) -> Self {
        Self([
            Subject::User(uid),
            Subject::Group(gid),
            Subject::Project(project),
        ])
    }

    pub(crate) fn of(inode: &Inode) -> Self {
        Self::new(inode.uid, inode.gid, inode.project)
    }

    /// Whom something new in a directory counts for.
    pub(crate) fn in_dir(dir: &Inode, caller: &Caller) -> Self {
        Self::new(caller.uid, dir.group_of_new(caller.gid), dir.project)
    }

    /// Those that are not among `others`.
    fn beyond(self, others: Self) -> impl Iterator<Item = Subject> {
        let pairs = self.0.into_iter().zip(others.0);
        pairs.filter_map(|(subject, other)| (subject != other).then_some(subject))
    }

    /// Those that are among `others`.
    fn shared(self, others: Self) -> impl Iterator<Item = Subject> {
        let pairs = self.0.into_iter().zip(others.0);
        pairs.filter_map(|(subject, other)| (subject == other).then_some(subject))
    }
}

/// What a subject may have. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Space. Unit: blocks of 4 KiB.
    pub blocks: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// What a subject has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Space. Unit: blocks of 4 KiB.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Limits, and what everybody has if there is one.
#[derive(Default)]
pub(crate) struct Quotas {
    limits: BTreeMap<Subject, Limit>,
    usage: HashMap<Subject, Usage>,
}

impl Limit {
    fn encode(self) -> Vec<u8> {
        let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let bytes = self.blocks.map(|n| n.saturating_mul(BLOCK_SIZE as u64));
        format!("{} {}", number(bytes), number(self.inodes)).into_bytes()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let number = |text: &str| match text {
            "-" => Some(None),
            text => text.parse().ok().map(Some),
        };
        let (bytes, inodes) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some(Self {
            blocks: number(bytes)?.map(|n: u64| n / BLOCK_SIZE as u64),
            inodes: number(inodes)?,
        })
    }
}

/// Refuses what would be a limit among the attributes of the root directory, and is not understood.
pub(crate) fn verify(name: &[u8], value: &[u8]) -> Result<()> {
    let ours = name.starts_with(PREFIX);
    if ours && (Subject::of_attribute(name).is_none() || Limit::decode(value).is_none()) {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}

/// Encoded attributes of the root directory without those that [`verify`] refuses. `None` if there are no such.
pub(crate) fn understood(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut attributes = xattr::decode(bytes).ok()?;
    let all = attributes.len();
    attributes.retain(|name, value| verify(name, value).is_ok());
    (attributes.len() < all).then(|| xattr::encode(&attributes))
}

impl Volume {
    /// Limits, with what those that have them use.
    pub fn quotas(&self) -> Vec<(Subject, Limit, Usage)> {
        let used = |subject| self.quotas.usage.get(subject).copied().unwrap_or_default();
        let limits = self.quotas.limits.iter();
        limits.map(|(s, limit)| (*s, *limit, used(s))).collect()
    }

    /// Limits what a subject may have from now on; what is there stays. A limit without bounds takes it away.
    ///
    /// # Errors
    /// As those of [`set_xattr`](Self::set_xattr): there is room for about a hundred limits.
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

    /// Takes the limits from the root directory. The first one has everything counted.
    pub(crate) fn load_quotas(&mut self) -> Result<()> {
        let attributes = match self.xattrs(Nid::ROOT) {
            // What is sound must stay within reach.
            Err(Error::Corrupt(_)) => Xattrs::new(),
            other => other?,
        };
        let counted = !self.quotas.limits.is_empty();
        self.quotas.limits = attributes
            .iter()
            .filter_map(|(name, value)| Some((Subject::of_attribute(name)?, Limit::decode(value)?)))
            .collect();
        if self.quotas.limits.is_empty() {
            self.quotas.usage.clear();
        } else if !counted {
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
        // What was made since the last checkpoint may be in memory only.
        inos.extend(self.since.created.iter().map(|ino| (*ino, Addr::HOLE)));
        inos.sort_unstable_by_key(|(ino, addr)| (*ino, addr.0));
        inos.dedup_by_key(|(ino, _)| *ino);
        let mut usage: HashMap<Subject, Usage> = HashMap::new();
        for (ino, addr) in inos {
            let found = match self.nodes.get(&ino) {
                Some(node) => match &node.body {
                    NodeBody::Inode(inode) => Some((Owners::of(inode), inode.blocks)),
                    _ => None,
                },
                // Not through the cache, which all inodes would not fit. One that cannot be read counts for nobody; who uses it hears of it.
                None if addr.is_mapped() => match self.read_node_at(addr) {
                    Ok((NodeBody::Inode(inode), _)) => Some((Owners::of(&inode), inode.blocks)),
                    _ => None,
                },
                None => None,
            };
            let Some((owners, blocks)) = found else {
                continue;
            };
            for subject in owners.0 {
                let of = usage.entry(subject).or_default();
                of.blocks += blocks + 1;
                of.inodes += 1;
            }
        }
        self.quotas.usage = usage;
        Ok(())
    }

    /// Notes that somebody has more or less.
    pub(crate) fn charge(&mut self, owners: Owners, blocks: i64, inodes: i64) {
        self.charge_each(owners.0, blocks, inodes);
    }

    fn charge_each(
        &mut self,
        subjects: impl IntoIterator<Item = Subject>,
        blocks: i64,
        inodes: i64,
    ) {
        if self.quotas.limits.is_empty() {
            return;
        }
        for subject in subjects {
            let of = self.quotas.usage.entry(subject).or_default();
            // Never below zero, also where a damaged inode counted for nobody.
            of.blocks = of.blocks.saturating_add_signed(blocks);
            of.inodes = of.inodes.saturating_add_signed(inodes);
        }
    }

    /// Notes that an inode with so many blocks, itself among them, counts for others.
    pub(crate) fn hand_over(&mut self, from: Owners, to: Owners, blocks: i64) {
        self.charge_each(from.beyond(to), -blocks, -1);
        self.charge_each(to.beyond(from), blocks, 1);
    }

    /// Changes the count of blocks of an inode, and what its owners have.
    pub(crate) fn count_blocks(&mut self, ino: Nid, more: i64) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.blocks = inode.blocks.saturating_add_signed(more);
        let owners = Owners::of(inode);
        self.charge(owners, more, 0);
        Ok(())
    }

    /// EDQUOT if one of them must not have so much more.
    pub(crate) fn within_quota(&self, owners: Owners, blocks: u64, inodes: u64) -> Result<()> {
        self.each_within_quota(owners.0, blocks, inodes)
    }

    /// EDQUOT if an inode with so many blocks, itself among them, must not count for others.
    pub(crate) fn may_hand_over(&self, from: Owners, to: Owners, blocks: u64) -> Result<()> {
        self.each_within_quota(to.beyond(from), blocks, 1)
    }

    fn each_within_quota(
        &self,
        subjects: impl IntoIterator<Item = Subject>,
        blocks: u64,
        inodes: u64,
    ) -> Result<()> {
        if self.quotas.limits.is_empty() {
            return Ok(());
        }
        let passes = |has: u64, more: u64, limit: Option<u64>| {
            more > 0 && limit.is_some_and(|limit| has.saturating_add(more) > limit)
        };
        for subject in subjects {
            let Some(limit) = self.quotas.limits.get(&subject) else {
                continue;
            };
            let has = self.quotas.usage.get(&subject).copied().unwrap_or_default();
            if passes(has.blocks, blocks, limit.blocks) || passes(has.inodes, inodes, limit.inodes)
            {
                return Err(Errno::Quota.into());
            }
        }
        Ok(())
    }

    fn is_space_limited(&self, owners: Owners) -> bool {
        let limits = owners.0.iter().filter_map(|s| self.quotas.limits.get(s));
        limits.into_iter().any(|limit| limit.blocks.is_some())
    }

    /// EDQUOT if the owners of an inode must not have the blocks that these of it would take.
    pub(crate) fn may_fill(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        let blocks = self.blocks_to_fill(ino, first, end)?;
        let owners = Owners::of(self.inode(ino)?);
        self.within_quota(owners, blocks, 0)
    }

    /// EDQUOT if the owners of a directory must not have the blocks that it would take for another entry.
    pub(crate) fn may_enter(&mut self, dir: Nid, name: &[u8]) -> Result<()> {
        let blocks = self.blocks_to_enter(dir, name)?;
        let owners = Owners::of(self.inode(dir)?);
        self.within_quota(owners, blocks, 0)
    }

    /// EDQUOT if somebody must not have a new inode of so many blocks, itself among them, or the owners of a directory its entry.
    pub(crate) fn may_make(
        &mut self,
        dir: Nid,
        name: &[u8],
        owners: Owners,
        blocks: u64,
    ) -> Result<()> {
        let more = self.blocks_to_enter(dir, name)?;
        let of_dir = Owners::of(self.inode(dir)?);
        self.within_quota(owners, blocks, 1)?;
        self.within_quota(of_dir, more, 0)?;
        self.each_within_quota(owners.shared(of_dir), blocks + more, 1)
    }

    /// Blocks that these of an inode would take at most, if its owners have limits of space; EDQUOT where they are far beyond those.
    fn blocks_to_fill(&mut self, ino: Nid, first: u64, end: u64) -> Result<u64> {
        let inode = self.inode(ino)?;
        let (owners, has) = (Owners::of(inode), inode.blocks);
        if !self.is_space_limited(owners) {
            return Ok(0);
        }
        // At least so many are new; beyond the limit there is no need to look at each.
        self.within_quota(owners, (end - first).saturating_sub(has), 0)?;
        let mut new = end - first;
        if matches!(self.inode(ino)?.content, Content::Map(_)) {
            new = 0;
            for index in first..end {
                new += u64::from(self.slot(ino, index)? == Slot::HOLE);
            }
        }
        // Direct nodes, and those above them.
        let nodes = if new > 0 { new.div_ceil(span(0)) } else { 0 };
        Ok(new + nodes)
    }

    /// Blocks that a directory would take at most for another entry, if its owners have limits of space.
    fn blocks_to_enter(&mut self, dir: Nid, name: &[u8]) -> Result<u64> {
        let owners = Owners::of(self.inode(dir)?);
        if !self.is_space_limited(owners) {
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
    use crate::mem::MemDevice;
    use crate::{BlockDevice, CheckOptions, FormatOptions, MountOptions, check, repair};
    use std::sync::Arc;

    #[test]
    fn limits_are_text_and_what_is_no_limit_is_refused() {
        for limit in [
            Limit::default(),
            Limit {
                blocks: Some(7),
                inodes: None,
            },
            Limit {
                blocks: None,
                inodes: Some(0),
            },
        ] {
            assert_eq!(Limit::decode(&limit.encode()), Some(limit));
        }
        assert_eq!(
            Limit::decode(b"8191 3"),
            Some(Limit {
                blocks: Some(1),
                inodes: Some(3)
            })
        );
        for bad in ["", "1", "1 ", " 1", "1 2 3", "-1 -", "1 2\n"] {
            assert_eq!(Limit::decode(bad.as_bytes()), None, "{bad:?}");
        }
        let subjects = [
            (Subject::User(1000), "user.1000"),
            (Subject::Group(0), "group.0"),
            (Subject::Project(u32::MAX), "project.4294967295"),
        ];
        for (subject, name) in subjects {
            let name = [PREFIX, name.as_bytes()].concat();
            assert_eq!(subject.attribute(), name);
            assert_eq!(Subject::of_attribute(&name), Some(subject));
            assert!(verify(&name, b"1 1").is_ok());
            assert!(verify(&name, b"1").is_err());
        }
        for bad in ["user.x", "user", "user.", "host.1", "user.1.2", ""] {
            let name = [PREFIX, bad.as_bytes()].concat();
            assert!(verify(&name, b"1 1").is_err(), "{bad:?}");
        }
        assert!(verify(b"trusted.other", b"x").is_ok());
    }

    #[test]
    fn what_is_no_limit_goes_and_the_rest_stays() {
        let limit = (Subject::User(1).attribute(), b"1 1".to_vec());
        let other = (b"user.other".to_vec(), b"x".to_vec());
        let bad = (Subject::User(2).attribute(), b"much".to_vec());
        let good = Xattrs::from([limit.clone(), other.clone()]);
        let both = Xattrs::from([limit, other, bad]);
        assert_eq!(understood(&xattr::encode(&good)), None);
        let left = understood(&xattr::encode(&both));
        assert_eq!(left, Some(xattr::encode(&good)));
    }

    #[test]
    fn a_limit_that_is_not_understood_is_found_and_repaired() {
        let bad = (Subject::User(2).attribute(), b"much".to_vec());
        // In the inode, and in a node.
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
