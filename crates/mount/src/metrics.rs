//! The counters in the text format of Prometheus, over HTTP on a loopback address.

use crate::counters::LATENCY_US;
use crate::handler::Handler;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Longest request that is looked at. Unit: bytes.
const REQUEST_MAX: usize = 4096;
/// How long a client may take for a request or for taking the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves `/metrics` at `address` from a thread of its own, as long as the process lives. Returns the address, which has
/// a port if none was asked for.
///
/// # Errors
/// `InvalidInput` if the address is not a loopback address: the counters say what is read on this host.
pub fn serve(address: SocketAddr, handler: Arc<Handler>) -> io::Result<SocketAddr> {
    if !address.ip().is_loopback() {
        let what = format!("{address} is not a loopback address, such as 127.0.0.1:9000");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let serve = move || {
        for client in listener.incoming().flatten() {
            // A client that goes away is no concern of the mount's.
            let _ = answer(client, &handler);
        }
    };
    let name = "metrics".to_owned();
    std::thread::Builder::new().name(name).spawn(serve)?;
    Ok(bound)
}

fn answer(mut client: TcpStream, handler: &Handler) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        match client.read(&mut piece)? {
            0 => break,
            n => request.extend_from_slice(&piece[..n]),
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", text(handler))
    } else {
        ("404 Not Found", "see /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}

/// All counters.
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
