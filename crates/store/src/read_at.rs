//! Positional reads from shared stores.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Buffer size of [`ReadAt::touch`], small enough for the processor cache. Unit: bytes.
const TOUCHED: u64 = 64 << 10;

/// Error of a store that knows its name, inside of an [`io::Error`].
#[derive(Debug)]
pub struct StoreError {
    /// Name of the store for messages, such as its URL without credentials.
    pub store: String,
    /// Description without the name.
    pub what: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.store, self.what)
    }
}

impl std::error::Error for StoreError {}

/// Store that many threads can read at any position at once.
pub trait ReadAt: Send + Sync {
    /// Reads some bytes at `offset`. Returns their number; 0 only at or past the end, or for an empty `buf`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Size of the store when it was opened. Unit: bytes.
    fn size(&self) -> u64;

    /// Hints that these bytes will be read soon. Returns at once.
    fn will_need(&self, _offset: u64, _len: u64) {}

    /// Hints that these bytes will not be read again soon, so that the host can drop them from its cache.
    fn done_with(&self, _offset: u64, _len: u64) {}

    /// Reads `len` bytes at `offset` and discards them. Fails where reading them into memory would fail.
    ///
    /// Tests whether bytes are readable. A store may avoid the copy.
    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut buf = vec![0; len.min(TOUCHED) as usize]; // fits: at most TOUCHED
        let mut done = 0;
        while done < len {
            let n = (len - done).min(TOUCHED) as usize; // fits, as above
            self.read_exact_at(&mut buf[..n], offset.saturating_add(done))?;
            done += n as u64;
        }
        Ok(())
    }

    /// Gives the start of what the compressed cluster of `len` bytes at `offset` holds, if this store decodes clusters to
    /// compare them. `None`: it does not, and the caller decodes what it reads.
    ///
    /// `used` is the part of `dst` that must be right. The rest may be damaged.
    ///
    /// # Errors
    /// `InvalidData` for damage; those of reading.
    fn content_at(
        &self,
        _offset: u64,
        _len: u32,
        _used: Range<usize>,
        _dst: &mut [u8],
    ) -> Option<io::Result<()>> {
        None
    }

    /// Fills `buf` from `offset`, or fails with `UnexpectedEof`.
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        (**self).size()
    }

    fn will_need(&self, offset: u64, len: u64) {
        (**self).will_need(offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        (**self).done_with(offset, len);
    }

    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).touch(offset, len)
    }

    fn content_at(
        &self,
        offset: u64,
        len: u32,
        used: Range<usize>,
        dst: &mut [u8],
    ) -> Option<io::Result<()>> {
        (**self).content_at(offset, len, used, dst)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        (**self).size()
    }

    fn will_need(&self, offset: u64, len: u64) {
        (**self).will_need(offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        (**self).done_with(offset, len);
    }

    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).touch(offset, len)
    }

    fn content_at(
        &self,
        offset: u64,
        len: u32,
        used: Range<usize>,
        dst: &mut [u8],
    ) -> Option<io::Result<()>> {
        (**self).content_at(offset, len, used, dst)
    }
}

/// Part of another store, as a store of its own: an image at an offset, a file in a tar.
pub struct Window<S> {
    inner: S,
    start: u64,
    len: u64,
}

impl<S: ReadAt> Window<S> {
    /// Part of `inner` from byte `start` to its end. Empty if `start` is past the end.
    pub fn from(inner: S, start: u64) -> Self {
        let len = inner.size().saturating_sub(start);
        Self { inner, start, len }
    }

    /// Part of `inner` of at most `len` bytes from byte `start` on.
    pub fn part(inner: S, start: u64, len: u64) -> Self {
        let window = Self::from(inner, start);
        let len = window.len.min(len);
        Self { len, ..window }
    }
}

impl<S: ReadAt> ReadAt for Window<S> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(offset);
        let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        // Fits: offset < len, and start + len was a position of the inner store.
        self.inner.read_at(&mut buf[..want], self.start + offset)
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn will_need(&self, offset: u64, len: u64) {
        let left = self.len.saturating_sub(offset);
        if left > 0 {
            self.inner.will_need(self.start + offset, len.min(left));
        }
    }

    fn done_with(&self, offset: u64, len: u64) {
        let left = self.len.saturating_sub(offset);
        if left > 0 {
            self.inner.done_with(self.start + offset, len.min(left));
        }
    }

    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        let left = self.len.saturating_sub(offset);
        if left > 0 {
            self.inner.touch(self.start + offset, len.min(left))?;
        }
        if len > left {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}
