//! `tuff info`: prints features, required kernel and space usage of an image.

use super::build_image::summary::{tree_json, tree_text};
use super::extents::algorithm_name;
use crate::disk::partitions_json;
use crate::image::ImageArgs;
use crate::out::Out;
use crate::progress::{Meter, Show};
use crate::remote;
use crate::text::{escaped, full_time, hex, put_bytes};
use crate::units::{pages_needed, percent, size};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use tuff_disk::Disk;
use tuff_erofs::dump::{Area, GroupStats, LayoutStats, LayoutStatsOptions};
use tuff_erofs::read::Image;
use tuff_erofs::verity::{self, HashTree};
use tuff_erofs::{Error, Result};
use tuff_format::features::{Feature, compat, flags_of};
use tuff_format::superblock::Superblock;

/// Show features, required kernel, compression and space usage
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Read only the superblock: instant for images of any size
    #[arg(short, long, conflicts_with = "files")]
    brief: bool,
    /// Add usage by file type and extension, cluster sizes, and the share of LZ4 clusters that can be decoded in place
    #[arg(short, long)]
    files: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Number of file extensions in the text output: those with most bytes.
const EXTENSIONS_SHOWN: usize = 20;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    print(args).map_err(|e| args.image.named(e))
}

fn print(args: &Args) -> Result<ExitCode> {
    let disk = args.image.open.disk(&args.image.image)?;
    let meter = Meter::start("info", Show::unless(args.json));
    let image = args.image.watched(&meter).open_unverified()?;
    if !args.files {
        // The share of metadata is not known.
        meter.counter().forget_total();
    }
    let options = LayoutStatsOptions {
        files: args.files,
        in_place: args.files,
    };
    let tree = hash_tree(args, &image)?;
    let mut layout = (!args.brief).then(|| LayoutStats::of(&image, options));
    drop(meter);
    let mut out = Out::new();
    if args.json {
        let mut object = superblock_json(&image);
        object.insert("disk".to_owned(), disk.as_ref().map(disk_json).into());
        object.insert("verity".to_owned(), tree.as_ref().map(tree_json).into());
        if let Some(layout) = &layout {
            layout_json(layout, &mut object);
        }
        out.json(&Value::Object(object))?;
    } else {
        superblock_text(&image, &mut out)?;
        for partition in disk.iter().flat_map(|disk| &disk.table().partitions) {
            let (range, number) = (&partition.range, partition.number);
            let len = size(range.end - range.start);
            out.line(format_args!(
                "{:<13} {}, {len} at byte {}",
                format!("partition {number}"),
                escaped(partition.name.as_bytes()),
                range.start
            ))?;
        }
        if let Some(tree) = &tree {
            out.line(format_args!("{:<13} {}", "root hash", hex(&tree.root)))?;
            let covered = size(tree.header.data_len());
            out.line(format_args!(
                "{:<13} {}, covers {covered}",
                "hash tree",
                tree_text(tree)
            ))?;
        }
        if let Some(layout) = &layout {
            layout_text(layout, &mut out)?;
        }
    }
    out.finish()?;
    // Everything readable has been counted. The first error determines the exit code.
    let errors = layout.as_mut().map(|s| std::mem::take(&mut s.errors));
    let mut errors = errors.unwrap_or_default();
    if image.checksum_ok() == Some(false) {
        let what = "the checksum does not match the bytes it covers";
        errors.insert(0, Error::corrupt("superblock (byte 1024)", what));
    }
    if errors.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let first = errors.remove(0);
    for e in errors {
        eprintln!("tuff: {}", args.image.named(e));
    }
    Err(first)
}

/// Hash tree of the image as its header states it. `None` without one, and for an image behind a URL that is verified.
fn hash_tree(args: &Args, image: &Image) -> Result<Option<HashTree>> {
    let (open, path) = (&args.image.open, &*args.image.image);
    if remote::is_remote(path) {
        return verity::of_image(image);
    }
    let store = open.store(path)?;
    let tree = open.tree_if_any(&store, path)?;
    tree.map(|tree| tree.header(&store)).transpose()
}

