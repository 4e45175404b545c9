//! SquashFS images as sources. Contents are read when they are packed.

use super::{ContentProvider, Loader};
use crate::Result;
use crate::source::error::SourceError;
use crate::source::expansion::Expansion;
use crate::source::squashfs::SquashFsSource;
use std::path::Path;
use std::sync::Arc;

impl Loader<'_, '_> {
    /// Loads the entries of a SquashFS image.
    pub(super) fn load_squashfs(&mut self, path: &Path) -> Result<()> {
        let source = Arc::new(SquashFsSource::open(path)?);
        let limit = Expansion::new(self.options.resources.max_expansion);
        let mut content = 0u64;
        source.each(&mut |entry| {
            content = content.saturating_add(self.read_len(&entry));
            let checked = limit.check(content, source.len());
            checked.map_err(|e: SourceError| {
                let name = path.display().to_string();
                crate::Error::from(e.in_member(&entry.path).in_source(&name))
            })?;
            self.add(entry, || path.display().into()).map(drop)
        })?;
        self.contents.layers.push(ContentProvider::Image(source));
        Ok(())
    }
}
