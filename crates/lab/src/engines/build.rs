//! Command lines of image builders.

use super::tool::{Plan, Tool};
use crate::engines::settings::{Algorithm, Dedupe, Fragments, Settings};

/// Returns the name of an algorithm in the options of `tuff build`, mkfs.erofs, mksquashfs and mkdwarfs.
fn names(algorithm: Algorithm) -> [Option<&'static str>; 4] {
    match algorithm {
        Algorithm::Lz4 => ["lz4"; 4].map(Some),
        Algorithm::Lz4hc => ["lz4hc", "lz4hc", "lz4", "lz4hc"].map(Some),
        Algorithm::Deflate => [Some("deflate"), Some("deflate"), Some("gzip"), None],
        Algorithm::Libdeflate => [None, Some("libdeflate"), None, None],
        Algorithm::Lzma => ["lzma", "lzma", "xz", "lzma"].map(Some),
        Algorithm::Zstd => ["zstd"; 4].map(Some),
    }
}

/// Returns the name of the algorithm of the settings. `at` selects the tool in [`names`].
fn name(tool: Tool, s: &Settings, at: usize) -> Result<Option<&'static str>, String> {
    match s.algorithm {
        None if s.level.is_some() => Err("a level needs an algorithm".to_owned()),
        None => Ok(None),
        Some(algorithm) => match names(algorithm)[at] {
            None => Err(format!("{} has no algorithm {algorithm:?}", tool.name())),
            name => Ok(name),
        },
    }
}

pub(super) fn tuff_build(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    plan.words(["build", "--quiet"]);
    // Only Tuff rejects algorithms that its default kernel cannot mount.
    match (&s.kernel, s.algorithm) {
        (Some(kernel), _) => plan.word(format!("--kernel={kernel}")),
        (None, Some(Algorithm::Deflate)) => plan.word("--kernel=6.6"),
        (None, Some(Algorithm::Zstd)) => plan.word("--kernel=6.12"),
        _ => {}
    }
    if let Some(name) = name(plan.tool, s, 0)? {
        let level = s.level.map_or(String::new(), |level| format!(":{level}"));
        plan.words(["-z", &(name.to_owned() + &level)]);
    }
    if let Some(cluster) = s.cluster {
        plan.words(["-C", &cluster.to_string()]);
    }
    let switch = |on: bool| if on { "on" } else { "off" };
    let fragments = s.fragments.map(|fragments| match fragments {
        Fragments::Off => "off",
        Fragments::Tails => "on",
        Fragments::All => "all",
    });
    let dedupe = s.dedupe.map(|dedupe| match dedupe {
        Dedupe::Off => "off",
        Dedupe::Content => "content",
    });
    let cluster = s.fragment_cluster.map(|cluster| cluster.to_string());
    for (option, value) in [
        ("tail-packing", s.inline_tails.map(switch)),
        ("fragments", fragments),
        ("fragment-cluster", cluster.as_deref()),
        ("dedupe", dedupe),
        ("auto", s.auto.as_deref()),
    ] {
        if let Some(value) = value {
            plan.word(format!("--{option}={value}"));
        }
    }
    if s.unaligned == Some(true) {
        plan.word("--unaligned");
    }
    Ok(())
}

pub(super) fn mkfs_erofs(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    not_ours(plan.tool, s)?;
    plan.word("--quiet");
    match (name(plan.tool, s, 1)?, s.level) {
        (None, _) => {}
        (Some("lz4"), Some(_)) => return Err("mkfs.erofs has no level for lz4".to_owned()),
        // mkfs.erofs before 1.7 does not support `level=`; all versions accept the short form.
        (Some(name), Some(level)) => plan.word(format!("-z{name},{level}")),
        (Some(name), None) => plan.word(format!("-z{name}")),
    }
    if let Some(cluster) = s.cluster {
        plan.word(format!("-C{}", cluster.0));
    }
    let mut extended = Vec::new();
    if s.inline_tails == Some(true) {
        extended.push("ztailpacking".to_owned());
    }
    let cluster = s.fragment_cluster;
    let cluster = cluster.map_or(String::new(), |c| format!("={}", c.0));
    match s.fragments {
        None | Some(Fragments::Off) => {}
        Some(Fragments::Tails) => extended.push(format!("fragments{cluster}")),
        Some(Fragments::All) => extended.push(format!("all-fragments{cluster}")),
    }
    if s.dedupe == Some(Dedupe::Content) {
        extended.push("dedupe".to_owned());
    }
    if !extended.is_empty() {
        plan.word(format!("-E{}", extended.join(",")));
    }
    Ok(())
}

