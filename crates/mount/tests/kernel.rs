//! The kernel is the judge: of one image its own mount and ours show the same, call by call.

#[path = "../../image/tests/common/mod.rs"]
mod common;
mod walk;

use common::variants::{MKFS_OPTIONS, build_dir, variants};
use common::{Mounted, Scratch, mkfs, nasty_tree};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tuff_image::serve::{ServeOptions, Server, Strategy};
use tuff_mount::mountpoint::{self, Detach, MountOptions};
use tuff_mount::{Handler, ImageFs, Log, Mount, Show};
use walk::{differences, parallel_readers};

/// Our mount, served by this process, until the value goes.
struct Ours {
    mount: Option<Mount>,
    said: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Ours {
    fn new(image: &Path, dir: &Path, options: ServeOptions) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let said = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = said.clone();
        let log = Log::new(move |line| sink.lock().unwrap().push(line.to_owned()));
        let server = Server::new(common::open(image), options);
        let fs = ImageFs::new(server, Show::default(), log.clone()).unwrap();
        let threads = 4;
        let handler = Arc::new(Handler::new(Arc::new(fs), threads, log));
        let options = MountOptions {
            source: image.to_owned(),
            allow_other: true,
            flags: rustix::mount::MountFlags::empty(),
        };
        let mountpoint = mountpoint::attach(dir, &options).unwrap();
        Self {
            mount: Some(Mount::start(handler, mountpoint, threads).unwrap()),
            said,
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            mountpoint::detach(mount.dir(), Detach::Lazily).unwrap();
            // Hangs if a thread does.
            mount.wait();
        }
        let said = self.said.lock().unwrap();
        if !std::thread::panicking() {
            assert!(said.is_empty(), "{said:?}");
        }
    }
}

/// True if both kinds of mounts can be made here; says so aloud if not.
fn can_mount() -> bool {
    if !common::is_root() {
        eprintln!("SKIPPED: mounting with the kernel's EROFS needs root");
        return false;
    }
    for module in ["erofs", "fuse"] {
        let _ = Command::new("modprobe").arg(module).output();
    }
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse");
        return false;
    }
    true
}

/// The image's two mounts show the same, under every kind of access.
fn compare(name: &str, image: &Path, scratch: &Path, options: ServeOptions) {
    let Some(kernel) = Mounted::new(image, &scratch.join("kernel"), "") else {
        return;
    };
    let dir = scratch.join("ours");
    let ours = Ours::new(image, &dir, options);
    let lines = differences(kernel.path(), &dir);
    assert!(
        lines.is_empty(),
        "{name}: {} differences\n{}",
        lines.len(),
        lines
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
    parallel_readers(kernel.path(), &dir, 8);
    drop(ours);
}

fn source(scratch: &Scratch) -> std::path::PathBuf {
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    source
}

#[test]
fn images_of_our_writer_look_the_same() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("mount-ours");
    let source = source(&scratch);
    common::longest_name(&source);
    for (name, options) in variants() {
        let image = scratch.path().join("image");
        build_dir(&source, &image, &options);
        compare(&name, &image, scratch.path(), ServeOptions::default());
    }
}

#[test]
fn images_of_mkfs_erofs_look_the_same() {
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
            compare(&name, &image, scratch.path(), ServeOptions::default());
        }
    }
}

#[test]
fn a_small_cache_and_every_strategy_give_the_same() {
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
    ];
    let few: Vec<_> = variants()
        .into_iter()
        .filter(|(name, _)| few.contains(&&**name))
        .collect();
    assert_eq!(few.len(), 4, "the names above are those of variants");
    for (name, options) in few {
        let image = scratch.path().join("image");
        build_dir(&source, &image, &options);
        for strategy in [None].into_iter().chain(Strategy::ALL.map(Some)) {
            let mut options = ServeOptions::default();
            (options.budget, options.strategy) = (4 << 20, strategy);
            let name = format!("{name}, 4 MiB, {strategy:?}");
            compare(&name, &image, scratch.path(), options);
        }
    }
}

/// The loader maps programs and libraries; nothing else here does.
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
        let ours = Ours::new(&image, &dir, ServeOptions::default());
        let out = Command::new(dir.join("sh"))
            .args(["-c", "echo $((6 * 7))"])
            .output()
            .unwrap();
        assert_eq!(out.stdout, b"42\n", "{name}");
        drop(ours);
    }
}
