//! Parts of compressed clusters: lookup in the caches, choice of a strategy, and decoding by it.

use super::buffer_pool::PoolBuffer;
use super::cluster_cache::{CachedCluster, Flight, Lookup};
use super::counters::Count;
use super::index::Cursor;
use super::out::OutputBuffer;
use super::policy::{self, Destination, Plan, PolicyInput, Strategy};
use super::reply::{ClusterReference, PushRange};
use super::server::Server;
use super::session::Session;
use crate::read::decode::{self, Broken, DecodeScope};
use crate::read::fetch::FETCH_MAX;
use crate::read::{Cluster, DeviceId, Extent, Location, StorePosition};
use crate::{Error, Result};
use std::sync::Arc;
use tuff_codec::{Algorithm, Decoder};

/// Minimum length of a range that is returned by reference. Copying shorter ranges costs less than
/// another part of the reply. Unit: bytes.
const REFERENCE_LEN_MIN: usize = 16 << 10;

/// Maximum number of ranges of a reply that are returned by reference.
const REFERENCES_MAX: usize = 16;

/// Requested part of an extent.
#[derive(Clone, Copy)]
pub(super) struct ExtentPart {
    pub(super) extent: Extent,
    /// Bytes of the extent before the part.
    pub(super) skip: u64,
    /// Position in the caller's buffer.
    pub(super) at: usize,
    pub(super) take: usize,
}

impl ExtentPart {
    pub(super) fn is_whole(&self) -> bool {
        self.skip == 0 && self.take as u64 == self.extent.len
    }
}

/// Request for a part of a compressed cluster.
pub(super) struct ClusterRequest<'a, 'i> {
    pub(super) cursor: &'a Cursor<'i>,
    pub(super) part: ExtentPart,
    pub(super) cluster: Cluster,
    /// Number of the algorithm in the image.
    pub(super) id: u8,
    /// Waits if another thread decodes the cluster.
    pub(super) wait: bool,
}

/// Request for a cluster of which no decoded copy is cached.
struct Miss<'a, 'i> {
    request: &'a ClusterRequest<'a, 'i>,
    flight: Flight<'a>,
    /// Decoded length. Unit: bytes.
    len: usize,
    algorithm: Algorithm,
    form: decode::Form,
    /// Key of the compressed bytes.
    name: (StorePosition, u32),
    /// Cached compressed bytes.
    compressed: Option<Arc<PoolBuffer>>,
}

impl Miss<'_, '_> {
    /// Compressed length. Unit: bytes.
    fn compressed_len(&self) -> usize {
        self.request.cluster.len as usize
    }

    /// Position of the part in the decoded cluster. Unit: bytes.
    fn skip(&self) -> usize {
        // Fits: inside the decoded length.
        self.request.part.skip as usize
    }

    /// Scope of a decode up to the end of the cluster.
    fn scope(&self) -> DecodeScope {
        match self.request.cluster.partial {
            true => DecodeScope::Prefix,
            false => DecodeScope::All,
        }
    }

    fn decode(
        &self,
        decoder: &mut Decoder,
        src: &[u8],
        scope: DecodeScope,
        dst: &mut [u8],
    ) -> Result<(), Broken> {
        let extent = &self.request.part.extent;
        let at = (extent.offset, extent.len);
        let coding = self.request.cluster.coding.into();
        decode::decode(decoder, coding, src, self.form, at, scope, dst)
    }
}

