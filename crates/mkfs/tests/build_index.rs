//! Tar indexes: with the tar appended or as a device they contain its tree, for this reader and for
//! the kernel.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tuff_erofs::read::{DeviceId, Location};
use tuff_format::features::incompat;
use tuff_mkfs::{
    KernelVersion, LayoutOptions, Metadata, MetadataOptions, Options, Progress, ResourceOptions,
    Source, SourceOptions, Whiteouts, build,
};
use tuff_store::Target;
use tuff_testkit::Scratch;
use tuff_testkit::content::noise;
use tuff_testkit::kernel::input_with;
use tuff_testkit::kernel::{all_agree, appended, by_kernel, open_with};
use tuff_testkit::tree::{Ignore, assert_same, image_tree, nasty_tree, open};

/// Options of a tar index.
fn options() -> Options {
    let mut options = Options::for_kernel(KernelVersion(6, 4));
    options.block = tuff_format::BlockBits::new(9).unwrap();
    options.index_a_tar();
    options
}

fn make(tar: &Path, image: &Path, options: &Options) -> tuff_erofs::Result<()> {
    let (source, target) = (Source::Tar(tar.to_owned()), Target::Path(image.to_owned()));
    build(&[source], options, &target, &Progress::default()).map(drop)
}

fn tar(dir: &Path, out: &Path, options: &[&str]) -> bool {
    let out = Command::new("tar")
        .args(options)
        .arg("-cf")
        .arg(out)
        .arg("-C")
        .arg(dir)
        .arg(".")
        .output();
    let done = out.is_ok_and(|out| out.status.code().is_some_and(|code| code < 2));
    if !done {
        tuff_testkit::skipped("no GNU tar");
    }
    done
}

const HOLES: Ignore = Ignore {
    dir_nlink: false,
    dir_size: true,
    holes: true,
    nsec: false,
    times: false,
    owners: false,
    xattrs: false,
};

#[test]
fn an_index_and_its_tar_are_the_tree() {
    let scratch = Scratch::new("index");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    for (name, format) in [
        (
            "pax",
            &["--format=pax", "--xattrs", "--xattrs-include=*"][..],
        ),
        ("pax-sparse", &["--format=pax", "-S"]),
        ("gnu-sparse", &["--format=gnu", "-S"]),
    ] {
        let (file, image) = (at(&format!("{name}.tar")), at(name));
        if !tar(&at("tree"), &file, format) {
            return;
        }
        // Expected tree, from an image that copies the data.
        let plain = Options::for_kernel(KernelVersion(6, 4));
        make(&file, &at("copy"), &plain).unwrap();
        let expected = image_tree(&open(&at("copy")));
        make(&file, &image, &options()).unwrap();
        all_agree(name, &image, &[&file], &expected, HOLES);
        let short = Options {
            kernel: KernelVersion(6, 15),
            metadata: MetadataOptions {
                form: Metadata::Short,
                ..options().metadata
            },
            ..options()
        };
        make(&file, &image, &short).unwrap();
        let shown = image_tree(&open_with(&image, &[&file]).unwrap());
        assert_same("short inodes", &expected, &shown, HOLES);
    }
}

/// The device table has one device of the tar's length after the image, and each file one chunk.
#[test]
fn the_tar_is_the_device_after_the_image() {
    let scratch = Scratch::new("index-slot");
    let (file, image) = (scratch.path().join("t.tar"), scratch.path().join("i"));
    let content = noise(100_000, 1);
    let bytes = archive(&[Member::File("a", &content), Member::File("b", b"short")]);
    fs::write(&file, &bytes).unwrap();
    for (align, blocks) in [(1, 4), (6, 8)] {
        let options = Options {
            layout: LayoutOptions {
                align_blocks: align,
                ..options().layout
            },
            ..options()
        };
        make(&file, &image, &options).unwrap();
        let len = fs::metadata(&image).unwrap().len();
        let opened = open(&image);
        let sb = opened.superblock();
        assert_eq!((len, sb.blocks), (blocks * 512, blocks));
        let needs = incompat::CHUNKED_FILE | incompat::DEVICE_TABLE;
        assert_eq!((sb.incompat, sb.block_bits.size()), (needs, 512));
        let [slot] = opened.slots() else {
            panic!("one device")
        };
        assert_eq!(
            (slot.uniaddr.0, slot.blocks),
            (blocks, bytes.len() as u64 / 512)
        );
        assert_eq!(slot.tag, [0; 64]);
        let raw = fs::read(&image).unwrap();
        // Chunks of 128 KiB and of 512 bytes; block 1, and the block after two headers and 196
        // blocks.
        for (format, entry) in [
            (0x28u32, [0, 0, 1, 0, 1, 0, 0, 0]),
            (0x20, [0, 0, 1, 0, 198, 0, 0, 0]),
        ] {
            let found = raw.windows(8).any(|w| w == entry);
            assert!(found, "a chunk like {entry:?}");
            assert!(raw.windows(4).any(|w| w == format.to_le_bytes()));
        }
    }
}

