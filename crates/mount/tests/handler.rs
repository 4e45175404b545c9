//! Handler without a mount: requests and replies as bytes.

use rustix::io::Errno;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::serve::{ServeOptions, Server};
use tuff_fuse::filesystem::{Entry, Filesystem, LookupResult, Node, Parts, Reader, Result, Seek};
use tuff_fuse::handler::{REPLY_MAX, STATS_XATTR};
use tuff_fuse::protocol::{self, ROOT, StatfsOut, init, op};
use tuff_fuse::reply::Reply;
use tuff_fuse::request::Request;
use tuff_fuse::{Handler, Log, Service};
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{FormatOptions, MountOptions, Volume};
use tuff_mkfs::{CompressionOptions, LayoutOptions};
use tuff_mkfs::{KernelVersion, Options, SparsePolicy};
use tuff_mount::memory_pressure::relieve;
use tuff_mount::volume::VolumeServer;
use tuff_mount::{ImageFs, OwnerOverride};
use tuff_store::MemStore;
use tuff_testkit::Rng;
use tuff_testkit::sample;
use tuff_testkit::variants::build_dir;
use zerocopy::{FromBytes, IntoBytes};

fn server(image: Image) -> Server {
    Server::new(image, ServeOptions::default())
}

fn handler_of(name: &str) -> Handler {
    let fs = ImageFs::new(
        server(sample::image(name)),
        OwnerOverride::default(),
        Log::none(),
    )
    .unwrap();
    Handler::new(Arc::new(fs), 1, Log::none())
}

fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let header = protocol::InHeader {
        len: 40 + body.len() as u32,
        opcode,
        node,
        unique: 7,
        ..Default::default()
    };
    [header.as_bytes(), body].concat()
}

/// Returns the body of the reply.
fn ask(handler: &Handler, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![0xEE; REPLY_MAX];
    let bytes = request(opcode, node, body);
    let request = Request::new(&bytes, 0).unwrap();
    let mut worker = handler.worker(0, true);
    match handler.handle(&mut worker, &request, &mut out) {
        Reply::Body(Parts::One(bytes)) => Ok(bytes.to_vec()),
        Reply::Body(Parts::Many(runs)) => Ok(runs.concat()),
        Reply::Error(e) => Err(e),
        reply => panic!("reply to {}: {reply:?}", op::name(opcode)),
    }
}

fn whole<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).expect("the reply is one structure")
}

fn lookup(handler: &Handler, dir: u64, name: &str) -> protocol::EntryOut {
    let body = [name.as_bytes(), &[0]].concat();
    whole(&ask(handler, op::LOOKUP, dir, &body).unwrap())
}

fn read_in(offset: u64, size: u32) -> Vec<u8> {
    let read = protocol::ReadIn {
        offset,
        size,
        ..Default::default()
    };
    read.as_bytes().to_vec()
}

fn xattr_in(size: u32, name: &str) -> Vec<u8> {
    let head = protocol::GetxattrIn { size, padding: 0 };
    [head.as_bytes(), name.as_bytes(), &[0]].concat()
}

fn init_in(major: u32, minor: u32, flags: u64) -> Vec<u8> {
    let head = protocol::InitIn {
        major,
        minor,
        max_readahead: 1 << 17,
        flags: flags as u32,
    };
    let mut body = head.as_bytes().to_vec();
    body.extend_from_slice(&((flags >> 32) as u32).to_ne_bytes());
    body.resize(64, 0);
    body
}

