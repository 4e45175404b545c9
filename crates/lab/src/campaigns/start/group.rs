//! Control groups with a memory limit, versions 2 and 1.

use crate::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Control group of one start. Dropping it removes the group.
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
    /// Creates a group below `parent` with a memory limit in bytes.
    pub fn create(parent: &Path, limit: u64) -> Result<Group> {
        let path = parent.join(format!("tuff-lab-start-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        let group = Group { path };
        let names = ["memory.max", "memory.limit_in_bytes"].map(|n| group.path.join(n));
        let Some(file) = names.into_iter().find(|p| p.exists()) else {
            return Err(Error::Usage(format!(
                "control group {}: no memory limit is available",
                parent.display()
            )));
        };
        std::fs::write(&file, limit.to_string()).map_err(|e| Error::io("write", &file, e))?;
        Ok(group)
    }

    /// Returns the path of the group.
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

/// Moves a process into a group.
pub fn enter(group: &Path, process: u32) -> Result<()> {
    let file = group.join("cgroup.procs");
    std::fs::write(&file, process.to_string()).map_err(|e| Error::io("join", &file, e))
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
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
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
    use super::count;

    #[test]
    fn both_versions_count() {
        assert_eq!(count("low 0\nhigh 1\nmax 23\noom 4\n"), Some(23));
        assert_eq!(count("17\n"), Some(17));
        assert_eq!(count("low 0\n"), None);
    }
}
