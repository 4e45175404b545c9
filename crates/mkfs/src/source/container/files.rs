//! Where the files of a container image are: in a directory, or within a tar, where they stay.

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

/// Indexes and manifests are not longer, as registries have it. Unit: bytes.
const DOCUMENT_MAX: u64 = 4 << 20;

/// Links that lead to links.
const LINKS_MAX: usize = 8;

/// An archive has a few members for each layer.
const MEMBERS_MAX: usize = 100_000;

/// Files by their names.
pub(super) enum Files {
    /// Below a directory. Names come from us, or are digests.
    Dir(PathBuf),
    /// Members of a tar.
    Archive {
        /// The tar.
        path: PathBuf,
        /// What it has by each path that is no directory.
        members: HashMap<Vec<u8>, Place>,
    },
}

/// What a tar has by a name.
pub(super) enum Place {
    /// Bytes of it.
    Range(u64, u64),
    /// A link of either kind, by the path that it names, if it names one within the tar.
    Link(Option<Vec<u8>>),
    /// A file with holes, or none.
    Other,
    /// More than one thing.
    Several,
}

/// A file that was found.
#[derive(Clone)]
pub(super) struct Member {
    /// For messages.
    pub(super) name: String,
    path: PathBuf,
    /// Where it is within the file, if it is not all of it: offset and length. Unit: bytes.
    part: Option<(u64, u64)>,
}

impl Files {
    /// The members of a tar.
    ///
    /// # Errors
    /// As reading a tar; `Source` for one that is compressed or no file, since its members are read where they are.
    pub(super) fn archive(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |what| move |e| Error::io(path.display(), what, e);
        let meta = retry(|| std::fs::metadata(path)).map_err(failed("cannot open the source"))?;
        if !meta.is_file() {
            let what = "an archive of container images is a file, and this is none";
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
                "compressed with {}, but layers are read where they are in an archive: decompress it first",
                compression.name()
            );
            return Err(Error::from(SourceError::unsupported(what).in_source(&name)));
        }
        let mut members = HashMap::new();
        let mut tar = tar::scan_file(&name, &store);
        while let Some(entry) = tar.next_entry().map_err(Error::from)? {
            let place = match (&entry.kind, &entry.content) {
                (Kind::Dir, _) => continue,
                (Kind::File { size }, Content::Range { offset }) => Place::Range(*offset, *size),
                (Kind::File { size: 0 }, _) => Place::Range(0, 0),
                (Kind::Hardlink(target), _) => Place::Link(Some(target.clone())),
                (Kind::Symlink(target), _) => Place::Link(beside(&entry.path, target)),
                _ => Place::Other,
            };
            let place = if members.contains_key(&entry.path) {
                Place::Several
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

    /// How the source is written on a command line.
    pub(super) fn written(&self) -> &'static str {
        match self {
            Self::Dir(_) => "oci:DIR",
            Self::Archive { members, .. } if members.contains_key(&b"oci-layout"[..]) => {
                "oci-archive:FILE"
            }
            Self::Archive { .. } => "docker-archive:FILE",
        }
    }

    /// The file with this name. That of a directory need not be there.
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
            let wanted = match at {
                Ok(at) => at,
                Err(e) => return Err(Error::from(e.in_source(&archive))),
            };
            at = match members.get(&wanted) {
                Some(Place::Range(offset, len)) => {
                    return Ok(Member {
                        name: format!("{archive}: {name}"),
                        path: path.clone(),
                        part: Some((*offset, *len)),
                    });
                }
                Some(Place::Link(Some(target))) => Ok(target.clone()),
                Some(Place::Link(None)) => return fails("is a link that leads out of the archive"),
                Some(Place::Other) => return fails("is no plain file"),
                Some(Place::Several) => return fails("is there more than once"),
                None if wanted == name.as_bytes() => return fails("is missing"),
                None => return fails(&format!("leads to {}, which is missing", Quoted(&wanted))),
            };
        }
        fails("is a link that leads to a link, and so on")
    }
}

/// The path that a symbolic link names, if it is one within the archive.
fn beside(link: &[u8], target: &[u8]) -> Option<Vec<u8>> {
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

    /// All of it, if it is not too long for an index or manifest.
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
    /// The tar in it, which has this SHA-256 when it is plain.
    pub(super) fn source(self, unpacked: Option<[u8; 32]>) -> Result<Source> {
        let (offset, len) = match self.part {
            Some(part) => part,
            None if unpacked.is_none() => return Ok(Source::Tar(self.path)),
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