#[test]
fn init_negotiates_the_older_version_and_common_features() {
    let handler = handler_of("lz4");
    let all: protocol::InitOut = whole(&ask(&handler, op::INIT, 0, &init_in(7, 99, !0)).unwrap());
    assert_eq!((all.major, all.minor), (7, protocol::MINOR));
    assert_ne!(u64::from(all.flags) & init::NO_OPEN_SUPPORT, 0);
    assert_eq!(
        (all.max_pages, all.time_gran, all.max_background),
        (256, 1, 64)
    );
    let few = init::ASYNC_READ | init::INIT_EXT;
    let some: protocol::InitOut = whole(&ask(&handler, op::INIT, 0, &init_in(7, 31, few)).unwrap());
    assert_eq!(
        (some.minor, u64::from(some.flags), some.flags2),
        (31, few, 0)
    );
    assert_eq!(handler.negotiation().minor(), 31);
    // A kernel with a later major version gets this server's version and sends INIT again.
    let next: protocol::InitOut = whole(&ask(&handler, op::INIT, 0, &init_in(8, 0, 0)).unwrap());
    assert_eq!(
        (next.major, next.minor, next.flags),
        (7, protocol::MINOR, 0)
    );
}

#[test]
fn kernels_that_are_too_old_are_rejected() {
    for (major, minor) in [(6, 40), (7, 22)] {
        let handler = handler_of("lz4");
        let reply = ask(&handler, op::INIT, 0, &init_in(major, minor, !0));
        assert_eq!(reply, Err(Errno::PROTO));
        assert_eq!(handler.negotiation().minor(), 0);
    }
}

#[test]
fn names_and_absent_names_are_valid_forever() {
    let handler = handler_of("lz4");
    let found = lookup(&handler, ROOT, "hi");
    assert_eq!((found.attr.size, found.attr.nlink), (13, 2));
    assert_eq!(found.attr.mode, 0o100_644);
    assert!(found.entry_valid > 1 << 60 && found.attr_valid > 1 << 60);
    assert_eq!(lookup(&handler, ROOT, "hi-too").node, found.node);
    let missing = lookup(&handler, ROOT, "nothing");
    assert_eq!(missing.node, 0);
    assert!(missing.entry_valid > 1 << 60);
    // An NFS server looks up the node itself, also of a file, and the parent.
    assert_eq!(lookup(&handler, found.node, ".").node, found.node);
    let dir = lookup(&handler, ROOT, "dir");
    assert_eq!(lookup(&handler, dir.node, "..").node, ROOT);
    let body = b"x\0";
    assert_eq!(
        ask(&handler, op::LOOKUP, found.node, body),
        Err(Errno::NOTDIR)
    );
}

#[test]
fn attributes_match_the_image_except_for_overridden_owners() {
    let image = || sample::image("zstd");
    let show = OwnerOverride {
        uid: Some(5),
        gid: Some(6),
    };
    for (show, uid, gid) in [(OwnerOverride::default(), 100_000, 70_000), (show, 5, 6)] {
        let fs = ImageFs::new(server(image()), show, Log::none()).unwrap();
        let handler = Handler::new(Arc::new(fs), 1, Log::none());
        let letters = lookup(&handler, ROOT, "letters");
        assert_eq!((letters.attr.uid, letters.attr.gid), (uid, gid));
        let attr: protocol::AttrOut =
            whole(&ask(&handler, op::GETATTR, letters.node, &[0; 16]).unwrap());
        assert_eq!(attr.attr, letters.attr);
        assert_eq!(attr.attr.mtime, 1_700_000_000);
        let null = lookup(&handler, ROOT, "null");
        assert_eq!((null.attr.mode, null.attr.rdev), (0o020_644, 0x103));
    }
}

#[test]
fn reads_are_short_only_at_the_end_of_a_file() {
    for name in ["plain", "lz4", "fragments"] {
        let handler = handler_of(name);
        let file = lookup(&handler, ROOT, "numbers");
        let (_, content) = sample::contents()[0].clone();
        let size = content.len() as u64;
        for (offset, want) in [
            (0, 4096),
            (1, 1),
            (5000, 7000),
            (size - 3, 4096),
            (size, 10),
            (size + 9, 10),
        ] {
            let got = ask(&handler, op::READ, file.node, &read_in(offset, want)).unwrap();
            let from = content.len().min(offset as usize);
            let to = content.len().min(from + want as usize);
            assert!(got == content[from..to], "{name}: {want} at {offset}");
        }
        let link = lookup(&handler, ROOT, "link");
        assert_eq!(
            ask(&handler, op::READLINK, link.node, &[]),
            Ok(b"numbers".to_vec())
        );
        assert_eq!(
            ask(&handler, op::READLINK, file.node, &[]),
            Err(Errno::INVAL)
        );
    }
}

