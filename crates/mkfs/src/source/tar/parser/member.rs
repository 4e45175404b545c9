//! One member: from its header, and what extended headers said, to an [`Entry`].

use super::super::super::error::{Quoted, SourceError};
use super::super::super::member_path::normalise;
use super::super::super::{Content, DataRun, Device, Entry, Kind, Meta};
use super::super::acl::{self, Acl};
use super::super::feed::Feed;
use super::super::header::{BLOCK, Dialect, Header, extension_sparse_runs, is_header};
use super::super::pax::{ACL_ACCESS, ACL_DEFAULT, Field, Pax};
use super::super::sparse::{MapText, Plan, Run, checked, within_limit};
use super::{Parser, Pending};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a member is, as far as its type flag tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    File,
    OldSparse,
    Dir,
    Symlink,
    Hardlink,
    Char,
    Block,
    Fifo,
}

impl<F: Feed> Parser<F> {
    /// One member, from its header and what was said in front of it.
    pub(super) fn member(
        &mut self,
        header: &Header,
        at: u64,
        pending: Pending,
        raw_path: &[u8],
    ) -> Result<Entry, SourceError> {
        let pax = &pending.pax;
        let path = normalise(raw_path, "path")?;
        let (class, has_data) = self.classify(header, raw_path, &pending)?;
        let stored = match has_data {
            false => 0,
            true => match pax.size.resolve(&self.global.size) {
                Some(size) => size,
                None => header.size()?,
            },
        };
        let mut meta = self.meta(header, pax)?;
        let mut xattrs = self.global.xattrs.clone();
        xattrs.extend(pax.xattrs.clone());
        if !matches!(class, Class::Symlink | Class::Hardlink) {
            let (access, default) = (pax.acl_access.clone(), pax.acl_default.clone());
            if let Some(acl) = self.acl(&access, ACL_ACCESS, acl::ACCESS, raw_path, &mut xattrs)? {
                meta.mode = meta.mode & 0o7000 | acl.mode_bits();
            }
            if class == Class::Dir {
                self.acl(&default, ACL_DEFAULT, acl::DEFAULT, raw_path, &mut xattrs)?;
            }
        }
        if path.is_empty() && class != Class::Dir {
            return Err(SourceError::corrupt(
                "the root is given as something that is not a directory",
            ));
        }

        let is_sparse = pax.sparse.is_used() || class == Class::OldSparse;
        self.begin(
            raw_path,
            at,
            stored,
            matches!(class, Class::File | Class::OldSparse),
        );
        let mut content = Content::None;
        let kind = match class {
            Class::File | Class::OldSparse if is_sparse => {
                let (size, runs) = self.sparse(header, pending.pax)?;
                if size > 0 {
                    content = self.sparse_content(&runs);
                }
                Kind::File { size }
            }
            _ if is_sparse => {
                return Err(SourceError::corrupt(
                    "sparse records for something that is not a regular file",
                ));
            }
            Class::File | Class::OldSparse => {
                if stored > 0 {
                    content = match self.feed.left() {
                        Some(_) => Content::Range {
                            offset: self.feed.position(),
                        },
                        None => Content::Stream,
                    };
                }
                Kind::File { size: stored }
            }
            Class::Dir => Kind::Dir,
            Class::Fifo => Kind::Fifo,
            Class::Char => Kind::Char(self.device(header, pax)?),
            Class::Block => Kind::Block(self.device(header, pax)?),
            Class::Symlink => {
                let target = raw_link(header, &pending);
                if target.is_empty() || target.contains(&0) {
                    return Err(SourceError::corrupt(format!(
                        "symbolic link to {}, expected a target without zero bytes",
                        Quoted(&target)
                    )));
                }
                Kind::Symlink(target)
            }
            Class::Hardlink => {
                let target = raw_link(header, &pending);
                Kind::Hardlink(normalise(&target, "hard link target")?)
            }
        };
        self.data_must_exist()?;
        Ok(Entry {
            path,
            kind,
            meta,
            xattrs: xattrs.into_iter().collect(),
            content,
        })
    }

