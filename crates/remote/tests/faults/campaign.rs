//! Campaign of random faults: a read returns right bytes, or an error that names the image and the range.
//!
//! `TUFF_FAULT_ROUNDS` is the number of rounds, `TUFF_FAULT_SEED` the seed of the first one. A round that fails prints its
//! seed.

use crate::common::{CHUNK, Dir, WithTree, child, open, options};
use crate::plan::{Control, Event, Plan, Version, serve};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tuff_remote::{Options, RemoteStore};
use tuff_store::ReadAt;
use tuff_testkit::Rng;
use tuff_testkit::http::Server;

/// Rounds unless the environment states another number.
const ROUNDS: u64 = 60;

/// Number of rounds at the same time.
const ROUNDS_AT_ONCE: usize = 4;

/// Number of threads that read at once.
const READERS: u64 = 8;

/// Number of reads of each.
const READS: usize = 12;

/// Time after which a round is taken for a hang.
const HANG: Duration = Duration::from_secs(120);

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

#[test]
fn random_faults_give_right_bytes_or_a_clear_error() {
    let versions = [Version::plain(), Version::verified()];
    let (rounds, first) = (
        number("TUFF_FAULT_ROUNDS", ROUNDS),
        number("TUFF_FAULT_SEED", 1),
    );
    let next = AtomicU64::new(first);
    let outcomes = Mutex::new(Outcomes::default());
    // A round mostly waits, so several run at once.
    std::thread::scope(|scope| {
        for worker in 0..ROUNDS_AT_ONCE {
            let (versions, next, outcomes) = (&versions, &next, &outcomes);
            scope.spawn(move || {
                let disk = SmallDisk::new(worker);
                let seed_in_progress = Arc::new(AtomicU64::new(0));
                watch(Arc::clone(&seed_in_progress));
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= first + rounds {
                        break;
                    }
                    seed_in_progress.store(seed, Ordering::SeqCst);
                    let _named = NameOnPanic(seed);
                    let mut rng = Rng::new(seed);
                    let plan = Plan::new(&mut rng);
                    let version = &versions[usize::from(plan.is_verified)];
                    let one = round(&plan, version, seed, disk.as_ref());
                    outcomes.lock().unwrap().add(&one);
                }
                seed_in_progress.store(u64::MAX, Ordering::SeqCst);
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    eprintln!("{rounds} rounds: {outcomes:?}");
    assert!(outcomes.right > 0);
    // With fewer rounds there may be none.
    assert!(rounds < ROUNDS || outcomes.errors > 0);
}

/// Ends the process if a round does not end.
fn watch(seed_in_progress: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        while seen != u64::MAX {
            std::thread::sleep(Duration::from_millis(500));
            let now = seed_in_progress.load(Ordering::SeqCst);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > HANG {
                eprintln!("round {seen} hangs");
                std::process::abort();
            }
        }
    });
}

/// Prints the seed of a round that fails.
struct NameOnPanic(u64);

impl Drop for NameOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with TUFF_FAULT_SEED={} TUFF_FAULT_ROUNDS=1", self.0);
        }
    }
}

/// Number of reads by their outcome.
#[derive(Debug, Default)]
struct Outcomes {
    right: u64,
    errors: u64,
    /// Rounds in which the fill completed the image.
    filled: u64,
    /// Rounds that did not get past opening.
    unopened: u64,
}

impl Outcomes {
    fn add(&mut self, other: &Self) {
        self.right += other.right;
        self.errors += other.errors;
        self.filled += other.filled;
        self.unopened += other.unopened;
    }
}

fn round(plan: &Plan, version: &Version, seed: u64, disk: Option<&SmallDisk>) -> Outcomes {
    let (server, control) = serve(plan, version, seed);
    let dir = match disk.filter(|_| plan.has_full_disk) {
        Some(disk) => Dir(disk.cache(seed)),
        None => Dir::new(),
    };
    let mut options = options(&dir);
    options.cache_max = plan.cache_max;
    options.retry.deadline = Duration::from_secs(2);
    options.root_hash = version.root.filter(|_| !plan.is_registry);
    let url = match plan.is_registry {
        true => format!("oci://{}/team/app:v1", server.host()),
        false => server.url("/i"),
    };
    control.faults.store(plan.faults as u32, Ordering::SeqCst);
    let mut outcomes = Outcomes::default();
    let mut stores = Vec::new();
    for _ in 0..1 + u64::from(plan.is_shared) {
        match open(&url, &options) {
            Ok(store) => stores.push(store),
            Err(e) => {
                assert!(e.to_string().contains(&server.host()), "{e}");
                outcomes.unopened += 1;
            }
        }
    }
    let victim = plan.has_victim.then(|| start_victim(&url, &options));
    if let Some(store) = stores.first() {
        if plan.prefetches {
            let len = version.bytes.len() as u64;
            store.prefetch(&[len / 2..len * 3 / 4, 0..len / 8]);
        }
        if plan.fills {
            store.fill(None);
        }
        outcomes.add(&read_all(&stores, (plan, version), &url, seed, || {
            happen(plan.event, &server, &control);
        }));
    }
    drop(victim);
    if plan.event != Event::Killed {
        calm(&control);
        outcomes.filled += u64::from(finish(plan, version, &url, &options, &stores, seed));
    }
    drop(stores);
    assert_private(&dir.0);
    outcomes
}

