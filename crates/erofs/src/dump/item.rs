//! A region, or a gap between regions, said in fields.

use super::regions::{Area, Kind, Region, Regions, area_size};
use crate::read::decode::strip;
use crate::read::dir::type_of;
use crate::read::{FileType, Image, Location, Nid, Space};
use crate::{Error, Result};
use tuff_format::cluster::MapHeader;
use tuff_format::dirent::{Block, Dirent};
use tuff_format::features::flags_of;
use tuff_format::inode::Layout;
use tuff_format::xattr::{Body, Entry, encode_body};

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A count or size.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// An address or a set of bits.
    Hex(u64),
    /// Words of ours.
    Text(String),
    /// Bytes from the image.
    Bytes(Vec<u8>),
}

/// A list of named values.
pub type Fields = Vec<(&'static str, Value)>;

/// A run of bytes and all that is in it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where it is.
    pub area: Area,
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// What it is.
    pub name: &'static str,
    /// Its fields.
    pub fields: Fields,
    /// What it holds several of: entries, extents, attributes.
    pub rows: Vec<Fields>,
    /// The bytes themselves, where the fields do not say all of them.
    pub raw: Option<Vec<u8>>,
    /// Why it could not be read, or not in full.
    pub error: Option<String>,
}

/// Longest gap whose bytes are given one by one; of a longer one there is a digest. Unit: bytes.
const RAW_MAX: u64 = 4096;
/// Extents that an index shows; its digest covers them all.
const ROWS_MAX: usize = 1 << 16;
/// Bytes that are read at once. Unit: bytes.
const STEP: u64 = 1 << 20;

/// The items of an image in order: areas one after the other, in each every byte once or, where structures overlap,
/// several times.
pub struct Items<'a> {
    image: &'a Image,
    regions: &'a [Region],
    next: usize,
    /// Area and position up to which everything has had its item.
    at: Option<(Area, u64)>,
    /// Bytes between regions are items, too.
    gaps: bool,
}

impl<'a> Items<'a> {
    /// All items of the image whose regions these are.
    pub fn all(image: &'a Image, regions: &'a Regions) -> Self {
        Self {
            image,
            regions: &regions.list,
            next: 0,
            at: None,
            gaps: true,
        }
    }

    /// Only what is in a region.
    pub fn of_regions(image: &'a Image, regions: &'a Regions) -> Self {
        Self {
            gaps: false,
            ..Self::all(image, regions)
        }
    }
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let region = self.regions.get(self.next).copied();
        if !self.gaps {
            self.next += 1;
            return region.map(|r| item(self.image, &r, 0));
        }
        let (area, at) = match (self.at, region) {
            (None, Some(r)) => (r.area, 0),
            (Some(at), _) => at,
            (None, None) => return None,
        };
        let size = area_size(self.image, area);
        let (start, here) = match region {
            Some(r) if r.area == area => (r.start.min(size), true),
            _ => (size, false),
        };
        if start > at {
            // A gap ends where the filesystem does: what is behind it is something else.
            let bits = self.image.superblock().block_bits;
            let last = bits.len_of(self.image.superblock().blocks).map(|len| len.0);
            let cut = last.filter(|l| area == Area::Store(0) && (at + 1..start).contains(l));
            let end = cut.unwrap_or(start);
            self.at = Some((area, end));
            let behind = area == Area::Store(0) && last.is_some_and(|l| at >= l);
            return Some(gap(self.image, area, at, end, behind));
        }
        if here && let Some(region) = region {
            self.next += 1;
            self.at = Some((area, at.max(region.end)));
            return Some(item(self.image, &region, at));
        }
        // This area is done; the next one starts at its beginning.
        self.at = None;
        region?;
        self.next()
    }
}

fn gap(image: &Image, area: Area, start: u64, end: u64, behind: bool) -> Item {
    let mut out = Item {
        area,
        start,
        end,
        name: if behind {
            "behind the filesystem"
        } else {
            "padding"
        },
        fields: Vec::new(),
        rows: Vec::new(),
        raw: None,
        error: None,
    };
    if let Err(e) = plain(image, &mut out) {
        out.error = Some(e.to_string());
    }
    out
}

/// Bytes without a structure: zero, or as they are, or a digest of many.
fn plain(image: &Image, out: &mut Item) -> Result<()> {
    let mut zero = true;
    let digest = each(image, out.area, out.start, out.end, |bytes| {
        zero &= bytes.iter().all(|b| *b == 0);
    })?;
    if zero {
        out.fields.push(("content", text("zero")));
    } else if out.end - out.start <= RAW_MAX {
        out.raw = Some(read(image, out.area, out.start, out.end)?);
    } else {
        out.fields.push(("blake3", text(digest)));
    }
    Ok(())
}

