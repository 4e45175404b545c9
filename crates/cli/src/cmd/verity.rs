//! `tuff verity`: dm-verity hash trees of existing images.

use super::build_image::summary::{tree_json, tree_text};
use crate::image::OpenArgs;
use crate::next_command::{self, shell_word};
use crate::out::{Out, field};
use crate::overwrite::{self, Format};
use crate::progress::{Meter, Show, Watch, on_signal};
use crate::sink::keep;
use crate::text::{escaped, put_bytes};
use crate::units::size;
use clap::Subcommand;
use serde_json::{Map, Value, json};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tuff_erofs::verity::{self, Damage, HashTree, Hit, RepairedBlock, Root, Verified};
use tuff_erofs::{Error, Result, THREADS_MAX};
use tuff_mkfs::settings::{parse_salt, parse_verity_block};
use tuff_mkfs::{Progress, Verity, available_threads, hash_tree};
use tuff_open::{Container, OpenOptions, parse_root};

/// Create, check, repair and show dm-verity hash trees
///
/// A hash tree proves that an image is the one that its root hash identifies. It follows the image, as tuff build --verity
/// writes it, or lies in its own file. The kernel verifies reads against it (veritysetup open, systemd), and so does every
/// verb with --verity ROOT-HASH.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// Salt of a hash tree.
#[derive(Clone)]
struct Salt(Vec<u8>);

#[derive(Subcommand)]
enum What {
    /// Add a hash tree to an image
    Add {
        /// Image: a file or a block device
        image: PathBuf,
        /// Write the tree to this file instead of appending it to the image
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// Replace the file of --into whatever it contains
        #[arg(long, requires = "into")]
        force: bool,
        /// Replace a tree that is already appended to the image
        #[arg(long, conflicts_with = "into")]
        replace: bool,
        /// Salt of the tree: at most 256 bytes in hexadecimal
        #[arg(long, value_parser = |text: &str| parse_salt(text).map(Salt), value_name = "HEX")]
        salt: Option<Salt>,
        /// Block size of the tree: a power of two from 512 to 4096
        #[arg(long, value_parser = parse_verity_block, default_value = "4096", value_name = "BYTES")]
        block: u32,
        /// Append Reed-Solomon parity after the tree, 2 to 24 bytes of every 255, for tuff verity repair
        #[arg(long, value_parser = clap::value_parser!(u32).range(2..=24), value_name = "ROOTS")]
        fec: Option<u32>,
        #[command(flatten)]
        work: Work,
    },
    /// Verify an image, its hash tree and its parity
    ///
    /// Prints one line for each damaged range, and one for each file and directory in it. The exit code is 1 if anything is
    /// damaged, and 3 if the root hash does not match the tree.
    Check {
        #[command(flatten)]
        place: Proof,
        #[command(flatten)]
        work: Work,
    },
    /// Repair damaged blocks of an image and its hash tree in place from the parity
    ///
    /// A block is written only if its repaired content matches the root hash. Parity is then computed again. The exit code is
    /// 1 if anything is still damaged; the output is that of check.
    Repair {
        #[command(flatten)]
        place: Proof,
        #[command(flatten)]
        work: Work,
    },
    /// Show the header of a hash tree, and the veritysetup command that opens it
    Show {
        /// Image: a file or a block device
        image: PathBuf,
        /// Hash tree, if it is not appended to the image
        #[arg(long, value_name = "FILE")]
        tree: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Image, and the hash tree and root hash that verify it.
#[derive(clap::Args)]
struct Proof {
    /// Image: a file or a block device
    image: PathBuf,
    /// Root hash: 64 hexadecimal digits. Without it, damage is found, but not changes on purpose
    #[arg(value_parser = parse_root, value_name = "ROOT-HASH")]
    root: Option<Root>,
    /// Hash tree, if it is not appended to the image
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
    /// Roots of the parity; needed only if the file does not end with the parity
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=24), value_name = "ROOTS")]
    fec: Option<u32>,
}

impl Proof {
    fn container(&self) -> Result<Container> {
        Container::open(&self.image.as_path().into(), &OpenOptions::default())
    }

