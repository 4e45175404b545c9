//! Reading of file data at a position or sequentially.

use super::decode::{self, DecodeScope, Worker};
use super::fetch::{FETCH_MAX, Space};
use super::image::Image;
use super::inode::Inode;
use super::limits::WorkBudget;
use super::map::{Cluster, ClusterCoding, Extent, Extents, FileMap, Location};
use crate::error::Step;
use crate::{Error, Result};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{Deref, Range};
use std::sync::Arc;
use tuff_format::DeviceId;
use tuff_format::cluster::Coding;

/// Request for bytes `[skip, skip + dst.len())` of one extent.
struct Part<'a> {
    extent: Extent,
    skip: u64,
    dst: &'a mut [u8],
}

impl Image {
    /// Reads bytes of an inode's data at `offset` into `buf`. Returns the number of bytes read, which is less
    /// than `buf.len()` only at the end.
    ///
    /// If all bytes of a cluster are requested, it is decoded directly into `buf`. Otherwise it is decoded
    /// into a buffer that is kept in the cache of decoded clusters.
    ///
    /// # Errors
    /// `Corrupt` or `Io` with the inode, the cluster and the cause. Other ranges may be readable.
    pub fn read_at(&self, inode: &Inode, buf: &mut [u8], offset: u64) -> Result<usize> {
        let map = self.map(inode)?;
        self.read_mapped(inode, &map, buf, offset)
    }

    /// Returns all data of a small inode such as a symlink. `name` is the limit's name.
    ///
    /// # Errors
    /// `Limit` if the data is longer than `limit`.
    pub(crate) fn read_all(
        &self,
        inode: &Inode,
        limit: u64,
        name: &'static str,
    ) -> Result<Vec<u8>> {
        let size = if inode.has_data() { inode.size() } else { 0 };
        if size > limit {
            return Err(Error::limit(
                inode.place(),
                format_args!("{size} bytes long, more than the limit {name}, {limit}"),
            ));
        }
        // Fits: the limit bounds memory.
        let mut buf = vec![0; size as usize];
        self.read_at(inode, &mut buf, 0)?;
        Ok(buf)
    }

    /// Returns the target of a symlink.
    ///
    /// # Errors
    /// `Usage` if the inode is not a symlink. `Corrupt` if the target is empty or contains a NUL.
    pub fn readlink(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.file_type() != tuff_format::inode::FileType::Symlink {
            return Err(Error::usage(format_args!(
                "nid {} is not a symlink",
                inode.nid()
            )));
        }
        let target = self.read_all(inode, self.limits().symlink_len, "symlink_len")?;
        if target.is_empty() || target.contains(&0) {
            return Err(Error::corrupt(
                inode.place(),
                "the target of the symlink is empty or contains a NUL",
            ));
        }
        Ok(target)
    }

    /// As [`read_at`](Self::read_at), with the map already loaded.
    pub(crate) fn read_mapped(
        &self,
        inode: &Inode,
        map: &FileMap,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        let size = if matches!(map, FileMap::Empty) {
            0
        } else {
            inode.size()
        };
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        if n == 0 {
            return Ok(0);
        }
        let mut extents = Extents::new(self, inode.nid(), map.clone(), offset..offset + n as u64);
        let mut rest = &mut buf[..n];
        let mut at = offset;
        self.workers.with(|worker| {
            while let Some(extent) = extents.next() {
                let extent = extent?;
                let skip = at - extent.offset;
                // Fits: the minimum is at most the length of a buffer.
                let take = (extent.len - skip).min(rest.len() as u64) as usize;
                let (dst, others) = std::mem::take(&mut rest).split_at_mut(take);
                rest = others;
                at += take as u64;
                let part = Part { extent, skip, dst };
                self.read_part(worker, part, &extents)
                    .map_err(|e| e.within(inode.place()))?;
            }
            Ok(n)
        })
    }

