//! `--kernel` with a URL: the kernel's EROFS on files that this process exports through FUSE.
//!
//! ```text
//!  DIR ──► kernel's EROFS ──► files of the export ──► FUSE ──► this process ──► remote stores
//! ```
//!
//! The export has a file for the image, or the index of several layers, and one for each device.
//!
//! No directory shows the export: it lives as long as the mount that reads it, and leaves nothing behind. A child process mounts
//! on it, because a process that waits for its own replies cannot be killed.

use crate::counters_socket::Device;
use crate::export::{BadName, ExportFs, THREADS};
use crate::kernel_erofs::{self, EndWatch, FileReads, KernelErofs};
use rustix::mount::MountFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tuff_fuse::mountpoint;
use tuff_fuse::transport::Transport;
use tuff_fuse::{CpuLatencyMode, Handler, Log, Session, SessionOptions};
use tuff_open::{ImageRef, RemoteImage};
use tuff_store::ReadAt;

/// Longest source of a mount that fsconfig(2) takes. Unit: bytes.
const SOURCE_MAX: usize = 255;

/// Environment variable that marks the process which mounts: the number of devices in the export, whose root directory is
/// the standard input of that process.
const MARK: &str = "TUFF_MOUNT_EXPORT";

/// Kernel mount of an image that this process serves.
pub struct Exported {
    /// Session of the export, which ends with the mount.
    pub session: Session<Handler>,
    /// Directory of the mount: absolute, without symlinks.
    pub dir: PathBuf,
    /// Device number of the kernel's filesystem, major and minor.
    pub device: Device,
    /// Watch for the end of the kernel's filesystem.
    pub end: EndWatch,
}

/// Creates the handler of an export with the image in `store` and its devices.
pub fn handler(store: &Arc<RemoteImage>, image: &ImageRef, log: &Log) -> Arc<Handler> {
    let primary: Arc<dyn ReadAt> = Arc::<RemoteImage>::clone(store);
    let devices = (1..).map(device_name).zip(store.devices().iter().cloned());
    let files = std::iter::once((name(image).1, primary)).chain(devices);
    let export = ExportFs::new(files, log.clone());
    let export = export.unwrap_or_else(|BadName(name)| panic!("bug: {name} is no name"));
    let counted = Arc::clone(store);
    let traced = Arc::clone(store);
    let export = export
        .with_store_counters(Arc::new(move || counted.counters()))
        .with_store_requests(Arc::new(move |max| traced.requests(max)));
    Arc::new(Handler::new(Arc::new(export), THREADS, log.clone()))
}

/// Path of a device in the export. No URL begins like that.
fn device_name(number: usize) -> String {
    format!("device{number}")
}

/// Source of the mount, and the path in the export that the kernel finds by it.
///
/// The source is the URL if that is a path too: `s3://b/k` is found as `s3:/b/k`.
fn name(image: &ImageRef) -> (PathBuf, String) {
    let text = image.to_string();
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    let is_short = text.len() <= SOURCE_MAX;
    let is_path = |part: &&str| !matches!(*part, "." | "..");
    match is_short && parts.iter().all(is_path) && !text.ends_with('/') && !text.starts_with('/') {
        true => (PathBuf::from(&text), parts.join("/")),
        false => ("image".into(), "image".to_owned()),
    }
}

/// Mounts the kernel's EROFS on the image of `handler`, which has a number of devices. Returns the reason if that is not
/// possible.
///
/// `command` runs a program that calls [`mount_from_input`] with the same image and directory if it [is the child](is_child).
///
/// # Errors
/// The reason, as text.
pub fn mount(
    image: &ImageRef,
    dir: &Path,
    handler: &Arc<Handler>,
    devices: usize,
    cpu_latency: CpuLatencyMode,
    command: Command,
) -> Result<Exported, String> {
    let shown = |e: std::io::Error| e.to_string();
    let dir = std::fs::canonicalize(dir).map_err(shown)?;
    let (mountpoint, root) = mountpoint::attach_nowhere(&name(image).0).map_err(shown)?;
    let options = SessionOptions {
        threads: THREADS,
        // Threads of rings would serve the requests of one processor each, also while they wait.
        transport: Transport::Dev,
        cpu_latency,
        // The store reads ahead, and a profile knows better than the kernel what comes next.
        raises_read_ahead: false,
    };
    let session = Session::start(Arc::clone(handler), mountpoint, options).map_err(shown)?;
    // The child holds the directory. Unless it mounts, its end closes the last reference to the export.
    match run_child(command, Stdio::from(root), devices) {
        Ok((device, end)) => Ok(Exported {
            session,
            dir,
            device,
            end,
        }),
        Err(why) => {
            session.wait();
            Err(why)
        }
    }
}

