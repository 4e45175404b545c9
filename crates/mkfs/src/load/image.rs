//! Images as sources. Contents are read when they are packed, or stay in place.

use super::{ContentProvider, Loader, in_source};
use crate::pack::memory_budget;
use crate::source::image::ImageSource;
use crate::source::input_image::InputImage;
use crate::source::{Entry, Kind};
use crate::{Place, Result};
use std::sync::Arc;
use tuff_erofs::walk::shown;

impl Loader<'_, '_> {
    /// Loads the entries of an image.
    pub(super) fn load_image(&mut self, input: &InputImage) -> Result<()> {
        let budget = usize::try_from(memory_budget::eighth(self.options)).unwrap_or(usize::MAX);
        let source = Arc::new(ImageSource::new(input, budget)?);
        let path = input.name();
        let mut content = source.content_budget();
        source.each(&mut |entry| {
            let taken = content.take(self.read_len(&entry));
            taken.map_err(|e| {
                in_source(e.within(Place::path(shown(&entry.path))), path.display())
            })?;
            self.add(entry, || path.display().into()).map(drop)
        })?;
        self.contents.layers.push(ContentProvider::Image(source));
        Ok(())
    }

    /// Returns the number of bytes of a file that are read.
    pub(super) fn read_len(&self, entry: &Entry) -> u64 {
        match (&entry.kind, entry.content.parts()) {
            (Kind::File { size }, (_, Some(runs))) if self.options.keeps_sparse(*size, runs) => {
                runs.iter().map(|run| run.len).sum()
            }
            (Kind::File { size }, _) => *size,
            _ => 0,
        }
    }
}