fn item(image: &Image, region: &Region, covered: u64) -> Item {
    let mut out = Item {
        area: region.area,
        start: region.start,
        end: region.end,
        name: region.kind.name(),
        fields: Vec::new(),
        rows: Vec::new(),
        raw: None,
        error: None,
    };
    if let Some(nid) = region.nid {
        out.fields.push(("nid", text(nid)));
    }
    if region.refs > 1 {
        out.fields.push(("refs", Value::Number(region.refs.into())));
    }
    if region.start < covered {
        let end = covered.min(region.end);
        let span = format!("{:#x}..{end:#x}", region.start);
        out.fields.push(("overlaps", text(span)));
    }
    let behind = region.area == Area::Store(0) && region.start >= image.store_size();
    if behind && image.has_devices().is_err() {
        out.fields.push(("offset", Value::Number(region.offset)));
        out.fields.push(("device", text("not given")));
    } else if let Err(e) = fill(image, region, &mut out) {
        out.error = Some(e.to_string());
    }
    out
}

fn fill(image: &Image, region: &Region, out: &mut Item) -> Result<()> {
    let (start, end) = (region.start, region.end);
    match region.kind {
        Kind::Boot => return plain(image, out),
        Kind::Raw | Kind::Stored | Kind::Cluster(_) | Kind::InlineCluster(_) => {
            return data(image, region, out);
        }
        Kind::Directory => {}
        Kind::Tail => {
            let inode = image.inode(owner(region)?)?;
            if inode.file_type() == FileType::Symlink {
                let target = read(image, region.area, start, end)?;
                out.fields.push(("target", Value::Bytes(target)));
                return Ok(());
            }
            if !inode.is_dir() {
                return data(image, region, out);
            }
        }
        _ => {}
    }
    let bytes = read(image, region.area, start, end)?;
    let (fields, rows, same) = match region.kind {
        Kind::Superblock => superblock(image, &bytes),
        Kind::Configs => configs(image, &bytes),
        Kind::Devices => devices(image, &bytes),
        Kind::Prefixes => prefixes(image, &bytes),
        Kind::SharedXattr(id) => shared_xattr(image, id, &bytes)?,
        Kind::Inode => inode(image, owner(region)?, &bytes)?,
        Kind::Xattrs => xattrs(image, &bytes)?,
        Kind::Chunks | Kind::Index => index(image, owner(region)?, &bytes)?,
        _ => directory(image, region, &bytes)?,
    };
    out.fields.extend(fields);
    out.rows = rows;
    if !same {
        out.raw = Some(bytes);
    }
    Ok(())
}

fn owner(region: &Region) -> Result<Nid> {
    let nid = region.nid;
    nid.ok_or_else(|| Error::corrupt(region.kind.name(), "belongs to no inode"))
}

/// Fields, rows, and whether they say all of the bytes.
type Said = (Fields, Vec<Fields>, bool);

fn superblock(image: &Image, bytes: &[u8]) -> Said {
    let sb = image.superblock();
    let number = |n: u32| Value::Number(n.into());
    let mut fields = vec![
        ("checksum", Value::Hex(sb.checksum.into())),
        ("compat", Value::Hex(sb.compat.into())),
        ("incompat", Value::Hex(sb.incompat.into())),
        ("block_size", Value::Number(sb.block_bits.size())),
        ("slots", number(sb.ext_slots.into())),
        ("root", text(sb.root)),
        ("inodes", Value::Number(sb.inodes)),
        ("epoch", Value::Signed(sb.epoch)),
        ("fixed_nsec", number(sb.fixed_nsec)),
        ("build_time", number(sb.build_time)),
        ("blocks", Value::Number(sb.blocks)),
        ("meta_block", Value::Number(sb.meta_blkaddr.0)),
        ("xattr_block", Value::Number(sb.xattr_blkaddr.0)),
        ("uuid", text(uuid(&sb.uuid))),
        ("label", padded(&sb.label)),
        (
            "algorithms_or_distance",
            Value::Hex(sb.algs_or_distance.into()),
        ),
        ("devices", number(sb.extra_devices.into())),
        ("device_table", number(sb.devt_slotoff.into())),
        ("prefixes", number(sb.xattr_prefix_count.into())),
        ("prefix_table", number(sb.xattr_prefix_start)),
        ("filter_reserved", number(sb.xattr_filter_reserved.into())),
        ("ishare_prefix", number(sb.ishare_prefix.into())),
    ];
    if let Some(nid) = sb.packed {
        fields.push(("packed", text(nid)));
    }
    if let Some(nid) = sb.metabox {
        fields.push(("metabox", text(nid)));
    }
    let rows = flags_of(sb.compat, sb.incompat)
        .filter_map(|f| {
            let (field, bit) = f.flag()?;
            Some(vec![
                (field, Value::Hex(bit.into())),
                ("feature", text(f.name)),
                ("since", text(f.min_kernel)),
            ])
        })
        .collect();
    (fields, rows, sb.encode() == bytes)
}

