//! patch: the image gets a new tree, and its old data stays in place.

use crate::common::{Place, code, skipped, stderr};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Pseudo-random words of a given seed.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 20);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(format!("word-{} ", (state >> 33) % 3000).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Creates a tree with large and small files, and a copy with a few changes.
fn trees(place: &Place) {
    for dir in ["old", "new"] {
        fs::create_dir_all(place.path(dir).join("sub")).unwrap();
        // A directory of several blocks.
        let many = place.path(dir).join("many");
        fs::create_dir(&many).unwrap();
        for i in 0..300 {
            fs::write(
                many.join(format!("the long name of an empty file, {i}")),
                "",
            )
            .unwrap();
        }
    }
    let large = text(3_000_000, 1);
    fs::write(place.path("old/large"), &large).unwrap();
    let inserted = [&large[..1_000_000], b"more", &large[1_000_000..]].concat();
    fs::write(place.path("new/large"), inserted).unwrap();
    for i in 0..200 {
        let bytes = text(500 + 50 * i, 100 + i as u64);
        for dir in ["old", "new"] {
            fs::write(place.path(dir).join(format!("sub/{i}")), &bytes).unwrap();
        }
    }
    fs::write(place.path("new/sub/7"), "changed").unwrap();
    fs::remove_file(place.path("new/sub/8")).unwrap();
    fs::write(place.path("new/added"), text(30_000, 2)).unwrap();
    std::os::unix::fs::symlink("sub/9", place.path("new/link")).unwrap();
}

fn len(path: &Path) -> usize {
    fs::metadata(path).unwrap().len() as usize
}

/// Checks that a kernel mount of the image has the content of the tree.
fn kernel_agrees(place: &Place, image: &str, tree: &str) {
    kernel_agrees_after(place, image, tree, || ());
}

/// Checks that a kernel mount of the image has the content of the tree after `change`, which runs while it is mounted.
fn kernel_agrees_after(place: &Place, image: &str, tree: &str, change: impl FnOnce()) {
    fs::create_dir_all(place.path("mnt")).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "erofs", "-o", "loop,ro"])
        .args([place.path(image), place.path("mnt")])
        .output();
    if !mounted.is_ok_and(|out| out.status.success()) {
        return skipped("no mount of an image by the kernel");
    }
    change();
    let out = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([place.path(tree), place.path("mnt")])
        .output();
    let _ = Command::new("umount").arg(place.path("mnt")).status();
    let out = out.unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn a_patch_is_appended() {
    let place = Place::new("patch");
    trees(&place);
    for options in [
        &["-z", "lz4", "-C", "16K"][..],
        &[
            "-z",
            "lz4hc",
            "-C",
            "4K",
            "--fragments",
            "off",
            "-b",
            "512",
            "--kernel",
            "6.12",
        ],
        &[
            "-z", "zstd", "-C", "64K", "--kernel", "6.12", "--label", "system",
        ],
        &["-z", "lzma:1", "-C", "32K", "--fragments", "all"],
        &["-z", "none", "--fragments", "off"],
        &["-z", "lz4", "--kernel", "6.18", "--metadata", "short"],
        &["-z", "lz4", "--kernel", "6.18", "--metadata", "compressed"],
        &["-z", "zstd", "--kernel", "6.18", "--unaligned"],
        &[
            "-z",
            "lz4",
            "--kernel",
            "6.18",
            "--unaligned",
            "--fragments",
            "off",
        ],
    ] {
        place.text(&[&["build", "-q"], options, &["old", "i"]].concat());
        place.text(&[&["build", "-q"], options, &["new", "alone"]].concat());
        let old = fs::read(place.path("i")).unwrap();
        fs::write(place.path("again"), &old).unwrap();
        place.text(&["patch", "-q", "--verify", "-j", "3", "new", "i"]);
        let patched = fs::read(place.path("i")).unwrap();
        // Not for fragments of whole files or uncompressed files.
        if !options.contains(&"all") && !options.contains(&"none") {
            let more = patched.len() - old.len();
            assert!(more < len(&place.path("alone")) / 3, "{options:?}: {more}");
        }
        assert_eq!(place.text(&["diff", "i", "alone"]), "", "{options:?}");
        // Metadata keeps its form.
        let form = |image| {
            let info = place.text(&["info", "--json", image]);
            ["metabox", "48bit"].map(|name| info.contains(name))
        };
        assert_eq!(form("i"), form("alone"), "{options:?}");
        let checked = place.run(&["check", "-q", "i"]);
        assert_eq!(code(&checked), 0, "{options:?}: {}", stderr(&checked));
        kernel_agrees(&place, "i", "new");
        // The bytes do not depend on the number of threads.
        place.text(&["patch", "-q", "-j", "1", "new", "again"]);
        assert!(
            fs::read(place.path("again")).unwrap() == patched,
            "{options:?}"
        );
        // A second patch finds everything present.
        place.text(&["patch", "-q", "new", "i"]);
        let metadata = 1 << 20;
        assert!(
            len(&place.path("i")) < patched.len() + metadata,
            "{options:?}"
        );
        assert_eq!(place.text(&["diff", "i", "alone"]), "", "{options:?}");
        kernel_agrees(&place, "i", "new");
    }
}

