//! Image composer that places each structure at a position that the test chooses, for images that neither `tuff build` nor
//! `mkfs.erofs` writes.
//!
//! ```text
//!  0        1024         1280      2048                16384
//!  | zeros  | superblock | devices | slots of 512 ...  | data: blocks, clusters, runs of bytes ...
//!             records      (128)     one inode each
//! ```
//! The metabox, if present, also has places of 512 bytes. The first is free for tables.

use tuff_codec::{EncoderSpec, Method};
use tuff_format::cluster::{HeadKind, Lcluster, MapHeader, full};
use tuff_format::config::{Configs, Lz4};
use tuff_format::device::Slot;
use tuff_format::dirent::{self, Dirent};
use tuff_format::features::incompat;
use tuff_format::inode::{FileType, Inode, Layout};
use tuff_format::superblock::{OFFSET, Superblock, checksum_len, seal};
use tuff_format::xattr::{self, Entry, LongPrefix};
use tuff_format::{BlockBits, Nid};

/// Block size of all images. Unit: bytes.
pub const BS: usize = 4096;
/// First byte after the places for inodes.
const DATA: usize = 16384;
/// Position of the device table.
const DEVICES: usize = 1280;
/// Base time of every sheet.
pub const EPOCH: i64 = 1_700_000_000;
const METABOX: u64 = 1 << 63;

/// Returns the k-th place in the image, 0 to 27.
pub fn place(k: u64) -> Nid {
    Nid((2048 + 512 * k) / 32)
}

/// Returns the k-th place in the metabox, from 1.
pub fn boxed(k: u64) -> Nid {
    Nid(METABOX | (512 * k / 32))
}

/// Position of the map header of an extended inode without attributes, relative to its place. Places start at multiples of 512,
/// so the alignment of a COMPACT index follows from it.
pub const HEADER_POS: u64 = 64;

/// Image that is being composed.
pub struct Sheet {
    /// Superblock that is written at the end.
    pub sb: Superblock,
    /// Configurations of the compression algorithms.
    pub configs: Configs,
    /// Records of the device table.
    pub slots: Vec<Slot>,
    bytes: Vec<u8>,
    metabox: Vec<u8>,
}

impl Sheet {
    /// Creates a sheet with these incompatible features and the root in place 0. With `COMPR_CFGS` all algorithms are available.
    pub fn new(incompat: u32) -> Self {
        let all = Configs {
            lz4: Some(Lz4 {
                max_distance: 65535,
                max_pcluster_blocks: 16,
            }),
            lzma_dict_size: Some(1 << 20),
            deflate_window_bits: Some(15),
            zstd_window_log: Some(20),
        };
        let compressed = incompat & incompat::COMPR_CFGS != 0;
        Self {
            sb: Superblock {
                compat: tuff_format::features::compat::SB_CHKSUM,
                incompat,
                ext_slots: u8::from(incompat & incompat::METABOX != 0),
                root: place(0),
                epoch: EPOCH,
                uuid: [7; 16],
                label: *b"assembled\0\0\0\0\0\0\0",
                ..Superblock::empty(BlockBits::B4K)
            },
            configs: if compressed { all } else { Configs::default() },
            slots: Vec::new(),
            bytes: vec![0; DATA],
            metabox: Vec::new(),
        }
    }

    /// Writes an inode with its xattr body to a place, and `payload` after it at the next multiple of `align`.
    pub fn put(&mut self, nid: Nid, inode: Inode, xattrs: &[u8], align: usize, payload: &[u8]) {
        let inode = Inode {
            xattr_icount: xattr::icount(xattrs.len()).unwrap(),
            ino: (nid.0 & 0xFFFF) as u32,
            ..inode
        };
        let mut out = Vec::new();
        inode.encode(&mut out);
        out.extend_from_slice(xattrs);
        out.resize(out.len().next_multiple_of(align), 0);
        out.extend_from_slice(payload);
        let at = (nid.0 & !METABOX) as usize * 32;
        self.write(nid.in_metabox(), at, &out);
        self.sb.inodes += 1;
    }

    /// Writes a directory with inline entries and adds "." and "..".
    pub fn put_dir(
        &mut self,
        nid: Nid,
        parent: Nid,
        xattrs: &[u8],
        entries: &[(&str, Nid, FileType)],
    ) {
        let mut all = vec![(".", nid, FileType::Dir), ("..", parent, FileType::Dir)];
        all.extend_from_slice(entries);
        let bytes = dir_block(all);
        let subdirs = entries.iter().filter(|e| e.2 == FileType::Dir).count();
        let inode = Inode {
            mode: 0o040755,
            nlink: 2 + subdirs as u32,
            ..inode(Layout::FlatInline, bytes.len() as u64, 0)
        };
        self.put(nid, inode, xattrs, 1, &bytes);
    }

    /// Writes the root directory with these files.
    pub fn put_root(&mut self, files: &[(&str, Nid)]) {
        let entries: Vec<_> = files
            .iter()
            .map(|(n, i)| (*n, *i, FileType::File))
            .collect();
        let root = self.sb.root;
        self.put_dir(root, root, &[], &entries);
    }