/// Lets the event of a round happen.
fn happen(event: Event, server: &Server, control: &Control) {
    match event {
        Event::None => {}
        Event::Killed => server.stop(),
        Event::Outage => {
            control.is_out.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(30));
            control.is_out.store(false, Ordering::SeqCst);
        }
        Event::Replaced => control.is_replaced.store(true, Ordering::SeqCst),
        Event::Stale => control.is_stale.store(true, Ordering::SeqCst),
    }
}

/// Ends the faults and events of a round.
fn calm(control: &Control) {
    control.faults.store(0, Ordering::SeqCst);
    for flag in [&control.is_out, &control.is_replaced, &control.is_stale] {
        flag.store(false, Ordering::SeqCst);
    }
}

/// Reads by several threads, while something happens.
fn read_all(
    stores: &[Arc<RemoteStore>],
    (plan, version): (&Plan, &Version),
    url: &str,
    seed: u64,
    happen: impl FnOnce(),
) -> Outcomes {
    let (right, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    let size = version.bytes.len();
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let store = &stores[reader as usize % stores.len()];
            let (right, errors) = (&right, &errors);
            scope.spawn(move || {
                let mut rng = Rng::new(seed << 8 | reader);
                let mut buf = vec![0xEE; 3 * CHUNK];
                for _ in 0..READS {
                    let at = rng.below(size);
                    let len = rng.below(buf.len()).min(size - at);
                    match WithTree(store).read_exact_at(&mut buf[..len], at as u64) {
                        Ok(()) => {
                            assert!(version.has(&buf[..len], at), "{len} bytes at {at}");
                            right.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(e) => {
                            let message = e.to_string();
                            assert!(message.starts_with(url), "{message}");
                            assert!(message.contains("bytes "), "{message}");
                            errors.fetch_add(1, Ordering::SeqCst);
                            // Each further read would wait for its deadline.
                            if plan.event == Event::Killed {
                                return;
                            }
                        }
                    }
                }
            });
        }
        happen();
    });
    Outcomes {
        right: right.into_inner(),
        errors: errors.into_inner(),
        ..Outcomes::default()
    }
}

/// Reads everything without faults: from the same store, and from another one after damage to the cache. Returns true if
/// the fill completed the image.
fn finish(
    plan: &Plan,
    version: &Version,
    url: &str,
    options: &Options,
    stores: &[Arc<RemoteStore>],
    seed: u64,
) -> bool {
    let mut whole = vec![0xEE; version.bytes.len()];
    let mut is_filled = false;
    if let Some(store) = stores.first() {
        // A read that waits for requests from the time of the faults fails with them. Each part can do so once.
        let parts = whole.len().div_ceil(128 << 10);
        let is_read = (0..=parts).any(|_| WithTree(store).read_exact_at(&mut whole, 0).is_ok());
        assert!(is_read, "{plan:?}: the image cannot be read");
        assert!(version.has(&whole, 0));
        // The fill either completes the image or says why it does not.
        if plan.fills {
            is_filled = store.wait_complete(HANG / 2);
            let why = store.failure().map(|e| e.to_string());
            assert!(is_filled || why.as_ref().is_some_and(|w| w.starts_with(url)));
        }
        if is_filled && let Ok(file) = store.complete_file() {
            assert!(version.has(&fs::read(file.path()).unwrap(), 0));
        }
    }
    damage(&options.cache, seed);
    let again = open(url, options).unwrap();
    whole.fill(0xEE);
    WithTree(&again).read_exact_at(&mut whole, 0).unwrap();
    assert!(version.has(&whole, 0), "after damage to the cache");
    is_filled
}

/// Overwrites parts of the cache, as a crash might.
fn damage(cache: &Path, seed: u64) {
    let mut rng = Rng::new(seed ^ 0xDA3A6E);
    for entry in fs::read_dir(cache).unwrap() {
        let path = entry.unwrap().path();
        let len = fs::metadata(&path).unwrap().len();
        if rng.below(2) == 0 || len == 0 {
            continue;
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let at = rng.below_u64(len);
        // On a full disk a hole cannot be written.
        let _ = file.write_all_at(&[rng.draw() as u8; 16], at);
        if rng.below(4) == 0 {
            file.set_len(rng.below_u64(len)).unwrap();
        }
    }
}

/// Nothing in the cache is for others.
fn assert_private(cache: &Path) {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for entry in fs::read_dir(cache).into_iter().flatten() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

/// Process that is killed on drop.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process that reads and fills until it is killed.
fn start_victim(url: &str, options: &Options) -> Victim {
    let root = options.root_hash.map_or(String::new(), |root| {
        root.iter().map(|byte| format!("{byte:02x}")).collect()
    });
    let args = ["fill", url, options.cache.to_str().unwrap(), &root];
    let child = child(&args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Victim(child.unwrap())
}

/// Filesystem of 4 MiB, which an image of 6 MiB fills.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a note, if nothing can be mounted here.
    fn new(worker: usize) -> Option<Self> {
        let dir = tuff_testkit::unused_path(&format!("small-disk-{worker}"));
        fs::create_dir_all(&dir).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tuff-small-disk"]);
        let is_mounted = mount.arg(&dir).stderr(Stdio::null()).status();
        if !is_mounted.is_ok_and(|status| status.success()) {
            let _ = fs::remove_dir(&dir);
            tuff_testkit::note("rounds with a full disk need root");
            return None;
        }
        Some(Self(dir))
    }

    fn cache(&self, seed: u64) -> PathBuf {
        self.0.join(format!("cache-{seed}"))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}
