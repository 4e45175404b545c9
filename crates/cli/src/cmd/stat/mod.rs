//! `tuff stat`: prints inode, attributes and extents of paths.

pub(crate) mod extents;

use super::ls::put_inode;
use crate::image::ImageArgs;
use crate::out::{Out, field};
use crate::select::entry;
use crate::text::{self, escaped, escaped_path, full_time, mode_string, or_root, put_bytes};
use extents::Line;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use tuff_erofs::read::{FileType, Image, Inode, Layout, Location};
use tuff_erofs::walk::Entry;
use tuff_erofs::{Error, Result};

/// Show inode, attributes and layout of files
///
/// With --extents, a line for each extent has offset and length in the file, offset and length in the image, coding, and flags:
/// "last", "partial" (the cluster decodes to more), "inline" (after the inode), "packed" (offset in the data of the packed inode),
/// "device=N", "metabox".
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Paths in the image
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Follow a symlink at the end of a path
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Add the extents of the data
    #[arg(short, long)]
    extents: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    print(args).map_err(|e| args.image.named(e))
}

fn print(args: &Args) -> Result<ExitCode> {
    let image = args.image.open()?;
    let mut out = Out::new();
    for (i, path) in args.paths.iter().enumerate() {
        let found = entry(&image, path, args.dereference)?;
        if args.json {
            out.json(&Value::Object(object(&image, &found, args.extents)?))?;
        } else {
            if i > 0 {
                out.line("")?;
            }
            text(&image, &found, args.extents, &mut out)?;
        }
    }
    out.finish()
}

/// Space usage of an inode's data.
#[derive(Default)]
pub(crate) struct Storage {
    extents: u64,
    /// Bytes in the image, inline data included.
    pub(crate) stored_bytes: u64,
    hole_bytes: u64,
    packed_bytes: u64,
}

/// Sums the extents of an inode.
pub(crate) fn storage(image: &Image, inode: &Inode) -> Result<Storage> {
    let mut out = Storage::default();
    extents::each(image, inode, |extent, _| {
        out.extents += 1;
        match extent.location {
            Location::Hole => out.hole_bytes += extent.len,
            Location::Raw { .. } => out.stored_bytes += extent.len,
            Location::Cluster(c) => out.stored_bytes += u64::from(c.len),
            Location::Inline { len, .. } => out.stored_bytes += u64::from(len),
            Location::Fragment { .. } => out.packed_bytes += extent.len,
        }
        Ok(())
    })?;
    Ok(out)
}

/// Returns true if an inode has data.
pub(crate) fn has_data(inode: &Inode) -> bool {
    matches!(
        inode.file_type(),
        FileType::File | FileType::Dir | FileType::Symlink
    ) && inode.size() > 0
}

fn text(image: &Image, entry: &Entry, with_extents: bool, out: &mut Out) -> Result<()> {
    let inode = &entry.inode;
    field!(out, 9, "path" => "{}", escaped_path(&entry.path))?;
    field!(out, 9, "type" => "{}", inode.file_type().name())?;
    if inode.file_type() == FileType::Symlink {
        field!(out, 9, "target" => "{}", escaped(&image.readlink(inode)?))?;
    }
    let form = match inode.raw().extended {
        true => "extended",
        false => "compact",
    };
    let (nid, space, layout) = (inode.nid(), inode.space(), layout_name(inode.layout()));
    field!(out, 9, "inode" => "{nid} at {space} byte {:#x}, {form}, {layout}", inode.position())?;
    field!(out, 9, "mode" => "{:04o} {}", inode.mode() & 0o7777, mode_string(inode.mode()))?;
    field!(out, 9, "owner" => "{}:{}", inode.uid(), inode.gid())?;
    field!(out, 9, "links" => "{}", inode.nlink())?;
    if let Some((major, minor)) = inode.device() {
        field!(out, 9, "device" => "{major}, {minor}")?;
    }
    field!(out, 9, "size" => "{}", inode.size())?;
    field!(out, 9, "modified" => "{}", full_time(inode.mtime()))?;
    if has_data(inode) {
        let s = storage(image, inode)?;
        let mut parts = vec![format!("{} bytes, extents: {}", s.stored_bytes, s.extents)];
        if s.packed_bytes > 0 {
            parts.push(format!("{} bytes packed with others", s.packed_bytes));
        }
        if s.hole_bytes > 0 {
            parts.push(format!("{} bytes of holes", s.hole_bytes));
        }
        field!(out, 9, "stored" => "{}", parts.join(", "))?;
    }
    for xattr in image.xattrs(inode)? {
        field!(out, 9, "xattr" => "{}={}", escaped(&xattr.name), escaped(&xattr.value))?;
    }
    if with_extents && has_data(inode) {
        out.line(extents::HEADING)?;
        extents::each(image, inode, |extent, last| {
            out.line(Line::new(extent, last).text())
        })?;
    }
    Ok(())
}

fn object(image: &Image, entry: &Entry, with_extents: bool) -> Result<Map<String, Value>> {
    let inode = &entry.inode;
    let mut out = Map::new();
    put_bytes(&mut out, "path", or_root(&entry.path));
    put_inode(image, inode, &mut out)?;
    let xattrs = image.xattrs(inode)?.into_iter().map(|x| {
        let mut one = Map::new();
        put_bytes(&mut one, "name", &x.name);
        put_bytes(&mut one, "value", &x.value);
        one
    });
    out.append(&mut text::object(json!({
        "position": inode.position(), "space": inode.space().to_string(), "extended": inode.raw().extended,
        "layout": layout_name(inode.layout()), "xattrs": xattrs.collect::<Vec<_>>(),
    })));
    if has_data(inode) {
        let s = storage(image, inode)?;
        let value = json!({"extents": s.extents, "bytes": s.stored_bytes, "hole_bytes": s.hole_bytes,
            "packed_bytes": s.packed_bytes});
        out.insert("stored".into(), value);
    }
    if with_extents {
        let mut list = Vec::new();
        if has_data(inode) {
            extents::each(image, inode, |extent, last| {
                list.push(Line::new(extent, last).json());
                Ok::<(), Error>(())
            })?;
        }
        out.insert("extents".into(), list.into());
    }
    Ok(out)
}

/// Name of a data layout.
pub(crate) fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::FlatPlain => "plain",
        Layout::CompressedFull => "compressed, full index",
        Layout::FlatInline => "inline",
        Layout::CompressedCompact => "compressed, compact index",
        Layout::ChunkBased => "chunks",
    }
}
