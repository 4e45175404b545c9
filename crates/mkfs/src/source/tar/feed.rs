//! Input of the tar parser: a stream, or a file that can be read at any position.

use std::io::{self, BufRead, BufReader, Read};
use tuff_store::ReadAt;

/// Sequential input with a way to skip bytes.
pub(super) trait Feed {
    /// Fills `buf`. Returns the number of bytes read, which is smaller only at the end.
    fn fill(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Skips `count` bytes. Returns the number skipped, which is smaller only at the end.
    fn skip(&mut self, count: u64) -> io::Result<u64>;

    /// Number of bytes read and skipped.
    fn position(&self) -> u64;

    /// Number of remaining bytes, if known.
    fn left(&self) -> Option<u64>;
}

/// Buffer size of a stream. Headers and many members are small, so one system call should serve
/// several.
const STREAM_BUFFER: usize = 64 << 10;

/// Input from a reader.
pub(super) struct Stream<R> {
    inner: BufReader<R>,
    position: u64,
}

impl<R: Read> Stream<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            inner: BufReader::with_capacity(STREAM_BUFFER, reader),
            position: 0,
        }
    }
}

impl<R: Read> Feed for Stream<R> {
    fn fill(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.inner.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.position += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let mut done = 0;
        while done < count {
            let here = match self.inner.fill_buf() {
                Ok([]) => break,
                Ok(buf) => buf.len(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let left = usize::try_from(count - done).unwrap_or(usize::MAX);
            let step = here.min(left);
            self.inner.consume(step);
            done += step as u64;
            self.position += step as u64;
        }
        Ok(done)
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn left(&self) -> Option<u64> {
        None
    }
}

/// Length of a read around a header. It costs the same as the header alone and often covers small
/// members.
const WINDOW: usize = 4 << 10;

/// Input from a file, read only at headers.
pub(super) struct Positional<'a, S: ?Sized> {
    store: &'a S,
    position: u64,
    window: Box<[u8; WINDOW]>,
    window_at: u64,
    window_len: usize,
}

impl<'a, S: ReadAt + ?Sized> Positional<'a, S> {
    pub(super) fn new(store: &'a S) -> Self {
        Self {
            store,
            position: 0,
            window: Box::new([0; WINDOW]),
            window_at: 0,
            window_len: 0,
        }
    }

    /// Bytes of the window from the current position on.
    fn in_window(&self) -> &[u8] {
        let offset = self.position.checked_sub(self.window_at);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let window = &self.window[..self.window_len];
        offset
            .and_then(|offset| window.get(offset..))
            .unwrap_or(&[])
    }
}

impl<S: ReadAt + ?Sized> Feed for Positional<'_, S> {
    fn fill(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let have = self.in_window();
            let step = if !have.is_empty() {
                let step = have.len().min(rest.len());
                rest[..step].copy_from_slice(&have[..step]);
                step
            } else if rest.len() >= WINDOW {
                read_at(self.store, rest, self.position)?
            } else {
                self.window_len = 0;
                self.window_len = read_at(self.store, &mut self.window[..], self.position)?;
                self.window_at = self.position;
                if self.window_len == 0 {
                    break;
                }
                continue;
            };
            if step == 0 {
                break;
            }
            done += step;
            self.position += step as u64;
        }
        Ok(done)
    }

    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let step = count.min(self.store.size().saturating_sub(self.position));
        self.position += step;
        Ok(step)
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn left(&self) -> Option<u64> {
        Some(self.store.size().saturating_sub(self.position))
    }
}

fn read_at<S: ReadAt + ?Sized>(store: &S, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match store.read_at(buf, offset) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}
