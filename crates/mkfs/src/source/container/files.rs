//! Files of a container image: in a directory, or within a tar, where they are read in place.

use super::super::compressed::{Compression, MAGIC_LEN};
use super::super::error::{Quoted, SourceError};
use super::super::member_path::normalise;
use super::super::tar;
use super::super::{Content, Kind};
use super::document::broken;
use crate::source::spec::Source;
use crate::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Take};
use std::path::{Path, PathBuf};
use tuff_store::{FileStore, ReadAt, open_regular, retry};

/// Maximum length of an index or manifest, as in registries. Unit: bytes.
const DOCUMENT_MAX: u64 = 4 << 20;

/// Maximum length of a chain of links.
const LINKS_MAX: usize = 8;

/// Maximum number of members. An archive has a few for each layer.
const MEMBERS_MAX: usize = 100_000;

/// Files of a container image, by name.
pub(super) enum Files {
    /// Directory with the files. Their names are constants or digests.
    Dir(PathBuf),
    /// Tar that contains the files.
    Archive {
        /// Path of the tar.
        path: PathBuf,
        /// Members by path, without directories.
        members: HashMap<Vec<u8>, MemberContent>,
    },
}

/// Member of a tar.
pub(super) enum MemberContent {
    /// File with its offset and length in the tar.
    Range(u64, u64),
    /// Hard or symbolic link with its target, if that is within the tar.
    Link(Option<Vec<u8>>),
    /// Sparse file or special file.
    Other,
    /// Several members with the same path.
    Several,
}

/// File of a container image.
#[derive(Clone)]
pub(super) struct Member {
    /// Name of the file in messages.
    pub(super) name: String,
    path: PathBuf,
    /// Offset and length within the file, unless it is the whole file. Unit: bytes.
    part: Option<(u64, u64)>,
}

impl Files {
    /// Indexes the members of a tar.
    ///
    /// # Errors
    ///
    /// Errors of reading a tar; `Source` if it is compressed or not a regular file, because members
    /// are read in place.
    pub(super) fn archive(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |what| move |e| Error::io(path.display(), what, e);
        let meta = retry(|| std::fs::metadata(path)).map_err(failed("cannot open the source"))?;
        if !meta.is_file() {
            let what = "an archive of container images must be a regular file";
            return Err(Error::usage(format_args!("{name}: {what}")));
        }
        let store = FileStore::open(path).map_err(failed("cannot open the source"))?;
        let mut magic = [0; MAGIC_LEN];
        // Fits: at most MAGIC_LEN.
        let known = store.size().min(MAGIC_LEN as u64) as usize;
        let magic = &mut magic[..known];
        store
            .read_exact_at(magic, 0)
            .map_err(failed("cannot read"))?;
        let compression = Compression::detect(magic);
        let compression = compression.map_err(|e| Error::from(e.in_source(&name)))?;
        if compression != Compression::Plain {
            let what = format!(
                "compressed with {}, but layers are read in place: decompress the archive first",
                compression.name()
            );
            return Err(Error::from(SourceError::unsupported(what).in_source(&name)));
        }
        let mut members = HashMap::new();
        let mut tar = tar::scan_file(&name, &store);
        while let Some(entry) = tar.next_entry().map_err(Error::from)? {
            let place = match (&entry.kind, &entry.content) {
                (Kind::Dir, _) => continue,
                (Kind::File { size }, Content::Range { offset }) => {
                    MemberContent::Range(*offset, *size)
                }
                (Kind::File { size: 0 }, _) => MemberContent::Range(0, 0),
                (Kind::Hardlink(target), _) => MemberContent::Link(Some(target.clone())),
                (Kind::Symlink(target), _) => {
                    MemberContent::Link(resolve_symlink(&entry.path, target))
                }
                _ => MemberContent::Other,
            };
            let place = if members.contains_key(&entry.path) {
                MemberContent::Several
            } else {
                place
            };
            members.insert(entry.path, place);
            if members.len() > MEMBERS_MAX {
                let what = format_args!("more than {MEMBERS_MAX} members");
                return Err(Error::limit(name, what));
            }
        }
        Ok(Self::Archive {
            path: path.to_owned(),
            members,
        })
    }