    /// Opens the image for verification. The root hash must match the top of the tree.
    fn open(&self) -> Result<Verified> {
        let container = self.container()?;
        let tree = container.tree(self.tree.as_deref())?;
        let mut verified = tree.open(Arc::clone(container.store()), self.root)?;
        if let Some(roots) = self.fec {
            let with_parity = verity::with_parity(verified, roots);
            verified = with_parity.map_err(|e| e.within(self.image.display()))?;
        }
        let failed = |e| Error::io(self.image.display(), "cannot read the hash tree", e);
        if !verified.is_top_sound().map_err(failed)? {
            let what = match verified.is_stated() {
                false => {
                    "the root hash does not match the top of the hash tree: one of them belongs to another image, or is damaged"
                }
                true => "the top of the hash tree is damaged",
            };
            return Err(Error::corrupt(self.image.display(), what));
        }
        Ok(verified)
    }
}

#[derive(clap::Args)]
struct Work {
    /// Worker threads [default: the number of CPUs that the process may use]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

impl Work {
    fn threads(&self) -> usize {
        self.threads.map_or_else(available_threads, usize::from)
    }

    fn show(&self) -> Show {
        match (self.quiet, self.json) {
            (true, _) => Show::Quiet,
            (_, true) => Show::Json,
            _ => Show::Auto,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Add {
            image,
            into,
            force,
            replace,
            salt,
            block,
            fec,
            work,
        } => {
            if let Some(into) = into.as_deref() {
                keep(into, &[image])?;
                if !force {
                    overwrite::check(into, Format::HashTree)?;
                }
            }
            let options = Verity {
                block: *block,
                parity: *fec,
                salt: salt.clone().map(|salt| salt.0).unwrap_or_default(),
            };
            add(image, into.as_deref(), &options, *replace, work)
        }
        What::Check { place, work } => check(place, work),
        What::Repair { place, work } => repair(place, work),
        What::Show { image, tree, json } => show(image, tree.clone(), *json),
    }
}

fn add(
    image: &Path,
    into: Option<&Path>,
    options: &Verity,
    replace: bool,
    work: &Work,
) -> Result<ExitCode> {
    let progress = Arc::new(Progress::default());
    let watch = Watch::start(&progress, work.show());
    let tree = hash_tree(image, into, options, replace, work.threads(), &progress);
    drop(watch);
    let tree = tree?;
    let mut out = Out::new();
    match work.show() {
        Show::Json => out.json(&tree_json(&tree))?,
        Show::Auto => {
            lines(&tree, &mut out)?;
            let separate = into.map(|into| format!("--tree {} ", shell_word(into)));
            let command = format!(
                "tuff verity check {}{} {}",
                separate.unwrap_or_default(),
                shell_word(image),
                hex::encode(tree.root)
            );
            next_command::line(command).map_or(Ok(()), |line| out.line(line))?;
        }
        Show::Quiet => {}
    }
    out.finish()
}

fn lines(tree: &HashTree, out: &mut Out) -> Result<()> {
    let header = &tree.header;
    let covered = size(header.data_len());
    field!(out, 12, "root hash" => "{}", hex::encode(tree.root))?;
    field!(out, 12, "hash tree" => "{}", tree_text(tree))?;
    field!(out, 12, "covers" => "{covered}, {} blocks of {} bytes", header.data_blocks, header.data_block)?;
    let salt = match &*header.salt {
        [] => "none".to_owned(),
        salt => hex::encode(salt),
    };
    field!(out, 12, "salt" => "{salt}")
}

fn show(image: &Path, tree: Option<PathBuf>, as_json: bool) -> Result<ExitCode> {
    let container = Container::open(&image.into(), &OpenOptions::default())?;
    let tree = container.tree(tree.as_deref())?;
    let stated = tree.header(container.store())?;
    let at = stated.hash_offset;
    let mut out = Out::new();
    if as_json {
        out.json(&tree_json(&stated))?;
    } else {
        lines(&stated, &mut out)?;
        let tree = escaped(tree.path().as_os_str().as_encoded_bytes());
        if let Some(disk) = container.disk() {
            let name = escaped(image.as_os_str().as_encoded_bytes());
            let number = |p: Option<&tuff_disk::Partition>| p.map_or(0, |p| p.number);
            let (data, tree) = (number(Some(disk.data())), number(disk.tree()));
            out.line(format_args!(
                "kernel       loop=$(losetup -f --show -P -r {name}) && veritysetup open ${{loop}}p{data} NAME ${{loop}}p{tree} {}",
                hex::encode(stated.root)
            ))?;
            return out.finish();
        }
        let parity = stated.parity.map_or(String::new(), |roots| {
            let at = stated.tree_end();
            format!(" --fec-device={tree} --fec-offset={at} --fec-roots={roots}")
        });
        out.line(format_args!(
            "kernel       veritysetup open {} NAME {tree} {} --hash-offset={at}{parity}",
            escaped(image.as_os_str().as_encoded_bytes()),
            hex::encode(stated.root),
        ))?;
    }
    out.finish()
}

fn check(place: &Proof, work: &Work) -> Result<ExitCode> {
    let verified = place.open()?;
    let watch = Watched::new(work, &verified);
    let damage = verified.scan(work.threads(), &|bytes| watch.step(bytes));
    drop(watch);
    let damage = damage.map_err(|e| Error::io(place.image.display(), "stopped", e))?;
    report(place, work, &verified, &damage, 0)
}

fn repair(place: &Proof, work: &Work) -> Result<ExitCode> {
    let verified = place.open()?;
    if verified.roots().is_none() {
        return Err(Error::usage(format_args!(
            "{}: the hash tree has no parity to repair from; restore the image from a copy, and add parity with 'tuff verity add --replace --fec 2'",
            place.image.display()
        )));
    }
    let tree = place.tree.as_ref().unwrap_or(&place.image);
    // The image and its tree may be partitions of a disk.
    let container = place.container()?;
    let data_at = container.offset();
    let tree_at = container.disk().and_then(|disk| disk.tree());
    let tree_at = tree_at.filter(|_| place.tree.is_none());
    let tree_at = tree_at.map_or(0, |tree| tree.range.start);
    let open = |path: &Path| {
        let file = fs::OpenOptions::new().write(true).open(path);
        file.map_err(|e| Error::io(path.display(), "cannot write", e))
    };
    let files = (open(&place.image)?, open(tree)?);
    let watch = Watched::new(work, &verified);
    let mut repaired = 0;
    let left = verified.repair(work.threads(), &|bytes| watch.step(bytes), &mut |block| {
        repaired += 1;
        match block {
            RepairedBlock::Data(at, bytes) => files.0.write_all_at(bytes, data_at + at),
            RepairedBlock::Tree(at, bytes) | RepairedBlock::Parity(at, bytes) => {
                files.1.write_all_at(bytes, tree_at + at)
            }
        }
    });
    drop(watch);
    let failed = |e| Error::io(place.image.display(), "cannot repair", e);
    let left = left.map_err(failed)?;
    for file in [&files.0, &files.1] {
        file.sync_all().map_err(failed)?;
    }
    report(place, work, &verified, &left, repaired)
}

/// Progress bar and stop flag of a scan.
struct Watched {
    meter: Meter,
    stop: Arc<AtomicBool>,
}

impl Watched {
    fn new(work: &Work, verified: &Verified) -> Self {
        // Verifying the parity reads everything once more.
        let rounds = 1 + u64::from(verified.roots().is_some());
        let meter = Meter::start("verify", Show::unless(work.show() != Show::Auto));
        let total = verified.header().data_len().saturating_mul(rounds);
        meter.counter().add_total(total);
        Self {
            meter,
            stop: on_signal(),
        }
    }

