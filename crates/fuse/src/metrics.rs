//! Prometheus exporter: the counters over HTTP on a loopback address.

use crate::counters::{LATENCY_US, READ_SIZES, ReadSizes};
use crate::handler::Handler;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request that is accepted. Unit: bytes.
const REQUEST_MAX: usize = 4096;
/// Time limit for a client's request, and again for reading the response.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of open connections. A further one closes the oldest.
const CLIENTS_MAX: usize = 64;

/// Serves `/metrics` at `address` from a thread that lives as long as the process. Returns the bound address.
///
/// # Errors
/// `InvalidInput` if the address is not a loopback address: the counters reveal what is read on this host.
pub fn serve(address: SocketAddr, handler: Arc<Handler>) -> io::Result<SocketAddr> {
    if !address.ip().is_loopback() {
        let what = format!("{address} is not a loopback address, such as 127.0.0.1:9000");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let serve = move || {
        let mut clients = Vec::new();
        loop {
            serve_once(&listener, &mut clients, &handler);
        }
    };
    let name = "metrics".to_owned();
    std::thread::Builder::new().name(name).spawn(serve)?;
    Ok(bound)
}

/// Connection of one client. No client waits for another.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    /// Response. Empty until the request is complete.
    answer: Vec<u8>,
    /// Number of response bytes sent.
    sent: usize,
    deadline: Instant,
}

/// Waits for an event and handles it.
fn serve_once(listener: &TcpListener, clients: &mut Vec<Client>, handler: &Handler) {
    let now = Instant::now();
    clients.retain(|client| client.deadline > now);
    let first = clients.iter().map(|client| client.deadline - now).min();
    let mut ready = vec![PollFd::new(listener, PollFlags::IN)];
    ready.extend(clients.iter().map(|client| {
        let requested = match client.answer.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        PollFd::new(&client.stream, requested)
    }));
    let timeout = first.and_then(|first| Timespec::try_from(first).ok());
    if !matches!(poll(&mut ready, timeout.as_ref()), Ok(_) | Err(Errno::INTR)) {
        std::thread::sleep(TIME_LIMIT / 20);
    }
    drop(ready);
    // Fewer than the maximum, so that each is served before it may be closed.
    for _ in 0..CLIENTS_MAX / 2 {
        match listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_err() {
                    continue;
                }
                if clients.len() >= CLIENTS_MAX {
                    clients.remove(0);
                }
                clients.push(Client {
                    stream,
                    request: Vec::new(),
                    answer: Vec::new(),
                    sent: 0,
                    deadline: Instant::now() + TIME_LIMIT,
                });
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => {
                // Possibly too many open files: an immediate retry would fail again.
                std::thread::sleep(TIME_LIMIT / 20);
                break;
            }
        }
    }
    clients.retain_mut(|client| match client.step(handler) {
        Ok(()) => false,
        // Errors of a client do not concern the mount.
        Err(e) => matches!(
            e.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    });
}

impl Client {
    /// Reads the request and writes the response without blocking.
    fn step(&mut self, handler: &Handler) -> io::Result<()> {
        let mut piece = [0; 1024];
        while self.answer.is_empty() {
            let n = self.stream.read(&mut piece)?;
            self.request.extend_from_slice(&piece[..n]);
            let is_whole = self.request.windows(4).any(|w| w == b"\r\n\r\n");
            if n == 0 || is_whole || self.request.len() >= REQUEST_MAX {
                self.answer = answer(&self.request, handler);
                self.deadline = Instant::now() + TIME_LIMIT;
            }
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..])? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => self.sent += n,
            }
        }
        Ok(())
    }
}

fn answer(request: &[u8], handler: &Handler) -> Vec<u8> {
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", text(handler))
    } else {
        ("404 Not Found", "see /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Returns all counters in the Prometheus text format.
pub fn text(handler: &Handler) -> String {
    let mut out = String::new();
    let sums = handler.counters().sums();
    for (name, of) in [
        ("tuff_request_errors_total", 0),
        ("tuff_returned_bytes_total", 1),
    ] {
        let _ = writeln!(out, "# TYPE {name} counter");
        for sum in &sums {
            let n = [sum.errors, sum.returned_bytes][of];
            let _ = writeln!(out, "{name}{{op=\"{}\"}} {n}", sum.name);
        }
    }
    let name = "tuff_request_seconds";
    let _ = writeln!(out, "# TYPE {name} histogram");
    for sum in &sums {
        let op = sum.name;
        let mut below = 0;
        for (n, end) in sum.classes.iter().zip(LATENCY_US) {
            below += n;
            let le = end as f64 / 1e6;
            let _ = writeln!(out, "{name}_bucket{{op=\"{op}\",le=\"{le}\"}} {below}");
        }
        let all = sum.requests;
        let _ = writeln!(out, "{name}_bucket{{op=\"{op}\",le=\"+Inf\"}} {all}");
        let seconds = sum.nanoseconds as f64 / 1e9;
        let _ = writeln!(out, "{name}_sum{{op=\"{op}\"}} {seconds}");
        let _ = writeln!(out, "{name}_count{{op=\"{op}\"}} {all}");
    }
    put_read_sizes(&mut out, &handler.counters().read_sizes());
    let uptime = handler.counters().seconds();
    let _ = writeln!(
        out,
        "# TYPE tuff_uptime_seconds gauge\ntuff_uptime_seconds {uptime}"
    );
    for (name, value) in handler.filesystem().counters() {
        let _ = writeln!(
            out,
            "# TYPE tuff_image_{name} untyped\ntuff_image_{name} {value}"
        );
    }
    out
}

/// Appends the histogram of the sizes of read requests.
fn put_read_sizes(out: &mut String, sizes: &ReadSizes) {
    let name = "tuff_read_size_bytes";
    let _ = writeln!(out, "# TYPE {name} histogram");
    let mut up_to = 0;
    for (n, max) in sizes.classes.iter().zip(READ_SIZES) {
        up_to += n;
        let _ = writeln!(out, "{name}_bucket{{le=\"{max}\"}} {up_to}");
    }
    let all: u64 = sizes.classes.iter().sum();
    let sum = sizes.requested_bytes;
    let _ = writeln!(
        out,
        "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {sum}\n{name}_count {all}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;

    #[test]
    fn read_sizes_are_a_cumulative_histogram() {
        let counters = Counters::new(1);
        for size in [4096, 4096, 8192, 2 << 20] {
            counters.thread(0).count_read(size);
        }
        let mut out = String::new();
        put_read_sizes(&mut out, &counters.read_sizes());
        assert_eq!(
            out,
            "\
# TYPE tuff_read_size_bytes histogram
tuff_read_size_bytes_bucket{le=\"512\"} 0
tuff_read_size_bytes_bucket{le=\"1024\"} 0
tuff_read_size_bytes_bucket{le=\"2048\"} 0
tuff_read_size_bytes_bucket{le=\"4096\"} 2
tuff_read_size_bytes_bucket{le=\"8192\"} 3
tuff_read_size_bytes_bucket{le=\"16384\"} 3
tuff_read_size_bytes_bucket{le=\"32768\"} 3
tuff_read_size_bytes_bucket{le=\"65536\"} 3
tuff_read_size_bytes_bucket{le=\"131072\"} 3
tuff_read_size_bytes_bucket{le=\"262144\"} 3
tuff_read_size_bytes_bucket{le=\"524288\"} 3
tuff_read_size_bytes_bucket{le=\"1048576\"} 3
tuff_read_size_bytes_bucket{le=\"+Inf\"} 4
tuff_read_size_bytes_sum 2113536
tuff_read_size_bytes_count 4
"
        );
    }
}