    /// Notation of the source on the command line.
    pub(super) fn written(&self) -> &'static str {
        match self {
            Self::Dir(_) => "oci:DIR",
            Self::Archive { members, .. } if members.contains_key(&b"oci-layout"[..]) => {
                "oci-archive:FILE"
            }
            Self::Archive { .. } => "docker-archive:FILE",
        }
    }

    /// Returns the file with this name. In a directory, it may be missing.
    pub(super) fn find(&self, name: &str) -> Result<Member> {
        let (path, members) = match self {
            Self::Dir(dir) => {
                let path = dir.join(name);
                return Ok(Member {
                    name: path.display().to_string(),
                    path,
                    part: None,
                });
            }
            Self::Archive { path, members } => (path, members),
        };
        let archive = path.display().to_string();
        let quoted = Quoted(name.as_bytes());
        let fails = |what: &str| Err(broken(&archive, &format!("member {quoted} {what}")));
        let mut at = normalise(name.as_bytes(), "member");
        for _ in 0..LINKS_MAX {
            let member = match at {
                Ok(at) => at,
                Err(e) => return Err(Error::from(e.in_source(&archive))),
            };
            at = match members.get(&member) {
                Some(MemberContent::Range(offset, len)) => {
                    return Ok(Member {
                        name: format!("{archive}: {name}"),
                        path: path.clone(),
                        part: Some((*offset, *len)),
                    });
                }
                Some(MemberContent::Link(Some(target))) => Ok(target.clone()),
                Some(MemberContent::Link(None)) => {
                    return fails("is a link to a path outside of the archive");
                }
                Some(MemberContent::Other) => return fails("is not a plain file"),
                Some(MemberContent::Several) => return fails("occurs more than once"),
                None if member == name.as_bytes() => return fails("is missing"),
                None => return fails(&format!("leads to {}, which is missing", Quoted(&member))),
            };
        }
        fails("is the start of too long a chain of links")
    }
}

/// Target of a symbolic link, if it is within the archive.
fn resolve_symlink(link: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    if target.starts_with(b"/") {
        return None;
    }
    let mut parts: Vec<&[u8]> = link.split(|b| *b == b'/').collect();
    parts.pop();
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join(&b'/'))
}

impl Member {
    pub(super) fn open(&self) -> Result<Take<File>> {
        let open = || -> io::Result<Take<File>> {
            let mut file = open_regular(&self.path)?;
            let (offset, len) = self.part.unwrap_or((0, u64::MAX));
            if offset > 0 {
                file.seek(SeekFrom::Start(offset))?;
            }
            Ok(file.take(len))
        };
        open().map_err(|e| Error::io(&self.name, "cannot open the source", e))
    }

    /// Reads an index or manifest, up to the maximum length.
    pub(super) fn document(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let read = self.open()?.take(DOCUMENT_MAX + 1).read_to_end(&mut text);
        read.map_err(|e| Error::io(&self.name, "cannot read", e))?;
        if text.len() as u64 > DOCUMENT_MAX {
            return Err(Error::limit(&self.name, "longer than 4 MiB"));
        }
        Ok(text)
    }
}

impl Member {
    /// Converts the member to a source. `unpacked` is the SHA-256 of the plain tar.
    pub(super) fn source(self, unpacked: Option<[u8; 32]>) -> Result<Source> {
        let (offset, len) = match self.part {
            Some(part) => part,
            None => {
                let meta = retry(|| std::fs::metadata(&self.path));
                (
                    0,
                    meta.map_err(|e| Error::io(&self.name, "cannot examine", e))?
                        .len(),
                )
            }
        };
        Ok(Source::TarWithin {
            file: self.path,
            offset,
            len,
            unpacked,
            name: self.name,
        })
    }
}
