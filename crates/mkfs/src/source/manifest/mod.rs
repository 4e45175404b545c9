//! Manifests: file trees described line by line, in the format of BSD's mtree(5) with additional
//! keywords.
//!
//! The format is in `docs/reference/manifest.md`. A path of an [`Entry`] has no `.`, `..` or empty
//! component, and only a directory can be the root, as for tars. Entries come in the order of the
//! manifest.

mod attrs;
mod lines;
#[cfg(test)]
mod tests;
mod vis;

use super::error::{Quoted, SourceError};
use super::member_path::normalise;
use super::{Content, Entry, Kind, Meta};
use attrs::{Attrs, Scope, Type};
use lines::{Line, Lines};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use vis::unvis;

/// Maximum length of a path. Unit: bytes.
///
/// Lines that name one component each can add up to a path much longer than the manifest.
const PATH_BYTES_MAX: usize = 1 << 20;

/// Function that returns the size of a content file. Unit: bytes.
pub type StatFn = fn(&Path) -> io::Result<u64>;

/// Reader of a manifest from any input.
///
/// ```
/// use std::path::Path;
/// use tuff_mkfs::source::{Kind, manifest::ManifestReader};
///
/// let text = b"/set uid=0 gid=0\n./dev type=dir\n./dev/null type=char mode=0666 device=1,3\n";
/// let mut manifest = ManifestReader::new("devices", &text[..], Path::new("."));
/// assert_eq!(manifest.next_entry()?.unwrap().kind, Kind::Dir);
/// assert_eq!(manifest.next_entry()?.unwrap().path, b"dev/null");
/// assert!(manifest.next_entry()?.is_none());
/// # Ok::<(), tuff_mkfs::source::error::SourceError>(())
/// ```
pub struct ManifestReader<R> {
    source: String,
    lines: Lines<R>,
    dir: PathBuf,
    content_root: PathBuf,
    stat: StatFn,
    /// Current values of `/set`.
    defaults: Attrs,
    /// Current directory of relative lines.
    open_dir: Vec<u8>,
    /// Length of `open_dir` before each open directory was entered.
    open_lengths: Vec<usize>,
    /// Line of the last path.
    line: u64,
    failed: bool,
}

impl ManifestReader<File> {
    /// Opens the manifest at `path`. Files are taken from below its directory.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let source = path.display().to_string();
        let file = tuff_store::open_text(path)
            .map_err(|e| SourceError::io("cannot open", e).in_source(&source))?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        Ok(Self::new(source, file, dir))
    }
}

impl<R: Read> ManifestReader<R> {
    /// Creates a reader; `source` names it in messages. Relative `contents=` start at `dir`.
    pub fn new(source: impl Into<String>, reader: R, dir: &Path) -> Self {
        Self {
            source: source.into(),
            lines: Lines::new(reader),
            dir: dir.to_owned(),
            content_root: dir.to_owned(),
            stat: regular_file_size,
            defaults: Attrs::default(),
            open_dir: Vec::new(),
            open_lengths: Vec::new(),
            line: 0,
            failed: false,
        }
    }

    /// Sets the directory of files without `contents=`: each is at its own path below `root`.
    #[must_use]
    pub fn with_content_root(mut self, root: &Path) -> Self {
        root.clone_into(&mut self.content_root);
        self
    }

    /// Takes the sizes of content files from `stat` instead of the file system.
    #[must_use]
    pub fn with_stat(mut self, stat: StatFn) -> Self {
        self.stat = stat;
        self
    }

