//! Quotas: limits on the space and the inodes of a user, a group or a project.
//!
//! A limit is an extended attribute of the root directory. It is therefore part of snapshots and streams, and can be
//! changed on a mounted volume with the permission to change `trusted.` attributes:
//!
//! ```text
//!  trusted.tuff.quota.user.1000 = "1073741824 20000"      bytes, inodes; "-" for no limit
//!  trusted.tuff.quota.group.100
//!  trusted.tuff.quota.project.7
//! ```
//!
//! An inode is charged to its user, its group and its project, with the space that `stat` reports.
//! Blocks that a directory gains are charged to its own owners, independent of the user who creates the entries.
//!
//! Usage is counted from the inodes when there is a limit, and then kept in memory. A volume without limits has no
//! cost; one with limits reads its inodes when it is mounted.

use crate::disk::address::BLOCK_SIZE;
use crate::disk::inode::Inode;
use crate::disk::xattr::{self, Xattrs};
use crate::error::{Errno, Result};
use crate::options::Caller;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Prefix of the attributes of the root directory that hold limits.
const PREFIX: &[u8] = b"trusted.tuff.quota.";

/// Subject of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Owner of an inode.
    User(u32),
    /// Group of an inode.
    Group(u32),
    /// Project of an inode, inherited from the directory it was created in.
    Project(u32),
}

impl Subject {
    /// Name of the kind of subject.
    pub fn kind(self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Group(_) => "group",
            Self::Project(_) => "project",
        }
    }

    /// Numeric ID of the subject.
    pub fn number(self) -> u32 {
        match self {
            Self::User(n) | Self::Group(n) | Self::Project(n) => n,
        }
    }

    pub(crate) fn attribute(self) -> Vec<u8> {
        let name = format!("{}.{}", self.kind(), self.number());
        [PREFIX, name.as_bytes()].concat()
    }

    /// Parses the subject from the name of an attribute. `None` if the attribute is not a limit.
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

/// Subjects that an inode is charged to, one of each kind.
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

    pub(crate) fn from_inode(inode: &Inode) -> Self {
        Self::new(inode.uid, inode.gid, inode.project)
    }

    /// Subjects that a new inode in a directory is charged to.
    pub(crate) fn in_dir(dir: &Inode, caller: &Caller) -> Self {
        Self::new(caller.uid, dir.inherited_gid(caller.gid), dir.project)
    }

    /// Subjects that are not in `others`.
    fn beyond(self, others: Self) -> impl Iterator<Item = Subject> {
        let pairs = self.0.into_iter().zip(others.0);
        pairs.filter_map(|(subject, other)| (subject != other).then_some(subject))
    }

    /// Subjects that are in `others`.
    fn shared(self, others: Self) -> impl Iterator<Item = Subject> {
        let pairs = self.0.into_iter().zip(others.0);
        pairs.filter_map(|(subject, other)| (subject == other).then_some(subject))
    }
}

/// Limit of a subject. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Maximum space. Unit: blocks of 4 KiB.
    pub blocks: Option<u64>,
    /// Maximum number of inodes.
    pub inodes: Option<u64>,
}

/// Usage of a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Space used. Unit: blocks of 4 KiB.
    pub blocks: u64,
    /// Number of inodes in use.
    pub inodes: u64,
}

/// Limits of a volume, and the usage of every subject while there is a limit.
#[derive(Default)]
pub(crate) struct Quotas {
    limits: BTreeMap<Subject, Limit>,
    usage: HashMap<Subject, Usage>,
}

impl Quotas {
    /// Returns every limit with the usage of its subject.
    pub(crate) fn list(&self) -> Vec<(Subject, Limit, Usage)> {
        let limits = self.limits.iter();
        limits
            .map(|(subject, limit)| (*subject, *limit, self.usage_of(*subject)))
            .collect()
    }

    fn usage_of(&self, subject: Subject) -> Usage {
        self.usage.get(&subject).copied().unwrap_or_default()
    }

    /// Replaces the limits by those in the attributes of the root directory. Returns whether usage must be counted: without
    /// limits it is not kept.
    pub(crate) fn load_limits(&mut self, attributes: &Xattrs) -> bool {
        let is_counted = !self.limits.is_empty();
        self.limits = attributes
            .iter()
            .filter_map(|(name, value)| Some((Subject::of_attribute(name)?, Limit::decode(value)?)))
            .collect();
        if self.limits.is_empty() {
            self.usage.clear();
        }
        !self.limits.is_empty() && !is_counted
    }

    /// Forgets all usage, before every inode is [added](Self::add_inode) again.
    pub(crate) fn clear_usage(&mut self) {
        self.usage.clear();
    }

    /// Adds an inode with `blocks` blocks, itself not included, to the usage of its owners.
    pub(crate) fn add_inode(&mut self, owners: Owners, blocks: u64) {
        for subject in owners.0 {
            let usage = self.usage.entry(subject).or_default();
            usage.blocks += blocks + 1;
            usage.inodes += 1;
        }
    }

