//! Emulated link between clients and a server: a TCP proxy on a port of the loopback interface.
//!
//! | property | emulation |
//! |---|---|
//! | round trip | bytes arrive half of it after they were sent, in each direction |
//! | handshake | the first byte of a connection leaves one round trip after it was opened |
//! | rate | all connections share one downlink, first in first out, with 54 bytes of headers for each 1460 bytes |
//! | window | a connection has at most 4 MiB in flight; with slow start 14,600 bytes at first, and more with each acknowledgement |
//! | cold mirror | the header `Range` of requests for a blob is left out for a time after the first of them |
//! | limit | more requests in a second are answered with 429; requests have no body |
//!
//! The last two, and the number of requests, need HTTP/1.1 in clear. With TLS bytes pass as they are.

use crate::{At, Result};
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that pass at once.
const CHUNK: usize = 16 << 10;
/// Number of chunks that a direction of a connection holds.
const CHUNKS_MAX: usize = 512;
/// Payload and headers of a packet.
const PACKET: (u64, u64) = (1460, 54);
/// Window of a connection, at first with slow start, and at most.
const WINDOW: (usize, usize) = (10 * 1460, 4 << 20);
/// Time that the downlink is reserved ahead of the clock.
const AHEAD: Duration = Duration::from_millis(4);
/// Idle time, besides a round trip, after which the window of a connection is that of its beginning.
const IDLE: Duration = Duration::from_millis(200);
/// Longest head of a request. A longer one closes the connection.
const HEAD_MAX: usize = 64 << 10;
/// End of the head of a request.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Answer above the limit.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";

/// Properties of a link.
#[derive(Clone, Debug)]
pub(crate) struct LinkConditions {
    /// Time of a round trip.
    pub(crate) round_trip: Duration,
    /// Rate of the downlink in Mbit/s.
    pub(crate) mbit: f64,
    /// True for the slow start of TCP.
    pub(crate) slow_start: bool,
    /// Time for which a mirror sends whole blobs.
    pub(crate) cold: Option<Duration>,
    /// Requests in a second.
    pub(crate) limit: Option<u32>,
    /// True for connections with TLS.
    pub(crate) is_encrypted: bool,
}

impl Default for LinkConditions {
    /// Link without a delay or a limit, in clear.
    fn default() -> LinkConditions {
        LinkConditions {
            round_trip: Duration::ZERO,
            mbit: f64::INFINITY,
            slow_start: false,
            cold: None,
            limit: None,
            is_encrypted: false,
        }
    }
}

/// Bytes, requests and connections that passed a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes sent to clients.
    pub(crate) down_bytes: u64,
    /// Bytes received from clients.
    pub(crate) up_bytes: u64,
    /// Requests. 0 with TLS.
    pub(crate) requests: u64,
    /// Connections that were opened.
    pub(crate) connections: u64,
    /// Requests answered with 429.
    pub(crate) refused: u64,
}

/// Link to a server. Dropping it closes all connections.
pub(crate) struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    conditions: LinkConditions,
    server: SocketAddr,
    state: Mutex<State>,
    is_closed: AtomicBool,
}

struct State {
    traffic: Traffic,
    /// Time from which on the downlink is free.
    free: Instant,
    /// Times of the first requests for blobs.
    first: HashMap<String, Instant>,
    /// Times of the requests of the last second, with a limit.
    recent: VecDeque<Instant>,
    /// Both ends of each open connection.
    connections: Vec<[TcpStream; 2]>,
}

/// Bytes and the time of their arrival. No bytes end the direction.
type Parcel = (Instant, Vec<u8>);

