//! Mirrors that answer requests for ranges with whole objects until they have a copy.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, verified_image};
use crate::registry::{LAYER, answer, layer, manifest};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tuff_remote::{Kind, RemoteStore};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};

/// Answers a request for a range with the whole object while `left` is more than 0.
fn mirrored(left: &AtomicUsize, request: &Request, answer: impl Fn(&Request) -> Answer) -> Answer {
    let has_range = request.headers.contains_key("range");
    let is_cold = has_range
        && left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
    let mut request = request.clone();
    if is_cold {
        request.headers.remove("range");
    }
    answer(&request)
}

fn read_at_once(store: &RemoteStore, bytes: &[u8]) {
    std::thread::scope(|scope| {
        for at in (CHUNK..bytes.len() / 2).step_by(CHUNK * 9) {
            scope.spawn(move || {
                let mut read = [0; 4096];
                store.read_exact_at(&mut read, at as u64).unwrap();
                assert!(read == bytes[at..at + 4096]);
            });
        }
    });
}

#[test]
fn a_mirror_that_answers_with_whole_objects_at_first_is_waited_for() {
    let (bytes, root) = verified_image(4000, 320);
    let manifest = manifest(&[layer(LAYER, &bytes, Some(&root))]);
    let left = Arc::new(AtomicUsize::new(0));
    let (count, blob) = (Arc::clone(&left), bytes.clone());
    let server = Server::start(move |request| {
        mirrored(&count, request, |request| match request.path.as_str() {
            "/i" => Answer::object(request, &blob, "\"v1\""),
            _ => answer(request, &manifest, &blob),
        })
    });
    let image = format!("oci://{}/team/app:v1", server.host());
    for url in [image, server.url("/i")] {
        left.store(6, Ordering::SeqCst);
        let store = open(&url, &options(&Dir::new())).unwrap();
        assert_eq!(left.load(Ordering::SeqCst), 0);
        // The mirror loses its copy while eight readers wait.
        left.store(6, Ordering::SeqCst);
        server.take_requests();
        read_at_once(&store, &bytes);
        assert_eq!(left.load(Ordering::SeqCst), 0);
        assert_same(&store, &bytes);
    }
}

/// Connection whose sent bytes are counted.
struct Counting(TcpStream, Arc<AtomicU64>);

impl Read for Counting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Counting {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let sent = self.0.write(buf)?;
        self.1.fetch_add(sent as u64, Ordering::SeqCst);
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_server_without_ranges_is_one_error_after_few_bytes() {
    let bytes = Arc::new(image(16 << 10, 321));
    let (blob, left) = (Arc::clone(&bytes), AtomicUsize::new(usize::MAX));
    let server = Server::start(move |request| {
        mirrored(&left, request, |request| {
            Answer::object(request, &blob, "\"v1\"")
        })
    });
    let (server, sent) = (Arc::new(server), Arc::new(AtomicU64::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/i", listener.local_addr().unwrap());
    let (answering, count) = (Arc::clone(&server), Arc::clone(&sent));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = Counting(stream.unwrap(), Arc::clone(&count));
            let server = Arc::clone(&answering);
            std::thread::spawn(move || server.serve_stream(stream));
        }
    });
    let e = open(&url, &options(&Dir::new())).err().unwrap();
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.what().contains("does not support range requests"), "{e}");
    let requests = server.take_requests().len();
    assert!((2..=16).contains(&requests), "{requests}");
    // Buffers of the connections hold a part of each answer.
    let (sent, size) = (sent.load(Ordering::SeqCst), bytes.len() as u64);
    assert!(
        sent < requests as u64 * size / 4,
        "{sent} of {requests} times {size} bytes"
    );
    // A server that says so is asked once.
    let blob = Arc::clone(&bytes);
    let server = Server::start(move |_| {
        let answer = Answer {
            status: 200,
            body: blob.to_vec(),
            ..Answer::default()
        };
        answer.with("Accept-Ranges", "none")
    });
    let e = open(&server.url("/i"), &options(&Dir::new()))
        .err()
        .unwrap();
    assert_eq!(e.kind(), Kind::Unsupported);
    assert_eq!(server.take_requests().len(), 1);
}
