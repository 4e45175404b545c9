//! Mount namespaces.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// Process named `sleep` in a mount namespace of its own that has a copy of one mount. Dropping it ends it.
pub struct MountCopy(Child);

impl MountCopy {
    /// Starts the process. The mount is two levels below the directory of all tests. Returns None, with a note, if there can be no
    /// namespace.
    pub fn new(mount: &Path) -> Option<Self> {
        // Copies of other tests' mounts would keep those alive.
        const SCRIPT: &str = r#"
cut -d' ' -f5 /proc/self/mountinfo | grep "^$1/" | grep -vxF "$2" | while read -r dir; do umount -l "$dir"; done
exec sleep 1000
"#;
        let mount = fs::canonicalize(mount).ok()?;
        let tests = mount.parent()?.parent()?;
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .args(["sh", "-c", SCRIPT, "sh"])
            .args([tests, &mount])
            .spawn()
            .ok()?;
        let comm = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&comm).ok()? != "sleep\n" {
            if child.try_wait().ok()?.is_some() {
                crate::skipped("a copied mount needs a mount namespace, which unshare cannot make");
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Self(child))
    }

    /// Returns the number of the process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for MountCopy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
