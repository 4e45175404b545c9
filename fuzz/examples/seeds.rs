//! Writes seed corpora: `cargo run --release --example seeds -- corpus`.
//!
//! Images come from the composer that tests share, and from the builder with various options; seeds of single
//! structures are cut out of them.

use std::io::Write;
use std::path::{Path, PathBuf};
use tuff_codec::Method;
use tuff_format::features::incompat;
use tuff_format::inode::{FileType, Layout};
use tuff_mkfs::{Compression, Fragments, KernelVersion, Options, Progress, Source, build};
use tuff_store::Target;
use tuff_testkit::sheet::{
    EPOCH, Sheet, boxed, entry, extents, inode, len_word, place, record16, squeeze, xattrs,
};

fn main() -> std::io::Result<()> {
    let out = PathBuf::from(std::env::args_os().nth(1).unwrap_or("corpus".into()));
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let dir = out.join(target);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(name), bytes)
    };
    let text = text();
    for (method, target) in [
        (Method::Lz4, "decode_lz4"),
        (Method::Lzma, "decode_lzma"),
        (Method::Deflate, "decode_deflate"),
        (Method::Zstd, "decode_zstd"),
    ] {
        for len in [1, 300, 20_000] {
            let mut seed = (len as u32).to_le_bytes()[..3].to_vec();
            seed.extend(squeeze(method, &text[..len]));
            put(target, &len.to_string(), &seed)?;
        }
    }
    for (target, name, seed) in SENT {
        put(target, name, seed.as_bytes())?;
    }
    put("chunk_index", "one", &chunk_index())?;
    let scratch = out.join(".scratch");
    let mut images = built(&scratch, &text)?;
    images.push(("metabox".into(), metabox(&text)));
    for (name, image) in &images {
        for target in ["read", "check", "dump", "extract", "image_tar", "diff"] {
            put(target, name, image)?;
        }
        put("superblock", name, &image[1024..1168])?;
        put(
            "config",
            name,
            &[&image[1024 + 0x54..1024 + 0x56], &image[1152..1280]].concat(),
        )?;
        // Inodes, directories and attributes begin at multiples of 32.
        for at in (1152..image.len().min(4096)).step_by(32) {
            if image[at..at + 32].iter().any(|b| *b != 0) {
                let end = image.len().min(at + 256);
                let piece = &image[at..end];
                let name = format!("{name}-{at:x}");
                for target in ["inode", "dirent", "xattr"] {
                    put(target, &name, piece)?;
                }
                // A size before a possible map header.
                for target in ["cluster_full", "cluster_compact", "cluster_extents"] {
                    put(target, &name, &[&20_000u32.to_le_bytes(), piece].concat())?;
                }
                put("chunk", &name, &[&[0x20, 0], piece].concat())?;
                put("device", &name, &[&[1], piece].concat())?;
                put("start_list", &name, &[&b"tuffstrt\x01\0\0\0\x04\0\0\0"[..], piece].concat())?;
            }
        }
    }
    for (name, image) in &images {
        let (bytes, at) = with_tree(&scratch.join("tree-of"), image)?;
        let numbers = [at, image.len() as u64].map(u64::to_le_bytes).concat();
        put("hash_tree", name, &[&numbers[..], &bytes].concat())?;
        put("gpt", name, &disk(&scratch.join("disk"), &bytes, at)?)?;
    }
    for (name, seed) in signatures()? {
        put("signature", name, &seed)?;
    }
    // Two concatenated images: equal ones, and different ones.
    for (name, second) in [("same", 0), ("different", 1)] {
        let (mut both, second) = (images[0].1.clone(), images[second].1.clone());
        let len = both.len().max(second.len()).next_multiple_of(512);
        both.resize(len, 0);
        both.extend(second);
        both.resize(2 * len, 0);
        put("diff", name, &both)?;
    }
    // Method and level, output of 1000 bytes and of a cluster, input once or repeated.
    for method in 0..12u8 {
        let small = [&[method, 0xA8, 3, 0], &text[..3000]].concat();
        put("encode", &format!("{method}"), &small)?;
        let large = [&[method | 0x80, 0, 0x80, 40], &text[..2000]].concat();
        put("encode", &format!("{method}-long"), &large)?;
    }
    let tar = {
        let image = tuff_fuzz::open(&images[0].1).expect("an image of our own");
        let mut out = Vec::new();
        let mut writer = tuff_erofs::tar::TarWriter::new(&image, &mut out, Default::default());
        let walk = tuff_erofs::walk::Walk::root(&image).expect("a root of our own");
        for entry in walk.flatten() {
            writer.append(&entry).expect("written to memory");
        }
        writer.finish().expect("written to memory");
        out
    };
    put("tar", "image", &tar)?;
    put("compressed", "plain", &tar[..600])?;
    let early = cpio(&[
        ("kernel", 0o040_755, b""),
        ("kernel/code", 0o100_644, b"code"),
    ]);
    let main = cpio(&[("init", 0o100_755, b"#!"), ("sh", 0o120_777, b"init")]);
    // A frame of Zstandard with one raw block; the length counts from 256.
    let len = main.len() as u32;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60];
    frame.extend(&(len - 256).to_le_bytes()[..2]);
    frame.extend(&(len << 3 | 1).to_le_bytes()[..3]);
    frame.extend(&main);
    put("cpio", "two", &[&early[..], &[0; 12], &main].concat())?;
    put("cpio", "early", &[&early[..], &frame].concat())?;
    let manifest = "#mtree\n/set uid=0 mode=0644 time=1.5\n. type=dir\n f type=file size=5 \\\n xattr.user.a=0sAAAA\n..\n\
                    ./d/null type=char device=1,3\n./h hardlink=f\n./l type=link link=a\\040b\n";
    put("manifest", "all", manifest.as_bytes())?;
    for form in ["-noI", "-noD"] {
        let image = scratch.join(form);
        let made = std::process::Command::new("mksquashfs")
            .arg("fuzz_targets")
            .arg(&image)
            .args([form, "-quiet", "-no-progress"])
            .status();
        if made.is_ok_and(|made| made.success()) {
            put("squashfs", form, &std::fs::read(&image)?)?;
        }
    }
    std::fs::remove_dir_all(scratch)
}

