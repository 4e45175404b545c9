//! Programs of others in a folder that a script of `benchmarks` made, and their processes.

use super::helper;
use crate::{At, Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a daemon to answer and to exit, and for a client.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Folder with programs in `bin`, their versions in `versions`, and what a campaign needs beside them.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
}

impl Place {
    /// Opens a folder that the script `benchmarks/SCRIPT` made.
    pub(crate) fn open(dir: &Path, script: &str) -> Result<Place> {
        let dir = std::path::absolute(dir).at("find", dir)?;
        match dir.join("versions").exists() {
            true => Ok(Place { dir }),
            false => Err(Error::Usage(format!(
                "{}: has no programs; make them with benchmarks/{script} {0}",
                dir.display()
            ))),
        }
    }

    /// Returns the names and versions of the programs.
    pub(crate) fn versions(&self) -> Result<String> {
        let path = self.dir.join("versions");
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        Ok(text.trim().replace('\n', ", "))
    }

    /// Returns a command that runs a program of the folder.
    pub(crate) fn command(&self, name: &str) -> Command {
        let bin = self.dir.join("bin");
        let mut command = Command::new(bin.join(name));
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("OTEL_TRACES_EXPORTER", "none");
        command
    }

    /// Runs a program of the folder, and returns its standard output.
    pub(crate) fn output(&self, name: &str, edit: impl FnOnce(&mut Command)) -> Result<String> {
        let mut command = self.command(name);
        edit(&mut command);
        helper::run(&mut command, 0, TIME_LIMIT).map_err(Error::Command)
    }
}

/// Returns a free address of the loopback interface, for the server that a message names.
pub(crate) fn free_address(server: &str) -> Result<SocketAddr> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let free = free.and_then(|listener| listener.local_addr());
    free.at("find a port for", Path::new(server))
}

/// Process in the background. Dropping it ends the process.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts a process, and waits until it is up.
    pub(crate) fn start(
        mut command: Command,
        log: &Path,
        is_up: impl Fn() -> bool,
    ) -> Result<Daemon> {
        let program = PathBuf::from(command.get_program());
        let name = program
            .file_name()
            .unwrap_or_default()
            .display()
            .to_string();
        let out = File::create(log).at("create", log)?;
        let errors = out.try_clone().at("create", log)?;
        // A ^C reaches only the lab.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors);
        let child = command.spawn().at("run", &program)?;
        let mut daemon = Daemon { child };
        let end = Instant::now() + TIME_LIMIT;
        while !is_up() {
            let ended = daemon.child.try_wait().at("wait for", &program)?;
            if let Some(status) = ended {
                return Err(Error::Command(format!("{name} exited: {status}")));
            }
            if Instant::now() > end {
                return Err(Error::Command(format!("{name} does not answer")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(daemon)
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let end = Instant::now() + TIME_LIMIT / 6;
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Unmounts everything below a folder, the last mount first.
pub(crate) fn unmount_all(folder: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let mut points: Vec<&Path> = points
        .map(Path::new)
        .filter(|p| p.starts_with(folder))
        .collect();
    points.reverse();
    for point in points {
        let mut umount = Command::new("umount");
        let _ = umount
            .arg("--lazy")
            .arg(point)
            .stderr(Stdio::null())
            .status();
    }
}
