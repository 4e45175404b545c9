//! Converts arguments to the options of the library.

use super::args::{Args, MaybeCompression, parse_compression};
use crate::units::parse_size;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tuff_erofs::serve::Profile;
use tuff_erofs::{Error, Result};
use tuff_format::features::Feature;
use tuff_mkfs::{
    Contexts, Fragments, FsConfig, LeftOut, Metadata, Method, Options, Rule, Verity, Whiteouts,
};
use tuff_store::open_text;

fn verity(args: &Args) -> Result<Option<Verity>> {
    let default = Verity::default();
    let more =
        args.verity_salt.is_some() || args.verity_block.is_some() || args.verity_fec.is_some();
    if !args.verity && more {
        return Err(Error::usage(
            "--verity-salt, --verity-block and --verity-fec need --verity",
        ));
    }
    let salt = args.verity_salt.clone().map(|salt| salt.0);
    Ok(args.verity.then(|| Verity {
        block: args.verity_block.unwrap_or(default.block),
        salt: salt.unwrap_or(default.salt),
        parity: args.verity_fec,
    }))
}

/// Returns the options of the library, for `--kernel` or the oldest kernel that supports the other options.
pub(super) fn options(args: &Args) -> Result<Options> {
    let mut options = as_asked(args)?;
    if args.kernel.is_none() {
        options.raise_kernel();
    }
    Ok(options)
}

