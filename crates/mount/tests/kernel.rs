//! Comparison with the kernel: its mount and the FUSE mount of one image agree on every call.

mod walk;

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_erofs::serve::{Policy, ServeOptions, Server};
use tuff_fuse::mountpoint::{self, Detach, MountOptions};
use tuff_fuse::transport::Transport;
use tuff_fuse::{Handler, Log, Session, SessionOptions};
use tuff_mount::{ImageFs, OwnerOverride};
use tuff_testkit::Scratch;
use tuff_testkit::kernel::Mounted;
use tuff_testkit::tree::nasty_tree;
use tuff_testkit::variants::mkfs;
use tuff_testkit::variants::{MKFS_OPTIONS, build_dir, variants};
use walk::{differences, parallel_readers};

/// FUSE mount served by this process until the value is dropped.
struct Ours {
    mount: Option<Session<Handler>>,
    message: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Ours {
    fn new(image: &Path, dir: &Path, options: ServeOptions, transport: Transport) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let message = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = message.clone();
        let log = Log::new(move |line| sink.lock().unwrap().push(line.to_owned()));
        let server = Server::new(tuff_testkit::tree::open(image), options);
        let fs = ImageFs::new(server, OwnerOverride::default(), log.clone()).unwrap();
        let threads = 4;
        let handler = Arc::new(Handler::new(Arc::new(fs), threads, log));
        let options = MountOptions {
            source: image.to_owned(),
            allow_other: true,
            flags: rustix::mount::MountFlags::empty(),
            has_block_device: false,
        };
        let mountpoint = mountpoint::attach(dir, &options).unwrap();
        Self {
            mount: Some(
                Session::start(
                    handler,
                    mountpoint,
                    SessionOptions {
                        threads,
                        transport,
                        ..SessionOptions::default()
                    },
                )
                .unwrap(),
            ),
            message,
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            mountpoint::detach(mount.dir(), Detach::Lazily).unwrap();
            // Hangs if a thread does not end.
            mount.wait();
        }
        let message = self.message.lock().unwrap();
        if !std::thread::panicking() {
            assert!(message.is_empty(), "{message:?}");
        }
    }
}

/// Returns true if both kinds of mounts are possible here, and reports a skipped test if not.
fn can_mount() -> bool {
    if !tuff_testkit::is_root() {
        tuff_testkit::skipped("mounting with the kernel's EROFS needs root");
        return false;
    }
    for module in ["erofs", "fuse"] {
        let _ = Command::new("modprobe").arg(module).output();
    }
    if !Path::new("/dev/fuse").exists() {
        tuff_testkit::skipped("no /dev/fuse");
        return false;
    }
    true
}

/// Returns the transports of this kernel. As root it enables io_uring, which stays enabled.
fn transports() -> Vec<Transport> {
    let switch = "/sys/module/fuse/parameters/enable_uring";
    let is_on = || std::fs::read_to_string(switch).is_ok_and(|text| text.trim() == "Y");
    if !is_on() {
        // Kernels before 6.14 have no such parameter.
        let _ = std::fs::write(switch, "Y");
    }
    if is_on() {
        return vec![Transport::Dev, Transport::Uring];
    }
    static REPORTED: std::sync::Once = std::sync::Once::new();
    REPORTED.call_once(|| {
        tuff_testkit::skipped(format_args!(
            "io_uring as a transport, without Y in {switch}"
        ));
    });
    vec![Transport::Dev]
}

/// Options of `tuff mount`.
fn pushing() -> ServeOptions {
    ServeOptions {
        push: true,
        ..ServeOptions::default()
    }
}

/// Compares both mounts of an image with every kind of access, through every transport.
fn compare(name: &str, image: &Path, scratch: &Path, options: ServeOptions) {
    compare_through(&transports(), name, image, scratch, options);
}

fn compare_through(
    transports: &[Transport],
    name: &str,
    image: &Path,
    scratch: &Path,
    options: ServeOptions,
) {
    let Some(kernel) = Mounted::new(image, &scratch.join("kernel"), "") else {
        return;
    };
    let dir = scratch.join("ours");
    for &transport in transports {
        let ours = Ours::new(image, &dir, options.clone(), transport);
        let lines = differences(kernel.path(), &dir);
        let first: Vec<_> = lines.iter().take(20).cloned().collect();
        assert!(
            lines.is_empty(),
            "{name}, {transport:?}: {} differences\n{}",
            lines.len(),
            first.join("\n")
        );
        parallel_readers(kernel.path(), &dir, 8);
        drop(ours);
    }
}

fn source(scratch: &Scratch) -> PathBuf {
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    source
}

#[test]
fn images_of_tuff_look_like_the_kernels_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-ours");
    let source = source(&scratch);
    tuff_testkit::tree::longest_name(&source);
    let transports = transports();
    // One transport for each variant. Each compression and each of the six layouts gets every transport.
    for (i, (name, options)) in variants().into_iter().enumerate() {
        let image = scratch.path().join("image");
        build_dir(&source, &image, &options);
        let one = &transports[(i + i / 6) % transports.len()..][..1];
        let options = ServeOptions::default();
        compare_through(one, &name, &image, scratch.path(), options);
    }
}

#[test]
fn images_of_mkfs_erofs_look_like_the_kernels_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-mkfs");
    let source = source(&scratch);
    for options in MKFS_OPTIONS {
        let image = scratch.path().join("image");
        let _ = std::fs::remove_file(&image);
        if mkfs(&image, &source, options).is_some() {
            let name = options.join(" ");
            compare(&name, &image, scratch.path(), pushing());
        }
    }
}

