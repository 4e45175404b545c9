//! Fingerprints: an extended attribute of each file that holds the digest of its content. Kernels from 7.0 on let files of
//! different mounts with equal fingerprints share their pages (`-o inode_share,domain_id=`).
//!
//! The value is [`PREFIX`] followed by the 32 bytes of the digest, the form that mkfs.erofs writes. All images that share
//! pages must use the same form.

use crate::Result;
use sha2::{Digest, Sha256};

/// Usual name of the attribute. It has no namespace, so that users do not see it.
pub const NAME: &str = "erofs.fingerprint.v1";
/// Prefix of the value.
pub const PREFIX: &[u8] = b"sha256:";
/// Size of one read. Unit: bytes.
const READ_BYTES: usize = 1 << 20;

/// Returns the digest of a content of `size` bytes, which `read` copies from an offset into a buffer.
///
/// # Errors
///
/// Returns the errors of `read`.
pub fn digest_of(
    size: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<()>,
) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buf = vec![0; READ_BYTES.min(usize::try_from(size).unwrap_or(READ_BYTES))];
    let mut done = 0;
    while done < size {
        let n = usize::try_from(size - done).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        read(&mut buf[..n], done)?;
        hash.update(&buf[..n]);
        done += n as u64;
    }
    Ok(hash.finalize().into())
}