fn as_asked(args: &Args) -> Result<Options> {
    let kernel = args.kernel.unwrap_or(Options::default().kernel);
    let mut o = Options::for_kernel(kernel);
    let narrow = |n: u64, what: &str| {
        usize::try_from(n).map_err(|_| Error::usage(format_args!("{what} is too large")))
    };
    let block = args.block_size.unwrap_or(match args.tar_index {
        true => 512,
        false => 4096,
    });
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(Error::usage(format_args!(
            "block size {block}: a power of two from 512 to 65536 is needed"
        )));
    }
    o.block = tuff_format::BlockBits::new(block.trailing_zeros() as u8).map_err(Error::usage)?;
    if let Some(auto) = args.auto {
        auto.apply(&mut o);
    }
    if let Some(MaybeCompression(compression)) = args.compress {
        o.compression.default = compression;
    }
    let dict = args.dict.map(|d| narrow(d, "--dict")).transpose()?;
    if let Some(compression) = &mut o.compression.default {
        compression.dict =
            dict.filter(|_| matches!(compression.method, Method::Lzma | Method::Zstd));
    }
    o.fit_clusters();
    if let Some(cluster) = args.cluster {
        o.set_cluster(narrow(cluster, "--cluster")?);
    }
    if let Some(window) = args.window {
        o.compression.window = narrow(window, "--window")?;
    }
    o.compression.rules = args
        .rule
        .iter()
        .map(|r| parse_rule(r, dict))
        .collect::<Result<_>>()?;
    let rules = o.compression.rules.iter().filter_map(|r| r.compression);
    let has_dict = o
        .compression
        .default
        .into_iter()
        .chain(rules)
        .any(|c| c.dict.is_some());
    if dict.is_some() && !has_dict {
        return Err(Error::usage(
            "--dict: only LZMA and Zstandard have a dictionary; choose one with -z",
        ));
    }
    if !(0.0..=100.0).contains(&args.min_saving) {
        return Err(Error::usage(format_args!(
            "--min-saving {}: from 0 to 100 percent",
            args.min_saving
        )));
    }
    o.compression.min_saving = (args.min_saving * 10.0) as u32;
    if let Some(fragments) = args.fragments {
        o.layout.fragments = fragments;
    }
    if o.layout.fragments == Fragments::All {
        o.layout.fragment_cluster = o.compression.cluster;
    }
    if let Some(cluster) = args.fragment_cluster {
        o.layout.fragment_cluster = narrow(cluster, "--fragment-cluster")?;
        o.layout.similar_cluster_max = o.layout.fragment_cluster;
    }
    o.layout.fragment_cut = args.fragment_cut;
    // Fragments and tail packing both store tails. Enabling one alone disables the other.
    match (args.fragments, args.tail_packing) {
        (None, Some(true)) => (o.layout.fragments, o.layout.tail_packing) = (Fragments::Off, true),
        (_, Some(tail_packing)) => o.layout.tail_packing = tail_packing,
        (Some(Fragments::Off | Fragments::Small), None) => {
            o.layout.tail_packing = kernel.supports(Feature::ZTAILPACKING) && !args.unaligned;
        }
        (Some(Fragments::Tails | Fragments::All), None) => o.layout.tail_packing = false,
        (None, None) => {}
    }
    o.layout.inline_data = args.inline_data;
    if let Some(dedupe) = args.dedupe {
        o.dedupe.mode = dedupe;
    }
    o.dedupe.image_index = args.image_index;
    o.layout.chunk = args.chunk.map(|c| narrow(c, "--chunk")).transpose()?;
    o.layout.blob = args.blob.clone();
    if args.tar_index {
        o.index_a_tar();
    }
    // `--auto=size` may enable it, but tail packing was requested explicitly.
    o.layout.unaligned = args.unaligned || o.layout.unaligned && !o.layout.tail_packing;
    o.layout.compact_index = args.index;
    o.metadata.inodes = args.inodes;
    if args.unaligned {
        // Every kernel with byte-packed clusters reads the short form.
        o.metadata.form = Metadata::Short;
    }
    if let Some(metadata) = args.metadata {
        o.metadata.form = metadata;
    }
    if let Some(cluster) = args.metadata_cluster {
        o.metadata.cluster = narrow(cluster, "--metadata-cluster")?;
    }
    o.layout.sparse = args.sparse;
    if let Some(file) = &args.order {
        o.sources.order = order(file)?;
    }
    o.metadata.timestamp = args.timestamp;
    if args.timestamp.is_none() {
        o.metadata.clamp = source_date_epoch()?;
    }
    o.metadata.uuid = args.uuid.0;
    o.metadata.label = args.label.clone().into_bytes();
    (o.metadata.uid, o.metadata.gid) = if args.all_root {
        (Some(0), Some(0))
    } else {
        (args.uid, args.gid)
    };
    (o.metadata.uid_offset, o.metadata.gid_offset) = (args.uid_offset, args.gid_offset);
    if let Some(file) = &args.file_contexts {
        o.metadata.contexts = Some(contexts(file)?);
    }
    if let Some(file) = &args.fs_config {
        o.metadata.fs_config = Some(fs_config(file)?);
    }
    o.metadata.mount_point = mount_point(args.mount_point.as_os_str().as_bytes());
    o.sources.hard_links = !args.no_hard_links;
    o.metadata.xattrs = !args.no_xattrs;
    o.metadata.xattr_share = args.xattr_share;
    o.metadata.xattr_prefixes = args
        .xattr_prefix
        .iter()
        .map(|p| p.clone().into_bytes())
        .collect();
    o.metadata.fingerprints = args.fingerprints.clone().map(String::into_bytes);
    o.metadata.xattr_filter = !args.no_xattr_filter;
    o.metadata.checksum = !args.no_checksum;
    let mut patterns = args.exclude.clone();
    for file in &args.exclude_from {
        patterns.extend(lines(file)?);
    }
    o.sources.exclude = glob_set(&patterns)?;
    o.sources.one_file_system = args.one_file_system;
    if let Some(path) = &args.subtree {
        o.sources.subtree = path.as_os_str().as_bytes().to_vec();
    }
    o.sources.keep_going = args.keep_going.then(LeftOut::default);
    o.sources.whiteouts = args.whiteouts;
    if o.sources.whiteouts == Some(Whiteouts::Convert) && !o.metadata.xattrs {
        return Err(Error::usage(
            "--no-xattrs: what --whiteouts convert writes are attributes",
        ));
    }
    o.resources.threads = args.threads.map(usize::from);
    o.resources.memory = args.memory;
    o.resources.max_expansion = Some(args.max_expansion);
    o.output.size_budget = args.size_budget;
    o.output.verify = args.verify;
    o.output.verity = verity(args)?;
    o.output.sync = args.sync;
    Ok(o)
}

/// Returns the time of SOURCE_DATE_EPOCH. An empty variable counts as unset.
pub(crate) fn source_date_epoch() -> Result<Option<i64>> {
    let value = std::env::var_os("SOURCE_DATE_EPOCH").filter(|value| !value.is_empty());
    let Some(value) = value else {
        return Ok(None);
    };
    let parsed = value.to_str().and_then(|v| v.trim().parse().ok());
    let shown = value.to_string_lossy();
    parsed.map(Some).ok_or_else(|| {
        Error::usage(format_args!(
            "SOURCE_DATE_EPOCH is '{shown}', not a number of seconds"
        ))
    })
}

/// Converts a mount point to the form of the library: empty, or with a leading slash.
pub(crate) fn mount_point(path: &[u8]) -> Vec<u8> {
    match path.strip_prefix(b"/").unwrap_or(path) {
        [] => Vec::new(),
        inside => [b"/", inside].concat(),
    }
}

