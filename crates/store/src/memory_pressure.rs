//! Memory pressure of the host or control group, and the memory limit of the control group.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// PSI trigger: tasks were stalled on memory for 200 ms within a window of 2 s. Unprivileged
/// processes may only use windows that are multiples of 2 s.
const TRIGGER: &[u8] = b"some 200000 2000000\0";

/// Monitor of the pressure stall information (PSI) of this process's control group, or of the host.
pub struct MemoryPressure(File);

impl MemoryPressure {
    /// Opens a monitor. `None` if the kernel has no PSI or denies access.
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

    /// Waits for memory pressure, for `timeout` at most. True if there is pressure.
    ///
    /// # Errors
    /// If the trigger was removed, for example with the control group. Later calls fail, too.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::PRI)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) if fds[0].revents().contains(PollFlags::ERR) => {
                Err(io::Error::other("the memory pressure trigger was removed"))
            }
            Ok(_) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns the directory of this process's control group in the unified hierarchy.
fn own_group() -> Option<PathBuf> {
    let groups = std::fs::read_to_string(OWN_GROUPS).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(GROUPS).join(path))
}

/// Lists the control groups of this process.
const OWN_GROUPS: &str = "/proc/self/cgroup";

/// Mount point of the control group hierarchies.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns the lowest memory limit of this process's control group and its ancestors. Unit: bytes.
/// `None` if there is no limit.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string(OWN_GROUPS).ok()?;
    limit_among(Path::new(GROUPS), &groups)
}

/// Returns the lowest limit of the control groups in `groups` and their ancestors, in both
/// hierarchies below `root`. Groups that are not visible in this namespace are ignored.
fn limit_among(root: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        // Format: number:controllers:path. The unified hierarchy has an empty controllers field.
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
        // "max" does not parse: no limit.
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
    // The legacy hierarchy uses a huge number for "no limit".
    limit.filter(|limit| *limit < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_a_group_and_its_ancestors_applies() {
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
    fn waiting_for_memory_pressure_ends_at_the_timeout() {
        match MemoryPressure::open() {
            None => tuff_testkit::skipped("this host provides no pressure stall information"),
            Some(pressure) => {
                pressure.wait(Duration::from_millis(1)).unwrap();
            }
        }
        assert!(MemoryPressure::watch(Path::new("/dev/null/nothing")).is_none());
    }
}