/// Appends the hash tree of an image. Returns the position of its header, too.
fn with_tree(file: &Path, image: &[u8]) -> std::io::Result<(Vec<u8>, u64)> {
    std::fs::write(file, image)?;
    let options = tuff_mkfs::Verity {
        block: 4096,
        parity: None,
        salt: Vec::new(),
    };
    let tree = tuff_mkfs::hash_tree(file, None, &options, true, 1, &Progress::default());
    let tree = tree.map_err(std::io::Error::other)?;
    Ok((std::fs::read(file)?, tree.hash_offset))
}

/// Sealed disk of an image with its tree, whose header is at `at`.
fn disk(file: &Path, image: &[u8], at: u64) -> std::io::Result<Vec<u8>> {
    use tuff_disk::discoverable::{Architecture, Role};
    let source = file.with_extension("source");
    std::fs::write(&source, image)?;
    let seal = tuff_disk::Seal {
        architecture: Architecture::from_name("x86-64").expect("a known name"),
        role: Role::Root,
        sector: 512,
        root: [7; 32],
        record: None,
    };
    let output = tuff_store::Output::create(&Target::Path(file.to_owned()))?;
    let source = std::fs::File::open(source)?;
    let (data, tree) = (0..at, at..image.len() as u64);
    let (_, len) = tuff_disk::seal(&seal, &source, data, tree, &output, &|_| Ok(()))?;
    output.finish(len, false)?;
    std::fs::read(file)
}

/// Certificates with signatures of the root hash of zeros. None without openssl.
fn signatures() -> std::io::Result<Vec<(&'static str, Vec<u8>)>> {
    use tuff_testkit::openssl;
    let dir = tempfile::tempdir()?;
    if openssl::keys(dir.path()).is_none() {
        return Ok(Vec::new());
    }
    let seeds = ["rsa", "ec"].map(|name| {
        let certificate = std::fs::read(dir.path().join(format!("{name}.pem"))).unwrap_or_default();
        let signature = openssl::signer(dir.path(), name).sign(&[0; 32]);
        let numbers = [certificate.len() as u64, 0].map(u64::to_le_bytes).concat();
        let seed = [numbers, certificate, signature.unwrap_or_default()].concat();
        (name, seed)
    });
    Ok(seeds.into())
}

