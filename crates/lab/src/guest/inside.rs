//! Process 1 of a guest: loads the modules, runs the job, sends the results and turns the machine off.

use super::Message;
use crate::engines::filesystem::attach;
use crate::measure::helper;
use crate::{At, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Mount point of the filesystem under test.
pub const POINT: &str = "/mnt";
/// Directory of the ports of the messages.
const PORTS: &str = "/sys/class/virtio-ports";

/// Port to the host.
#[derive(Debug)]
pub struct Port(File);

impl Port {
    /// Sends a result to the host.
    pub fn send(&mut self, result: &impl Serialize) -> Result<()> {
        self.line(&Message::Result(result))
    }

    fn line<T: Serialize>(&mut self, message: &Message<T>) -> Result<()> {
        let mut line = serde_json::to_vec(message)
            .map_err(|e| Error::Command(format!("cannot encode a result: {e}")))?;
        line.push(b'\n');
        let sent = self.0.write_all(&line);
        sent.map_err(|e| Error::Io("send a result".to_owned(), e))
    }
}

/// Runs `work` on the job of this guest, and turns the guest off. Does nothing outside a guest.
///
/// # Errors
/// `Usage` if this is not process 1. Errors of the job are sent to the host.
pub fn run<J: DeserializeOwned>(work: impl FnOnce(J, &mut Port) -> Result<()>) -> Result<()> {
    if std::process::id() != 1 {
        let text = "this command runs as the first process of a guest only";
        return Err(Error::Usage(text.to_owned()));
    }
    let mut port = start()?;
    let done = job().and_then(|job| work(job, &mut port));
    match done {
        Ok(()) => port.line(&Message::<()>::End)?,
        Err(e) => port.line(&Message::<()>::Failed(e.to_string()))?,
    }
    rustix::fs::sync();
    let off = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    off.map_err(|e| Error::Io("turn the guest off".to_owned(), e.into()))
}

/// Mounts the system's filesystems, loads the modules and opens the port.
fn start() -> Result<Port> {
    for (kind, point) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        attach(kind, kind, point, "", false).map_err(Error::Command)?;
    }
    let read = |path: &str| -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(path).at("list", Path::new(path))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        Ok(paths)
    };
    for module in read("/modules")? {
        if module.extension().is_some_and(|e| e == "ko") {
            let parameters = std::fs::read_to_string(module.with_extension("parameters"));
            load_module(&module, &parameters.unwrap_or_default())?;
        }
    }
    for port in read(PORTS)? {
        let name = std::fs::read_to_string(port.join("name")).unwrap_or_default();
        if name.trim() == "messages" {
            let path = Path::new("/dev").join(port.file_name().unwrap_or_default());
            let file = File::options().write(true).open(&path);
            return Ok(Port(file.at("open", &path)?));
        }
    }
    Err(Error::Command(
        "the port of the messages is missing".to_owned(),
    ))
}

fn job<J: DeserializeOwned>() -> Result<J> {
    let path = Path::new("/dev/vda");
    let text = std::fs::read(path).at("read", path)?;
    serde_json::from_slice(&text).map_err(|e| Error::Command(format!("cannot parse the job: {e}")))
}

/// Loads a module with parameters.
fn load_module(path: &Path, parameters: &str) -> Result<()> {
    let file = File::open(path).at("open", path)?;
    let parameters = CString::new(parameters).unwrap_or_default();
    match rustix::system::finit_module(&file, &parameters, 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(Error::io("load", path, e.into())),
    }
}

/// Returns the path of a disk by its number in the hardware of the guest.
pub fn disk(number: usize) -> String {
    // The first disk holds the job. A guest has fewer than 26 disks.
    let letter = char::from(b'b' + u8::try_from(number).unwrap_or(u8::MAX - b'b'));
    format!("/dev/vd{letter}")
}

/// Time limit of dmsetup.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs dmsetup, which makes the device nodes itself: the guest has no udev.
pub fn dmsetup(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("/sbin/dmsetup");
    command.args(words).args(["--noudevsync", "--noudevrules"]);
    helper::run(&mut command, 0, TIME_LIMIT).map(|_| ())
}

/// Creates a device-mapper device. Returns its path.
pub fn map(name: &str, table: &str, read_only: bool) -> Result<String, String> {
    let mut words = vec!["create", name, "--table", table];
    words.extend(read_only.then_some("--readonly"));
    dmsetup(&words)?;
    // Without udev there is no node with the name, only the one of the kernel.
    let blocks = std::fs::read_dir("/sys/block").map_err(|e| e.to_string())?;
    let is_named = |path: &PathBuf| {
        std::fs::read_to_string(path.join("dm/name")).is_ok_and(|text| text.trim() == name)
    };
    let block = blocks.flatten().map(|entry| entry.path()).find(is_named);
    let block = block.ok_or_else(|| format!("the device {name} is missing"))?;
    Ok(format!(
        "/dev/{}",
        block.file_name().unwrap_or_default().display()
    ))
}

/// Removes a device-mapper device.
pub fn unmap(name: &str) -> Result<(), String> {
    dmsetup(&["remove", "--retry", name])
}
