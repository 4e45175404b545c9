//! Sealed objects: content in chunks, each encrypted and authenticated.
//!
//! ```text
//! TUFFSEAL │ version │ salt of 32 bytes │ chunk 0 │ tag │ chunk 1 │ tag │ …
//! ```
//!
//! The key of an object is derived from the store's key, the salt, the identifier of the store and the name of the object: an object
//! at the place of another one is refused. A salt is random and used once: no key comes again, also if host or bucket were put
//! back to an earlier state. The nonce of a chunk is its number and whether it is the last (STREAM, doi:10.1007/978-3-662-48000-7_9),
//! so that chunks cannot be exchanged, left out or cut off. Cipher: ChaCha20-Poly1305 (RFC 8439).

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_store::ReadAt;
use zeroize::Zeroizing;

const MAGIC: [u8; 8] = *b"TUFFSEAL";
const VERSION: u64 = 1;
/// Length of magic, version and salt. Unit: bytes.
pub(crate) const FRONT_LEN: usize = 48;
/// Content of a chunk. Unit: bytes.
pub(crate) const CHUNK: u64 = 64 << 10;
const TAG_LEN: u64 = 16;
const SEALED_CHUNK: u64 = CHUNK + TAG_LEN;

/// Key of a store from which keys of objects are derived, with the identifier of the store.
pub(crate) struct SealKey {
    key: Zeroizing<[u8; 32]>,
    store: [u8; 16],
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// Key of one object.
pub(crate) struct ObjectKey(LessSafeKey);

/// Key of 32 bytes that has one purpose, which `context` names, derived from others.
pub(crate) fn derive(context: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(part);
    }
    Zeroizing::new(*hasher.finalize().as_bytes())
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        at += rustix::rand::getrandom(&mut bytes[at..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// A key for the cipher, of 32 bytes.
pub(crate) fn cipher(key: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key);
    LessSafeKey::new(key.expect("a key of the cipher has 32 bytes"))
}

impl SealKey {
    pub(crate) fn new(key: Zeroizing<[u8; 32]>, store: [u8; 16]) -> Self {
        Self { key, store }
    }

    fn object(&self, name: &str, salt: &[u8]) -> ObjectKey {
        let parts = [&self.key[..], salt, &self.store, name.as_bytes()];
        ObjectKey(cipher(&derive(
            "tuff backup store 2, sealed object",
            &parts,
        )))
    }

    /// Key of an object by its first bytes. `None` if they are no front of one.
    pub(crate) fn of_front(&self, name: &str, front: &[u8]) -> Option<ObjectKey> {
        let front = front.get(..FRONT_LEN)?;
        let is_known = front[..8] == MAGIC && front[8..16] == VERSION.to_le_bytes();
        is_known.then(|| self.object(name, &front[16..]))
    }

    /// Front and key of a new object.
    fn start(&self, name: &str) -> io::Result<(Vec<u8>, ObjectKey)> {
        let salt: [u8; 32] = random()?;
        let mut front = MAGIC.to_vec();
        front.extend(VERSION.to_le_bytes());
        front.extend(salt);
        let key = self.object(name, &salt);
        Ok((front, key))
    }

    /// Seals a small object.
    pub(crate) fn seal(&self, name: &str, content: &[u8]) -> io::Result<Vec<u8>> {
        let (mut sealed, key) = self.start(name)?;
        let last = last_chunk(content.len() as u64);
        for number in 0..=last {
            // Fits: the content is in memory.
            let start = (number * CHUNK) as usize;
            let part = &content[start..content.len().min(start + CHUNK as usize)];
            key.seal(number, number == last, part, &mut sealed);
        }
        Ok(sealed)
    }

    /// Opens a small object. `None` if it is another one, or damaged.
    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let key = self.of_front(name, sealed)?;
        content_len(sealed.len() as u64)?;
        key.open(0, &sealed[FRONT_LEN..], true)
    }
}

impl ObjectKey {
    fn seal(&self, number: u64, is_last: bool, content: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(content);
        let nonce = nonce(number, is_last);
        let sealed = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut out[start..]);
        out.extend_from_slice(
            sealed
                .expect("a chunk is shorter than the cipher's limit")
                .as_ref(),
        );
    }

