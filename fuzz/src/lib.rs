//! Shared parts of the fuzz targets.

use std::io::Read;
use std::path::{Path, PathBuf};
use tuff_codec::{Algorithm, Decoder};
use tuff_erofs::read::{FileType, Image, OpenOptions};
use tuff_format::cluster::{Form, Map};
use tuff_format::features::incompat;
use tuff_format::inode::Layout;
use tuff_format::superblock::{MAGIC, Superblock};
use tuff_store::MemStore;

/// Opens the image in `data` with the default limits; its checksum is not verified.
pub fn open(data: &[u8]) -> Option<Image> {
    let options = OpenOptions {
        verify_checksum: false,
        ..OpenOptions::default()
    };
    Image::open(MemStore::new(data), options).ok()
}

/// Two little-endian numbers at the start of an input, and the rest.
pub fn numbers(data: &[u8]) -> Option<([u64; 2], &[u8])> {
    let (first, data) = data.split_first_chunk()?;
    let (second, data) = data.split_first_chunk()?;
    Some(([*first, *second].map(u64::from_le_bytes), data))
}

/// Walks the tree and reads at most 200 inodes and the first megabyte of each.
pub fn walk(image: &Image) {
    let Ok(root) = image.root() else { return };
    let mut todo = vec![(root, 0)];
    let mut visited = 0;
    while let Some((inode, depth)) = todo.pop() {
        visited += 1;
        if visited > 200 {
            return; // a damaged tree may be a graph
        }
        for xattr in image.xattrs(&inode).into_iter().flatten() {
            let _ = image.xattr(&inode, &xattr.name);
        }
        match inode.file_type() {
            FileType::Dir if depth < 8 => {
                for entry in image
                    .read_dir(&inode)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .take(100)
                {
                    let _ = image.lookup(&inode, &entry.name);
                    if let Ok(child) = image.inode(entry.nid) {
                        todo.push((child, depth + 1));
                    }
                }
            }
            FileType::Symlink => {
                let _ = image.readlink(&inode);
            }
            FileType::File => {
                let mut all = Vec::new();
                let Ok(reader) = image.reader(&inode) else {
                    continue;
                };
                if reader.take(1 << 20).read_to_end(&mut all).is_err() {
                    continue;
                }
                let mut part = [0; 100];
                for at in [0, all.len() / 2, all.len().saturating_sub(1)] {
                    if let Ok(n) = image.read_at(&inode, &mut part, at as u64) {
                        let end = all.len().min(at + n);
                        assert!(part[..end - at] == all[at..end], "nid {}", inode.nid());
                    }
                }
            }
            _ => {}
        }
    }
}

/// Returns a superblock with all features.
fn superblock() -> Superblock {
    let mut bytes = [0; 144];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[12] = 12;
    bytes[13] = 1;
    bytes[0x50..0x54].copy_from_slice(&incompat::KNOWN.to_le_bytes());
    bytes[0x54] = 0b1111;
    bytes[0x60] = 99;
    Superblock::decode(&bytes).expect("a superblock of our own")
}

/// Queries a compressed file's index completely; `force` fixes bits of the map header.
pub fn map(data: &[u8], layout: Layout, force: fn(&mut [u8; 8])) {
    let Some((size, rest)) = data.split_first_chunk::<4>() else {
        return;
    };
    let Some((header, index)) = rest.split_first_chunk::<8>() else {
        return;
    };
    let mut header = *header;
    force(&mut header);
    let size = u64::from(u32::from_le_bytes(*size));
    let Ok(map) = Map::new(&superblock(), layout, size, &header, 0x520) else {
        return;
    };
    if map.index_len() > index.len() as u64 {
        return; // Nobody loads what is not there.
    }
    if !matches!(map.form, Form::WholeFragment { .. }) {
        let _ = map.verify_index(index);
    }
    let mut end = 0;
    for extent in map.extents_from(index, 0).take(5000) {
        let Ok(extent) = extent else { break };
        assert_eq!(extent.la, end);
        assert!(extent.end() > end && extent.end() <= size);
        end = extent.end();
    }
    for i in 0..50 {
        let offset = size / 50 * i;
        if let Ok(extent) = map.extent_at(index, offset) {
            assert!(extent.la <= offset && offset < extent.end());
        }
    }
}

/// Decodes a stream whole and in part.
pub fn decode(data: &[u8], algorithm: Algorithm) {
    let Some((len, src)) = data.split_first_chunk::<3>() else {
        return;
    };
    let len = (u32::from_le_bytes([len[0], len[1], len[2], 0]) as usize).min(1 << 20);
    let mut decoder = Decoder::new();
    let mut whole = vec![0; len];
    let done = decoder.decode(algorithm, src, &mut whole).is_ok();
    for part in [len, len / 2, len.min(1)] {
        let mut prefix = vec![0; part];
        let ok = decoder.decode_prefix(algorithm, src, &mut prefix).is_ok();
        if done {
            assert!(ok, "a prefix of {part} of {len} bytes");
            assert!(prefix[..] == whole[..part]);
        }
    }
}

/// Checks that a path of a source is relative, without "." and "..", and has no empty components.
pub fn path(path: &[u8]) {
    let bad = |part: &[u8]| matches!(part, b"" | b"." | b"..");
    assert!(
        path.is_empty() || !path.split(|b| *b == b'/').any(bad),
        "{path:?}"
    );
}

/// Empty temporary directory, in memory if possible, removed on drop.
pub struct Around(PathBuf);

impl Around {
    /// Creates an empty directory.
    #[expect(clippy::new_without_default, reason = "it is something on disk")]
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_owned()
        } else {
            std::env::temp_dir()
        };
        let path = base.join(format!("tuff-fuzz-{}", std::process::id()));
        clear(&path);
        std::fs::create_dir(&path).expect("a directory of our own");
        Self(path)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        clear(&self.0);
    }
}

fn clear(path: &Path) {
    if path.exists() && std::fs::remove_dir_all(path).is_err() {
        // Directories that are not writable for their owner.
        let _ = std::process::Command::new("chmod")
            .args(["-R", "u+rwx"])
            .arg(path)
            .output();
        std::fs::remove_dir_all(path).expect("a directory of our own");
    }
}
