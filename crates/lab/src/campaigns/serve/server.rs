//! Servers of images, running for the lifetime of a [`Served`] value.

use crate::definition::RUNS;
use crate::engines::{Format, version};
use crate::measure::device::{Device, READ_ONLY};
use crate::measure::machine::field;
use crate::options::{Emit, Options};
use crate::record::{Line, labels};
use crate::verify::mount::unmounted;
use crate::{At, Result};
use rustix::mount::{MountFlags, mount};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a server to answer and to exit.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Implementation that serves an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// `tuff mount`, through FUSE.
    Tuff,
    /// `tuff mount` of an earlier program.
    TuffBefore,
    /// The kernel's filesystem, on the image file for EROFS and on a loop device for others.
    Kernel,
    /// FUSE server of erofs-utils for EROFS images.
    Erofsfuse,
    /// FUSE server of SquashFS images with one thread.
    Squashfuse,
    /// FUSE server of SquashFS images with the low-level interface.
    #[serde(rename = "squashfuse_ll")]
    SquashfuseLl,
    /// FUSE server of DwarFS images.
    Dwarfs,
}

impl Server {
    /// Returns the name of the program. None for the kernel.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Server::Tuff => Some("tuff"),
            Server::TuffBefore => Some("tuff-before"),
            Server::Kernel => None,
            Server::Erofsfuse => Some("erofsfuse"),
            Server::Squashfuse => Some("squashfuse"),
            Server::SquashfuseLl => Some("squashfuse_ll"),
            Server::Dwarfs => Some("dwarfs"),
        }
    }

    /// Returns whether the server supports images of this filesystem type, as named by mount(8).
    pub fn serves(self, filesystem: &str) -> bool {
        match self {
            Server::Tuff | Server::TuffBefore | Server::Erofsfuse => {
                filesystem == Format::Erofs.name()
            }
            Server::Squashfuse | Server::SquashfuseLl => filesystem == Format::Squashfs.name(),
            Server::Dwarfs => filesystem == Format::Dwarfs.name(),
            Server::Kernel => filesystem != Format::Dwarfs.name(),
        }
    }

    /// Returns the arguments that keep the server in the foreground. Image and mount point follow them.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Server::Tuff | Server::TuffBefore => &["mount", "-f"],
            _ => &["-f"],
        }
    }
}

/// Server under test, with its arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// Name in tables, unique among the servers.
    pub name: String,
    /// Implementation of the server.
    pub kind: Server,
    /// Name of the image it serves in the start campaign.
    #[serde(default)]
    pub image: String,
    /// Arguments appended verbatim to those of the server. For the kernel, settings `NAME=VALUE` in /sys/fs.
    #[serde(default)]
    pub extra: Vec<String>,
}

/// Keeps the servers of this project, and adds the earlier program to each of them, twice.
pub(crate) fn compare_with_earlier(servers: &mut Vec<ServerSpec>) {
    servers.retain(|server| server.kind == Server::Tuff);
    for server in std::mem::take(servers) {
        let earlier = RUNS.map(|end| ServerSpec {
            kind: Server::TuffBefore,
            name: server.name.clone() + end,
            ..server.clone()
        });
        servers.push(server);
        servers.extend(earlier);
    }
}

/// Server and the path of its program, which the kernel does not have.
pub(crate) type Able<'a> = (&'a ServerSpec, Option<PathBuf>);

/// Returns the servers whose program exists, and records their versions. False if ours is missing.
pub(crate) fn available<'d>(
    servers: &'d [ServerSpec],
    options: &Options,
    emit: Emit<'_>,
) -> Result<(Vec<Able<'d>>, bool)> {
    let (mut able, mut fine) = (Vec::new(), true);
    for server in servers {
        let cell = labels([("server", &server.name)]);
        let name = server.kind.program();
        let program = name.and_then(|name| options.program(name));
        match (name, program) {
            (None, _) => able.push((server, None)),
            (Some(_), Some(path)) => {
                emit(&Line::note(cell, version(&path)))?;
                able.push((server, Some(path)));
            }
            (Some(name), None) => {
                fine &= server.kind != Server::Tuff;
                emit(&Line::failure(
                    cell,
                    format!("the program {name} was not found"),
                ))?;
            }
        }
    }
    Ok((able, fine))
}

/// Mounted image. Dropping it unmounts the image and ends the server.
#[derive(Debug)]
pub struct Served {
    point: PathBuf,
    child: Option<Child>,
    /// Device that was attached because the kernel cannot mount the file.
    device: Option<Device>,
    mounted: bool,
}

