//! Settings from the fastest-reading image to the smallest: what `tuff suggest` compares and `--size-budget` climbs.

use super::options::{Auto, Compression, Fragments, Metadata, Options};
use tuff_codec::Method;
use tuff_format::features::{Feature, KernelVersion};

/// One rung: settings with the arguments of `tuff build` that give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The arguments.
    pub args: &'static str,
    /// Oldest kernel that mounts the image.
    pub kernel: KernelVersion,
    settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settings {
    Plain(Method, i32, usize),
    Packed(Method, i32, usize),
    Unaligned(Method, i32, usize),
    Auto(Auto),
}

const K: usize = 1 << 10;

/// All rungs, the fastest-reading first. Each is denser than those before it on usual trees; by how much differs.
pub const PRESETS: [Preset; 10] = [
    plain(
        "-z lz4 -C 64K",
        Feature::BIG_PCLUSTER,
        Method::Lz4,
        1,
        64 * K,
    ),
    plain(
        "-z lz4hc -C 16K",
        Feature::BIG_PCLUSTER,
        Method::Lz4hc,
        9,
        16 * K,
    ),
    plain(
        "-z lz4hc -C 64K",
        Feature::BIG_PCLUSTER,
        Method::Lz4hc,
        9,
        64 * K,
    ),
    plain(
        "-z lz4hc:12 -C 256K",
        Feature::BIG_PCLUSTER,
        Method::Lz4hc,
        12,
        256 * K,
    ),
    auto("--auto balanced", Feature::ZSTD, Auto::Balanced),
    plain("-z zstd:9 -C 64K", Feature::ZSTD, Method::Zstd, 9, 64 * K),
    Preset {
        args: "-z zstd:9 -C 64K --unaligned",
        kernel: Feature::ENCODED_EXTENTS.min_kernel,
        settings: Settings::Unaligned(Method::Zstd, 9, 64 * K),
    },
    Preset {
        args: "-z zstd:15 -C 256K --fragments=all",
        kernel: Feature::ZSTD.min_kernel,
        settings: Settings::Packed(Method::Zstd, 15, 256 * K),
    },
    plain("-z lzma:6 -C 128K", Feature::LZMA, Method::Lzma, 6, 128 * K),
    auto("--auto size", Feature::FRAGMENTS, Auto::Size),
];

const fn plain(
    args: &'static str,
    newest: Feature,
    method: Method,
    level: i32,
    cluster: usize,
) -> Preset {
    Preset {
        args,
        kernel: newest.min_kernel,
        settings: Settings::Plain(method, level, cluster),
    }
}

const fn auto(args: &'static str, newest: Feature, aim: Auto) -> Preset {
    Preset {
        args,
        kernel: newest.min_kernel,
        settings: Settings::Auto(aim),
    }
}

impl Preset {
    /// Sets in `options` what the rung stands for. False if their kernel is older than it needs.
    pub fn apply(&self, options: &mut Options) -> bool {
        if options.kernel < self.kernel {
            return false;
        }
        let mut plain = |method, level, cluster| {
            options.compression = Some(Compression {
                method,
                level,
                dict: None,
            });
            options.cluster = cluster;
            options.fragment_cluster = cluster.min(super::options::FRAGMENT_CLUSTER);
        };
        match self.settings {
            Settings::Plain(method, level, cluster) => plain(method, level, cluster),
            Settings::Packed(method, level, cluster) => {
                plain(method, level, cluster);
                options.fragments = Fragments::All;
                options.fragment_cluster = cluster;
            }
            Settings::Unaligned(method, level, cluster) => {
                plain(method, level, cluster);
                options.unaligned = true;
                options.metadata = Metadata::Short;
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
    fn every_rung_fits_its_kernel_and_newer_ones() {
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