#[test]
fn small_caches_and_all_strategies_give_equal_results() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-strategies");
    let source = source(&scratch);
    let few = [
        "lz4 1 65536 fragments",
        "lzma 6 1048576 plain",
        "zstd 15 65536 tails",
        "four algorithms",
        "unaligned lz4hc 9 65536, blocks of 4096",
    ];
    let few: Vec<_> = variants()
        .into_iter()
        .filter(|(name, _)| few.contains(&&**name))
        .collect();
    assert_eq!(few.len(), 5, "the names above are those of variants");
    for (name, options) in few {
        let image = scratch.path().join("image");
        build_dir(&source, &image, &options);
        for policy in Policy::ALL {
            let mut options = pushing();
            (options.budget, options.policy) = (4 << 20, policy);
            let name = format!("{name}, 4 MiB, {policy}");
            compare(&name, &image, scratch.path(), options);
        }
    }
}

/// Builds an image with one `file` of `len` bytes of text in clusters of 64 KiB. Returns its path and the text.
fn image_of_text(scratch: &Scratch, len: usize) -> (PathBuf, Vec<u8>) {
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let whole = tuff_testkit::content::text(len, 1);
    std::fs::write(source.join("file"), &whole).unwrap();
    let image = scratch.path().join("image");
    let (_, lz4) = variants()
        .into_iter()
        .find(|(name, _)| name == "lz4 1 65536 fragments")
        .unwrap();
    build_dir(&source, &image, &lz4);
    (image, whole)
}

/// Reads random pages until clusters have certainly been read again.
#[test]
fn clusters_read_again_are_pushed_into_the_page_cache() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-push");
    let (image, whole) = image_of_text(&scratch, 8_000_000);
    let dir = scratch.path().join("ours");
    for transport in transports() {
        let ours = Ours::new(&image, &dir, pushing(), transport);
        let handler = ours.mount.as_ref().unwrap().service().clone();
        let file = std::fs::File::open(dir.join("file")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut random = tuff_testkit::Rng::new(7);
        let mut page = [0; 4096];
        for _ in 0..3000 {
            let at = random.below_u64(whole.len() as u64 / 4096) * 4096;
            file.read_exact_at(&mut page, at).unwrap();
            assert!(page == whole[at as usize..][..4096], "{transport:?}: {at}");
        }
        let again = std::fs::read(dir.join("file")).unwrap();
        assert!(again == whole, "{transport:?}");
        drop(file);
        // All threads end with the mount.
        drop(ours);
        let counters = handler.filesystem().counters();
        let pushed = counters.iter().find(|(name, _)| *name == "pushed_bytes");
        assert!(pushed.unwrap().1 > 0, "{transport:?}: {counters:?}");
    }
}

/// Reads the first page of each 128 KiB. A separate thread decodes and stores every other one.
#[test]
fn next_steps_of_a_strided_reader_are_pushed_into_the_page_cache() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-steps");
    let (image, whole) = image_of_text(&scratch, 16_000_000);
    let dir = scratch.path().join("ours");
    for transport in transports() {
        let ours = Ours::new(&image, &dir, pushing(), transport);
        let handler = ours.mount.as_ref().unwrap().service().clone();
        let file = std::fs::File::open(dir.join("file")).unwrap();
        let mut page = [0; 4096];
        // In the second pass the stored pages are cached, or requested.
        for at in (0..whole.len())
            .step_by(128 << 10)
            .chain((0..whole.len()).step_by(4096))
        {
            let n = file.read_at(&mut page, at as u64).unwrap();
            assert_eq!(n, page.len().min(whole.len() - at));
            assert!(page[..n] == whole[at..][..n], "{transport:?}: {at}");
        }
        drop(file);
        // All threads end with the mount.
        drop(ours);
        let counters = handler.filesystem().counters();
        let pushed = counters.iter().find(|(name, _)| *name == "pushed_bytes");
        assert!(pushed.unwrap().1 > 0, "{transport:?}: {counters:?}");
    }
}

/// Seen: a server that was killed during its start never ended, and processes that accessed the mount hung.
/// Cost: a process that cannot be killed until the connection is aborted by hand.
/// Cause: at its start the server sent a request to its own mount. Only its own end would have closed the
/// connection.
/// Cure: it gets the device number from the kernel alone.
#[test]
fn a_server_sends_no_request_to_its_own_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-asks");
    let (image, whole) = image_of_text(&scratch, 10_000);
    let dir = scratch.path().join("ours");
    for transport in transports() {
        let ours = Ours::new(&image, &dir, pushing(), transport);
        let handler = ours.mount.as_ref().unwrap().service().clone();
        let sums = handler.counters().sums();
        let requested: Vec<_> = sums.iter().filter(|sum| sum.requests > 0).collect();
        assert!(
            matches!(&requested[..], [only] if only.name == "init"),
            "{transport:?}: {requested:?}"
        );
        assert!(std::fs::read(dir.join("file")).unwrap() == whole);
    }
}

/// The loader maps programs and libraries; no other test does.
#[test]
fn programs_run_from_a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-programs");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    std::fs::copy(shell, source.join("sh")).unwrap();
    std::fs::set_permissions(source.join("sh"), PermissionsExt::from_mode(0o755)).unwrap();
    for (name, options) in variants() {
        if !name.starts_with("zstd") && !name.starts_with("lz4 1 4096") && name != "stored" {
            continue;
        }
        let image = scratch.path().join("image");
        build_dir(&source, &image, &options);
        let dir = scratch.path().join("ours");
        let ours = Ours::new(&image, &dir, ServeOptions::default(), Transport::Auto);
        let out = Command::new(dir.join("sh"))
            .args(["-c", "echo $((6 * 7))"])
            .output()
            .unwrap();
        assert_eq!(out.stdout, b"42\n", "{name}");
        drop(ours);
    }
}