/// Names, offsets and nodes of a listing.
fn listed(bytes: &[u8], plus: bool) -> Vec<(Vec<u8>, u64, u64)> {
    let mut out = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut node = 0;
        let mut len = 0;
        let mut dirent = rest;
        if plus {
            let (entry, after) = protocol::EntryOut::read_from_prefix(rest).unwrap();
            (node, dirent, len) = (entry.node, after, 128);
        }
        let (head, name) = protocol::Dirent::read_from_prefix(dirent).unwrap();
        let name = &name[..head.name_len as usize];
        out.push((name.to_vec(), head.off, node));
        len += (24 + name.len()).next_multiple_of(8);
        rest = &rest[len..];
    }
    out
}

#[test]
fn listings_do_not_depend_on_the_buffer_size() {
    let handler = handler_of("lz4");
    for plus in [false, true] {
        let opcode = if plus { op::READDIRPLUS } else { op::READDIR };
        let dir = lookup(&handler, ROOT, "dir").node;
        let all = listed(
            &ask(&handler, opcode, dir, &read_in(0, 1 << 20)).unwrap(),
            plus,
        );
        assert_eq!(all.len(), 2 + 131);
        assert!(all.windows(2).all(|w| w[0].0 < w[1].0), "in order");
        for room in [168, 200, 555, 4096] {
            let mut pieces = Vec::new();
            let mut from = 0;
            loop {
                let piece = listed(
                    &ask(&handler, opcode, dir, &read_in(from, room)).unwrap(),
                    plus,
                );
                let Some((_, next, _)) = piece.last() else {
                    break;
                };
                from = *next;
                pieces.extend(piece);
            }
            assert_eq!(pieces, all, "room {room}, plus {plus}");
        }
        if plus {
            for (name, _, node) in &all {
                let name = std::str::from_utf8(name).unwrap();
                let dots = matches!(name, "." | "..");
                let expected = if dots {
                    0
                } else {
                    lookup(&handler, dir, name).node
                };
                assert_eq!(*node, expected, "{name}");
            }
        }
    }
    let none = ask(&handler, op::READDIR, ROOT, &read_in(0, 20));
    assert_eq!(none, Err(Errno::INVAL), "and not the end");
    let file = lookup(&handler, ROOT, "hi").node;
    assert_eq!(
        ask(&handler, op::READDIR, file, &read_in(0, 4096)),
        Err(Errno::NOTDIR)
    );
}

#[test]
fn xattr_lengths_are_reported_before_values() {
    let handler = handler_of("prefix-packed");
    let hi = lookup(&handler, ROOT, "hi").node;
    let get = |size, name: &str| ask(&handler, op::GETXATTR, hi, &xattr_in(size, name));
    assert_eq!(get(100, "user.common.colour"), Ok(b"blue".to_vec()));
    assert_eq!(get(4, "user.common.colour"), Ok(b"blue".to_vec()));
    assert_eq!(get(3, "user.common.colour"), Err(Errno::RANGE));
    let len: protocol::GetxattrIn = whole(&get(0, "user.common.colour").unwrap());
    assert_eq!(len.size, 4);
    assert_eq!(get(100, "user.nothing"), Ok(Vec::new()));
    assert_eq!(get(100, "user.other"), Err(Errno::NODATA));
    assert_eq!(get(100, "btrfs.compression"), Err(Errno::OPNOTSUPP));
    let names = ask(&handler, op::LISTXATTR, hi, &xattr_in(4096, "")).unwrap();
    assert_eq!(names, b"user.nothing\0user.common.colour\0");
    assert_eq!(
        ask(&handler, op::LISTXATTR, hi, &xattr_in(5, "")),
        Err(Errno::RANGE)
    );
}

