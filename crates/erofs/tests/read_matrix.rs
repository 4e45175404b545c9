//! Images of the installed mkfs.erofs over its options: reader, kernel and source tree agree.

use tuff_testkit::Scratch;
use tuff_testkit::kernel::Mounted;
use tuff_testkit::tree::Ignore;
use tuff_testkit::tree::assert_same;
use tuff_testkit::tree::host_tree;
use tuff_testkit::tree::image_tree;
use tuff_testkit::tree::nasty_tree;
use tuff_testkit::tree::open;
use tuff_testkit::variants::MKFS_OPTIONS;
use tuff_testkit::variants::mkfs;

#[test]
fn reader_kernel_and_source_agree() {
    let scratch = Scratch::new("matrix");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    let expected = host_tree(&source);
    let mut compared = 0;
    for (i, options) in MKFS_OPTIONS.iter().enumerate() {
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
                &expected,
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
    eprintln!("{compared} of {} option sets compared", MKFS_OPTIONS.len());
}
