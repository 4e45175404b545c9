//! B26: damaged archives and images are read or refused, within bounded memory, whatever the format.
//!
//! `TUFF_MUTATIONS=10000 cargo test --release -p tuff-mkfs --test hostile_sources` is the campaign.

use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_mkfs::source::Kind;
use tuff_mkfs::{Error, Options, Progress, Scan, Source, build_to};
use tuff_testkit::content::{mixed, text};
use tuff_testkit::kernel::open_with;
use tuff_testkit::{Rng, Scratch, note};

/// Mutations of each image, unless the environment states another number.
const MUTATIONS: u64 = 40;

/// Address space of the process that reads them. Unit: KiB.
const MEMORY_KIB: &str = "700000";

/// Bytes read of a file.
const READ_MAX: u64 = 1 << 20;

/// Path of an archive or image, for the process that reads its mutations.
const PATH: &str = "TUFF_HOSTILE_SOURCE";

/// Returns what reads a file.
fn source(path: &Path) -> Result<Source, Error> {
    Ok(match path.extension().and_then(|e| e.to_str()) {
        Some("squashfs") => Source::SquashFs(path.to_owned()),
        Some("erofs") => Source::Image(tuff_mkfs::InputImage::new(
            open_with(path, &[])?,
            path.to_owned(),
            Vec::new(),
        )),
        _ => Source::Tar(path.to_owned()),
    })
}

/// Reads a tree as a backup does. Returns whether all of it could be read.
fn read(path: &Path) -> Result<(), Error> {
    let mut options = Options::default();
    options.resources.threads = Some(1);
    let progress = Progress::default();
    let scan = Scan::new(&[source(path)?], &options, &progress)?;
    let mut whole = Ok(());
    let mut left = 8 * READ_MAX;
    scan.each(&mut |entry| {
        let Kind::File { size } = entry.kind else {
            return Ok(());
        };
        let len = size.min(READ_MAX).min(left);
        left -= len;
        let read = scan.open(entry.inode).and_then(|file| match file {
            // Fits: at most 1 MiB.
            Some(file) => file.read(&mut |fill| fill(&mut vec![0; len as usize], 0)),
            None => Ok(()),
        });
        if read.is_err() {
            whole = read;
        }
        Ok(())
    })?;
    whole
}

/// Changes a byte, a number or a range, or cuts the end off. Half of the changes are in the first 128 bytes and the last eighth, where
/// SquashFS and EROFS have their structures.
fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..=random.below(3) {
        let len = bytes.len();
        let at = match random.below(4) {
            0 => random.below(128.min(len)),
            1 => len - 1 - random.below(len / 8),
            _ => random.below(len),
        };
        let end = (at + [1, 2, 4, 8][random.below(4)]).min(len);
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.draw() as u8,
            2 => bytes[at..end].fill(0xff),
            3 => bytes[at..end].fill(0),
            4 => {
                let from = random.below(len - (end - at));
                bytes.copy_within(from..from + (end - at), at);
            }
            _ if random.below(4) == 0 => bytes.truncate(at.max(1)),
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

/// Run by the other test, in a process of its own.
#[test]
fn mutations_of_one_file() {
    let Some(path) = std::env::var_os(PATH).map(PathBuf::from) else {
        return;
    };
    let count = std::env::var("TUFF_MUTATIONS").ok();
    let count = count.map_or(MUTATIONS, |n| n.parse().unwrap());
    let whole = std::fs::read(&path).unwrap();
    let extension = path.extension().unwrap().to_str().unwrap();
    let changed = path.with_extension(format!("changed.{extension}"));
    read(&path).unwrap();
    let mut refused = 0;
    for seed in 0..count {
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut Rng::new(seed + 1));
        std::fs::write(&changed, &bytes).unwrap();
        // The last line names a case that ends the process.
        println!("{}: seed {seed}", path.display());
        if let Err(e) = read(&changed) {
            refused += 1;
            assert!(!e.to_string().contains('\n'), "{e}");
        }
    }
    println!("{}: {refused} of {count} refused", path.display());
    assert!(refused > count / 10, "{refused} of {count}");
}

#[test]
fn b26_damaged_archives_and_images_are_read_or_refused_in_bounded_memory() {
    let scratch = Scratch::new("hostile-sources");
    let at = |name: &str| scratch.path().join(name);
    std::fs::create_dir_all(at("source/dir/below")).unwrap();
    std::fs::write(at("source/large"), mixed(600_000, 1)).unwrap();
    for n in 0..150 {
        let bytes = text(n * 17, n as u64);
        std::fs::write(at("source/dir").join(format!("small-{n}")), bytes).unwrap();
    }
    std::fs::hard_link(at("source/large"), at("source/dir/below/linked")).unwrap();
    std::os::unix::fs::symlink("large", at("source/link")).unwrap();
    let holes = std::fs::File::create(at("source/holes")).unwrap();
    holes.set_len(900_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, b"data", 500_000).unwrap();
    // Without support for attributes the images have none.
    let _ = rustix::fs::setxattr(
        at("source/large"),
        "user.a",
        &[b'v'; 900],
        rustix::fs::XattrFlags::empty(),
    );
    let mut paths = vec![at("image.erofs")];
    let mut image = Vec::new();
    let tree = Source::Dir(at("source"));
    build_to(
        &[tree],
        &Options::default(),
        &mut image,
        &Progress::default(),
    )
    .unwrap();
    std::fs::write(&paths[0], image).unwrap();
    let forms: [(&str, &str, &[&str]); 7] = [
        ("plain.tar", "tar", &["-cf"]),
        ("zlib.tar", "tar", &["-czf"]),
        ("gzip.squashfs", "mksquashfs", &["-comp", "gzip"]),
        (
            "xz.squashfs",
            "mksquashfs",
            &["-comp", "xz", "-noI", "-noX"],
        ),
        (
            "lzo.squashfs",
            "mksquashfs",
            &["-comp", "lzo", "-noI", "-noX"],
        ),
        ("lz4.squashfs", "mksquashfs", &["-comp", "lz4", "-noI"]),
        (
            "zstd.squashfs",
            "mksquashfs",
            &["-comp", "zstd", "-noI", "-noId", "-noX", "-noF"],
        ),
    ];
    for (name, program, args) in forms {
        let mut command = Command::new(program);
        match program {
            "tar" => command
                .args(args)
                .arg(at(name))
                .arg("-C")
                .arg(at("source"))
                .arg("."),
            _ => command.arg(at("source")).arg(at(name)).args(args).args([
                "-noappend",
                "-quiet",
                "-no-progress",
            ]),
        };
        match command.output() {
            Ok(output) if output.status.success() => paths.push(at(name)),
            _ => note(format_args!("no {program} {args:?}")),
        }
    }
    for path in paths {
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe().unwrap())
            .args(["mutations_of_one_file", "--exact", "--nocapture"])
            .env(PATH, &path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last: Vec<&str> = text.lines().rev().take(8).collect();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{last:?} {error}");
        let counts = text.lines().find(|line| line.ends_with("refused"));
        note(counts.unwrap_or_default());
    }
}
