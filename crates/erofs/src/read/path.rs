//! Resolution of paths to inodes, with or without following symlinks.

use super::image::Image;
use super::inode::Inode;
use crate::{Error, Place, Remedy, Result};
use tuff_format::inode::FileType;

impl Image {
    /// Returns the inode at `path`. The path starts at the root, with or without a leading slash. Symlinks
    /// are not followed, also not in parent components.
    ///
    /// # Errors
    /// `Usage` if the path does not exist or a parent component is not a directory.
    pub fn resolve(&self, path: &[u8]) -> Result<Inode> {
        self.walk(path, false)?
    }

    /// As [`resolve`](Self::resolve), but returns `None` if nothing is at `path`.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve), except for a path that does not exist.
    pub fn find(&self, path: &[u8]) -> Result<Option<Inode>> {
        Ok(self.walk(path, false)?.ok())
    }

    /// As [`resolve`](Self::resolve), but follows up to [`Limits::symlinks`](super::Limits::symlinks)
    /// symlinks. Absolute targets start at the root of the image.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve), and `Limit` for too many symlinks.
    pub fn resolve_following(&self, path: &[u8]) -> Result<Inode> {
        self.walk(path, true)?
    }

    /// As [`resolve_following`](Self::resolve_following), but returns `None` if nothing is at `path`.
    ///
    /// # Errors
    /// As for [`resolve_following`](Self::resolve_following), except for a path that does not exist.
    pub fn find_following(&self, path: &[u8]) -> Result<Option<Inode>> {
        Ok(self.walk(path, true)?.ok())
    }

    /// Returns the inode at `path`, or the error of a path that does not exist.
    fn walk(&self, path: &[u8], follow: bool) -> Result<Result<Inode>> {
        let mut here = self.root()?;
        let mut followed = 0;
        // Remaining path components in reverse order.
        let mut todo: Vec<Vec<u8>> = Vec::new();
        push_parts(path, &mut todo);
        while let Some(name) = todo.pop() {
            if !here.is_dir() {
                let what = "is below an entry that is not a directory";
                return Ok(Err(missing(path, &name, what)));
            }
            let Some(next) = self.lookup(&here, &name)? else {
                return Ok(Err(missing(path, &name, "does not exist")));
            };
            let next = self.inode(next)?;
            if !follow || next.file_type() != FileType::Symlink {
                here = next;
                continue;
            }
            followed += 1;
            if followed > self.limits().symlinks {
                return Err(Error::limit(
                    Place::path(String::from_utf8_lossy(path)),
                    format_args!(
                        "more symlinks than the limit symlinks, {}",
                        self.limits().symlinks
                    ),
                ));
            }
            let target = self.readlink(&next)?;
            if target.starts_with(b"/") {
                here = self.root()?;
            }
            push_parts(&target, &mut todo);
        }
        Ok(Ok(here))
    }
}

fn push_parts(path: &[u8], todo: &mut Vec<Vec<u8>>) {
    let parts = path.split(|b| *b == b'/').rev();
    todo.extend(
        parts
            .filter(|p| !p.is_empty() && *p != b".")
            .map(<[u8]>::to_vec),
    );
}

fn missing(path: &[u8], name: &[u8], what: &str) -> Error {
    let shown = String::from_utf8_lossy(path);
    let name = String::from_utf8_lossy(name);
    let e = match shown == name {
        true => Error::usage(format_args!("{shown:?} {what}")),
        false => Error::usage(format_args!("{shown}: {name:?} {what}")),
    };
    e.with_remedy(Remedy::ExistingPath)
}
