//! Features of `-E` and `--zfeature-bits`.

use super::args::MkfsArgs;
use crate::units::parse_size;
use tuff_erofs::{Error, Result};
use tuff_mkfs::{Dedupe, Fragments, InodeForm, Metadata};

/// Features of `--zfeature-bits`, from bit 0.
const BITS: [&str; 8] = [
    "legacy-compress",
    "ztailpacking",
    "fragments",
    "all-fragments",
    "dedupe",
    "fragdedupe",
    "48bit",
    "dot-omitted",
];

/// Applies a list of `-E`.
pub(super) fn list(args: &mut MkfsArgs, list: &str) -> Result<()> {
    for word in list.split(',').filter(|word| !word.is_empty()) {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match name.strip_prefix('^') {
            Some(name) => feature(args, name, false, value)?,
            None => feature(args, name, true, value)?,
        }
    }
    Ok(())
}

/// Applies the features of a bit mask.
pub(super) fn bits(args: &mut MkfsArgs, mask: u64) -> Result<()> {
    if mask >> BITS.len() != 0 {
        return Err(Error::usage(format_args!(
            "--zfeature-bits {mask}: only bits 0 to 7 are known here"
        )));
    }
    for (i, name) in BITS.into_iter().enumerate() {
        if mask >> i & 1 == 1 {
            feature(args, name, true, None)?;
        }
    }
    Ok(())
}

fn feature(args: &mut MkfsArgs, name: &str, on: bool, value: Option<&str>) -> Result<()> {
    let takes_value = matches!(name, "fragments" | "all-fragments" | "fragdedupe");
    if let Some(value) = value.filter(|_| !takes_value || !on) {
        return Err(Error::usage(format_args!(
            "-E {name}: it has no value, but got '{value}'"
        )));
    }
    let o = &mut args.options;
    match name {
        "48bit" | "dot-omitted" if on => {
            if o.metadata.form == Metadata::Plain {
                o.metadata.form = Metadata::Short;
            }
        }
        "48bit" | "dot-omitted" => {}
        "fragments" | "all-fragments" => {
            o.layout.fragments = match (on, name) {
                (false, _) => Fragments::Off,
                (true, "all-fragments") => Fragments::All,
                (true, _) if o.layout.fragments == Fragments::All => Fragments::All,
                (true, _) => Fragments::Tails,
            };
            if let Some(value) = value {
                let size = parse_size(value);
                let size = size.map_err(|e| Error::usage(format_args!("-E {name}: {e}")))?;
                args.fragment_cluster = Some(size);
            }
        }
        "fragdedupe" => {
            args.fragment_dedupe = match (on, value) {
                (false, _) => false,
                (true, None | Some("full" | "inode")) => true,
                (true, Some(other)) => {
                    return Err(Error::usage(format_args!(
                        "-E fragdedupe={other}: inode or full"
                    )));
                }
            }
        }
        "dedupe" => args.dedupe = Some(if on { Dedupe::Content } else { Dedupe::Off }),
        "ztailpacking" => o.layout.tail_packing = on,
        "legacy-compress" => o.layout.compact_index = !on,
        "force-inode-compact" => args.ignore_mtime |= on,
        "force-inode-extended" => {
            o.metadata.inodes = if on {
                InodeForm::Extended
            } else {
                InodeForm::Auto
            }
        }
        "inline_data" => o.layout.inline_data = on,
        "noinline_data" => o.layout.inline_data = !on,
        "nosbcrc" => o.metadata.checksum = !on,
        "xattr-name-filter" => o.metadata.xattr_filter = on,
        "plain-xattr-prefixes" => args.plain_prefixes = on,
        "force-chunk-indexes" => o.layout.chunk_indexes = on,
        "force-inode-blockmap" => {
            args.blockmap = on;
            o.layout.chunk_indexes &= !on;
        }
        _ => {
            return Err(Error::usage(format_args!(
                "-E {name} is not a known feature; docs/reference/mkfs.md lists them"
            )));
        }
    }
    Ok(())
}
