//! Presets from the fastest-reading image to the smallest: [`suggest`] compares them, and a size budget tries
//! them in order.

pub mod suggest;

use super::options::{Auto, Compression, Fragments, Metadata, Options};
use tuff_codec::Method;
use tuff_format::features::{Feature, KernelVersion};

/// Named choice of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Oldest kernel that mounts the image.
    pub kernel: KernelVersion,
    /// Options that the preset sets.
    pub settings: Settings,
}

/// Options of a preset: method, level and cluster size in bytes, or an automatic choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Block-aligned clusters at this level.
    Plain(Method, i32, usize),
    /// Block-aligned clusters, with all files in the packed inode.
    Packed(Method, i32, usize),
    /// Byte-packed clusters at this level.
    Unaligned(Method, i32, usize),
    /// Options chosen from samples.
    Auto(Auto),
}

const K: usize = 1 << 10;

/// All presets, the fastest-reading first. Each is denser than its predecessors on usual trees; the differences vary.
pub const PRESETS: [Preset; 10] = [
    plain(Feature::BIG_PCLUSTER, Method::Lz4, 1, 64 * K),
    plain(Feature::BIG_PCLUSTER, Method::Lz4hc, 9, 16 * K),
    plain(Feature::BIG_PCLUSTER, Method::Lz4hc, 9, 64 * K),
    plain(Feature::BIG_PCLUSTER, Method::Lz4hc, 12, 256 * K),
    auto(Feature::ZSTD, Auto::Balanced),
    plain(Feature::ZSTD, Method::Zstd, 9, 64 * K),
    Preset {
        kernel: Feature::ENCODED_EXTENTS.min_kernel,
        settings: Settings::Unaligned(Method::Zstd, 9, 64 * K),
    },
    Preset {
        kernel: Feature::ZSTD.min_kernel,
        settings: Settings::Packed(Method::Zstd, 15, 256 * K),
    },
    plain(Feature::LZMA, Method::Lzma, 6, 128 * K),
    auto(Feature::FRAGMENTS, Auto::Size),
];

const fn plain(newest: Feature, method: Method, level: i32, cluster: usize) -> Preset {
    Preset {
        kernel: newest.min_kernel,
        settings: Settings::Plain(method, level, cluster),
    }
}

const fn auto(newest: Feature, goal: Auto) -> Preset {
    Preset {
        kernel: newest.min_kernel,
        settings: Settings::Auto(goal),
    }
}

impl Preset {
    /// Sets the options of the preset. Returns false if the kernel of `options` is too old for it.
    pub fn apply(&self, options: &mut Options) -> bool {
        if options.kernel < self.kernel {
            return false;
        }
        let mut plain = |method, level, cluster| {
            options.compression.default = Some(Compression {
                method,
                level,
                dict: None,
            });
            options.compression.cluster = cluster;
            options.layout.fragment_cluster = options.fragment_cluster(cluster);
        };
        match self.settings {
            Settings::Plain(method, level, cluster) => plain(method, level, cluster),
            Settings::Packed(method, level, cluster) => {
                plain(method, level, cluster);
                options.layout.fragments = Fragments::All;
                options.layout.fragment_cluster = cluster;
            }
            Settings::Unaligned(method, level, cluster) => {
                plain(method, level, cluster);
                options.layout.unaligned = true;
                options.metadata.form = Metadata::Short;
            }
            Settings::Auto(auto) => auto.apply(options),
        }
        options.fit_clusters();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_fits_its_kernel_and_newer_ones() {
        for preset in PRESETS {
            for kernel in KernelVersion::LONG_TERM {
                let mut options = Options::for_kernel(kernel);
                assert_eq!(preset.apply(&mut options), kernel >= preset.kernel);
                options.check().unwrap();
            }
            for bits in 9..12 {
                let mut options = Options::for_kernel(KernelVersion(6, 18));
                options.block = tuff_format::BlockBits::new(bits).unwrap();
                assert!(preset.apply(&mut options));
                options.check().unwrap();
            }
        }
    }
}
