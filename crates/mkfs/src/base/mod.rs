//! Bases: images that hold data of the new image.
//!
//! ```text
//! unified addresses   0 ........ end of the new image │ end ........ first base │ second base, its devices │ ...
//!                      the new image's own blocks      │ by slots in the device table, in this order
//! ```
//!
//! * A file with the same content as a file of a base takes over its index: blocks and clusters stay in the base, an
//!   inline tail is copied.
//! * A fragment in a base's packed inode becomes part of the new packed inode, as clusters that stay in the base.
//! * A file that shares only parts with a file of a base takes over the clusters that start in these parts.
//! * A file of a source that is itself a base takes over its own index and is not read.
//!
//! `member` is one base with its devices and addresses, `data` converts its indexes, `types` holds the results.
//!
//! Invariants:
//!
//! * Contents are compared as a reader of the base gets them, not by metadata of the base.
//! * Every reference lies inside one device, in whole blocks.
//! * The shared data depends on contents and options alone.

mod data;
mod member;
mod placed;
mod types;

pub(crate) use member::{check_no_devices, is_compressed};
pub(crate) use types::{
    BaseChunks, BaseClusters, BaseData, BaseFile, BaseFragment, BaseInode, BasePiece, BaseTail,
    DataPosition,
};

use super::options::Options;
use super::source::input_image::InputImage;
use super::source::placed::PlacedData;
use super::source::spec::Source;
use crate::{Error, Result};
use member::Member;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::read::{Image, Inode};
use tuff_format::DeviceId;
use tuff_format::config::Configs;
use tuff_format::device::Slot;
use tuff_store::ReadAt;

/// Open bases of a build.
pub(crate) struct Bases {
    members: Vec<Member>,
    /// The new image starts with the only base (a patch).
    in_image: bool,
}

impl Bases {
    /// Opens the bases of an image: those of the options, then sources whose data stays in place.
    ///
    /// # Errors
    /// `Usage` if an image with these options cannot refer to a base; errors of opening an image.
    pub(crate) fn open(options: &Options, sources: &[Source]) -> Result<Option<Self>> {
        let mut bases = Self {
            members: Vec::new(),
            in_image: false,
        };
        for base in &options.dedupe.bases {
            bases.add(base, options)?;
        }
        for source in sources.iter().filter(|_| options.dedupe.image_index) {
            if let Source::Image(image) = source {
                bases.add(image, options)?;
            }
        }
        bases.members.iter().try_for_each(Member::has_devices)?;
        if options.dedupe.image_index {
            bases.find_second_algorithm()?;
        }
        if let Some(last) = bases.members.last_mut() {
            last.set_last();
        }
        Ok((!bases.members.is_empty()).then_some(bases))
    }

    /// Opens the image that becomes the first part of a patched image.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of reading its hash tree.
    pub(crate) fn of_patch(image: &Path, options: &Options) -> Result<Self> {
        let mut bases = Self {
            members: Vec::new(),
            in_image: true,
        };
        bases.add(&InputImage::of_patch(image)?, options)?;
        for member in &mut bases.members {
            member.set_last();
            member.skip_hash_tree()?;
        }
        Ok(bases)
    }

    /// Lets the new packed inode have the clusters of those bases whose algorithm is not that of its new clusters. The format
    /// has two algorithms for an inode, so the first such base decides.
    fn find_second_algorithm(&mut self) -> Result<()> {
        let mut second = None;
        for member in &self.members {
            second = member
                .packed_algorithm()?
                .filter(|id| Some(*id) != member.packed);
            if second.is_some() {
                break;
            }
        }
        for member in &mut self.members {
            member.second = second;
        }
        Ok(())
    }

    /// Returns the algorithm of the packed inode that is not that of its new clusters, if there is one.
    pub(crate) fn second_algorithm(&self) -> Option<u8> {
        self.members.first().and_then(|member| member.second)
    }

    fn add(&mut self, input: &InputImage, options: &Options) -> Result<()> {
        let (blocks, packed) = self.members.last().map_or((0, 0), Member::end);
        let number = u16::try_from(self.members.len())
            .map_err(|_| Error::limit("bases", "more than 65,536"))?;
        let slot = self.members.last().map_or(0, Member::end_slot);
        let mut member = Member::open(number, input, options, (blocks, packed, slot))?;
        if self.in_image {
            member.set_in_image();
        }
        self.members.push(member);
        Ok(())
    }

