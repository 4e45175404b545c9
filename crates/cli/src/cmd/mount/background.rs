//! Background server: the program runs itself a second time, so that nothing forks after threads exist. The server
//! prints "ready" on its standard output when the mount is ready.

use crate::text::escaped_line;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use tuff_erofs::{Error, Result};
use tuff_fuse::Log;

/// Environment variable that marks the serving process.
const MARK: &str = "TUFF_MOUNT_IN_BACKGROUND";
const READY: &str = "ready";

/// Role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cmd) enum Role {
    /// Starts the server, waits until it is ready, and exits.
    Starter,
    /// Serves the mount until it is unmounted.
    Server { in_background: bool },
}

impl Role {
    pub(in crate::cmd) fn of_this_process(foreground: bool) -> Self {
        if foreground {
            Self::Server {
                in_background: false,
            }
        } else if std::env::var_os(MARK).is_some() {
            Self::Server {
                in_background: true,
            }
        } else {
            Self::Starter
        }
    }
}

/// Returns a command that runs this program with the same arguments.
pub(in crate::cmd) fn same_command() -> io::Result<Command> {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "tuff".into());
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(name).args(args);
    Ok(command)
}

/// Runs this program again and waits until it serves. Returns its exit code if it fails.
pub(in crate::cmd) fn start() -> Result<ExitCode> {
    let failed = |e| Error::io("tuff mount", "cannot start the serving process", e);
    let mut child = same_command()
        .map_err(failed)?
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(failed)?;
    }
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // The server has printed the error.
    let status = child.wait().map_err(failed)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::from(5), ExitCode::from))
}

/// Starts a new session, so that signals of the terminal do not reach the process.
pub(in crate::cmd) fn leave_terminal() {
    // Fails only for a process group leader, which a new child is not.
    let _ = rustix::process::setsid();
}

/// Reports that the mount is ready to the service manager and to the starting process, then detaches from the terminal
/// and the working directory.
pub(in crate::cmd) fn ready(in_background: bool) -> Result<()> {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        let message = format!("READY=1\nMAINPID={}\n", std::process::id());
        if let Err(e) = notify(Path::new(&socket), message.as_bytes()) {
            eprintln!("tuff: {}: {e}", Path::new(&socket).display());
        }
    }
    if !in_background {
        return Ok(());
    }
    let failed = |e| Error::io("tuff mount", "cannot go into the background", e);
    let mut out = io::stdout();
    writeln!(out, "{READY}")
        .and_then(|()| out.flush())
        .map_err(failed)?;
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(failed)?;
    std::env::set_current_dir("/").map_err(failed)?;
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null))
        .map_err(|e| failed(e.into()))
}

/// Sends a message to a socket: a path, or "@name" for an abstract one.
fn notify(socket: &Path, message: &[u8]) -> io::Result<()> {
    let ours = UnixDatagram::unbound()?;
    let text = socket.as_os_str().as_encoded_bytes();
    let address = match text.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    ours.send_to_addr(message, &address).map(|_| ())
}

/// Opens the log: `file`, the system log in the background, or standard error.
pub(in crate::cmd) fn log(file: Option<&Path>, in_background: bool) -> Result<Log> {
    if let Some(path) = file {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        let file = opened.map_err(|e| Error::io(path.display(), "cannot open", e))?;
        let file = Mutex::new(file);
        return Ok(Log::new(move |line| {
            let mut file = file.lock().unwrap_or_else(|e| e.into_inner());
            // A full disk must not stop the mount.
            let _ = writeln!(file, "{}", escaped_line(line));
        }));
    }
    let system = if in_background { system_log() } else { None };
    Ok(match system {
        Some(socket) => Log::new(move |line| {
            // Facility daemon, severity error.
            let text = format!("<27>tuff[{}]: {}", std::process::id(), escaped_line(line));
            let _ = socket.send(text.as_bytes());
        }),
        None => Log::new(|line| {
            eprintln!("tuff: {line}");
        }),
    })
}

fn system_log() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect("/dev/log").ok()?;
    // A full log must not stop the mount either.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}