    /// Reads a part of an extent. `next` iterates over the extents after it.
    fn read_part(&self, worker: &mut Worker, part: Part<'_>, next: &Extents<'_>) -> Result<()> {
        let Part { extent, skip, dst } = part;
        match extent.location {
            Location::Hole => {
                dst.fill(0);
                Ok(())
            }
            Location::Raw { device, pos } => {
                self.devices.read(device, pos.saturating_add(skip), dst)
            }
            Location::Inline { .. } => self.read_inline(worker, &extent, skip, dst),
            Location::Fragment { offset } => {
                let (inode, map) = self.packed_map()?;
                let from = offset.saturating_add(skip);
                if from
                    .checked_add(dst.len() as u64)
                    .is_none_or(|end| end > inode.size())
                {
                    return Err(Error::corrupt(
                        format_args!("fragment at {from}"),
                        format_args!(
                            "{} bytes reach past the packed inode's end, {}",
                            dst.len(),
                            inode.size()
                        ),
                    ));
                }
                self.read_mapped(inode, map, dst, from)?;
                Ok(())
            }
            Location::Cluster(cluster) => match cluster.coding {
                ClusterCoding::Stored => {
                    let pos = cluster.pos.saturating_add(skip);
                    self.devices.read(DeviceId::PRIMARY, pos, dst)
                }
                ClusterCoding::Interlaced => {
                    let bits = self.superblock().block_bits;
                    let n = dst.len() as u64;
                    let (la, len, plen) = (extent.offset, extent.len, u64::from(cluster.len));
                    for (from, to) in decode::interlaced(bits, la, len, plen, skip, n) {
                        // Fits: inside `dst`.
                        let dst = &mut dst[to.start as usize..to.end as usize];
                        let pos = cluster.pos.saturating_add(from.start);
                        self.devices.read(DeviceId::PRIMARY, pos, dst)?;
                    }
                    Ok(())
                }
                ClusterCoding::Compressed(_) => {
                    self.read_compressed(worker, &extent, cluster, skip, dst, next)
                }
            },
        }
    }

    fn read_inline(
        &self,
        worker: &mut Worker,
        extent: &Extent,
        skip: u64,
        dst: &mut [u8],
    ) -> Result<()> {
        let Location::Inline {
            space,
            pos,
            len,
            coding,
        } = extent.location
        else {
            unreachable!("the caller matched")
        };
        let src = self.bytes(space, pos, len as usize)?;
        let broken = |e: decode::Broken| {
            let place = format_args!("inline data at byte {pos:#x} ({})", decode::name(coding));
            e.at(place)
        };
        if skip == 0 && dst.len() as u64 == extent.len {
            return self
                .decode(worker, coding, &src, extent, DecodeScope::All, dst)
                .map_err(broken);
        }
        let mut whole = vec![0; self.decoded_len(extent)?];
        self.decode(worker, coding, &src, extent, DecodeScope::All, &mut whole)
            .map_err(broken)?;
        // In bounds: the requested range is inside the extent.
        dst.copy_from_slice(&whole[skip as usize..][..dst.len()]);
        Ok(())
    }

    fn read_compressed(
        &self,
        worker: &mut Worker,
        extent: &Extent,
        cluster: Cluster,
        skip: u64,
        dst: &mut [u8],
        next: &Extents<'_>,
    ) -> Result<()> {
        if skip == 0 && dst.len() as u64 == extent.len {
            let run = || adjacent(cluster, next.clone());
            return self.decode_cluster(worker, extent, cluster, run, 0..dst.len(), dst);
        }
        let whole = self.decoded(worker, extent, cluster)?;
        // In bounds: `decoded` returns at least the extent's length.
        dst.copy_from_slice(&whole[skip as usize..][..dst.len()]);
        Ok(())
    }

    /// Returns the decoded bytes of a compressed extent, from the cache if possible. The result may be longer
    /// if another extent of the same cluster is longer.
    fn decoded(
        &self,
        worker: &mut Worker,
        extent: &Extent,
        cluster: Cluster,
    ) -> Result<Arc<Vec<u8>>> {
        let key = (cluster.pos, cluster.len, cluster.coding);
        if let Some(whole) = self.decoded.get(&key) {
            let have = whole.len() as u64;
            if have == extent.len || have > extent.len && cluster.partial {
                return Ok(whole);
            }
        }
        let mut whole = vec![0; self.decoded_len(extent)?];
        let all = 0..whole.len();
        self.decode_cluster(worker, extent, cluster, || 0, all, &mut whole)?;
        let whole = Arc::new(whole);
        self.decoded.put(key, whole.clone(), whole.len());
        Ok(whole)
    }