impl Link {
    /// Opens a link to a server, on a free port of `address`.
    pub(crate) fn open(
        address: &str,
        server: SocketAddr,
        conditions: LinkConditions,
    ) -> Result<Link> {
        let here = Path::new("the link");
        let listener = TcpListener::bind((address, 0)).at("open", here)?;
        let address = listener.local_addr().at("open", here)?;
        let shared = Arc::new(Shared {
            conditions,
            server,
            state: Mutex::new(State {
                traffic: Traffic::default(),
                free: Instant::now(),
                first: HashMap::new(),
                recent: VecDeque::new(),
                connections: Vec::new(),
            }),
            is_closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.connect(client));
            }
        });
        Ok(Link { address, shared })
    }

    /// Returns the address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what passed since the last call, and counts from zero again.
    pub(crate) fn take(&self) -> Traffic {
        std::mem::take(&mut self.shared.lock().traffic)
    }

    /// Returns what passed since the last call of [`Link::take`].
    pub(crate) fn traffic(&self) -> Traffic {
        self.shared.lock().traffic
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        for stream in self.shared.lock().connections.drain(..).flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // The thread that accepts connections sees the flag with the next one.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the bytes of a connection in both directions until it is closed.
    fn connect(self: Arc<Self>, client: TcpStream) {
        let opened = Instant::now();
        let Ok(server) = TcpStream::connect(self.server) else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let clones = [&client, &client, &server, &server].map(TcpStream::try_clone);
        let [
            Ok(from_client),
            Ok(kept_client),
            Ok(to_server),
            Ok(kept_server),
        ] = clones
        else {
            return;
        };
        // The descriptor is the connection's own as long as it is open.
        let id = kept_client.as_raw_fd();
        {
            let mut state = self.lock();
            state.traffic.connections += 1;
            state.connections.push([kept_client, kept_server]);
        }
        let (up, at_server) = sync_channel(CHUNKS_MAX);
        let (down, at_client) = sync_channel(CHUNKS_MAX);
        std::thread::spawn(move || deliver(&at_server, to_server));
        std::thread::spawn(move || deliver(&at_client, client));
        let (shared, answers) = (Arc::clone(&self), down.clone());
        std::thread::spawn(move || shared.pass_requests(opened, from_client, &up, &answers));
        self.pass_answers(server, &down);
        let is_other = |ends: &[TcpStream; 2]| ends[0].as_raw_fd() != id;
        self.lock().connections.retain(is_other);
    }

    /// Passes what a client sends.
    fn pass_requests(
        &self,
        opened: Instant,
        mut client: TcpStream,
        up: &SyncSender<Parcel>,
        answers: &SyncSender<Parcel>,
    ) {
        let round_trip = self.conditions.round_trip;
        let mut buffer = vec![0; CHUNK];
        let mut head = Vec::new();
        // Bytes of the body of the last request that are yet to come.
        let mut body = 0;
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            let arrives = Instant::now().max(opened + round_trip) + round_trip / 2;
            self.lock().traffic.up_bytes += length as u64;
            if self.conditions.is_encrypted {
                if up.send((arrives, buffer[..length].to_vec())).is_err() {
                    return;
                }
                continue;
            }
            head.extend_from_slice(&buffer[..length]);
            loop {
                if body > 0 && !head.is_empty() {
                    let rest = head.split_off(body.min(head.len()));
                    let content = std::mem::replace(&mut head, rest);
                    body -= content.len();
                    if up.send((arrives, content)).is_err() {
                        return;
                    }
                }
                let Some(end) = head.windows(HEAD_END.len()).position(|w| w == HEAD_END) else {
                    break;
                };
                let rest = head.split_off(end + HEAD_END.len());
                let request = std::mem::replace(&mut head, rest);
                body = body_length(&request);
                let sent = match self.request(&request) {
                    Some(request) => up.send((arrives, request)),
                    None => answers.send((arrives + round_trip / 2, TOO_MANY.to_vec())),
                };
                if sent.is_err() {
                    return;
                }
            }
            if head.len() > HEAD_MAX {
                break;
            }
        }
        let _ = up.send((Instant::now(), Vec::new()));
    }

    /// Counts a request. Returns what the server receives, or None above the limit.
    fn request(&self, request: &[u8]) -> Option<Vec<u8>> {
        let now = Instant::now();
        let mut state = self.lock();
        state.traffic.requests += 1;
        if let Some(limit) = self.conditions.limit {
            let is_old = |time: &Instant| now.duration_since(*time) >= Duration::from_secs(1);
            while state.recent.front().is_some_and(is_old) {
                state.recent.pop_front();
            }
            if state.recent.len() >= limit as usize {
                state.traffic.refused += 1;
                return None;
            }
            state.recent.push_back(now);
        }
        let Some(cold) = self.conditions.cold else {
            return Some(request.to_vec());
        };
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let first = *state.first.entry(path.to_owned()).or_insert(now);
        if !path.contains("/blobs/") || now.duration_since(first) >= cold {
            return Some(request.to_vec());
        }
        let is_kept = |line: &&str| !line.to_ascii_lowercase().starts_with("range:");
        Some(
            text.split_inclusive("\r\n")
                .filter(is_kept)
                .collect::<String>()
                .into_bytes(),
        )
    }

    /// Passes what the server sends.
    fn pass_answers(&self, mut server: TcpStream, down: &SyncSender<Parcel>) {
        let round_trip = self.conditions.round_trip;
        let mut window = Window::new(self.conditions.slow_start);
        let mut buffer = vec![0; CHUNK];
        while let Ok(length @ 1..) = server.read(&mut buffer) {
            window.wait(length, round_trip);
            let sent = {
                let mut state = self.lock();
                let packets = (length as u64).div_ceil(PACKET.0);
                let bits = 8.0 * (length as u64 + packets * PACKET.1) as f64;
                let time = Duration::from_secs_f64(bits * 1e-6 / self.conditions.mbit);
                state.free = state.free.max(Instant::now()) + time;
                state.traffic.down_bytes += length as u64;
                state.free
            };
            window.sent(length, sent + round_trip);
            if down
                .send((sent + round_trip / 2, buffer[..length].to_vec()))
                .is_err()
            {
                return;
            }
            sleep_until(sent - AHEAD);
        }
        let _ = down.send((Instant::now(), Vec::new()));
    }
}

