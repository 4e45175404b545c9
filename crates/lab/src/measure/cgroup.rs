//! Control groups that limit or count memory, versions 2 and 1.

use super::machine::field;
use crate::{At, Error, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time within which processes of a group that exit have left it.
const EXIT_TIME: Duration = Duration::from_secs(5);

/// Control group of one sample. Dropping it removes the group, which must be empty.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

/// Returns the default parent of control groups, preferring version 2. None if memory cannot be limited.
pub fn parent() -> Option<PathBuf> {
    let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    let unified = unified.into_iter().find(|p| {
        let text = std::fs::read_to_string(p.join("cgroup.controllers")).unwrap_or_default();
        text.split_whitespace().any(|c| c == "memory")
    });
    if let Some(path) = &unified {
        // If the controller cannot be enabled, `Group::create` fails.
        let _ = std::fs::write(path.join("cgroup.subtree_control"), "+memory");
        return unified;
    }
    let old = PathBuf::from("/sys/fs/cgroup/memory");
    old.join("memory.limit_in_bytes").exists().then_some(old)
}

impl Group {
    /// Creates a group below `parent`, with a memory limit in bytes if one is given.
    pub fn create(parent: &Path, limit: Option<u64>) -> Result<Group> {
        let path = parent.join(format!("tuff-lab-memory-{}", std::process::id()));
        std::fs::create_dir(&path).at("create", &path)?;
        let group = Group { path };
        if let Some(limit) = limit {
            let names = ["memory.max", "memory.limit_in_bytes"].map(|n| group.path.join(n));
            let Some(file) = names.into_iter().find(|p| p.exists()) else {
                return Err(Error::Usage(format!(
                    "control group {}: no memory limit is available",
                    parent.display()
                )));
            };
            std::fs::write(&file, limit.to_string()).at("write", &file)?;
        }
        Ok(group)
    }

    /// Returns the memory that is charged to the group. None if it cannot be read.
    fn charged(&self) -> Option<Charged> {
        let text = std::fs::read_to_string(self.path.join("memory.stat")).ok()?;
        let kernel = match field(&text, "kernel") {
            Some(kernel) => kernel,
            None => {
                let path = self.path.join("memory.kmem.usage_in_bytes");
                std::fs::read_to_string(path).ok()?.trim().parse().ok()?
            }
        };
        let cache = field(&text, "file").or_else(|| field(&text, "cache"))?;
        Some(Charged { cache, kernel })
    }

    /// Returns the number of processes that were killed because the group had no memory left. 0 if it cannot be read.
    pub fn kills(&self) -> u64 {
        let names = ["memory.events", "memory.oom_control"];
        let texts = names.map(|name| std::fs::read_to_string(self.path.join(name)));
        let kills = |text: &String| field(text, "oom_kill");
        texts.iter().flatten().find_map(kills).unwrap_or(0)
    }

    /// Returns the path of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + EXIT_TIME;
        loop {
            match std::fs::remove_dir(&self.path) {
                // A process that exits stays in the group for a moment.
                Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => {
                    eprintln!("tuff-lab: warning: {} stays: {e}", self.path.display());
                    return;
                }
                Ok(()) => return,
            }
        }
    }
}

/// Memory that is charged to a group, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Page cache of files and of block devices.
    pub cache: u64,
    /// Objects of the kernel, such as inodes and directory entries.
    pub kernel: u64,
}

/// Membership of this process, and of the children that it starts, in a new group. Dropping it moves the process back.
#[derive(Debug)]
pub struct Membership {
    group: Group,
    home: PathBuf,
}

impl Membership {
    /// Joins a group below `parent`, with a memory limit in bytes if one is given.
    pub fn join(parent: &Path, limit: Option<u64>) -> Result<Membership> {
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let home = parent.join(own(&text).unwrap_or_default());
        let group = Group::create(parent, limit)?;
        enter(group.path(), std::process::id())?;
        Ok(Membership { group, home })
    }

    /// Returns the memory charged since the process joined. None if it cannot be read.
    pub fn charged(&self) -> Option<Charged> {
        self.group.charged()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The group is dropped afterwards.
        if let Err(e) = enter(&self.home, std::process::id()) {
            eprintln!("tuff-lab: warning: {e}");
        }
    }
}

/// Returns the relative path of the group for memory in /proc/PID/cgroup: that of version 1, or else of version 2.
fn own(text: &str) -> Option<&str> {
    let fields = || text.lines().map(|l| l.splitn(3, ':').collect::<Vec<_>>());
    let is_old = |f: &Vec<&str>| {
        f.get(1)
            .is_some_and(|c| c.split(',').any(|c| c == "memory"))
    };
    let is_new = |f: &Vec<&str>| f.get(1).is_some_and(|c| c.is_empty());
    let found = fields().find(is_old).or_else(|| fields().find(is_new))?;
    found.get(2).map(|path| path.trim_start_matches('/'))
}

/// Moves a process into a group.
pub fn enter(group: &Path, process: u32) -> Result<()> {
    let file = group.join("cgroup.procs");
    std::fs::write(&file, process.to_string()).at("join", &file)
}

/// Open file with the number of times that a group reached its limit. It can be read after a change of the
/// root directory.
#[derive(Debug)]
pub struct Hits(File);

impl Hits {
    /// Opens the counter of a group.
    pub fn open(group: &Path) -> Result<Hits> {
        let new = group.join("memory.events");
        let path = if new.exists() {
            new
        } else {
            group.join("memory.failcnt")
        };
        let file = File::open(&path).at("open", &path)?;
        Ok(Hits(file))
    }

    /// Returns the current number. None if it cannot be read.
    pub fn count(&self) -> Option<u64> {
        let mut bytes = [0; 512];
        let length = self.0.read_at(&mut bytes, 0).ok()?;
        count(std::str::from_utf8(&bytes[..length]).ok()?)
    }
}

/// Parses the number after `max` of version 2, or the only number of version 1.
fn count(text: &str) -> Option<u64> {
    let named = text.lines().find_map(|l| l.strip_prefix("max "));
    named.unwrap_or(text).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{count, own};

    #[test]
    fn both_versions_count() {
        assert_eq!(count("low 0\nhigh 1\nmax 23\noom 4\n"), Some(23));
        assert_eq!(count("17\n"), Some(17));
        assert_eq!(count("low 0\n"), None);
    }

    #[test]
    fn the_group_for_memory_is_found_in_both_versions() {
        assert_eq!(own("4:cpu,memory:/a/b\n0::/c\n"), Some("a/b"));
        assert_eq!(own("0::/c:d\n"), Some("c:d"));
        assert_eq!(own("3:cpu:/a\n"), None);
    }
}
