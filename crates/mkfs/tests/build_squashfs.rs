//! Images of SquashFS images have the trees that the kernel, or unsquashfs, finds in them.

use std::path::Path;
use std::process::Command;
use tuff_mkfs::{Options, Progress, Source, build_to};
use tuff_store::MemStore;
use tuff_testkit::content::{mixed, noise};
use tuff_testkit::tree::{Ignore, assert_same, host_tree, image_tree, nasty_tree};
use tuff_testkit::{Scratch, is_root, note, skipped};

fn run(program: &str, args: &[&str], paths: &[&Path]) -> bool {
    let output = Command::new(program).args(args).args(paths).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn images_of_squashfs_images_have_their_trees() {
    let scratch = Scratch::new("squashfs");
    let at = |name: &str| scratch.path().join(name);
    std::fs::create_dir(at("source")).unwrap();
    nasty_tree(&at("source"));
    std::fs::write(at("source/large"), mixed(1_300_000, 1)).unwrap();
    std::fs::write(at("source/noise"), noise(700_001, 2)).unwrap();
    let holes = std::fs::File::create(at("source/holes")).unwrap();
    holes.set_len(6_000_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, b"data", 3_000_000).unwrap();
    let forms: [&[&str]; 8] = [
        &["-comp", "gzip"],
        &["-comp", "xz", "-b", "1M"],
        &["-comp", "lz4", "-b", "4K"],
        &["-comp", "zstd", "-Xcompression-level", "1"],
        &["-comp", "lzo", "-b", "16K"],
        &["-comp", "lzma"],
        &["-noI", "-noId", "-noD", "-noF", "-noX"],
        &["-no-fragments", "-no-duplicates", "-b", "64K"],
    ];
    let mut compared = 0;
    for form in forms {
        let image = at("image");
        let args = [form, &["-noappend", "-quiet", "-no-progress"]].concat();
        let output = Command::new("mksquashfs")
            .args([at("source"), image.clone()])
            .args(args)
            .output();
        if !output.is_ok_and(|output| output.status.success()) {
            note(format_args!("no mksquashfs {form:?}"));
            continue;
        }
        let mut built = Vec::new();
        let source = Source::SquashFs(image.clone());
        let mut options = Options::default();
        options.compression.default = None;
        build_to(&[source], &options, &mut built, &Progress::default()).unwrap();
        let built = tuff_erofs::read::Image::open(MemStore::new(built), Default::default());
        let found = image_tree(&built.unwrap());
        // The kernel shows no holes of SquashFS.
        let ignore = Ignore {
            dir_size: true,
            holes: true,
            ..Ignore::default()
        };
        let (mounted, unpacked) = (at("mnt"), at("unpacked"));
        std::fs::create_dir_all(&mounted).unwrap();
        let mount = ["60", "mount", "-t", "squashfs", "-o", "loop,ro"];
        if is_root() && run("timeout", &mount, &[&image, &mounted]) {
            let expected = host_tree(&mounted);
            assert!(run("timeout", &["60", "umount"], &[&mounted]));
            assert_same(
                &format!("{form:?} and the kernel"),
                &expected,
                &found,
                ignore,
            );
            compared += 1;
        } else if is_root() && run("unsquashfs", &["-q", "-n", "-d"], &[&unpacked, &image]) {
            let expected = host_tree(&unpacked);
            std::fs::remove_dir_all(&unpacked).unwrap();
            assert_same(
                &format!("{form:?} and unsquashfs"),
                &expected,
                &found,
                ignore,
            );
            compared += 1;
        }
    }
    if compared == 0 {
        skipped(
            "SquashFS images need mksquashfs and, to be compared, root and the kernel or unsquashfs",
        );
    }
}
