//! Execution of one read request: maps its range to extents and fills the caller's buffer.

use super::compressed::{ClusterRequest, ExtentPart, decode_window, scratch};
use super::index::Cursor;
use super::out::OutputBuffer;
use super::policy::{BUFFER_MAX, Strategy};
use super::server::Server;
use super::session::Session;
use crate::read::decode::{self, Broken, DecodeScope};
use crate::read::file::cluster_place;
use crate::read::{ClusterCoding, DeviceId, Inode, Location};
use crate::{Error, Result};

/// Maximum number of extents that a request postpones because other threads decode them.
const LATER_MAX: usize = 4;

/// Length from which a fragment is treated like a file of its own: shorter ones are mostly read as a whole, by one request.
/// Unit: bytes.
const LONG_FRAGMENT_MIN: u64 = 128 << 10;

impl Server {
    /// Fills `out` with data of an inode from byte `offset`. The whole range lies inside the file.
    pub(crate) fn fill(
        &self,
        session: &mut Session,
        inode: &Inode,
        offset: u64,
        out: &mut OutputBuffer<'_>,
    ) -> Result<()> {
        // Fits: inside the file.
        let end = offset + out.len as u64;
        let mut cursor = self.index.cursor(&self.image, inode, end)?;
        let mut later: [Option<ExtentPart>; LATER_MAX] = [None; LATER_MAX];
        let mut waiting = 0;
        let mut at = 0;
        while at < out.len {
            let extent = cursor.extent(offset + at as u64)?;
            let skip = offset + at as u64 - extent.offset;
            // Fits: at most the requested length.
            let take = (extent.len - skip).min((out.len - at) as u64) as usize;
            let part = ExtentPart {
                extent,
                skip,
                at,
                take,
            };
            let done = self
                .part(session, &mut cursor, part, out, waiting == LATER_MAX)
                .map_err(|e| e.within(inode.place()))?;
            match done {
                Some(n) => at += n,
                None => {
                    later[waiting] = Some(part);
                    waiting += 1;
                    at += take;
                }
            }
        }
        for part in later.into_iter().flatten() {
            let whole = std::mem::take(&mut out.buf);
            // Bytes after the part are final and must not be overwritten.
            let mut own = OutputBuffer {
                buf: &mut whole[..part.at + part.take],
                ..*out
            };
            let done = self.part(session, &mut cursor, part, &mut own, true);
            out.buf = whole;
            done.map_err(|e| e.within(inode.place()))?;
        }
        if waiting > 0 {
            session
                .references
                .sort_unstable_by_key(|reference| reference.at.start);
        }
        Ok(())
    }

    /// Fills one part. Returns the number of bytes filled, which is more than the part if adjacent
    /// extents were read together. `None` if another thread decodes the cluster and `wait` is
    /// false.
    fn part(
        &self,
        session: &mut Session,
        cursor: &mut Cursor<'_>,
        part: ExtentPart,
        out: &mut OutputBuffer<'_>,
        wait: bool,
    ) -> Result<Option<usize>> {
        let ExtentPart {
            extent,
            skip,
            at,
            take,
        } = part;
        match extent.location {
            Location::Hole => out.buf[at..at + take].fill(0),
            Location::Raw { device, pos } => {
                let pos = pos.saturating_add(skip);
                self.fetch_into(session, device, pos, &mut out.buf[at..at + take])?;
            }
            Location::Fragment { offset } => {
                self.fragment(session, offset.saturating_add(skip), part, out)?
            }
            Location::Inline { .. } => self.inline(session, part, &mut out.buf[at..at + take])?,
            Location::Cluster(cluster) => match cluster.coding {
                ClusterCoding::Stored => {
                    // Extents that are adjacent in the file are mostly adjacent on the device, too.
                    let pos = cluster.pos.saturating_add(skip);
                    let mut n = take;
                    for next in cursor.ahead() {
                        match next.location {
                            Location::Cluster(c)
                                if c.coding == ClusterCoding::Stored
                                    && n < out.len - at
                                    && pos.checked_add(n as u64) == Some(c.pos) =>
                            {
                                // Fits: at most the requested length.
                                n += next.len.min((out.len - at - n) as u64) as usize;
                            }
                            _ => break,
                        }
                    }
                    self.fetch_into(session, DeviceId::PRIMARY, pos, &mut out.buf[at..at + n])?;
                    return Ok(Some(n));
                }
                ClusterCoding::Interlaced => {
                    let bits = self.image.superblock().block_bits;
                    let (la, len, plen) = (extent.offset, extent.len, u64::from(cluster.len));
                    for (from, to) in decode::interlaced(bits, la, len, plen, skip, take as u64) {
                        // Fits: inside the part.
                        let dst = &mut out.buf[at + to.start as usize..at + to.end as usize];
                        let pos = cluster.pos.saturating_add(from.start);
                        self.fetch_into(session, DeviceId::PRIMARY, pos, dst)?;
                    }
                }
                ClusterCoding::Compressed(id) => {
                    let place = |e: Error| e.within(cluster_place(&extent, cluster));
                    let request = ClusterRequest {
                        cursor,
                        part,
                        cluster,
                        id,
                        wait,
                    };
                    let done = self.compressed(session, &request, out);
                    return Ok(done.map_err(place)?.then_some(take));
                }
            },
        }
        Ok(Some(take))
    }

