//! Deterministic conversion of an image to a tar stream.
//!
//! ```text
//!   entry ──► records that the header cannot hold ──► header ──► data
//!             ("x" member, PAX)                       ustar      padded to 512
//!   member.rs  stream.rs xattr.rs acl.rs               header.rs  sparse.rs
//! ```
//! [`Stream`] and its input types are independent of images and can write other trees.
//!
//! Invariants:
//!
//! * The stream depends only on the entries: not on the current time, the host or user names.
//! * A member has PAX records only for values that its ustar header cannot represent. Their order is fixed,
//!   xattrs by name.
//! * Each additional name of an inode is a hard link to the first name written.

mod acl;
mod header;
mod member;
mod sparse;
mod stream;
mod xattr;

pub use header::{Header, Kind};
pub use member::{Options, Stats, TarWriter};
pub use stream::Stream;
pub use xattr::records as xattr_records;
