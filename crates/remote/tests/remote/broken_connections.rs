//! Connections that end between two requests, and one that is silent: T-S12, for HTTP/1.1.

use crate::common::{CHUNK, Dir, image, open, options};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tuff_remote::Stats;
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Gate, Server};

/// Number of requests after which a connection is closed.
const REQUESTS_MAX: usize = 10;

/// Number of answers after which one connection is silent. Hedging needs samples.
const SILENT_AFTER: usize = 60;

/// Number of chunks of the image.
const CHUNKS: usize = 125;

/// Time after which the client gives a silent connection up, and a factor for machines with other load.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const TIME_FACTOR: u32 = 3;

/// Connection of the server that ends.
struct Ending {
    stream: TcpStream,
    /// Number of the connection.
    number: usize,
    answers: usize,
    all_answers: Arc<AtomicUsize>,
    end: Gate,
}

impl Read for Ending {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.answers >= REQUESTS_MAX {
            true => Ok(0),
            false => self.stream.read(buf),
        }
    }
}

impl Write for Ending {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.starts_with(b"HTTP/1.1 ") {
            self.answers += 1;
            let all = self.all_answers.fetch_add(1, Ordering::SeqCst);
            if all == SILENT_AFTER {
                self.end.wait();
                return Err(ErrorKind::BrokenPipe.into());
            }
            // No byte of the answer is sent.
            if self.number % 3 == 2 && self.answers == REQUESTS_MAX / 2 {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Accepts connections for a server, which end. Returns its address, and the number of connections.
fn listen(server: Server, end: &Gate) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (count, server, end) = (Arc::<AtomicUsize>::default(), Arc::new(server), end.clone());
    let (counted, all_answers) = (Arc::clone(&count), Arc::<AtomicUsize>::default());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = Ending {
                stream: stream.unwrap(),
                number: counted.fetch_add(1, Ordering::SeqCst),
                answers: 0,
                all_answers: Arc::clone(&all_answers),
                end: end.clone(),
            };
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.serve_stream(connection));
        }
    });
    (address, count)
}

/// Reads all chunks backwards, so that each needs a request, and returns the counters, and the number of requests that the server got.
fn read_all(is_hedging: bool) -> (Stats, usize) {
    let bytes = image(CHUNKS * CHUNK / 4096, 94);
    let (served, received) = (bytes.clone(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&received);
    let server = Server::start(move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        Answer::object(request, &served, "\"v1\"")
    });
    let end = Gate::default();
    let (address, connections) = listen(server, &end);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.hedging = is_hedging;
    options.retry.deadline = IDLE_TIMEOUT * TIME_FACTOR;
    let store = open(&format!("http://{address}/i"), &options).unwrap();
    for chunk in (0..CHUNKS).rev() {
        let mut read = vec![0; CHUNK];
        let start = Instant::now();
        store
            .read_exact_at(&mut read, (chunk * CHUNK) as u64)
            .unwrap();
        assert!(start.elapsed() < IDLE_TIMEOUT * TIME_FACTOR);
        assert!(read == bytes[chunk * CHUNK..][..CHUNK], "chunk {chunk}");
    }
    end.open();
    // Each one ends after some requests.
    let connections = connections.load(Ordering::SeqCst);
    assert!(connections > CHUNKS / 2 / REQUESTS_MAX, "{connections}");
    let received = received.load(Ordering::SeqCst);
    // One more for each connection that ended, and for each that is late.
    assert!(
        received <= CHUNKS + 2 * connections,
        "{received} of {connections}"
    );
    let stats = store.stats();
    assert_eq!(stats.failed_requests, 0, "{stats:?}");
    (stats, received)
}

#[test]
fn reads_outlive_connections_that_end_without_an_answer_and_a_silent_one() {
    let (stats, received) = read_all(true);
    assert!(received > SILENT_AFTER, "{stats:?}");
}

#[test]
fn a_silent_connection_is_given_up_after_the_idle_limit_and_its_request_repeated_once() {
    let (stats, received) = read_all(false);
    assert!(received > SILENT_AFTER, "{stats:?}");
    assert_eq!(stats.hedged_requests, 0);
    assert!(stats.retries > 0, "{stats:?}");
}