/// Returns an archive of these members: path, mode and data.
fn cpio(members: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, mode, data) in members.iter().chain(&[("TRAILER!!!", 0, &b""[..])]) {
        let (size, name) = (data.len() as u32, path.len() as u32 + 1);
        out.extend(b"070701");
        for field in [1, *mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0] {
            out.extend(format!("{field:08x}").bytes());
        }
        out.extend(path.bytes().chain([0]));
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(*data);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

fn text() -> Vec<u8> {
    (0..8000u32)
        .flat_map(|i| format!("{} {}\n", i % 700, i % 13).into_bytes())
        .collect()
}

fn built(scratch: &Path, text: &[u8]) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let tree = scratch.join("tree");
    std::fs::create_dir_all(tree.join("dir"))?;
    std::fs::write(tree.join("text"), &text[..40_000])?;
    std::fs::write(tree.join("dir/small"), "small")?;
    let mut sparse = std::fs::File::create(tree.join("sparse"))?;
    sparse.write_all(b"start")?;
    sparse.set_len(100_000)?;
    std::os::unix::fs::symlink("text", tree.join("link"))?;
    let mut out = Vec::new();
    for (name, method, fragments, compact) in [
        ("lz4", Some(Method::Lz4), Fragments::Off, true),
        ("lzma", Some(Method::Lzma), Fragments::Off, true),
        ("deflate-full", Some(Method::Deflate), Fragments::Off, false),
        ("zstd-fragments", Some(Method::Zstd), Fragments::Tails, true),
        ("stored", None, Fragments::Off, true),
    ] {
        let mut options = Options::for_kernel(KernelVersion(6, 18));
        options.compression.default = method.map(|method| Compression {
            method,
            level: tuff_codec::EncoderSpec::new(method, 16384).level,
            dict: None,
        });
        (options.compression.cluster, options.layout.fragment_cluster) = (16384, 16384);
        options.layout.fragments = fragments;
        options.layout.compact_index = compact;
        options.metadata.timestamp = Some(EPOCH);
        let file = scratch.join(name);
        let (sources, target) = ([Source::Dir(tree.clone())], Target::Path(file.clone()));
        build(&sources, &options, &target, &Progress::default()).map_err(std::io::Error::other)?;
        out.push((name.to_owned(), std::fs::read(file)?));
    }
    Ok(out)
}

/// Returns an image with a root and a file with encoded extents in a metabox, a shared attribute and a prefix.
fn metabox(text: &[u8]) -> Vec<u8> {
    let features =
        incompat::LZ4_0PADDING | incompat::COMPR_CFGS | incompat::BIT48 | incompat::METABOX;
    let mut sheet = Sheet::new(features);
    sheet.sb.compat |= tuff_format::features::compat::SHARED_EA_IN_METABOX;
    let mut shared = Vec::new();
    entry(1, "shared", "value").encode(&mut shared);
    sheet.write(true, 16, &shared);
    let table = sheet.prefixes(64, &[(1, "long.")]);
    sheet.write(true, 64, &table);
    sheet.sb.root = boxed(1);
    let attributes = xattrs(&[4], &[(0x80, "name", "x")]);
    sheet.put_dir(
        boxed(1),
        boxed(1),
        &attributes,
        &[("f", boxed(2), FileType::File)],
    );
    let packed = squeeze(Method::Zstd, &text[..9000]);
    let at = sheet.run(&packed);
    let table = [
        record16(len_word(packed.len() as u32, 4), at, 0),
        record16(0, 0, 9000),
    ]
    .concat();
    let file = inode(Layout::CompressedFull, 12_000, 1);
    sheet.put(boxed(2), file, &[], 8, &extents(16, 2, 0, 0, &table));
    sheet.close_metabox(place(1), false);
    sheet.finish()
}

/// Seeds of what servers send: target, name and text.
const SENT: [(&str, &str, &str); 7] = [
    (
        "remote_manifest",
        "layers",
        r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","size":8192,"annotations":{"org.erofs.role":"device","org.erofs.chunk-index.range":"4096:8192","org.erofs.chunk-index.digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}},{"mediaType":"application/vnd.erofs.layer.v1","digest":"sha256:1111111111111111111111111111111111111111111111111111111111111111","size":4096}]}"#,
    ),
    (
        "remote_manifest",
        "index",
        r#"{"manifests":[{"digest":"sha256:0","platform":{"os":"linux","architecture":"amd64"}}]}"#,
    ),
    (
        "challenge",
        "bearer",
        r#"Bearer realm="https://auth.example/token?x=1",service="a, \"b\"",scope="repository:a:pull""#,
    ),
    (
        "challenge",
        "several",
        "Negotiate, Basic realm=x, bearer Realm=http://127.0.0.1/t",
    ),
    ("content_range", "known", "bytes 0-4095/8192"),
    ("content_range", "unknown", "bytes 5-9/*"),
    ("content_range", "none", "bytes */0"),
];

/// Chunk index of an image of 4 KiB.
fn chunk_index() -> Vec<u8> {
    let mut index = vec![0xcd, 0xe4, 0xec, 0x67, 1, 0, 0, 0];
    index.extend(4096u64.to_le_bytes());
    index.extend(1u32.to_le_bytes());
    index.extend([1, 32]);
    index.resize(32 + 48, 0);
    index
}
