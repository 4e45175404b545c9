//! Server of files behind a link of chosen latency, bandwidth and faults.
//!
//! All answers pass one link, one after another. An answer is sent when its last byte would have arrived, plus the latency. This
//! leaves out handshakes and the slow start of TCP, and it favours small answers, whose first bytes a real network delivers
//! earlier.

use crate::{At, Result};
use clap::ValueEnum;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tuff_testkit::{Rng, http};

/// Delay of an answer with the fault `slow`.
const SLOW: Duration = Duration::from_millis(200);
/// Length of an outage.
const OUTAGE: Duration = Duration::from_millis(300);
/// Fault of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// It breaks off in its middle.
    Cut,
    /// It comes 200 ms later.
    Slow,
    /// It has the status 429 or 503.
    Busy,
    /// The connection is closed without it.
    Closed,
    /// The server is killed and comes back after 300 ms.
    Outage,
}

/// Link between server and client.
#[derive(Clone, Debug, clap::Args)]
pub struct Network {
    /// Time from the last byte of an answer at the server to its arrival, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub latency: u64,
    /// Bandwidth of the link in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub bandwidth: u64,
    /// Answers of 1000 with a fault: cut, slow (200 ms more), busy (429 or 503), closed (no answer), outage (of 300 ms);
    /// may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = fault)]
    pub fault: Vec<(Fault, usize)>,
}

fn fault(text: &str) -> std::result::Result<(Fault, usize), String> {
    let (name, number) = text.split_once('=').ok_or("expected NAME=N")?;
    let fault = Fault::from_str(name, false)?;
    let number = number.parse().ok().filter(|n| *n <= 1000);
    Ok((fault, number.ok_or("expected a number up to 1000")?))
}

impl Network {
    /// Returns the names and values of the conditions in a record.
    pub fn settings(&self) -> [(&'static str, String); 3] {
        let faults = self.fault.iter();
        let faults = faults.map(|(fault, n)| format!("{fault:?} {n}").to_lowercase());
        let faults = faults.collect::<Vec<_>>().join(", ");
        [
            ("latency, ms", self.latency.to_string()),
            ("bandwidth, Mbit/s", self.bandwidth.to_string()),
            (
                "faults, answers of 1000",
                if faults.is_empty() {
                    "0".to_owned()
                } else {
                    faults
                },
            ),
        ]
    }
}

struct Link {
    /// Time from which on the link is free.
    free: Instant,
    /// End of an outage.
    back: Instant,
    rng: Rng,
    bytes: u64,
}

/// Server of files, by their paths in URLs.
pub(super) struct Remote {
    server: http::Server,
    link: Arc<Mutex<Link>>,
}

impl Remote {
    /// Starts a server of one file at a path.
    pub(super) fn serve(path: &str, file: &Path, network: &Network, seed: u64) -> Result<Remote> {
        let now = Instant::now();
        let link = Arc::new(Mutex::new(Link {
            free: now,
            back: now,
            rng: Rng::new(seed),
            bytes: 0,
        }));
        let size = crate::measure::workspace::length(file)?;
        let opened = File::open(file).at("open", file)?;
        let (path, network, shared) = (path.to_owned(), network.clone(), Arc::clone(&link));
        let server = http::Server::start(move |request| {
            let answer = match request.path == path {
                true => object(request, &opened, size),
                // A profile beside the image, for example.
                false => http::Answer::status(404),
            };
            let mut link = shared.lock().unwrap_or_else(|e| e.into_inner());
            link.pass(&network, answer)
        });
        Ok(Remote { server, link })
    }

    /// Returns the URL of a path.
    pub(super) fn url(&self, path: &str) -> String {
        self.server.url(path)
    }

    /// Returns the number of requests for a path since the start or the last call.
    pub(super) fn take_requests(&self, path: &str) -> usize {
        let requests = self.server.take_requests();
        requests.iter().filter(|r| r.path == path).count()
    }

    /// Returns the number of bytes sent.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.link.lock().unwrap_or_else(|e| e.into_inner()).bytes
    }
}

impl Link {
    /// Returns an answer with the delay of the link, or with a fault in its place.
    fn pass(&mut self, network: &Network, mut answer: http::Answer) -> http::Answer {
        let now = Instant::now();
        let closed = http::Answer::status(0);
        let mut left = self.rng.below(1000);
        let mut drawn = None;
        for (fault, number) in &network.fault {
            if left < *number {
                drawn = Some(*fault);
                break;
            }
            left -= number;
        }
        if now < self.back {
            return closed;
        }
        match drawn {
            Some(Fault::Closed) => return closed,
            Some(Fault::Outage) => {
                self.back = now + OUTAGE;
                return closed;
            }
            Some(Fault::Busy) if self.rng.below(2) == 0 => {
                answer = http::Answer::status(429).with("Retry-After", 0);
            }
            Some(Fault::Busy) => answer = http::Answer::status(503),
            Some(Fault::Cut) => answer.cut = Some(answer.body.len() / 2),
            Some(Fault::Slow) => answer.delay = SLOW,
            None => {}
        }
        let length = answer.body.len();
        self.bytes += length as u64;
        let time = Duration::from_secs_f64(length as f64 * 8e-6 / network.bandwidth as f64);
        self.free = self.free.max(now) + time;
        answer.delay += self.free - now + Duration::from_millis(network.latency);
        answer
    }
}

/// Answers a request for a file, which is not read into memory as a whole unless all of it is requested.
fn object(request: &http::Request, file: &File, size: u64) -> http::Answer {
    let range = request.range(size);
    if range.is_none() && request.headers.contains_key("range") {
        return http::Answer::status(416);
    }
    let mut answer = http::Answer::status(if range.is_some() { 206 } else { 200 });
    if let Some(range) = &range {
        let stated = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        answer = answer.with("Content-Range", stated);
    }
    let range = range.unwrap_or(0..size);
    answer.body = vec![0; (range.end - range.start) as usize]; // fits: what a client requests
    match file.read_exact_at(&mut answer.body, range.start) {
        Ok(()) => answer.with("ETag", "\"1\""),
        Err(_) => http::Answer::status(500),
    }
}
