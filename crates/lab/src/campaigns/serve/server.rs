//! Servers of images, running for the lifetime of a [`Served`] value.

use crate::engines::Format;
use crate::{Error, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a server to answer and to exit.
const PATIENCE: Duration = Duration::from_secs(20);

/// Implementation that serves an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// `tuff mount`, through FUSE.
    Tuff,
    /// The kernel's filesystem, on the image file for EROFS and on a loop device for others.
    Kernel,
    /// The kernel's filesystem on a loop device, which counts the sectors read.
    KernelLoop,
    /// FUSE server of erofs-utils for EROFS images.
    Erofsfuse,
    /// FUSE server of SquashFS images with one thread.
    Squashfuse,
    /// FUSE server of SquashFS images with the low-level interface.
    #[serde(rename = "squashfuse_ll")]
    SquashfuseLl,
    /// No server: the source tree on its own filesystem.
    Tree,
}

impl Server {
    /// Returns the name of the program. None for the kernel and the source tree.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Server::Tuff => Some("tuff"),
            Server::Kernel | Server::KernelLoop | Server::Tree => None,
            Server::Erofsfuse => Some("erofsfuse"),
            Server::Squashfuse => Some("squashfuse"),
            Server::SquashfuseLl => Some("squashfuse_ll"),
        }
    }

    /// Returns whether the server supports images of this format.
    pub fn serves(self, format: Format) -> bool {
        match self {
            Server::Tuff | Server::Erofsfuse => format == Format::Erofs,
            Server::Squashfuse | Server::SquashfuseLl => format == Format::Squashfs,
            Server::Kernel | Server::KernelLoop | Server::Tree => true,
        }
    }

    /// Returns the arguments that keep the server in the foreground. Image and mount point follow them.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Server::Tuff => &["mount", "-f"],
            _ => &["-f"],
        }
    }
}

/// Mounted image. Dropping it unmounts the image and ends the server.
#[derive(Debug)]
pub struct Served {
    point: PathBuf,
    child: Option<Child>,
    device: Option<PathBuf>,
    /// Sectors read from the loop device before it was attached to the image. The counters of a device
    /// persist across attachments.
    sectors_before: u64,
    mounted: bool,
}

/// Resources used by a server. A figure is None if it is not available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Bytes read from the image by a daemon, or from a loop device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fetched_bytes: Option<u64>,
    /// CPU time of a daemon, user and system, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_us: Option<u64>,
    /// Largest resident memory of a daemon in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// Growth of the memory in use on the whole machine, caches included, in bytes. Available only if caches
    /// were dropped before.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system_bytes: Option<u64>,
    /// Page cache of the files read and of the image, plus resident memory of a daemon, in bytes. Available
    /// only if caches were dropped before.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub held_bytes: Option<u64>,
}

