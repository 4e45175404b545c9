//! Counters of a mount by the kernel, which has no attribute for them: a socket that is named by the device of the mount.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Longest text of counters. Unit: bytes.
const TEXT_MAX: u64 = 64 << 10;

/// Time that the other side may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Device number of a filesystem, major and minor.
pub(crate) type Device = (u32, u32);

fn address(device: Device) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("tuff/counters/{}:{}", device.0, device.1))
}

/// Sends the counters to everyone who connects, from a thread that ends with the process.
pub(crate) fn serve(device: Device, text: impl Fn() -> String + Send + 'static) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address(device)?)?;
    let answer = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            // A reader that is gone needs no answer.
            let _ = stream
                .set_write_timeout(Some(TIMEOUT))
                .and_then(|()| stream.write_all(text().as_bytes()));
        }
    };
    let thread = std::thread::Builder::new().name("counters".to_owned());
    thread.spawn(answer).map(drop)
}

/// Reads the counters of the mount with this device number.
pub(crate) fn read(device: Device) -> io::Result<String> {
    let stream = UnixStream::connect_addr(&address(device)?)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = Vec::new();
    stream.take(TEXT_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_the_device_number() {
        let device = (u32::MAX, std::process::id());
        assert!(read(device).is_err());
        serve(device, || "reads 1\n".to_owned()).unwrap();
        assert_eq!(read(device).unwrap(), "reads 1\n");
        assert_eq!(read(device).unwrap(), "reads 1\n");
    }
}