    fn step(&self, bytes: u64) -> std::io::Result<()> {
        self.meter.counter().add(bytes);
        match self.stop.load(Ordering::Relaxed) {
            true => Err(std::io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// Reports the damage, and the files that it affects.
fn report(
    place: &Proof,
    work: &Work,
    verified: &Verified,
    damage: &Damage,
    repaired: u64,
) -> Result<ExitCode> {
    let ranges = [
        (&damage.data, "damaged"),
        (&damage.unknown, "unknown"),
        (&damage.tree, "tree"),
        (&damage.parity, "parity"),
    ];
    let ranges = ranges.into_iter();
    let ranges = ranges.flat_map(|(ranges, kind)| ranges.iter().map(move |range| (range, kind)));
    let (mut affected, mut incomplete) = (Vec::new(), None);
    if !damage.data.is_empty() {
        // The files are found through the image's metadata, which may itself be damaged.
        let plain = OpenArgs {
            no_checksum: true,
            ..OpenArgs::default()
        };
        let mut take = |hit| {
            affected.push(match hit {
                Hit::Content(path, range) => (path, Some(range)),
                Hit::Inode(path) => (path, None),
            });
        };
        incomplete = match plain.open(&place.image.as_path().into()) {
            Ok(image) => verity::hits(&image, &damage.data, &mut take),
            Err(e) => Some(e),
        };
    }
    let is_sound = damage.is_none();
    let mut out = Out::new();
    if work.json {
        let ranges = ranges.map(|(range, kind)| {
            let (offset, length) = (range.start, range.end - range.start);
            json!({"offset": offset, "length": length, "kind": kind})
        });
        let affected: Vec<_> = affected.iter().map(affected_json).collect();
        out.json(&json!({
            "sound": is_sound, "bytes": verified.header().data_len(),
            "is_authentic": is_sound && !verified.is_stated(),
            "repaired_blocks": repaired, "fec_roots": verified.roots(), "damaged": ranges.collect::<Vec<_>>(),
            "affected": affected, "incomplete": incomplete.map(|e| e.to_string()),
        }))?;
    } else {
        for (range, kind) in ranges {
            let (at, len) = (range.start, range.end - range.start);
            let what = match kind {
                "unknown" => "unknown: its part of the hash tree is damaged",
                "tree" => "damaged hash tree",
                "parity" => "damaged parity",
                _ => "damaged",
            };
            out.line(format_args!("{len} bytes at {at}: {what}"))?;
        }
        for (path, range) in &affected {
            let path = escaped(path);
            match range {
                Some(Range { start, end }) => {
                    out.line(format_args!("/{path}: {} bytes at {start}", end - start))?;
                }
                None => out.line(format_args!("/{path}: inode"))?,
            }
        }
        if let Some(e) = incomplete {
            out.line(format_args!(
                "the list of files is incomplete: the image cannot be read everywhere ({e})"
            ))?;
        }
        if !work.quiet {
            conclusion(verified, damage, repaired, &mut out)?;
        }
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(!is_sound)))
}

fn affected_json((path, range): &(Vec<u8>, Option<Range<u64>>)) -> Map<String, Value> {
    let mut object = Map::new();
    put_bytes(&mut object, "path", &[b"/", &path[..]].concat());
    if let Some(range) = range {
        object.insert("offset".to_owned(), range.start.into());
        object.insert("length".to_owned(), (range.end - range.start).into());
    }
    object
}

fn conclusion(verified: &Verified, damage: &Damage, repaired: u64, out: &mut Out) -> Result<()> {
    if repaired > 0 {
        out.line(format_args!("blocks repaired: {repaired}"))?;
    }
    if damage.is_content_sound() {
        let all = size(verified.header().data_len());
        let with = match verified.is_stated() {
            false => "the root hash",
            true => "the hash tree",
        };
        out.line(format_args!("verified: {all} match {with}"))?;
    }
    if verified.roots().is_some() && repaired == 0 && !damage.is_none() {
        out.line(match damage.is_content_sound() {
            true => "the parity does not match: 'tuff verity repair' computes it again",
            false => "the hash tree has parity: 'tuff verity repair' may repair the damage",
        })?;
    }
    if verified.is_stated() {
        let root = hex::encode(verified.root());
        out.line(format_args!(
            "no root hash was given: changes on purpose are not found; the hash tree states {root}"
        ))?;
    }
    Ok(())
}
