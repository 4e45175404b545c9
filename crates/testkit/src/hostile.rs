//! Hostile servers for tests: answers byte by byte, at any address of the loopback interface, and a record of all bytes that
//! each of them receives.

use crate::http::{Answer, Request, read};
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are recorded at most. Unit: bytes.
const RECORD_MAX: usize = 64 << 20;

/// Longest time for one step of an answer that the client does not take.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Step of an answer.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes at once.
    Send(Vec<u8>),
    /// Sends the same bytes up to this number of times, until the client closes the connection.
    Repeat(Vec<u8>, u64),
    /// Waits, at most until the client closes the connection.
    Wait(Duration),
    /// Closes the connection. Without it, the connection takes the next request.
    Close,
    /// Resets the connection (RST).
    Reset,
}

/// Steps that send an answer as a well-behaved server does.
pub fn steps(answer: &Answer) -> Vec<Step> {
    let mut head = format!("HTTP/1.1 {} Status\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", answer.body.len());
    let mut bytes = head.into_bytes();
    if !answer.is_head {
        bytes.extend_from_slice(&answer.body);
    }
    vec![Step::Send(bytes)]
}

type Handler = Box<dyn Fn(&Request) -> Vec<Step> + Send + Sync>;

/// Server at one address, until it is dropped.
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    handler: Mutex<Arc<Handler>>,
    received: Mutex<Vec<u8>>,
    is_stopped: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Origin {
    /// Starts a server at a port of an address such as 127.0.0.2, which closes connections until it gets a handler.
    ///
    /// # Panics
    /// If no port can be had.
    pub fn start(ip: Ipv4Addr) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("a port of the loopback interface");
        let address = listener.local_addr().expect("the address of a listener");
        let handler: Handler = Box::new(|_| vec![Step::Close]);
        let shared = Arc::new(Shared {
            handler: Mutex::new(Arc::new(handler)),
            received: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    let shared = Arc::clone(&accepting);
                    std::thread::spawn(move || shared.serve(stream));
                }
            }
        });
        Self { address, shared }
    }

    /// Answers further requests by `handler`, and forgets the bytes that were received.
    pub fn answer(&self, handler: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) {
        *lock(&self.shared.handler) = Arc::new(Box::new(handler));
        lock(&self.shared.received).clear();
    }

    /// Host and port of the server.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Bytes that all connections have received since the handler was set.
    pub fn received(&self) -> Vec<u8> {
        lock(&self.shared.received).clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // The thread that accepts connections sees the flag with the next one.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(STEP_TIMEOUT));
        let _ = stream.set_write_timeout(Some(STEP_TIMEOUT));
        let Ok(input) = stream.try_clone() else {
            return;
        };
        let mut input = BufReader::new(Recorded {
            inner: input,
            record: &self.received,
        });
        while let Some((request, _)) = read(&mut input, &|_| None) {
            let handler = Arc::clone(&lock(&self.handler));
            for step in handler(&request) {
                if run(&step, &stream).is_none() {
                    if !matches!(step, Step::Reset) {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                    return;
                }
            }
        }
    }
}

/// Runs a step. Returns `None` at the end of the connection.
fn run(step: &Step, mut stream: &TcpStream) -> Option<()> {
    match step {
        Step::Send(bytes) => stream.write_all(bytes).ok(),
        Step::Repeat(bytes, count) => (0..*count).try_for_each(|_| stream.write_all(bytes).ok()),
        Step::Wait(time) => {
            let _ = stream.set_read_timeout(Some(*time));
            // The end of the connection, or the next request of a client that did not wait for the answer.
            let ended = stream.peek(&mut [0]);
            let _ = stream.set_read_timeout(Some(STEP_TIMEOUT));
            match ended {
                Ok(_) => None,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Some(()),
                Err(_) => None,
            }
        }
        Step::Close => None,
        Step::Reset => {
            // Without a time to linger, the kernel resets the connection when its last descriptor is closed.
            let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
            None
        }
    }
}

/// Input whose bytes are recorded.
struct Recorded<'a, R> {
    inner: R,
    record: &'a Mutex<Vec<u8>>,
}

impl<R: Read> Read for Recorded<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buf)?;
        let mut record = lock(self.record);
        let left = RECORD_MAX.saturating_sub(record.len());
        record.extend_from_slice(&buf[..len.min(left)]);
        Ok(len)
    }
}