fn configs(image: &Image, bytes: &[u8]) -> Said {
    let c = image.configs();
    let mut rows = Vec::new();
    if let Some(lz4) = c.lz4 {
        rows.push(vec![
            ("algorithm", text("lz4")),
            ("max_distance", Value::Number(lz4.max_distance.into())),
            (
                "max_cluster_blocks",
                Value::Number(lz4.max_pcluster_blocks.into()),
            ),
        ]);
    }
    if let Some(dict) = c.lzma_dict_size {
        rows.push(vec![
            ("algorithm", text("lzma")),
            ("dictionary", Value::Number(dict.into())),
        ]);
    }
    if let Some(bits) = c.deflate_window_bits {
        rows.push(vec![
            ("algorithm", text("deflate")),
            ("window_bits", Value::Number(bits.into())),
        ]);
    }
    if let Some(log) = c.zstd_window_log {
        rows.push(vec![
            ("algorithm", text("zstd")),
            ("window_log", Value::Number(log.into())),
        ]);
    }
    (Vec::new(), rows, c.encode() == bytes)
}

fn devices(image: &Image, bytes: &[u8]) -> Said {
    let slots = image.slots();
    let rows = slots.iter().enumerate().map(|(i, slot)| {
        vec![
            ("device", Value::Number(i as u64 + 1)),
            ("blocks", Value::Number(slot.blocks)),
            ("first_block", Value::Number(slot.uniaddr.0)),
            ("tag", padded(&slot.tag)),
        ]
    });
    let encoded: Vec<u8> = slots.iter().flat_map(|s| s.encode()).collect();
    (Vec::new(), rows.collect(), encoded == bytes)
}

fn prefixes(image: &Image, bytes: &[u8]) -> Said {
    let mut encoded = Vec::new();
    let rows = image.prefixes().iter().map(|p| {
        p.encode(&mut encoded);
        vec![
            ("base", Value::Number(p.base.into())),
            ("infix", Value::Bytes(p.infix.clone())),
        ]
    });
    let rows = rows.collect();
    (Vec::new(), rows, encoded == bytes)
}

fn xattr_fields(image: &Image, entry: &Entry<'_>) -> Fields {
    let name = match image.full_name(entry) {
        Some(name) => ("name", Value::Bytes(name)),
        None => ("hidden_name", Value::Bytes(entry.name.to_vec())),
    };
    vec![
        ("index", Value::Hex(entry.index.into())),
        name,
        ("value", Value::Bytes(entry.value.to_vec())),
    ]
}

fn shared_xattr(image: &Image, id: u32, bytes: &[u8]) -> Result<Said> {
    let (entry, _) = Entry::decode(bytes).map_err(|e| Error::format("", e))?;
    let mut fields = vec![("id", Value::Number(id.into()))];
    fields.extend(xattr_fields(image, &entry));
    let mut encoded = Vec::new();
    entry.encode(&mut encoded);
    Ok((fields, Vec::new(), encoded == bytes))
}

fn xattrs(image: &Image, bytes: &[u8]) -> Result<Said> {
    let bad = |e| Error::format("", e);
    let body = Body::new(bytes).map_err(bad)?;
    let entries: Vec<Entry<'_>> = body.entries().collect::<Result<_, _>>().map_err(bad)?;
    let ids: Vec<u32> = body.shared_ids().collect();
    let mut rows: Vec<Fields> = entries.iter().map(|e| xattr_fields(image, e)).collect();
    rows.extend(
        ids.iter()
            .map(|id| vec![("shared", Value::Number((*id).into()))]),
    );
    let mut encoded = Vec::new();
    encode_body(body.filter, &ids, &entries, &mut encoded);
    let fields = vec![("filter", Value::Hex(body.filter.into()))];
    Ok((fields, rows, encoded == bytes))
}