    /// Writes bytes at a position of the image or of the metabox that is still zero.
    pub fn write(&mut self, metabox: bool, at: usize, bytes: &[u8]) {
        let space = if metabox {
            &mut self.metabox
        } else {
            &mut self.bytes
        };
        if space.len() < at + bytes.len() {
            space.resize(at + bytes.len(), 0);
        }
        let spot = &mut space[at..at + bytes.len()];
        assert!(spot.iter().all(|b| *b == 0), "{at:#x} is in use");
        spot.copy_from_slice(bytes);
    }

    /// Appends whole blocks that start with `bytes`. Returns the address of the first block.
    pub fn blocks(&mut self, bytes: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(BS), 0);
        let block = self.bytes.len() / BS;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(BS), 0);
        block as u32
    }

    /// Appends whole blocks with `bytes` at their end, like a pcluster. Returns the first block's address.
    pub fn cluster(&mut self, bytes: &[u8]) -> u32 {
        let mut padded = vec![0; bytes.len().next_multiple_of(BS) - bytes.len()];
        padded.extend_from_slice(bytes);
        self.blocks(&padded)
    }

    /// Appends bytes without alignment. Returns their position.
    pub fn run(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at as u64
    }

    /// Writes three inodes over `data` of 12,000 bytes, which is compressed to one pcluster:
    ///
    /// * the packed inode with all of it
    /// * a file with the first 5,000 bytes
    /// * a file that is one fragment: 10,000 bytes from offset 2,000
    pub fn put_fragments(&mut self, [packed, part, whole]: [Nid; 3], data: &[u8]) {
        assert_eq!(data.len(), 12_000);
        let cluster = squeeze(Method::Lz4hc, data);
        assert!(cluster.len() <= BS);
        let block = self.cluster(&cluster);
        let head = |partial| Lcluster::Head {
            kind: HeadKind::Head1,
            ofs: 0,
            block,
            partial,
        };
        let end = |ofs| Lcluster::Head {
            kind: HeadKind::Plain,
            ofs,
            block: 0,
            partial: false,
        };
        let between = Lcluster::Nonhead {
            back: 1,
            ahead: 1,
            blocks: None,
        };
        self.sb.packed = Some(packed);
        let index = full_index(0, 0, 0, &[head(false), between, end(12_000 - 8192)]);
        let file = inode(Layout::CompressedFull, 12_000, 1);
        self.put(packed, file, &[], 8, &index);
        let index = full_index(0, 0, 0, &[head(true), end(5_000 - 4096)]);
        let file = inode(Layout::CompressedFull, 5_000, 1);
        self.put(part, file, &[], 8, &index);
        let header = MapHeader::WholeFragment { offset: 2_000 };
        let file = inode(Layout::CompressedFull, 10_000, 0);
        self.put(whole, file, &[], 8, &header.encode());
    }

    /// Writes the metabox inode, flat or compressed. Its data is everything written to the metabox before.
    pub fn close_metabox(&mut self, nid: Nid, compressed: bool) {
        let data = self.metabox.clone();
        self.sb.metabox = Some(nid);
        if !compressed {
            let block = self.blocks(&data);
            let file = inode(Layout::FlatPlain, data.len() as u64, block.into());
            return self.put(nid, file, &[], 1, &[]);
        }
        assert!(data.len() > BS, "nothing to compress");
        let block = self.cluster(&squeeze(Method::Zstd, &data));
        let len = data.len() as u64;
        let record = record16(len_word(BS as u32, 4), u64::from(block) * BS as u64, 0);
        let payload = extents(16, 1, 0, 0, &record);
        self.put(nid, inode(Layout::CompressedFull, len, 1), &[], 8, &payload);
    }

    /// Sets the table of long xattr name prefixes, which starts at `at` in its container. Returns its bytes.
    pub fn prefixes(&mut self, at: usize, prefixes: &[(u8, &str)]) -> Vec<u8> {
        self.sb.incompat |= incompat::XATTR_PREFIXES;
        self.sb.xattr_prefix_count = prefixes.len() as u8;
        self.sb.xattr_prefix_start = at as u32 / 4;
        let mut out = Vec::new();
        for (base, infix) in prefixes {
            out.resize(out.len().next_multiple_of(4), 0);
            LongPrefix {
                base: *base,
                infix: infix.as_bytes().to_vec(),
            }
            .encode(&mut out);
        }
        out
    }

    /// Returns the image: whole blocks with superblock, compression records, device table and a valid checksum.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(BS), 0);
        self.sb.blocks += (self.bytes.len() / BS) as u64;
        if self.sb.has(incompat::COMPR_CFGS) {
            self.sb.algs_or_distance = self.configs.algorithms();
        }
        if !self.slots.is_empty() {
            self.sb.extra_devices = self.slots.len() as u16;
            self.sb.devt_slotoff = (DEVICES / 128) as u16;
        }
        let mut head = self.sb.encode();
        if self.sb.has(incompat::COMPR_CFGS) {
            head.extend_from_slice(&self.configs.encode());
        }
        self.write(false, OFFSET as usize, &head);
        for (i, slot) in self.slots.clone().iter().enumerate() {
            self.write(false, DEVICES + 128 * i, &slot.encode());
        }
        seal(&mut self.bytes[OFFSET as usize..][..checksum_len(BlockBits::B4K)]);
        self.bytes
    }
}

