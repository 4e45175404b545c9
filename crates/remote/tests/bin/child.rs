//! Reads and pushes images in a process of its own: tests of what the environment names, and of processes that are killed.
//!
//! Arguments are an action and its operands. An error ends the program with exit code 1 and two descriptions of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tuff_remote::{Error, LayerImage, Location, Options, PushOptions, RemoteStore, RetryPolicy};
use tuff_store::{MemStore, ReadAt};

/// Unit of the cache. Unit: bytes.
const CHUNK: usize = 128 << 10;

/// Number of threads that read at once.
const READERS: usize = 8;

/// Time after which a process that is not killed ends.
const LIFETIME: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["read", url, cache, content] => {
            read(&Location::parse(url).unwrap(), &options(cache), content)
        }
        ["read-half", url, cache, content] => read_half(url, cache, content),
        ["start", url, cache, content] => start(url, cache, content),
        ["read-backwards", url, cache, content] => read_backwards(url, cache, content),
        ["read-refused", url, cache, logins] => read_refused(url, cache, logins),
        ["push", url, image] => push(url, image),
        ["fill", url, cache, root] => {
            fill(url, cache, root);
            Ok(())
        }
        _ => panic!("unknown arguments: {words:?}"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}\n{e:?}");
            ExitCode::FAILURE
        }
    }
}

fn retry() -> RetryPolicy {
    RetryPolicy {
        deadline: Duration::from_secs(20),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
    }
}

fn options(cache: &str) -> Options {
    let mut options = Options::new(cache.into());
    options.retry = retry();
    options
}

fn open(url: &str, options: &Options) -> Result<Arc<RemoteStore>, Error> {
    tuff_remote::open(&Location::parse(url)?, options)
}

/// Reads all chunks, by several threads at once, and compares them with the file `content`.
fn read(location: &Location, options: &Options, content: &str) -> Result<(), Error> {
    let store = &tuff_remote::open(location, options)?;
    let expected = &std::fs::read(content).unwrap();
    assert_eq!(store.size(), expected.len() as u64);
    thread::scope(|scope| {
        for first in 0..READERS {
            scope.spawn(move || {
                for (n, expected) in expected
                    .chunks(CHUNK)
                    .enumerate()
                    .skip(first)
                    .step_by(READERS)
                {
                    let mut read = vec![0; expected.len()];
                    store.read_exact_at(&mut read, (n * CHUNK) as u64).unwrap();
                    assert!(read == expected, "chunk {n}");
                }
            });
        }
    });
    Ok(())
}

/// Reads the first half of an image, without its hash tree, and compares it with the file `content`.
fn read_half(url: &str, cache: &str, content: &str) -> Result<(), Error> {
    let store = open(url, &options(cache))?;
    let expected = std::fs::read(content).unwrap();
    let mut read = vec![0; expected.len() / 2];
    store.read_exact_at(&mut read, 0).unwrap();
    assert!(read == expected[..read.len()]);
    Ok(())
}

/// Reads all chunks, also where the server cannot be reached, and prints the warnings.
fn start(url: &str, cache: &str, content: &str) -> Result<(), Error> {
    let location = Location::parse(url)?;
    let mut options = options(cache);
    options.offline = true;
    options.retry.deadline = Duration::from_secs(2);
    read(&location, &options, content)?;
    for warning in location.warnings() {
        eprintln!("{warning}");
    }
    Ok(())
}

/// Reads the beginning of each chunk from the last one on, so that nothing is read ahead.
fn read_backwards(url: &str, cache: &str, content: &str) -> Result<(), Error> {
    let store = open(url, &options(cache))?;
    let expected = std::fs::read(content).unwrap();
    for (n, expected) in expected.chunks(CHUNK).enumerate().rev() {
        let mut read = vec![0; 4096];
        store.read_exact_at(&mut read, (n * CHUNK) as u64).unwrap();
        assert!(read == expected[..4096], "chunk {n}");
    }
    Ok(())
}

/// Reads while the server refuses the login of the file `logins`, and then with the login of the file `logins.next`.
fn read_refused(url: &str, cache: &str, logins: &str) -> Result<(), Error> {
    let mut options = options(cache);
    options.retry.deadline = Duration::from_millis(300);
    let store = open(url, &options)?;
    // The server refuses the password after this.
    std::fs::write(format!("{logins}.refuse"), "").unwrap();
    thread::scope(|scope| {
        for reader in 0..READERS {
            let store = &store;
            scope.spawn(move || {
                for n in 0..10 {
                    let at = (8 + (reader * 10 + n) % 70) * CHUNK;
                    let e = store.read_exact_at(&mut [0; 10], at as u64).unwrap_err();
                    assert!(e.to_string().contains("access denied"), "{e}");
                }
            });
        }
    });
    std::fs::rename(format!("{logins}.next"), logins).unwrap();
    let start = Instant::now();
    while store
        .read_exact_at(&mut [0; 10], 40 * CHUNK as u64)
        .is_err()
    {
        assert!(start.elapsed() < Duration::from_secs(4));
    }
    Ok(())
}

/// Pushes the file `image` as one layer.
fn push(url: &str, image: &str) -> Result<(), Error> {
    let layer = LayerImage {
        store: Arc::new(MemStore::new(std::fs::read(image).unwrap())),
        tree: None,
        start_metadata: None,
        is_image: true,
        devices: Vec::new(),
    };
    let options = PushOptions {
        retry: retry(),
        ..PushOptions::default()
    };
    tuff_remote::push(&Location::parse(url)?, &[layer], &options, &|_| true).map(drop)
}

/// Reads and fills until the process is killed. `root` is a root hash in hexadecimal digits, or empty.
fn fill(url: &str, cache: &str, root: &str) {
    let mut options = Options::new(cache.into());
    let byte = |at: usize| u8::from_str_radix(&root[at * 2..at * 2 + 2], 16).unwrap();
    options.root_hash = (!root.is_empty()).then(|| std::array::from_fn(byte));
    let mut number = u64::from(std::process::id());
    let start = Instant::now();
    while start.elapsed() < LIFETIME {
        let Ok(store) = open(url, &options) else {
            continue;
        };
        store.fill(None);
        for _ in 0..100 {
            number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
            // The process ends anywhere, also after errors.
            let _ = store.read_at(&mut [0; 5000], (number >> 16) % store.size());
        }
    }
}
