//! Limits for users: how much space and how many inodes an owner may have.
//!
//! A limit is an extended attribute of the root directory, so that it is where the volume is, in snapshots and streams too, and whoever may change
//! attributes in `trusted.` may change it, also on a mounted volume:
//!
//! ```text
//!  trusted.tuff.quota.user.1000 = "1073741824 20000"      bytes, inodes; "-" for no limit
//! ```
//!
//! What users have is counted when there is a limit, from the inodes, and kept in memory from then on: a volume without limits pays nothing, one with
//! limits reads its inodes when it is mounted. An inode counts for its owner with the space that `stat` says it takes. A directory that grows by somebody
//! else's entry counts for its own owner and is never refused.

use crate::areas::{Addr, BLOCK_SIZE, Nid};
use crate::attr::SetXattr;
use crate::disk::inode::{Content, Time};
use crate::disk::node::{NodeBody, Slot};
use crate::disk::xattr::Xattrs;
use crate::error::{Errno, Error, Result};
use crate::map::span;
use crate::volume::Volume;
use std::collections::{BTreeMap, HashMap};

/// Before the number of a user, in names of attributes of the root directory.
pub(crate) const PREFIX: &[u8] = b"trusted.tuff.quota.user.";

/// What a user may have. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Space. Unit: blocks of 4 KiB.
    pub blocks: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// What a user has.
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
    limits: BTreeMap<u32, Limit>,
    usage: HashMap<u32, Usage>,
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

/// The user that an attribute of the root directory is about. `None` if it is about none.
fn user_of(name: &[u8]) -> Option<u32> {
    let number = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
    number.parse().ok()
}

/// Refuses what would be an attribute of the root directory about a user, and is not understood.
pub(crate) fn verify(name: &[u8], value: &[u8]) -> Result<()> {
    let ours = name.starts_with(PREFIX);
    if ours && (user_of(name).is_none() || Limit::decode(value).is_none()) {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}

impl Volume {
    /// Limits of users, with what they have.
    pub fn quotas(&self) -> Vec<(u32, Limit, Usage)> {
        let used = |user: &u32| self.quotas.usage.get(user).copied().unwrap_or_default();
        let limits = self.quotas.limits.iter();
        limits.map(|(user, l)| (*user, *l, used(user))).collect()
    }

    /// Limits what a user may have from now on; what is there stays. A limit without bounds takes it away.
    ///
    /// # Errors
    /// As those of [`set_xattr`](Self::set_xattr): there is room for about a hundred limits.
    pub fn set_quota(&mut self, user: u32, limit: Limit, now: Time) -> Result<()> {
        let name = [PREFIX, user.to_string().as_bytes()].concat();
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
            .filter_map(|(name, value)| Some((user_of(name)?, Limit::decode(value)?)))
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
        let mut usage: HashMap<u32, Usage> = HashMap::new();
        for (ino, addr) in inos {
            let found = match self.nodes.get(&ino) {
                Some(node) => match &node.body {
                    NodeBody::Inode(inode) => Some((inode.uid, inode.blocks)),
                    _ => None,
                },
                // Not through the cache, which all inodes would not fit. One that cannot be read counts for nobody; who uses it hears of it.
                None if addr.is_mapped() => match self.read_node_at(addr) {
                    Ok((NodeBody::Inode(inode), _)) => Some((inode.uid, inode.blocks)),
                    _ => None,
                },
                None => None,
            };
            if let Some((user, blocks)) = found {
                let of = usage.entry(user).or_default();
                of.blocks += blocks + 1;
                of.inodes += 1;
            }
        }
        self.quotas.usage = usage;
        Ok(())
    }

    /// Notes that a user has more or less.
    pub(crate) fn charge(&mut self, user: u32, blocks: i64, inodes: i64) {
        if !self.quotas.limits.is_empty() {
            let of = self.quotas.usage.entry(user).or_default();
            // Never below zero, also where a damaged inode counted for nobody.
            of.blocks = of.blocks.saturating_add_signed(blocks);
            of.inodes = of.inodes.saturating_add_signed(inodes);
        }
    }

    /// Changes the count of blocks of an inode, and what its owner has.
    pub(crate) fn count_blocks(&mut self, ino: Nid, more: i64) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.blocks = inode.blocks.saturating_add_signed(more);
        let user = inode.uid;
        self.charge(user, more, 0);
        Ok(())
    }

    /// EDQUOT if a user must not have so much more.
    pub(crate) fn within_quota(&self, user: u32, blocks: u64, inodes: u64) -> Result<()> {
        let Some(limit) = self.quotas.limits.get(&user) else {
            return Ok(());
        };
        let has = self.quotas.usage.get(&user).copied().unwrap_or_default();
        let passes = |has: u64, more: u64, limit: Option<u64>| {
            more > 0 && limit.is_some_and(|limit| has.saturating_add(more) > limit)
        };
        if passes(has.blocks, blocks, limit.blocks) || passes(has.inodes, inodes, limit.inodes) {
            return Err(Errno::Quota.into());
        }
        Ok(())
    }

    /// EDQUOT if the owner of a file must not have the blocks that these of the file would take.
    pub(crate) fn may_fill(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let (user, has) = (inode.uid, inode.blocks);
        let limit = self.quotas.limits.get(&user);
        if limit.is_none_or(|limit| limit.blocks.is_none()) {
            return Ok(());
        }
        // At least so many are new; beyond the limit there is no need to look at each.
        self.within_quota(user, (end - first).saturating_sub(has), 0)?;
        let mut new = end - first;
        if matches!(self.inode(ino)?.content, Content::Map(_)) {
            new = 0;
            for index in first..end {
                new += u64::from(self.slot(ino, index)? == Slot::HOLE);
            }
        }
        // Direct nodes, and those above them.
        let nodes = if new > 0 { new.div_ceil(span(0)) } else { 0 };
        self.within_quota(user, new + nodes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(user_of(b"trusted.tuff.quota.user.1000"), Some(1000));
        assert!(verify(b"trusted.tuff.quota.user.x", b"1 1").is_err());
        assert!(verify(b"trusted.other", b"x").is_ok());
    }
}
