//! Execution of one read request: maps its range to extents and fills the caller's buffer.

use super::buffer_pool::PoolBuffer;
use super::cluster_cache::{CachedCluster, Flight, Lookup};
use super::counters::Count;
use super::index::Cursor;
use super::out::OutputBuffer;
use super::policy::{self, BUFFER_MAX, Destination, Plan, PolicyInput, Strategy};
use super::reply::{ClusterReference, PushRange};
use super::server::Server;
use super::session::Session;
use crate::read::decode::{self, Broken, DecodeScope};
use crate::read::fetch::FETCH_MAX;
use crate::read::file::cluster_place;
use crate::read::{Cluster, ClusterCoding, DeviceId, Extent, Inode, Location, StorePosition};
use crate::{Error, Result};
use std::sync::Arc;
use tuff_codec::{Algorithm, Decoder};

/// Minimum length of a range that is returned by reference. Copying shorter ranges costs less than
/// another part of the reply. Unit: bytes.
const REFERENCE_LEN_MIN: usize = 16 << 10;

/// Maximum number of ranges of a reply that are returned by reference.
const REFERENCES_MAX: usize = 16;

/// Maximum number of extents that a request postpones because other threads decode them.
const LATER_MAX: usize = 4;

/// Length from which a fragment is treated like a file of its own: shorter ones are mostly read as a whole, by one request.
/// Unit: bytes.
const LONG_FRAGMENT_MIN: u64 = 128 << 10;

/// Requested part of an extent.
#[derive(Clone, Copy)]
struct ExtentPart {
    extent: Extent,
    /// Bytes of the extent before the part.
    skip: u64,
    /// Position in the caller's buffer.
    at: usize,
    take: usize,
}

