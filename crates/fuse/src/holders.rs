//! Places at which a filesystem is mounted although it is unmounted here: other directories, and copies in other mount
//! namespaces. It lives on until the last of them is gone.

use crate::mountpoint::{Mounted, parse_mounts};
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Mount that keeps a filesystem alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Mount of this mount namespace.
    Here(PathBuf),
    /// Mount of another mount namespace.
    Namespace {
        /// Process of the namespace with the lowest number.
        pid: u32,
        /// Name of that process.
        command: String,
        /// Directory of the mount, as the process sees it.
        dir: PathBuf,
    },
}

/// Says where the filesystem is mounted, and how that ends.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(dir) => {
                let dir = dir.display();
                write!(f, "it is mounted on {dir}, too; unmount that")
            }
            Self::Namespace { pid, command, dir } => {
                let dir = dir.display();
                write!(
                    f,
                    "process {pid} ({command}) has a copy of the mount in its mount namespace; end that process, or run \
                     nsenter --target {pid} --mount umount {dir}"
                )
            }
        }
    }
}

/// Returns a mount of the filesystem that `mounted` was a mount of, if this process can see one.
pub fn find(mounted: &Mounted) -> Option<Holder> {
    let of = |process: &Path| {
        let table = fs::read(process.join("mountinfo")).ok()?;
        let is_it = |m: &Mounted| {
            (m.device, &m.fstype, &m.source) == (mounted.device, &mounted.fstype, &mounted.source)
        };
        parse_mounts(&table).find(is_it).map(|m| m.dir)
    };
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = Path::new("/proc/self");
    if let Some(dir) = of(own) {
        return Some(Holder::Here(dir));
    }
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    // All processes of a namespace have the same mounts.
    let mut seen: HashSet<PathBuf> = namespace(own).into_iter().collect();
    pids.into_iter().find_map(|pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        seen.insert(namespace(&process)?).then_some(())?;
        let dir = of(&process)?;
        let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
        Some(Holder::Namespace {
            pid,
            command: command.trim_end().to_owned(),
            dir,
        })
    })
}
