//! Address spaces that contain the bytes of an image.

use crate::read::{Image, Inode, Space};

/// Address space that contains bytes of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// Primary store (0) or the n-th extra device (n).
    Store(u16),
    /// Data of the metabox inode.
    Metabox,
}

pub(super) fn area_of(space: Space) -> Area {
    match space {
        Space::Image => Area::Store(0),
        Space::Metabox => Area::Metabox,
    }
}

/// Returns the size of an area, in bytes.
pub(super) fn area_size(image: &Image, area: Area) -> u64 {
    match area {
        Area::Store(n) => image.devices.size(n),
        Area::Metabox => image.metabox().map_or(0, Inode::size),
    }
}