/// Returns the length of the body of a request, which its head states.
fn body_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let value = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    value.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
}

/// Congestion window of a connection, at the sender.
struct Window {
    slow_start: bool,
    size: usize,
    in_flight: usize,
    /// Times of acknowledgements, and their bytes.
    expected: VecDeque<(Instant, usize)>,
}

impl Window {
    fn new(slow_start: bool) -> Window {
        Window {
            slow_start,
            size: if slow_start { WINDOW.0 } else { WINDOW.1 },
            in_flight: 0,
            expected: VecDeque::new(),
        }
    }

    /// Waits until the window has room for more bytes.
    fn wait(&mut self, length: usize, round_trip: Duration) {
        self.acknowledge(Instant::now(), round_trip);
        while self.in_flight > 0 && self.in_flight + length > self.size {
            let Some((time, _)) = self.expected.front() else {
                return;
            };
            sleep_until(*time);
            self.acknowledge(Instant::now(), round_trip);
        }
    }

    fn acknowledge(&mut self, now: Instant, round_trip: Duration) {
        while let Some((time, length)) = self.expected.pop_front() {
            if time > now {
                self.expected.push_front((time, length));
                return;
            }
            self.in_flight -= length;
            self.size = (self.size + length).min(WINDOW.1);
            let is_idle = self.in_flight == 0 && now.duration_since(time) > IDLE + round_trip;
            if self.slow_start && is_idle {
                self.size = WINDOW.0;
            }
        }
    }

    fn sent(&mut self, length: usize, acknowledged: Instant) {
        self.in_flight += length;
        self.expected.push_back((acknowledged, length));
    }
}

