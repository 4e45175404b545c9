//! Dm-verity hash trees appended to images: their position, verified reading, and the objects in damaged
//! ranges.
//!
//! ```text
//!  image │ zeros up to 4096 │ header │ tree │ parity (optional)
//!        └ its end          └ the hash offset
//! ```

use crate::read::{DeviceId, Image, Inode, Location, OpenOptions, Space};
use crate::walk::Walk;
use crate::{Error, Place, Remedy, Result};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tuff_format::claim::Claim;
use tuff_format::cluster::Coding;
use tuff_store::ReadAt;
use tuff_verity::{HEADER_LEN, HeaderError};

pub use tuff_verity::{Damage, Header, RepairedBlock, Root, TreePlace, Verified};

/// Alignment of the hash tree's header, which follows the image. Unit: bytes.
pub const HEADER_ALIGN: u64 = 4096;

/// Properties of a finished hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashTree {
    /// The root hash. It is the only value that a reader needs.
    pub root: Root,
    /// Superblock of the hash tree.
    pub header: Header,
    /// Position of the header. Unit: bytes.
    pub hash_offset: u64,
    /// Number of parity roots, if the tree has parity.
    pub parity: Option<u32>,
    /// End of the tree and its parity. Unit: bytes.
    pub end: u64,
}

impl HashTree {
    /// Returns the end of the tree, where its parity begins, if it has parity. Unit: bytes.
    pub fn tree_end(&self) -> u64 {
        let end = tuff_verity::tree_end(&self.header, None, self.hash_offset);
        end.unwrap_or(self.end)
    }
}

/// Hash tree that follows an image.
pub struct AppendedTree {
    /// Header of the tree.
    pub header: Header,
    /// Number of parity roots, if the tree has parity.
    pub parity: Option<u32>,
    /// End of the tree and its parity. Unit: bytes.
    pub end: u64,
}

/// Returns the position of the header for an image of `image_len` bytes. Unit: bytes.
pub fn hash_offset(image_len: u64) -> u64 {
    image_len.div_ceil(HEADER_ALIGN) * HEADER_ALIGN
}

/// Returns the end of an image in its own file. It includes the blocks of devices that are appended to the same file.
/// Unit: bytes.
///
/// # Errors
///
/// Returns errors from reading the image.
pub fn end(image: &Image) -> Result<u64> {
    let sb = image.superblock();
    let bits = sb.block_bits;
    let own = sb.blocks.saturating_mul(bits.size());
    let ends = image.slots().iter().map(|slot| {
        let blocks = slot.uniaddr.saturating_add(slot.blocks);
        blocks.0.saturating_mul(bits.size())
    });
    let all = ends.fold(own, u64::max);
    // The bytes after the primary device may also be the hash tree, with the devices elsewhere.
    if all == own || all > image.store_size() || appended_header(image, own)?.is_some() {
        return Ok(own);
    }
    Ok(all)
}

/// Returns the header of the tree after the first `len` bytes, if there is a usable one.
fn appended_header(image: &Image, len: u64) -> Result<Option<Header>> {
    let at = hash_offset(len);
    let mut bytes = [0; HEADER_LEN];
    if at.saturating_add(HEADER_LEN as u64) > image.store_size() {
        return Ok(None);
    }
    image
        .store()
        .read_exact_at(&mut bytes, at)
        .map_err(|e| Error::read(Place::byte(at), HEADER_LEN as u64, e))?;
    Ok(Header::decode(&bytes).ok())
}

/// Reads the header of the hash tree that follows an image, if there is one.
///
/// # Errors
///
/// Returns errors from reading the image.
pub fn appended_tree(image: &Image) -> Result<Option<AppendedTree>> {
    let len = end(image)?;
    let found = appended_header(image, len)?;
    Ok(found.map(|header| {
        let at = hash_offset(len);
        let parity = tuff_verity::find_roots(&header, at, image.store_size());
        let end = tuff_verity::tree_end(&header, parity, at).unwrap_or(u64::MAX);
        AppendedTree {
            header,
            parity,
            end: end.min(image.store_size()),
        }
    }))
}

