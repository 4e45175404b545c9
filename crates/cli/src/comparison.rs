//! Comparison of two images by path, for the views that show both trees.

use std::collections::HashMap;
use tuff_erofs::Result;
use tuff_erofs::diff::{self, Change, Options, Side, Totals};
use tuff_erofs::read::Image;
use tuff_erofs::{Error, walk};

/// Maximum number of paths that differ.
const CHANGES_MAX: usize = 1 << 21;

/// Paths that differ between two images.
pub(crate) struct Comparison {
    /// Changes from the first image to the second, by path.
    pub(crate) changes: HashMap<Vec<u8>, Change>,
    /// Counters of the comparison.
    pub(crate) totals: Totals,
}

impl Comparison {
    /// Compares everything that a mount shows of two images, given with their names in error messages.
    ///
    /// # Errors
    /// Those of [`diff::diff`], and `Limit` for more differences than are kept in memory.
    pub(crate) fn new(a: (&Image, &str), b: (&Image, &str)) -> Result<Self> {
        let mut changes = HashMap::new();
        let report = &mut |path: &[u8], change: &Change| {
            if changes.len() >= CHANGES_MAX {
                let what =
                    format_args!("more than {CHANGES_MAX} differences; list them with 'tuff diff'");
                return Err(Error::limit(walk::shown(path), what));
            }
            changes.insert(path.to_vec(), change.clone());
            Ok(())
        };
        let [mut a, mut b] = [a, b].map(|(image, name)| Side::Image(image, name.to_owned()));
        let totals = diff::diff(&mut a, &mut b, &Options::default(), report)?;
        Ok(Self { changes, totals })
    }
}
