//! `tuff info`: prints features, required kernel and space usage of an image.

use super::build_image::summary::{tree_json, tree_text};
use super::stat::extents::algorithm_name;
use crate::disk::partitions_json;
use crate::image::ImageArgs;
use crate::out::{Out, field};
use crate::progress::{Meter, Show};
use crate::text::{escaped, full_time, object, put_bytes};
use crate::units::{pages_needed, percent, size};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use tuff_disk::Disk;
use tuff_erofs::dump::{Area, GroupStats, LayoutStats, LayoutStatsOptions, Row, SpaceTable};
use tuff_erofs::read::{Image, StartList};
use tuff_erofs::verity::{self, HashTree};
use tuff_erofs::{Error, Result};
use tuff_format::features::{Feature, compat, flags_of};
use tuff_format::start_list;
use tuff_format::superblock::Superblock;
use tuff_open::OpenImage;

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
    let disk = image.container().disk();
    let tree = hash_tree(&image)?;
    let mut layout = (!args.brief).then(|| LayoutStats::collect(&image, options));
    let start = match args.brief {
        true => Ok(None),
        false => StartList::read(&image),
    };
    let (start, start_error) = match start {
        Ok(start) => (start, None),
        Err(e) => (None, Some(e)),
    };
    drop(meter);
    let mut out = Out::new();
    if args.json {
        let mut object = superblock_json(&image);
        object.insert("disk".to_owned(), disk.map(disk_json).into());
        object.insert("verity".to_owned(), tree.as_ref().map(tree_json).into());
        if let Some(layout) = &layout {
            layout_json(layout, &mut object);
            object.insert(
                "start_list".to_owned(),
                start.as_ref().map(start_json).into(),
            );
        }
        out.json(&Value::Object(object))?;
    } else {
        superblock_text(&image, &mut out)?;
        for partition in disk.iter().flat_map(|disk| &disk.table().partitions) {
            let (range, number) = (&partition.range, partition.number);
            let len = size(range.end - range.start);
            let (name, number) = (
                escaped(partition.name.as_bytes()),
                format!("partition {number}"),
            );
            field!(out, 13, number => "{name}, {len} at byte {}", range.start)?;
        }
        if let Some(tree) = &tree {
            field!(out, 13, "root hash" => "{}", hex::encode(tree.root))?;
            let covered = size(tree.header.data_len());
            field!(out, 13, "hash tree" => "{}, covers {covered}", tree_text(tree))?;
        }
        if let Some(start) = &start {
            field!(out, 13, "start list" => "{}", start_text(start))?;
        }
        if let Some(layout) = &layout {
            layout_text(layout, &mut out)?;
        }
    }
    out.finish()?;
    // Everything readable has been counted. The first error determines the exit code.
    let errors = layout.as_mut().map(|s| std::mem::take(&mut s.errors));
    let mut errors = errors.unwrap_or_default();
    errors.extend(start_error);
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
fn hash_tree(image: &OpenImage) -> Result<Option<HashTree>> {
    if image.container().reference().is_network() {
        return verity::of_image(image);
    }
    let tree = image.container().tree_if_any()?;
    let store = image.container().store();
    tree.map(|tree| tree.header(store)).transpose()
}

fn start_text(list: &StartList) -> String {
    match list {
        StartList::Unknown { version } => {
            format!("version {version}, not known to this version of tuff")
        }
        StartList::Known { files, entries, .. } => {
            let bytes = size(list.bytes());
            format!("{files} files, {bytes} in {entries} ranges")
        }
    }
}

