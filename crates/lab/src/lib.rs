//! The lab: measures Tuff beside the tools people use today, and says honestly what came out.
//!
//! ```text
//!  define ──► engine ──► run ──► record ──► report
//!  what        command     │      JSON       tables, README
//!  to do       lines       │      lines
//!                          ├── measure   one command, alone in a fresh process, with its usage
//!                          └── verify    is the result right? only then does its time count
//! ```
//!
//! That is the first room: commands that make and read images. The second, [`serve`], measures reads through mounts; the third, [`campaigns::experiments`],
//! runs in virtual time; the fourth, [`campaign`], looks for mistakes in volumes; the fifth, [`volumes`], measures them beside ext4;
//! the sixth, [`start`], how long programs take to start from images; the seventh, [`cuts`], what is left when the power
//! goes; the eighth, [`fio`], volumes and images under fio.
//!
//! Invariants:
//!
//! * Rivals run as subprocesses only; every tool, ours included, is measured through the same door.
//! * A time counts only after the result of that tool with those settings was found right in the same run.
//! * Raw samples are kept, rejected ones too; tables are made from records and from nothing else.
//! * A record names no path of the machine it was made on: command lines are templates.
//! * No result depends on a clock or on chance that the record does not name.

pub mod campaigns;
pub mod definition;
pub mod engines;
pub mod error;
pub mod measure;
pub mod record;
pub mod report;
pub mod verify;

pub use error::{Error, Result};
