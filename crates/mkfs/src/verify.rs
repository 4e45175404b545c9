//! Verification of the finished image: reads it and compares it with the sources.
//!
//! ```text
//! structures ──► inodes, names, attributes ──► contents
//! image check    against the tree              against checksums from packing
//! ```
//!
//! Contents are read as a mount reads them, in the order of their data, so that each cluster is
//! decoded about once.

use super::base::Bases;
use super::environment::{Environment, parallel};
use super::layout::{Parts, Plan, dir_names};
use super::pack::FileData;
use super::pack::checksums::sum;
use super::tree::{InodeId, NodeKind, lossy};
use crate::{Error, Result};
use std::sync::Arc;
use tuff_erofs::check;
use tuff_erofs::read::{Image, Inode, OpenOptions};
use tuff_erofs::serve::{ServeOptions, Server, Session};
use tuff_format::BlockBits;
use tuff_store::{FileStore, ReadAt};

/// Length of one read. Unit: bytes.
const READ: usize = 1 << 20;
/// Inodes that a thread takes at once.
const INODES: usize = 256;
/// Files that a thread takes at once. Neighbours share clusters of the packed inode.
const FILES: usize = 16;

/// Reads the image in `output` and compares it with its sources.
///
/// # Errors
///
/// `Corrupt` with the path of the first difference, or the first finding of the check.
pub(crate) fn verify(parts: &Parts<'_>, plan: &Plan, environment: &Environment<'_>) -> Result<()> {
    let output = environment.targets.image;
    let failed = |e| Error::io("image", "cannot read again", e);
    let store = FileStore::new(output.file().try_clone().map_err(failed)?).map_err(failed)?;
    let devices = match environment.targets.blob {
        Some(blob) => {
            let file = blob.file().try_clone().map_err(failed)?;
            let store: Arc<dyn ReadAt> = Arc::new(FileStore::new(file).map_err(failed)?);
            vec![store]
        }
        None => parts.base.map_or_else(Vec::new, Bases::stores),
    };
    let image = Image::open(
        store,
        OpenOptions {
            devices,
            ..OpenOptions::default()
        },
    )?;
    let structures = check::Options {
        data: false,
        threads: environment.threads,
        ..Default::default()
    };
    let report = check::check(&image, &structures, |_| ());
    if let Some(finding) = report.findings.first().filter(|_| !report.is_clean()) {
        return Err(Error::corrupt(&finding.place, &finding.what));
    }
    // Within the memory that packing has released.
    let budget = usize::try_from(crate::pack::memory_budget::memory(parts.options) / 4)
        .unwrap_or(usize::MAX);
    let options = ServeOptions {
        budget: budget.min(64 << 20),
        ..ServeOptions::default()
    };
    let this = Verify {
        parts,
        plan,
        bits: parts.options.block,
        server: Server::new(image, options),
        environment,
    };
    let order = parts.order;
    this.parallel(order.len().div_ceil(INODES), &|n, _| {
        let end = order.len().min((n + 1) * INODES);
        (order[n * INODES..end].iter()).try_for_each(|inode| this.inode(*inode))
    })?;
    this.contents()
}

struct Verify<'a> {
    parts: &'a Parts<'a>,
    plan: &'a Plan,
    bits: BlockBits,
    server: Server,
    environment: &'a Environment<'a>,
}

/// Reader state of one thread.
struct ReaderContext {
    session: Session,
    buf: Vec<u8>,
}

/// Range of a file's content with its checksum.
struct ChecksumRange {
    file: InodeId,
    /// Position in the content without holes. Unit: bytes.
    from: u64,
    len: u64,
    sum: u64,
}