/// Reads SELinux labels from a `file_contexts` file.
pub(crate) fn contexts(file: &Path) -> Result<Contexts> {
    Contexts::parse(&file.display().to_string(), &read(file)?)
}

/// Reads owners and modes from a canned `fs_config` file.
pub(crate) fn fs_config(file: &Path) -> Result<FsConfig> {
    FsConfig::parse(&file.display().to_string(), &read(file)?)
}

/// Reads the paths of a list or a profile, in order.
fn order(file: &Path) -> Result<Vec<Vec<u8>>> {
    let text = read(file)?;
    // A profile of another version is not a list either.
    if text.starts_with(b"tuff profile ") {
        let profile = Profile::parse(&text).map_err(|e| e.within(file.display()))?;
        return Ok(profile.paths());
    }
    let path = |line: String| {
        let path = line.trim_start_matches("./").trim_matches('/');
        path.as_bytes().to_vec()
    };
    Ok(lines(file)?.into_iter().map(path).collect())
}

/// Largest list, table or profile. Unit: bytes.
const TEXT_MAX: u64 = 1 << 28;

/// Reads a list, table or profile.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::io(file.display(), "cannot read", e);
    let open = open_text(file).map_err(failed)?;
    let mut text = Vec::new();
    let length = open.take(TEXT_MAX + 1).read_to_end(&mut text);
    if length.map_err(failed)? as u64 > TEXT_MAX {
        let name = file.display();
        return Err(Error::usage(format_args!(
            "{name}: is longer than {TEXT_MAX} bytes, which no list of paths is"
        )));
    }
    Ok(text)
}

fn lines(file: &Path) -> Result<Vec<String>> {
    let text = read(file)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(text
        .lines()
        .map(str::to_owned)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect())
}

/// Anchors a pattern: without a slash it matches names anywhere, with one it matches paths from the root.
fn anchored(pattern: &str) -> String {
    let pattern = pattern.trim_end_matches('/');
    match pattern.trim_start_matches("./").strip_prefix('/') {
        Some(path) => path.to_owned(),
        None if pattern.contains('/') => pattern.trim_start_matches("./").to_owned(),
        None => format!("**/{pattern}"),
    }
}

fn glob(pattern: &str) -> Result<globset::Glob> {
    let built = globset::GlobBuilder::new(&anchored(pattern))
        .literal_separator(true)
        .backslash_escape(true)
        .build();
    built.map_err(|e| Error::usage(format_args!("pattern '{pattern}': {}", e.kind())))
}

fn glob_set(patterns: &[String]) -> Result<globset::GlobSet> {
    let mut set = globset::GlobSetBuilder::new();
    for pattern in patterns {
        set.add(glob(pattern)?);
    }
    set.build()
        .map_err(|e| Error::usage(format_args!("patterns: {e}")))
}

fn parse_rule(text: &str, dict: Option<usize>) -> Result<Rule> {
    let wrong = |what: &str| Error::usage(format_args!("--rule '{text}': {what}"));
    let (pattern, settings) = text
        .rsplit_once('=')
        .ok_or_else(|| wrong("write GLOB=ALG[:LEVEL][,CLUSTER]"))?;
    let (algorithm, cluster) = match settings.split_once(',') {
        Some((algorithm, cluster)) => {
            (algorithm, Some(parse_size(cluster).map_err(|e| wrong(&e))?))
        }
        None => (settings, None),
    };
    let MaybeCompression(mut compression) = parse_compression(algorithm).map_err(|e| wrong(&e))?;
    if let Some(c) = &mut compression {
        c.dict = dict.filter(|_| matches!(c.method, Method::Lzma | Method::Zstd));
    }
    let cluster = cluster
        .map(usize::try_from)
        .transpose()
        .map_err(|_| wrong("the cluster is too large"))?;
    Ok(Rule {
        paths: glob(pattern)?.compile_matcher().into(),
        compression,
        cluster,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_without_a_slash_match_anywhere() {
        let set = glob_set(&[
            "*.o".to_owned(),
            "/var/log/*".to_owned(),
            "usr/doc/".to_owned(),
        ])
        .unwrap();
        for path in ["a.o", "x/y/a.o", "var/log/x", "usr/doc"] {
            assert!(set.is_match(path), "{path}");
        }
        for path in ["a.c", "x/var/log/y", "var/log/x/y"] {
            assert!(!set.is_match(path), "{path}");
        }
    }
}
