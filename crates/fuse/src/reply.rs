//! Replies: the outcome of a request, and its encoding.

use crate::filesystem::{Entry, Parts, Result};
use crate::protocol::{Dirent, EntryOut, GetxattrIn};
use rustix::io::Errno;
use std::convert::Infallible;
use zerocopy::{Immutable, IntoBytes};

/// Outcome of a request. `W` is work that blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a, W = Infallible> {
    /// No reply is expected.
    Nothing,
    /// Body of a successful reply, without the header.
    Body(Parts<'a>),
    /// Error number of a failed request.
    Error(Errno),
    /// A [`ReplySender`](crate::transport::replies::ReplySender) sends the reply. The work runs on a thread that may block.
    Later(Option<W>),
}

impl<'a, W> Reply<'a, W> {
    /// Returns a reply without a body.
    pub fn empty() -> Self {
        Self::Body(Parts::default())
    }

    /// Returns a reply with these bytes, which it copies to `out`.
    ///
    /// # Errors
    /// ERANGE if `out` is shorter.
    pub fn bytes(out: &'a mut [u8], bytes: &[u8]) -> Result<Self> {
        let out = out.get_mut(..bytes.len()).ok_or(Errno::RANGE)?;
        out.copy_from_slice(bytes);
        Ok(Self::Body(Parts::One(out)))
    }

    /// Returns a reply with a structure.
    ///
    /// # Errors
    /// ERANGE if `out` is shorter.
    pub fn structure(out: &'a mut [u8], value: &(impl IntoBytes + Immutable)) -> Result<Self> {
        Self::bytes(out, value.as_bytes())
    }

    /// Returns a reply with the value of an extended attribute or a list of names, or its length if `size` is 0.
    ///
    /// # Errors
    /// ERANGE if the value is longer than `size`, E2BIG if its length has more than 32 bits.
    pub fn xattr(out: &'a mut [u8], size: u32, value: &[u8]) -> Result<Self> {
        if size == 0 {
            let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
            return Self::structure(out, &GetxattrIn { size, padding: 0 });
        }
        if value.len() > size as usize {
            return Err(Errno::RANGE);
        }
        Self::bytes(out, value)
    }
}

/// Returns the list of names of extended attributes. The kernel shows "trusted." to processes with CAP_SYS_ADMIN; a
/// server knows only their user.
pub fn xattr_list<'n>(names: impl Iterator<Item = &'n [u8]>, is_root: bool) -> Vec<u8> {
    let shown = names.filter(|name| is_root || !name.starts_with(b"trusted."));
    shown
        .flat_map(|name| [name, &[0]])
        .flatten()
        .copied()
        .collect()
}

/// Reply to READDIR or READDIRPLUS.
pub struct Listing<'a> {
    out: &'a mut [u8],
    len: usize,
    /// Length of an entry without its name. Unit: bytes.
    fixed: usize,
    is_full: bool,
}

impl<'a> Listing<'a> {
    /// Starts a listing of at most `size` bytes. With `plus`, entries have attributes.
    pub fn new(out: &'a mut [u8], size: u32, plus: bool) -> Self {
        let room = out.len().min(size as usize);
        let attributes = if plus { size_of::<EntryOut>() } else { 0 };
        Self {
            out: &mut out[..room],
            len: 0,
            fixed: attributes + size_of::<Dirent>(),
            is_full: false,
        }
    }

    /// Returns an upper limit of the number of entries.
    pub fn entries_max(&self) -> usize {
        // Each name has a byte at least, and is padded.
        self.out.len() / (self.fixed + 8)
    }

    fn entry_len(&self, name: &[u8]) -> usize {
        (self.fixed + name.len()).next_multiple_of(8)
    }

    /// Returns true if an entry with this name fits. Otherwise the listing ends before it.
    pub fn fits(&mut self, name: &[u8]) -> bool {
        self.is_full = self.out.len() - self.len < self.entry_len(name);
        !self.is_full
    }

    /// Adds an entry, and returns true, if it [fits](Self::fits). `attributes` belong to READDIRPLUS; node 0 has none.
    pub fn add(&mut self, entry: &Entry<'_>, attributes: &EntryOut) -> bool {
        if !self.fits(entry.name) {
            return false;
        }
        let dirent = Dirent {
            ino: entry.ino,
            off: entry.next,
            name_len: entry.name.len() as u32, // fits: at most 255
            kind: entry.kind,
        };
        let (start, end) = (self.len, self.len + self.entry_len(entry.name));
        let out = &mut self.out[start..end];
        let (head, rest) = out.split_at_mut(self.fixed - size_of::<Dirent>());
        head.copy_from_slice(&attributes.as_bytes()[..head.len()]);
        let (fixed, name) = rest.split_at_mut(size_of::<Dirent>());
        fixed.copy_from_slice(dirent.as_bytes());
        let (name, padding) = name.split_at_mut(entry.name.len());
        name.copy_from_slice(entry.name);
        padding.fill(0);
        self.len = end;
        true
    }

    /// Returns the reply. `result` is that of reading the directory.
    ///
    /// # Errors
    /// That of `result`, if there is no entry before it: the next request starts there and fails. EINVAL if not even one entry
    /// fits: a reply without entries would mean the end of the directory.
    pub fn finish<W>(self, result: Result<()>) -> Result<Reply<'a, W>> {
        match result {
            Err(e) if self.len == 0 => Err(e),
            Ok(()) if self.len == 0 && self.is_full => Err(Errno::INVAL),
            _ => Ok(Reply::Body(Parts::One(&self.out[..self.len]))),
        }
    }
}
