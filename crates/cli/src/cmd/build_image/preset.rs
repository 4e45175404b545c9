//! Command-line form of the library's presets.

use tuff_mkfs::presets::{Preset, Settings};
use tuff_mkfs::{Auto, Method};

/// Arguments of `tuff build` that select the options of `preset`.
pub(crate) fn arguments(preset: &Preset) -> String {
    match preset.settings {
        Settings::Plain(method, level, cluster) => compression(method, level, cluster),
        Settings::Packed(method, level, cluster) => {
            format!("{} --fragments=all", compression(method, level, cluster))
        }
        Settings::Unaligned(method, level, cluster) => {
            format!("{} --unaligned", compression(method, level, cluster))
        }
        Settings::Auto(Auto::Size) => "--auto size".to_owned(),
        Settings::Auto(Auto::Balanced) => "--auto balanced".to_owned(),
        Settings::Auto(Auto::Speed) => "--auto speed".to_owned(),
    }
}

fn compression(method: Method, level: i32, cluster: usize) -> String {
    let is_lz4 = matches!(method, Method::Lz4 | Method::Lz4hc);
    let level = match is_lz4 && level == method.default_level() {
        true => String::new(),
        false => format!(":{level}"),
    };
    format!("-z {method}{level} -C {}K", cluster >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use tuff_mkfs::presets::PRESETS;

    #[test]
    fn the_arguments_of_a_preset_are_valid() {
        let all: Vec<String> = PRESETS.iter().map(arguments).collect();
        assert_eq!(
            all,
            [
                "-z lz4 -C 64K",
                "-z lz4hc -C 16K",
                "-z lz4hc -C 64K",
                "-z lz4hc:12 -C 256K",
                "--auto balanced",
                "-z zstd:9 -C 64K",
                "-z zstd:9 -C 64K --unaligned",
                "-z zstd:15 -C 256K --fragments=all",
                "-z lzma:6 -C 128K",
                "--auto size",
            ]
        );
        for line in all {
            let words = format!("tuff build {line} source image");
            let parsed = Cli::command().try_get_matches_from(words.split(' '));
            assert!(parsed.is_ok(), "{line}");
        }
    }
}
