//! An image as a tar stream, the same bytes every time.
//!
//! ```text
//!  entry ──► records that the header cannot hold ──► header ──► data
//!             ("x" member, PAX)                       ustar      padded to 512
//!  member.rs  stream.rs xattr.rs acl.rs               header.rs  sparse.rs
//! ```
//! [`Stream`] and what it takes know nothing of images: they write other trees, too.
//!
//! Invariants:
//!
//! * The stream depends on the entries and on nothing else: no time, no host, no user names.
//! * A member has PAX records only for what its ustar header cannot say, in one fixed order, attributes by name.
//! * A further name of an inode is a link to the first name that was written.

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