/// Returns the position of the hash tree in `store`: after the end of the image, or, if the superblock is damaged, at
/// the last header that covers all bytes before it.
///
/// # Errors
///
/// Returns the error from opening the image if no such header exists.
pub fn find(store: &Arc<dyn ReadAt>) -> Result<u64> {
    let open = |verify_checksum| {
        let options = OpenOptions {
            verify_checksum,
            ..OpenOptions::default()
        };
        Image::open_shared(Arc::clone(store), options)
    };
    let message = open(false).and_then(|image| {
        let at = end(&image)?;
        Ok((hash_offset(at), appended_header(&image, at)?.is_some()))
    });
    match message {
        Ok((at, true)) => Ok(at),
        Ok((at, false)) if open(true).is_ok() => Ok(at),
        Ok((at, false)) => Ok(last_header(&**store)?.unwrap_or(at)),
        Err(e @ Error::Corrupt(_)) => last_header(&**store)?.ok_or(e),
        Err(e) => Err(e),
    }
}

/// Returns the position of the last header that covers all bytes before it.
fn last_header(store: &dyn ReadAt) -> Result<Option<u64>> {
    /// Bytes searched for headers per read, a multiple of [`HEADER_ALIGN`].
    const STEP: u64 = 1 << 20;
    /// Longest suffix of the store that is searched, because a store without an image may be a whole disk. Unit: bytes.
    const SEARCHED_MAX: u64 = 4 << 30;
    let mut end = store.size();
    let first = end.saturating_sub(SEARCHED_MAX);
    let mut bytes = vec![0; STEP as usize];
    while end > first {
        let start = (end - 1) / STEP * STEP;
        // Fits: at most `STEP`.
        let bytes = &mut bytes[..(end - start) as usize];
        let read = store.read_exact_at(bytes, start);
        read.map_err(|e| Error::read(Place::byte(start), end - start, e))?;
        for (n, place) in bytes.chunks(HEADER_ALIGN as usize).enumerate().rev() {
            let at = start + n as u64 * HEADER_ALIGN;
            let header = place.first_chunk().map(Header::decode);
            if header.is_some_and(|h| h.is_ok_and(|h| h.data_len() == at)) {
                return Ok(Some(at));
            }
        }
        end = start;
    }
    Ok(None)
}

/// Part of a store that the data of a hash tree takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All that the superblock and the device table of the image claim.
    Image,
    /// All of the store: a partition.
    Store,
}

/// Opens `data` verified by a tree, which must cover all of `extent`. Without a root hash, the one that the tree states is
/// used: that finds damage, and nothing that was changed on purpose.
///
/// # Errors
///
/// * `Usage` if there is no tree, `Corrupt` or `Unsupported` for one that cannot be used.
/// * `Corrupt` for a tree that does not cover what the image claims.
/// * Errors from reading the tree.
pub fn open(
    data: Arc<dyn ReadAt>,
    tree: TreePlace,
    root: Option<Root>,
    extent: Extent,
) -> Result<Verified> {
    let at = tree.hash_offset();
    let size = data.size();
    let end = tree.data_len_max(size);
    let claim = |verified: &Verified| {
        let claim = claim(verified, end)?;
        Ok(match extent {
            Extent::Image => claim,
            Extent::Store => claim.max(size),
        })
    };
    let opened = match root {
        Some(root) => Verified::open(data, tree, root, claim),
        None => Verified::open_stated(data, tree, claim),
    };
    opened.map_err(|e| refused(at, e))
}