    fn fragment(
        &self,
        session: &mut Session,
        from: u64,
        part: ExtentPart,
        out: &mut OutputBuffer<'_>,
    ) -> Result<()> {
        let (inode, _) = self.image.packed_map()?;
        let ExtentPart { at, take, .. } = part;
        if from
            .checked_add(take as u64)
            .is_none_or(|end| end > inode.size())
        {
            return Err(Error::corrupt(
                format_args!("fragment at {from}"),
                format_args!(
                    "{take} bytes reach past the packed inode's end, {}",
                    inode.size()
                ),
            ));
        }
        // Short files that are read together have their fragments together.
        let is_long = part.extent.len >= LONG_FRAGMENT_MIN;
        let mut inner = OutputBuffer {
            buf: &mut out.buf[at..],
            len: take,
            base: out.base + at,
            by_reference: out.by_reference,
            push: out.push && is_long,
            stride: out.stride.filter(|_| is_long),
            clustered: out.clustered || !is_long,
        };
        let other = session.push.take();
        // One level of recursion: the packed inode has no fragments of its own.
        let done = self.fill(session, inode, from, &mut inner);
        let pushed = session.push.take();
        // Fits: the part begins at `from`.
        let pushed = pushed.and_then(|range| range.in_fragment(from - part.skip, &part.extent));
        session.push = pushed.or(other);
        done
    }

    fn inline(&self, session: &mut Session, part: ExtentPart, dst: &mut [u8]) -> Result<()> {
        let Location::Inline {
            space,
            pos,
            len,
            coding,
        } = part.extent.location
        else {
            unreachable!("the caller matched")
        };
        let src = self.image.bytes(space, pos, len as usize)?;
        let broken = |e: Broken| {
            let place = format_args!("inline data at byte {pos:#x} ({})", decode::name(coding));
            e.at(place)
        };
        let form = self.image.form();
        let at = (part.extent.offset, part.extent.len);
        let decoded_len = self.image.decoded_len(&part.extent)?;
        let decoder = &mut session.worker.decoder;
        let whole = part.is_whole();
        session.tally.decoded(Strategy::Buffer, dst.len());
        if whole {
            return decode::decode(decoder, coding, &src, form, at, DecodeScope::All, dst)
                .map_err(broken);
        }
        // Fits: below the decoded length, which fits in memory.
        let end = part.skip as usize + dst.len();
        if end > BUFFER_MAX
            && let tuff_format::cluster::Coding::Compressed(id) = coding
        {
            return decode_window(decoder, id, &src, form, part.skip as usize, dst).map_err(broken);
        }
        // Decode everything unless it is long, to detect damage after the part.
        let (end, scope) = if decoded_len <= BUFFER_MAX {
            (decoded_len, DecodeScope::All)
        } else {
            (end, DecodeScope::Prefix)
        };
        let buffer = scratch(&mut session.buffer, end);
        decode::decode(decoder, coding, &src, form, at, scope, buffer).map_err(broken)?;
        dst.copy_from_slice(&buffer[part.skip as usize..][..dst.len()]);
        Ok(())
    }
}