/// Formats the table of the disk that contains an image.
fn disk_json(disk: &Disk) -> Value {
    let table = disk.table();
    json!({
        "uuid": table.disk.to_string(),
        "sector_bytes": table.sector,
        "partitions": partitions_json(table),
    })
}

/// Features that limit which kernels mount the image. Every kernel has LZ4.
fn needs(sb: &Superblock) -> impl Iterator<Item = Feature> {
    sb.features()
        .filter(|f| f.is_required() && *f != Feature::LZ4)
}

/// Formats a UUID with hyphens.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let hex = crate::text::hex(bytes);
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

/// Build time of an image: seconds since 1970 and nanoseconds.
pub(crate) fn build_time(sb: &Superblock) -> (i64, u32) {
    let seconds = sb.epoch.saturating_add(sb.build_time.into());
    (seconds, sb.fixed_nsec)
}

fn checksum(image: &Image) -> &'static str {
    match image.checksum_ok() {
        Some(true) => "right",
        Some(false) => "wrong",
        None => "none",
    }
}

/// Returns a line per compression record: algorithm and parameters.
fn records(image: &Image) -> Vec<(&'static str, String)> {
    let c = image.configs();
    let block = image.superblock().block_bits.size();
    let mut out = Vec::new();
    if let Some(lz4) = c.lz4 {
        let distance = if lz4.max_distance == 0 {
            65535
        } else {
            lz4.max_distance
        };
        let cluster = u64::from(lz4.max_pcluster_blocks.max(1)) * block;
        out.push((
            "lz4",
            format!("distance {distance}, clusters up to {}", size(cluster)),
        ));
    }
    if let Some(dict) = c.lzma_dict_size {
        out.push(("lzma", format!("dictionary {}", size(dict.into()))));
    }
    if let Some(bits) = c.deflate_window_bits {
        out.push(("deflate", format!("window {}", size(1 << bits))));
    }
    if let Some(log) = c.zstd_window_log {
        out.push(("zstd", format!("window {}", size(1 << log))));
    }
    out
}

fn superblock_text(image: &Image, out: &mut Out) -> Result<()> {
    let sb = image.superblock();
    let block = sb.block_bits.size();
    let mut line = |name: &str, value: String| out.line(format_args!("{name:<13} {value}"));
    let bytes = sb.blocks.saturating_mul(block);
    line(
        "size",
        format!("{} ({} blocks of {block} bytes)", size(bytes), sb.blocks),
    )?;
    if bytes != image.store_size() {
        line(
            "stored in",
            format!(
                "{} ({} bytes)",
                size(image.store_size()),
                image.store_size()
            ),
        )?;
    }
    if !image.slots().is_empty() {
        let blocks = image.slots().iter().map(|slot| slot.blocks);
        let devices = blocks.fold(0u64, u64::saturating_add);
        let all = devices.saturating_mul(block).saturating_add(bytes);
        line("with devices", format!("{} ({all} bytes)", size(all)))?;
    }
    line(
        "label",
        if sb.label().is_empty() {
            "-".into()
        } else {
            escaped(sb.label())
        },
    )?;
    line("uuid", uuid(&sb.uuid))?;
    line("time", full_time(build_time(sb)))?;
    line("checksum", checksum(image).to_owned())?;
    line("inodes", sb.inodes.to_string())?;
    let mut nids = format!("root {}", sb.root);
    for (name, nid) in [("packed", sb.packed), ("metabox", sb.metabox)] {
        if let Some(nid) = nid {
            nids += &format!(", {name} {nid}");
        }
    }
    line("nids", nids)?;
    let lowest = sb.min_kernel();
    let because: Vec<&str> = needs(sb)
        .filter(|f| f.min_kernel == lowest)
        .map(|f| f.name)
        .collect();
    let because = if because.is_empty() {
        String::new()
    } else {
        format!(" ({})", because.join("; "))
    };
    let pages = pages_needed(block).map_or_else(String::new, |pages| format!(", {pages}"));
    line("kernel", format!("{lowest} or newer{pages}{because}"))?;
    out.line("features")?;
    for f in flags_of(sb.compat, sb.incompat) {
        let Some((field, bit)) = f.flag() else {
            continue;
        };
        let verb = if f.is_required() { "needs" } else { "used by" };
        out.line(format_args!(
            "  {field:<8} {bit:#05x}  {:<26} {verb} {}",
            f.name, f.min_kernel
        ))?;
    }
    let unknown = sb.compat & !compat::KNOWN;
    if unknown != 0 {
        out.line(format_args!(
            "  compat   {unknown:#05x}  not known to this version"
        ))?;
    }
    let records = records(image);
    if !records.is_empty() {
        out.line("compression")?;
        for (name, what) in records {
            out.line(format_args!("  {name:<8} {what}"))?;
        }
    }
    if !image.slots().is_empty() {
        out.line("devices")?;
        for (i, slot) in image.slots().iter().enumerate() {
            let tag = slot.tag.split(|b| *b == 0).next().unwrap_or(&[]);
            out.line(format_args!(
                "  {:<8} {}: {} blocks at {}, tag {}",
                i + 1,
                size(slot.blocks.saturating_mul(block)),
                slot.blocks,
                slot.uniaddr,
                escaped(tag)
            ))?;
        }
    }
    for (i, prefix) in image.prefixes().iter().enumerate() {
        // A prefix without a namespace can only be the name of fingerprints.
        let base: &[u8] = match prefix.base {
            0 => b"",
            base => tuff_format::xattr::prefix(base).unwrap_or(b"?"),
        };
        let name = [base, &prefix.infix].concat();
        let digests = match image.fingerprint_name().is_some_and(|n| n == name) {
            true => "  digests of files",
            false => "",
        };
        out.line(format_args!("prefix {i:<6} {}{digests}", escaped(&name)))?;
    }
    Ok(())
}

