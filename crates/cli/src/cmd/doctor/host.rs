//! Access to the files in which the kernel and the distribution describe the host.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tuff_format::features::KernelVersion;

/// Largest file that is read. Unit: bytes.
const TEXT_MAX: u64 = 4 << 20;

/// Host that the facts are about.
pub(super) struct Host {
    /// Directory of its files: `/`, except in tests.
    root: PathBuf,
    /// The process has the rights of root.
    pub(super) is_root: bool,
    /// The kernel may be asked by system calls: the files are those of the running kernel.
    pub(super) is_running: bool,
}

impl Host {
    /// The host that the process runs on.
    pub(super) fn this() -> Self {
        Self {
            root: "/".into(),
            is_root: rustix::process::geteuid().is_root(),
            is_running: true,
        }
    }

    /// Host whose files lie below a directory.
    #[cfg(test)]
    pub(super) fn at(root: &std::path::Path, is_root: bool) -> Self {
        Self {
            root: root.to_owned(),
            is_root,
            is_running: false,
        }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Content of a regular file, without what is longer than the limit. Other files, which may block, are not opened.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let path = self.path(path);
        let is_file = path.metadata().is_ok_and(|m| m.is_file());
        let file = is_file.then(|| File::open(path).ok()).flatten()?;
        let mut bytes = Vec::new();
        file.take(TEXT_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Text of a regular file, without spaces at its ends.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = self.bytes(path)?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Release of the kernel, as `uname -r` prints it.
    pub(super) fn release(&self) -> String {
        self.text("/proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// Version of the kernel. An unknown one counts as the oldest.
    pub(super) fn kernel(&self) -> KernelVersion {
        KernelVersion::from_release(&self.release()).unwrap_or(KernelVersion(0, 0))
    }

    /// Executable file of a program, searched in `PATH`.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // System programs are often missing in the PATH of users.
        let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        let mut dirs = std::env::split_paths(&path).chain(more);
        dirs.find_map(|dir| {
            let file = self.path(&dir.join(name).to_string_lossy());
            let meta = file.metadata().ok()?;
            (meta.is_file() && meta.permissions().mode() & 0o111 != 0).then_some(file)
        })
    }
}