/// Returns an extended inode of a regular file.
pub fn inode(layout: Layout, size: u64, u: u64) -> Inode {
    Inode {
        extended: true,
        layout,
        flag4: false,
        xattr_icount: 0,
        mode: 0o100644,
        nlink: 1,
        size,
        mtime: EPOCH,
        mtime_nsec: 9,
        u,
        ino: 0,
        uid: 0,
        gid: 0,
        no_start: false,
    }
}

/// Returns a compact inode of a regular file, modified at [`EPOCH`].
pub fn compact(layout: Layout, size: u64, u: u64) -> Inode {
    Inode {
        extended: false,
        mtime: 0,
        mtime_nsec: 0,
        ..inode(layout, size, u)
    }
}

/// Encodes one directory block, with names in ascending order.
pub fn dir_block(mut entries: Vec<(&str, Nid, FileType)>) -> Vec<u8> {
    entries.sort_by_key(|e| e.0.as_bytes());
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, nid, kind)| Dirent {
            nid: *nid,
            file_type: kind.dirent_code(),
            name: name.as_bytes(),
        })
        .collect();
    let mut out = Vec::new();
    dirent::encode(&entries, &mut out);
    out
}

/// Encodes an xattr body: shared ids, then entries of name index, name and value.
pub fn xattrs(shared: &[u32], entries: &[(u8, &str, &str)]) -> Vec<u8> {
    let entries: Vec<_> = entries.iter().map(|(i, n, v)| entry(*i, n, v)).collect();
    let mut out = Vec::new();
    xattr::encode_body(0, shared, &entries, &mut out);
    out
}

/// Returns one xattr entry.
pub fn entry<'a>(index: u8, name: &'a str, value: &'a str) -> Entry<'a> {
    Entry {
        index,
        name: name.as_bytes(),
        value: value.as_bytes(),
    }
}

/// Compresses all of `data` to one pcluster.
pub fn squeeze(method: Method, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 1 << 16];
    let mut encoder = EncoderSpec::new(method, 1 << 16).build().unwrap();
    encoder.reset();
    let fit = encoder.fit(data, 0, &mut out);
    assert_eq!(
        fit.consumed,
        data.len(),
        "the data does not fit into one cluster"
    );
    out.truncate(fit.written);
    out
}

/// Encodes a map header and a FULL index. The low nibble of `algorithms` is HEAD1's, the high one HEAD2's.
pub fn full_index(word: u32, advise: u16, algorithms: u8, entries: &[Lcluster]) -> Vec<u8> {
    let header = MapHeader::Index {
        word,
        advise,
        algorithms,
        cluster_bits: 0,
    };
    let mut out = header.encode().to_vec();
    out.resize(full::START as usize, 0);
    full::encode(entries, &mut out);
    out
}

/// Encodes a map header at [`HEADER_POS`] and a table of encoded extents. For records of 4 and 8 bytes, `bits` is log2 of the
/// extent length divided by the block size. For records of 16 and 32 bytes, `count` is stored.
pub fn extents(record: u16, count: u32, bits: u8, advise: u16, table: &[u8]) -> Vec<u8> {
    let code = record.trailing_zeros() as u16 - 2;
    let header = MapHeader::Index {
        word: if record < 16 { 0 } else { count },
        advise: 1 | code << 1 | advise,
        algorithms: 0,
        cluster_bits: bits,
    };
    let mut out = header.encode().to_vec();
    let start = (HEADER_POS + 8).next_multiple_of(record.into()) - HEADER_POS;
    out.resize(start as usize, 0);
    out.extend_from_slice(table);
    out
}

/// Returns the first word of a record: encoded length and format. Format 0 is uncompressed, others are 1 + the algorithm.
pub fn len_word(len: u32, format: u32) -> u32 {
    len | format << 28
}

/// Flag in the first word of a record: the extent is a prefix of its decoded pcluster.
pub const PARTIAL: u32 = 1 << 27;

/// Encodes a record of 16 bytes.
pub fn record16(word: u32, at: u64, la: u32) -> Vec<u8> {
    [word, at as u32, (at >> 32) as u32, la]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect()
}

/// Encodes a record of 32 bytes.
pub fn record32(word: u32, at: u64, la: u64) -> Vec<u8> {
    let mut out = record16(word, at, la as u32);
    out.extend_from_slice(&((la >> 32) as u32).to_le_bytes());
    out.resize(32, 0);
    out
}
