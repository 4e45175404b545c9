//! Runs a scene with every fault, one after another.

use crate::inject::{Census, Fault, Run, is_possible, run};
use std::path::{Path, PathBuf};

/// Calls and their errors, the most revealing first.
const ERRORS: &[(&str, &[&str])] = &[
    ("read", &["EIO", "ENOMEM"]),
    ("pread64", &["EIO", "ENOMEM"]),
    ("readv", &["EIO"]),
    ("preadv", &["EIO"]),
    ("preadv2", &["EIO", "EOPNOTSUPP"]),
    ("write", &["ENOSPC", "EIO"]),
    ("pwrite64", &["ENOSPC", "EIO"]),
    ("writev", &["ENOSPC", "EIO"]),
    ("pwritev", &["ENOSPC", "EIO"]),
    ("open", &["EIO", "ENOMEM", "EMFILE", "ENOSPC"]),
    ("openat", &["EIO", "ENOMEM", "EMFILE", "ENOSPC"]),
    ("openat2", &["EIO", "ENOMEM", "EMFILE", "ENOSPC"]),
    ("creat", &["EIO", "ENOSPC"]),
    ("stat", &["EIO", "ENOMEM"]),
    ("lstat", &["EIO", "ENOMEM"]),
    ("fstat", &["EIO", "ENOMEM"]),
    ("statx", &["EIO", "ENOMEM"]),
    ("newfstatat", &["EIO", "ENOMEM"]),
    ("fstatfs", &["EIO"]),
    ("statfs", &["EIO"]),
    ("access", &["EIO"]),
    ("faccessat", &["EIO"]),
    ("faccessat2", &["EIO"]),
    ("getdents64", &["EIO", "ENOMEM"]),
    ("readlink", &["EIO", "ENOMEM"]),
    ("readlinkat", &["EIO", "ENOMEM"]),
    ("getcwd", &["ENOMEM"]),
    ("lseek", &["EIO"]),
    ("flock", &["ENOLCK"]),
    ("fcntl", &["ENOLCK"]),
    ("fadvise64", &["EIO"]),
    ("readahead", &["EIO"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("fdatasync", &["EIO", "ENOSPC"]),
    ("syncfs", &["EIO", "ENOSPC"]),
    ("sync_file_range", &["EIO", "ENOSPC"]),
    ("rename", &["EIO", "ENOSPC"]),
    ("renameat", &["EIO", "ENOSPC"]),
    ("renameat2", &["EIO", "ENOSPC"]),
    ("link", &["EIO", "ENOSPC"]),
    ("linkat", &["EIO", "ENOSPC"]),
    ("unlink", &["EIO"]),
    ("unlinkat", &["EIO"]),
    ("rmdir", &["EIO"]),
    ("mkdir", &["EIO", "ENOSPC"]),
    ("mkdirat", &["EIO", "ENOSPC"]),
    ("symlink", &["EIO", "ENOSPC"]),
    ("symlinkat", &["EIO", "ENOSPC"]),
    ("mknod", &["EIO", "ENOSPC"]),
    ("mknodat", &["EIO", "ENOSPC"]),
    ("truncate", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EIO", "ENOSPC"]),
    ("fallocate", &["ENOSPC", "EIO"]),
    ("copy_file_range", &["ENOSPC", "EIO"]),
    ("sendfile", &["ENOSPC", "EIO"]),
    ("splice", &["ENOSPC", "EIO"]),
    ("chmod", &["EIO"]),
    ("fchmod", &["EIO"]),
    ("fchmodat", &["EIO"]),
    ("fchmodat2", &["EIO"]),
    ("chown", &["EIO"]),
    ("lchown", &["EIO"]),
    ("fchown", &["EIO"]),
    ("fchownat", &["EIO"]),
    ("utimensat", &["EIO"]),
    ("setxattr", &["ENOSPC", "EIO"]),
    ("lsetxattr", &["ENOSPC", "EIO"]),
    ("fsetxattr", &["ENOSPC", "EIO"]),
    ("getxattr", &["EIO"]),
    ("lgetxattr", &["EIO"]),
    ("fgetxattr", &["EIO"]),
    ("listxattr", &["EIO"]),
    ("llistxattr", &["EIO"]),
    ("flistxattr", &["EIO"]),
    ("mmap", &["ENOMEM"]),
    ("mremap", &["ENOMEM"]),
    ("mprotect", &["ENOMEM"]),
    ("brk", &["ENOMEM"]),
    ("clone3", &["EAGAIN"]),
    ("clone", &["EAGAIN"]),
    ("socketpair", &["EMFILE"]),
    ("pipe2", &["EMFILE"]),
    ("eventfd2", &["EMFILE"]),
    ("epoll_create1", &["EMFILE"]),
    ("ioctl", &["EIO", "ENOMEM"]),
    ("poll", &["ENOMEM"]),
    ("getrandom", &["ENOSYS"]),
    ("sched_getaffinity", &["EPERM"]),
    ("prctl", &["EPERM"]),
    ("madvise", &["ENOMEM"]),
    ("sysinfo", &["EPERM"]),
    ("unshare", &["EPERM"]),
    ("fchdir", &["EIO"]),
];

/// Calls that cannot fail on disk files, or whose failure concerns no file.
const MACHINERY: &[&str] = &[
    "close",
    "futex",
    "execve",
    "arch_prctl",
    "set_tid_address",
    "set_robust_list",
    "rseq",
    "prlimit64",
    "munmap",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "exit",
    "exit_group",
    "gettid",
    "getpid",
    "recvfrom",
    "geteuid",
    "getuid",
    "umask",
    "uname",
    "restart_syscall",
    "sched_yield",
    "sched_setaffinity",
    "clock_nanosleep",
    "getegid",
    "getgid",
    "kill",
    "sendto",
];

/// Verb under test, its initial state and its invariants.
pub(crate) trait Scene {
    /// Arguments of the run.
    fn args(&self) -> Vec<&'static str>;

    /// Restores the state before a run.
    fn reset(&self);

    /// Files and directories that the verb reads and writes.
    fn files(&self) -> Vec<PathBuf>;

    /// Exit codes of a failure.
    fn codes(&self) -> &'static [i32] {
        &[5]
    }

    /// Number of calls of a kind at each end of a run that fail by default, and of how many between them one does.
    fn density(&self) -> (usize, u64) {
        (ENDS, 4)
    }

    /// True if findings go to standard output, with exit code 1.
    fn prints_findings(&self) -> bool {
        false
    }

    /// Returns a description of a violated invariant after a run.
    fn judge(&self, fault: &Fault, run: &Run) -> Result<(), String>;
}

/// Directory of a test, removed on drop.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        let dir = tuff_testkit::unused_path(&format!("every-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns true if all faults are requested, which takes minutes.
pub(crate) fn is_full() -> bool {
    std::env::var_os("TUFF_EVERY_SYSCALL").is_some_and(|v| v == "all")
}

/// Number of calls of a kind at each end of a run that fail by default.
pub(crate) const ENDS: usize = 8;

/// The calls of a kind that fail: by default those at both ends of a run, and a sample of the others, which loops repeat.
fn failing(
    census: &Census,
    call: &str,
    (ends, between): (usize, u64),
    chance: &mut Chance,
) -> Vec<usize> {
    let range = census.range(call);
    let (first, last) = (*range.start(), *range.end());
    let is_end = |n| n < first + ends || n + ends > last;
    range
        .filter(|&n| is_full() || is_end(n) || chance.one_in(between))
        .collect()
}

/// All faults for the counted calls; by default the most revealing error for each call that fails, and a sample of the rest.
pub(crate) fn faults(census: &Census, density: (usize, u64)) -> Vec<Fault> {
    let mut chance = Chance(30);
    let mut all = Vec::new();
    for (call, errors) in ERRORS {
        for n in failing(census, call, density, &mut chance) {
            for (which, error) in errors.iter().enumerate() {
                for lasting in [false, true] {
                    let tells_most = which == 0 && !lasting;
                    if tells_most || is_full() || chance.one_in(12) {
                        all.push(Fault {
                            call,
                            error,
                            n,
                            lasting,
                            on_files: false,
                        });
                    }
                }
            }
        }
        // Threads make calls with these indices too.
        let early = (1..=census.by_loader(call)).filter(|n| {
            let (ends, between) = density;
            is_full() || between <= 4 || *n <= ends || chance.one_in(between)
        });
        let early: Vec<usize> = early.collect();
        let early = early.into_iter().filter(|_| ON_FILES.contains(call));
        all.extend(early.map(|n| Fault {
            call,
            error: errors[0],
            n,
            lasting: false,
            on_files: true,
        }));
    }
    all
}

/// Calls that the dynamic loader also makes on files.
const ON_FILES: &[&str] = &["read", "pread64", "open", "openat", "newfstatat", "statx"];

/// Calls that a signal or a remote filesystem may interrupt.
const INTERRUPTIBLE: &[&str] = &[
    "read",
    "pread64",
    "readv",
    "preadv",
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "open",
    "openat",
    "openat2",
    "stat",
    "lstat",
    "fstat",
    "statx",
    "newfstatat",
    "statfs",
    "fstatfs",
    "getdents64",
    "readlink",
    "readlinkat",
    "lseek",
    "flock",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "rename",
    "renameat2",
    "linkat",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "symlinkat",
    "mknodat",
    "ftruncate",
    "fallocate",
    "copy_file_range",
    "sendfile",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "listxattr",
    "llistxattr",
    "flistxattr",
];

/// Interruptions of the calls that fail, one at a time.
pub(crate) fn interruptions(census: &Census, density: (usize, u64)) -> Vec<Fault> {
    let mut chance = Chance(30);
    let all = INTERRUPTIBLE.iter().flat_map(|call| {
        let ns = failing(census, call, density, &mut chance);
        ns.into_iter().map(|n| Fault {
            call,
            error: "EINTR",
            n,
            lasting: false,
            on_files: false,
        })
    });
    all.collect()
}

/// Runs a scene with every interruption; the result must be that of an undisturbed run.
pub(crate) fn interrupt(dir: &Path, scene: &dyn Scene) {
    if !is_possible() {
        return;
    }
    scene.reset();
    let census = Census::take(dir, &scene.args());
    run_all(
        dir,
        &Retried(scene),
        &interruptions(&census, scene.density()),
    );
}

/// Scene that must succeed despite the fault.
struct Retried<'a>(&'a dyn Scene);

impl Scene for Retried<'_> {
    fn args(&self) -> Vec<&'static str> {
        self.0.args()
    }

    fn reset(&self) {
        self.0.reset();
    }

    fn codes(&self) -> &'static [i32] {
        &[]
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.files()
    }

    fn judge(&self, fault: &Fault, run: &Run) -> Result<(), String> {
        self.0.judge(fault, run)
    }
}