/// Writes what arrives at the times of arrival, then closes the direction.
fn deliver(parcels: &Receiver<Parcel>, mut to: TcpStream) {
    for (time, bytes) in parcels {
        sleep_until(time);
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_testkit::http::{Answer, Server};

    fn conditions() -> LinkConditions {
        LinkConditions {
            round_trip: Duration::from_millis(40),
            mbit: 80.0,
            ..LinkConditions::default()
        }
    }

    fn server() -> Server {
        let bytes = vec![7; 1 << 20];
        Server::start(move |request| Answer::object(request, &bytes, ""))
    }

    /// Sends requests over one connection. Returns the statuses and lengths of their answers.
    fn ask(link: &Link, requests: &[&str]) -> Vec<(String, usize)> {
        use std::io::{BufRead, BufReader};
        let mut stream = BufReader::new(TcpStream::connect(link.address()).unwrap());
        let ask = |request: &&str| {
            stream.get_mut().write_all(request.as_bytes()).unwrap();
            let (mut status, mut length) = (String::new(), 0);
            stream.read_line(&mut status).unwrap();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            (status[9..12].to_owned(), length)
        };
        requests.iter().map(ask).collect()
    }

    const RANGE: &str = "GET /v2/a/blobs/b HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n";
    const WHOLE: &str = "GET /v2/a/blobs/b HTTP/1.1\r\nHost: x\r\n\r\n";

    fn open(server: &Server, conditions: LinkConditions) -> Link {
        Link::open("127.0.0.1", server.host().parse().unwrap(), conditions).unwrap()
    }

    #[test]
    fn a_link_takes_at_least_its_handshake_its_round_trips_and_its_rate() {
        let server = server();
        let link = open(&server, conditions());
        let begin = Instant::now();
        assert_eq!(
            ask(&link, &[RANGE, WHOLE]),
            [("206".into(), 10), ("200".into(), 1 << 20)]
        );
        // Three round trips of 40 ms, and 1 MiB at 10 MB/s.
        assert!(
            begin.elapsed() >= Duration::from_millis(120 + 104),
            "{:?}",
            begin.elapsed()
        );
        let traffic = link.take();
        assert_eq!((traffic.requests, traffic.connections), (2, 1));
        assert!(traffic.down_bytes > 1 << 20);
        assert_eq!(link.traffic().requests, 0);
    }

    #[test]
    fn bodies_of_requests_pass_and_hold_no_requests() {
        let server = server();
        let link = open(&server, LinkConditions::default());
        // The body is longer than a head may be, and has what ends one.
        let body = RANGE.repeat(2000);
        let head = format!(
            "GET /v2/a/blobs/b HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let request = format!("{head}{body}");
        let answers = ask(&link, &[&request, RANGE]);
        assert_eq!(answers, [("206".into(), 10), ("206".into(), 10)]);
        let traffic = link.take();
        assert_eq!(traffic.requests, 2);
        assert_eq!(traffic.up_bytes as usize, request.len() + RANGE.len());
    }

    #[test]
    fn connections_that_are_closed_are_not_kept() {
        let server = server();
        let link = open(&server, LinkConditions::default());
        for _ in 0..20 {
            ask(&link, &[RANGE]);
        }
        let end = Instant::now() + Duration::from_secs(20);
        while !link.shared.lock().connections.is_empty() {
            assert!(Instant::now() < end, "connections stay open");
            sleep_until(Instant::now() + Duration::from_millis(5));
        }
        assert_eq!(link.take().connections, 20);
    }

    #[test]
    fn slow_start_takes_more_round_trips() {
        let server = server();
        let slow_start = true;
        let mbit = 1e6;
        let link = open(
            &server,
            LinkConditions {
                slow_start,
                mbit,
                ..conditions()
            },
        );
        let begin = Instant::now();
        ask(&link, &[WHOLE]);
        // 14,600 bytes, doubled six times, are less than 1 MiB: eight round trips with the handshake.
        assert!(
            begin.elapsed() >= Duration::from_millis(7 * 40),
            "{:?}",
            begin.elapsed()
        );
    }

    #[test]
    fn a_cold_mirror_sends_the_whole_blob() {
        let server = server();
        let cold = Some(Duration::from_secs(3600));
        let link = open(
            &server,
            LinkConditions {
                cold,
                ..conditions()
            },
        );
        assert_eq!(ask(&link, &[RANGE]), [("200".into(), 1 << 20)]);
        let link = open(
            &server,
            LinkConditions {
                cold: Some(Duration::ZERO),
                ..conditions()
            },
        );
        assert_eq!(ask(&link, &[RANGE]), [("206".into(), 10)]);
    }

    #[test]
    fn requests_above_the_limit_are_refused() {
        let server = server();
        // No test waits for the end of this second.
        let link = open(
            &server,
            LinkConditions {
                limit: Some(0),
                ..conditions()
            },
        );
        assert_eq!(ask(&link, &[RANGE]), [("429".into(), 0)]);
        let traffic = link.take();
        assert_eq!((traffic.requests, traffic.refused), (1, 1));
    }
}