#[test]
fn counters_are_an_unlisted_attribute_of_the_root() {
    let handler = handler_of("lz4");
    let name = std::str::from_utf8(STATS_XATTR).unwrap();
    let _ = lookup(&handler, ROOT, "hi");
    let text = ask(&handler, op::GETXATTR, ROOT, &xattr_in(1 << 16, name)).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.lines().any(|l| l == "lookup.requests 1"), "{text}");
    let names = ask(&handler, op::LISTXATTR, ROOT, &xattr_in(4096, "")).unwrap();
    assert_eq!(names, b"");
    let hi = lookup(&handler, ROOT, "hi").node;
    let other = ask(&handler, op::GETXATTR, hi, &xattr_in(1 << 16, name));
    assert_eq!(other, Err(Errno::NODATA));
}

#[test]
fn entries_with_damaged_inodes_are_listed_but_cannot_be_looked_up() {
    let mut bytes = sample::bytes("lz4");
    let at = sample::image("lz4").resolve(b"numbers").unwrap().position() as usize;
    bytes[at..at + 32].fill(0xFF);
    let options = OpenOptions {
        verify_checksum: false,
        ..OpenOptions::default()
    };
    let image = Image::open(MemStore::new(bytes), options).unwrap();
    let fs = ImageFs::new(server(image), OwnerOverride::default(), Log::none()).unwrap();
    let handler = Handler::new(Arc::new(fs), 1, Log::none());
    let all = ask(&handler, op::READDIRPLUS, ROOT, &read_in(0, 1 << 16)).unwrap();
    for (name, _, node) in listed(&all, true) {
        let quiet = matches!(&name[..], b"." | b".." | b"numbers");
        assert_eq!(node == 0, quiet, "{}", name.escape_ascii());
    }
    let damaged = ask(&handler, op::LOOKUP, ROOT, b"numbers\0");
    assert!(
        matches!(damaged, Err(Errno::IO | Errno::OPNOTSUPP)),
        "{damaged:?}"
    );
    assert_eq!(lookup(&handler, ROOT, "hi").attr.size, 13);
}

/// Builds an image of one file of 40,000 bytes, of which only the block at 28,672 is stored. Returns None, and
/// reports it, on filesystems without holes.
fn sparse_image(scratch: &Path) -> Option<Image> {
    use std::os::unix::fs::FileExt;
    let tree = scratch.join("tree");
    std::fs::create_dir(&tree).unwrap();
    let file = std::fs::File::create(tree.join("sparse")).unwrap();
    file.write_all_at(b"data", 28_672).unwrap();
    file.set_len(40_000).unwrap();
    drop(file);
    if tuff_testkit::tree::host_tree(&tree)[1].data.as_deref() != Some(&[(28_672, 32_768)]) {
        tuff_testkit::skipped("the filesystem of the temporary directory shows no holes");
        return None;
    }
    let image = scratch.join("image");
    let options = Options {
        layout: LayoutOptions {
            sparse: SparsePolicy::Keep,
            ..Options::for_kernel(KernelVersion(6, 18)).layout
        },
        compression: CompressionOptions {
            default: None,
            ..Options::for_kernel(KernelVersion(6, 18)).compression
        },
        ..Options::for_kernel(KernelVersion(6, 18))
    };
    build_dir(&tree, &image, &options);
    Some(tuff_testkit::tree::open(&image))
}