/// An image whose inodes follow the superblock, and one shorter than a usual block.
#[test]
fn the_smallest_images_are_patched() {
    let place = Place::new("patch-small");
    for dir in ["one", "two"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    fs::write(place.path("one/a"), "first").unwrap();
    fs::write(place.path("two/b"), "second").unwrap();
    for block in ["512", "4096"] {
        place.text(&["build", "-q", "-b", block, "--kernel", "6.12", "one", "i"]);
        for tree in ["two", "one", "two"] {
            place.text(&["patch", "-q", "--verify", tree, "i"]);
            let checked = place.run(&["check", "-q", "i"]);
            assert_eq!(code(&checked), 0, "{block} {tree}: {}", stderr(&checked));
            kernel_agrees(&place, "i", tree);
        }
    }
}

#[test]
fn a_patch_that_fails_leaves_the_image_as_it_was() {
    let place = Place::new("patch-fails");
    trees(&place);
    place.text(&["build", "-q", "old", "i"]);
    let old = fs::read(place.path("i")).unwrap();
    fs::write(place.path("no.tar"), text(5000, 3)).unwrap();
    fs::write(place.path("no-image"), text(50_000, 4)).unwrap();
    let base = place.run(&["build", "-q", "--base", "i", "new", "over"]);
    assert_eq!(code(&base), 0, "{}", stderr(&base));
    for (args, exit, what) in [
        (&["new", "no.tar", "i"][..], 3, "no.tar"),
        (&["new", "-"], 2, "standard output"),
        (&["new", "no-image"], 3, "no-image"),
        (&["new", "over"], 2, "extra devices"),
        (&["new", "nowhere"], 5, "nowhere"),
        (&["--base", "i", "new", "i"], 2, "base"),
        (&["-b", "512", "new", "i"], 2, "i: its block size is 4096"),
        (
            &["--kernel", "5.4", "new", "i"],
            2,
            "i: its content needs Linux 6.1",
        ),
    ] {
        let out = place.run(&[&["patch", "-q"], args].concat());
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (exit, 1),
            "{args:?}: {message}"
        );
        assert!(message.contains(what), "{args:?}: {message}");
        assert!(fs::read(place.path("i")).unwrap() == old, "{args:?}");
    }
    // A concurrent patch holds the lock.
    let lock = fs::File::open(place.path("i")).unwrap();
    lock.lock().unwrap();
    let out = place.run(&["patch", "-q", "new", "i"]);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    let says = "tuff: i: cannot write behind the image: another process is writing there\n";
    assert_eq!(stderr(&out), says);
    drop(lock);
    assert!(fs::read(place.path("i")).unwrap() == old);
    // A killed patch leaves the old image with trailing bytes.
    let killed = [&old[..], &text(123_456, 5)].concat();
    fs::write(place.path("i"), killed).unwrap();
    // Progress of a slow run is on standard error.
    let out = place.run(&["patch", "--json", "new", "i"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["old_bytes"], old.len());
    assert_eq!(summary["image_bytes"], len(&place.path("i")));
    kernel_agrees(&place, "i", "new");
}

/// Creates a tree of many small files in directories of two levels, and a large file in another tree.
fn wide_and_large(place: &Place) {
    for i in 0..40 {
        let dir = place.path(&format!("wide/{i:02}/below"));
        fs::create_dir_all(&dir).unwrap();
        for j in 0..25 {
            let bytes = text(700 + 40 * j, (i * 100 + j) as u64);
            fs::write(dir.join(format!("a file of the module {j}")), bytes).unwrap();
        }
    }
    fs::create_dir(place.path("large")).unwrap();
    fs::write(place.path("large/file"), text(16 << 20, 9)).unwrap();
    fs::write(place.path("large/other"), text(9000, 8)).unwrap();
}

/// Changes eight bytes in the middle of a file.
fn change(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() / 2;
    let was = bytes[at];
    bytes[at..at + 8].copy_from_slice(b"8 other!");
    bytes[at] = was.wrapping_add(1);
    fs::write(path, bytes).unwrap();
}

/// Number of blocks of 4 KiB that differ between two images.
fn different_blocks(a: &[u8], b: &[u8]) -> usize {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let differ = short.chunks(4096).zip(long.chunks(4096));
    let more = (long.len() - short.len()).div_ceil(4096);
    differ.filter(|(a, b)| a != b).count() + more
}

/// Patches and returns the number of blocks in which the image differs from the one before.
fn cost(place: &Place, tree: &str) -> usize {
    let old = fs::read(place.path("i")).unwrap();
    fs::write(place.path("again"), &old).unwrap();
    place.text(&["patch", "-q", "--verify", "-j", "3", tree, "i"]);
    place.text(&["patch", "-q", "-j", "1", tree, "again"]);
    let new = fs::read(place.path("i")).unwrap();
    assert!(new == fs::read(place.path("again")).unwrap());
    assert_eq!(place.text(&["diff", "i", tree]), "");
    let checked = place.run(&["check", "-q", "i"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    kernel_agrees(place, "i", tree);
    different_blocks(&old, &new)
}

#[test]
fn a_small_patch_changes_few_blocks() {
    let place = Place::new("patch-cost");
    wide_and_large(&place);
    place.text(&["build", "-q", "-z", "lz4", "-C", "8K", "wide", "i"]);
    assert_eq!(cost(&place, "wide"), 0, "an equal tree");
    for dir in ["07", "31"] {
        change(&place.path(&format!("wide/{dir}/below/a file of the module 9")));
        // Superblock, new inode, and its entry in the directory.
        assert!(cost(&place, "wide") <= 4, "{dir}");
    }
    let path = place.path("wide/11/below/a file of the module 3");
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    assert!(cost(&place, "wide") <= 2, "other permissions");
    fs::write(place.path("wide/05/new"), "new").unwrap();
    assert!(cost(&place, "wide") <= 6, "a new file");
    fs::remove_file(place.path("wide/06/below/a file of the module 1")).unwrap();
    assert!(cost(&place, "wide") <= 6, "a removed file");
    fs::rename(place.path("wide/08/below"), place.path("wide/09/moved")).unwrap();
    assert!(cost(&place, "wide") <= 16, "a directory that moves");
}

#[test]
fn an_edit_of_a_large_file_changes_little_of_its_index() {
    let place = Place::new("patch-index");
    wide_and_large(&place);
    for options in [
        &["-z", "lz4", "-C", "8K"][..],
        &["-z", "lz4", "-C", "4K", "--fragments", "off"],
        &["-z", "lz4hc", "-C", "64K"],
        &["-z", "zstd", "-C", "64K", "--tail-packing", "on"],
        &["-z", "zstd", "-C", "64K", "--kernel", "6.18", "--unaligned"],
    ] {
        place.text(&[&["build", "-q"], options, &["large", "i"]].concat());
        for _ in 0..3 {
            change(&place.path("large/file"));
            let blocks = cost(&place, "large");
            // Superblock, inode, index, and the clusters that start in one or two packs of 16 blocks.
            assert!(blocks <= 44, "{options:?}: {blocks}");
        }
        change(&place.path("large/other"));
        let blocks = cost(&place, "large");
        assert!(blocks <= 8, "{options:?}: {blocks}");
    }
}

/// Loop device for a file, detached at the end. `None` without the right to create one.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &Path) -> Option<Self> {
        let out = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(file)
            .output();
        let out = out.ok().filter(|out| out.status.success())?;
        Some(Self(String::from_utf8(out.stdout).ok()?.trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A block device cannot be replaced, so old bytes change in one sector only.
#[test]
fn a_patch_of_a_device_without_its_root_is_the_old_tree() {
    let place = Place::new("patch-device");
    wide_and_large(&place);
    place.text(&["build", "-q", "wide", "i"]);
    let old = fs::read(place.path("i")).unwrap();
    place.text(&["extract", "-q", "i", "before"]);
    let file = fs::File::options()
        .write(true)
        .open(place.path("i"))
        .unwrap();
    file.set_len(64 << 20).unwrap();
    drop(file);
    change(&place.path("wide/07/below/a file of the module 9"));
    let Some(device) = LoopDevice::new(&place.path("i")) else {
        return skipped("no loop device");
    };
    place.text(&["patch", "-q", "--verify", "wide", &device.0]);
    drop(device);
    let new = fs::read(place.path("i")).unwrap();
    assert_eq!(place.text(&["diff", "i", "wide"]), "");
    kernel_agrees(&place, "i", "wide");
    let differs: Vec<usize> = (4096..old.len()).filter(|i| old[*i] != new[*i]).collect();
    let (first, last) = (differs[0], differs[differs.len() - 1]);
    assert_eq!(first / 512, last / 512, "old bytes change in one sector");
    // All was written but the root.
    let mut torn = new.clone();
    torn[4096..old.len()].copy_from_slice(&old[4096..]);
    fs::write(place.path("i"), torn).unwrap();
    assert_eq!(place.text(&["diff", "i", "before"]), "");
    kernel_agrees(&place, "i", "before");
}

/// Pseudo-random numbers of a given seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// Changes a random entry of the tree `t`, which has directories `0` to `5` with files.
fn edit(place: &Place, random: &mut Random) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = place.path(&format!("t/{}", random.below(6)));
    let mut names: Vec<_> = (fs::read_dir(&dir).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.symlink_metadata().unwrap().is_file())
        .collect();
    names.sort();
    let path = match names.is_empty() {
        true => return fs::write(dir.join("again"), "again").unwrap(),
        false => names[random.below(names.len())].clone(),
    };
    let seed = random.below(1 << 20) as u64;
    let mut bytes = fs::read(&path).unwrap();
    match random.below(12) {
        0 => fs::write(
            dir.join(format!("new {seed}")),
            text(random.below(90_000), seed),
        )
        .unwrap(),
        1 => fs::remove_file(&path).unwrap(),
        2 => {
            let mode = PermissionsExt::from_mode([0o600, 0o644, 0o755][random.below(3)]);
            fs::set_permissions(&path, mode).unwrap();
        }
        3 => fs::rename(&path, dir.join(format!("renamed {seed}"))).unwrap(),
        4 => fs::hard_link(&path, place.path(&format!("t/0/link {seed}"))).unwrap(),
        5 => symlink(
            format!("target {seed}"),
            dir.join(format!("symlink {seed}")),
        )
        .unwrap(),
        6 => {
            fs::create_dir(dir.join(format!("dir {seed}"))).unwrap();
            fs::write(dir.join(format!("dir {seed}/file")), "inside").unwrap();
        }
        7 => {
            bytes.extend_from_slice(&text(1 + random.below(5000), seed));
            fs::write(&path, bytes).unwrap();
        }
        8 => {
            bytes.truncate(random.below(bytes.len() + 1));
            fs::write(&path, bytes).unwrap();
        }
        _ => {
            // Edits that keep the size, some of which do not compress.
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() + 1);
                let end = bytes.len().min(at + 1 + random.below(20_000));
                let noise = random.below(2) == 0;
                for byte in &mut bytes[at..end] {
                    *byte = if noise { random.below(256) as u8 } else { b'x' };
                }
            }
            fs::write(&path, bytes).unwrap();
        }
    }
}

#[test]
fn random_edits_give_the_tree() {
    for (i, options) in [
        &["-z", "lz4", "-C", "16K"][..],
        &["-z", "lz4hc", "-C", "4K", "--fragments", "off"],
        &["-z", "zstd", "-C", "64K", "--tail-packing", "on"],
        &["-z", "lzma:1", "-C", "32K", "--fragments", "all"],
        &["-z", "none", "--fragments", "off"],
        &["-z", "lz4", "--kernel", "6.18", "--metadata", "short"],
        &["-z", "zstd", "--kernel", "6.18", "--unaligned"],
        &["-z", "lz4", "--kernel", "6.12", "-b", "512", "-C", "4K"],
    ]
    .into_iter()
    .enumerate()
    {
        let place = Place::new(&format!("patch-random-{i}"));
        let mut random = Random(77 + i as u64);
        for d in 0..6 {
            fs::create_dir_all(place.path(&format!("t/{d}"))).unwrap();
            for f in 0..30 {
                let len = match random.below(10) {
                    0 => 0,
                    1..6 => random.below(6000),
                    6..9 => random.below(100_000),
                    _ => random.below(1_500_000),
                };
                let bytes = text(len, random.below(40) as u64);
                fs::write(place.path(&format!("t/{d}/file {f}")), bytes).unwrap();
            }
        }
        place.text(&[&["build", "-q"], options, &["t", "i"]].concat());
        for round in 0..6 {
            for _ in 0..=random.below(4) {
                edit(&place, &mut random);
            }
            place.text(&["patch", "-q", "--verify", "t", "i"]);
            assert_eq!(place.text(&["diff", "i", "t"]), "", "{options:?} {round}");
            let checked = place.run(&["check", "-q", "i"]);
            assert_eq!(
                code(&checked),
                0,
                "{options:?} {round}: {}",
                stderr(&checked)
            );
            kernel_agrees(&place, "i", "t");
        }
    }
}

#[test]
fn a_kernel_mount_keeps_the_tree_that_a_patch_replaces() {
    let place = Place::new("patch-mounted");
    wide_and_large(&place);
    place.text(&["build", "-q", "wide", "i"]);
    place.text(&["extract", "-q", "i", "before"]);
    kernel_agrees_after(&place, "i", "before", || {
        for i in 0..2 {
            change(&place.path(&format!("wide/0{i}/below/a file of the module 9")));
            fs::write(place.path(&format!("wide/added{i}")), "added").unwrap();
            place.text(&["patch", "-q", "wide", "i"]);
        }
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    });
    kernel_agrees(&place, "i", "wide");
}

#[test]
fn compaction_gives_back_the_space_of_patches() {
    let place = Place::new("patch-compact");
    wide_and_large(&place);
    place.text(&["build", "-q", "-z", "lz4", "-C", "8K", "large", "i"]);
    for _ in 0..3 {
        fs::write(place.path("large/other"), text(400_000, 77)).unwrap();
        change(&place.path("large/file"));
        place.text(&["patch", "-q", "large", "i"]);
        change(&place.path("large/other"));
        place.text(&["patch", "-q", "large", "i"]);
    }
    place.text(&["build", "-q", "-z", "lz4", "-C", "8K", "large", "fresh"]);
    let (patched, fresh) = (len(&place.path("i")), len(&place.path("fresh")));
    assert!(patched > fresh, "{patched} and {fresh}");
    let summary = place.text(&["patch", "--compact", "i"]);
    assert!(summary.contains(" less than "), "{summary}");
    let compact = len(&place.path("i"));
    assert!(compact <= fresh + fresh / 50, "{compact} and {fresh}");
    assert_eq!(place.text(&["diff", "i", "large"]), "");
    let checked = place.run(&["check", "-q", "i"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    kernel_agrees(&place, "i", "large");
    // The image can be patched as before.
    change(&place.path("large/other"));
    cost(&place, "large");
    for (args, what) in [
        (&["--compact", "large", "i"][..], "no source"),
        (&["--compact", "-o", "i", "large"], "no source"),
    ] {
        let out = place.run(&[&["patch", "-q"], args].concat());
        assert_eq!(code(&out), 2, "{args:?}");
        assert!(stderr(&out).contains(what), "{}", stderr(&out));
    }
}

/// Creates trees in which every option of a build changes something: text, noise, equal parts, holes, attributes.
fn varied(place: &Place) {
    for (dir, seed) in [("before", 1), ("after", 2)] {
        let dir = place.path(dir);
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("large"), text(400_000, 1)).unwrap();
        fs::write(dir.join("other"), text(300_000, 10 + seed)).unwrap();
        let noise = tuff_testkit::content::noise(100_000, 3);
        fs::write(dir.join("noise"), &noise).unwrap();
        fs::write(dir.join("part"), [&noise[..65_536], b"end"].concat()).unwrap();
        let holes = fs::File::create(dir.join("holes")).unwrap();
        holes.set_len(300_000).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&holes, &noise[..80_000], 65_536).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&holes, &noise[..90_000], 196_608).unwrap();
        for i in 0..60 {
            let bytes = text(300 + 150 * i, 100 + seed + i as u64 / 2);
            fs::write(dir.join(format!("sub/{i}")), &bytes).unwrap();
        }
    }
}

/// Regression: settings that an image does not record, such as fragments of small trees, tail packing, levels, chunks and
/// name prefixes, were lost, so images grew.
#[test]
fn a_compacted_image_is_at_most_as_large_as_a_fresh_build_with_its_options() {
    let place = Place::new("patch-compact-options");
    varied(&place);
    for options in [
        &[][..],
        &["-C", "16K"],
        &["-z", "lz4"],
        &["-z", "lz4:2", "-C", "128K"],
        &["-z", "lz4hc:12", "-C", "256K", "--fragment-cluster", "64K"],
        &["-z", "zstd:1", "-C", "32K"],
        &["-z", "zstd:15", "-C", "128K", "--fragments", "all"],
        &["-z", "zstd:5", "--unaligned"],
        &["-z", "zstd:5", "--dict", "1M", "-C", "64K"],
        &["-z", "lzma:1", "-C", "64K", "--fragments", "small"],
        &["-z", "deflate:9", "-C", "64K"],
        &["--fragments", "off"],
        &["--fragments", "off", "--tail-packing", "off"],
        &["--tail-packing", "on"],
        &["--kernel", "5.4"],
        &["--kernel", "5.15"],
        &["--dedupe", "off"],
        &["--fragment-cluster", "4K"],
        &["-z", "none", "--fragments", "off"],
        &["-z", "none", "--fragments", "off", "--chunk", "4K"],
        &["-z", "none", "--fragments", "off", "--sparse", "keep"],
        &["--metadata", "short"],
        &["--metadata", "compressed", "--set", "metadata-cluster=64K"],
        &["--rule", "other=zstd:9,128K"],
        &["--rule", "large=none"],
        &["--auto", "balanced", "--kernel", "6.12"],
        &["-b", "1024", "-C", "8K"],
        &["--set", "index=full", "--set", "inodes=extended"],
    ] {
        place.text(&[&["build", "-q"], options, &["before", "i"]].concat());
        place.text(&[&["build", "-q"], options, &["after", "fresh"]].concat());
        let before = len(&place.path("i"));
        let message = place.text(&["patch", "--compact", "i"]);
        let compact = len(&place.path("i"));
        assert!(compact <= before, "{options:?}: {before} to {compact}");
        assert!(
            compact < before || message.contains("kept"),
            "{options:?}: {message}"
        );
        place.text(&["patch", "-q", "after", "i"]);
        place.text(&["patch", "-q", "--compact", "i"]);
        let (compact, fresh) = (len(&place.path("i")), len(&place.path("fresh")));
        assert!(compact <= fresh, "{options:?}: {compact} and {fresh}");
        assert_eq!(place.text(&["diff", "i", "after"]), "", "{options:?}");
        let checked = place.run(&["check", "-q", "i"]);
        assert_eq!(code(&checked), 0, "{options:?}: {}", stderr(&checked));
    }
}

#[test]
fn an_edited_incompressible_file_costs_its_edit() {
    let place = Place::new("stored-ranges");
    fs::create_dir(place.path("old")).unwrap();
    fs::create_dir(place.path("new")).unwrap();
    let old = tuff_testkit::content::noise(6_000_000, 1);
    fs::write(place.path("old/noise"), &old).unwrap();
    let edit = tuff_testkit::content::noise(200_000, 2);
    let mut edited = old.clone();
    edited[3_000_001..3_200_001].copy_from_slice(&edit);
    let moved = [&edit[..163_840], &old[..4_096_000]].concat();
    let longer = [&old[..], &edit].concat();
    let renamed = [&old[..1_000_000], &old[2_000_000..]].concat();
    for (name, bytes, most) in [
        ("noise", &edited, 280_000),
        // Moved by whole blocks, behind new data.
        ("moved", &moved, 250_000),
        ("noise", &longer, 280_000),
        // The start, and parts that are moved by 2 blocks and some bytes.
        ("shorter", &renamed, 5_100_000),
    ] {
        let _ = fs::remove_dir_all(place.path("new"));
        fs::create_dir(place.path("new")).unwrap();
        fs::write(place.path("new").join(name), bytes).unwrap();
        for options in [
            &[][..],
            &["-z", "none", "--fragments", "off"],
            &["--chunk", "16K"],
            &["-z", "zstd:3"],
            &["--kernel", "6.18", "--metadata", "compressed"],
        ] {
            let case = format!("{name} {options:?}");
            place.text(&[&["build", "-q"], options, &["old", "base"]].concat());
            let from = ["--base", "base", "new", "delta"];
            place.text(&[&["build", "-q", "--verify"], options, &from].concat());
            let delta = len(&place.path("delta"));
            assert!(delta < most, "{case}: {delta}");
            assert_eq!(place.text(&["diff", "delta", "new"]), "", "{case}");
            let checked = place.run(&["check", "-q", "delta"]);
            assert_eq!(code(&checked), 0, "{case}: {}", stderr(&checked));
            // A second delta, of a file in chunks, is not larger.
            let from = ["--base", "delta", "new", "again"];
            place.text(&[&["build", "-q"], options, &from].concat());
            assert!(len(&place.path("again")) < 100_000, "{case}");
            let before = len(&place.path("base"));
            place.text(&["patch", "-q", "--verify", "new", "base"]);
            let more = len(&place.path("base")) - before;
            assert!(more < most, "{case}: {more}");
            assert_eq!(place.text(&["diff", "base", "new"]), "", "{case}");
            kernel_agrees(&place, "base", "new");
        }
    }
    // Without a base nothing changes.
    place.text(&["build", "-q", "new", "alone"]);
    assert!(!place.text(&["info", "alone"]).contains("chunk"));
}

#[test]
fn a_compressible_file_with_an_incompressible_part_of_the_base_stays_compressed() {
    let place = Place::new("stored-part-of-text");
    fs::create_dir(place.path("old")).unwrap();
    fs::create_dir(place.path("new")).unwrap();
    let noise = tuff_testkit::content::noise(262_144, 1);
    fs::write(place.path("old/noise"), &noise).unwrap();
    let words = text(1_048_576, 4);
    let mixed = [&words[..524_288], &noise, &words[524_288..]].concat();
    fs::write(place.path("new/mixed"), mixed).unwrap();
    place.text(&["build", "-q", "old", "base"]);
    place.text(&["build", "-q", "new", "alone"]);
    place.text(&["build", "-q", "--base", "base", "new", "delta"]);
    let (alone, delta) = (len(&place.path("alone")), len(&place.path("delta")));
    assert!(delta <= alone + 8192, "{delta} and {alone}");
}
