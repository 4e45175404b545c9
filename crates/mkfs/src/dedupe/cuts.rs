//! Cuts of the packed inode. A cluster starts at a cut whatever the files before are, so a change of a file changes only
//! clusters up to the next cut.

/// Chooses cuts. The decision depends on a file alone, so versions of an image have the same cuts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    /// Average number of bytes between two cuts.
    distance: u64,
}

impl Cuts {
    /// Number of bytes of all files of an image for each cut by default. A cut costs half a block on average.
    const SPACING: u64 = 2 << 20;

    /// Cuts at a distance in bytes. By default it follows from the number of bytes of files in the packed inode and of all
    /// files.
    pub(crate) fn new(distance: Option<u64>, packed: u64, all: u64) -> Self {
        let by_share = u128::from(Self::SPACING) * u128::from(packed) / u128::from(all.max(1));
        let by_share = u64::try_from(by_share).unwrap_or(u64::MAX);
        let by_share = by_share.clamp(Self::SPACING / 16, Self::SPACING);
        Self {
            distance: distance.unwrap_or(by_share),
        }
    }

    /// Cuts where the number of bytes of all files is not known.
    pub(crate) fn of_stream(distance: Option<u64>) -> Self {
        Self::new(distance, 1, 1)
    }

    /// Returns true if the packed inode is cut before a file or tail with this hash and size in bytes.
    ///
    /// A larger file is cut before more often, so that the distance does not depend on the sizes of files.
    pub(crate) fn has(self, hash: u32, size: u64) -> bool {
        let threshold = (size.min(self.distance / 4) << 32) / self.distance;
        u64::from(hash) < threshold
    }
}