pub(super) fn mksquashfs(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    not_ours(plan.tool, s)?;
    if s.fragment_cluster.is_some() {
        return Err("mksquashfs packs fragments in blocks of the common size".to_owned());
    }
    plan.words(["-noappend", "-no-progress", "-quiet"]);
    if let Some(name) = name(plan.tool, s, 2)? {
        plan.words(["-comp", name]);
    }
    match (s.algorithm, s.level) {
        (Some(Algorithm::Lz4), Some(_)) => return Err("mksquashfs has no level for lz4".to_owned()),
        (Some(Algorithm::Lz4hc), level) => {
            plan.word("-Xhc");
            if level.is_some() {
                plan.notes
                    .push("mksquashfs has one level of LZ4HC".to_owned());
            }
        }
        (Some(Algorithm::Lzma), Some(_)) => {
            plan.notes
                .push("mksquashfs takes no level for xz".to_owned());
        }
        (_, Some(level)) => plan.words(["-Xcompression-level", &level.to_string()]),
        (_, None) => {}
    }
    if let Some(cluster) = s.cluster {
        plan.words(["-b", &cluster.0.to_string()]);
    }
    match s.fragments {
        None => {}
        Some(Fragments::Off) => plan.word("-no-fragments"),
        Some(Fragments::Tails) => plan.word("-always-use-fragments"),
        Some(Fragments::All) => {
            return Err("mksquashfs cannot put all files in fragments".to_owned());
        }
    }
    match s.dedupe {
        None => Ok(()),
        Some(Dedupe::Off) => {
            plan.word("-no-duplicates");
            Ok(())
        }
        Some(Dedupe::Content) => Err("mksquashfs deduplicates whole files only".to_owned()),
    }
}

/// A level without an algorithm selects mkdwarfs's set of settings of this level (`-l`).
pub(super) fn mkdwarfs(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    not_ours(plan.tool, s)?;
    let tails = s.inline_tails == Some(true) || s.fragment_cluster.is_some();
    if tails || matches!(s.fragments, Some(Fragments::Tails | Fragments::All)) {
        return Err("mkdwarfs packs neither tails nor fragments".to_owned());
    }
    if s.dedupe.is_some() {
        return Err("mkdwarfs has no option for the scope of dedupe".to_owned());
    }
    plan.words(["--no-progress", "--log-level=error"]);
    // Otherwise, it omits these files, and its threads that compress yield to other processes.
    plan.words(["--with-devices", "--with-specials", "--compress-niceness=0"]);
    match (s.algorithm, s.level) {
        (None, None) => {}
        (None, Some(level)) => plan.word(format!("-l{level}")),
        (Some(Algorithm::Lz4), Some(_)) => return Err("mkdwarfs has no level for lz4".to_owned()),
        (Some(_), level) => {
            let name = name(plan.tool, s, 3)?.unwrap_or_default();
            let level = level.map_or(String::new(), |level| format!(":level={level}"));
            plan.words(["-C", &(name.to_owned() + &level)]);
        }
    }
    match s.cluster {
        None => {}
        Some(size) if size.0.is_power_of_two() => plan.word(format!("-S{}", size.0.ilog2())),
        Some(size) => {
            return Err(format!(
                "the block size of mkdwarfs is a power of two, not {size}"
            ));
        }
    }
    Ok(())
}

/// Rejects settings that only Tuff supports.
fn not_ours(tool: Tool, s: &Settings) -> Result<(), String> {
    let name = tool.name();
    match (&s.auto, &s.kernel) {
        (Some(_), _) => Err(format!(
            "{name} has no option to choose settings automatically"
        )),
        (None, Some(_)) => Err(format!("{name} has no option for the target kernel")),
        (None, None) if s.unaligned == Some(true) => {
            Err(format!("{name} has no option for unaligned clusters"))
        }
        (None, None) => Ok(()),
    }
}
