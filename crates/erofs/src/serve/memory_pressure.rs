//! Knowing when the host is short of memory, and how much there is at most.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Threads stood still for a tenth of two seconds because memory was short: Linux lets anybody watch windows of two
/// seconds.
const TRIGGER: &[u8] = b"some 200000 2000000\0";

/// A watch on the pressure stall information of this process's control group, or of the host.
pub struct Pressure(File);

impl Pressure {
    /// Starts to watch. `None` if there is nothing to watch: an old kernel, or one that does not let us.
    #[must_use]
    pub fn open() -> Option<Self> {
        let own = own_group().map(|dir| dir.join("memory.pressure"));
        let host = PathBuf::from("/proc/pressure/memory");
        own.into_iter()
            .chain([host])
            .find_map(|path| Self::watch(&path))
    }

    fn watch(path: &Path) -> Option<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        file.write_all(TRIGGER).ok()?;
        Some(Self(file))
    }

    /// Waits until memory is short, for `timeout` at most. True if it is.
    ///
    /// # Errors
    /// If the watch is gone, as when the control group is removed: then nothing can be learnt from it any more.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::PRI)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) if fds[0].revents().contains(PollFlags::ERR) => {
                Err(io::Error::other("the watch on memory pressure is gone"))
            }
            Ok(_) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }
}

/// The directory of this process's control group, in the unified hierarchy.
fn own_group() -> Option<PathBuf> {
    let groups = std::fs::read_to_string(OWN_GROUPS).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(GROUPS).join(path))
}

/// Says which control groups this process is in.
const OWN_GROUPS: &str = "/proc/self/cgroup";

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// The most memory that this process's control group, or one around it, lets it and its neighbours have. Unit: bytes.
/// `None`: as much as the host has.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string(OWN_GROUPS).ok()?;
    limit_among(Path::new(GROUPS), &groups)
}

/// The least limit of the `groups` of a process and of those around them, both hierarchies below `root`. A group that
/// lies outside of what this process sees (another namespace's) says nothing.
fn limit_among(root: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        // number:controllers:path; the unified hierarchy has no controllers there.
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (base, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let own = base.join(path.trim_start_matches('/'));
        let around = own.ancestors().take_while(|dir| dir.starts_with(&base));
        // "max" is no number.
        let limit = |dir: &Path| -> Option<u64> {
            std::fs::read_to_string(dir.join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        around.filter_map(limit).min()
    };
    let limit = groups.lines().filter_map(of_line).min();
    // The first hierarchy has a huge number for "none".
    limit.filter(|limit| *limit < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_around_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limit = |groups: &str| limit_among(root.path(), groups);
        put("memory.max", "max\n");
        put("a/memory.max", "67108864\n");
        put("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(64 << 20));
        assert_eq!(limit("0::/\n"), None);
        assert_eq!(limit("0::/elsewhere/x\n"), None);
        assert_eq!(limit("garbage\n1:name=x:/\n"), None);
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/c/memory.limit_in_bytes", "1048576\n");
        assert_eq!(
            limit("4:cpu:/c\n3:hugetlb,memory:/c\n0::/a\n"),
            Some(1 << 20)
        );
        assert_eq!(limit("3:memory:/\n"), None);
    }

    #[test]
    fn a_quiet_wait_ends_in_time_and_says_no_or_yes() {
        match Pressure::open() {
            None => tuff_testkit::skipped("no pressure stall information here"),
            Some(pressure) => {
                pressure.wait(Duration::from_millis(1)).unwrap();
            }
        }
        assert!(Pressure::watch(Path::new("/dev/null/nothing")).is_none());
    }
}