/// Returns the tree that follows the image in `store`, if there is one.
///
/// # Errors
///
/// Returns errors from reading the store.
pub fn appended(store: &Arc<dyn ReadAt>) -> Result<Option<TreePlace>> {
    let mut read = |at: u64, buf: &mut [u8]| match store.read_exact_at(buf, at) {
        Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
            Err(Some(Error::read(Place::byte(at), buf.len() as u64, e)))
        }
        other => other.map_err(|_| None),
    };
    let claim = match Claim::read(&mut read) {
        Ok(Some(claim)) => claim,
        Ok(None) | Err(None) => return Ok(None),
        Err(Some(e)) => return Err(e),
    };
    for end in [claim.image, claim.with_devices] {
        let at = end.checked_next_multiple_of(HEADER_ALIGN);
        let Some(at) = at.filter(|at| at.saturating_add(HEADER_LEN as u64) <= store.size()) else {
            continue;
        };
        match tuff_verity::read_header(&**store, at) {
            // A writer that was killed leaves a header with a part of its tree.
            Ok(header) => {
                let is_whole = |end| end <= store.size();
                if tuff_verity::tree_end(&header, None, at).is_ok_and(is_whole) {
                    return Ok(Some(TreePlace::appended(Arc::clone(store), at)));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {}
            Err(e) => return Err(Error::read(Place::byte(at), HEADER_LEN as u64, e)),
        }
    }
    Ok(None)
}

/// Returns the tree that follows an image as its header describes it. `None` without one.
///
/// # Errors
///
/// Returns errors from reading the image.
pub fn of_image(image: &Image) -> Result<Option<HashTree>> {
    let store = image.store();
    let tree = appended(store)?;
    let stated = tree.map(|tree| stated(store, &tree, Extent::Image));
    stated.transpose()
}

/// Store of an image with its hash tree, in which the image is compared with the tree. What follows the image is as it is.
pub struct WithTree {
    verified: Verified,
    store: Arc<dyn ReadAt>,
}

impl WithTree {
    /// Wraps a store whose bytes `verified` verifies.
    pub fn new(verified: Verified, store: Arc<dyn ReadAt>) -> Self {
        Self { verified, store }
    }
}

impl ReadAt for WithTree {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.verified.size().checked_sub(offset) {
            Some(left) if left > 0 => {
                let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                self.verified.read_at(&mut buf[..n], offset)
            }
            _ => self.store.read_at(buf, offset),
        }
    }

    fn size(&self) -> u64 {
        self.store.size()
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.store.will_need(offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        self.store.done_with(offset, len);
    }
}

/// Number of bytes that the image in a verified store claims. Other data claims everything before `end`.
fn claim(verified: &Verified, end: u64) -> io::Result<u64> {
    let mut read = |at: u64, buf: &mut [u8]| verified.read_exact_at(buf, at);
    match Claim::read(&mut read) {
        Ok(Some(claim)) => Ok(claim.up_to(end)),
        Ok(None) => Ok(end),
        Err(e) => match e.kind() {
            // The superblock, or what it refers to, is after the bytes with digests.
            io::ErrorKind::UnexpectedEof => Ok(end),
            // No image can be opened then. Scans report the damage, and repair it.
            io::ErrorKind::InvalidData => Ok(end.min(verified.size())),
            _ => Err(e),
        },
    }
}

/// Returns a tree of `data` as its header describes it, with the root hash that its top gives.
///
/// # Errors
///
/// As [`open`].
pub fn stated(data: &Arc<dyn ReadAt>, tree: &TreePlace, extent: Extent) -> Result<HashTree> {
    let verified = open(Arc::clone(data), tree.clone(), None, extent)?;
    let (header, parity) = (verified.header().clone(), verified.roots());
    let hash_offset = tree.hash_offset();
    let end = tuff_verity::tree_end(&header, parity, hash_offset);
    Ok(HashTree {
        root: *verified.root(),
        end: end.unwrap_or_else(|_| tree.store().size()),
        header,
        hash_offset,
        parity,
    })
}

/// Adds parity of `roots` roots, stored after the tree. For stores of which the length does not show whether
/// there is parity.
///
/// # Errors
///
/// `Corrupt` or `Unsupported` for an impossible number of roots.
pub fn with_parity(verified: Verified, roots: u32) -> Result<Verified> {
    verified.with_parity(roots).map_err(|e| refused(0, e))
}

fn refused(at: u64, e: std::io::Error) -> Error {
    let place = Place::byte(at);
    match e.get_ref().and_then(|e| e.downcast_ref::<HeaderError>()) {
        Some(HeaderError::Missing) => {
            let e = Error::usage(format_args!("{place}: {}", HeaderError::Missing));
            e.with_remedy(Remedy::AddHashTree)
        }
        Some(HeaderError::Unsupported(what)) => Error::unsupported(place, what),
        Some(HeaderError::Corrupt(what)) => Error::corrupt(place, what),
        None => Error::read(place, HEADER_LEN as u64, e),
    }
}

/// Object of an image that overlaps damaged bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hit {
    /// Damaged byte range of the file or directory at this path. A damaged cluster damages all bytes that it decodes to.
    Content(Vec<u8>, Range<u64>),
    /// The inode at this path.
    Inode(Vec<u8>),
}

