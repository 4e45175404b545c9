//! Web server for tests: answers come from a closure, so that a test can make any fault.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Request as the server received it. Names of headers are in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method, such as GET.
    pub method: String,
    /// Path with its query.
    pub path: String,
    /// Headers of the request, by their names.
    pub headers: HashMap<String, String>,
    /// Body of a request that has one.
    pub body: Vec<u8>,
}

impl Request {
    /// Requested range of an object of `size` bytes, clamped to its end. `None` without a usable header.
    pub fn range(&self, size: u64) -> Option<Range<u64>> {
        let (start, last) = self
            .headers
            .get("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        let start: u64 = start.parse().ok()?;
        let end = last.parse::<u64>().map_or(size, |last| last + 1).min(size);
        (start < end).then_some(start..end)
    }
}

/// Answer of the server to one request.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Status. 0 closes the connection without an answer.
    pub status: u16,
    /// Headers of the answer besides `Content-Length`.
    pub headers: Vec<(String, String)>,
    /// Body of the answer.
    pub body: Vec<u8>,
    /// Number of bytes of the body after which the connection is closed.
    pub cut: Option<usize>,
    /// Time before the first byte of the answer.
    pub delay: Duration,
    /// Leaves out the body, whose length the answer states, as for HEAD.
    pub is_head: bool,
    /// Number of bytes of the body that are sent before the gate is open. Shorter bodies need no gate.
    pub gate: Option<(usize, Gate)>,
    /// Link that the body crosses.
    pub link: Option<Link>,
}

/// Gate that a test opens.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Opens the gate for all who wait and will come.
    pub fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    /// Waits until the gate is open, at most a minute.
    pub fn wait(&self) {
        let is_closed = |open: &mut bool| !*open;
        let (open, changed) = &*self.0;
        let _ = changed.wait_timeout_while(lock(open), Duration::from_secs(60), is_closed);
    }
}

/// Link of a bandwidth, which all bodies cross that have it, in the order in which they are sent.
#[derive(Clone, Debug)]
pub struct Link {
    /// Unit: bytes per second.
    bandwidth: f64,
    /// Time at which the link is free.
    free: Arc<Mutex<Instant>>,
}

impl Link {
    /// Bytes that are sent at once. Unit: bytes.
    const PIECE: usize = 8 << 10;