/// Member of a tar assembled in this test.
enum Member<'a> {
    File(&'a str, &'a [u8]),
    /// Name, size, and data runs by position.
    Sparse(&'a str, u64, &'a [(u64, &'a [u8])]),
}

fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for member in members {
        let (name, stored, flag) = match member {
            Member::File(name, data) => (name, data.to_vec(), b'0'),
            Member::Sparse(name, _, runs) => {
                let stored: Vec<&[u8]> = runs.iter().map(|(_, data)| *data).collect();
                (name, stored.concat(), b'S')
            }
        };
        let mut header = [0u8; 512];
        let mut put =
            |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, "0000644");
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", stored.len()));
        put(136, "13727410000");
        put(257, "ustar  ");
        if let Member::Sparse(_, size, runs) = member {
            for (i, (offset, data)) in runs.iter().enumerate() {
                put(386 + 24 * i, &format!("{offset:011o}"));
                put(398 + 24 * i, &format!("{:011o}", data.len()));
            }
            put(483, &format!("{size:011o}"));
        }
        header[156] = flag;
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&stored);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// Runs that begin and end at blocks stay in the tar. A file with other runs is copied into the
/// image.
#[test]
fn sparse_members_keep_their_holes_or_are_copied() {
    let scratch = Scratch::new("index-sparse");
    let at = |name: &str| scratch.path().join(name);
    let (long, odd) = (noise(4096, 1), noise(700, 2));
    type Runs<'a> = &'a [(u64, &'a [u8])];
    // Name, size, runs, and whether the data stays in the tar.
    let cases: [(&str, u64, Runs<'_>, bool); 7] = [
        (
            "even",
            100_000,
            &[(512, &long), (99_840, &odd[..160])],
            true,
        ),
        ("large", 1 << 28, &[(0, &long), (1 << 27, &long)], true),
        ("nothing", 1 << 32, &[], true),
        ("begins-inside", 100_000, &[(100, &odd)], false),
        ("ends-inside", 100_000, &[(1024, &odd)], false),
        (
            "later-inside",
            100_000,
            &[(0, &odd[..512]), (1024, &odd[..600]), (4096, &long)],
            false,
        ),
        (
            "long-table",
            1 << 32,
            &[(512, &odd[..512]), (1 << 31, &long)],
            false,
        ),
    ];
    let members: Vec<Member<'_>> = (cases.iter())
        .map(|(name, size, runs, _)| Member::Sparse(name, *size, runs))
        .collect();
    let file = at("t.tar");
    fs::write(&file, archive(&members)).unwrap();
    make(&file, &at("i"), &options()).unwrap();
    let both = appended(&at("i"), &[&file]);
    let see = |name: &str, root: &dyn Fn(&str, u64, &mut [u8])| {
        let (_, size, runs, _) = cases.iter().find(|c| c.0 == name).unwrap();
        for (offset, data) in *runs {
            let mut around = vec![0xff; data.len() + 1024];
            let from = offset.saturating_sub(512);
            let n = around.len().min((size - from) as usize);
            around.truncate(n);
            root(name, from, &mut around);
            for (i, byte) in around.iter().enumerate() {
                let at = from + i as u64;
                let run = runs
                    .iter()
                    .find(|(o, d)| (*o..o + d.len() as u64).contains(&at));
                let expected = run.map_or(0, |(o, d)| d[(at - o) as usize]);
                assert_eq!(*byte, expected, "{name}: byte {at}");
            }
        }
    };
    let image = open(&both);
    let root = image.root().unwrap();
    for (name, size, _, referred) in &cases {
        let nid = image.lookup(&root, name.as_bytes()).unwrap().unwrap();
        let inode = image.inode(nid).unwrap();
        assert_eq!(inode.size(), *size, "{name}");
        let places: Vec<_> = image
            .extents(&inode, 0..*size)
            .unwrap()
            .map(|e| e.unwrap().location)
            .collect();
        let external = |s: &Location| !matches!(s, Location::Raw { device, .. } if *device == DeviceId::PRIMARY);
        assert_eq!(places.iter().all(external), *referred, "{name}: {places:?}");
        see(name, &|_, offset, buf| {
            assert_eq!(image.read_at(&inode, buf, offset).unwrap(), buf.len());
        });
    }
    by_kernel(&both, &[], &at("mnt"), &|_, dir| {
        use std::os::unix::fs::FileExt;
        for (name, size, ..) in &cases {
            let file = fs::File::open(dir.join(name)).unwrap();
            assert_eq!(file.metadata().unwrap().len(), *size);
            see(name, &|_, offset, buf| {
                file.read_exact_at(buf, offset).unwrap()
            });
        }
    });
    let piped = through_a_pipe(&fs::read(&file).unwrap(), &at("piped"), &options());
    piped.unwrap();
    assert!(fs::read(at("piped")).unwrap() == fs::read(at("i")).unwrap());
}

/// Builds an index of a tar from a pipe.
fn through_a_pipe(bytes: &[u8], image: &Path, options: &Options) -> tuff_erofs::Result<()> {
    let pipe = image.with_extension("fifo");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
            file.write_all(bytes)
        });
        let made = make(&pipe, image, options);
        let written = writer.join().unwrap();
        assert!(made.is_err() || written.is_ok(), "all of it is read");
        made
    })
}

