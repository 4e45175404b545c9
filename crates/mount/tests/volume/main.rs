//! Mounted volumes on a failing host, and with limits.

mod gate;
mod seek;

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};
use tuff_fuse::mountpoint::{self, Detach};
use tuff_fuse::transport::Transport;
use tuff_fuse::{Log, Session, SessionOptions};
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{
    BlockAddr, BlockDevice, CheckOptions, DiscardMode, FormatOptions, Limit, MountOptions, Subject,
    Volume, check,
};
use tuff_mount::volume::{DiscardPolicy, SYNC_EVERY, VolumeServer};

/// Host device that fails on demand.
#[derive(Default)]
struct Host {
    inner: MemDevice,
    fail_reads_at: Mutex<Range<u64>>,
    fail_writes: AtomicBool,
    fail_flushes: AtomicBool,
    flushes: AtomicU64,
    writes: AtomicU64,
    /// Number of waiting flushes, and true if flushes have to wait.
    gate: Mutex<(u64, bool)>,
    opened: Condvar,
}

fn broken() -> io::Error {
    io::Error::other("put in on purpose")
}

impl BlockDevice for Host {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        let bad = self.fail_reads_at.lock().unwrap().clone();
        let end = addr.0 + (buf.len() / 4096) as u64;
        if addr.0 < bad.end && bad.start < end {
            return Err(broken());
        }
        self.inner.read(addr, buf)
    }
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        if self.fail_writes.load(SeqCst) {
            return Err(broken());
        }
        self.writes.fetch_add(1, SeqCst);
        self.inner.write(addr, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, SeqCst);
        let mut gate = self.gate.lock().unwrap();
        gate.0 += 1;
        while gate.1 {
            gate = self.opened.wait(gate).unwrap();
        }
        gate.0 -= 1;
        drop(gate);
        if self.fail_flushes.load(SeqCst) {
            return Err(broken());
        }
        self.inner.flush()
    }
    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.inner.discard(blocks)
    }
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.inner.allocated(blocks)
    }
    fn knows_allocated(&self) -> bool {
        true
    }
    fn free_blocks(&self) -> io::Result<Option<u64>> {
        self.inner.free_blocks()
    }
}

/// Volume mounted by this process until the value is dropped.
struct Ours {
    dir: PathBuf,
    host: Arc<Host>,
    mount: Option<Session<VolumeServer>>,
    message: Arc<Mutex<Vec<String>>>,
    transport: Transport,
}

impl Ours {
    /// Returns None where a mount is not possible.
    fn new(name: &str) -> Option<Self> {
        Self::through(name, Transport::Auto)
    }

    fn through(name: &str, transport: Transport) -> Option<Self> {
        Self::of_blocks(name, transport, 1 << 18)
    }

