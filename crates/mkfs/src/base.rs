//! `--base`, and images among the sources whose data stays where it is: what the new image refers to instead of holding it again.
//!
//! ```text
//!  unified addresses   0 ........ end of the new image │ end ........ first base │ second base, its devices │ ...
//!                      the new image's own blocks      │ by slots in the device table, in this order
//! ```
//!
//! A file with the content of one in a base takes over what that one's inode says: blocks and clusters at their places
//! in the base, an end behind the inode as a copy. What it has in the base's packed inode becomes part of the new image's
//! packed inode: pieces that lie in clusters of the base, behind its own. A file that has only stretches in common with one
//! in a base takes over the clusters that begin in them. A file of a source that is a base takes over what its own inode
//! says, and nothing of it is read.
//!
//! | room | what it is |
//! |---|---|
//! | `member` | one base: its devices and addresses |
//! | `data` | what its inodes say of where data is |
//!
//! Invariants:
//!
//! * What is compared is what a reader of the base gets, not what the base says about itself.
//! * Whatever is referred to lies inside one device, in whole blocks.
//! * What is shared depends on contents and the options alone.

mod data;
mod member;
mod types;

pub(crate) use types::{
    BaseChunks, BaseClusters, BaseData, BaseFile, BaseFragment, BaseInode, BasePiece, BaseTail,
};

use super::options::{BaseImage, Options};
use super::source::spec::Source;
use crate::{Error, Result};
use member::Member;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::read::Inode;
use tuff_format::config::Configs;
use tuff_format::device::Slot;
use tuff_store::ReadAt;

/// The bases, open.
pub(crate) struct Bases {
    members: Vec<Member>,
    /// The new image begins with the only one.
    in_image: bool,
}

impl Bases {
    /// Opens what an image with these options refers to, if it is anything: its bases, then the sources whose data stays where it is.
    ///
    /// # Errors
    /// `Usage` if no image with these options can refer to it; what opening an image gives.
    pub(crate) fn open(options: &Options, sources: &[Source]) -> Result<Option<Self>> {
        let mut bases = Self {
            members: Vec::new(),
            in_image: false,
        };
        for BaseImage { path, devices } in &options.dedupe.bases {
            bases.add(path, devices, options)?;
        }
        for source in sources.iter().filter(|_| options.dedupe.image_index) {
            if let Source::Image { path, devices } = source {
                bases.add(path, devices, options)?;
            }
        }
        bases.members.iter().try_for_each(Member::has_devices)?;
        if let Some(last) = bases.members.last_mut() {
            last.set_last();
        }
        Ok((!bases.members.is_empty()).then_some(bases))
    }

    /// The image that is going to be the first part of the new one.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what looking for a hash tree behind it gives.
    pub(crate) fn of_patch(image: &Path, options: &Options) -> Result<Self> {
        let mut bases = Self {
            members: Vec::new(),
            in_image: true,
        };
        bases.add(image, &[], options)?;
        for member in &mut bases.members {
            member.set_last();
            member.look_behind()?;
        }
        Ok(bases)
    }

    fn add(&mut self, path: &Path, devices: &[PathBuf], options: &Options) -> Result<()> {
        let (blocks, packed) = self.members.last().map_or((0, 0), Member::end);
        let number = u16::try_from(self.members.len())
            .map_err(|_| Error::limit("bases", "more than 65,536"))?;
        let member = Member::open(number, path, devices, options, blocks, packed)?;
        self.members.push(member);
        Ok(())
    }

    /// Number of the base that the source of this number is, if its data stays where it is.
    pub(crate) fn of_source(source: usize, options: &Options, sources: &[Source]) -> Option<u16> {
        let is_image = |s: &Source| matches!(s, Source::Image { .. });
        let here = options.dedupe.image_index && is_image(sources.get(source)?);
        let before = sources[..source].iter().filter(|s| is_image(s)).count();
        // Fits: they were counted when they were opened.
        here.then_some((options.dedupe.bases.len() + before) as u16)
    }