impl Served {
    /// Starts `server` for `image` at the empty directory `point` and waits until it is mounted.
    ///
    /// `program` is the path of a server process; it is started with the arguments in `extra`. `filesystem`
    /// is the type of the image as named by mount(8). The image is a file or a block device. For the kernel, `extra`
    /// contains settings of the form `NAME=VALUE` in /sys/fs. The inner error is the reason for a failure.
    pub fn start(
        server: Server,
        program: Option<&Path>,
        extra: &[String],
        (image, filesystem): (&Path, &str),
        point: &Path,
    ) -> Result<Result<Served, String>> {
        let Some(program) = program else {
            std::fs::create_dir_all(point).at("create", point)?;
            let mut served = Served {
                point: point.to_owned(),
                child: None,
                device: None,
                mounted: false,
            };
            let direct = filesystem == Format::Erofs.name() || is_block_device(image);
            let source = match direct {
                true => image,
                false => served
                    .device
                    .insert(Device::attach(image, &[READ_ONLY])?)
                    .path(),
            };
            if let Err(e) = mount(source, point, filesystem, MountFlags::RDONLY, None) {
                return Ok(Err(format!("the kernel cannot mount it: {e}")));
            }
            let name = source.file_name().unwrap_or_default().to_owned();
            served.mounted = true;
            let folder = Path::new("/sys/fs").join(filesystem).join(name);
            for (name, value) in extra.iter().filter_map(|e| e.split_once('=')) {
                if let Err(e) = std::fs::write(folder.join(name), value) {
                    return Ok(Err(format!("the kernel has no setting {name}: {e}")));
                }
            }
            return Ok(Ok(served));
        };
        let mut command = Command::new(program);
        command
            .args(server.arguments())
            .args(extra)
            .args([image, point]);
        Served::run(command, point)
    }

    /// Runs a server that mounts at the empty directory `point`, and waits until it has. The inner error is the reason for a
    /// failure.
    pub fn run(mut command: Command, point: &Path) -> Result<Result<Served, String>> {
        std::fs::create_dir_all(point).at("create", point)?;
        let before = device_of(point)?;
        let program = PathBuf::from(command.get_program());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().at("run", &program)?;
        let mut served = Served {
            point: point.to_owned(),
            child: Some(child),
            device: None,
            mounted: false,
        };
        let end = Instant::now() + TIME_LIMIT;
        loop {
            // While a server starts, the call can block or fail. Both are handled by the loop.
            if device_of(point).is_ok_and(|now| now != before) {
                served.mounted = true;
                return Ok(Ok(served));
            }
            let child = served.child.as_mut();
            let ended = child.map(Child::try_wait).transpose();
            if let Some(status) = ended.at("wait for", &program)?.flatten() {
                served.child = None;
                return Ok(Err(format!("the server exited: {status}")));
            }
            if Instant::now() > end {
                return Ok(Err("the mount did not appear in time".to_owned()));
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Returns the process id of the daemon. None for the kernel.
    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the current resident memory of the daemon in bytes. None without a daemon.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.status("VmRSS")
    }

    /// Returns the current memory of the daemon in bytes without pages of files, which the page cache holds. None
    /// without a daemon.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        self.status("RssAnon")
    }

    fn status(&self, name: &str) -> Option<u64> {
        field(&self.proc("status")?, name).map(|kib| kib << 10)
    }

    fn proc(&self, name: &str) -> Option<String> {
        let id = self.child.as_ref()?.id();
        std::fs::read_to_string(format!("/proc/{id}/{name}")).ok()
    }

    /// Returns the resources that the daemon used since its start, as values of a sample. Empty without a daemon.
    pub fn used(&self) -> BTreeMap<String, f64> {
        self.process().map(used_by).unwrap_or_default()
    }
}

/// Returns the resources that a process used since its start, as values of a sample. Empty if it has ended.
pub(crate) fn used_by(process: u32) -> BTreeMap<String, f64> {
    let proc = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).ok();
    let ticks = rustix::param::clock_ticks_per_second();
    let cpu = proc("stat").and_then(|stat| cpu_us(&stat, ticks));
    let peak = proc("status").and_then(|status| Some(field(&status, "VmHWM")? << 10));
    let values = [("daemon_cpu_us", cpu), ("daemon_peak_bytes", peak)];
    let known = values.into_iter();
    known
        .filter_map(|(name, value)| Some((name.to_owned(), value? as f64)))
        .collect()
}

impl Drop for Served {
    fn drop(&mut self) {
        let end = Instant::now() + TIME_LIMIT;
        if self.mounted {
            match unmounted(&self.point) {
                Ok(()) => self.mounted = false,
                Err(e) => eprintln!(
                    "tuff-lab: warning: {} stays mounted: {e}",
                    self.point.display()
                ),
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
    }
}

fn is_block_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|m| m.file_type().is_block_device())
}

/// Returns the number of the device at a mount point.
pub(crate) fn device_of(point: &Path) -> Result<u64> {
    let attributes = File::open(point)
        .and_then(|f| f.metadata())
        .at("stat", point)?;
    Ok(attributes.dev())
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
    }

    #[test]
    fn an_earlier_program_stands_beside_each_server_of_ours_and_others_are_left_out() {
        let server = |name: &str, kind| ServerSpec {
            name: name.to_owned(),
            kind,
            image: "i".to_owned(),
            extra: vec!["-x".to_owned()],
        };
        let mut servers = vec![
            server("tuff", Server::Tuff),
            server("kernel", Server::Kernel),
        ];
        compare_with_earlier(&mut servers);
        let names: Vec<&str> = servers.iter().map(|server| &*server.name).collect();
        assert_eq!(names, ["tuff", "tuff, before", "tuff, before again"]);
        let second = (servers[1].kind, &*servers[1].image, servers[1].extra.len());
        assert_eq!(second, (Server::TuffBefore, "i", 1));
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