impl ExtentPart {
    fn is_whole(&self) -> bool {
        self.skip == 0 && self.take as u64 == self.extent.len
    }
}

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
                    let done = self.compressed(session, cursor, part, cluster, id, out, wait);
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

    /// Fills a part of a compressed cluster. False if another thread decodes it and `wait` is
    /// false.
    #[expect(
        clippy::too_many_arguments,
        reason = "each argument is part of the request"
    )]
    fn compressed(
        &self,
        session: &mut Session,
        cursor: &Cursor<'_>,
        part: ExtentPart,
        cluster: Cluster,
        id: u8,
        out: &mut OutputBuffer<'_>,
        wait: bool,
    ) -> Result<bool> {
        let extent = part.extent;
        let len = self.image.decoded_len(&extent)?;
        let key = (cluster.pos, cluster.len, cluster.coding);
        let suits = |held: &[u8]| held.len() == len || cluster.partial && held.len() > len;
        let flight = match self.decoded.begin(key, suits, wait) {
            Lookup::Busy => return Ok(false),
            Lookup::CachedCluster(held) => {
                session.tally.add(Count::Hits, 1);
                if !out.clustered {
                    self.decoded.count(true);
                }
                self.return_cached(session, held, part, out);
                return Ok(true);
            }
            Lookup::Lead(flight) => flight,
        };
        let form = self.image.form();
        let algorithm = decode::algorithm(id).map_err(|e| e.at(""))?;
        let (position, _) = self.image.devices.locate(DeviceId::PRIMARY, cluster.pos)?;
        let name = (position, cluster.len);
        let compressed = if part.is_whole() {
            None
        } else {
            self.compressed.get(&name)
        };
        // Fits: inside the decoded length.
        let skip = part.skip as usize;
        let mut at_once = false;
        let mut seen = match out.stride {
            _ if out.clustered => false,
            // Number of further steps of the reader in this cluster.
            Some(stride) => (len - skip) as u64 / stride >= policy::steps_that_pay(algorithm),
            None => {
                let uses = policy::uses_that_pay(algorithm, out.push);
                let again = self.decoded.touched_again(&key);
                at_once = !again
                    && policy::uses_that_pay_at_once(algorithm)
                        .is_some_and(|uses| self.decoded.paid(uses));
                at_once || again && self.decoded.pays(uses)
            }
        };
        let trial = |n| policy::trial_one_in(algorithm, n);
        if seen && out.push && self.decoded.is_pushed(trial) {
            // The push decodes the cluster, so the reader gets a part without delay. If the cluster
            // is to be decoded at its first use anyway, one decode serves both. A long cluster is cached, and pushed in
            // pieces.
            seen = at_once || len > policy::BUFFER_MAX;
            session.push = Some(PushRange {
                offset: extent.offset,
                // Fits: at most the decoded length.
                len: extent.len as usize,
                step: None,
            });
        }
        let mut input = PolicyInput {
            algorithm,
            compressed: cluster.len as usize,
            decoded: len,
            skip,
            take: part.take,
            slack: out.buf.len() - part.at - part.take,
            exact: form.right_aligned && !cluster.partial,
            clustered: out.clustered,
            seen,
            fits: self.decoded.fits(len + IN_PLACE_ROOM),
            run: part.is_whole()
                && (contiguous_len(cluster, cursor) > cluster.len.into()
                    || session.worker.fetched.holds(
                        DeviceId::PRIMARY,
                        cluster.pos,
                        cluster.len as usize,
                    )),
        };
        let mut plan = policy::choose(&input, self.options.policy);
        let mut slab = None;
        if plan.destination == Destination::CachedCluster {
            slab = self.decoded.slab(match plan.strategy {
                Strategy::InPlace => Decoder::in_place_len(cluster.len as usize, len),
                _ => len,
            });
            if slab.is_none() {
                input.fits = false;
                plan = policy::choose(&input, self.options.policy);
            }
        }
        let scope = if cluster.partial {
            DecodeScope::Prefix
        } else {
            DecodeScope::All
        };
        let at = (extent.offset, extent.len);
        let corrupt = |e: Broken| e.at("");
        session.tally.decoded(
            plan.strategy,
            match plan.destination {
                _ if plan.strategy == Strategy::Gathered || plan.strategy == Strategy::InPlace => {
                    len
                }
                _ => skip + part.take,
            },
        );
        match plan {
            Plan {
                strategy: Strategy::InPlace,
                ..
            } => {
                let room = Decoder::in_place_len(cluster.len as usize, len);
                let buf = match &mut slab {
                    Some(slab) => &mut slab[..room],
                    None => &mut out.buf[part.at..part.at + room],
                };
                let src_at = room - cluster.len as usize;
                match &compressed {
                    Some(slab) => {
                        session.tally.add(Count::CompressedHits, 1);
                        buf[src_at..].copy_from_slice(&slab[..cluster.len as usize]);
                    }
                    None => {
                        let dst = &mut buf[src_at..];
                        self.fetch_into(session, DeviceId::PRIMARY, cluster.pos, dst)?;
                    }
                }
                let stream = decode::strip(&buf[src_at..], form.bits)
                    .map_err(corrupt)?
                    .len();
                session
                    .worker
                    .decoder
                    .decode_in_place(buf, stream, len)
                    .map_err(|e| corrupt(Broken::Codec(e)))?;
                match slab {
                    Some(slab) => self.cache_decoded(session, flight, slab, len, name, part, out),
                    None => self.publish_copy(flight, &out.buf[part.at..part.at + len]),
                }
            }
            Plan {
                strategy: Strategy::Gathered,
                ..
            } => {
                let dst = match &mut slab {
                    Some(slab) => &mut slab[..len],
                    None => &mut out.buf[part.at..part.at + len],
                };
                let src = self.compressed_input(session, cluster, compressed.as_deref(), cursor)?;
                let (src, decoder) = src;
                decode::decode(decoder, cluster.coding.into(), src, form, at, scope, dst)
                    .map_err(corrupt)?;
                match slab {
                    Some(slab) => self.cache_decoded(session, flight, slab, len, name, part, out),
                    None => self.publish_copy(flight, &out.buf[part.at..part.at + len]),
                }
            }
            Plan { strategy, .. } => {
                session.costly |= skip >= COSTLY;
                let end = skip + part.take;
                // A request that reaches the end of the cluster is checked like a complete decode.
                let scope = if end == len {
                    scope
                } else {
                    DecodeScope::Prefix
                };
                if out.stride.is_some() && strategy == Strategy::Buffer && compressed.is_none() {
                    // A strided reader rarely returns to a cluster, and readers of other parts need
                    // not wait for it.
                    drop(flight);
                    let guess = match algorithm {
                        Algorithm::Lz4 if end < len => guess_prefix(cluster.len as usize, end, len),
                        _ => cluster.len as usize,
                    };
                    let coding = cluster.coding.into();
                    let run = contiguous_len(cluster, cursor);
                    let fetch = (guess, run);
                    self.decode_uncached(session, cluster, fetch, end, |decoder, src, buffer| {
                        decode::decode(decoder, coding, src, form, at, scope, buffer)
                    })?;
                    out.buf[part.at..part.at + part.take]
                        .copy_from_slice(&session.buffer[skip..end]);
                    return Ok(true);
                }
                let compressed = match compressed {
                    Some(slab) => {
                        session.tally.add(Count::CompressedHits, 1);
                        slab
                    }
                    None => self.cache_compressed(session, cluster, cursor, name)?,
                };
                let src = &compressed[..cluster.len as usize];
                let dst = &mut out.buf[part.at..part.at + part.take];
                let decoder = &mut session.worker.decoder;
                if strategy == Strategy::Rolling {
                    decode_window(decoder, id, src, form, skip, dst).map_err(corrupt)?;
                } else {
                    let buffer = scratch(&mut session.buffer, end);
                    decode::decode(decoder, cluster.coding.into(), src, form, at, scope, buffer)
                        .map_err(corrupt)?;
                    dst.copy_from_slice(&buffer[skip..]);
                }
                drop(flight);
            }
        }
        Ok(true)
    }

    /// Returns the compressed bytes of a cluster for a complete decode, and the decoder.
    fn compressed_input<'s>(
        &self,
        session: &'s mut Session,
        cluster: Cluster,
        compressed: Option<&'s PoolBuffer>,
        cursor: &Cursor<'_>,
    ) -> Result<(&'s [u8], &'s mut Decoder)> {
        let (worker, tally) = (&mut session.worker, &mut session.tally);
        if let Some(slab) = compressed {
            tally.add(Count::CompressedHits, 1);
            return Ok((&slab[..cluster.len as usize], &mut worker.decoder));
        }
        let (devices, fetched) = (&self.image.devices, &mut worker.fetched);
        let (len, run) = (cluster.len as usize, || contiguous_len(cluster, cursor));
        let src = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, len, run)?;
        Ok((src, &mut worker.decoder))
    }

    /// Decodes the first `end` bytes of a cluster into the thread's buffer and caches nothing.
    /// First uses `guess` compressed bytes, then all of them if these were too few. All of them are read together with
    /// the `run` bytes that the request needs.
    fn decode_uncached(
        &self,
        session: &mut Session,
        cluster: Cluster,
        (mut guess, run): (usize, u64),
        end: usize,
        decode: impl Fn(&mut Decoder, &[u8], &mut [u8]) -> Result<(), Broken>,
    ) -> Result<()> {
        let whole = cluster.len as usize;
        let worker = &mut session.worker;
        loop {
            let (devices, fetched) = (&self.image.devices, &mut worker.fetched);
            let run = || if guess < whole { 0 } else { run };
            let src = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, guess, run)?;
            match decode(&mut worker.decoder, src, scratch(&mut session.buffer, end)) {
                Err(_) if guess < whole => guess = whole,
                done => return done.map_err(|e| Error::corrupt("", e)),
            }
        }
    }

    /// Reads a cluster that is likely to be requested again into the cache of compressed clusters. Adjacent clusters that
    /// the request needs are read with it: a second read would look sequential, and start readahead.
    fn cache_compressed(
        &self,
        session: &mut Session,
        cluster: Cluster,
        cursor: &Cursor<'_>,
        name: (StorePosition, u32),
    ) -> Result<Arc<PoolBuffer>> {
        let len = cluster.len as usize;
        let devices = &self.image.devices;
        devices.has(DeviceId::PRIMARY, cluster.pos, len as u64)?;
        let mut slab = self.decoded.slab_for_input(len);
        let fetched = &mut session.worker.fetched;
        let run = contiguous_len(cluster, cursor);
        if run > len as u64 || fetched.holds(DeviceId::PRIMARY, cluster.pos, len) {
            let bytes = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, len, || run)?;
            slab[..len].copy_from_slice(bytes);
        } else {
            self.fetch_into(session, DeviceId::PRIMARY, cluster.pos, &mut slab[..len])?;
        }
        let slab = Arc::new(slab);
        self.compressed.put(name, slab.clone(), slab.len());
        Ok(slab)
    }

    /// Reads from a device and counts the fetch.
    fn fetch_into(
        &self,
        session: &mut Session,
        device: DeviceId,
        pos: u64,
        dst: &mut [u8],
    ) -> Result<()> {
        session.tally.add(Count::Fetches, 1);
        session.tally.add(Count::Fetched, dst.len() as u64);
        self.image.devices.read(device, pos, dst)
    }

    /// Caches a decoded cluster and returns a part of it.
    #[expect(
        clippy::too_many_arguments,
        reason = "each argument is part of the request"
    )]
    fn cache_decoded(
        &self,
        session: &mut Session,
        flight: Flight<'_>,
        slab: PoolBuffer,
        len: usize,
        name: (StorePosition, u32),
        part: ExtentPart,
        out: &mut OutputBuffer<'_>,
    ) {
        let held = flight.publish(slab, len, false);
        self.compressed.remove(&name);
        // Uses of pushed clusters are not visible to the server.
        if !out.clustered && session.push.is_none() {
            self.decoded.count(false);
        }
        self.return_cached(session, held, part, out);
    }

    /// Publishes a copy of decoded bytes if other threads wait for the cluster.
    fn publish_copy(&self, flight: Flight<'_>, bytes: &[u8]) {
        if flight.is_awaited()
            && let Some(mut slab) = self.decoded.slab(bytes.len())
        {
            slab[..bytes.len()].copy_from_slice(bytes);
            flight.publish(slab, bytes.len(), false);
        }
    }

    fn return_cached(
        &self,
        session: &mut Session,
        held: Arc<CachedCluster>,
        part: ExtentPart,
        out: &mut OutputBuffer<'_>,
    ) {
        // Fits: inside the decoded length.
        let from = part.skip as usize;
        self.decoded.touch(&held, from, part.take);
        if out.by_reference
            && part.take >= REFERENCE_LEN_MIN
            && session.references.len() < REFERENCES_MAX
        {
            let at = out.base + part.at;
            session.tally.add(Count::ZeroCopy, part.take as u64);
            session.references.push(ClusterReference {
                at: at..at + part.take,
                held,
                from,
            });
        } else {
            out.buf[part.at..part.at + part.take]
                .copy_from_slice(&held.bytes()[from..from + part.take]);
        }
    }
}