    /// Opens chunks from a number on. `is_end`: the last of them is that of the object. `None` if they are others, or damaged.
    pub(crate) fn open(&self, first: u64, sealed: &[u8], is_end: bool) -> Option<Vec<u8>> {
        let mut content = Vec::with_capacity(sealed.len());
        let count = sealed.len().div_ceil(SEALED_CHUNK as usize);
        for (number, chunk) in (first..).zip(sealed.chunks(SEALED_CHUNK as usize)) {
            let is_last = is_end && number + 1 == first + count as u64;
            let start = content.len();
            content.extend_from_slice(chunk);
            let nonce = nonce(number, is_last);
            let opened = self
                .0
                .open_in_place(nonce, Aad::empty(), &mut content[start..]);
            let len = opened.ok()?.len();
            content.truncate(start + len);
        }
        (count > 0).then_some(content)
    }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[11] = is_last.into();
    Nonce::assume_unique_for_key(bytes)
}

/// Number of the last chunk of a content. An empty one has an empty chunk.
fn last_chunk(len: u64) -> u64 {
    len.saturating_sub(1) / CHUNK
}

/// Length of an object with a content. Unit: bytes.
pub(crate) fn sealed_len(content: u64) -> u64 {
    FRONT_LEN as u64 + content + (last_chunk(content) + 1) * TAG_LEN
}

/// Length of the content of an object. `None` if no object has this length.
pub(crate) fn content_len(sealed: u64) -> Option<u64> {
    let chunks = sealed.checked_sub(FRONT_LEN as u64)?;
    let content = chunks.checked_sub(chunks.div_ceil(SEALED_CHUNK) * TAG_LEN)?;
    (sealed_len(content) == sealed).then_some(content)
}

/// Chunks that have a range of the content: their numbers, and their place in the object.
pub(crate) fn chunks_of(range: &Range<u64>) -> (Range<u64>, Range<u64>) {
    let chunks = range.start / CHUNK..last_chunk(range.end).max(range.start / CHUNK) + 1;
    let at = |number: u64| {
        number
            .saturating_mul(SEALED_CHUNK)
            .saturating_add(FRONT_LEN as u64)
    };
    (chunks.clone(), at(chunks.start)..at(chunks.end))
}

