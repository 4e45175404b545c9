//! Verification of a layer's digest during decompression.

use crate::source::error::SourceError;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Reader that verifies the SHA-256 of a plain tar at its end.
pub(crate) struct Digested<R> {
    inner: R,
    /// `None` after the comparison.
    hash: Option<Hasher>,
    expected: [u8; 32],
}

impl<R: Read> Digested<R> {
    /// Creates the reader. The digest is computed in a separate thread if there may be several.
    pub(crate) fn new(inner: R, expected: [u8; 32], threads: usize) -> Self {
        let hash = (threads > 1).then(Hasher::in_thread).flatten();
        Self {
            inner,
            hash: Some(hash.unwrap_or_else(|| Hasher::Here(Sha256::new()))),
            expected,
        }
    }
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        if n > 0 {
            if let Some(hash) = &mut self.hash {
                hash.update(&buf[..n]);
            }
        } else if !buf.is_empty()
            && let Some(hash) = self.hash.take()
            && hash.finish()? != self.expected
        {
            return Err(SourceError::corrupt(OTHER_DIFF_ID).into());
        }
        Ok(n)
    }
}

/// Size of a buffer that is sent to the thread. Unit: bytes.
const BUFFER_LEN: usize = 256 << 10;

/// Number of full buffers that may wait for the thread.
const FULL_BUFFERS_MAX: usize = 4;

/// Incremental SHA-256, in this thread or another.
enum Hasher {
    Here(Sha256),
    Thread {
        buffer: Vec<u8>,
        full: SyncSender<Vec<u8>>,
        /// Buffers returned for reuse.
        empty: Receiver<Vec<u8>>,
        thread: JoinHandle<[u8; 32]>,
    },
}

impl Hasher {
    /// Returns `None` if no thread can be created. The thread ends when the channel closes.
    fn in_thread() -> Option<Self> {
        let (full, receive_full) = sync_channel::<Vec<u8>>(FULL_BUFFERS_MAX);
        let (send_empty, empty) = channel();
        let work = move || {
            let mut hash = Sha256::new();
            for mut buffer in receive_full {
                hash.update(&buffer);
                buffer.clear();
                // The sender may be gone.
                let _ = send_empty.send(buffer);
            }
            hash.finalize().into()
        };
        let thread = Builder::new().name("digest".to_owned()).spawn(work);
        Some(Self::Thread {
            buffer: Vec::with_capacity(BUFFER_LEN),
            full,
            empty,
            thread: thread.ok()?,
        })
    }

    fn update(&mut self, mut bytes: &[u8]) {
        match self {
            Self::Here(hash) => hash.update(bytes),
            Self::Thread {
                buffer,
                full,
                empty,
                ..
            } => {
                while !bytes.is_empty() {
                    let (now, rest) = bytes.split_at(bytes.len().min(BUFFER_LEN - buffer.len()));
                    buffer.extend_from_slice(now);
                    bytes = rest;
                    if buffer.len() == BUFFER_LEN {
                        let next = empty.try_recv();
                        let next = next.unwrap_or_else(|_| Vec::with_capacity(BUFFER_LEN));
                        // A failed thread is reported when its result is taken.
                        let _ = full.send(std::mem::replace(buffer, next));
                    }
                }
            }
        }
    }

    fn finish(self) -> std::io::Result<[u8; 32]> {
        match self {
            Self::Here(hash) => Ok(hash.finalize().into()),
            Self::Thread {
                buffer,
                full,
                thread,
                ..
            } => {
                let _ = full.send(buffer);
                drop(full);
                let panicked = |_| std::io::Error::other("the digest thread is gone");
                thread.join().map_err(panicked)
            }
        }
    }
}

pub(super) const OTHER_DIFF_ID: &str =
    "the digest of the uncompressed layer differs from that in the config (rootfs.diff_ids)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_in_a_thread_and_without() {
        for len in [
            0,
            1,
            BUFFER_LEN - 1,
            BUFFER_LEN,
            3 * BUFFER_LEN + 7,
            20 * BUFFER_LEN,
        ] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let expected: [u8; 32] = Sha256::digest(&bytes).into();
            for threads in [1, 2] {
                let mut read = Vec::new();
                let mut reader = Digested::new(&bytes[..], expected, threads);
                reader.read_to_end(&mut read).unwrap();
                assert!(read == bytes, "{len} bytes, {threads} threads");
                let mut other = Digested::new(&bytes[..], [7; 32], threads);
                let e = other.read_to_end(&mut read).unwrap_err();
                assert!(SourceError::from(e).to_string().contains("diff_ids"));
            }
        }
    }
}
