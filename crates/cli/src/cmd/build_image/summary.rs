//! Summary that `tuff build` prints.

use super::preset;
use crate::next_command::shell_word;
use crate::text::escaped_line;
use crate::units::{pages_needed, percent, size};
use std::path::{Path, PathBuf};
use tuff_erofs::verity::HashTree;
use tuff_mkfs::Summary;

/// Names and durations of stages.
pub(crate) type Stages = [(&'static str, std::time::Duration)];

/// Formats the summary as lines. For an image with extra devices the last line is a command that mounts it.
pub(crate) fn text(
    summary: &Summary,
    seconds: f64,
    stages: &Stages,
    image: Option<&Path>,
) -> String {
    use std::fmt::Write;
    let s = &summary.stats;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {}", escaped_line(value));
    };
    line(
        "tree",
        format!(
            "{} files, {} directories, {} links, {} others, {} hard links",
            s.files, s.dirs, s.symlinks, s.specials, s.hard_links
        ),
    );
    line("content", size(s.content_bytes));
    let share = match s.content_bytes {
        0 => String::new(),
        content => format!(
            " ({} of the content)",
            percent(summary.image_bytes, content)
        ),
    };
    line(
        "image",
        format!("{}{share} in {seconds:.2} s", size(summary.image_bytes)),
    );
    let pages = pages_needed(summary.block_bytes).map_or_else(String::new, |p| format!(", {p}"));
    line(
        "kernel",
        format!("Linux {} and newer{pages}", summary.kernel),
    );
    if summary.old_bytes > 0 {
        let (new, old) = (summary.image_bytes, summary.old_bytes);
        let change = match new.checked_sub(old) {
            Some(more) => format!("{} appended to {}", size(more), size(old)),
            None => format!("{} less than {}", size(old - new), size(old)),
        };
        line("patch", change);
    }
    if let Some(preset) = summary.preset {
        line("settings", preset::arguments(&preset));
    }
    for (what, (files, bytes)) in [
        ("compressed to decode faster", s.auto_fast),
        ("stored as they are", s.auto_stored),
    ] {
        if files > 0 {
            line("auto", format!("{files} files, {}, {what}", size(bytes)));
        }
    }
    for (name, a) in tuff_mkfs::stats::ALGORITHM_NAMES
        .iter()
        .zip(&s.algorithms)
        .filter(|(_, a)| a.clusters > 0)
    {
        let stored = a.image_bytes;
        line(
            name,
            format!(
                "{} in {} clusters, {} ({})",
                size(a.input_bytes),
                a.clusters,
                size(stored),
                percent(stored, a.input_bytes)
            ),
        );
    }
    if s.stored_bytes > 0 {
        line("stored", size(s.stored_bytes));
    }
    if s.external_files > 0 {
        line(
            if s.blob_bytes > 0 {
                "in the blob"
            } else {
                "in the tar"
            },
            format!("{} files, {}", s.external_files, size(s.external_bytes)),
        );
    }
    line("metadata", size(s.meta_blocks * s.block_size));
    if s.inline_tails > 0 {
        line(
            "inline",
            format!("{} tails, {}", s.inline_tails, size(s.inline_bytes)),
        );
    }
    if s.fragments > 0 {
        line(
            "fragments",
            format!(
                "{}, {} shared, {} tails packed beside similar files",
                s.fragments,
                size(s.fragment_dedupe_bytes),
                s.similar_tails
            ),
        );
    }
    if s.dedupe_files > 0 {
        line(
            "dedupe",
            format!("{} files, {}", s.dedupe_files, size(s.dedupe_bytes)),
        );
    }
    if s.base_files > 0 || s.base_part_bytes > 0 {
        line(
            "base",
            format!(
                "{} files, {}, and {} in parts of files",
                s.base_files,
                size(s.base_bytes),
                size(s.base_part_bytes)
            ),
        );
    }
    for (path, number) in summary.devices.iter().zip(1..) {
        line(&format!("device {number}"), path.display().to_string());
    }
    if s.shared_bytes > 0 {
        line(
            "shared",
            format!("{} in parts of files", size(s.shared_bytes)),
        );
    }
    if s.sparse_files > 0 {
        line(
            "sparse",
            format!("{} files, {} of holes", s.sparse_files, size(s.hole_bytes)),
        );
    }
    if s.in_place_tried > 0 {
        line(
            "in place",
            format!(
                "{} of {} sampled LZ4 clusters",
                percent(s.in_place, s.in_place_tried),
                s.in_place_tried
            ),
        );
    }
    if let Some(tree) = &summary.verity {
        line("root hash", hex::encode(tree.root));
        line("hash tree", tree_text(tree));
    }
    for (name, time) in stages {
        line(&format!("  {name}"), format!("{:.2} s", time.as_secs_f64()));
    }
    if let Some(image) = image.filter(|_| !summary.devices.is_empty()) {
        line("mount", mount_command(image, &summary.devices));
    }
    out
}

/// Returns the command that one runs next: it mounts the image. None if the summary has one.
pub(super) fn next_command(summary: &Summary, image: &Path) -> Option<String> {
    let image = shell_word(image);
    match &summary.verity {
        _ if !summary.devices.is_empty() => None,
        Some(tree) => Some(format!(
            "tuff mount --verity {} {image} DIR",
            hex::encode(tree.root)
        )),
        None => Some(format!("tuff mount {image} DIR")),
    }
}

/// Returns a shell command that mounts `image` on `DIR`: in the kernel if possible, else through FUSE.
fn mount_command(image: &Path, devices: &[PathBuf]) -> String {
    use std::fmt::Write;
    let mut command = "tuff mount --kernel".to_owned();
    for device in devices {
        // Writing to a String cannot fail.
        let _ = write!(command, " --device {}", shell_word(device));
    }
    let _ = write!(command, " {} DIR", shell_word(image));
    command
}

/// Formats size and position of a hash tree.
pub(crate) fn tree_text(tree: &HashTree) -> String {
    let len = size(tree.end - tree.hash_offset);
    match tree.parity {
        Some(roots) => format!(
            "{len} with parity of {roots} roots, at byte {}",
            tree.hash_offset
        ),
        None => format!("{len} at byte {}", tree.hash_offset),
    }
}

/// Formats a hash tree as a JSON object, with everything that a reader of it needs.
pub(crate) fn tree_json(tree: &HashTree) -> serde_json::Value {
    let header = &tree.header;
    serde_json::json!({
        "root_hash": hex::encode(tree.root),
        "hash_offset": tree.hash_offset, "end": tree.end,
        "algorithm": "sha256", "salt": hex::encode(&header.salt),
        "data_block_bytes": header.data_block, "hash_block_bytes": header.hash_block,
        "data_blocks": header.data_blocks,
        "fec_roots": tree.parity, "fec_offset": tree.parity.map(|_| tree.tree_end()),
    })
}

/// Formats the summary as one JSON object.
pub(super) fn json(summary: &Summary, seconds: f64, stages: &Stages) -> serde_json::Value {
    let s = &summary.stats;
    let algorithms: serde_json::Map<String, serde_json::Value> = tuff_mkfs::stats::ALGORITHM_NAMES
        .iter()
        .zip(&s.algorithms)
        .filter(|(_, a)| a.clusters > 0)
        .map(|(name, a)| {
            let value = serde_json::json!({"input_bytes": a.input_bytes, "clusters": a.clusters,
                "stored_bytes": a.image_bytes});
            ((*name).to_owned(), value)
        })
        .collect();
    serde_json::json!({
        "event": "done",
        "seconds": seconds,
        "image_bytes": summary.image_bytes,
        "kernel": summary.kernel.to_string(),
        "block_bytes": summary.block_bytes,
        "old_bytes": summary.old_bytes,
        "content_bytes": s.content_bytes,
        "files": s.files, "directories": s.dirs, "symlinks": s.symlinks, "specials": s.specials, "hard_links": s.hard_links,
        "algorithms": algorithms,
        "cluster_blocks_histogram": s.cluster_histogram,
        "stored_bytes": s.stored_bytes,
        "plain_clusters": s.plain_clusters,
        "metadata_bytes": s.meta_blocks * s.block_size,
        "inline_tails": s.inline_tails, "inline_bytes": s.inline_bytes,
        "fragments": s.fragments, "similar_tails": s.similar_tails, "fragment_bytes": s.fragment_bytes, "fragment_dedupe_bytes": s.fragment_dedupe_bytes,
        "dedupe_files": s.dedupe_files, "dedupe_bytes": s.dedupe_bytes, "shared_bytes": s.shared_bytes,
        "external_files": s.external_files, "external_bytes": s.external_bytes, "blob_bytes": s.blob_bytes,
        "devices": summary.devices.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "base_files": s.base_files, "base_bytes": s.base_bytes, "base_part_bytes": s.base_part_bytes,
        "settings": summary.preset.as_ref().map(preset::arguments),
        "auto": {"fast": {"files": s.auto_fast.0, "bytes": s.auto_fast.1},
            "stored": {"files": s.auto_stored.0, "bytes": s.auto_stored.1}},
        "sparse_files": s.sparse_files, "hole_bytes": s.hole_bytes,
        "in_place": {"sampled": s.in_place_tried, "possible": s.in_place},
        "verity": summary.verity.as_ref().map(tree_json),
        "stage_seconds": stages.iter().map(|(name, t)| ((*name).to_owned(), t.as_secs_f64().into())).collect::<serde_json::Map<_, _>>(),
        "warnings": s.warnings,
    })
}
