//! An image as a tar stream, the same bytes every time.
//!
//! ```text
//!  entry ──► records that the header cannot hold ──► header ──► data            member.rs header.rs sparse.rs acl.rs
//!             ("x" member, PAX)                       ustar      padded to 512
//! ```
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

pub use member::{Options, Stats, TarWriter};
