//! Control groups with a limit of memory, of version 2 or 1.

use crate::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A control group for one start; removed when dropped.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

/// Where groups are made, unless a user says otherwise: version 2, then version 1; `None` where neither limits memory.
pub fn parent() -> Option<PathBuf> {
    let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    let unified = unified.into_iter().find(|p| {
        let text = std::fs::read_to_string(p.join("cgroup.controllers")).unwrap_or_default();
        text.split_whitespace().any(|c| c == "memory")
    });
    if let Some(path) = &unified {
        // What cannot be switched on shows when a group is made.
        let _ = std::fs::write(path.join("cgroup.subtree_control"), "+memory");
        return unified;
    }
    let old = PathBuf::from("/sys/fs/cgroup/memory");
    old.join("memory.limit_in_bytes").exists().then_some(old)
}

impl Group {
    /// Makes a group below `parent` that may have `limit` bytes.
    pub fn create(parent: &Path, limit: u64) -> Result<Group> {
        let path = parent.join(format!("tuff-lab-start-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        let group = Group { path };
        let names = ["memory.max", "memory.limit_in_bytes"].map(|n| group.path.join(n));
        let Some(file) = names.into_iter().find(|p| p.exists()) else {
            return Err(Error::Usage(format!(
                "control group {}: it does not limit memory",
                parent.display()
            )));
        };
        std::fs::write(&file, limit.to_string()).map_err(|e| Error::io("write", &file, e))?;
        Ok(group)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir(&self.path) {
            eprintln!("tuff-lab: warning: {} stays: {e}", self.path.display());
        }
    }
}

/// Puts a process into a group.
pub fn enter(group: &Path, process: u32) -> Result<()> {
    let file = group.join("cgroup.procs");
    std::fs::write(&file, process.to_string()).map_err(|e| Error::io("join", &file, e))
}

/// The open counter of how often a group came to its limit: it can be read from inside another root.
#[derive(Debug)]
pub struct Hits(File);

impl Hits {
    /// Of that group.
    pub fn open(group: &Path) -> Result<Hits> {
        let new = group.join("memory.events");
        let path = if new.exists() {
            new
        } else {
            group.join("memory.failcnt")
        };
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        Ok(Hits(file))
    }

    /// Until now.
    pub fn count(&self) -> Option<u64> {
        let mut bytes = [0; 512];
        let length = self.0.read_at(&mut bytes, 0).ok()?;
        count(std::str::from_utf8(&bytes[..length]).ok()?)
    }
}

/// The number behind `max` of version 2, or the only one of version 1.
fn count(text: &str) -> Option<u64> {
    let named = text.lines().find_map(|l| l.strip_prefix("max "));
    named.unwrap_or(text).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn both_versions_count() {
        assert_eq!(count("low 0\nhigh 1\nmax 23\noom 4\n"), Some(23));
        assert_eq!(count("17\n"), Some(17));
        assert_eq!(count("low 0\n"), None);
    }
}
