//! Knowing when the host is short of memory.

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
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_wait_ends_in_time_and_says_no_or_yes() {
        match Pressure::open() {
            None => eprintln!("SKIPPED: no pressure stall information here"),
            Some(pressure) => {
                pressure.wait(Duration::from_millis(1)).unwrap();
            }
        }
        assert!(Pressure::watch(Path::new("/dev/null/nothing")).is_none());
    }
}