/// Number of unneeded decoded bytes before the requested ones from which a request counts as
/// costly: decoding them takes longer than a request through a mount. Unit: bytes.
const COSTLY: usize = 16 << 10;

/// Estimates how many compressed bytes contain the first `end` decoded bytes: the proportional
/// share, an eighth more, and a block of padding.
fn guess_prefix(compressed: usize, end: usize, decoded: usize) -> usize {
    // Lengths are below 2^32 and 2^24: no overflow in 64 bits.
    let share = (compressed as u64 * end as u64 / decoded.max(1) as u64) as usize;
    (share + share / 8)
        .next_multiple_of(4096)
        .saturating_add(4096)
        .min(compressed)
}

/// Upper bound of the additional buffer for in-place decoding. Unit: bytes.
const IN_PLACE_ROOM: usize = 8 << 10;

/// Returns a buffer of `len` bytes with unspecified content.
fn scratch(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Decodes `dst.len()` bytes from decoded byte `skip` on, through a window.
fn decode_window(
    decoder: &mut Decoder,
    id: u8,
    src: &[u8],
    form: decode::Form,
    skip: usize,
    dst: &mut [u8],
) -> Result<(), Broken> {
    let algorithm = decode::algorithm(id)?;
    let stream = if form.right_aligned {
        decode::strip(src, form.bits)?
    } else {
        src
    };
    decoder
        .decode_part(algorithm, stream, skip, dst)
        .map_err(Broken::Codec)
}

/// Returns the length of the contiguous run of clusters from `cluster` on that the request needs,
/// at most `FETCH_MAX`. Unit: bytes on disk.
fn contiguous_len(cluster: Cluster, cursor: &Cursor<'_>) -> u64 {
    let mut run = u64::from(cluster.len);
    for extent in cursor.ahead() {
        let Location::Cluster(c) = extent.location else {
            break;
        };
        let more = run + u64::from(c.len);
        if extent.offset >= cursor.until()
            || cluster.pos.checked_add(run) != Some(c.pos)
            || more > FETCH_MAX
        {
            break;
        }
        run = more;
    }
    run
}
