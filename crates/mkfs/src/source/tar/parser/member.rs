//! Conversion of one member, from its header and extended headers, to an [`Entry`].

use super::super::super::error::{Quoted, SourceError};
use super::super::super::member_path::normalise;
use super::super::super::{Content, DataRun, Device, Entry, Kind, Meta};
use super::super::acl::{self, Acl};
use super::super::feed::Feed;
use super::super::header::{BLOCK, Dialect, Header, extension_sparse_runs, is_header};
use super::super::pax::{ACL_ACCESS, ACL_DEFAULT, Field, Pax};
use super::super::sparse::{MapText, SparseMap, SparseRun, checked, within_limit};
use super::{MemberType, Parser, PendingHeaders};
use std::collections::BTreeMap;

impl<F: Feed> Parser<F> {
    /// Converts one member from its header and the extended headers before it.
    pub(super) fn member(
        &mut self,
        header: &Header,
        at: u64,
        pending: PendingHeaders,
        raw_path: &[u8],
    ) -> Result<Entry, SourceError> {
        let pax = &pending.pax;
        let path = normalise(raw_path, "path")?;
        let (member_type, stored) = self.stored(header, raw_path, &pending)?;
        let mut meta = self.meta(header, pax)?;
        let mut xattrs = self.global.xattrs.clone();
        xattrs.extend(pax.xattrs.clone());
        if !matches!(member_type, MemberType::Symlink | MemberType::Hardlink) {
            let (access, default) = (pax.acl_access.clone(), pax.acl_default.clone());
            if let Some(acl) = self.acl(&access, ACL_ACCESS, acl::ACCESS, raw_path, &mut xattrs)? {
                meta.mode = meta.mode & 0o7000 | acl.mode_bits();
            }
            if member_type == MemberType::Dir {
                self.acl(&default, ACL_DEFAULT, acl::DEFAULT, raw_path, &mut xattrs)?;
            }
        }
        if path.is_empty() && member_type != MemberType::Dir {
            return Err(SourceError::corrupt(
                "the root is given as something that is not a directory",
            ));
        }

        let is_sparse = pax.sparse.is_used() || member_type == MemberType::OldSparse;
        self.begin(
            raw_path,
            at,
            stored,
            matches!(member_type, MemberType::File | MemberType::OldSparse),
        );
        let mut content = Content::None;
        let kind = match member_type {
            MemberType::File | MemberType::OldSparse if is_sparse => {
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
            MemberType::File | MemberType::OldSparse => {
                if stored > 0 {
                    content = self.location();
                }
                Kind::File { size: stored }
            }
            MemberType::Dir => Kind::Dir,
            MemberType::Fifo => Kind::Fifo,
            MemberType::Char => Kind::Char(self.device(header, pax)?),
            MemberType::Block => Kind::Block(self.device(header, pax)?),
            MemberType::Symlink => {
                let target = raw_link(header, &pending);
                if target.is_empty() || target.contains(&0) {
                    return Err(SourceError::corrupt(format!(
                        "symbolic link to {}, expected a target without zero bytes",
                        Quoted(&target)
                    )));
                }
                Kind::Symlink(target)
            }
            MemberType::Hardlink => {
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

    /// Type of a member, and the length of its data in the archive.
    pub(super) fn stored(
        &mut self,
        header: &Header,
        raw_path: &[u8],
        pending: &PendingHeaders,
    ) -> Result<(MemberType, u64), SourceError> {
        let (member_type, has_data) = self.classify(header, raw_path, pending)?;
        let size = match (has_data, pending.pax.size.resolve(&self.global.size)) {
            (false, _) => 0,
            (true, Some(size)) => size,
            (true, None) => header.size()?,
        };
        Ok((member_type, size))
    }

    /// Parses an ACL record and stores it as the attribute `name`, unless there is one. `key` names
    /// the record in messages.
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
            self.unnumbered_acls.add(|| raw_path.to_vec());
        }
        // An access ACL that is equivalent to the mode is redundant; a default ACL is always
        // stored.
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

    /// Interprets the type flag. Returns the type, and whether data follows the header.
    fn classify(
        &mut self,
        header: &Header,
        raw_path: &[u8],
        pending: &PendingHeaders,
    ) -> Result<(MemberType, bool), SourceError> {
        Ok(match header.flag() {
            // Old formats mark directories by a trailing slash.
            b'0' | 0 if raw_path.ends_with(b"/") => (MemberType::Dir, true),
            b'0' | 0 | b'7' => (MemberType::File, true),
            b'S' => (MemberType::OldSparse, true),
            b'1' => (
                MemberType::Hardlink,
                self.hard_link_has_data(header, pending)?,
            ),
            b'2' => (MemberType::Symlink, false),
            b'3' => (MemberType::Char, false),
            b'4' => (MemberType::Block, false),
            // Some writers store a size here, but none stores data.
            b'5' => (MemberType::Dir, false),
            b'6' => (MemberType::Fifo, false),
            // GNU incremental backups: the data lists the directory.
            b'D' => (MemberType::Dir, true),
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

    /// True if data follows a hard link. Old writers store the size of its file but no data; PAX
    /// writers may store data.
    ///
    /// Without an extended header, the next block decides: a header or the end of the archive means
    /// no data.
    fn hard_link_has_data(
        &mut self,
        header: &Header,
        pending: &PendingHeaders,
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

    /// File size and runs of a sparse member. Leaves the feed at its first data byte.
    fn sparse(&mut self, header: &Header, pax: Pax) -> Result<(u64, Vec<SparseRun>), SourceError> {
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
            (false, Some(SparseMap::Listed { real_size, runs })) => (real_size, runs),
            (false, Some(SparseMap::InData { real_size })) => {
                (real_size, self.sparse_map_in_data()?)
            }
            (true, Some(_)) => {
                return Err(SourceError::corrupt(
                    "sparse map given by the header and by records",
                ));
            }
            // Not reached for other members.
            (false, None) => (0, Vec::new()),
        };
        let left = self.current.as_ref().map_or(0, |current| current.left);
        Ok((real_size, checked(runs, real_size, left)?))
    }

    /// Reads the map of a GNU header and its extension blocks.
    pub(super) fn old_sparse_runs(
        &mut self,
        header: &Header,
    ) -> Result<Vec<SparseRun>, SourceError> {
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

    /// Reads the map before the data, version 1.0.
    fn sparse_map_in_data(&mut self) -> Result<Vec<SparseRun>, SourceError> {
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

    fn sparse_content(&self, runs: &[SparseRun]) -> Content {
        let positional = self.feed.left().is_some();
        let mut source_offset = self.feed.position();
        let mut data = Vec::with_capacity(runs.len());
        for run in runs {
            data.push(DataRun {
                file_offset: run.offset,
                source_offset: if positional { source_offset } else { 0 },
                len: run.len,
            });
            // Cannot overflow: the lengths add up to the stored size, which has 63 bits, like the
            // position.
            source_offset += run.len;
        }
        self.location().sparse(data)
    }

    /// Location of the data that follows.
    fn location(&self) -> Content {
        match self.feed.left() {
            Some(_) => Content::Range {
                offset: self.feed.position(),
            },
            None => Content::Stream,
        }
    }

    /// If the size of the source is known, reports truncated data at once.
    fn data_must_exist(&self) -> Result<(), SourceError> {
        match (&self.current, self.feed.left()) {
            (Some(current), Some(have)) if current.left > have => {
                Err(current.truncated(current.stored - current.left + have))
            }
            _ => Ok(()),
        }
    }
}

/// Link target by precedence: PAX, GNU long link, header.
fn raw_link(header: &Header, pending: &PendingHeaders) -> Vec<u8> {
    match (pending.pax.link.resolve(&Field::Absent), &pending.long_link) {
        (Some(link), _) => link,
        (None, Some(link)) => link.clone(),
        (None, None) => header.link(),
    }
}

/// Some systems write the highest IDs as negative numbers: -2 stands for 4294967294.
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
