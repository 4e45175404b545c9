//! Details of one file: its attributes, and where its data lies.

use crate::cmd::stat::extents::Line;
use crate::cmd::stat::layout_name;
use crate::text::{escaped, mode_string, time};
use crate::units::{percent, size};
use tuff_erofs::Result;
use tuff_erofs::dump::{Codings, NodeId, TreeUsage};
use tuff_erofs::read::{FileType, Image, Inode};

/// Number of extents that are listed.
const EXTENTS: usize = 12;
/// Number of files that are named as sharing data.
const SHARERS: usize = 5;
/// Number of extents that are counted.
const COUNTED: usize = 100_000;

/// Lines about a node: a name and a value, which may be empty.
pub(super) struct Details {
    pub(super) id: NodeId,
    pub(super) lines: Vec<(&'static str, String)>,
}

impl Details {
    /// Reads the details of a node.
    pub(super) fn new(image: &Image, usage: &TreeUsage, id: NodeId) -> Self {
        let mut lines = vec![("path", format!("/{}", escaped(&usage.path(id))))];
        let read = image
            .inode(usage.inode(id).nid)
            .and_then(|inode| describe(image, usage, id, &inode, &mut lines));
        if let Err(e) = read {
            lines.push(("damage", crate::text::escaped_line(e)));
        }
        Self { id, lines }
    }
}

fn describe(
    image: &Image,
    usage: &TreeUsage,
    id: NodeId,
    inode: &Inode,
    lines: &mut Vec<(&'static str, String)>,
) -> Result<()> {
    let sums = usage.sums(id);
    let of = usage.inode(id);
    let (mode, uid, gid) = (mode_string(inode.mode()), inode.uid(), inode.gid());
    lines.push(("mode", format!("{mode} {uid}:{gid}")));
    lines.push(("time", time(inode.mtime().0)));
    lines.push(("inode", inode.nid().to_string()));
    if of.names > 1 {
        lines.push(("hard links", of.names.to_string()));
    }
    if usage.is_dir(id) {
        lines.push(("inodes", sums.inodes.to_string()));
    }
    lines.push((
        "size",
        format!("{} ({} bytes)", size(sums.bytes), sums.bytes),
    ));
    let share = percent(sums.stored_bytes, sums.bytes);
    lines.push(("stored", format!("{} ({share})", size(sums.stored_bytes))));
    for (name, bytes) in [
        ("shared", sums.shared_bytes),
        ("fragments", sums.fragment_bytes),
        ("holes", sums.hole_bytes),
    ] {
        if bytes > 0 {
            lines.push((name, size(bytes)));
        }
    }
    if inode.file_type() == FileType::Symlink {
        lines.push(("target", escaped(&image.readlink(inode)?)));
    }
    if !inode.has_data() || inode.is_dir() {
        return Ok(());
    }
    lines.push(("layout", layout_name(inode.layout()).to_owned()));
    lines.push(("coding", coding(of.codings, of.sums.fragment_bytes > 0)));
    let sharers = match sums.shared_bytes > 0 {
        true => usage.sharers(id, SHARERS),
        false => Vec::new(),
    };
    for other in sharers {
        lines.push(("shared with", format!("/{}", escaped(&usage.path(other)))));
    }
    if inode.file_type() == FileType::File {
        extents(image, inode, lines)?;
    }
    Ok(())
}

fn extents(image: &Image, inode: &Inode, lines: &mut Vec<(&'static str, String)>) -> Result<()> {
    let (mut count, mut first) = (0, Vec::new());
    for extent in image.extents(inode, 0..inode.size())?.take(COUNTED) {
        let extent = extent?;
        count += 1;
        if first.len() < EXTENTS {
            let last = extent.end() >= inode.size();
            first.push(Line::new(&extent, last).short());
        }
    }
    let more = if count == COUNTED { " or more" } else { "" };
    lines.push(("extents", format!("{count}{more}")));
    lines.extend(first.into_iter().map(|line| ("", line)));
    Ok(())
}

/// Names of the encodings of an inode's data.
pub(super) fn coding(codings: Codings, has_fragments: bool) -> String {
    let mut names: Vec<&str> = (0..4)
        .filter(|id| codings.has(Codings::of_algorithm(*id)))
        .map(crate::cmd::stat::extents::algorithm_name)
        .collect();
    if codings.has(Codings::PLAIN) {
        names.push("plain");
    }
    if has_fragments {
        names.push("fragment");
    }
    names.join("+")
}