    pub(crate) fn decoded_len(&self, extent: &Extent) -> Result<usize> {
        let limit = self.limits().decoded_size;
        if extent.len > limit {
            return Err(Error::limit(
                format_args!("extent at file offset {}", extent.offset),
                format_args!(
                    "{} bytes long, more than the limit decoded_size, {limit}",
                    extent.len
                ),
            ));
        }
        // Fits: the limit bounds memory.
        Ok(extent.len as usize)
    }

    /// Fetches and decodes a compressed cluster into `dst`, which is as long as the extent. `run` returns the
    /// number of bytes to fetch in one read. `used` is the part of `dst` that must be right, where a store can tell.
    pub(crate) fn decode_cluster(
        &self,
        worker: &mut Worker,
        extent: &Extent,
        cluster: Cluster,
        run: impl FnOnce() -> u64,
        used: Range<usize>,
        dst: &mut [u8],
    ) -> Result<()> {
        let Worker { decoder, fetched } = worker;
        let place = |e: Error| e.within(cluster_place(extent, cluster));
        let (devices, len) = (&self.devices, cluster.len as usize);
        if let Some(read) = devices.content(cluster.pos, cluster.len, used, dst) {
            return read.map_err(place);
        }
        let src = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, len, run);
        let src = src.map_err(place)?;
        let scope = if cluster.partial {
            DecodeScope::Prefix
        } else {
            DecodeScope::All
        };
        let at = (extent.offset, extent.len);
        let form = self.form();
        decode::decode(decoder, cluster.coding.into(), src, form, at, scope, dst)
            .map_err(|e| place(e.at("")))
    }

    pub(crate) fn decode(
        &self,
        worker: &mut Worker,
        coding: Coding,
        src: &[u8],
        extent: &Extent,
        scope: DecodeScope,
        dst: &mut [u8],
    ) -> Result<(), decode::Broken> {
        let at = (extent.offset, extent.len);
        decode::decode(
            &mut worker.decoder,
            coding,
            src,
            self.form(),
            at,
            scope,
            dst,
        )
    }
}

/// Describes a cluster in an error message.
pub(crate) fn cluster_place(extent: &Extent, cluster: Cluster) -> Step {
    Step::Cluster {
        range: (extent.offset, extent.end()),
        byte: cluster.pos,
        len: cluster.len,
        coding: decode::name(cluster.coding.into()),
    }
}

/// Returns the total length of `cluster` and of the clusters in `next` that are contiguous on the device, at
/// most [`FETCH_MAX`] unless `cluster` alone is longer. Unit: bytes.
fn adjacent(cluster: Cluster, next: Extents<'_>) -> u64 {
    let mut run = u64::from(cluster.len);
    for extent in next {
        match extent.map(|e| e.location) {
            Ok(Location::Cluster(c)) if cluster.pos.checked_add(run) == Some(c.pos) => {
                if run + u64::from(c.len) > FETCH_MAX {
                    break;
                }
                run += u64::from(c.len);
            }
            _ => break,
        }
    }
    run
}

/// Reader of one file, sequential or with seeks. Sequential reads decode each cluster once.
///
/// `I` borrows or shares the image. [`Read`] errors carry the crate's [`Error`] inside.
pub struct FileReader<I> {
    image: I,
    inode: Inode,
    map: FileMap,
    pos: u64,
    /// File offset of the bytes in `held`.
    held_at: u64,
    held: Vec<u8>,
    content: WorkBudget,
}

/// Length of a buffered read from data that is not compressed. Unit: bytes.
const HELD: u64 = 64 << 10;

impl Image {
    /// Returns a reader of an inode's data, positioned at its start.
    ///
    /// # Errors
    /// As for [`extents`](Self::extents).
    pub fn reader(&self, inode: &Inode) -> Result<FileReader<&Self>> {
        FileReader::new(self, inode)
    }

    /// As [`reader`](Self::reader), as a reader that shares the image instead of borrowing it.
    ///
    /// # Errors
    /// As for [`extents`](Self::extents).
    pub fn reader_shared(self: &Arc<Self>, inode: &Inode) -> Result<FileReader<Arc<Self>>> {
        FileReader::new(Arc::clone(self), inode)
    }
}

