//! dm-verity hash trees: reading returns the data that a 32-byte root hash covers, or fails.
//!
//! ```text
//! data blocks │ header │ top level │ ... │ a digest for each data block │ parity (optional)
//!              └ hash offset
//! ```
//!
//! The data may be anything. The tree follows it or is in a separate file, in the format of Linux and veritysetup
//! with hash type 1 and SHA-256.
//!
//! * [`Header`]: parameters of a tree. They are not trusted: only the root hash is.
//! * [`covered`]: decides which bytes digests cover, from the length that the data claims.
//! * [`make`]: builds the tree of some data.
//! * [`Verified`]: a store that verifies what it reads.
//! * [`Verified::scan`]: finds damaged blocks.
//! * [`Verified::repair`]: corrects damaged blocks with the parity.
//!
//! Source: the kernel's `Documentation/admin-guide/device-mapper/verity.rst`, and cryptsetup's wiki page on dm-verity for
//! the header.

mod coverage;
mod header;
mod layout;
mod make;
mod parity;
mod scan;
mod threads;
mod verified;

pub use coverage::{NotCovered, TreePlace, covered};
pub use header::{HEADER_LEN, Header, HeaderError};
pub use make::{BuiltTree, make, tree_end};
pub use parity::ROOTS;
pub use scan::{Damage, RepairedBlock};
pub use verified::{
    Verified, find_roots, hash_blocks_of, read_header, stated_root, unverified_digests,
};

use sha2::{Digest, Sha256};

/// Length of a digest. Unit: bytes.
pub const DIGEST_LEN: usize = 32;

/// Digest of the top block of a tree.
pub type Root = [u8; DIGEST_LEN];

/// Returns the digest that a tree with this salt has for a block.
pub fn block_digest(salt: &[u8], block: &[u8]) -> Root {
    Hasher::new(salt).digest(block)
}

/// SHA-256 over the salt and a block.
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