fn start_json(list: &StartList) -> Value {
    let (version, files, entries) = match list {
        StartList::Unknown { version } => (*version, None, None),
        StartList::Known { files, entries, .. } => {
            (start_list::VERSION, Some(*files), Some(*entries))
        }
    };
    let bytes = files.map(|_| list.bytes());
    json!({"version": version, "files": files, "entries": entries, "bytes": bytes})
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
    let hex = hex::encode(bytes);
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
    let bytes = sb.blocks.saturating_mul(block);
    field!(out, 13, "size" => "{} ({} blocks of {block} bytes)", size(bytes), sb.blocks)?;
    if bytes != image.store_size() {
        field!(out, 13, "stored in" => "{} ({} bytes)", size(image.store_size()), image.store_size())?;
    }
    if !image.slots().is_empty() {
        let blocks = image.slots().iter().map(|slot| slot.blocks);
        let devices = blocks.fold(0u64, u64::saturating_add);
        let all = devices.saturating_mul(block).saturating_add(bytes);
        field!(out, 13, "with devices" => "{} ({all} bytes)", size(all))?;
    }
    let label = match sb.label() {
        b"" => "-".to_owned(),
        label => escaped(label),
    };
    field!(out, 13, "label" => "{label}")?;
    field!(out, 13, "uuid" => "{}", uuid(&sb.uuid))?;
    field!(out, 13, "time" => "{}", full_time(build_time(sb)))?;
    field!(out, 13, "checksum" => "{}", checksum(image))?;
    field!(out, 13, "inodes" => "{}", sb.inodes)?;
    let mut nids = format!("root {}", sb.root);
    for (name, nid) in [("packed", sb.packed), ("metabox", sb.metabox)] {
        if let Some(nid) = nid {
            nids += &format!(", {name} {nid}");
        }
    }
    field!(out, 13, "nids" => "{nids}")?;
    let lowest = sb.min_kernel();
    let because: Vec<&str> = needs(sb)
        .filter(|f| f.min_kernel == lowest)
        .map(|f| f.name)
        .collect();
    let because = match &because[..] {
        [] => String::new(),
        because => format!(" ({})", because.join("; ")),
    };
    let pages = pages_needed(block).map_or_else(String::new, |pages| format!(", {pages}"));
    field!(out, 13, "kernel" => "{lowest} or newer{pages}{because}")?;
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
    field!(out, 13, "tree" => "{}", tree.join(", "))?;
    let total: u64 = s
        .space
        .iter()
        .filter(|t| t.area != Area::Metabox)
        .map(|t| t.size)
        .sum();
    field!(out, 13, "content" => "{}, {} in the image", size(s.file_bytes), percent(total, s.file_bytes))?;
    field!(out, 13, "inode forms" => "{} extended, {} compact", s.extended, s.inodes() - s.extended)?;
    let layouts: Vec<String> = s
        .layouts
        .iter()
        .map(|(name, n)| format!("{n} {name}"))
        .collect();
    field!(out, 13, "layouts" => "{}", layouts.join(", "))?;
    if s.with_xattrs > 0 {
        field!(out, 13, "attributes" => "on {} inodes", s.with_xattrs)?;
    }
    for (id, a) in (0..).zip(&s.algorithms) {
        let clusters = a.clusters + a.inline_clusters;
        if clusters > 0 {
            let share = percent(a.stored_bytes, a.decoded_bytes);
            let (stored, decoded) = (size(a.stored_bytes), size(a.decoded_bytes));
            field!(out, 13, algorithm_name(id) => "{clusters} clusters, {stored} from {decoded} ({share})")?;
        }
    }
    if s.stored_clusters > 0 {
        field!(out, 13, "stored" => "{} clusters of compressed files", s.stored_clusters)?;
    }
    if s.inline_tails > 0 {
        field!(out, 13, "inline" => "{} tails, {}", s.inline_tails, size(s.inline_bytes))?;
    }
    if s.fragments > 0 {
        let (used, packed) = (size(s.fragment_bytes), size(s.packed_bytes));
        field!(out, 13, "fragments" => "{} files, {used} as files count it, {packed} packed", s.fragments)?;
    }
    if s.shared_runs > 0 {
        field!(out, 13, "shared" => "{} runs, {} saved", s.shared_runs, size(s.shared_saved_bytes))?;
    }
    if s.sparse_files > 0 {
        field!(out, 13, "holes" => "{} in {} files", size(s.hole_bytes), s.sparse_files)?;
    }
    if let Some((seen, possible)) = s.in_place.filter(|(seen, _)| *seen > 0) {
        field!(out, 13, "in place" => "{possible} of {seen} LZ4 clusters ({})", percent(possible, seen))?;
    }
    for table in &s.space {
        match table.area {
            Area::Store(0) => out.line("space")?,
            Area::Store(n) => out.line(format_args!("space on device {n}"))?,
            Area::Metabox => out.line("space in the metabox")?,
        }
        space_rows_text(table, out)?;
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
    let needs = needs(sb).map(|f| json!({"kernel": f.min_kernel.to_string(), "feature": f.name}));
    let mut out = object(json!({
        "block_size": sb.block_bits.size(), "blocks": sb.blocks, "store_bytes": image.store_size(),
        "uuid": uuid(&sb.uuid), "time": seconds, "time_nsec": nanos, "checksum": checksum(image), "inodes": sb.inodes,
        "root_nid": sb.root.0, "packed_nid": sb.packed.map(|n| n.0), "metabox_nid": sb.metabox.map(|n| n.0),
        "compat": sb.compat, "incompat": sb.incompat, "features": features,
        "lowest_kernel": sb.min_kernel().to_string(), "page_bytes_needed": sb.block_bits.size().max(4096),
        "needs": needs.collect::<Vec<_>>(), "compression": records, "devices": devices,
    }));
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
    let space = s.space.iter().map(|table| {
        let area = match table.area {
            Area::Store(n) => n.to_string(),
            Area::Metabox => "metabox".to_owned(),
        };
        json!({"device": area, "bytes": table.size, "rows": space_rows_json(table)})
    });
    let errors: Vec<String> = s.errors.iter().map(ToString::to_string).collect();
    out.append(&mut object(json!({
        "types": types, "names": s.names, "hard_links": s.hard_links(), "extended_inodes": s.extended,
        "layouts": s.layouts, "inodes_with_xattrs": s.with_xattrs, "file_bytes": s.file_bytes,
        "algorithms": algorithms, "stored_clusters": s.stored_clusters, "cluster_blocks_histogram": s.histogram,
        "inline": {"tails": s.inline_tails, "bytes": s.inline_bytes},
        "fragments": {"files": s.fragments, "bytes": s.fragment_bytes, "packed_bytes": s.packed_bytes},
        "shared": {"runs": s.shared_runs, "saved_bytes": s.shared_saved_bytes},
        "holes": {"files": s.sparse_files, "bytes": s.hole_bytes},
        "space": space.collect::<Vec<_>>(), "errors": errors,
    })));
    if let Some((seen, possible)) = s.in_place {
        let value = json!({"clusters": seen, "possible": possible});
        out.insert("in_place".to_owned(), value);
    }
    if !s.by_type.is_empty() {
        let group = |g: &GroupStats| json!({"inodes": g.inodes, "bytes": g.bytes, "stored_bytes": g.stored_bytes});
        let types = s
            .by_type
            .iter()
            .map(|(name, g)| ((*name).to_owned(), group(g)));
        let extensions = s
            .by_extension
            .iter()
            .map(|(name, g)| (escaped(name), group(g)));
        out.insert("by_type".to_owned(), types.collect::<Map<_, _>>().into());
        out.insert(
            "by_extension".to_owned(),
            extensions.collect::<Map<_, _>>().into(),
        );
    }
}

/// Rows of a table of space, as text.
pub(crate) fn space_rows_text(table: &SpaceTable, out: &mut Out) -> Result<()> {
    for row in &table.rows {
        let (name, bytes, count) = (row.name, row.bytes, row.count);
        let share = percent(bytes, table.size);
        out.line(format_args!(
            "  {name:<22} {bytes:>14} bytes {share:>8} {count:>9} runs"
        ))?;
    }
    out.line(format_args!("  {:<22} {:>14} bytes", "all", table.size))
}

/// Rows of a table of space, as an array.
pub(crate) fn space_rows_json(table: &SpaceTable) -> Vec<Value> {
    let row = |row: &Row| json!({"name": row.name, "bytes": row.bytes, "runs": row.count});
    table.rows.iter().map(row).collect()
}