impl<I: Deref<Target = Image>> FileReader<I> {
    fn new(image: I, inode: &Inode) -> Result<Self> {
        Ok(Self {
            inode: *inode,
            map: image.map(inode)?,
            pos: 0,
            held_at: 0,
            held: Vec::new(),
            content: image.content_budget(),
            image,
        })
    }

    /// Returns the inode of the reader.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Reads into `buf` from the current position. Returns the number of bytes read, 0 only at the end.
    ///
    /// # Errors
    /// As [`Image::read_at`].
    pub fn read_some(&mut self, buf: &mut [u8]) -> Result<usize> {
        let held = self.pos.checked_sub(self.held_at);
        // Fits: compared with a length in memory.
        let from = held.filter(|at| *at < self.held.len() as u64);
        if from.is_none() {
            let end = self.pos.saturating_add(buf.len() as u64);
            let mut extents = Extents::new(
                &self.image,
                self.inode.nid(),
                self.map.clone(),
                self.pos..end,
            );
            let Some(extent) = extents.next().transpose()? else {
                return Ok(0);
            };
            let direct = whole_extents(self.pos, end, extent, extents);
            if direct > 0 {
                // Reads directly into the caller's buffer. Fits: at most its length.
                let buf = &mut buf[..direct as usize];
                let n = self
                    .image
                    .read_mapped(&self.inode, &self.map, buf, self.pos)?;
                self.content.take(n as u64)?;
                self.pos += n as u64;
                return Ok(n);
            }
            // Compressed data is buffered as a whole extent, other data in pieces of at most HELD bytes.
            let (start, len) = match extent.location {
                Location::Cluster(c) if matches!(c.coding, ClusterCoding::Compressed(_)) => {
                    (extent.offset, self.image.decoded_len(&extent)? as u64)
                }
                Location::Inline { .. } => (extent.offset, self.image.decoded_len(&extent)? as u64),
                _ => (self.pos, (extent.end() - self.pos).min(HELD)),
            };
            self.held.clear();
            // Fits: at most the limit `decoded_size`.
            self.held.resize(len as usize, 0);
            let read = self
                .image
                .read_mapped(&self.inode, &self.map, &mut self.held, start);
            if read.is_err() {
                self.held.clear();
            }
            read?;
            self.held_at = start;
        }
        let from = (self.pos - self.held_at) as usize;
        let n = buf.len().min(self.held.len() - from);
        buf[..n].copy_from_slice(&self.held[from..from + n]);
        self.content.take(n as u64)?;
        self.pos += n as u64;
        Ok(n)
    }
}

/// Returns the number of bytes from `pos` that can be read directly, without decoding part of a cluster.
/// Counts whole clusters that end before `end`, and at least [`HELD`] bytes of data that is not compressed.
fn whole_extents(pos: u64, end: u64, first: Extent, more: Extents<'_>) -> u64 {
    let mut to = pos;
    for extent in std::iter::once(Ok(first)).chain(more) {
        let Ok(extent) = extent else { break };
        let compressed = match extent.location {
            Location::Cluster(c) => matches!(c.coding, ClusterCoding::Compressed(_)),
            Location::Inline { .. } | Location::Fragment { .. } => true,
            Location::Hole | Location::Raw { .. } => false,
        };
        if extent.end() <= end && (!compressed || extent.offset >= to) {
            to = extent.end();
        } else {
            if !compressed && end - to >= HELD {
                to = end;
            }
            break;
        }
    }
    to - pos
}

impl<I: Deref<Target = Image>> Read for FileReader<I> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.read_some(buf).map_err(io::Error::other)
    }
}

impl<I: Deref<Target = Image>> Seek for FileReader<I> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let pos = match to {
            SeekFrom::Start(pos) => Some(pos),
            SeekFrom::Current(by) => self.pos.checked_add_signed(by),
            SeekFrom::End(by) => self.inode.size().checked_add_signed(by),
        };
        self.pos = pos.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.pos)
    }
}

/// Name of the address space, for errors.
impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Metabox => "metabox",
        })
    }
}
