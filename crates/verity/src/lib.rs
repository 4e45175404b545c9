//! Hash trees of dm-verity: what a device holds is what a root hash of 32 bytes says, or reading it fails.
//!
//! ```text
//!  data blocks │ header │ top of the tree │ ... │ a digest for each data block │ parity, if wanted
//!              └ the hash offset
//! ```
//!
//! The data may be anything; the tree lies behind it or in a file of its own, in the form that Linux (since 3.4) and veritysetup
//! take: hash type 1, SHA-256.
//!
//! * [`Header`]: what a tree says about itself. Nothing of it is trusted: the root hash alone decides.
//! * [`make`]: the tree of some data.
//! * [`Verified`]: data that is verified as it is read.
//! * [`Verified::scan`]: which blocks are damaged.
//! * [`Verified::repair`]: what parity behind the tree mends of them.
//!
//! Source: the kernel's `Documentation/admin-guide/device-mapper/verity.rst`, and cryptsetup's wiki page on dm-verity for
//! the header.

mod header;
mod make;
mod parity;
mod scan;
mod shape;
mod verified;
mod work;

pub use header::{Broken, HEADER_LEN, Header};
pub use make::{Made, make, tree_end};
pub use parity::ROOTS;
pub use scan::{Damage, Mended};
pub use verified::{Verified, find_roots, read_header, stated_root};

use sha2::{Digest, Sha256};

/// Length of a digest. Unit: bytes.
pub const DIGEST_LEN: usize = 32;

/// What a root hash is.
pub type Root = [u8; DIGEST_LEN];

/// Digests of blocks: SHA-256 over salt and block.
#[derive(Clone)]
struct Hasher(Sha256);

impl Hasher {
    fn new(salt: &[u8]) -> Self {
        Self(Sha256::new_with_prefix(salt))
    }

    fn digest(&self, block: &[u8]) -> Root {
        self.0.clone().chain_update(block).finalize().into()
    }
}
