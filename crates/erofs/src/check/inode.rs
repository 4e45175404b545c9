//! Rules of one inode and its data.

use super::finding::{Rule, Severity};
use super::walk::Walk;
use crate::read::map::{ClusterCoding, Extents, FileMap, Location};
use crate::read::{DeviceId, FileType, Inode, Space};
use crate::{Error, Place};
use tuff_format::cluster::header::{BIG_1, BIG_2};
use tuff_format::cluster::{Form, HeadKind, Lcluster};
use tuff_format::inode::Layout;
use tuff_format::units::round_up;

impl Walk<'_, '_> {
    /// Checks the rules that need only the inode, its attributes and its data.
    pub(super) fn check_inode(&mut self, inode: &Inode) {
        let shared = self.shared;
        let (raw, kind) = (inode.raw(), inode.file_type());
        let used = &mut self.marks.used;
        used.metabox |= inode.space() == Space::Metabox;
        used.bit48 |= raw.flag4 || !raw.extended && raw.mtime != 0;
        if inode.mtime().1 >= 1_000_000_000 {
            let (_, nanoseconds) = inode.mtime();
            let what = format_args!("{nanoseconds} nanoseconds, expected below 10^9");
            shared.error(Rule::Time, self.place(inode), what);
        }
        match kind {
            FileType::Symlink if inode.size() > 4095 => shared.error(
                Rule::Symlink,
                self.place(inode),
                format_args!("target of {} bytes, expected at most 4095", inode.size()),
            ),
            FileType::Symlink => {
                if let Err(e) = self.image.readlink(inode) {
                    shared.failed(Rule::Symlink, Place::path(self.path()), &e);
                }
            }
            FileType::File | FileType::Dir => {}
            _ => {
                if inode.size() != 0 {
                    let size = inode.size();
                    let what = format_args!("{size} bytes of data, expected none");
                    shared.error(Rule::SpecialFile, self.place(inode), what);
                }
            }
        }
        self.check_xattrs(inode);
        let map = match self.image.map_once(inode) {
            Ok(map) => map,
            Err(e) => {
                self.take(inode, inode.payload_position());
                return shared.failed(Rule::Index, Place::path(self.path()), &e);
            }
        };
        self.take(inode, end_of(inode, &map));
        self.check_data(inode, &map);
    }

    /// Marks the bytes of an inode and of its inline metadata.
    fn take(&mut self, inode: &Inode, end: u64) {
        let map = match inode.space() {
            Space::Image => &mut self.marks.image,
            Space::Metabox => &mut self.marks.metabox,
        };
        if let Some(at) = map.take(inode.position(), end) {
            self.shared.error(
                Rule::Overlap,
                self.place(inode),
                format_args!("byte {at:#x} also belongs to another inode"),
            );
        }
    }

    fn check_data(&mut self, inode: &Inode, map: &FileMap) {
        let shared = self.shared;
        self.note_features(inode, map);
        let verified = map.clusters().map(|c| c.map.verify_index(&c.index));
        if let Some(Err(e)) = verified {
            let error = Error::format(inode.place(), e).within(Place::path(self.path()));
            return shared.failed(Rule::Index, "", &error);
        }
        let bits = self.image.superblock().block_bits;
        let hidden = self.image.packed().is_some_and(|p| p.nid() == inode.nid());
        let packed_size = self.image.packed().map_or(0, Inode::size);
        let (mut blocks, mut next) = (0, 0);
        for extent in Extents::new(self.image, inode.nid(), map.clone(), 0..inode.size()) {
            let extent = match extent {
                Ok(extent) => extent,
                Err(e) => return shared.failed(Rule::Index, Place::path(self.path()), &e),
            };
            if extent.offset != next {
                return shared.error(
                    Rule::Index,
                    self.place(inode),
                    format_args!(
                        "an extent starts at file offset {}, expected {next}",
                        extent.offset
                    ),
                );
            }
            next = extent.end();
            let used = &mut self.marks.used;
            match extent.location {
                Location::Cluster(c) => {
                    blocks += bits.count(c.len.into());
                    used.partial |= c.partial;
                    used.interlaced |= c.coding == ClusterCoding::Interlaced;
                    if c.coding == ClusterCoding::Compressed(0) {
                        used.lz4_len = used.lz4_len.max(c.len.into());
                    }
                    used.big_cluster |= u64::from(c.len) > bits.size();
                }
                Location::Fragment { offset } => {
                    used.fragment = true;
                    let end = offset.checked_add(extent.len);
                    if hidden || end.is_none_or(|end| end > packed_size) {
                        shared.error(
                            Rule::Fragment,
                            self.place(inode),
                            format_args!(
                                "{} bytes at {offset} of the packed inode, which has {packed_size}",
                                extent.len
                            ),
                        );
                    }
                }
                Location::Raw { device, .. } => used.device |= device != DeviceId::PRIMARY,
                Location::Inline { .. } | Location::Hole => {}
            }
            self.jobs.add(inode.nid(), extent, next == inode.size());
        }
        if next != inode.size() && inode.has_data() {
            let what = format_args!("extents end at {next}, expected {}", inode.size());
            shared.error(Rule::Index, self.place(inode), what);
        }
        let counted = map
            .clusters()
            .is_some_and(|c| matches!(c.map.form, Form::Full | Form::Compact(_)));
        // A cluster that another file shares may be counted there only.
        let shares = self
            .image
            .superblock()
            .has(tuff_format::features::incompat::FRAGMENTS);
        let count = inode.raw().u;
        if counted && (count > blocks || count < blocks && !shares) {
            // Kernels only show it. mkfs.erofs 1.5 does not count the cluster before an inline one.
            let what = format_args!("states {count} blocks, but its clusters have {blocks}");
            shared.add(Severity::Note, Rule::BlockCount, self.place(inode), what);
        }
    }

    fn note_features(&mut self, inode: &Inode, map: &FileMap) {
        let used = &mut self.marks.used;
        used.chunks |= inode.layout() == Layout::ChunkBased && inode.has_data();
        let Some(c) = map.clusters() else { return };
        used.compressed |= !matches!(c.map.form, Form::WholeFragment { .. });
        used.bit48 |= matches!(c.map.form, Form::Extents(_));
        used.inline_cluster |= c.map.inline_len() != 0;
        used.big_cluster |= c.map.advise() & (BIG_1 | BIG_2) != 0
            && matches!(c.map.form, Form::Full | Form::Compact(_));
        // The second algorithm is checked only where one is named.
        if c.map.algorithms().1 != c.map.algorithms().0 && !used.head2 {
            used.head2 = (0..c.map.lclusters()).any(|n| {
                matches!(
                    c.map.lcluster(&c.index, n),
                    Ok(Lcluster::Head {
                        kind: HeadKind::Head2,
                        ..
                    })
                )
            });
        }
    }
}

/// Returns the end in bytes of the metadata of an inode.
fn end_of(inode: &Inode, map: &FileMap) -> u64 {
    let after = inode.payload_position();
    match map {
        FileMap::Empty => after,
        FileMap::Flat {
            size, in_blocks, ..
        } => after.saturating_add(size - in_blocks),
        FileMap::Chunks(chunks) => chunks.table_end(after),
        FileMap::Clusters(c) => match c.map.form {
            Form::WholeFragment { .. } => round_up(after, 8).saturating_add(8),
            _ => (c.map.inline_pos()).saturating_add(c.map.inline_len().into()),
        },
    }
}