fn layout_text(s: &LayoutStats, out: &mut Out) -> Result<()> {
    let mut tree = Vec::new();
    for (count, one, many) in [
        (s.types[0], "file", "files"),
        (s.types[1], "directory", "directories"),
        (s.types[2], "symlink", "symlinks"),
        (s.types[3] + s.types[4], "device", "devices"),
        (s.types[5], "fifo", "fifos"),
        (s.types[6], "socket", "sockets"),
        (s.hard_links(), "hard link", "hard links"),
    ] {
        if count > 0 {
            tree.push(format!("{count} {}", if count == 1 { one } else { many }));
        }
    }
    let mut line = |name: &str, value: String| out.line(format_args!("{name:<13} {value}"));
    line("tree", tree.join(", "))?;
    let total: u64 = s
        .space
        .iter()
        .filter(|t| t.area != Area::Metabox)
        .map(|t| t.size)
        .sum();
    line(
        "content",
        format!(
            "{}, {} in the image",
            size(s.file_bytes),
            percent(total, s.file_bytes)
        ),
    )?;
    line(
        "inode forms",
        format!(
            "{} extended, {} compact",
            s.extended,
            s.inodes() - s.extended
        ),
    )?;
    let layouts: Vec<String> = s
        .layouts
        .iter()
        .map(|(name, n)| format!("{n} {name}"))
        .collect();
    line("layouts", layouts.join(", "))?;
    if s.with_xattrs > 0 {
        line("attributes", format!("on {} inodes", s.with_xattrs))?;
    }
    for (id, a) in (0..).zip(&s.algorithms) {
        let clusters = a.clusters + a.inline_clusters;
        if clusters > 0 {
            let share = percent(a.stored_bytes, a.decoded_bytes);
            let (stored, decoded) = (size(a.stored_bytes), size(a.decoded_bytes));
            line(
                algorithm_name(id),
                format!("{clusters} clusters, {stored} from {decoded} ({share})"),
            )?;
        }
    }
    if s.stored_clusters > 0 {
        line(
            "stored",
            format!("{} clusters of compressed files", s.stored_clusters),
        )?;
    }
    if s.inline_tails > 0 {
        line(
            "inline",
            format!("{} tails, {}", s.inline_tails, size(s.inline_bytes)),
        )?;
    }
    if s.fragments > 0 {
        let (used, packed) = (size(s.fragment_bytes), size(s.packed_bytes));
        line(
            "fragments",
            format!(
                "{} files, {used} as files count it, {packed} packed",
                s.fragments
            ),
        )?;
    }
    if s.shared_runs > 0 {
        line(
            "shared",
            format!(
                "{} runs, {} saved",
                s.shared_runs,
                size(s.shared_saved_bytes)
            ),
        )?;
    }
    if s.sparse_files > 0 {
        line(
            "holes",
            format!("{} in {} files", size(s.hole_bytes), s.sparse_files),
        )?;
    }
    if let Some((seen, possible)) = s.in_place.filter(|(seen, _)| *seen > 0) {
        line(
            "in place",
            format!(
                "{possible} of {seen} LZ4 clusters ({})",
                percent(possible, seen)
            ),
        )?;
    }
    for table in &s.space {
        match table.area {
            Area::Store(0) => out.line("space")?,
            Area::Store(n) => out.line(format_args!("space on device {n}"))?,
            Area::Metabox => out.line("space in the metabox")?,
        }
        for row in &table.rows {
            out.line(format_args!(
                "  {:<22} {:>14} bytes {:>8} {:>9} runs",
                row.name,
                row.bytes,
                percent(row.bytes, table.size),
                row.count
            ))?;
        }
        out.line(format_args!("  {:<22} {:>14} bytes", "all", table.size))?;
    }
    groups_text(s, out)
}

