//! Servers: who answers reads of an image, for as long as a value lives.

use crate::engines::Format;
use crate::{Error, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kinds of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Ours, through FUSE.
    Tuff,
    /// The kernel, straight from the file where it can (EROFS), else through a loop device.
    Kernel,
    /// The kernel through a loop device: the device counts what is fetched.
    KernelLoop,
    /// FUSE server of erofs-utils.
    Erofsfuse,
    /// FUSE server of SquashFS images, one thread.
    Squashfuse,
    /// The same over the low-level interface.
    #[serde(rename = "squashfuse_ll")]
    SquashfuseLl,
    /// Nobody: the tree itself, on the filesystem that holds it.
    Tree,
}

impl Server {
    /// Name of the program; the kernel has none.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Server::Tuff => Some("tuff"),
            Server::Kernel | Server::KernelLoop | Server::Tree => None,
            Server::Erofsfuse => Some("erofsfuse"),
            Server::Squashfuse => Some("squashfuse"),
            Server::SquashfuseLl => Some("squashfuse_ll"),
        }
    }

    /// Can it serve images of this kind?
    pub fn serves(self, format: Format) -> bool {
        match self {
            Server::Tuff | Server::Erofsfuse => format == Format::Erofs,
            Server::Squashfuse | Server::SquashfuseLl => format == Format::Squashfs,
            Server::Kernel | Server::KernelLoop | Server::Tree => true,
        }
    }

    /// Arguments that keep the server in the foreground, before image and mount point.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Server::Tuff => &["mount", "-f"],
            _ => &["-f"],
        }
    }
}

/// A mounted image; unmounted when dropped, with its server ended.
#[derive(Debug)]
pub struct Served {
    point: PathBuf,
    child: Option<Child>,
    device: Option<PathBuf>,
    /// What the device had served when it got the image: its counters live longer than an attachment. Unit: sectors.
    sectors_before: u64,
    mounted: bool,
}

/// What a server used so far. Fields that nobody counts are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Read from the image by a daemon, or from a loop device. Unit: bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fetched_bytes: Option<u64>,
    /// CPU time of a daemon, user and system. Unit: microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_us: Option<u64>,
    /// Largest resident memory of a daemon. Unit: bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// Growth of the memory in use on the whole machine, caches included; only when caches were dropped before. Unit:
    /// bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system_bytes: Option<u64>,
    /// Pages of the files that were read and of the image in the page cache, and resident memory of a daemon; only when
    /// caches were dropped before. Unit: bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub held_bytes: Option<u64>,
}

impl Served {
    /// Has `server` (its `program` with `extra` arguments, when it is one) serve `image` at `point`, an empty folder, and
    /// waits until it answers. `filesystem` is the image's, as mount(8) calls it. The inner error is a sentence that says
    /// why it does not.
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
                Err(e) => Ok(Err(format!("the kernel does not mount it: {e}"))),
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
            // A mount whose server is not ready yet makes the call wait, or fail; both are answers of their own.
            if device_of(point).is_ok_and(|now| now != before) {
                served.mounted = true;
                return Ok(Ok(served));
            }
            if let Some(status) = child
                .try_wait()
                .map_err(|e| Error::io("wait for", program, e))?
            {
                served.child = None;
                return Ok(Err(format!("the server ended: {status}")));
            }
            if Instant::now() > end {
                return Ok(Err("the server does not answer".to_owned()));
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// The tree itself, which needs no server.
    pub fn tree(tree: &Path) -> Served {
        Served {
            point: tree.to_owned(),
            child: None,
            device: None,
            sectors_before: 0,
            mounted: false,
        }
    }

    /// The daemon's process, when there is one.
    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Where the image is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Resident memory of a daemon at this moment. Unit: bytes.
    pub fn resident_bytes(&self) -> Option<u64> {
        let path = format!("/proc/{}/status", self.child.as_ref()?.id());
        let text = std::fs::read_to_string(path).ok()?;
        field(&text, "VmRSS:").map(|kib| kib << 10)
    }

    /// What the server used until now.
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
                    // It may just have ended; either way it is waited for.
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

/// Sectors that were read from a block device since there is one.
fn sectors(device: &Path) -> Option<u64> {
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
    sectors_read(&text)
}

/// The third number of /sys/block/NAME/stat.
fn sectors_read(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(2)?.parse().ok()
}

fn device_of(point: &Path) -> Result<u64> {
    let attributes = File::open(point)
        .and_then(|f| f.metadata())
        .map_err(|e| Error::io("look at", point, e))?;
    Ok(attributes.dev())
}

/// The number behind `name` in text of lines `name number`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time from /proc/PID/stat, where the name in parentheses may hold anything.
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
        assert!(started.unwrap().unwrap_err().contains("ended"));
    }
}
