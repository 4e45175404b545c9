//! Chunks of other formats for lazy images, emulated: what they fetch for the reads of a program.
//!
//! | layout | chunks of a file | before the start |
//! |---|---|---|
//! | eStargz-like | 4 MiB, gzip -9 | footer, table of contents: JSON, gzip |
//! | nydus-like | 1 MiB, zstd -3 | bootstrap: 96 bytes and the name of each file, 88 bytes for each chunk |
//!
//! The reads of a profile are replayed in their order. A chunk is fetched by one request when it is first read, one after
//! another, over one connection. Its time, and that of the program from the plain tree, make up the time of a start. Decoding, FUSE
//! and verification cost nothing, so that it is a lower bound. What these projects fetch in advance (prioritized files, prefetch
//! lists, the rest of a layer) is left out, as with our starts without a profile.

use super::network::{Network, Remote};
use crate::measure::root;
use crate::measure::workspace::Work;
use crate::{At, Error, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Path of the chunks on the server.
const PATH: &str = "/chunks";
/// Length of the footer of an eStargz layer in bytes.
const FOOTER: usize = 51;

/// Layout of chunks of another format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Name in tables and records.
    pub name: &'static str,
    /// Bytes of a file in a chunk.
    chunk: u64,
    /// Command that compresses its input.
    compress: &'static [&'static str],
}

/// All layouts, in the order of tables.
pub(super) const LAYOUTS: [Layout; 2] = [
    Layout {
        name: "eStargz-like",
        chunk: 4 << 20,
        compress: &["gzip", "-9c"],
    },
    Layout {
        name: "nydus-like",
        chunk: 1 << 20,
        compress: &["zstd", "-3c"],
    },
];

/// Chunks of a program, in a file and in the order of requests.
pub(super) struct Chunks {
    file: PathBuf,
    requests: Vec<Range<u64>>,
}

/// Result of a replay.
pub(super) struct Replayed {
    /// Time of all requests.
    pub time: Duration,
    /// Number of requests that were sent.
    pub requests: usize,
    /// Bytes of all answers.
    pub bytes: u64,
}

impl Layout {
    /// Compresses the chunks that the reads of a profile touch in a tree.
    pub(super) fn chunks(&self, tree: &Path, profile: &Path, work: &Work) -> Result<Chunks> {
        let path = work.path(&format!("chunks-{}", self.name));
        let mut out = File::create(&path).at("create", &path)?;
        let (mut requests, mut at) = (Vec::new(), 0);
        let mut put = |bytes: &[u8]| -> Result<()> {
            requests.push(at..at + bytes.len() as u64);
            at += bytes.len() as u64;
            out.write_all(bytes).at("write", &path)
        };
        for part in self.first(tree, work)? {
            put(&part)?;
        }
        let text = std::fs::read_to_string(profile).at("read", profile)?;
        let mut seen = BTreeSet::new();
        for (name, range) in text.lines().filter_map(read_of) {
            let name = tree.join(name.trim_start_matches('/'));
            for chunk in range.start / self.chunk..range.end.div_ceil(self.chunk) {
                if !seen.insert((name.clone(), chunk)) {
                    continue;
                }
                let file = File::open(&name).at("open", &name)?;
                let size = file.metadata().at("stat", &name)?.len();
                let start = chunk * self.chunk;
                let mut bytes = vec![0; size.saturating_sub(start).min(self.chunk) as usize];
                file.read_exact_at(&mut bytes, start).at("read", &name)?;
                put(&self.compressed(&bytes, work)?)?;
            }
        }
        Ok(Chunks {
            file: path,
            requests,
        })
    }

    /// Returns what is fetched before the program starts.
    fn first(&self, tree: &Path, work: &Work) -> Result<Vec<Vec<u8>>> {
        let mut files = Vec::new();
        root::list(tree, &mut files)?;
        let chunks = |size: u64| size.div_ceil(self.chunk).max(1);
        if self.compress[0] == "zstd" {
            let file = |(path, size): &(PathBuf, u64)| {
                96 + path.file_name().map_or(0, |name| name.len() as u64) + 88 * chunks(*size)
            };
            let length: u64 = files.iter().map(file).sum();
            return Ok(vec![vec![0; length as usize]]); // fits: some files
        }
        let mut entries = Vec::new();
        for (path, size) in &files {
            let name = path
                .strip_prefix(tree)
                .unwrap_or(path)
                .display()
                .to_string();
            for chunk in 0..chunks(*size) {
                // As random as a digest is.
                let digest = blake3::hash(format!("{name} {chunk}").as_bytes()).to_hex();
                entries.push(serde_json::json!({
                    "name": name, "type": "reg", "size": size, "modtime": "2026-01-01T00:00:00Z", "mode": 33188,
                    "offset": chunk * self.chunk, "chunkDigest": format!("sha256:{digest}"),
                }));
            }
        }
        let contents = serde_json::json!({"version": 1, "entries": entries}).to_string();
        Ok(vec![
            vec![0; FOOTER],
            self.compressed(contents.as_bytes(), work)?,
        ])
    }

    fn compressed(&self, bytes: &[u8], work: &Work) -> Result<Vec<u8>> {
        let path = work.path("chunk");
        std::fs::write(&path, bytes).at("write", &path)?;
        let input = File::open(&path).at("open", &path)?;
        let (program, arguments) = (self.compress[0], &self.compress[1..]);
        let done = Command::new(program).args(arguments).stdin(input).output();
        let done = done.at("run", Path::new(program))?;
        match done.status.success() {
            true => Ok(done.stdout),
            false => Err(Error::Command(format!("{program} failed"))),
        }
    }
}

/// Parses the path and the range of a line in a profile.
fn read_of(line: &str) -> Option<(&str, Range<u64>)> {
    let mut fields = line.splitn(5, ' ').skip(2);
    let offset: u64 = fields.next()?.parse().ok()?;
    let length: u64 = fields.next()?.parse().ok()?;
    let name = fields.next().filter(|name| name.starts_with('/'))?;
    Some((name, offset..offset + length))
}

impl Chunks {
    /// Fetches all chunks one after another, and compares their bytes.
    pub(super) fn replay(&self, network: &Network, seed: u64) -> Result<Replayed> {
        let expected = std::fs::read(&self.file).at("read", &self.file)?;
        let remote = Remote::serve(PATH, &self.file, network, seed)?;
        let begin = Instant::now();
        let here = Path::new("the server of this process");
        let stream = TcpStream::connect(remote.host()).at("connect to", here)?;
        stream.set_nodelay(true).at("connect to", here)?;
        let mut stream = BufReader::new(stream);
        for range in &self.requests {
            let bytes = get(&mut stream, range).at("read from", here)?;
            let requested = range.start as usize..range.end as usize;
            if expected.get(requested) != Some(&bytes[..]) {
                return Err(Error::Command(
                    "a chunk arrives with other bytes".to_owned(),
                ));
            }
        }
        Ok(Replayed {
            time: begin.elapsed(),
            requests: remote.take_requests(PATH),
            bytes: remote.sent_bytes(),
        })
    }
}

/// Requests a range over a connection that stays open.
fn get(stream: &mut BufReader<TcpStream>, range: &Range<u64>) -> std::io::Result<Vec<u8>> {
    let (start, last) = (range.start, range.end - 1);
    let request =
        format!("GET {PATH} HTTP/1.1\r\nHost: lab\r\nRange: bytes={start}-{last}\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes())?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}
