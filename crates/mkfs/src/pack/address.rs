//! Addresses of data while an image is built.

/// Place of a block or grain: counted from the start of the image, or over the blocks of all bases in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the new image.
    Image(u32),
    /// In one of the bases.
    Base(u32),
}

/// Limit of the numbers in a [`Location`]. The format has 31 bits, because readers treat block addresses as signed.
pub(crate) const ADDRESS_LIMIT: u32 = 1 << 31;

/// Defines a [`Location`] of one unit in 32 bits: there may be millions of them.
macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name(u32);

        impl $name {
            /// Address of files without data in blocks.
            pub(crate) const NONE: Self = Self(0);

            /// Returns an address in the new image. `at` is below [`ADDRESS_LIMIT`].
            pub(crate) const fn image(at: u32) -> Self {
                debug_assert!(at < ADDRESS_LIMIT);
                Self(at)
            }

            /// Returns an address in a base. `at` is below [`ADDRESS_LIMIT`].
            pub(crate) const fn base(at: u32) -> Self {
                debug_assert!(at < ADDRESS_LIMIT);
                Self(at | ADDRESS_LIMIT)
            }

            /// Returns the image or base that holds the address.
            pub(crate) const fn location(self) -> Location {
                match self.0 & ADDRESS_LIMIT {
                    0 => Location::Image(self.0),
                    _ => Location::Base(self.0 & !ADDRESS_LIMIT),
                }
            }

            /// Returns a number that orders addresses: those of bases follow those of the image.
            pub(crate) const fn order(self) -> u32 {
                self.0
            }

            /// Returns the address `count` units later.
            pub(crate) const fn plus(self, count: u32) -> Self {
                Self(self.0.wrapping_add(count))
            }
        }
    };
}

address! {
    /// First block of a file's data.
    DataBlock
}

address! {
    /// First grain of a cluster; see [`Grain`](super::grain::Grain).
    GrainAddr
}

/// Position of a fragment in the packed inode, in bytes. The parts of the packed inode get their place when all files are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentLocation {
    /// Counted from the start of the packed inode.
    Start(u64),
    /// Counted from the first tail of a file, which follows all whole files.
    Tails(u64),
    /// Counted over the packed inodes of all bases in their order.
    Base(u64),
}

/// A [`FragmentLocation`] in 64 bits: there may be millions of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentAddr(u64);

impl FragmentAddr {
    /// Limit of the numbers in a [`FragmentLocation`].
    pub(crate) const LIMIT: u64 = 1 << 60;
    const TAILS: u64 = 1 << 63;
    const BASE: u64 = 1 << 62;

    /// Returns the address of a location below [`LIMIT`](Self::LIMIT).
    pub(crate) const fn new(location: FragmentLocation) -> Self {
        Self(match location {
            FragmentLocation::Start(offset) => offset,
            FragmentLocation::Tails(offset) => offset | Self::TAILS,
            FragmentLocation::Base(offset) => offset | Self::BASE,
        })
    }

    /// Returns the part of the packed inode that holds the address.
    pub(crate) const fn location(self) -> FragmentLocation {
        if self.0 & Self::TAILS != 0 {
            FragmentLocation::Tails(self.0 & !Self::TAILS)
        } else if self.0 & Self::BASE != 0 {
            FragmentLocation::Base(self.0 & !Self::BASE)
        } else {
            FragmentLocation::Start(self.0)
        }
    }

    /// Returns the position in the packed inode, once all files are packed. Unit: bytes.
    pub(crate) const fn offset(self) -> u64 {
        debug_assert!(matches!(self.location(), FragmentLocation::Start(_)));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_location() {
        for at in [0, 1, ADDRESS_LIMIT - 1] {
            assert_eq!(GrainAddr::image(at).location(), Location::Image(at));
            assert_eq!(DataBlock::base(at).location(), Location::Base(at));
        }
        assert_eq!(GrainAddr::base(7).plus(3), GrainAddr::base(10));
        for at in [0, 1, FragmentAddr::LIMIT] {
            for location in [
                FragmentLocation::Start(at),
                FragmentLocation::Tails(at),
                FragmentLocation::Base(at),
            ] {
                assert_eq!(FragmentAddr::new(location).location(), location);
            }
        }
    }
}
