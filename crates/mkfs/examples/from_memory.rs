//! Builds an image from a tree in memory, without a directory on disk.

use tuff_mkfs::source::{Device, Kind};
use tuff_mkfs::{Error, MemoryTree, Options, Progress, Source, build_to};

pub(crate) fn image() -> Result<Vec<u8>, Error> {
    let mut tree = MemoryTree::new();
    tree.add_file("etc/hostname", "box\n")?
        .set_mtime(1_700_000_000, 0);
    tree.add_file("etc/shadow", "root:*\n")?
        .set_owner(0, 42)
        .set_mode(0o640);
    tree.add_symlink("etc/mtab", "../proc/self/mounts")?;
    tree.add_dir("tmp")?.set_mode(0o1777);
    let null = Kind::Char(Device { major: 1, minor: 3 });
    tree.add_special("dev/null", null)?.set_mode(0o666);
    let (mut image, progress) = (Vec::new(), Progress::default());
    build_to(
        &[Source::Memory(tree)],
        &Options::default(),
        &mut image,
        &progress,
    )?;
    Ok(image)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: from_memory IMAGE")?;
    Ok(std::fs::write(path, image()?)?)
}
