//! Command lines of image builders.

use super::tool::{Plan, Tool};
use crate::engines::settings::{Algorithm, Dedupe, Fragments, Settings};

pub(super) fn tuff_build(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    plan.words(["build", "--quiet"]);
    // Only Tuff rejects algorithms that its default kernel cannot mount.
    match (&s.kernel, s.algorithm) {
        (Some(kernel), _) => plan.word(format!("--kernel={kernel}")),
        (None, Some(Algorithm::Deflate)) => plan.word("--kernel=6.6"),
        (None, Some(Algorithm::Zstd)) => plan.word("--kernel=6.12"),
        _ => {}
    }
    if let Some(algorithm) = s.algorithm {
        let name = match algorithm {
            Algorithm::None => "none",
            Algorithm::Lz4 => "lz4",
            Algorithm::Lz4hc => "lz4hc",
            Algorithm::Deflate => "deflate",
            Algorithm::Libdeflate => {
                return Err("libdeflate is an encoder of mkfs.erofs".to_owned());
            }
            Algorithm::Lzma => "lzma",
            Algorithm::Zstd => "zstd",
        };
        plan.word("-z");
        plan.word(match s.level {
            Some(level) => format!("{name}:{level}"),
            None => name.to_owned(),
        });
    } else if s.level.is_some() {
        return Err("a level needs an algorithm".to_owned());
    }
    if let Some(cluster) = s.cluster {
        plan.word("-C");
        plan.word(cluster.to_string());
    }
    if let Some(dict) = s.dict {
        plan.word(format!("--dict={dict}"));
    }
    if let Some(on) = s.inline_tails {
        plan.word(if on {
            "--tail-packing=on"
        } else {
            "--tail-packing=off"
        });
    }
    if let Some(fragments) = s.fragments {
        plan.word(match fragments {
            Fragments::Off => "--fragments=off",
            Fragments::Tails => "--fragments=on",
            Fragments::All => "--fragments=all",
        });
    }
    if let Some(cluster) = s.fragment_cluster {
        plan.word(format!("--fragment-cluster={cluster}"));
    }
    if let Some(dedupe) = s.dedupe {
        plan.word(match dedupe {
            Dedupe::Off => "--dedupe=off",
            Dedupe::Files => "--dedupe=on",
            Dedupe::Content => "--dedupe=content",
        });
    }
    if s.unaligned == Some(true) {
        plan.word("--unaligned");
    }
    if let Some(goal) = &s.auto {
        plan.word(format!("--auto={goal}"));
    }
    if let Some(n) = s.threads {
        plan.word(format!("--threads={n}"));
    }
    Ok(())
}

pub(super) fn mkfs_erofs(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    not_ours(plan.tool, s)?;
    plan.word("--quiet");
    let name = match s.algorithm {
        None | Some(Algorithm::None) => None,
        Some(Algorithm::Lz4) => Some("lz4"),
        Some(Algorithm::Lz4hc) => Some("lz4hc"),
        Some(Algorithm::Deflate) => Some("deflate"),
        Some(Algorithm::Libdeflate) => Some("libdeflate"),
        Some(Algorithm::Lzma) => Some("lzma"),
        Some(Algorithm::Zstd) => Some("zstd"),
    };
    match (name, s.level, s.dict) {
        (None, None, None) => {}
        (None, ..) => return Err("a level or dictionary needs an algorithm".to_owned()),
        (Some("lz4"), Some(_), _) => return Err("mkfs.erofs has no level for lz4".to_owned()),
        // mkfs.erofs before 1.7 does not support `level=`; all versions accept the short form.
        (Some(name), level, None) => {
            let level = level.map_or(String::new(), |l| format!(",{l}"));
            plan.word(format!("-z{name}{level}"));
        }
        (Some(name), level, Some(dict)) => {
            let level = level.map_or(String::new(), |l| format!(",level={l}"));
            plan.word(format!("-z{name}{level},dictsize={}", dict.0));
        }
    }
    if let Some(cluster) = s.cluster {
        plan.word(format!("-C{}", cluster.0));
    }
    let mut extended = Vec::new();
    if s.inline_tails == Some(true) {
        extended.push("ztailpacking".to_owned());
    }
    let cluster = s
        .fragment_cluster
        .map_or(String::new(), |c| format!("={}", c.0));
    match s.fragments {
        None | Some(Fragments::Off) => {}
        Some(Fragments::Tails) => extended.push(format!("fragments{cluster}")),
        Some(Fragments::All) => extended.push(format!("all-fragments{cluster}")),
    }
    match s.dedupe {
        None | Some(Dedupe::Off) => {}
        Some(Dedupe::Files) => {
            return Err("mkfs.erofs cannot deduplicate whole files only".to_owned());
        }
        Some(Dedupe::Content) => extended.push("dedupe".to_owned()),
    }
    if !extended.is_empty() {
        plan.word(format!("-E{}", extended.join(",")));
    }
    if let Some(n) = s.threads {
        plan.word(format!("--workers={n}"));
    }
    Ok(())
}

pub(super) fn mksquashfs(plan: &mut Plan, s: &Settings) -> Result<(), String> {
    not_ours(plan.tool, s)?;
    if s.fragment_cluster.is_some() {
        return Err("mksquashfs packs fragments in blocks of the common size".to_owned());
    }
    plan.words(["-noappend", "-no-progress", "-quiet"]);
    let comp = match s.algorithm {
        None => None,
        Some(Algorithm::None) => {
            plan.words(["-noI", "-noD", "-noF", "-noX"]);
            None
        }
        Some(Algorithm::Lz4 | Algorithm::Lz4hc) => Some("lz4"),
        Some(Algorithm::Deflate) => Some("gzip"),
        Some(Algorithm::Libdeflate) => {
            return Err("libdeflate is an encoder of mkfs.erofs".to_owned());
        }
        Some(Algorithm::Lzma) => Some("xz"),
        Some(Algorithm::Zstd) => Some("zstd"),
    };
    if let Some(comp) = comp {
        plan.words(["-comp", comp]);
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
        (Some(Algorithm::Deflate | Algorithm::Zstd), Some(level)) => {
            plan.word("-Xcompression-level");
            plan.word(level.to_string());
        }
        (None | Some(Algorithm::None), Some(_)) => {
            return Err("a level needs an algorithm".to_owned());
        }
        _ => {}
    }
    match (s.algorithm, s.dict) {
        (_, None) => {}
        (Some(Algorithm::Lzma), Some(dict)) => {
            plan.word("-Xdict-size");
            plan.word(dict.0.to_string());
        }
        _ => return Err("mksquashfs takes a dictionary size for xz only".to_owned()),
    }
    if let Some(cluster) = s.cluster {
        plan.word("-b");
        plan.word(cluster.0.to_string());
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
        None | Some(Dedupe::Files) => {}
        Some(Dedupe::Off) => plan.word("-no-duplicates"),
        Some(Dedupe::Content) => {
            return Err("mksquashfs deduplicates whole files only".to_owned());
        }
    }
    if let Some(n) = s.threads {
        plan.word("-processors");
        plan.word(n.to_string());
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