fn groups_text(s: &LayoutStats, out: &mut Out) -> Result<()> {
    if s.by_type.is_empty() {
        return Ok(());
    }
    out.line("clusters by length")?;
    for (i, count) in s.histogram.iter().enumerate().filter(|(_, n)| **n > 0) {
        out.line(format_args!("  up to {:>4} blocks {count:>14}", 1u64 << i))?;
    }
    let row = |name: &str, g: &GroupStats| {
        format!(
            "  {name:<14} {:>9} inodes {:>16} bytes {:>16} stored {:>8}",
            g.inodes,
            g.bytes,
            g.stored_bytes,
            percent(g.stored_bytes, g.bytes)
        )
    };
    let sum = |groups: &mut dyn Iterator<Item = &GroupStats>| {
        groups.fold(GroupStats::default(), |sum, g| GroupStats {
            inodes: sum.inodes + g.inodes,
            bytes: sum.bytes.saturating_add(g.bytes),
            stored_bytes: sum.stored_bytes + g.stored_bytes,
        })
    };
    out.line("by type")?;
    for (name, group) in &s.by_type {
        out.line(row(name, group))?;
    }
    out.line(row("all", &sum(&mut s.by_type.values())))?;
    out.line("by extension")?;
    let mut groups: Vec<_> = s.by_extension.iter().collect();
    groups.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then(a.0.cmp(b.0)));
    let (shown, others) = groups.split_at(groups.len().min(EXTENSIONS_SHOWN));
    for (name, group) in shown {
        let name = if name.is_empty() {
            "-".to_owned()
        } else {
            escaped(name)
        };
        out.line(row(&name, group))?;
    }
    if !others.is_empty() {
        let rest = sum(&mut others.iter().map(|(_, g)| *g));
        out.line(row(&format!("{} others", others.len()), &rest))?;
    }
    Ok(())
}

/// Superblock as an object: the keys of `tuff info --brief --json`.
pub(crate) fn superblock_json(image: &Image) -> Map<String, Value> {
    let sb = image.superblock();
    let features: Vec<Value> = flags_of(sb.compat, sb.incompat)
        .filter_map(|f| {
            let (field, bit) = f.flag()?;
            let kernel = f.min_kernel.to_string();
            Some(json!({"set": field, "bit": bit, "name": f.name, "kernel": kernel}))
        })
        .collect();
    let records: Map<String, Value> = records(image)
        .into_iter()
        .map(|(name, what)| (name.to_owned(), what.into()))
        .collect();
    let devices: Vec<Value> = image
        .slots()
        .iter()
        .map(|slot| {
            let mut one = Map::new();
            one.insert("blocks".into(), slot.blocks.into());
            one.insert("first_block".into(), slot.uniaddr.0.into());
            put_bytes(
                &mut one,
                "tag",
                slot.tag.split(|b| *b == 0).next().unwrap_or(&[]),
            );
            Value::Object(one)
        })
        .collect();
    let (seconds, nanos) = build_time(sb);
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| _ = out.insert(key.to_owned(), value);
    put("block_size", sb.block_bits.size().into());
    put("blocks", sb.blocks.into());
    put("store_bytes", image.store_size().into());
    put("uuid", uuid(&sb.uuid).into());
    put("time", seconds.into());
    put("time_nsec", nanos.into());
    put("checksum", checksum(image).into());
    put("inodes", sb.inodes.into());
    put("root_nid", sb.root.0.into());
    put("packed_nid", sb.packed.map(|n| n.0).into());
    put("metabox_nid", sb.metabox.map(|n| n.0).into());
    put("compat", sb.compat.into());
    put("incompat", sb.incompat.into());
    put("features", features.into());
    put("lowest_kernel", sb.min_kernel().to_string().into());
    put("page_bytes_needed", sb.block_bits.size().max(4096).into());
    let needs = needs(sb).map(|f| json!({"kernel": f.min_kernel.to_string(), "feature": f.name}));
    put("needs", needs.collect());
    put("compression", records.into());
    put("devices", devices.into());
    put_bytes(&mut out, "label", sb.label());
    out
}