    /// Link of a bandwidth in Mbit/s.
    #[must_use]
    pub fn new(megabits: f64) -> Self {
        Self {
            bandwidth: megabits * 1e6 / 8.0,
            free: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// Waits until a number of bytes has crossed the link.
    fn cross(&self, bytes: usize) {
        let time = Duration::from_secs_f64(bytes as f64 / self.bandwidth);
        let now = Instant::now();
        let mut free = lock(&self.free);
        *free = now.max(*free) + time;
        let left = free.saturating_duration_since(now);
        drop(free);
        std::thread::sleep(left);
    }
}

impl Answer {
    /// Answer that has a status and no body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Answers a request for an object: a range of it with 206, or all of it with 200. An empty `etag` is left out.
    pub fn object(request: &Request, bytes: &[u8], etag: &str) -> Self {
        let size = bytes.len() as u64;
        if request
            .headers
            .get("if-match")
            .is_some_and(|requested| requested != etag)
        {
            return Self::status(412);
        }
        let mut answer = match request.range(size) {
            Some(range) => {
                let stated = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                let mut answer = Self::status(206).with("Content-Range", stated);
                answer.body = bytes[range.start as usize..range.end as usize].to_vec();
                answer
            }
            None if request.headers.contains_key("range") => Self::status(416),
            None => Self {
                status: 200,
                body: bytes.to_vec(),
                ..Self::default()
            },
        };
        if !etag.is_empty() {
            answer = answer.with("ETag", etag);
        }
        answer
    }
}

/// Server on a port of the loopback interface, until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// Number of bytes of the body after which a connection breaks, by the request without its body.
type Breaks = Box<dyn Fn(&Request) -> Option<usize> + Send + Sync>;

struct Shared {
    answer: Box<dyn Fn(&Request) -> Answer + Send + Sync>,
    breaks: Breaks,
    requests: Mutex<Vec<Request>>,
    connections: Mutex<Vec<TcpStream>>,
    is_stopped: AtomicBool,
}

impl Server {
    /// Starts a server that answers by `answer`.
    ///
    /// # Panics
    /// If no port can be had.
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::breaking(|_| None, answer)
    }

    /// Starts a server that answers by `answer`. For a request whose headers make `breaks` return a number, it reads that
    /// many bytes of the body, handles the request with them, and closes the connection without an answer.
    ///
    /// # Panics
    /// If no port can be had.
    pub fn breaking(
        breaks: impl Fn(&Request) -> Option<usize> + Send + Sync + 'static,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback interface");
        let address = listener.local_addr().expect("the address of a listener");
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            breaks: Box::new(breaks),
            requests: Mutex::default(),
            connections: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&accepting)) else {
                    return;
                };
                if let Ok(stream) = stream.try_clone() {
                    lock(&shared.connections).push(stream);
                }
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { address, shared }
    }

    /// Host and port of the server.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// URL of a path, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Requests since the start or the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut lock(&self.shared.requests))
    }

    /// Answers the requests of a connection that the caller accepted, such as one with TLS.
    pub fn serve_stream(&self, stream: impl Read + Write) {
        let stream = Rc::new(RefCell::new(stream));
        let input = BufReader::new(Both(Rc::clone(&stream)));
        self.shared.talk(input, Both(stream));
    }

    /// Closes all connections and refuses new ones.
    pub fn stop(&self) {
        if self.shared.is_stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        for stream in lock(&self.shared.connections).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // The thread that accepts connections sees the flag with the next one.
        let _ = TcpStream::connect(self.address);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Answers the requests of a connection. Broken connections end it.
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(input) = stream.try_clone() else {
            return;
        };
        self.talk(BufReader::new(input), &stream);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }

    fn talk(&self, mut input: impl BufRead, mut output: impl Write) {
        while let Some((request, is_broken)) = read(&mut input, &self.breaks) {
            lock(&self.requests).push(request.clone());
            let answer = (self.answer)(&request);
            if is_broken {
                break;
            }
            std::thread::sleep(answer.delay);
            if self.is_stopped.load(Ordering::SeqCst) || write(&mut output, &answer).is_none() {
                break;
            }
        }
    }
}

/// Input and output of one connection.
struct Both<S>(Rc<RefCell<S>>);

impl<S: Read> Read for Both<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(buf)
    }
}

impl<S: Write> Write for Both<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// Reads a request. The second value is true if the connection is to break before the end of its body.
pub(crate) fn read(
    input: &mut impl BufRead,
    breaks: &dyn Fn(&Request) -> Option<usize>,
) -> Option<(Request, bool)> {
    let mut line = || {
        let mut line = String::new();
        (input.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
    };
    let first = line()?;
    let (method, rest) = first.split_once(' ')?;
    let (path, _) = rest.split_once(' ')?;
    let mut headers = HashMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers
        .get("content-length")
        .and_then(|len| len.parse().ok());
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers,
        body: Vec::new(),
    };
    let requested: usize = len.unwrap_or(0);
    let read = breaks(&request).unwrap_or(requested).min(requested);
    request.body = vec![0; read];
    input.read_exact(&mut request.body).ok()?;
    Some((request, read < requested))
}

/// Writes an answer. Returns `None` if the connection is to be closed.
fn write(output: &mut impl Write, answer: &Answer) -> Option<()> {
    if answer.status == 0 {
        return None;
    }
    let mut head = format!("HTTP/1.1 {} Status\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", answer.body.len());
    output.write_all(head.as_bytes()).ok()?;
    if answer.is_head {
        return Some(());
    }
    let sent = answer
        .cut
        .unwrap_or(answer.body.len())
        .min(answer.body.len());
    let mut body = &answer.body[..sent];
    if let Some((before, gate)) = answer.gate.as_ref().filter(|(n, _)| *n < body.len()) {
        let (first, rest) = body.split_at(*before);
        output.write_all(first).ok()?;
        gate.wait();
        body = rest;
    }
    match &answer.link {
        None => output.write_all(body).ok()?,
        Some(link) => {
            for piece in body.chunks(Link::PIECE) {
                link.cross(piece.len());
                output.write_all(piece).ok()?;
            }
        }
    }
    answer.cut.is_none().then_some(())
}
