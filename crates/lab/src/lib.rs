//! The lab measures Tuff and other tools, and reports the results with their raw samples.
//!
//! ```text
//! definition ──► engine ──► run ──► record ──► report
//! tasks          command     │      JSON       tables, charts
//!                 lines       │      lines
//!                             ├── measure   one command in a fresh process, with its resource usage
//!                             └── verify    the result is verified before its time counts
//! ```
//!
//! Each kind of measurement is a module of [`campaigns`]: commands that build and read images,
//! reads through mounts, program start-up from images, volumes compared with ext4, fio, power loss,
//! experiments in virtual time, stress tests, and measurements under another kernel ([`guest`]).
//!
//! Invariants:
//!
//! * Other tools run as subprocesses only. Every tool, ours included, is measured in the same way.
//! * A time counts only if the result of the same tool and settings was verified in the same run.
//! * Raw samples are kept, rejected ones included. Tables are made from records only.
//! * A record contains no path of the machine: command lines are templates.
//! * No result depends on a clock or on random numbers that the record does not name.

pub mod campaigns;
pub mod definition;
pub mod engines;
pub mod error;
pub mod guest;
pub mod measure;
pub mod options;
pub mod record;
pub mod report;
pub mod verify;

pub use error::{At, Error, Result};