#[test]
fn bytes_depend_neither_on_threads_nor_on_the_input() {
    let scratch = Scratch::new("index-same");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    let file = at("t.tar");
    if !tar(&at("tree"), &file, &["--format=pax", "-S"]) {
        return;
    }
    let mut images = Vec::new();
    for threads in [1, 2, 7] {
        let options = Options {
            resources: ResourceOptions {
                threads: Some(threads),
                ..options().resources
            },
            ..options()
        };
        make(&file, &at("i"), &options).unwrap();
        images.push(fs::read(at("i")).unwrap());
        through_a_pipe(&fs::read(&file).unwrap(), &at("p"), &options).unwrap();
        images.push(fs::read(at("p")).unwrap());
        fs::remove_file(at("p.fifo")).unwrap();
    }
    assert!(images.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn whiteouts_become_those_of_overlayfs() {
    let scratch = Scratch::new("index-whiteouts");
    let (file, image) = (scratch.path().join("t.tar"), scratch.path().join("i"));
    let members = [
        Member::File("dir/.wh.gone", b""),
        Member::File("dir/there", b"there"),
        Member::File("opaque/.wh..wh..opq", b""),
    ];
    fs::write(&file, archive(&members)).unwrap();
    let options = Options {
        sources: SourceOptions {
            whiteouts: Some(Whiteouts::Convert),
            ..options().sources
        },
        ..options()
    };
    make(&file, &image, &options).unwrap();
    let tree = image_tree(&open_with(&image, &[&file]).unwrap());
    let of = |path: &str| tree.iter().find(|r| r.path == path.as_bytes()).unwrap();
    assert_eq!(of("dir/gone").device, Some((0, 0)));
    let opaque = of("opaque").xattrs.get(&b"trusted.overlay.opaque"[..]);
    assert_eq!(opaque.map(Vec::as_slice), Some(&b"y"[..]));
    all_agree("whiteouts", &image, &[&file], &tree, HOLES);
}

#[test]
fn unsuitable_tars_are_rejected() {
    let scratch = Scratch::new("index-refused");
    let at = |name: &str| scratch.path().join(name);
    let whole = archive(&[Member::File("a", &noise(1000, 1))]);
    fs::write(at("cut.tar"), &whole[..512 + 1000]).unwrap();
    fs::write(at("ends.tar"), &whole[..512 + 1024]).unwrap();
    fs::write(at("t.tar.gz"), [&[0x1f, 0x8b, 8][..], &[0; 64]].concat()).unwrap();
    fs::write(at("m.manifest"), "").unwrap();
    let image = at("i");
    for (name, says) in [
        (
            "cut.tar",
            "member \"a\": the archive ends within the zeros after the member",
        ),
        (
            "t.tar.gz",
            "compressed with gzip, but an index refers to the bytes of a plain tar",
        ),
    ] {
        let message = make(&at(name), &image, &options()).unwrap_err().to_string();
        assert!(message.contains(says), "{name}: {message}");
        let bytes = fs::read(at(name)).unwrap();
        let message = through_a_pipe(&bytes, &image, &options())
            .unwrap_err()
            .to_string();
        assert!(message.contains(says), "{name}: {message}");
        fs::remove_file(at("i.fifo")).unwrap();
    }
    make(&at("ends.tar"), &image, &options()).unwrap();
    fs::remove_file(&image).unwrap();
    let message = make(&at("ends.tar"), &at("ends.tar"), &options()).unwrap_err();
    assert!(
        message
            .to_string()
            .contains("cannot take the place of the tar")
    );
    assert_eq!(fs::metadata(at("ends.tar")).unwrap().len(), 512 + 1024);
    let tar = Source::Tar(at("ends.tar"));
    for sources in [
        &[tar.clone(), tar.clone()][..],
        &[Source::Dir(scratch.path().to_owned())],
        &[Source::Manifest(at("m.manifest"))],
    ] {
        let target = Target::Path(image.clone());
        let refused = build(sources, &options(), &target, &Progress::default());
        assert!(
            matches!(refused, Err(tuff_erofs::Error::Usage(_))),
            "{sources:?}"
        );
    }
    let base = at("base");
    let plain = Target::Path(base.clone());
    let tree = [Source::Tar(at("ends.tar"))];
    build(&tree, &Options::default(), &plain, &Progress::default()).unwrap();
    let base = input_with(&base, &[]);
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        make(&at("ends.tar"), &image, &options)
    };
    for change in [
        &(|o: &mut Options| o.block = tuff_format::BlockBits::B4K) as &dyn Fn(&mut Options),
        &|o| o.compression.default = Options::default().compression.default,
        &|o| o.output.verify = true,
        &|o| o.dedupe.bases = vec![base.clone()],
        &|o| o.kernel = KernelVersion(6, 1),
    ] {
        assert!(matches!(with(change), Err(tuff_erofs::Error::Usage(_))));
    }
    assert!(!image.exists());
}
