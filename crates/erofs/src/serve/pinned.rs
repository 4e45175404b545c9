//! Decoding the hottest ranges of a profile in advance and pinning them in the cache.

use super::buffer_pool::BufferPool;
use super::cluster_cache::Lookup;
use super::profile::Profile;
use super::server::Server;
use super::session::Session;
use crate::read::decode::{self, DecodeScope};
use crate::read::{Cluster, ClusterCoding, DeviceId, Extent, Inode, Location};
use crate::{Error, Result};

/// Result of pinning a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinStatistics {
    /// Number of pinned clusters.
    pub clusters: u64,
    /// Memory of the pinned clusters. Unit: bytes.
    pub bytes: u64,
    /// Number of uses whose file is missing, damaged, or shorter than the use.
    pub missing: u64,
    /// Number of uses that did not fit into the budget, at least in part.
    pub left_out: u64,
}

impl Server {
    /// Decodes the hottest ranges of a profile and pins them for the lifetime of the server. They
    /// take at most `budget` bytes, and at most half of the cache for clusters. Uncompressed data
    /// is not pinned.
    ///
    /// Missing and damaged files are counted and do not fail the call. A request for a damaged file
    /// reports the error.
    pub fn pin(&self, session: &mut Session, profile: &Profile, budget: usize) -> PinStatistics {
        let mut pinned = PinStatistics::default();
        let budget = budget.min(self.decoded.limit() / 2);
        for hot in profile.hottest() {
            let inode = self.image.resolve(&hot.path);
            let Some(inode) = inode.ok().filter(|i| i.has_data() && hot.offset < i.size()) else {
                pinned.missing += 1;
                continue;
            };
            let end = hot.offset.saturating_add(hot.len).min(inode.size());
            match self.pin_range(session, &inode, (hot.offset, end), budget, &mut pinned) {
                Ok(true) => {}
                Ok(false) => pinned.left_out += 1,
                Err(_) => pinned.missing += 1,
            }
        }
        // The fetch counters cover requests only.
        let _ = session.worker.fetched.taken();
        pinned
    }

    /// Pins a range of a file. False if the budget was exhausted before its end.
    fn pin_range(
        &self,
        session: &mut Session,
        inode: &Inode,
        (mut at, end): (u64, u64),
        budget: usize,
        pinned: &mut PinStatistics,
    ) -> Result<bool> {
        let mut cursor = self.index.cursor(&self.image, inode, end)?;
        let mut all = true;
        while at < end {
            let extent = cursor.extent(at)?;
            let (skip, stop) = (at - extent.offset, extent.end().min(end));
            all &= match extent.location {
                Location::Cluster(cluster)
                    if matches!(cluster.coding, ClusterCoding::Compressed(_)) =>
                {
                    self.pin_cluster(session, &extent, cluster, budget, pinned)
                        .map_err(|e| e.within(inode.place()))?
                }
                Location::Fragment { offset } => {
                    let (packed, _) = self.image.packed_map()?;
                    let from = offset.saturating_add(skip);
                    let to = from.saturating_add(stop - at);
                    if to > packed.size() {
                        return Err(Error::corrupt(
                            inode.place(),
                            "a fragment extends past the end of the packed inode",
                        ));
                    }
                    // One level of recursion: the packed inode has no fragments.
                    self.pin_range(session, packed, (from, to), budget, pinned)?
                }
                _ => true,
            };
            at = stop;
        }
        Ok(all)
    }

    fn pin_cluster(
        &self,
        session: &mut Session,
        extent: &Extent,
        cluster: Cluster,
        budget: usize,
        pinned: &mut PinStatistics,
    ) -> Result<bool> {
        let len = self.image.decoded_len(extent)?;
        let key = (cluster.pos, cluster.len, cluster.coding);
        let flight = match self.decoded.begin(key, |held| held.len() >= len, true) {
            Lookup::CachedCluster(held) if held.is_pinned() => return Ok(true),
            // Cached but not pinned: decode it again, as it may be evicted at any time.
            Lookup::CachedCluster(_) => match self.decoded.begin(key, |_| false, true) {
                Lookup::Lead(flight) => flight,
                _ => return Ok(false),
            },
            Lookup::Lead(flight) => flight,
            Lookup::Busy => return Ok(false),
        };
        if self.decoded.pinned() + BufferPool::cost(len) > budget {
            return Ok(false);
        }
        let Some(mut slab) = self.decoded.slab(len) else {
            return Ok(false);
        };
        // The buffer may be longer than `BufferPool::cost` of the requested length.
        if self.decoded.pinned() + slab.len() > budget {
            return Ok(false);
        }
        let worker = &mut session.worker;
        let (devices, fetched) = (&self.image.devices, &mut worker.fetched);
        let stored = cluster.len as usize;
        let src = fetched.get(devices, DeviceId::PRIMARY, cluster.pos, stored, || 0)?;
        let scope = if cluster.partial {
            DecodeScope::Prefix
        } else {
            DecodeScope::All
        };
        let (form, at) = (self.image.form(), (extent.offset, extent.len));
        let decoder = &mut worker.decoder;
        decode::decode(
            decoder,
            cluster.coding.into(),
            src,
            form,
            at,
            scope,
            &mut slab[..len],
        )
        .map_err(|e| Error::corrupt(crate::read::file::cluster_place(extent, cluster), e))?;
        pinned.clusters += 1;
        pinned.bytes += slab.len() as u64;
        flight.publish(slab, len, true);
        Ok(true)
    }
}