/// Reports the objects of the image that overlap `ranges` (bytes, ascending), as far as the image is
/// readable. Returns the first error of the walk, after visiting everything else.
pub fn hits(image: &Image, ranges: &[Range<u64>], hit: &mut dyn FnMut(Hit)) -> Option<Error> {
    let mut failed = None;
    // Damaged bytes of the packed inode.
    let mut packed: Vec<Range<u64>> = Vec::new();
    if let Some(inode) = image.packed() {
        let found = content(image, inode, ranges, &[], &mut |range| packed.push(range));
        failed = failed.or(found.err());
    }
    let walk = match Walk::root(image) {
        Ok(walk) => walk,
        Err(e) => return Some(e),
    };
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                failed.get_or_insert(e);
                continue;
            }
        };
        let inode = &entry.inode;
        let len = inode.payload_position() - inode.position();
        if inode.space() == Space::Image && overlaps(ranges, inode.position(), len).next().is_some()
        {
            hit(Hit::Inode(entry.path.clone()));
        }
        let found = content(image, inode, ranges, &packed, &mut |range| {
            hit(Hit::Content(entry.path.clone(), range));
        });
        if let Err(e) = found {
            failed.get_or_insert(e);
        }
    }
    failed
}

/// Returns the parts of `len` bytes at `pos` that lie in `ranges` (ascending).
fn overlaps(ranges: &[Range<u64>], pos: u64, len: u64) -> impl Iterator<Item = Range<u64>> {
    let end = pos.saturating_add(len);
    let next = ranges.partition_point(|r| r.end <= pos);
    let found = ranges[next..].iter().take_while(move |r| r.start < end);
    found.map(move |r| r.start.max(pos)..r.end.min(end))
}

/// Reports the damaged ranges of an inode's data. Adjacent ranges are merged. `packed`: damaged bytes of the packed inode.
fn content(
    image: &Image,
    inode: &Inode,
    ranges: &[Range<u64>],
    packed: &[Range<u64>],
    found: &mut dyn FnMut(Range<u64>),
) -> Result<()> {
    if !inode.has_data() {
        return Ok(());
    }
    let mut open: Option<Range<u64>> = None;
    let mut add = |bad: Range<u64>| match &mut open {
        Some(range) if range.end == bad.start => range.end = bad.end,
        _ => {
            open.replace(bad).map(&mut *found);
        }
    };
    for extent in image.extents(inode, 0..inode.size())? {
        let extent = extent?;
        // Uncompressed bytes are damaged one by one, encoded bytes all together.
        let (ranges, pos, encoded_len) = match extent.location {
            Location::Raw { device, pos } if device == DeviceId::PRIMARY => (ranges, pos, None),
            Location::Cluster(cluster) => (ranges, cluster.pos, Some(cluster.len)),
            Location::Inline {
                space: Space::Image,
                pos,
                len,
                coding,
            } => (ranges, pos, (coding != Coding::Stored).then_some(len)),
            Location::Fragment { offset } => (packed, offset, None),
            // The tree does not cover other devices. Inline data of the metabox has no position in the image.
            Location::Hole | Location::Raw { .. } | Location::Inline { .. } => continue,
        };
        match encoded_len {
            Some(len) => {
                if overlaps(ranges, pos, len.into()).next().is_some() {
                    add(extent.offset..extent.end());
                }
            }
            None => {
                for bad in overlaps(ranges, pos, extent.len) {
                    let start = extent.offset + (bad.start - pos);
                    add(start..start + (bad.end - bad.start));
                }
            }
        }
    }
    open.map(found);
    Ok(())
}
