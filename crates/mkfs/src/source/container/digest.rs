//! Digest of a layer while it is unpacked.

use crate::source::error::SourceError;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// A plain tar while it is read: another SHA-256 than the one it should have is an error at its end.
pub(crate) struct Digested<R> {
    inner: R,
    /// `None` once it was compared.
    hash: Option<Hash>,
    wanted: [u8; 32],
}

impl<R: Read> Digested<R> {
    /// Computes the digest in a thread of its own if there may be several.
    pub(crate) fn new(inner: R, wanted: [u8; 32], threads: usize) -> Self {
        let hash = (threads > 1).then(Hash::in_thread).flatten();
        Self {
            inner,
            hash: Some(hash.unwrap_or_else(|| Hash::Here(Sha256::new()))),
            wanted,
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
            && hash.finish()? != self.wanted
        {
            return Err(SourceError::corrupt(OTHER_DIFF_ID).into());
        }
        Ok(n)
    }
}

/// Bytes that are handed to the thread at once.
const PIECE: usize = 256 << 10;

/// Full pieces that may wait for the thread.
const PIECES_AHEAD: usize = 4;

/// SHA-256 of bytes that come in parts.
enum Hash {
    Here(Sha256),
    Thread {
        piece: Vec<u8>,
        full: SyncSender<Vec<u8>>,
        /// Pieces to be filled again.
        empty: Receiver<Vec<u8>>,
        thread: JoinHandle<[u8; 32]>,
    },
}

impl Hash {
    /// `None` where the system allows no more threads. The thread ends with what it is sent.
    fn in_thread() -> Option<Self> {
        let (full, receive_full) = sync_channel::<Vec<u8>>(PIECES_AHEAD);
        let (send_empty, empty) = channel();
        let work = move || {
            let mut hash = Sha256::new();
            for mut piece in receive_full {
                hash.update(&piece);
                piece.clear();
                // The sender may be done.
                let _ = send_empty.send(piece);
            }
            hash.finalize().into()
        };
        let thread = Builder::new().name("digest".to_owned()).spawn(work);
        Some(Self::Thread {
            piece: Vec::with_capacity(PIECE),
            full,
            empty,
            thread: thread.ok()?,
        })
    }

    fn update(&mut self, mut bytes: &[u8]) {
        match self {
            Self::Here(hash) => hash.update(bytes),
            Self::Thread {
                piece, full, empty, ..
            } => {
                while !bytes.is_empty() {
                    let (now, rest) = bytes.split_at(bytes.len().min(PIECE - piece.len()));
                    piece.extend_from_slice(now);
                    bytes = rest;
                    if piece.len() == PIECE {
                        let next = empty.try_recv();
                        let next = next.unwrap_or_else(|_| Vec::with_capacity(PIECE));
                        // A thread that is gone is noticed when its result is taken.
                        let _ = full.send(std::mem::replace(piece, next));
                    }
                }
            }
        }
    }

    fn finish(self) -> std::io::Result<[u8; 32]> {
        match self {
            Self::Here(hash) => Ok(hash.finalize().into()),
            Self::Thread {
                piece,
                full,
                thread,
                ..
            } => {
                let _ = full.send(piece);
                drop(full);
                let gone = |_| std::io::Error::other("the digest thread is gone");
                thread.join().map_err(gone)
            }
        }
    }
}

pub(super) const OTHER_DIFF_ID: &str =
    "unpacked, its digest is another than the one that the image has for it (rootfs.diff_ids)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_in_a_thread_and_without() {
        for len in [0, 1, PIECE - 1, PIECE, 3 * PIECE + 7, 20 * PIECE] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let wanted: [u8; 32] = Sha256::digest(&bytes).into();
            for threads in [1, 2] {
                let mut read = Vec::new();
                let mut reader = Digested::new(&bytes[..], wanted, threads);
                reader.read_to_end(&mut read).unwrap();
                assert!(read == bytes, "{len} bytes, {threads} threads");
                let mut other = Digested::new(&bytes[..], [7; 32], threads);
                let e = other.read_to_end(&mut read).unwrap_err();
                assert!(SourceError::from(e).to_string().contains("diff_ids"));
            }
        }
    }
}
