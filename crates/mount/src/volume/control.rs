//! Requests of `tuff volume` to the server of a mounted volume: sync, snapshots and forks.
//!
//! A request is the name of an extended attribute of the root that a client reads. Reading one takes no lock of the
//! directory, so writers go on:
//!
//! ```text
//!  system.tuff.sync                        everything is durable
//!  system.tuff.writable                    0 if changes are accepted
//!  system.tuff.snapshot.create/NAME
//!  system.tuff.snapshot.delete/NAME
//!  system.tuff.fork/NAME  or  /NAME/SNAPSHOT
//!
//!  value    exit code as one digit, then a sentence if it is not 0
//! ```
//!
//! A snapshot or fork is one instant of the volume between the request and the reply. Everything is drained first, so
//! that what programs wrote before the request is in it.

use super::control_request::Control;
use super::fields::now;
use super::server::{DrainReply, SEEK_MINOR_MIN, VolumeServer};
use super::service::Work;
use rustix::fd::AsFd;
use rustix::io::Errno;
use tuff_fuse::filesystem::Result;
use tuff_fuse::reply::Reply;
use tuff_fuse::request::Request;
use tuff_iplfs::{Checkpoint, Error, Fork, Volume};

/// Maximum length of a reply. Unit: bytes.
const REPLY_MAX: usize = 1024;

impl VolumeServer {
    /// Answers a request of a client, later.
    pub(super) fn begin_control<'a>(
        &self,
        request: &Request<'_>,
        attribute: &[u8],
        size: u32,
    ) -> Result<Reply<'a, Work>> {
        let owner = rustix::process::geteuid().as_raw();
        let user = request.user();
        if !user.is_some_and(|user| user == 0 || user == owner) {
            return Err(Errno::PERM);
        }
        let control = Control::parse(attribute).ok_or(Errno::NODATA)?;
        if (size as usize) < REPLY_MAX {
            return Err(Errno::RANGE);
        }
        if self.negotiation.minor() < SEEK_MINOR_MIN {
            return Err(Errno::OPNOTSUPP);
        }
        self.enter_drain(DrainReply::Control(request.pending(), control))?;
        Ok(Reply::Later(None))
    }

    /// Drains, and makes a requested change. Returns the body of the reply.
    pub(super) fn control(&self, fuse: &impl AsFd, control: &Control) -> Result<Vec<u8>> {
        self.drain(fuse)?;
        let done = match control {
            Control::Sync => Ok(()),
            Control::Writable => self.with(|volume| match volume.is_read_only() {
                true => Err(Error::Unsupported(
                    "the volume is mounted for reading only; unmount it, and mount it again"
                        .to_owned(),
                )),
                false => Ok(()),
            }),
            Control::CreateSnapshot(name) => self.create_snapshot(name),
            Control::DeleteSnapshot(name) => self.delete_snapshot(name),
            Control::Fork { name, snapshot } => self.fork(name, snapshot.as_deref()),
        };
        let mut reply = match done {
            Ok(()) => "0".to_owned(),
            Err(e) => format!("{}{e}", e.exit_code()),
        };
        let end = (0..=REPLY_MAX.min(reply.len()))
            .rfind(|end| reply.is_char_boundary(*end))
            .unwrap_or(0);
        reply.truncate(end);
        Ok(reply.into_bytes())
    }

    fn create_snapshot(&self, name: &str) -> tuff_iplfs::Result<()> {
        let _only = self.lock_lineage();
        let turn = self.lock_checkpoint();
        // Little is dirty then, and other operations wait only while that is written.
        self.checkpoint(&turn)?;
        let checkpoint = self.with(|volume| volume.begin_snapshot(name, now()))?;
        let made = self.complete(checkpoint);
        if made.is_err() {
            // The record may be in memory. A volume that refuses changes keeps nothing of it.
            let _ = self.with(|volume| volume.delete_snapshot(name));
        }
        made
    }

    fn delete_snapshot(&self, name: &str) -> tuff_iplfs::Result<()> {
        let only = self.lock_lineage();
        self.checkpoint(&self.lock_checkpoint())?;
        self.release(&only, |volume| volume.begin_delete_snapshot(name).map(Some))?;
        Ok(())
    }

    fn fork(&self, name: &str, snapshot: Option<&str>) -> tuff_iplfs::Result<()> {
        let _only = self.lock_lineage();
        let turn = self.lock_checkpoint();
        self.checkpoint(&turn)?;
        let fork = self.with(|volume| volume.begin_fork(name, snapshot, now()))?;
        let made = self.make(&fork);
        // In any case: what a failed fork holds is released.
        let ended = self.with(|volume: &mut Volume| volume.end_fork(fork));
        made.and(ended)
    }

    fn make(&self, fork: &Fork) -> tuff_iplfs::Result<()> {
        if let Some(checkpoint) = fork.checkpoint() {
            self.complete(checkpoint)?;
        }
        fork.make()
    }

    /// Makes a checkpoint durable that was begun. Flushes without access to the volume.
    pub(super) fn complete(&self, checkpoint: Checkpoint) -> tuff_iplfs::Result<()> {
        self.flush_device()?;
        if self.with(|volume| volume.seal_checkpoint(checkpoint))? {
            self.flush_device()?;
            self.with(|volume| volume.end_checkpoint(checkpoint))?;
        }
        Ok(())
    }
}