    /// Returns for each source the number of the base that it is, if its data stays in place.
    pub(crate) fn of_sources(options: &Options, sources: &[Source]) -> Vec<Option<u16>> {
        let mut number = options.dedupe.bases.len();
        let base = |source: &Source| {
            let is_base = options.dedupe.image_index && matches!(source, Source::Image(_));
            number += usize::from(is_base);
            // Fits: the bases were counted when they were opened.
            is_base.then(|| (number - 1) as u16)
        };
        sources.iter().map(base).collect()
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

    /// Returns true if the new image starts with the base.
    pub(crate) fn in_image(&self) -> bool {
        self.in_image
    }

    /// Returns the image that is patched.
    pub(crate) fn patched(&self) -> Option<&Image> {
        let first = self.members.first().filter(|_| self.in_image);
        first.map(|member| &member.image)
    }

    /// Returns the position of a file's first byte, for reading files in the order of their data.
    pub(crate) fn data_position(&self, inode: &Inode) -> Result<DataPosition> {
        match self.members.first() {
            Some(member) => member.data_position(inode),
            None => Ok(DataPosition::Device(0)),
        }
    }

    /// Returns the stores of all bases, in the order of [`slots`](Self::slots).
    pub(crate) fn stores(&self) -> Vec<Arc<dyn ReadAt>> {
        if self.in_image {
            return Vec::new();
        }
        self.members.iter().flat_map(Member::stores).collect()
    }

    /// Returns the paths of the stores.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        if self.in_image {
            return Vec::new();
        }
        let paths = self.members.iter().flat_map(|m| m.paths().iter().cloned());
        paths.collect()
    }

    /// Returns the length of all bases in blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.members.last().map_or(0, |m| m.end().0)
    }

    /// Returns the first block that a patch may write. The hash tree of the old image stays intact until the patch
    /// takes effect.
    pub(crate) fn first_free(&self) -> u32 {
        self.members.last().map_or(0, Member::first_free)
    }

    /// Returns the compression records of the bases.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &Configs> {
        self.members.iter().map(Member::configs)
    }

    /// Returns the slots of the bases in the device table of an image whose addresses for bases start at block `at`.
    pub(crate) fn slots(&self, at: u64) -> Vec<Slot> {
        if self.in_image {
            return Vec::new();
        }
        self.members.iter().flat_map(|m| m.slots(at)).collect()
    }

    /// Returns the number of slots in the device table.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots(0).len()
    }

    /// Lists at most `count_max` files of the bases that have data and match `filter`, base by base, in the order of their
    /// data. A file with several names is listed once.
    pub(crate) fn files(
        &self,
        count_max: usize,
        filter: &dyn Fn(&Inode) -> bool,
    ) -> Result<Vec<BaseFile>> {
        let mut files = Vec::new();
        for member in &self.members {
            files.extend(member.files(count_max - files.len(), filter)?);
        }
        Ok(files)
    }

    /// Fills `buf` from `offset` of a file, as a reader of the base gets it.
    pub(crate) fn read_exact(&self, inode: BaseInode, buf: &mut [u8], offset: u64) -> Result<()> {
        self.member(inode).read_exact(inode.nid, buf, offset)
    }

    /// Returns the places of a file's data. `None` if the new image cannot express them, or if the file is to be
    /// `stored` and the base has it compressed.
    pub(crate) fn data(&self, inode: BaseInode, stored: bool) -> Result<Option<BaseData>> {
        self.member(inode).data(inode.nid, stored, false)
    }

    /// Converts the place of the data of a file of `size` bytes. Data that the image cannot express is an error.
    pub(crate) fn placed(&self, size: u64, data: &PlacedData) -> Result<BaseData> {
        placed::data(&self.members, size, data)
    }

    /// Returns the places of the data of a file of the patched image, whose packed inode stays. `None` if the new image
    /// cannot express them.
    pub(crate) fn patched_data(&self, inode: BaseInode) -> Result<Option<BaseData>> {
        self.member(inode).data(inode.nid, false, true)
    }

    /// Returns the algorithm of the first compressed cluster of a file. `None` if all clusters are stored.
    pub(crate) fn algorithm(&self, inode: BaseInode) -> Result<Option<u8>> {
        self.member(inode).algorithm(inode.nid)
    }

    /// Returns the clusters of a compressed file for use by other files, under the key `number`.
    pub(crate) fn clusters(&self, inode: BaseInode, number: u32) -> Result<BaseClusters> {
        self.member(inode).clusters(inode.nid, number)
    }

    /// Reads `count` grains of a base from `grain` on. A block has `per_block` grains.
    pub(crate) fn grains_from(&self, grain: u32, count: u16, per_block: u32) -> Result<Vec<u8>> {
        self.member_at(grain, per_block).grains_from(grain, count)
    }

    /// Returns the device that holds a grain of a base, and the grain's number there. Device 1 is the first base.
    pub(crate) fn on_device(&self, grain: u32, per_block: u32) -> (DeviceId, u32) {
        let (device, block) = self.block_on_device(grain / per_block);
        (device, block * per_block + grain % per_block)
    }

    /// Returns the device that holds a block of a base, and the block's number there. Device 1 is the first base. A
    /// base that the new image starts with is a part of the primary device.
    pub(crate) fn block_on_device(&self, block: u32) -> (DeviceId, u32) {
        if self.in_image {
            return (DeviceId::PRIMARY, block);
        }
        self.member_at(block, 1).block_on_device(block)
    }
}
