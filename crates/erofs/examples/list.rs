//! Lists an image: mode, size, hash of the content (FNV-1a) and path of every entry.

use std::error::Error;
use std::io::Read;
use tuff_erofs::read::{FileType, Image, OpenOptions};
use tuff_erofs::walk::Walk;
use tuff_store::FileStore;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: list IMAGE")?;
    let image = Image::open(FileStore::open(path.as_ref())?, OpenOptions::default())?;
    for entry in Walk::root(&image)? {
        let entry = entry?;
        let (inode, path) = (&entry.inode, String::from_utf8_lossy(&entry.path));
        let (mut size, mut hash) = (0, 0);
        if inode.file_type() == FileType::File {
            let mut content = Vec::new();
            image.reader(inode)?.read_to_end(&mut content)?;
            let step =
                |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            (size, hash) = (
                inode.size(),
                content.iter().fold(0xcbf2_9ce4_8422_2325, step),
            );
        }
        println!("{:06o} {size} {hash:016x} {path}", inode.mode());
    }
    Ok(())
}
