//! Serve campaign: read performance of mounted images. Compares the kernel, the FUSE mount of `tuff` and
//! other FUSE servers on the same images and workloads.
//!
//! ```text
//!  for each image:      build it from the source tree
//!    for each workload: run it on the source tree for the expected checksum
//!      round 1:  mount A, read cold, read warm, unmount;  B;  C
//!      round 2:  ...
//! ```
//!
//! A workload is a list of reads fixed before the first round ([`workload`]), the same for every server. Its
//! answer is a checksum of all returned content and attributes. A server whose answer differs from that of
//! the source tree drops out of the workload.
//!
//! *Cold* is the first pass after mounting, *warm* the second on the same mount. The image file is in the
//! page cache (`cache = "image"`), or is a device that counts the bytes read and of which nothing is cached
//! (`cache = "device"`).

pub mod definition;
pub mod image;
pub(crate) mod report;
pub mod run;
pub mod server;
pub mod soak;
pub mod workload;