/// Object that is sealed while it is read.
pub(crate) struct Sealing {
    content: Arc<dyn ReadAt>,
    front: Vec<u8>,
    key: ObjectKey,
    /// Chunk that was read last: a chunk is sealed once.
    last: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Sealing {
    pub(crate) fn new(key: &SealKey, name: &str, content: Arc<dyn ReadAt>) -> io::Result<Self> {
        let (front, key) = key.start(name)?;
        Ok(Self {
            content,
            front,
            key,
            last: Mutex::new(None),
        })
    }

    fn chunk(&self, number: u64) -> io::Result<Vec<u8>> {
        let len = self.content.size();
        let start = number * CHUNK;
        // Fits: a chunk is short.
        let mut part = vec![0; (len - start).min(CHUNK) as usize];
        self.content.read_exact_at(&mut part, start)?;
        let mut sealed = Vec::with_capacity(SEALED_CHUNK as usize);
        self.key
            .seal(number, number == last_chunk(len), &part, &mut sealed);
        Ok(sealed)
    }
}

impl ReadAt for Sealing {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.size() {
            return Ok(0);
        }
        let copy = |from: &[u8], buf: &mut [u8]| {
            let n = from.len().min(buf.len());
            buf[..n].copy_from_slice(&from[..n]);
            n
        };
        let Some(at) = offset.checked_sub(FRONT_LEN as u64) else {
            // Fits: it is in the front.
            return Ok(copy(&self.front[offset as usize..], buf));
        };
        let number = at / SEALED_CHUNK;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, sealed) = match last.take() {
            Some(kept) if kept.0 == number => last.insert(kept),
            _ => last.insert((number, self.chunk(number)?)),
        };
        Ok(copy(&sealed[(at % SEALED_CHUNK) as usize..], buf))
    }

    fn size(&self) -> u64 {
        sealed_len(self.content.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_store::MemStore;
    use tuff_testkit::content::noise;

    fn key() -> SealKey {
        SealKey::new(Zeroizing::new([1; 32]), [2; 16])
    }

    fn lens() -> impl Iterator<Item = usize> {
        let chunk = CHUNK as usize;
        [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk + 5].into_iter()
    }

    #[test]
    fn objects_are_opened_as_they_were_sealed() {
        for len in lens() {
            let content = noise(len, len as u64);
            let sealed = key().seal("a", &content).unwrap();
            assert_eq!(sealed.len() as u64, sealed_len(len as u64));
            assert_eq!(content_len(sealed.len() as u64), Some(len as u64));
            assert_eq!(key().open("a", &sealed).as_ref(), Some(&content));
            // Another place, another store, another key.
            assert_eq!(key().open("b", &sealed), None);
            let other = SealKey::new(Zeroizing::new([1; 32]), [3; 16]);
            assert_eq!(other.open("a", &sealed), None);
            let other = SealKey::new(Zeroizing::new([0; 32]), [2; 16]);
            assert_eq!(other.open("a", &sealed), None);
            // The same content is another object each time.
            assert_ne!(key().seal("a", &content).unwrap()[16..], sealed[16..]);
        }
    }

    #[test]
    fn objects_that_are_sealed_while_they_are_read_are_the_same() {
        for len in lens() {
            let content = noise(len, 1);
            let stored: Arc<dyn ReadAt> = Arc::new(MemStore::new(content.clone()));
            let sealing = Sealing::new(&key(), "a", stored).unwrap();
            let mut sealed = vec![0; sealing.size() as usize];
            for (number, part) in sealed.chunks_mut(5000).enumerate() {
                sealing.read_exact_at(part, 5000 * number as u64).unwrap();
            }
            assert_eq!(key().open("a", &sealed), Some(content));
        }
    }

    #[test]
    fn exchanged_missing_and_damaged_chunks_are_refused() {
        let content = noise(3 * CHUNK as usize + 5, 1);
        let sealed = key().seal("a", &content).unwrap();
        let chunk = |n: usize| FRONT_LEN + n * SEALED_CHUNK as usize;
        let parts = |order: &[usize]| {
            let mut bytes = sealed[..FRONT_LEN].to_vec();
            for n in order {
                bytes.extend_from_slice(&sealed[chunk(*n)..chunk(n + 1).min(sealed.len())]);
            }
            bytes
        };
        assert_eq!(key().open("a", &parts(&[0, 1, 2, 3])), Some(content));
        let orders: [&[usize]; 6] = [
            &[0, 1, 2],
            &[1, 0, 2, 3],
            &[0, 2, 3],
            &[0, 1, 1, 3],
            &[3],
            &[],
        ];
        for order in orders {
            assert_eq!(key().open("a", &parts(order)), None, "{order:?}");
        }
        for at in (0..FRONT_LEN).chain([chunk(0), chunk(1) - 1, chunk(2) + 9, sealed.len() - 1]) {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(key().open("a", &damaged), None, "{at}");
        }
    }

    #[test]
    fn lengths_that_no_object_has_are_refused() {
        for len in (0..FRONT_LEN as u64 + TAG_LEN).chain([chunks_of(&(0..CHUNK)).1.end + 3]) {
            assert_eq!(content_len(len), None, "{len}");
        }
        assert_eq!(chunks_of(&(0..1)), (0..1, 48..48 + SEALED_CHUNK));
        assert_eq!(chunks_of(&(CHUNK - 1..CHUNK + 1)).0, 0..2);
        assert_eq!(chunks_of(&(CHUNK..CHUNK + 1)).0, 1..2);
    }
}
