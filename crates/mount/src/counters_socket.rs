//! Counters of a mount by the kernel, which has no attribute for them: a socket of the process that serves the mount.
//!
//! The name of the socket has the device number of the filesystem and a random number. The kernel gives a device number to another
//! filesystem as soon as the first one ends, so the number alone proves nothing. A server answers only while its filesystem
//! exists, and a reader keeps a file of its filesystem open from before it reads the device number until it has the answer. Both
//! filesystems exist at that moment, so equal numbers mean the same filesystem, in every mount namespace.
//!
//! Every user can create such a socket. A reader accepts answers of root and of its own user.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Longest text of counters and requests. Unit: bytes.
const TEXT_MAX: u64 = 64 << 10;

/// Time that the other side may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sockets of this network namespace. The first byte of an abstract name, which is NUL, is shown as `@`.
const TABLE: &str = "/proc/self/net/unix";

/// Device number of a filesystem, major and minor.
pub type Device = (u32, u32);

fn prefix(device: Device) -> String {
    format!("tuff/counters/{}:{}/", device.0, device.1)
}

/// Sends the counters to everyone who connects, from a thread that ends with the filesystem. `end` becomes readable before the
/// kernel gives the device number to another filesystem.
///
/// # Errors
/// Fails if there can be no socket or no thread.
pub fn serve(
    device: Device,
    end: impl AsFd + Send + 'static,
    text: impl Fn() -> String + Send + 'static,
) -> io::Result<()> {
    let random = RandomState::new().hash_one(0);
    let name = format!("{}{random:016x}", prefix(device));
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    let answer = move || {
        while wait_for_either(&listener, &end) {
            let Ok((mut stream, _)) = listener.accept() else {
                continue;
            };
            // The reader holds its filesystem from before it connected. If this one exists too, they are the same.
            if is_readable(&end) {
                return;
            }
            // A reader that is gone needs no answer.
            let _ = stream
                .set_write_timeout(Some(TIMEOUT))
                .and_then(|()| stream.write_all(text().as_bytes()));
        }
    };
    let thread = std::thread::Builder::new().name("counters".to_owned());
    thread.spawn(answer).map(drop)
}

/// Waits for a connection. Returns false if the filesystem ended.
fn wait_for_either(listener: &UnixListener, end: &impl AsFd) -> bool {
    let mut fds = [
        PollFd::new(listener, PollFlags::IN),
        PollFd::new(end, PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) => fds[1].revents().is_empty(),
        Err(e) => e == rustix::io::Errno::INTR,
    }
}

fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    // An error is no proof that the filesystem exists.
    poll(&mut fds, Some(&Timespec::default())) != Ok(0)
}

/// Reads the counters of the mount with this device number, if a server of root or of this user has them. The caller has a file of
/// the mount open, and has read the number from that.
pub fn read(device: Device) -> Option<String> {
    let table = std::fs::read(TABLE).ok()?;
    let table = String::from_utf8_lossy(&table);
    let prefix = prefix(device);
    let names = table.lines().filter_map(|line| {
        let (_, name) = line.split_once('@')?;
        let random = name.strip_prefix(&prefix)?;
        let is_number = random.len() == 16 && random.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then_some(name)
    });
    names
        .filter_map(|name| ask(name).ok())
        .find(|text| !text.is_empty())
}

/// Returns what the server at an abstract name sends. Empty if its filesystem ended.
fn ask(name: &str) -> io::Result<String> {
    // A socket of another user must not make the reader wait, not even for a place in its queue.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    let server = socket_peercred(&socket)?.uid;
    if !server.is_root() && server != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = Vec::new();
    stream.take(TEXT_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device number that no filesystem has.
    fn device(number: u32) -> Device {
        (u32::MAX - number, std::process::id())
    }

    #[test]
    fn counters_are_read_by_the_device_number() {
        let (_held, end) = UnixStream::pair().unwrap();
        assert_eq!(read(device(0)), None);
        serve(device(0), end, || "reads 1\n".to_owned()).unwrap();
        assert_eq!(read(device(0)).unwrap(), "reads 1\n");
        assert_eq!(read(device(0)).unwrap(), "reads 1\n");
        assert_eq!(read(device(1)), None);
    }

    #[test]
    fn a_server_whose_filesystem_ended_does_not_answer_for_the_next_one_with_its_device_number() {
        let (first, first_end) = UnixStream::pair().unwrap();
        serve(device(2), first_end, || "first 1\n".to_owned()).unwrap();
        assert_eq!(read(device(2)).unwrap(), "first 1\n");
        drop(first);
        let (_second, second_end) = UnixStream::pair().unwrap();
        serve(device(2), second_end, || "second 1\n".to_owned()).unwrap();
        for _ in 0..50 {
            assert_eq!(read(device(2)).unwrap(), "second 1\n");
        }
    }

    #[test]
    fn sockets_that_do_not_accept_or_have_other_names_do_not_delay_or_change_the_answer() {
        let listener = |name: String| {
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
        };
        // Its queue is full.
        let deaf = listener(format!("{}{:016x}", prefix(device(3)), 0));
        rustix::net::listen(&deaf, 0).unwrap();
        let waiting = deaf.local_addr().unwrap();
        let _first = UnixStream::connect_addr(&waiting).unwrap();
        let _other = listener(format!("{}x", prefix(device(3))));
        let (_held, end) = UnixStream::pair().unwrap();
        serve(device(3), end, || "reads 3\n".to_owned()).unwrap();
        assert_eq!(read(device(3)).unwrap(), "reads 3\n");
    }
}