impl Verify<'_> {
    /// Calls `work` for each number below `count` on all threads.
    fn parallel(
        &self,
        count: usize,
        work: &(dyn Fn(usize, &mut ReaderContext) -> Result<()> + Sync),
    ) -> Result<()> {
        let work = |n: usize, context: &mut Option<ReaderContext>, (): &mut ()| {
            let context = context.get_or_insert_with(|| ReaderContext {
                session: self.server.session(),
                buf: vec![0; READ],
            });
            work(n, context)
        };
        let environment = self.environment;
        parallel(count, environment.threads, environment.progress, &work).map(drop)
    }

    fn differs(&self, id: InodeId, what: &str) -> Error {
        let path = self.parts.tree.path(id);
        let what = format_args!("the finished image has {what} than the source");
        Error::corrupt(lossy(&path), what)
    }

    fn read_inode(&self, id: InodeId) -> Result<Inode> {
        self.server.image().inode(self.plan.nid(id, self.bits))
    }

    /// Compares all properties of an inode except a file's content.
    fn inode(&self, id: InodeId) -> Result<()> {
        let (tree, image) = (self.parts.tree, self.server.image());
        let inode = self.read_inode(id)?;
        let mode = tree.meta(id).mode & 0o7777 | tree.file_type(id).mode_bits();
        let size = self.parts.form(id, self.plan.epoch).size;
        let kind = tree.kind(id);
        let device = match kind {
            NodeKind::Char(d) | NodeKind::Block(d) => Some((d.major, d.minor)),
            _ => None,
        };
        let same = [
            (inode.mode() == mode, "another mode"),
            (
                (inode.uid(), inode.gid()) == self.parts.owner(id),
                "another owner",
            ),
            (inode.mtime() == self.parts.time(id), "another time"),
            (inode.nlink() == tree.nlink(id), "another number of links"),
            (inode.size() == size, "another size"),
            (inode.device() == device, "another device number"),
            (
                // Those of unchanged inodes were compared before.
                self.parts.is_unchanged(id) || *image.xattr_body(&inode)? == *self.parts.body(id),
                "other attributes",
            ),
        ];
        if let Some((_, what)) = same.iter().find(|(same, _)| !same) {
            return Err(self.differs(id, what));
        }
        match kind {
            NodeKind::Symlink(target) if *image.readlink(&inode)? != *target => {
                Err(self.differs(id, "another target"))
            }
            NodeKind::Dir => self.names(id, &inode),
            _ => Ok(()),
        }
    }

    fn names(&self, id: InodeId, inode: &Inode) -> Result<()> {
        let mut entries = self.server.image().read_dir(inode)?;
        let mut same = Ok(true);
        dir_names(self.parts.tree, id, &mut |name, child| {
            if let Ok(true) = same {
                same = entries.next().transpose().map(|entry| {
                    entry
                        .is_some_and(|e| e.name == name && e.nid == self.plan.nid(child, self.bits))
                });
            }
        });
        if same? && entries.next().is_none() {
            return Ok(());
        }
        Err(self.differs(id, "other names"))
    }

    fn contents(&self) -> Result<()> {
        let mut files: Vec<(u64, InodeId)> = (self.parts.order.iter())
            .filter_map(|id| Some((self.data_position(*id)?, *id)))
            .collect();
        files.sort_unstable();
        let mut checksum_ranges: Vec<ChecksumRange> = Vec::new();
        // Start of each thread's batch in `ranges`.
        let mut batches = Vec::new();
        let mut after_long = true;
        for (_, file) in &files {
            let start = checksum_ranges.len();
            self.checksum_ranges(*file, &mut checksum_ranges);
            if checksum_ranges.len() == start {
                continue;
            }
            let long = checksum_ranges.len() - start > 1;
            let full = batches.last().is_none_or(|at| start - at >= FILES);
            let begins = long || after_long || full;
            batches.extend((start..checksum_ranges.len()).filter(|at| *at > start || begins));
            after_long = long;
        }
        batches.push(checksum_ranges.len());
        self.parallel(batches.len() - 1, &|n, context| {
            (checksum_ranges[batches[n]..batches[n + 1]].iter())
                .try_for_each(|range| self.content(range, context))
        })
    }

    /// Sort key of a file's data position. `None` if it has no data.
    fn data_position(&self, id: InodeId) -> Option<u64> {
        match self.parts.data(id) {
            FileData::Flat { block, .. } => Some(block.order().into()),
            data @ (FileData::Chunked(_) | FileData::OneChunk { .. } | FileData::Table(_)) => {
                let chunks = data.chunks(self.parts.tree.size(id), self.bits)?;
                Some(
                    chunks
                        .runs()
                        .next()
                        .map_or(0, |(_, block)| block.order().into()),
                )
            }
            FileData::WholeFragment { offset } => Some(1 << 40 | offset.offset()),
            FileData::None | FileData::Same(_) => None,
            data => {
                let first = data.compressed()?.pieces().next();
                Some(first.map_or(0, |(cluster, _)| cluster.order().into()))
            }
        }
    }

    /// Ranges of a file that have a checksum.
    fn checksum_ranges(&self, id: InodeId, out: &mut Vec<ChecksumRange>) {
        let size = self
            .data_ranges(id)
            .iter()
            .map(|(from, to)| to - from)
            .sum();
        if size == 0 {
            return;
        }
        let mut from = 0;
        for (len, sum) in self.parts.packed.sums.of(self.parts.first(id), size) {
            out.push(ChecksumRange {
                file: id,
                from,
                len,
                sum,
            });
            from += len;
        }
    }

    /// Data ranges of a file between its holes. Unit: bytes.
    fn data_ranges(&self, id: InodeId) -> Vec<(u64, u64)> {
        let size = self.parts.tree.size(id);
        let read = match self.parts.data(id) {
            FileData::Chunked(c) => Some((&*c.runs, c.bits)),
            FileData::Table(table) => table.read(),
            _ => None,
        };
        let Some((runs, bits)) = read else {
            return vec![(0, size)];
        };
        let chunk = self.bits.size() << bits;
        let range = |first: u64, count: u64| (first * chunk, ((first + count) * chunk).min(size));
        runs.iter().map(|r| range(r.first, r.count)).collect()
    }

    fn content(&self, range: &ChecksumRange, context: &mut ReaderContext) -> Result<()> {
        let id = range.file;
        let inode = self.server.inode(self.plan.nid(id, self.bits))?;
        let (mut skip, mut left) = (range.from, range.len);
        let mut hasher = sum();
        for (start, end) in self.data_ranges(id) {
            let (mut at, end) = (start + skip.min(end - start), end);
            skip -= at - start;
            let end = end.min(at + left);
            while at < end {
                let want = READ.min(usize::try_from(end - at).unwrap_or(READ));
                let answer = self
                    .server
                    .read_by_reference(&mut context.session, &inode, at, &mut context.buf[..want])
                    .map_err(|e| e.within(lossy(&self.parts.tree.path(id))))?;
                let n = answer.len() as u64;
                if n == 0 {
                    return Err(self.differs(id, "less content"));
                }
                answer.parts().for_each(|part| hasher.update(part));
                (at, left) = (at + n, left - n);
            }
        }
        if hasher.digest() == range.sum {
            return Ok(());
        }
        Err(self.differs(id, "another content"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::targets::Targets;
    use crate::options::{DedupeOptions, LayoutOptions, OutputOptions};
    use crate::pipeline::write;
    use crate::{Dedupe, Fragments, KernelVersion, Options, Progress, Source};
    use std::os::unix::fs::{FileExt, symlink};
    use tuff_store::{Output, Target};

    /// Builds a small tree. `damage` modifies the image before it is verified.
    fn build(options: &Options, damage: &dyn Fn(&std::fs::File)) -> Result<()> {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        let text: String = (0..9000).map(|n| format!("line {n}\n")).collect();
        for name in ["a", "sub/copy", "z"] {
            std::fs::write(tree.join(name), &text).unwrap();
        }
        std::fs::write(tree.join("small"), &text[..700]).unwrap();
        std::fs::write(tree.join("marked"), "MARK".repeat(20)).unwrap();
        std::fs::File::create(tree.join("hole"))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        symlink("sub/copy", tree.join("link")).unwrap();
        let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
        sparse.set_len(10 << 20).unwrap();
        sparse.write_all_at(text.as_bytes(), 3 << 20).unwrap();
        let output = Output::create(&Target::Path(dir.path().join("image"))).unwrap();
        let written = || damage(output.file());
        write(
            &[Source::Dir(tree)],
            options,
            None,
            Targets {
                image: &output,
                blob: None,
            },
            &Progress::default(),
            &written,
        )
        .map(|_| ())
    }

    fn options() -> Vec<Options> {
        let with = |fragments, dedupe| Options {
            layout: LayoutOptions {
                fragments,
                ..Options::for_kernel(KernelVersion(6, 18)).layout
            },
            dedupe: DedupeOptions {
                mode: dedupe,
                ..Options::for_kernel(KernelVersion(6, 18)).dedupe
            },
            output: OutputOptions {
                verify: true,
                ..Options::for_kernel(KernelVersion(6, 18)).output
            },
            ..Options::for_kernel(KernelVersion(6, 18))
        };
        vec![
            with(Fragments::Off, Dedupe::Off),
            with(Fragments::Tails, Dedupe::Content),
            with(Fragments::All, Dedupe::Files),
        ]
    }

    #[test]
    fn an_undamaged_image_verifies() {
        for options in options() {
            build(&options, &|_| ()).unwrap();
        }
    }

    /// Replaces all occurrences of `from` by `to`.
    fn replace(file: &std::fs::File, from: &[u8], to: &[u8]) {
        let mut image = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut image, 0).unwrap();
        let at: Vec<usize> = (image.windows(from.len()).enumerate())
            .filter_map(|(i, w)| (w == from).then_some(i))
            .collect();
        assert!(!at.is_empty(), "the image has {from:?}");
        for at in at {
            file.write_all_at(to, at as u64).unwrap();
        }
    }

    #[test]
    fn damage_is_reported_with_its_path() {
        for (options, data) in options().iter().zip([true, true, false]) {
            // Data of an uncompressed file.
            if data {
                let error = build(options, &|file| replace(file, b"MARKMARK", b"MARKMERK"));
                assert!(error.unwrap_err().to_string().contains("marked"));
            }
            // A name, with the order unchanged.
            let error = build(options, &|file| replace(file, b"small", b"smalm"));
            assert!(error.unwrap_err().to_string().contains("names"));
            let error = build(options, &|file| replace(file, b"sub/copy", b"sub/copi"));
            assert!(error.unwrap_err().to_string().contains("link"));
        }
    }

    #[test]
    fn damage_in_each_data_block_is_found() {
        let options = &options()[0];
        for block in 1..8 {
            let flip = |file: &std::fs::File| {
                let mut byte = [0];
                file.read_exact_at(&mut byte, block * 4096 + 4000).unwrap();
                file.write_all_at(&[byte[0] ^ 1], block * 4096 + 4000)
                    .unwrap();
            };
            assert!(build(options, &flip).is_err(), "block {block}");
        }
    }
}
