//! Image composer that takes inodes as values, valid or invalid, and chooses their places.

use tuff_format::inode::{Inode, Layout};
use tuff_format::superblock::{OFFSET, Superblock, checksum_len, seal};
use tuff_format::{BlockBits, Nid};

/// Inode of an image. Node 0 is the root.
#[derive(Clone)]
pub struct Node {
    /// Type and permissions, as in `i_mode`.
    pub mode: u16,
    /// Link count. Computed for [`Body::Dir`].
    pub nlink: u32,
    /// Data of the inode.
    pub body: Body,
    /// Xattr body after the inode: empty, or at least 16 bytes.
    pub xattrs: Vec<u8>,
    /// Changes the inode before it is encoded.
    pub change: fn(&mut Inode),
}

/// Data of a node.
#[derive(Clone)]
pub enum Body {
    /// Directory: names and node numbers. "." and ".." are added and names are sorted.
    Dir(Vec<(Vec<u8>, usize)>),
    /// Directory: names, node numbers and types, encoded unchanged.
    RawDir(Vec<(Vec<u8>, usize, u8)>),
    /// Bytes inline after the inode.
    Inline(Vec<u8>),
    /// Bytes in separate blocks.
    Blocks(Vec<u8>),
    /// Fields that are encoded unchanged.
    Raw {
        /// Data layout of the inode.
        layout: Layout,
        /// Size of the file in bytes.
        size: u64,
        /// Field `i_u` of the inode.
        u: u64,
        /// Bytes after the inode, aligned to 8.
        payload: Vec<u8>,
    },
}

/// Returns a directory with these names and node numbers.
pub fn dir(entries: &[(&str, usize)]) -> Node {
    let entries: Vec<_> = entries
        .iter()
        .map(|(n, i)| (n.as_bytes().to_vec(), *i))
        .collect();
    Node {
        mode: 0o40755,
        nlink: 2,
        body: Body::Dir(entries),
        xattrs: Vec::new(),
        change: |_| (),
    }
}

/// Returns a regular file with inline data.
pub fn file(bytes: &[u8]) -> Node {
    Node {
        mode: 0o100644,
        nlink: 1,
        body: Body::Inline(bytes.to_vec()),
        xattrs: Vec::new(),
        change: |_| (),
    }
}

/// Returns a symlink with this target.
pub fn symlink(target: &str) -> Node {
    Node {
        mode: 0o120777,
        ..file(target.as_bytes())
    }
}

/// Composed image and its nids.
pub struct Assembled {
    /// Bytes of the whole image.
    pub bytes: Vec<u8>,
    /// Nids of the nodes, in order.
    pub nids: Vec<Nid>,
    /// Block size of the image.
    pub bits: BlockBits,
}

/// Returns a superblock without features.
pub fn superblock(bits: BlockBits) -> Superblock {
    Superblock {
        epoch: 1_700_000_000,
        ..Superblock::empty(bits)
    }
}

/// Composes an image with blocks of 4 KiB from these nodes.
pub fn assemble(nodes: &[Node]) -> Assembled {
    assemble_with(nodes, superblock(BlockBits::B4K), |_| ())
}