/// Runs a command to mount from the export whose root directory is `root`. Returns the device number of the mount, and a watch for
/// its end.
fn run_child(
    mut command: Command,
    root: Stdio,
    devices: usize,
) -> Result<(Device, EndWatch), String> {
    let failed = |e: std::io::Error| format!("cannot start the process that mounts: {e}");
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut child = command
        .env(MARK, devices.to_string())
        .stdin(root)
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    // It holds the other end of the socket.
    drop(command);
    let received = receive(ours);
    let status = child.wait().map_err(failed)?;
    let (text, end) = received.map_err(failed)?;
    let text = text.trim();
    let number = |text: &str| text.parse().ok();
    let device = text
        .split_once(':')
        .and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    match (status.success(), device, end) {
        (true, Some(device), Some(end)) => Ok((device, end.into())),
        (true, ..) => Err(format!("the process that mounts printed {text:?}")),
        (false, ..) => Err(text.to_owned()),
    }
}

/// Receives the text of the process that mounts, and the descriptor that comes with it.
fn receive(mut socket: UnixStream) -> std::io::Result<(String, Option<OwnedFd>)> {
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let end = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let mut text = bytes[..received.bytes].to_vec();
    socket.read_to_end(&mut text)?;
    Ok((String::from_utf8_lossy(&text).into_owned(), end))
}

/// Sends the device number of a mount, and the watch for its end, to the process that waits for them at standard output.
fn send((major, minor): Device, end: &EndWatch) -> rustix::io::Result<()> {
    let text = format!("{major}:{minor}\n");
    let fds = [end.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let parts = [IoSlice::new(text.as_bytes())];
    sendmsg(
        rustix::stdio::stdout(),
        &parts,
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map(drop)
}

/// Returns true in the process that mounts from an export.
pub fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Mounts from the export whose root directory is the standard input. Sends the device number and a watch for the end of the
/// mount, or the reason if mounting is not possible. Returns false in that case.
pub fn mount_from_input(image: &ImageRef, dir: &Path, flags: MountFlags) -> bool {
    let mounted = attach(image, dir, flags);
    if let Err(why) = &mounted {
        let _ = writeln!(std::io::stdout(), "{why}");
    }
    mounted.is_ok()
}

fn attach(image: &ImageRef, dir: &Path, flags: MountFlags) -> Result<(), String> {
    let dir = std::fs::canonicalize(dir).map_err(|e| e.to_string())?;
    let (source, _) = name(image);
    let devices = std::env::var(MARK)
        .ok()
        .and_then(|count| count.parse().ok());
    let devices = devices.ok_or_else(|| format!("{MARK} is not a number of devices"))?;
    let devices: Vec<PathBuf> = (1..=devices).map(|n| device_name(n).into()).collect();
    let input = rustix::stdio::stdin();
    let mounted = rustix::process::fchdir(input)
        .and_then(|()| {
            // The store reads ahead, and a second copy of the image would fill the page cache.
            KernelErofs::open(&source, &devices, FileReads::Direct, flags)
        })
        .and_then(|mount| {
            let (device, end) = (mount.device()?, mount.watch()?);
            mount.attach(&dir)?;
            send(device, &end)
        });
    mounted.map_err(kernel_erofs::reason)
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_source_of_a_mount_is_its_url_where_that_is_a_path() {
        let of = |url: &str| {
            let (source, path) = name(&Path::new(url).into());
            (source.display().to_string(), path)
        };
        let pair = |source: &str, path: &str| (source.to_owned(), path.to_owned());
        assert_eq!(of("s3://b/k/l"), pair("s3://b/k/l", "s3:/b/k/l"));
        let oci = "oci://r:5000/n:latest";
        assert_eq!(of("oci://r:5000/n"), pair(oci, "oci:/r:5000/n:latest"));
        let long = format!("https://h/{}", "long/".repeat(50) + "image");
        for bad in ["s3://b/../k", "https://h/", "s3://b/k/", &long] {
            assert_eq!(of(bad), pair("image", "image"), "{bad}");
        }
    }
}