/// The fields of an inode, as dumps and statistics show them.
fn inode(image: &Image, nid: Nid, bytes: &[u8]) -> Result<Said> {
    let inode = image.inode(nid)?;
    let raw = inode.raw();
    let number = |n: u32| Value::Number(n.into());
    let form = if raw.extended { "extended" } else { "compact" };
    let fields = vec![
        ("type", text(inode.file_type().name())),
        ("form", text(form)),
        ("layout", text(layout_name(raw.layout))),
        ("flag4", number(raw.flag4.into())),
        ("mode", text(format_args!("{:06o}", raw.mode))),
        ("nlink", number(raw.nlink)),
        ("uid", number(raw.uid)),
        ("gid", number(raw.gid)),
        ("size", Value::Number(raw.size)),
        ("mtime", Value::Signed(raw.mtime)),
        ("nsec", number(raw.mtime_nsec)),
        ("u", Value::Hex(raw.u)),
        ("ino", number(raw.ino)),
        ("xattr_count", number(raw.xattr_icount.into())),
    ];
    let mut encoded = Vec::new();
    // A size or time that a compact inode cannot have comes from no compact inode, so encoding does not assert.
    raw.encode(&mut encoded);
    Ok((fields, Vec::new(), encoded == bytes))
}

/// Chunk tables and cluster indexes: what they map, and a digest of how they say it.
fn index(image: &Image, nid: Nid, bytes: &[u8]) -> Result<Said> {
    let inode = image.inode(nid)?;
    let mut fields = Fields::new();
    if inode.layout() == Layout::ChunkBased {
        fields.push(("format", Value::Hex(inode.raw().u)));
    } else {
        match MapHeader::decode(bytes).map_err(|e| Error::format("", e))? {
            MapHeader::WholeFragment { offset } => {
                fields.push(("fragment", Value::Number(offset)));
                return Ok((fields, Vec::new(), bytes.len() == MapHeader::LEN));
            }
            MapHeader::Index {
                word,
                advise,
                algorithms,
                cluster_bits,
            } => fields.extend([
                ("word", Value::Hex(word.into())),
                ("advise", Value::Hex(advise.into())),
                ("algorithms", Value::Hex(algorithms.into())),
                ("cluster_bits", Value::Hex(cluster_bits.into())),
            ]),
        }
    }
    // Distances and unused entries are in no extent.
    fields.push(("blake3", text(short(&blake3::hash(bytes)))));
    let mut rows = Vec::new();
    for extent in image.extents(&inode, 0..inode.size())? {
        if rows.len() >= ROWS_MAX {
            fields.push(("extents_shown", Value::Number(ROWS_MAX as u64)));
            break;
        }
        rows.push(extent_fields(&extent?));
    }
    Ok((fields, rows, true))
}

/// An extent in fields.
fn extent_fields(extent: &crate::read::Extent) -> Fields {
    let mut fields = vec![
        ("offset", Value::Number(extent.offset)),
        ("len", Value::Number(extent.len)),
    ];
    match extent.location {
        Location::Hole => fields.push(("in", text("hole"))),
        Location::Raw { device, pos } => {
            fields.push(("in", text("data")));
            if device != 0 {
                fields.push(("device", Value::Number(device.into())));
            }
            fields.push(("at", Value::Hex(pos)));
        }
        Location::Cluster(c) => {
            fields.push(("in", text(crate::read::decode::name(c.coding.into()))));
            fields.push(("at", Value::Hex(c.pos)));
            fields.push(("plen", Value::Number(c.len.into())));
            if c.partial {
                fields.push(("partial", Value::Number(1)));
            }
        }
        Location::Inline {
            pos, len, coding, ..
        } => {
            fields.push(("in", text(crate::read::decode::name(coding))));
            fields.push(("inline_at", Value::Hex(pos)));
            fields.push(("plen", Value::Number(len.into())));
        }
        Location::Fragment { offset } => {
            fields.push(("in", text("packed")));
            fields.push(("packed_at", Value::Number(offset)));
        }
    }
    fields
}

fn directory(image: &Image, region: &Region, bytes: &[u8]) -> Result<Said> {
    let bits = image.superblock().block_bits;
    let mut rows = Vec::new();
    let mut same = true;
    for block in bytes.chunks(bits.size_usize()) {
        let view = Block::new(block).map_err(|e| Error::format("", e))?;
        let mut entries: Vec<Dirent<'_>> = Vec::new();
        for entry in view.entries() {
            let entry = entry.map_err(|e| Error::format("", e))?;
            let kind = type_of(entry.file_type).map_or("unknown", |t| t.name());
            rows.push(vec![
                ("nid", text(entry.nid)),
                ("type", text(kind)),
                ("name", Value::Bytes(entry.name.to_vec())),
            ]);
            entries.push(entry);
        }
        same &= canonical(&entries, block);
    }
    let mut fields = Fields::new();
    if region.offset > 0 {
        fields.push(("offset", Value::Number(region.offset)));
    }
    Ok((fields, rows, same))
}