    /// An ACL in words, which becomes the attribute `name` if there is none. `key` is the record's.
    fn acl(
        &mut self,
        words: &Field<Vec<u8>>,
        key: &str,
        name: &[u8],
        raw_path: &[u8],
        xattrs: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<Option<Acl>, SourceError> {
        let Field::Set(words) = words else {
            return Ok(None);
        };
        if xattrs.contains_key(name) {
            return Ok(None);
        }
        let acl = Acl::parse(words, key)?;
        if !acl.names.is_empty() {
            self.nameless.add(|| raw_path.to_vec());
        }
        // What is in the permission bits is not said twice; a directory's default is nowhere else.
        if name != acl::ACCESS || !acl.is_minimal() {
            xattrs.insert(name.to_vec(), acl.value());
        }
        Ok(Some(acl))
    }

    fn meta(&self, header: &Header, pax: &Pax) -> Result<Meta, SourceError> {
        let global = &self.global;
        let (mtime, mtime_nsec) = match pax.mtime.resolve(&global.mtime) {
            Some(time) => time,
            None => (header.mtime()?, 0),
        };
        Ok(Meta {
            mode: header.mode()?,
            uid: id(pax.uid.resolve(&global.uid), || header.uid(), "uid")?,
            gid: id(pax.gid.resolve(&global.gid), || header.gid(), "gid")?,
            mtime,
            mtime_nsec,
        })
    }

    /// What the type flag means, and whether data follows the header.
    fn classify(
        &mut self,
        header: &Header,
        raw_path: &[u8],
        pending: &Pending,
    ) -> Result<(Class, bool), SourceError> {
        Ok(match header.flag() {
            // Before there was a flag for directories, a slash at the end told them.
            b'0' | 0 if raw_path.ends_with(b"/") => (Class::Dir, true),
            b'0' | 0 | b'7' => (Class::File, true),
            b'S' => (Class::OldSparse, true),
            b'1' => (Class::Hardlink, self.hard_link_has_data(header, pending)?),
            b'2' => (Class::Symlink, false),
            b'3' => (Class::Char, false),
            b'4' => (Class::Block, false),
            // Some writers put a size here, but nobody puts data.
            b'5' => (Class::Dir, false),
            b'6' => (Class::Fifo, false),
            // GNU incremental backups: the data lists the directory.
            b'D' => (Class::Dir, true),
            b'M' => {
                return Err(SourceError::unsupported(
                    "member continues from another volume; multi-volume archives are not read",
                ));
            }
            flag => {
                return Err(SourceError::unsupported(format!(
                    "type flag \"{}\" is not known",
                    flag.escape_ascii()
                )));
            }
        })
    }

    /// Old writers give a hard link the size of its file and no data; PAX writers may store data with it.
    ///
    /// Without an extended header to tell, what follows decides: a header or the end of the archive means no data.
    fn hard_link_has_data(
        &mut self,
        header: &Header,
        pending: &Pending,
    ) -> Result<bool, SourceError> {
        if pending.has_pax {
            return Ok(true);
        }
        if header.size()? == 0 {
            return Ok(false);
        }
        let next = self.read_block()?;
        let ends = next.len < BLOCK || next.block == [0; BLOCK] || is_header(&next.block);
        self.peeked = Some(next);
        Ok(!ends)
    }

    fn device(&self, header: &Header, pax: &Pax) -> Result<Device, SourceError> {
        let (major, minor) = header.device()?;
        let major = pax
            .dev_major
            .resolve(&self.global.dev_major)
            .unwrap_or(major);
        let minor = pax
            .dev_minor
            .resolve(&self.global.dev_minor)
            .unwrap_or(minor);
        let device = match (u64::try_from(major), u64::try_from(minor)) {
            (Ok(major), Ok(minor)) => Device::new(major, minor),
            _ => None,
        };
        device.ok_or_else(|| {
            SourceError::corrupt(format!(
                "device number {major},{minor}: expected a major below 4096 and a minor below 1048576"
            ))
        })
    }

    /// The real size and the runs of a sparse member. Leaves the feed at its first data byte.
    fn sparse(&mut self, header: &Header, pax: Pax) -> Result<(u64, Vec<Run>), SourceError> {
        let plan = pax.sparse.plan()?;
        let (real_size, runs) = match (header.flag() == b'S', plan) {
            (true, None) => {
                if header.dialect() != Dialect::Gnu {
                    return Err(SourceError::unsupported(
                        "sparse member of type \"S\" without the magic of GNU tar",
                    ));
                }
                (header.sparse_real_size()?, self.old_sparse_runs(header)?)
            }
            (false, Some(Plan::Listed { real_size, runs })) => (real_size, runs),
            (false, Some(Plan::InData { real_size })) => (real_size, self.sparse_map_in_data()?),
            (true, Some(_)) => {
                return Err(SourceError::corrupt(
                    "sparse map given by the header and by records",
                ));
            }
            // Not called for these.
            (false, None) => (0, Vec::new()),
        };
        let left = self.current.as_ref().map_or(0, |current| current.left);
        Ok((real_size, checked(runs, real_size, left)?))
    }

    /// The map of a GNU header and of the blocks that extend it.
    fn old_sparse_runs(&mut self, header: &Header) -> Result<Vec<Run>, SourceError> {
        let mut runs = Vec::new();
        let mut extended = header.sparse_runs(&mut runs)?;
        while extended {
            let at = self.position();
            let next = self.read_block()?;
            if next.len < BLOCK {
                return Err(SourceError::corrupt(format!(
                    "sparse map is cut short, expected {BLOCK} bytes, found {}",
                    next.len
                ))
                .at_byte(at));
            }
            extended = extension_sparse_runs(&next.block, &mut runs).map_err(|e| e.at_byte(at))?;
            within_limit(runs.len())?;
        }
        Ok(runs)
    }

    /// The map in front of the data, version 1.0.
    fn sparse_map_in_data(&mut self) -> Result<Vec<Run>, SourceError> {
        let mut map = MapText::default();
        loop {
            let at = self.position();
            if self.data_left() < BLOCK as u64 {
                return Err(SourceError::corrupt(
                    "sparse map does not end within the stored bytes",
                )
                .at_byte(at));
            }
            let mut block = [0; BLOCK];
            self.read_data(&mut block)?;
            if let Some(runs) = map.feed(&block).map_err(|e| e.at_byte(at))? {
                return Ok(runs);
            }
        }
    }

    fn sparse_content(&self, runs: &[Run]) -> Content {
        let positional = self.feed.left().is_some();
        let mut source_offset = self.feed.position();
        let mut data = Vec::with_capacity(runs.len());
        for run in runs {
            data.push(DataRun {
                file_offset: run.offset,
                source_offset: if positional { source_offset } else { 0 },
                len: run.len,
            });
            // Cannot overflow: lengths add up to the stored size, which has 63 bits, as has the position.
            source_offset += run.len;
        }
        match positional {
            true => Content::Sparse(Arc::from(data)),
            false => Content::SparseStream(Arc::from(data)),
        }
    }

    /// Where the source knows its size, a member that reaches beyond it is told at once.
    fn data_must_exist(&self) -> Result<(), SourceError> {
        match (&self.current, self.feed.left()) {
            (Some(current), Some(have)) if current.left > have => {
                Err(current.truncated(current.stored - current.left + have))
            }
            _ => Ok(()),
        }
    }
}

/// The same for the target of a link.
fn raw_link(header: &Header, pending: &Pending) -> Vec<u8> {
    match (pending.pax.link.resolve(&Field::Absent), &pending.long_link) {
        (Some(link), _) => link,
        (None, Some(link)) => link.clone(),
        (None, None) => header.link(),
    }
}

/// Negative ids are how some systems write the highest ones: -2 is `nobody`.
fn id(
    record: Option<i64>,
    header: impl Fn() -> Result<i64, SourceError>,
    what: &str,
) -> Result<u32, SourceError> {
    let id = match record {
        Some(id) => id,
        None => header()?,
    };
    u32::try_from(id)
        .or_else(|_| i32::try_from(id).map(i32::cast_unsigned))
        .map_err(|_| SourceError::corrupt(format!("{what} {id} does not fit in 32 bits")))
}
