//! Sources that are files: archives and images, whose trees are saved.

use crate::files;
use crate::seen::{self, FileState};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tuff_mkfs::{Error, Place, Result, Source};
use tuff_store::retry;

/// Archives and images of a run, by their canonical paths.
#[derive(Default)]
pub(crate) struct Archives(HashMap<PathBuf, Source>);

/// Archive or image that is being read.
pub(crate) struct OpenArchive {
    path: PathBuf,
    pub(crate) source: Source,
    /// State of its file before it was read, which that of each file in it is.
    pub(crate) state: FileState,
    identity: FileState,
}

impl Archives {
    pub(crate) fn new(archives: &[(PathBuf, Source)]) -> Result<Self> {
        let canonical = |(path, source): &(PathBuf, Source)| {
            let real = retry(|| fs::canonicalize(path));
            let real =
                real.map_err(|e| Error::io(Place::file(path.display()), "cannot find", e))?;
            Ok((real, source.clone()))
        };
        let archives = archives.iter().map(canonical);
        Ok(Self(archives.collect::<Result<_>>()?))
    }

    /// Returns true for a canonical path that is one of them.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    /// Returns true if the tree of the only source is the root of the snapshot.
    pub(crate) fn are_root(&self, sources: &[PathBuf]) -> bool {
        matches!(sources, [only] if self.has(only))
    }

    /// Opens one of them. `None` for a directory.
    pub(crate) fn open(&self, path: &Path, now: SystemTime) -> Result<Option<OpenArchive>> {
        let Some(source) = self.0.get(path) else {
            return Ok(None);
        };
        // Only the file of the image itself is compared with what it was.
        let is_whole = !matches!(source, Source::Image(image) if image.image().stores().len() > 1);
        let metadata = metadata(path)?;
        Ok(Some(OpenArchive {
            path: path.to_owned(),
            source: source.clone(),
            state: seen::state(&metadata, now).filter(|_| is_whole),
            identity: seen::identity(&metadata),
        }))
    }
}

impl OpenArchive {
    /// Fails if another file has taken its place, or it was written to.
    pub(crate) fn is_unchanged(&self) -> Result<()> {
        if seen::identity(&metadata(&self.path)?) == self.identity {
            return Ok(());
        }
        Err(Error::io(
            Place::file(self.path.display()),
            "cannot read",
            std::io::Error::other("the file changed while it was read"),
        ))
    }
}

fn metadata(path: &Path) -> Result<fs::Metadata> {
    let metadata = files::metadata(path);
    metadata.map_err(|e| Error::io(Place::file(path.display()), "cannot examine", e))
}