/// Deterministic pseudo-random numbers: the same in every run.
struct Chance(u64);

impl Chance {
    fn one_in(&mut self, n: u64) -> bool {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33).is_multiple_of(n)
    }
}

/// Runs a scene with every fault, and reports all violations at the end.
pub(crate) fn sweep(dir: &Path, scene: &dyn Scene) {
    if !is_possible() {
        return;
    }
    scene.reset();
    let census = Census::take(dir, &scene.args());
    // The calls of a run depend on the page cache and the kernel.
    for call in census.calls() {
        let is_known = ERRORS.iter().any(|(known, _)| *known == call) || MACHINERY.contains(&call);
        if !is_known {
            tuff_testkit::note(format_args!("no errors are injected into {call}"));
        }
    }
    run_all(dir, scene, &faults(&census, scene.density()));
}

/// Runs a scene with each of the given faults.
pub(crate) fn run_all(dir: &Path, scene: &dyn Scene, faults: &[Fault]) {
    let mut wrong = Vec::new();
    let files = scene.files();
    let (mut tries, mut hits) = (0, 0);
    let start = std::time::Instant::now();
    for fault in faults {
        scene.reset();
        let run = run(dir, fault, &files, &scene.args());
        hits += usize::from(!run.injected.is_empty());
        tries += usize::from(!fault.on_files || !run.injected.is_empty());
        let verdict = run
            .check_manners(scene.codes(), scene.prints_findings())
            .and_then(|()| scene.judge(fault, &run));
        if let Err(what) = verdict {
            let calls = run.injected.iter().take(2).cloned().collect::<Vec<_>>();
            wrong.push(format!("{fault}: {what}\n    {}", calls.join("\n    ")));
        }
    }
    let summary = format!(
        "{} runs, {hits} with a failed call, {} wrong, in {:.1} s",
        faults.len(),
        wrong.len(),
        start.elapsed().as_secs_f64()
    );
    println!("{}: {summary}", scene.args().join(" "));
    assert!(wrong.is_empty(), "{summary}\n{}", wrong.join("\n"));
    // The calls were counted beforehand, so most faults must occur.
    assert!(hits * 4 >= tries * 3, "{summary}");
}
