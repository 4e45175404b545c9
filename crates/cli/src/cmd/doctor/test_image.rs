//! Image for test mounts: an empty root directory in one block.

use tuff_format::config::{Configs, Lz4};
use tuff_format::dirent::{self, Dirent};
use tuff_format::features::incompat;
use tuff_format::inode::{self, FileType, Inode, Layout};
use tuff_format::superblock::{self, Superblock};
use tuff_format::{BlockAddr, BlockBits, Nid};

/// Size of the image. Unit: bytes.
const LEN: usize = 4096;

/// Position of the root inode, after the superblock and its compression configuration. Unit: bytes.
const ROOT: u64 = 1280;

/// Returns an image. With the id of an algorithm, its superblock says that files may be compressed with it.
pub(super) fn test_image(algorithm: Option<u8>) -> Vec<u8> {
    let root = Nid(ROOT / inode::ALIGN);
    let mut sb = Superblock {
        root,
        inodes: 1,
        blocks: 1,
        meta_blkaddr: BlockAddr(0),
        ..Superblock::empty(BlockBits::B4K)
    };
    let configs = Configs {
        lz4: (algorithm == Some(0)).then_some(Lz4 {
            max_distance: u16::MAX,
            max_pcluster_blocks: 1,
        }),
        lzma_dict_size: (algorithm == Some(1)).then_some(64 << 10),
        deflate_window_bits: (algorithm == Some(2)).then_some(15),
        zstd_window_log: (algorithm == Some(3)).then_some(17),
    };
    if algorithm.is_some() {
        sb.incompat = incompat::LZ4_0PADDING | incompat::COMPR_CFGS;
        sb.algs_or_distance = configs.algorithms();
    }
    let mut image = vec![0; superblock::OFFSET as usize];
    image.extend(sb.encode());
    image.extend(configs.encode());
    image.resize(ROOT as usize, 0);
    image.extend(root_directory(root));
    image.resize(LEN, 0);
    image
}

/// Root inode with its two entries inline.
fn root_directory(root: Nid) -> Vec<u8> {
    let entry = |name| Dirent {
        nid: root,
        file_type: FileType::Dir.dirent_code(),
        name,
    };
    let mut entries = Vec::new();
    dirent::encode(&[entry(b".".as_slice()), entry(b"..")], &mut entries);
    let inode = Inode {
        extended: false,
        layout: Layout::FlatInline,
        flag4: false,
        xattr_icount: 0,
        mode: FileType::Dir.mode_bits() | 0o755,
        nlink: 2,
        size: entries.len() as u64,
        mtime: 0,
        mtime_nsec: 0,
        u: u32::MAX.into(),
        ino: 1,
        uid: 0,
        gid: 0,
        no_start: true,
    };
    let mut out = Vec::new();
    inode.encode(&mut out);
    out.extend(entries);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_erofs::read::{Image, OpenOptions};
    use tuff_erofs::walk::Walk;
    use tuff_store::MemStore;

    #[test]
    fn test_images_are_valid_and_name_their_algorithm() {
        for algorithm in [None, Some(0), Some(1), Some(2), Some(3)] {
            let options = OpenOptions {
                verify_checksum: false,
                ..OpenOptions::default()
            };
            let image = Image::open(MemStore::new(test_image(algorithm)), options).unwrap();
            let algorithms = image.superblock().algorithms();
            assert_eq!(algorithms, algorithm.map_or(0, |id| 1 << id));
            assert_eq!(Walk::root(&image).unwrap().count(), 1);
        }
    }
}