/// True if the block holds these entries and nothing else.
fn canonical(entries: &[Dirent<'_>], block: &[u8]) -> bool {
    use tuff_format::dirent::LEN;
    let mut out = vec![0; entries.len() * LEN];
    for (i, entry) in entries.iter().enumerate() {
        let at = out.len() as u16; // fits: a block is at most 64 KiB, and entries start below its end
        let head = &mut out[i * LEN..][..LEN];
        head[..8].copy_from_slice(&entry.nid.0.to_le_bytes());
        head[8..10].copy_from_slice(&at.to_le_bytes());
        head[10] = entry.file_type;
        out.extend_from_slice(entry.name);
    }
    out.resize(out.len().max(block.len()), 0);
    out == block
}

fn data(image: &Image, region: &Region, out: &mut Item) -> Result<()> {
    let (start, end) = (region.start, region.end);
    out.fields.push(("offset", Value::Number(region.offset)));
    if let Kind::Cluster(id) | Kind::InlineCluster(id) = region.kind {
        let name = crate::read::decode::name(tuff_format::cluster::Coding::Compressed(id));
        out.fields.push(("algorithm", text(name)));
    }
    if region.len != end - start {
        out.fields.push(("decoded", Value::Number(region.len)));
    }
    if region.partial {
        out.fields.push(("partial", Value::Number(1)));
    }
    if matches!(region.kind, Kind::Cluster(_)) && image.form().right_aligned {
        let bits = image.superblock().block_bits;
        let head = read(image, region.area, start, end.min(start + bits.size()))?;
        let stream = strip(&head, bits).map_or(0, <[u8]>::len);
        let zeros = head.len() - stream;
        out.fields.push(("zeros", Value::Number(zeros as u64)));
    }
    let digest = each(image, region.area, start, end, |_| {})?;
    out.fields.push(("blake3", text(digest)));
    Ok(())
}

/// Calls `f` with all bytes of a run, in pieces. Returns a digest of them.
fn each(
    image: &Image,
    area: Area,
    start: u64,
    end: u64,
    mut f: impl FnMut(&[u8]),
) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut at = start;
    while at < end {
        let to = end.min(at + STEP);
        let bytes = read(image, area, at, to)?;
        hasher.update(&bytes);
        f(&bytes);
        at = to;
    }
    Ok(short(&hasher.finalize()))
}

/// 128 bits are enough to tell any two runs apart.
fn short(hash: &blake3::Hash) -> String {
    hash.to_hex()[..32].to_owned()
}

fn read(image: &Image, area: Area, start: u64, end: u64) -> Result<Vec<u8>> {
    let len = end - start;
    if end > area_size(image, area) {
        return Err(Error::corrupt(
            format_args!("byte {start:#x}"),
            format_args!(
                "{len} bytes reach past the end, byte {}",
                area_size(image, area)
            ),
        ));
    }
    // Fits: the run lies inside the area, and structures are bounded when they are read first.
    let mut buf = vec![0; len as usize];
    match area {
        Area::Store(store) => {
            let spot = crate::read::Spot { store, pos: start };
            image.devices.read_spot(spot, &mut buf)?;
        }
        Area::Metabox => {
            let bytes = image.bytes(Space::Metabox, start, buf.len())?;
            buf.copy_from_slice(&bytes);
        }
    }
    Ok(buf)
}

/// The name of a layout.
pub(super) fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::FlatPlain => "plain",
        Layout::CompressedFull => "compressed-full",
        Layout::FlatInline => "inline",
        Layout::CompressedCompact => "compressed-compact",
        Layout::ChunkBased => "chunks",
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    let mut out = String::new();
    for (i, b) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out += &format!("{b:02x}");
    }
    out
}

/// Text that is padded with NUL at its end; one inside, and what follows it, is shown.
fn padded(bytes: &[u8]) -> Value {
    let len = bytes
        .iter()
        .rposition(|b| *b != 0)
        .map_or(0, |last| last + 1);
    Value::Bytes(bytes[..len].to_vec())
}

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}
