//! The second room: how fast images are served. Readers stand beside each other on the same image: the kernel, our
//! mount, and the FUSE servers of others.
//!
//! ```text
//!  for each image:      make it from the tree
//!    for each workload: the answer, from the tree itself
//!      round 1:  mount A, read cold, read warm, unmount;  B;  C
//!      round 2:  ...
//! ```
//!
//! A workload is a list of reads fixed before the first round ([`workload`]), the same for every server. Its answer is a
//! checksum over every byte and attribute that was returned; a sample with another answer than the tree's is a failure,
//! and the server drops out of the workload.
//!
//! *Cold* is the first pass after mounting, *warm* the second on the same mount. The image itself is in the page cache
//! (`cache = "image"`), or was evicted from it (`cache = "none"`).

pub mod definition;
pub mod record;
pub mod report;
pub mod run;
pub mod server;
pub mod soak;
pub mod workload;