    fn member(&self, inode: BaseInode) -> &Member {
        &self.members[usize::from(inode.base)]
    }

    /// Returns the base that holds a grain, `per_block` grains being a block.
    fn member_at(&self, grain: u32, per_block: u32) -> &Member {
        let block = grain / per_block;
        let before = self.members.partition_point(|m| m.origin() <= block);
        &self.members[before - 1]
    }

    /// True if the new image begins with it.
    pub(crate) fn in_image(&self) -> bool {
        self.in_image
    }

    /// The stores that they are in, in the order of [`slots`](Self::slots).
    pub(crate) fn stores(&self) -> Vec<Arc<dyn ReadAt>> {
        if self.in_image {
            return Vec::new();
        }
        self.members.iter().flat_map(Member::stores).collect()
    }

    /// Where these are.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        if self.in_image {
            return Vec::new();
        }
        let paths = self.members.iter().flat_map(|m| m.paths().iter().cloned());
        paths.collect()
    }

    /// Their length. Unit: blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.members.last().map_or(0, |m| m.end().0)
    }

    /// Where a patch may begin: the tree that verifies what is there stays good until the patch counts. Unit: blocks.
    pub(crate) fn behind(&self) -> u32 {
        self.members.last().map_or(0, Member::behind)
    }

    /// What their clusters need readers to know.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &Configs> {
        self.members.iter().map(Member::configs)
    }

    /// Slots in the device table of an image whose addresses for bases begin at block `at`, if they are devices of their own.
    pub(crate) fn slots(&self, at: u64) -> Vec<Slot> {
        if self.in_image {
            return Vec::new();
        }
        self.members.iter().flat_map(|m| m.slots(at)).collect()
    }

    /// Number of slots in the device table.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots(0).len()
    }

    /// Files that are wanted and have data, those of one base after those of another and in the order of their data, those with
    /// several names once; at most so many.
    pub(crate) fn files(
        &self,
        most: usize,
        wanted: &dyn Fn(&Inode) -> bool,
    ) -> Result<Vec<BaseFile>> {
        let mut files = Vec::new();
        for member in &self.members {
            files.extend(member.files(most - files.len(), wanted)?);
        }
        Ok(files)
    }

    /// Fills `buf` from `offset` of a file, as a reader of the base gets it.
    pub(crate) fn read_exact(&self, inode: BaseInode, buf: &mut [u8], offset: u64) -> Result<()> {
        self.member(inode).read_exact(inode.nid, buf, offset)
    }

    /// Where the data of a file is. `None` if the new image cannot say it, or is not to have a file compressed that
    /// the base has compressed. `stored`: it is to be stored as it is.
    pub(crate) fn data(&self, inode: BaseInode, stored: bool) -> Result<Option<BaseData>> {
        self.member(inode).data(inode.nid, stored)
    }

    /// Number of the first algorithm that clusters of a compressed file have. `None`: all are stored.
    pub(crate) fn algorithm(&self, inode: BaseInode) -> Result<Option<u8>> {
        self.member(inode).algorithm(inode.nid)
    }

    /// The clusters of a compressed file, for others to use: under this number.
    pub(crate) fn clusters(&self, inode: BaseInode, number: u32) -> Result<BaseClusters> {
        self.member(inode).clusters(inode.nid, number)
    }

    /// Reads `count` grains of a base from `grain` on. A block has `per_block` grains.
    pub(crate) fn grains_from(&self, grain: u32, count: u16, per_block: u32) -> Result<Vec<u8>> {
        self.member_at(grain, per_block).grains_from(grain, count)
    }

    /// Returns the device that holds a grain of a base, 1 being the first, and the grain's number there.
    pub(crate) fn on_device(&self, grain: u32, per_block: u32) -> (u16, u32) {
        let member = self.member_at(grain, per_block);
        let before: usize = (self.members.iter())
            .take_while(|m| m.origin() < member.origin())
            .map(|m| m.slots(0).count())
            .sum();
        let (device, at) = member.on_device(grain);
        // Fits: a device table has room for fewer.
        (device + before as u16, at)
    }
}