impl Served {
    /// Starts `server` for `image` at the empty directory `point` and waits until it is mounted.
    ///
    /// `program` is the path of a server process; it is started with the arguments in `extra`. `filesystem`
    /// is the type of the image as named by mount(8). The inner error is the reason for a failure.
    pub fn start(
        server: Server,
        program: Option<&Path>,
        extra: &[String],
        (image, filesystem): (&Path, &str),
        point: &Path,
    ) -> Result<Result<Served, String>> {
        debug_assert_ne!(server, Server::Tree, "the tree needs no server");
        std::fs::create_dir_all(point).map_err(|e| Error::io("create", point, e))?;
        let mut served = Served {
            point: point.to_owned(),
            child: None,
            device: None,
            sectors_before: 0,
            mounted: false,
        };
        let Some(program) = program else {
            let direct = server == Server::Kernel && filesystem == Format::Erofs.name();
            let source = if direct {
                image.to_owned()
            } else {
                let device = attach(image)?;
                served.device = Some(device.clone());
                served.sectors_before = sectors(&device).unwrap_or(0);
                device
            };
            return match mount(&source, point, filesystem, MountFlags::RDONLY, None) {
                Ok(()) => {
                    served.mounted = true;
                    Ok(Ok(served))
                }
                Err(e) => Ok(Err(format!("the kernel cannot mount it: {e}"))),
            };
        };
        let before = device_of(point)?;
        let mut command = Command::new(program);
        command
            .args(server.arguments())
            .args(extra)
            .args([image, point]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|e| Error::io("run", program, e))?;
        let child = served.child.insert(child);
        let end = Instant::now() + PATIENCE;
        loop {
            // While a server starts, the call can block or fail. Both are handled by the loop.
            if device_of(point).is_ok_and(|now| now != before) {
                served.mounted = true;
                return Ok(Ok(served));
            }
            if let Some(status) = child
                .try_wait()
                .map_err(|e| Error::io("wait for", program, e))?
            {
                served.child = None;
                return Ok(Err(format!("the server exited: {status}")));
            }
            if Instant::now() > end {
                return Ok(Err("the mount did not appear in time".to_owned()));
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Returns the source tree, which needs no server.
    pub fn tree(tree: &Path) -> Served {
        Served {
            point: tree.to_owned(),
            child: None,
            device: None,
            sectors_before: 0,
            mounted: false,
        }
    }

    /// Returns the process id of the daemon. None for the kernel and the source tree.
    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the current resident memory of the daemon in bytes. None without a daemon.
    pub fn resident_bytes(&self) -> Option<u64> {
        let path = format!("/proc/{}/status", self.child.as_ref()?.id());
        let text = std::fs::read_to_string(path).ok()?;
        field(&text, "VmRSS:").map(|kib| kib << 10)
    }

    /// Returns the resources used since the start.
    pub fn used(&self) -> Used {
        if let Some(child) = &self.child {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/proc/{}/{name}", child.id())).unwrap_or_default()
            };
            return Used {
                fetched_bytes: field(&read("io"), "rchar:"),
                cpu_us: cpu_us(&read("stat"), rustix::param::clock_ticks_per_second()),
                memory_bytes: field(&read("status"), "VmHWM:").map(|kib| kib << 10),
                ..Used::default()
            };
        }
        let now = self.device.as_deref().and_then(sectors);
        let sectors = now.map(|now| now.saturating_sub(self.sectors_before));
        Used {
            fetched_bytes: sectors.map(|s| s * 512),
            ..Used::default()
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.mounted {
            match unmount(&self.point, UnmountFlags::empty()) {
                Ok(()) => self.mounted = false,
                Err(rustix::io::Errno::BUSY) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => {
                    eprintln!(
                        "tuff-lab: warning: {} stays mounted: {e}",
                        self.point.display()
                    );
                    break;
                }
            }
        }
        if let Some(mut child) = self.child.take() {
            while child.try_wait().is_ok_and(|s| s.is_none()) {
                if Instant::now() > end || self.mounted {
                    // The child may already have exited. It is reaped in either case.
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if let Some(device) = self.device.take() {
            let done = Command::new("losetup").arg("-d").arg(&device).status();
            if !done.is_ok_and(|s| s.success()) {
                eprintln!("tuff-lab: warning: {} stays attached", device.display());
            }
        }
    }
}

fn attach(image: &Path) -> Result<PathBuf> {
    let output = Command::new("losetup")
        .args(["--find", "--show", "--read-only"])
        .arg(image)
        .output()
        .map_err(|e| Error::io("run", Path::new("losetup"), e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Command(said));
    }
    Ok(PathBuf::from(
        String::from_utf8_lossy(&output.stdout).trim(),
    ))
}

/// Returns the sectors read from a block device since its creation.
fn sectors(device: &Path) -> Option<u64> {
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
    sectors_read(&text)
}

/// Parses the third field of /sys/block/NAME/stat.
fn sectors_read(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(2)?.parse().ok()
}

fn device_of(point: &Path) -> Result<u64> {
    let attributes = File::open(point)
        .and_then(|f| f.metadata())
        .map_err(|e| Error::io("stat", point, e))?;
    Ok(attributes.dev())
}

/// Returns the number in the line `name number` of a text.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Parses user and system time in microseconds from /proc/PID/stat. The name in parentheses can contain any
/// characters.
fn cpu_us(stat: &str, ticks_per_second: u64) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) * 1_000_000 / ticks_per_second.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_behind_any_program_name() {
        let stat = "77 (a b) (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14";
        assert_eq!(cpu_us(stat, 100), Some(2_000_000));
        assert_eq!(cpu_us("77 (x", 100), None);
        assert_eq!(field("rchar: 123\nwchar: 4\n", "wchar:"), Some(4));
        assert_eq!(field("VmHWM:\t  88 kB\n", "VmHWM:"), Some(88));
        assert_eq!(field("", "rchar:"), None);
        assert_eq!(sectors_read("   12  3 4567 8 0 0"), Some(4567));
        assert_eq!(sectors_read("12 3"), None);
    }

    #[test]
    fn a_server_that_ends_is_no_server() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, b"no image").unwrap();
        let program = Some(Path::new("/bin/false"));
        let point = folder.path().join("point");
        let started = Served::start(Server::Tuff, program, &[], (&image, "erofs"), &point);
        assert!(started.unwrap().unwrap_err().contains("exited"));
    }
}