/// Composes an image from these nodes. `change` edits the superblock before it is encoded.
pub fn assemble_with(
    nodes: &[Node],
    mut sb: Superblock,
    change: impl FnOnce(&mut Superblock),
) -> Assembled {
    let bits = sb.block_bits;
    let bs = bits.size_usize();
    // Places are assigned before anything is encoded, because directories contain nids.
    let base = (OFFSET as usize + 512).next_multiple_of(32);
    let mut at = base;
    let mut places = Vec::new();
    let mut data_len = 0;
    for node in nodes {
        let head = 64 + node.xattrs.len();
        let (payload, data) = match &node.body {
            Body::Dir(entries) => {
                let len = dir_bytes(&plain(entries, 0, 0, &[]), bs, &[]).len();
                if len.is_multiple_of(bs) || len > bs - head {
                    (0, len)
                } else {
                    (len, 0)
                }
            }
            Body::RawDir(entries) => (entries.iter().map(|e| 12 + e.0.len()).sum(), 0),
            Body::Inline(bytes) => (bytes.len(), 0),
            Body::Blocks(bytes) => (0, bytes.len()),
            Body::Raw { payload, .. } => (payload.len() + 8, 0),
        };
        if at % bs + head + payload > bs {
            at = at.next_multiple_of(bs);
        }
        places.push((at, data_len, data));
        at = (at + head + payload).next_multiple_of(32);
        data_len += data.next_multiple_of(bs);
    }
    let data_start = at.next_multiple_of(bs);
    let mut bytes = vec![0; data_start + data_len];
    let nids: Vec<Nid> = places.iter().map(|p| Nid(p.0 as u64 / 32)).collect();
    let mut parents = vec![0; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        if let Body::Dir(entries) = &node.body {
            for (_, child) in entries {
                parents[*child] = i;
            }
        }
    }
    for (i, node) in nodes.iter().enumerate() {
        let (at, data_at, data_len) = places[i];
        let content = match &node.body {
            Body::Dir(entries) => dir_bytes(&plain(entries, i, parents[i], nodes), bs, &nids),
            Body::RawDir(entries) => dir_bytes(entries, bs, &nids),
            Body::Inline(bytes) | Body::Blocks(bytes) => bytes.clone(),
            Body::Raw { payload, .. } => payload.clone(),
        };
        let mut inode = Inode {
            extended: true,
            layout: if data_len > 0 || content.is_empty() {
                Layout::FlatPlain
            } else {
                Layout::FlatInline
            },
            flag4: false,
            xattr_icount: tuff_format::xattr::icount(node.xattrs.len()).unwrap(),
            mode: node.mode,
            nlink: node.nlink,
            size: content.len() as u64,
            mtime: 1_700_000_000 + i as i64,
            mtime_nsec: 5,
            u: if data_len > 0 {
                ((data_start + data_at) / bs) as u64
            } else {
                0
            },
            ino: i as u32 + 1,
            uid: 0,
            gid: 0,
            no_start: false,
        };
        if let Body::Dir(entries) = &node.body {
            let subdirs = entries
                .iter()
                .filter(|(_, c)| nodes[*c].mode & 0xF000 == 0x4000)
                .count();
            inode.nlink = 2 + subdirs as u32;
        }
        let mut aligned = false;
        if let Body::Raw {
            layout, size, u, ..
        } = &node.body
        {
            (inode.layout, inode.size, inode.u) = (*layout, *size, *u);
            aligned = true;
        }
        (node.change)(&mut inode);
        let mut head = Vec::new();
        inode.encode(&mut head);
        head.extend_from_slice(&node.xattrs);
        if aligned {
            head.resize(head.len().next_multiple_of(8), 0);
        }
        bytes[at..at + head.len()].copy_from_slice(&head);
        let to = if data_len > 0 {
            data_start + data_at
        } else {
            at + head.len()
        };
        bytes[to..to + content.len()].copy_from_slice(&content);
    }
    sb.root = nids[0];
    sb.inodes = nodes.len() as u64;
    sb.blocks = (bytes.len() / bs) as u64;
    change(&mut sb);
    let raw = sb.encode();
    bytes[OFFSET as usize..][..raw.len()].copy_from_slice(&raw);
    if sb.has_compat(tuff_format::features::compat::SB_CHKSUM) {
        seal(&mut bytes[OFFSET as usize..][..checksum_len(bits)]);
    }
    Assembled { bytes, nids, bits }
}

/// Adds "." and "..", sorts the names and adds the types of the nodes.
fn plain(
    entries: &[(Vec<u8>, usize)],
    own: usize,
    parent: usize,
    nodes: &[Node],
) -> Vec<(Vec<u8>, usize, u8)> {
    let mut all: Vec<_> = entries.to_vec();
    all.push((b".".to_vec(), own));
    all.push((b"..".to_vec(), parent));
    all.sort();
    let kind = |i: usize| {
        let mode = nodes.get(i).map_or(0o100000, |n| n.mode);
        tuff_format::inode::FileType::from_mode(mode)
            .unwrap()
            .dirent_code()
    };
    all.into_iter()
        .map(|(name, i)| {
            let k = kind(i);
            (name, i, k)
        })
        .collect()
}

/// Encodes directory blocks with these entries in the given order.
fn dir_bytes(entries: &[(Vec<u8>, usize, u8)], bs: usize, nids: &[Nid]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let (mut n, mut used) = (0, 0);
        while n < rest.len() && used + 12 + rest[n].0.len() <= bs {
            used += 12 + rest[n].0.len();
            n += 1;
        }
        out.resize(out.len().next_multiple_of(bs), 0);
        let mut nameoff = 12 * n;
        for (name, i, kind) in &rest[..n] {
            let nid = nids.get(*i).map_or(0, |n| n.0);
            out.extend_from_slice(&nid.to_le_bytes());
            out.extend_from_slice(&(nameoff as u16).to_le_bytes());
            out.extend_from_slice(&[*kind, 0]);
            nameoff += name.len();
        }
        for (name, ..) in &rest[..n] {
            out.extend_from_slice(name);
        }
        rest = &rest[n..];
    }
    out
}