#[test]
fn holes_and_data_are_found() {
    let scratch = tuff_testkit::Scratch::new("mount-holes");
    let Some(image) = sparse_image(scratch.path()) else {
        return;
    };
    let fs = ImageFs::new(server(image), OwnerOverride::default(), Log::none()).unwrap();
    let handler = Handler::new(Arc::new(fs), 1, Log::none());
    let sparse = lookup(&handler, ROOT, "sparse").node;
    let seek = |offset, whence| {
        let body = protocol::LseekIn {
            offset,
            whence,
            ..Default::default()
        };
        let out = ask(&handler, op::LSEEK, sparse, body.as_bytes())?;
        Ok(whole::<protocol::LseekOut>(&out).offset)
    };
    for (offset, whence, expected) in [
        (0, protocol::SEEK_HOLE, Ok(0)),
        (0, protocol::SEEK_DATA, Ok(28_672)),
        (30_000, protocol::SEEK_DATA, Ok(30_000)),
        (30_000, protocol::SEEK_HOLE, Ok(32_768)),
        (33_000, protocol::SEEK_DATA, Err(Errno::NXIO)),
        (39_999, protocol::SEEK_HOLE, Ok(39_999)),
        (40_000, protocol::SEEK_HOLE, Err(Errno::NXIO)),
        (0, 9, Err(Errno::INVAL)),
    ] {
        assert_eq!(seek(offset, whence), expected, "{whence} from {offset}");
    }
}

#[test]
fn unneeded_operations_return_enosys() {
    let handler = handler_of("lz4");
    for opcode in [
        op::OPEN,
        op::OPENDIR,
        op::FLUSH,
        op::STATX,
        op::INTERRUPT,
        16,
        39,
        9999,
    ] {
        assert_eq!(ask(&handler, opcode, ROOT, &[0; 64]), Err(Errno::NOSYS));
    }
    let mut out = vec![0; REPLY_MAX];
    for opcode in [op::FORGET, op::BATCH_FORGET] {
        let bytes = request(opcode, ROOT, &[0; 16]);
        let request = Request::new(&bytes, 0).unwrap();
        let mut worker = handler.worker(0, false);
        let reply = handler.handle(&mut worker, &request, &mut out);
        assert_eq!(reply, Reply::Nothing);
    }
}

/// Log that keeps its lines.
fn kept_log() -> (Log, Arc<Mutex<String>>) {
    let lines = Arc::new(Mutex::new(String::new()));
    let sink = lines.clone();
    let log = Log::new(move |line| sink.lock().unwrap().push_str(line));
    (log, lines)
}

/// Answers requests of all operations with random fields.
fn answer_arbitrary<S: Service>(service: &S, nodes: &[u64], lines: &Mutex<String>) {
    let mut random = Rng::new(3);
    for opcode in 0..60 {
        for _ in 0..200 {
            let node = nodes[random.below_u64(nodes.len() as u64) as usize];
            let mut body: Vec<u8> = (0..random.below_u64(70))
                .map(|_| match random.below_u64(3) {
                    0 => random.draw() as u8,
                    n => n as u8 - 1,
                })
                .collect();
            if random.below_u64(2) == 0 {
                body.splice(
                    0..0,
                    read_in(random.draw() >> random.below_u64(64), random.draw() as u32),
                );
            }
            let room = random.below_u64(5000) as usize;
            let mut out = vec![0xEE; room + 64];
            let bytes = request(opcode, node, &body);
            let request = Request::new(&bytes, random.draw()).unwrap();
            let mut worker = service.worker(0, true);
            let reply = service.handle(&mut worker, &request, &mut out[..room]);
            if let Reply::Body(parts) = reply {
                let n = parts.len();
                assert!(n <= room, "{opcode}: {n} bytes in {room}");
            }
            assert!(out[room..].iter().all(|b| *b == 0xEE));
        }
    }
    let lines = lines.lock().unwrap();
    assert!(!lines.contains("panicked"), "{lines}");
}

#[test]
fn arbitrary_requests_to_an_image_neither_panic_nor_overflow_the_reply() {
    let (log, lines) = kept_log();
    let fs = ImageFs::new(
        server(sample::image("four")),
        OwnerOverride::default(),
        log.clone(),
    )
    .unwrap();
    let handler = Handler::new(Arc::new(fs), 1, log);
    let nodes: Vec<u64> = ["hi", "dir", "link", "null", "numbers"]
        .iter()
        .map(|name| lookup(&handler, ROOT, name).node)
        .chain([0, ROOT, u64::MAX, 1 << 63])
        .collect();
    answer_arbitrary(&handler, &nodes, &lines);
}

