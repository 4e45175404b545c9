//! Mount namespaces, and mounts with mapped owners.

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

/// open_tree(2), mount_setattr(2) and move_mount(2), which mount(8) has from version 2.39 on.
const MAP: &str = r#"
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    result = libc.syscall(*args)
    if result < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    return result
own = os.stat("/proc/self/ns/user").st_ino
user = subprocess.Popen(["unshare", "-U", "sleep", "60"])
try:
    while user.poll() is None and os.stat(f"/proc/{user.pid}/ns/user").st_ino == own:
        time.sleep(0.01)
    for kind in "uid_map", "gid_map":
        open(f"/proc/{user.pid}/{kind}", "w").write("0 100000 65536")
    namespace = os.open(f"/proc/{user.pid}/ns/user", os.O_RDONLY)
    tree = call(428, -100, sys.argv[1].encode(), 1 | 0o2000000)
    attr = (ctypes.c_uint64 * 4)(0x00100000, 0, 0, namespace)
    call(442, tree, b"", 0x1000, attr, 32)
    call(429, tree, b"", -100, sys.argv[2].encode(), 4)
finally:
    user.kill()
    user.wait()
"#;

/// Mounts the mount `from` once more, on a new directory `to` of `dir`, with owner 0 shown as 100000. Returns false, with a note,
/// where that is not possible.
///
/// # Panics
/// If a kernel that can map owners of FUSE mounts refuses it.
pub fn mount_mapped(dir: &Path, from: &str, to: &str) -> bool {
    fs::create_dir(dir.join(to)).unwrap();
    let mut mount = Command::new("python3");
    let out = mount.current_dir(dir).args(["-c", MAP, from, to]).output();
    let out = match out {
        Ok(out) if out.status.success() => return true,
        Ok(out) => out,
        Err(e) => {
            crate::skipped(format_args!("python3: {e}"));
            return false;
        }
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = kernel.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let says = String::from_utf8_lossy(&out.stderr);
    assert!(
        version < (6, 12) || !says.contains("Invalid argument"),
        "{says}"
    );
    crate::skipped(says.trim());
    false
}
