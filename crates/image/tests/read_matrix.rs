//! Images by the mkfs.erofs on PATH, over its options: this reader, the kernel's mount and the source tree agree.

mod common;

use common::{
    Ignore, Mounted, Scratch, assert_same, host_tree, image_tree, mkfs, nasty_tree, open,
};

const OPTIONS: &[&[&str]] = &[
    &[],
    &["-Enoinline_data"],
    &["-Eforce-inode-extended"],
    &["-Eforce-inode-compact", "-T0"],
    &["-zlz4"],
    &["-zlz4", "-Elegacy-compress"],
    &["-zlz4hc,9", "-C65536"],
    &["-zlz4hc", "-C16384", "-Eztailpacking"],
    &["-zlz4", "-Elegacy-compress,ztailpacking"],
    &["-zlz4", "-C32768", "-Efragments"],
    &["-zlz4hc", "-C65536", "-Eall-fragments,ztailpacking"],
    &["-zlz4", "-C65536", "-Ededupe"],
    &["-zlz4", "-C4096", "-Ededupe,fragments,ztailpacking"],
    &["-zlzma", "-C65536"],
    &["-zlzma", "-C65536", "-Eall-fragments,dedupe"],
    &["--chunksize=4096"],
    &["--chunksize=65536", "-x-1"],
    &["-x1"],
    &["-b1024", "-zlz4"],
];

#[test]
fn reader_kernel_and_source_agree() {
    let scratch = Scratch::new("matrix");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    let wanted = host_tree(&source);
    let mut compared = 0;
    for (i, options) in OPTIONS.iter().enumerate() {
        let file = scratch.path().join(format!("{i}.erofs"));
        if mkfs(&file, &source, options).is_none() {
            continue;
        }
        let ours = image_tree(&open(&file));
        compared += 1;
        let ignore = Ignore {
            holes: true,
            dir_size: true,
            dir_nlink: true,
            times: options.contains(&"-T0"),
            owners: options.contains(&"-Eforce-inode-compact"),
            xattrs: options.contains(&"-x-1"),
            ..Ignore::default()
        };
        if !options.contains(&"-Eforce-inode-compact") {
            assert_same(
                &format!("{options:?}: source and reader"),
                &wanted,
                &ours,
                ignore,
            );
        }
        if let Some(mounted) = Mounted::new(&file, &scratch.path().join("mnt"), "") {
            let kernel = host_tree(mounted.path());
            assert_same(
                &format!("{options:?}: kernel and reader"),
                &kernel,
                &ours,
                Ignore::default(),
            );
        }
    }
    eprintln!("{compared} of {} option sets compared", OPTIONS.len());
}