#[test]
fn arbitrary_requests_to_a_volume_neither_panic_nor_overflow_the_reply() {
    let device = Arc::new(MemDevice::new());
    let options = FormatOptions::new([1; 16], [2; 16], 1 << 16);
    Volume::format(device.clone(), &options).unwrap();
    let volume = Volume::mount(device, MountOptions::default()).unwrap();
    let (log, lines) = kept_log();
    let server = VolumeServer::new(volume, log);
    // Numbers of inodes that earlier requests create.
    let nodes = [0, ROOT, 2, 3, 4, 5, 6, 7, 8, u64::MAX, 1 << 63];
    answer_arbitrary(&server, &nodes, &lines);
    server.unmount().unwrap();
}

/// Filesystem that panics at every look-up.
struct Broken;

impl Filesystem for Broken {
    fn lookup(&self, _: u64, _: &[u8]) -> Result<Option<LookupResult>> {
        panic!("on purpose")
    }
    fn attr(&self, _: u64) -> Result<protocol::Attr> {
        Ok(protocol::Attr::default())
    }
    fn readlink(&self, _: u64) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }
    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Self)
    }
    fn readdir(&self, _: u64, _: u64, _: &mut dyn FnMut(&Entry<'_>) -> bool) -> Result<()> {
        Ok(())
    }
    fn getxattr(&self, _: u64, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NODATA)
    }
    fn listxattr(&self, _: u64, _: bool) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn statfs(&self) -> Result<StatfsOut> {
        Ok(StatfsOut::default())
    }
    fn seek(&self, _: u64, _: u64, _: Seek) -> Result<u64> {
        Err(Errno::NXIO)
    }
}

impl Reader for Broken {
    fn read<'a>(&'a mut self, _: Node, _: u64, _: &'a mut [u8], _: bool) -> Result<Parts<'a>> {
        panic!("on purpose")
    }
}

#[test]
fn a_panic_ends_one_request_and_no_more() {
    let handler = Handler::new(Arc::new(Broken), 1, Log::none());
    assert_eq!(ask(&handler, op::LOOKUP, ROOT, b"a\0"), Err(Errno::IO));
    let read = ask(&handler, op::READ, ROOT, &read_in(0, 10));
    assert_eq!(read, Err(Errno::IO));
    assert!(ask(&handler, op::GETATTR, ROOT, &[0; 16]).is_ok());
}

#[test]
fn caches_shrink_under_memory_pressure_and_grow_again() {
    let scratch = tuff_testkit::Scratch::new("mount-relief");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let whole = tuff_testkit::content::text(8_000_000, 1);
    std::fs::write(source.join("file"), &whole).unwrap();
    let path = scratch.path().join("image");
    let (_, lz4) = tuff_testkit::variants::variants()
        .into_iter()
        .find(|(name, _)| name == "lz4 1 65536 fragments")
        .unwrap();
    tuff_testkit::variants::build_dir(&source, &path, &lz4);
    let options = ServeOptions {
        budget: 16 << 20,
        ..ServeOptions::default()
    };
    let server = Server::new(tuff_testkit::tree::open(&path), options);
    let mut session = server.session();
    let inode = server.image().resolve(b"file").unwrap();
    let mut buf = vec![0; 40_000];
    let mut read_all = || {
        // Ranges long enough that the server keeps their clusters.
        for at in (0..whole.len()).step_by(100_000).rev() {
            let n = server
                .read(&mut session, &inode, at as u64, &mut buf)
                .unwrap();
            assert!(buf[..n] == whole[at..][..n]);
        }
        server.counters().held_bytes
    };
    let before = read_all();
    assert!(before > 6 << 20, "{before}");
    let mut news = [
        Ok(true),
        Ok(true),
        Ok(true),
        Err(std::io::Error::other("gone")),
    ]
    .into_iter();
    relieve(&server, |_| news.next().unwrap());
    let after = server.counters().held_bytes;
    assert!(after <= 2 << 20, "three times half: {before}, then {after}");
    assert!(read_all() > 6 << 20);
}
