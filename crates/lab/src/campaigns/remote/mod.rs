//! Images behind URLs, served by `tuff mount` and `tuff serve` over a network of chosen latency and bandwidth.
//!
//! ```text
//!  image in a file ──► HTTP server of this process ──► link: latency, bandwidth, faults ──► tuff mount ──► program
//! ```
//!
//! Every mount has an empty cache. A figure counts only if what was read equals the source.

mod complete;
mod memory;
mod network;
mod report;
mod session;
mod slow;
mod starts;
mod verification;

use crate::engines::version;
use crate::measure::workspace::Work;
use crate::options::{Emit, need_root};
use crate::record::{Header, Line};
use crate::{Error, Result};
use session::Session;

pub(crate) use report::{plot, render};
pub use session::{Conditions, Part};

/// Runs a part. Returns true if all reads and programs gave the answers of the source.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    need_root("changing the root directory of programs")?;
    let tuff = conditions.options.need("tuff")?;
    let [latency, bandwidth, faults] = conditions.network.settings();
    let part = ("part", conditions.part.name());
    let settings = [
        part,
        latency,
        bandwidth,
        faults,
        ("version", version(&tuff)),
    ];
    emit(&Line::Header(Header::here("remote", settings)?))?;
    let session = Session {
        conditions,
        tuff,
        work: Work::create(conditions.options.work())?,
    };
    if conditions.part != Part::Starts && !conditions.network.fault.is_empty() {
        return Err(Error::Usage("--fault is for --part starts".to_owned()));
    }
    if conditions.part != Part::Starts && conditions.options.earlier().is_some() {
        return Err(Error::Usage(
            "--tool tuff-before=PATH is for --part starts".to_owned(),
        ));
    }
    match conditions.part {
        Part::Starts => starts::run(&session, emit),
        Part::Complete => complete::run(&session, emit),
        Part::Verification => verification::run(&session, emit),
        Part::Slow => slow::run(&session, emit),
        Part::Memory => memory::run(&session, emit),
    }
}
