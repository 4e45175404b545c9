//! Check of images: every structure, every rule, every cluster once, on all CPUs.
//!
//! ```text
//! walk    one thread: directories, inodes, attributes, indexes      walk.rs near.rs inode.rs xattr.rs superblock.rs
//!    └► jobs    clusters not seen yet, sorted by position            data.rs, marks.rs
//!         └► workers   read, decode, discard                         work.rs
//! files   all CPUs: fingerprints, if requested                      fingerprint.rs
//! ```
//!
//! A finding never stops the check. Everything below a broken structure is skipped, and the rest is checked.
//!
//! Invariants:
//!
//! * Memory does not grow with the number of files, only by some bytes per block of metadata and four bytes per block
//!   of data.
//! * The findings do not depend on the number of threads.

mod data;
mod finding;
mod fingerprint;
mod inode;
pub(crate) mod marks;
mod near;
mod paths;
mod report;
mod shared;
mod superblock;
mod walk;
mod work;
mod xattr;

pub use finding::{Finding, Rule, Severity};
pub use report::{Options, Report, Totals};

use crate::read::Image;
use shared::Shared;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// Checks an image. Open it without [`verify_checksum`](crate::read::OpenOptions::verify_checksum), so that a wrong
/// checksum becomes a finding.
///
/// The calling thread calls `progress` regularly and once at the end.
pub fn check(image: &Image, options: &Options, mut progress: impl FnMut(&Totals)) -> Report {
    let shared = Shared::new(options);
    let marks = std::thread::scope(|scope| {
        let jobs = data::Jobs::start(image, options, &shared, scope);
        let mut walk = walk::Walk::new(image, &shared, jobs, &mut progress);
        walk.run();
        let marks = walk.finish();
        while shared.workers.load(Acquire) > 0 {
            std::thread::park_timeout(Duration::from_millis(100));
            progress(&shared.totals.get());
        }
        marks
    });
    superblock::check(image, &shared, &marks);
    if let Err(e) = image.has_devices()
        && !options.data
    {
        shared.add(Severity::Note, Rule::DataRange, "", e.what());
    }
    if options.fingerprints {
        fingerprint::check(image, options.worker_count(), &shared);
    }
    let mut report = shared.into_report();
    paths::add(image, &mut report.findings);
    progress(&report.totals);
    report
}