/// Adds the statistics of the layout to the object of an image.
pub(crate) fn layout_json(s: &LayoutStats, out: &mut Map<String, Value>) {
    let types: Map<String, Value> = LayoutStats::TYPES
        .iter()
        .zip(s.types)
        .map(|(kind, count)| (kind.name().to_owned(), count.into()))
        .collect();
    let algorithms: Map<String, Value> = (0..)
        .zip(&s.algorithms)
        .filter(|(_, a)| a.clusters + a.inline_clusters > 0)
        .map(|(id, a)| {
            let value = json!({"clusters": a.clusters, "inline_clusters": a.inline_clusters,
                "stored_bytes": a.stored_bytes, "decoded_bytes": a.decoded_bytes});
            (algorithm_name(id).to_owned(), value)
        })
        .collect();
    let space: Vec<Value> = s
        .space
        .iter()
        .map(|table| {
            let area = match table.area {
                Area::Store(n) => n.to_string(),
                Area::Metabox => "metabox".to_owned(),
            };
            let rows: Vec<Value> = table
                .rows
                .iter()
                .map(|r| json!({"name": r.name, "bytes": r.bytes, "runs": r.count}))
                .collect();
            json!({"device": area, "bytes": table.size, "rows": rows})
        })
        .collect();
    let group = |g: &GroupStats| json!({"inodes": g.inodes, "bytes": g.bytes, "stored_bytes": g.stored_bytes});
    let mut put = |key: &str, value: Value| _ = out.insert(key.to_owned(), value);
    put("types", types.into());
    put("names", s.names.into());
    put("hard_links", s.hard_links().into());
    put("extended_inodes", s.extended.into());
    put("layouts", json!(s.layouts));
    put("inodes_with_xattrs", s.with_xattrs.into());
    put("file_bytes", s.file_bytes.into());
    put("algorithms", algorithms.into());
    put("stored_clusters", s.stored_clusters.into());
    put("cluster_blocks_histogram", json!(s.histogram));
    put(
        "inline",
        json!({"tails": s.inline_tails, "bytes": s.inline_bytes}),
    );
    put(
        "fragments",
        json!({"files": s.fragments, "bytes": s.fragment_bytes, "packed_bytes": s.packed_bytes}),
    );
    put(
        "shared",
        json!({"runs": s.shared_runs, "saved_bytes": s.shared_saved_bytes}),
    );
    put(
        "holes",
        json!({"files": s.sparse_files, "bytes": s.hole_bytes}),
    );
    put("space", space.into());
    let errors: Vec<Value> = s.errors.iter().map(|e| e.to_string().into()).collect();
    put("errors", errors.into());
    if let Some((seen, possible)) = s.in_place {
        put("in_place", json!({"clusters": seen, "possible": possible}));
    }
    if !s.by_type.is_empty() {
        let types = s
            .by_type
            .iter()
            .map(|(name, g)| ((*name).to_owned(), group(g)));
        put("by_type", types.collect::<Map<_, _>>().into());
        let extensions = s
            .by_extension
            .iter()
            .map(|(name, g)| (escaped(name), group(g)));
        put("by_extension", extensions.collect::<Map<_, _>>().into());
    }
}