    /// Returns the next entry, or `None` at the end.
    ///
    /// # Errors
    ///
    /// Names the line, the keyword, the expected and the actual value. Nothing can be read
    /// afterwards.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        if self.failed {
            return Err(
                SourceError::usage("nothing can be read after an error in the manifest")
                    .in_source(&self.source),
            );
        }
        let entry = self.advance().map_err(|e| e.in_source(&self.source));
        self.failed = entry.is_err();
        entry
    }

    /// Line of the last entry, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    fn advance(&mut self) -> Result<Option<Entry>, SourceError> {
        while let Some(line) = self.lines.next_line()? {
            let entry = self.entry_of(&line).map_err(|e| e.at_line(line.number))?;
            if entry.is_some() {
                self.line = line.number;
                return Ok(entry);
            }
        }
        Ok(None)
    }

    fn entry_of(&mut self, line: &Line) -> Result<Option<Entry>, SourceError> {
        let mut words = line.words();
        let Some(first) = words.next() else {
            return Ok(None);
        };
        match first {
            b"/set" => {
                for word in words {
                    self.defaults.take(word, Scope::Set)?;
                }
            }
            b"/unset" => {
                for word in words {
                    self.defaults.forget(word)?;
                }
            }
            b".." => {
                if let Some(word) = words.next() {
                    return Err(SourceError::corrupt(format!(
                        "\"..\" closes a directory, expected nothing after it, found {}",
                        Quoted(word)
                    )));
                }
                let length = self.open_lengths.pop().ok_or_else(|| {
                    SourceError::corrupt("\"..\" closes a directory, but none is open")
                })?;
                self.open_dir.truncate(length);
            }
            [b'/', ..] => {
                return Err(SourceError::corrupt(format!(
                    "expected /set, /unset or a path that begins with \"./\", found {}",
                    Quoted(first)
                )));
            }
            _ => {
                let mut attrs = self.defaults.clone();
                let name = unvis(first).map_err(|at| {
                    SourceError::corrupt(format!(
                        "path: expected an escape after the backslash, found {}",
                        Quoted(&first[at..])
                    ))
                })?;
                for word in words {
                    attrs
                        .take(word, Scope::Line)
                        .map_err(|e| e.in_member(&name))?;
                }
                let entry = self.entry(&name, attrs);
                return entry.map(Some).map_err(|e| e.in_member(&name));
            }
        }
        Ok(None)
    }

    fn entry(&mut self, name: &[u8], attrs: Attrs) -> Result<Entry, SourceError> {
        let is_full = name.contains(&b'/');
        let mut path = normalise(name, "path")?;
        if !is_full && !self.open_dir.is_empty() {
            // The name "." is the directory itself.
            let below = match path.is_empty() {
                true => &b""[..],
                false => b"/",
            };
            path = [&self.open_dir[..], below, &path].concat();
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(SourceError::limit(format!(
                "path has more than {PATH_BYTES_MAX} bytes"
            )));
        }
        let (kind, content) = self.kind(&path, &attrs)?;
        if path.is_empty() && kind != Kind::Dir {
            return Err(SourceError::corrupt("type: expected dir for the root"));
        }
        if !is_full && kind == Kind::Dir {
            self.open_lengths.push(self.open_dir.len());
            self.open_dir.clone_from(&path);
        }
        let default_mode = match kind {
            Kind::Dir => 0o755,
            Kind::Symlink(_) => 0o777,
            _ => 0o644,
        };
        let (mtime, mtime_nsec) = attrs.time.unwrap_or((0, 0));
        Ok(Entry {
            path,
            kind,
            meta: Meta {
                mode: attrs.mode.unwrap_or(default_mode),
                uid: attrs.uid.unwrap_or(0),
                gid: attrs.gid.unwrap_or(0),
                mtime,
                mtime_nsec,
            },
            xattrs: attrs.xattrs.into_iter().collect(),
            content,
        })
    }

    fn kind(&self, path: &[u8], attrs: &Attrs) -> Result<(Kind, Content), SourceError> {
        if let Some(target) = &attrs.hardlink {
            if attrs.kind == Some(Type::Dir) || attrs.contents.is_some() {
                return Err(SourceError::corrupt(
                    "hardlink: expected neither type=dir nor contents=",
                ));
            }
            let target = normalise(target, "hardlink")?;
            return Ok((Kind::Hardlink(target), Content::None));
        }
        let Some(kind) = attrs.kind else {
            return Err(SourceError::corrupt(
                "type: expected type= on this line or in /set, found neither",
            ));
        };
        let only =
            |keyword: &str, given: bool, types: &[Type]| match given && !types.contains(&kind) {
                false => Ok(()),
                true => Err(SourceError::corrupt(format!(
                    "{keyword}: not expected with type={}",
                    kind.name()
                ))),
            };
        only("contents", attrs.contents.is_some(), &[Type::File])?;
        only("link", attrs.link.is_some(), &[Type::Link])?;
        only("device", attrs.device.is_some(), &[Type::Char, Type::Block])?;
        let missing = |keyword: &str| {
            SourceError::corrupt(format!(
                "{keyword}: expected with type={}, found nothing",
                kind.name()
            ))
        };
        let device = || attrs.device.ok_or_else(|| missing("device"));
        let kind = match kind {
            Type::File => return self.file(path, attrs),
            Type::Dir => Kind::Dir,
            Type::Fifo => Kind::Fifo,
            Type::Socket => Kind::Socket,
            Type::Char => Kind::Char(device()?),
            Type::Block => Kind::Block(device()?),
            Type::Link => {
                let target = attrs.link.clone().ok_or_else(|| missing("link"))?;
                if target.is_empty() || target.contains(&0) {
                    return Err(SourceError::corrupt(format!(
                        "link: expected a target without zero bytes, found {}",
                        Quoted(&target)
                    )));
                }
                Kind::Symlink(target)
            }
        };
        Ok((kind, Content::None))
    }

    /// Location and size of a regular file's content.
    fn file(&self, path: &[u8], attrs: &Attrs) -> Result<(Kind, Content), SourceError> {
        let below = |root: &Path, path: &[u8]| root.join(OsString::from_vec(path.to_vec()));
        let contents = match (&attrs.contents, attrs.size) {
            (Some(contents), _) => below(&self.dir, contents),
            // An empty file needs no content file.
            (None, Some(0)) => return Ok((Kind::File { size: 0 }, Content::None)),
            (None, _) => below(&self.content_root, path),
        };
        let size = (self.stat)(&contents).map_err(|e| {
            SourceError::io(
                format!("cannot take contents from {}", contents.display()),
                e,
            )
        })?;
        if let Some(expected) = attrs.size
            && size != expected
        {
            return Err(SourceError::corrupt(format!(
                "size: expected {expected} bytes, found {size} in {}",
                contents.display()
            )));
        }
        let content = match size {
            0 => Content::None,
            _ => Content::Path(contents),
        };
        Ok((Kind::File { size }, content))
    }
}

/// Iterates until the first error.
impl<R: Read> Iterator for ManifestReader<R> {
    type Item = Result<Entry, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.next_entry().transpose()
    }
}

/// Size of a regular file, not of any other.
pub(super) fn regular_file_size(path: &Path) -> io::Result<u64> {
    let meta = tuff_store::retry(|| fs::metadata(path))?;
    if !meta.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(meta.len())
}