    /// Changes the usage of the owners of an inode.
    pub(crate) fn charge(&mut self, owners: Owners, blocks: i64, inodes: i64) {
        self.charge_each(owners.0, blocks, inodes);
    }

    fn charge_each(
        &mut self,
        subjects: impl IntoIterator<Item = Subject>,
        blocks: i64,
        inodes: i64,
    ) {
        if self.limits.is_empty() {
            return;
        }
        for subject in subjects {
            let usage = self.usage.entry(subject).or_default();
            // Saturating: a damaged inode may have been counted for none of its owners.
            usage.blocks = usage.blocks.saturating_add_signed(blocks);
            usage.inodes = usage.inodes.saturating_add_signed(inodes);
        }
    }

    /// Moves the charge for an inode with `blocks` blocks, itself included, to other owners.
    pub(crate) fn transfer(&mut self, from: Owners, to: Owners, blocks: i64) {
        self.charge_each(from.beyond(to), -blocks, -1);
        self.charge_each(to.beyond(from), blocks, 1);
    }

    /// Fails with EDQUOT if the owners may not have that many more blocks and inodes.
    pub(crate) fn check(&self, owners: Owners, blocks: u64, inodes: u64) -> Result<()> {
        self.check_each(owners.0, blocks, inodes)
    }

    /// Fails with EDQUOT if an inode with `blocks` blocks, itself included, may not be charged to other owners.
    pub(crate) fn check_transfer(&self, from: Owners, to: Owners, blocks: u64) -> Result<()> {
        self.check_each(to.beyond(from), blocks, 1)
    }

    /// Fails with EDQUOT if the owners of a new inode may not have its blocks, or the owners of the directory those of its
    /// entry.
    pub(crate) fn check_new(
        &self,
        (owners, blocks): (Owners, u64),
        (dir_owners, dir_blocks): (Owners, u64),
    ) -> Result<()> {
        self.check(owners, blocks, 1)?;
        self.check(dir_owners, dir_blocks, 0)?;
        self.check_each(owners.shared(dir_owners), blocks + dir_blocks, 1)
    }

    fn check_each(
        &self,
        subjects: impl IntoIterator<Item = Subject>,
        blocks: u64,
        inodes: u64,
    ) -> Result<()> {
        if self.limits.is_empty() {
            return Ok(());
        }
        let exceeds = |used: u64, more: u64, limit: Option<u64>| {
            more > 0 && limit.is_some_and(|limit| used.saturating_add(more) > limit)
        };
        for subject in subjects {
            let Some(limit) = self.limits.get(&subject) else {
                continue;
            };
            let usage = self.usage_of(subject);
            if exceeds(usage.blocks, blocks, limit.blocks)
                || exceeds(usage.inodes, inodes, limit.inodes)
            {
                return Err(Errno::Quota.into());
            }
        }
        Ok(())
    }

    /// Least number of blocks that a subject with a limit may still have, `u64::MAX` without limits.
    pub(crate) fn least_room(&self) -> u64 {
        let rooms = self.limits.iter().filter_map(|(subject, limit)| {
            Some(limit.blocks?.saturating_sub(self.usage_of(*subject).blocks))
        });
        rooms.min().unwrap_or(u64::MAX)
    }

    /// Returns whether one of the owners has a limit of blocks.
    pub(crate) fn limits_blocks_of(&self, owners: Owners) -> bool {
        let mut limits = owners.0.iter().filter_map(|s| self.limits.get(s));
        limits.any(|limit| limit.blocks.is_some())
    }
}

impl Limit {
    pub(crate) fn encode(self) -> Vec<u8> {
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

/// Rejects an attribute of the root directory that has the prefix of limits and cannot be parsed.
pub(crate) fn verify(name: &[u8], value: &[u8]) -> Result<()> {
    let ours = name.starts_with(PREFIX);
    if ours && (Subject::of_attribute(name).is_none() || Limit::decode(value).is_none()) {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}

/// Removes the attributes that [`verify`] rejects from encoded attributes. `None` if there are none.
pub(crate) fn understood(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut attributes = xattr::decode(bytes).ok()?;
    let all = attributes.len();
    attributes.retain(|name, value| verify(name, value).is_ok());
    (attributes.len() < all).then(|| xattr::encode(&attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_round_trip_as_text_and_malformed_ones_are_rejected() {
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
    fn only_malformed_limits_are_removed() {
        let limit = (Subject::User(1).attribute(), b"1 1".to_vec());
        let other = (b"user.other".to_vec(), b"x".to_vec());
        let bad = (Subject::User(2).attribute(), b"much".to_vec());
        let good = Xattrs::from([limit.clone(), other.clone()]);
        let both = Xattrs::from([limit, other, bad]);
        assert_eq!(understood(&xattr::encode(&good)), None);
        let left = understood(&xattr::encode(&both));
        assert_eq!(left, Some(xattr::encode(&good)));
    }
}
