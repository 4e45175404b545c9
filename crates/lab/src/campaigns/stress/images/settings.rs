//! Random settings of a build that depend on a seed: all options that change bytes of the image, in random
//! combinations.

use tuff_testkit::Rng;

/// Returns a random element of `of`, a list with bars between the elements.
fn one<'a>(rng: &mut Rng, of: &'a str) -> &'a str {
    let all: Vec<&str> = of.split('|').collect();
    all[rng.below(all.len())]
}

/// Draws arguments of `tuff build`, without paths. No option changes the tree that the image contains.
pub(super) fn draw(rng: &mut Rng) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut say = |name: &str, value: &str| arguments.push(format!("--{name}={value}"));
    if rng.below(4) == 0 {
        let kernels = "5.4|5.13|5.16|6.1|6.6|6.10|6.12|6.15|6.17|6.18";
        say("kernel", one(rng, kernels));
    }
    match rng.below(10) {
        0 => say("auto", one(rng, "size|balanced|speed")),
        1 => {}
        _ => {
            let algorithms = "none|lz4|lz4:2|lz4hc:3|lz4hc|lz4hc:12|deflate:1|deflate:6|lzma:1|lzma:6|zstd:1|zstd:3|zstd:9|zstd:15";
            say("compress", one(rng, algorithms));
        }
    }
    if rng.below(4) > 0 {
        let clusters = "4K|8K|12K|16K|32K|64K|128K|256K|1M";
        say("cluster", one(rng, clusters));
    }
    // The last number is the reciprocal of the probability.
    for (name, values, often) in [
        ("block-size", "512|1K|2K", 8),
        ("window", "4K|64K|300000|2M", 8),
        ("set=min-saving", "0|5|40", 8),
        ("tail-packing", "on|off", 3),
        ("inline-data", "off", 6),
        ("fragments", "off|tails|small|all", 2),
        ("fragment-cluster", "4K|32K|128K", 6),
        ("dedupe", "off|files|content", 2),
        ("chunk", "4K|16K|1M", 8),
        ("dict", "64K|1M", 12),
        ("order", "order", 8),
        ("set=index", "full", 5),
        ("set=inodes", "extended", 6),
        ("metadata", "plain|short|compressed", 3),
        ("set=metadata-cluster", "4K|64K", 10),
        ("sparse", "keep|fill", 4),
        ("set=xattr-share", "1|2|100", 5),
        ("xattr-prefix", "user.name|trusted.overlay.", 6),
        ("rule", "*.txt=zstd:3,16K|*.so=lz4hc,8K|*1*=none", 5),
        ("memory", "1M|16M", 8),
        ("uuid", "zero|00112233445566778899aabbccddeeff", 8),
        ("label", "a label", 12),
    ] {
        if rng.below(often) == 0 {
            say(name, one(rng, values));
        }
    }
    for (flags, often) in [
        ("--unaligned", 4),
        ("--set=no-xattr-filter", 8),
        ("--no-checksum", 8),
        ("--verify", 12),
        ("--verity", 12),
        ("--verity|--verity-block=1K|--verity-salt=5a17", 20),
        ("--verity|--verity-fec=2", 20),
    ] {
        let flags = || flags.split('|');
        if rng.below(often) == 0 && !arguments.iter().any(|a| flags().next() == Some(a)) {
            arguments.extend(flags().map(str::to_owned));
        }
    }
    arguments
}

/// Returns settings that store chunks in a separate blob. Such an image is neither patched nor the base of a
/// delta image.
pub(super) fn with_blob(settings: &[String]) -> Vec<String> {
    let replaced = ["--chunk=", "--compress=", "--auto="];
    let kept = |a: &&String| !replaced.iter().any(|name| a.starts_with(name));
    let mut settings: Vec<String> = settings.iter().filter(kept).cloned().collect();
    settings.extend(["--compress=none", "--chunk=4K"].map(str::to_owned));
    settings
}

/// Returns the settings that apply to an index of a tar.
pub(super) fn of_index(settings: &[String]) -> Vec<String> {
    let names = "--set=inodes=|--set=xattr-|--set=no-|--xattr-|--no-|--uuid=|--label=|--block-size=|--verity";
    let kept = |a: &&String| names.split('|').any(|name| a.starts_with(name));
    settings.iter().filter(kept).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_depend_on_the_seed_alone() {
        let of = |seed| draw(&mut Rng::new(seed));
        assert_eq!(of(5), of(5));
        let kinds: std::collections::HashSet<_> = (0..100).map(of).collect();
        assert!(kinds.len() > 90);
    }
}