    /// A volume of that many blocks.
    fn of_blocks(name: &str, transport: Transport, blocks: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            tuff_testkit::skipped("mounting needs root and /dev/fuse");
            return None;
        }
        let dir = tuff_testkit::unused_path(&format!("volume-{name}"));
        fs::create_dir_all(&dir).unwrap();
        let host = Arc::new(Host::default());
        let format = FormatOptions::new([1; 16], [2; 16], blocks);
        Volume::format(host.clone(), &format).unwrap();
        let mut ours = Self {
            dir,
            host,
            mount: None,
            message: Arc::default(),
            transport,
        };
        ours.mount();
        Some(ours)
    }

    fn mount(&mut self) {
        self.mount_with(SYNC_EVERY, DiscardPolicy::Eager);
    }

    fn mount_with(&mut self, every: Duration, discards: DiscardPolicy) {
        let options = MountOptions {
            write_behind_pages: 1024,
            discard: match discards {
                DiscardPolicy::Eager => DiscardMode::Eager,
                _ => DiscardMode::Deferred,
            },
            ..MountOptions::default()
        };
        let volume = Volume::mount(self.host.clone(), options).unwrap();
        let sink = self.message.clone();
        let log = Log::new(move |line| sink.lock().unwrap().push(line.to_owned()));
        let options = mountpoint::MountOptions {
            source: self.dir.clone(),
            allow_other: true,
            flags: rustix::mount::MountFlags::empty(),
            ..mountpoint::MountOptions::default()
        };
        let mountpoint = mountpoint::attach_writable(&self.dir, &options).unwrap();
        let server = VolumeServer::new(volume, log)
            .every(every)
            .discarding(discards);
        self.mount = Some(
            Session::start(
                Arc::new(server),
                mountpoint,
                SessionOptions {
                    threads: 2,
                    transport: self.transport,
                    ..SessionOptions::default()
                },
            )
            .unwrap(),
        );
    }

    /// Unmounts. Fails if changes were lost.
    fn unmount(&mut self) -> tuff_iplfs::Result<()> {
        mountpoint::detach(&self.dir, Detach::Lazily).unwrap();
        // Hangs if a thread does not end.
        self.mount.take().unwrap().wait().unmount()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates a file and makes it durable.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<File> {
        let mut file = File::create(self.path(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(file)
    }

    /// Reads the content of a file on the device, not in the page cache.
    fn stored(&self, name: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::DIRECT;
        let mut file = File::from(rustix::fs::open(self.path(name), flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn is_sound(&self) {
        let device: Arc<dyn BlockDevice> = self.host.clone();
        let options = CheckOptions {
            data: true,
            fallback: false,
        };
        let report = check(&device, options).unwrap();
        assert_eq!(report.findings, []);
        assert!(report.clean);
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if self.mount.is_some() {
            let _ = self.unmount();
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn a_full_host_keeps_data_and_permits_deletion() {
    let Some(mut ours) = Ours::new("full") else {
        return;
    };
    ours.put("kept", &[3; 1 << 20]).unwrap();
    let held = ours.host.inner.blocks().len() as u64;
    ours.host.inner.set_capacity(Some(held + 1500));
    let mut file = ours.put("more", &[4; 1 << 20]).unwrap();
    let mut whole = 1;
    let full = loop {
        match file.write_all(&[4; 1 << 20]).and_then(|()| file.sync_all()) {
            Ok(()) => whole += 1,
            Err(e) => break e,
        }
        assert!(whole < 20, "a full host was not noticed");
    };
    assert_eq!(full.raw_os_error(), Some(28), "{full}");
    drop(file);
    // Durable files are present, and so is the one that did not fit.
    assert!(ours.stored("kept").unwrap() == vec![3; 1 << 20]);
    assert!(
        ours.stored("more").unwrap()[..whole << 20]
            .iter()
            .all(|b| *b == 4)
    );
    fs::remove_file(ours.path("more")).unwrap();
    File::open(&ours.dir).unwrap().sync_all().unwrap();
    let again = ours.put("again", &[5; 1 << 20]);
    again.expect("what was deleted is room");
    ours.unmount().unwrap();
    ours.host.inner.set_capacity(None);
    ours.is_sound();
    ours.mount();
    assert!(ours.stored("kept").unwrap() == vec![3; 1 << 20]);
    assert!(ours.stored("again").unwrap() == vec![5; 1 << 20]);
    assert!(!ours.path("more").exists());
}

#[test]
fn a_failed_write_is_reported_once_and_later_writes_succeed() {
    let Some(mut ours) = Ours::new("writes") else {
        return;
    };
    ours.put("kept", &[3; 100_000]).unwrap();
    fs::write(ours.path("gone"), [1; 10_000]).unwrap();
    ours.host.fail_writes.store(true, SeqCst);
    let error = ours.put("new", &[4; 50_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert!(ours.stored("kept").unwrap() == vec![3; 100_000]);
    fs::remove_file(ours.path("gone")).unwrap();
    ours.host.fail_writes.store(false, SeqCst);
    ours.put("new", &[5; 50_000]).unwrap();
    ours.unmount().unwrap();
    ours.is_sound();
    ours.mount();
    assert!(ours.stored("new").unwrap() == vec![5; 50_000]);
    assert!(!ours.path("gone").exists());
}

#[test]
fn a_failed_flush_ends_changes_and_keeps_durable_data() {
    let Some(mut ours) = Ours::new("flush") else {
        return;
    };
    ours.put("kept", &[3; 100_000]).unwrap();
    ours.host.fail_flushes.store(true, SeqCst);
    let error = ours.put("new", &[4; 50_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    // A host reports a loss once. A later successful flush proves nothing.
    ours.host.fail_flushes.store(false, SeqCst);
    assert!(ours.put("later", b"x").is_err());
    assert!(ours.stored("kept").unwrap() == vec![3; 100_000]);
    let message = ours.message.lock().unwrap().clone();
    assert!(message[0].contains("a flush failed"), "{message:?}");
    assert!(ours.unmount().is_err());
    ours.mount();
    assert!(ours.stored("kept").unwrap() == vec![3; 100_000]);
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn an_unreadable_block_affects_only_its_file() {
    let Some(mut ours) = Ours::new("reads") else {
        return;
    };
    let mut bytes = vec![0; 64 * 4096];
    for (i, block) in bytes.chunks_exact_mut(4096).enumerate() {
        block.fill(i as u8 + 1);
    }
    // Small enough for an fsync's group. After a checkpoint only the file needs the block.
    drop(ours.put("file", &bytes).unwrap());
    ours.put("other", &[9; 10_000]).unwrap();
    ours.unmount().unwrap();
    let held = ours.host.inner.blocks();
    let bad = held
        .iter()
        .find(|(_, b)| b.iter().all(|b| *b == 8))
        .unwrap();
    *ours.host.fail_reads_at.lock().unwrap() = *bad.0..*bad.0 + 1;
    ours.mount();
    let flags = OFlags::RDONLY | OFlags::DIRECT;
    let file = rustix::fs::open(ours.path("file"), flags, Mode::empty()).unwrap();
    let file = File::from(file);
    let mut block = vec![0; 4096];
    for n in 0..64 {
        match file.read_exact_at(&mut block, n * 4096) {
            Ok(()) => assert!(n != 7 && block == bytes[n as usize * 4096..][..4096]),
            Err(e) => assert_eq!((n, e.raw_os_error()), (7, Some(5))),
        }
    }
    drop(file);
    assert!(ours.stored("other").unwrap() == vec![9; 10_000]);
    fs::remove_file(ours.path("file")).unwrap();
    ours.put("new", &[1; 10_000]).unwrap();
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn fsyncs_during_a_flush_share_the_next_one_and_block_no_thread() {
    for transport in [Transport::Auto, Transport::Dev] {
        fsyncs_share_flushes(transport);
    }
}

fn fsyncs_share_flushes(transport: Transport) {
    let Some(mut ours) = Ours::through("group", transport) else {
        return;
    };
    let files = 12;
    for n in 0..files {
        ours.put(&n.to_string(), &[0; 4096]).unwrap();
    }
    File::open(&ours.dir).unwrap().sync_all().unwrap();
    let host = ours.host.clone();
    let change = |n: u64| {
        let file = File::options().write(true).open(ours.path(&n.to_string()));
        let file = file.unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        file.sync_data().unwrap();
    };
    host.gate.lock().unwrap().1 = true;
    let flushes = host.flushes.load(SeqCst);
    let alone = std::thread::scope(|scope| {
        scope.spawn(|| change(0));
        while host.gate.lock().unwrap().0 == 0 {
            std::thread::yield_now();
        }
        let writes = host.writes.load(SeqCst);
        for n in 1..files {
            let change = &change;
            scope.spawn(move || change(n));
        }
        // Two threads serve all: one flushes, and the other accepts requests without blocking. A second waiting
        // flush is the mount's own checkpoint, which blocks writers.
        let alone = loop {
            if host.writes.load(SeqCst) - writes >= files - 1 {
                break true;
            }
            if host.gate.lock().unwrap().0 > 1 {
                break false;
            }
            std::thread::yield_now();
        };
        host.gate.lock().unwrap().1 = false;
        host.opened.notify_all();
        alone
    });
    // The last request may have written before the flushes continue, and flush later. A checkpoint takes up to three
    // flushes.
    let flushes = host.flushes.load(SeqCst) - flushes;
    assert!(!alone || (2..=6).contains(&flushes), "{flushes} flushes");
    ours.unmount().unwrap();
    ours.is_sound();
    ours.mount();
    for n in 0..files {
        assert!(ours.stored(&n.to_string()).unwrap() == vec![7; 4096]);
    }
}

#[test]
fn limits_apply_to_the_mount_and_can_be_changed_there() {
    let Some(mut ours) = Ours::new("quota") else {
        return;
    };
    let name = "trusted.tuff.quota.user.1234";
    let set = |value: &str| {
        rustix::fs::setxattr(
            &ours.dir,
            name,
            value.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
    };
    assert_eq!(set("nonsense"), Err(rustix::io::Errno::INVAL));
    set("1048576 -").unwrap();
    let file = ours.put("theirs", b"").unwrap();
    chown(ours.path("theirs"), Some(1234), None).unwrap();
    file.write_all_at(&[7; 512 << 10], 0).unwrap();
    file.sync_all().unwrap();
    let error = file
        .write_all_at(&[7; 1 << 20], 512 << 10)
        .and_then(|()| file.sync_all());
    assert_eq!(error.unwrap_err().raw_os_error(), Some(122));
    // Other projects have no limit, and this limit is raised.
    ours.put("ours", &[8; 4 << 20]).unwrap();
    set("4194304 -").unwrap();
    file.write_all_at(&[7; 1 << 20], 512 << 10).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ours.unmount().unwrap();
    ours.is_sound();
    let volume = Volume::mount(ours.host.clone(), MountOptions::default()).unwrap();
    let [(Subject::User(1234), limit, usage)] = volume.quotas()[..] else {
        panic!("{:?}", volume.quotas());
    };
    let want = Limit {
        blocks: Some(1024),
        inodes: None,
    };
    assert_eq!(limit, want);
    // 384 blocks, a direct node after the 286 of the inode, the inode.
    assert_eq!((usage.blocks, usage.inodes), (386, 1));
    volume.unmount().unwrap();
}

#[test]
fn root_keeps_set_user_id_on_truncation_and_xattrs_need_a_namespace() {
    // Seen: `cp` by root over a file cleared its set-user-id, attributes of any namespace were stored, and removing
    // a missing access list failed. Other Linux filesystems do none of this.
    use rustix::fs::{XattrFlags, removexattr, setxattr};
    use rustix::io::Errno;
    use std::os::unix::fs::PermissionsExt;
    let Some(mut ours) = Ours::new("habits") else {
        return;
    };
    ours.put("f", &[1; 100]).unwrap();
    let path = ours.path("f");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    assert_eq!(mode(), 0o6755);
    drop(File::create(&path).unwrap());
    assert_eq!(mode(), 0o6755);
    chown(&path, Some(5), None).unwrap();
    assert_eq!(mode(), 0o755);

    let set = |name: &str| setxattr(&path, name, b"x", XattrFlags::empty());
    for good in ["user.a", "trusted.a", "security.a"] {
        assert_eq!(set(good), Ok(()), "{good}");
    }
    for unknown in ["user", "other.a", "system.a"] {
        assert_eq!(set(unknown), Err(Errno::OPNOTSUPP), "{unknown}");
    }
    assert_eq!(set("user."), Err(Errno::INVAL));
    for list in ["system.posix_acl_access", "system.posix_acl_default"] {
        assert_eq!(removexattr(&ours.dir, list), Ok(()), "{list}");
    }
    assert_eq!(removexattr(&path, "user.none"), Err(Errno::NODATA));
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn new_files_inherit_the_project_and_its_limit() {
    let Some(mut ours) = Ours::new("project") else {
        return;
    };
    let run = |program: &str, args: &[&str], name: &str| {
        let mut command = std::process::Command::new(program);
        match command.args(args).arg(ours.path(name)).output() {
            Ok(out) => Some(out),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => panic!("{program}: {e}"),
        }
    };
    fs::create_dir(ours.path("dir")).unwrap();
    let Some(out) = run("chattr", &["-p", "7"], "dir") else {
        tuff_testkit::skipped("no chattr");
        return;
    };
    assert!(out.status.success(), "{out:?}");
    let name = "trusted.tuff.quota.project.7";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&ours.dir, name, b"1048576 3", flags).unwrap();
    ours.put("dir/a", &[7; 512 << 10]).unwrap();
    ours.put("elsewhere", &[8; 4 << 20]).unwrap();
    let file = File::options()
        .write(true)
        .open(ours.path("dir/a"))
        .unwrap();
    let error = file
        .write_all_at(&[7; 1 << 20], 512 << 10)
        .and_then(|()| file.sync_all());
    assert_eq!(error.unwrap_err().raw_os_error(), Some(122));
    drop(file);
    ours.put("dir/b", b"").unwrap();
    let error = ours.put("dir/c", b"").map(drop).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(122));
    let _ = ours.unmount();
    ours.is_sound();
}

#[test]
fn operations_continue_during_the_flush_of_a_checkpoint() {
    for transport in [Transport::Auto, Transport::Dev] {
        changes_beside_a_checkpoint(transport);
    }
}

fn changes_beside_a_checkpoint(transport: Transport) {
    let Some(mut ours) = Ours::through("beside", transport) else {
        return;
    };
    ours.unmount().unwrap();
    ours.mount_with(Duration::from_millis(20), DiscardPolicy::Eager);
    ours.put("kept", &[3; 100_000]).unwrap();
    let host = ours.host.clone();
    host.gate.lock().unwrap().1 = true;
    fs::create_dir(ours.path("before")).unwrap();
    // Flush of the keeper thread: no other request needs one.
    wait_until("a checkpoint flushes", || host.gate.lock().unwrap().0 > 0);
    let (done, finished) = mpsc::channel();
    let dir = ours.dir.clone();
    let changes = std::thread::spawn(move || {
        for n in 0..100 {
            fs::create_dir(dir.join(format!("d{n}"))).unwrap();
            fs::write(dir.join(format!("d{n}/f")), [n; 5000]).unwrap();
            fs::rename(dir.join(format!("d{n}/f")), dir.join(format!("f{n}"))).unwrap();
            fs::remove_dir(dir.join(format!("d{n}"))).unwrap();
        }
        done.send(()).unwrap();
    });
    let waited = finished.recv_timeout(Duration::from_secs(60));
    assert_eq!(host.gate.lock().unwrap().0, 1, "the flush still waits");
    let file = File::open(ours.path("f50")).unwrap();
    let synced = std::thread::spawn(move || file.sync_all());
    host.gate.lock().unwrap().1 = false;
    host.opened.notify_all();
    waited.expect("changes do not wait for it");
    changes.join().unwrap();
    synced.join().unwrap().unwrap();
    for n in 0..100 {
        assert!(ours.stored(&format!("f{n}")).unwrap() == vec![n; 5000]);
    }
    ours.unmount().unwrap();
    ours.is_sound();
    ours.mount();
    assert!(ours.path("before").is_dir() && ours.stored("f99").unwrap() == vec![99; 5000]);
}

#[test]
fn deleted_blocks_are_discarded_without_further_operations() {
    for policy in [
        DiscardPolicy::Eager,
        DiscardPolicy::Polite,
        DiscardPolicy::Dispatch,
    ] {
        deleted_blocks_return(policy);
    }
}

fn deleted_blocks_return(policy: DiscardPolicy) {
    let Some(mut ours) = Ours::new("idle") else {
        return;
    };
    ours.unmount().unwrap();
    let empty = ours.host.inner.blocks().len();
    // A busy mount is never idle for a round.
    let every = match policy {
        DiscardPolicy::Polite => Duration::from_millis(200),
        _ => Duration::from_millis(20),
    };
    ours.mount_with(every, policy);
    ours.put("large", &[3; 4 << 20]).unwrap();
    assert!(ours.host.inner.blocks().len() > empty + 1024);
    fs::remove_file(ours.path("large")).unwrap();
    let host = ours.host.clone();
    wait_until("the blocks are given back", || {
        host.inner.blocks().len() < empty + 64
    });
    // No operation follows.
    wait_until("the keeper is content", || {
        let flushes = host.flushes.load(SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        flushes == host.flushes.load(SeqCst)
    });
    ours.unmount().unwrap();
    ours.is_sound();
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the mode of a file after `script`, and true if it still has capabilities.
fn privileges_left(dir: &Path, mode: u32, others: bool, script: &str) -> (u32, bool) {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use std::os::unix::fs::PermissionsExt;
    // One permitted and effective capability, in the format of setcap(8).
    const CAPABILITY: [u8; 20] = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let path = dir.join("program");
    fs::write(&path, [7; 8192]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let name = "security.capability";
    setxattr(&path, name, &CAPABILITY, XattrFlags::empty()).unwrap();
    let mut command = match others {
        true => {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
            command
        }
        false => std::process::Command::new("sh"),
    };
    let done = command.arg("-ec").arg(script).current_dir(dir).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{script}: {done:?}");
    let left = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let mut value = [0; 64];
    let has = getxattr(&path, name, &mut value[..]).is_ok();
    fs::remove_file(&path).unwrap();
    (left, has)
}

#[test]
fn writes_clear_privileges_as_on_other_filesystems() {
    // Seen: the kernel requested a file's capabilities before each write, 30 us for 4 KiB that go to the page cache
    // in 2. It does not if the server clears privileges itself.
    use std::os::unix::fs::PermissionsExt;
    let Some(mut ours) = Ours::new("privileges") else {
        return;
    };
    let elsewhere = std::env::temp_dir().join(format!("tuff-privileges-{}", std::process::id()));
    fs::create_dir_all(&elsewhere).unwrap();
    for dir in [&ours.dir, &elsewhere] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let scripts = [
        "printf x >> program",
        "printf x >> program; printf y >> program",
        "dd if=/dev/zero of=program bs=4096 count=1 conv=notrunc status=none",
        "dd if=/dev/zero of=program bs=4096 count=1 conv=notrunc,fsync status=none",
        "dd if=/dev/zero of=program bs=4096 count=1 conv=notrunc oflag=direct status=none",
        "truncate --size=10 program",
        "truncate --size=8192 program",
        ": > program",
        "fallocate --offset=8000 --length=4000 program",
        "fallocate --punch-hole --offset=0 --length=4096 program",
        ":",
        "cat program > /dev/null",
    ];
    for others in [true, false] {
        for script in scripts {
            for mode in [0o6777, 0o6767, 0o4777, 0o2777, 0o777] {
                let [ours, theirs] =
                    [&ours.dir, &elsewhere].map(|dir| privileges_left(dir, mode, others, script));
                assert_eq!(ours, theirs, "{script}, mode {mode:o}, by others: {others}");
            }
        }
    }
    // Change to the present owner, and change without an owner.
    for script in [
        "chown 0:0 program",
        "chown 65534 program",
        "chown '' program",
    ] {
        for mode in [0o6777, 0o6767] {
            let [ours, theirs] =
                [&ours.dir, &elsewhere].map(|dir| privileges_left(dir, mode, false, script));
            assert_eq!(ours, theirs, "{script}, mode {mode:o}");
        }
    }
    ours.unmount().unwrap();
    ours.is_sound();
    fs::remove_dir_all(&elsewhere).unwrap();
}

#[test]
fn removed_privileges_are_gone_when_the_call_returns() {
    let Some(mut ours) = Ours::new("privileges-now") else {
        return;
    };
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&ours.dir, fs::Permissions::from_mode(0o777)).unwrap();
    // One process writes and asks at once, so that attributes in the kernel have no time to expire.
    let script = "import os, sys, mmap
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
f = os.open('program', os.O_RDWR | (os.O_DIRECT if sys.argv[1] == 'write' else 0))
assert os.stat('program').st_mode & 0o6000 == 0o6000
if sys.argv[1] == 'write':
    page = mmap.mmap(-1, 4096)
    os.pwrite(f, page, 0)
else:
    os.posix_fallocate(f, 100000, 4096)
sys.exit((os.stat('program').st_mode & 0o6000) >> 9)
";
    for call in ["write", "fallocate"] {
        let path = ours.path("program");
        fs::write(&path, [7; 8192]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let mut python = std::process::Command::new("python3");
        python.args(["-c", script, call]).current_dir(&ours.dir);
        let Ok(run) = python.output() else {
            return tuff_testkit::skipped("a change of user needs python3");
        };
        assert_eq!(run.status.code(), Some(0), "{call}: {run:?}");
    }
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn write_back_clears_no_capability() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    let Some(mut ours) = Ours::new("later") else {
        return;
    };
    let path = ours.path("program");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[7; 20000], 0).unwrap();
    let value = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let name = "security.capability";
    setxattr(&path, name, &value, XattrFlags::empty()).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut found = [0; 64];
    assert_eq!(getxattr(&path, name, &mut found[..]), Ok(20));
    ours.unmount().unwrap();
    ours.is_sound();
}