impl Server {
    /// Fills a part of a compressed cluster. False if another thread decodes it and the request does not wait.
    pub(super) fn compressed(
        &self,
        session: &mut Session,
        request: &ClusterRequest<'_, '_>,
        out: &mut OutputBuffer<'_>,
    ) -> Result<bool> {
        let (part, cluster) = (request.part, request.cluster);
        let len = self.image.decoded_len(&part.extent)?;
        let key = (cluster.pos, cluster.len, cluster.coding);
        let suits = |held: &[u8]| held.len() == len || cluster.partial && held.len() > len;
        let flight = match self.decoded.begin(key, suits, request.wait) {
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
        let algorithm = decode::algorithm(request.id).map_err(|e| e.at(""))?;
        let (position, _) = self.image.devices.locate(DeviceId::PRIMARY, cluster.pos)?;
        let name = (position, cluster.len);
        let miss = Miss {
            request,
            flight,
            len,
            algorithm,
            form: self.image.form(),
            name,
            compressed: match part.is_whole() {
                true => None,
                false => self.compressed.get(&name),
            },
        };
        let (plan, slab) = self.plan(session, &miss, out);
        let decoded = match plan.strategy {
            Strategy::Gathered | Strategy::InPlace => len,
            Strategy::Buffer | Strategy::Rolling => miss.skip() + part.take,
        };
        session.tally.decoded(plan.strategy, decoded);
        match plan.strategy {
            Strategy::InPlace => self.decode_in_place(session, miss, slab, out)?,
            Strategy::Gathered => self.decode_gathered(session, miss, slab, out)?,
            strategy => self.decode_part(session, miss, strategy, out)?,
        }
        Ok(true)
    }

    /// Chooses the strategy, and takes the buffer of a cluster that is to be cached.
    fn plan(
        &self,
        session: &mut Session,
        miss: &Miss<'_, '_>,
        out: &OutputBuffer<'_>,
    ) -> (Plan, Option<PoolBuffer>) {
        let (part, cluster, len) = (miss.request.part, miss.request.cluster, miss.len);
        let mut input = PolicyInput {
            algorithm: miss.algorithm,
            compressed: miss.compressed_len(),
            decoded: len,
            skip: miss.skip(),
            take: part.take,
            slack: out.buf.len() - part.at - part.take,
            exact: miss.form.right_aligned && !cluster.partial,
            clustered: out.clustered,
            seen: self.is_worth_caching(session, miss, out),
            fits: self.decoded.fits(len + IN_PLACE_ROOM),
            run: part.is_whole()
                && (contiguous_len(cluster, miss.request.cursor) > cluster.len.into()
                    || session.worker.fetched.holds(
                        DeviceId::PRIMARY,
                        cluster.pos,
                        cluster.len as usize,
                    )),
        };
        let plan = policy::choose(&input, self.options.policy);
        if plan.destination != Destination::CachedCluster {
            return (plan, None);
        }
        let slab = self.decoded.slab(match plan.strategy {
            Strategy::InPlace => Decoder::in_place_len(miss.compressed_len(), len),
            _ => len,
        });
        if slab.is_some() {
            return (plan, slab);
        }
        input.fits = false;
        (policy::choose(&input, self.options.policy), None)
    }

    /// Returns true if the cluster is expected to be used often enough that caching it pays.
    fn is_worth_caching(
        &self,
        session: &mut Session,
        miss: &Miss<'_, '_>,
        out: &OutputBuffer<'_>,
    ) -> bool {
        let (cluster, extent) = (miss.request.cluster, miss.request.part.extent);
        let algorithm = miss.algorithm;
        let mut at_once = false;
        let seen = match out.stride {
            _ if out.clustered => false,
            // Number of further steps of the reader in this cluster.
            Some(stride) => {
                (miss.len - miss.skip()) as u64 / stride >= policy::steps_that_pay(algorithm)
            }
            None => {
                let uses = policy::uses_that_pay(algorithm, out.push);
                let key = (cluster.pos, cluster.len, cluster.coding);
                let again = self.decoded.touched_again(&key);
                at_once = !again
                    && policy::uses_that_pay_at_once(algorithm)
                        .is_some_and(|uses| self.decoded.paid(uses));
                at_once || again && self.decoded.pays(uses)
            }
        };
        let trial = |n| policy::trial_one_in(algorithm, n);
        if !(seen && out.push && self.decoded.is_pushed(trial)) {
            return seen;
        }
        session.push = Some(PushRange {
            offset: extent.offset,
            // Fits: at most the decoded length.
            len: extent.len as usize,
            step: None,
        });
        // The push decodes the cluster, so the reader gets a part without delay. If the cluster is to be decoded at its
        // first use anyway, one decode serves both. A long cluster is cached, and pushed in pieces.
        at_once || miss.len > policy::BUFFER_MAX
    }

    /// Decodes a complete cluster in the buffer that its compressed bytes were read into.
    fn decode_in_place(
        &self,
        session: &mut Session,
        miss: Miss<'_, '_>,
        mut slab: Option<PoolBuffer>,
        out: &mut OutputBuffer<'_>,
    ) -> Result<()> {
        let (at, len) = (miss.request.part.at, miss.len);
        let room = Decoder::in_place_len(miss.compressed_len(), len);
        let buf = match &mut slab {
            Some(slab) => &mut slab[..room],
            None => &mut out.buf[at..at + room],
        };
        let src_at = room - miss.compressed_len();
        let src = &mut buf[src_at..];
        match &miss.compressed {
            Some(compressed) => {
                session.tally.add(Count::CompressedHits, 1);
                src.copy_from_slice(&compressed[..miss.compressed_len()]);
            }
            None => {
                let pos = miss.request.cluster.pos;
                self.fetch_into(session, DeviceId::PRIMARY, pos, src)?;
            }
        }
        let stream = decode::strip(src, miss.form.bits).map_err(|e| e.at(""))?;
        let stream = stream.len();
        let decoder = &mut session.worker.decoder;
        let done = decoder.decode_in_place(buf, stream, len);
        done.map_err(|e| Broken::Codec(e).at(""))?;
        self.finish(session, miss, slab, out);
        Ok(())
    }

    /// Decodes a complete cluster from compressed bytes that may be read together with those of its neighbours.
    fn decode_gathered(
        &self,
        session: &mut Session,
        miss: Miss<'_, '_>,
        mut slab: Option<PoolBuffer>,
        out: &mut OutputBuffer<'_>,
    ) -> Result<()> {
        let at = miss.request.part.at;
        let dst = match &mut slab {
            Some(slab) => &mut slab[..miss.len],
            None => &mut out.buf[at..at + miss.len],
        };
        let (len, cluster) = (miss.compressed_len(), miss.request.cluster);
        let worker = &mut session.worker;
        let src = match &miss.compressed {
            Some(compressed) => {
                session.tally.add(Count::CompressedHits, 1);
                &compressed[..len]
            }
            None => {
                let run = || contiguous_len(cluster, miss.request.cursor);
                let devices = &self.image.devices;
                worker
                    .fetched
                    .get(devices, DeviceId::PRIMARY, cluster.pos, len, run)?
            }
        };
        miss.decode(&mut worker.decoder, src, miss.scope(), dst)
            .map_err(|e| e.at(""))?;
        self.finish(session, miss, slab, out);
        Ok(())
    }

    /// Decodes a cluster up to the end of the requested part, and caches its compressed bytes.
    fn decode_part(
        &self,
        session: &mut Session,
        mut miss: Miss<'_, '_>,
        strategy: Strategy,
        out: &mut OutputBuffer<'_>,
    ) -> Result<()> {
        let (part, skip) = (miss.request.part, miss.skip());
        session.costly |= skip >= COSTLY;
        let end = skip + part.take;
        // A request that reaches the end of the cluster is checked like a complete decode.
        let scope = match end == miss.len {
            true => miss.scope(),
            false => DecodeScope::Prefix,
        };
        let dst = &mut out.buf[part.at..part.at + part.take];
        let compressed = match miss.compressed.take() {
            Some(compressed) => {
                session.tally.add(Count::CompressedHits, 1);
                compressed
            }
            None if out.stride.is_some() && strategy == Strategy::Buffer => {
                self.decode_uncached(session, miss, end, scope)?;
                dst.copy_from_slice(&session.buffer[skip..end]);
                return Ok(());
            }
            None => self.cache_compressed(session, &miss)?,
        };
        let src = &compressed[..miss.compressed_len()];
        let decoder = &mut session.worker.decoder;
        if strategy == Strategy::Rolling {
            return decode_window(decoder, miss.request.id, src, miss.form, skip, dst)
                .map_err(|e| e.at(""));
        }
        let buffer = scratch(&mut session.buffer, end);
        miss.decode(decoder, src, scope, buffer)
            .map_err(|e| e.at(""))?;
        dst.copy_from_slice(&buffer[skip..]);
        Ok(())
    }

    /// Decodes the first `end` bytes of a cluster into the thread's buffer and caches nothing: a strided reader rarely
    /// returns to a cluster, and readers of other parts need not wait for it. First uses a part of the compressed bytes,
    /// then all of them if these were too few. All of them are read together with those of the neighbours.
    fn decode_uncached(
        &self,
        session: &mut Session,
        miss: Miss<'_, '_>,
        end: usize,
        scope: DecodeScope,
    ) -> Result<()> {
        let (cluster, whole) = (miss.request.cluster, miss.compressed_len());
        let mut guess = match miss.algorithm {
            Algorithm::Lz4 if end < miss.len => guess_prefix(whole, end, miss.len),
            _ => whole,
        };
        let Miss {
            request,
            flight,
            form,
            ..
        } = miss;
        drop(flight);
        let extent = request.part.extent;
        let (coding, at) = (cluster.coding.into(), (extent.offset, extent.len));
        let neighbours = contiguous_len(cluster, request.cursor);
        let worker = &mut session.worker;
        loop {
            let (devices, fetched) = (&self.image.devices, &mut worker.fetched);
            let run = || if guess < whole { 0 } else { neighbours };
            let src = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, guess, run)?;
            let buffer = scratch(&mut session.buffer, end);
            match decode::decode(&mut worker.decoder, coding, src, form, at, scope, buffer) {
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
        miss: &Miss<'_, '_>,
    ) -> Result<Arc<PoolBuffer>> {
        let (cluster, len) = (miss.request.cluster, miss.compressed_len());
        let devices = &self.image.devices;
        devices.has(DeviceId::PRIMARY, cluster.pos, len as u64)?;
        let mut slab = self.decoded.slab_for_input(len);
        let fetched = &mut session.worker.fetched;
        let run = contiguous_len(cluster, miss.request.cursor);
        if run > len as u64 || fetched.holds(DeviceId::PRIMARY, cluster.pos, len) {
            let bytes = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, len, || run)?;
            slab[..len].copy_from_slice(bytes);
        } else {
            self.fetch_into(session, DeviceId::PRIMARY, cluster.pos, &mut slab[..len])?;
        }
        let slab = Arc::new(slab);
        self.compressed.put(miss.name, slab.clone(), slab.len());
        Ok(slab)
    }

    /// Reads from a device and counts the fetch.
    pub(super) fn fetch_into(
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

    /// Caches a decoded cluster in `slab` and returns the part of it. Without a slab, the cluster is in the caller's buffer,
    /// and a copy of it is published if other threads wait for it.
    fn finish(
        &self,
        session: &mut Session,
        miss: Miss<'_, '_>,
        slab: Option<PoolBuffer>,
        out: &mut OutputBuffer<'_>,
    ) {
        let (part, len) = (miss.request.part, miss.len);
        if let Some(slab) = slab {
            let held = miss.flight.publish(slab, len, false);
            self.compressed.remove(&miss.name);
            // Uses of pushed clusters are not visible to the server.
            if !out.clustered && session.push.is_none() {
                self.decoded.count(false);
            }
            self.return_cached(session, held, part, out);
        } else if miss.flight.is_awaited()
            && let Some(mut slab) = self.decoded.slab(len)
        {
            slab[..len].copy_from_slice(&out.buf[part.at..part.at + len]);
            miss.flight.publish(slab, len, false);
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
pub(super) fn scratch(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Decodes `dst.len()` bytes from decoded byte `skip` on, through a window.
pub(super) fn decode_window(
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
