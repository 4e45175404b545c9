//! Cuts of the packed inode. A cluster starts at a cut whatever the files before are, so a change of a file changes only
//! clusters up to the next cut.

/// Chooses cuts. The decision depends on a file alone, so versions of an image have the same cuts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    /// Average number of bytes between two cuts.
    distance: u64,
}

impl Cuts {
    /// Number of bytes of all files of an image for each cut by default, as a multiple of the cluster size: 2 MiB for clusters of
    /// 16 KiB. A cut costs half a block on average, and a larger cluster loses more with its end.
    const SPACING: u64 = 128;

    /// Cuts at a distance in bytes. By default it follows from the cluster size, the number of bytes of files in the packed inode
    /// and that of all files.
    pub(crate) fn new(distance: Option<u64>, cluster: usize, packed: u64, all: u64) -> Self {
        let spacing = Self::SPACING * cluster as u64;
        let by_share = u128::from(spacing) * u128::from(packed) / u128::from(all.max(1));
        let by_share = u64::try_from(by_share).unwrap_or(u64::MAX);
        Self {
            distance: distance
                .unwrap_or(by_share.clamp(spacing / 16, spacing))
                .max(1),
        }
    }

    /// Cuts where the number of bytes of all files is not known.
    pub(crate) fn of_stream(distance: Option<u64>, cluster: usize) -> Self {
        Self::new(distance, cluster, 1, 1)
    }

    /// Returns true if the packed inode is cut before a file or tail with this hash and size in bytes.
    ///
    /// A larger file is cut before more often, so that the distance does not depend on the sizes of files.
    pub(crate) fn has(self, hash: u32, size: u64) -> bool {
        let threshold = (size.min(self.distance / 4) << 32) / self.distance;
        u64::from(hash) < threshold
    }
}
