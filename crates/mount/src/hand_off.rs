//! Reads by a second thread, to measure what the hand-off of a request to a worker costs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tuff_erofs::read::Inode;
use tuff_erofs::serve::Server;
use tuff_erofs::{Error, Result};

/// Range to read, and the buffer for it.
struct Job {
    inode: Inode,
    offset: u64,
    len: usize,
    buf: Vec<u8>,
}

/// Worker thread that reads for one serving thread. It ends when this is dropped.
pub(crate) struct HandOff {
    jobs: SyncSender<Job>,
    done: Receiver<(Vec<u8>, Result<usize>)>,
    buf: Vec<u8>,
}

impl HandOff {
    /// Starts the worker. `None` if no thread can be started.
    pub(crate) fn start(server: Arc<Server>) -> Option<Self> {
        let (jobs, todo) = sync_channel::<Job>(1);
        let (send, done) = sync_channel(1);
        let work = move || {
            let mut session = server.session();
            for mut job in todo {
                let buf = &mut job.buf[..job.len];
                let n = server.read(&mut session, &job.inode, job.offset, buf);
                if send.send((job.buf, n)).is_err() {
                    break;
                }
            }
        };
        let name = "decode".to_owned();
        std::thread::Builder::new().name(name).spawn(work).ok()?;
        Some(Self {
            jobs,
            done,
            buf: Vec::new(),
        })
    }

    /// Reads up to `len` bytes at `offset` in the worker.
    ///
    /// # Errors
    /// As [`Server::read`].
    pub(crate) fn read(&mut self, inode: &Inode, offset: u64, len: usize) -> Result<&[u8]> {
        let mut buf = std::mem::take(&mut self.buf);
        buf.resize(len.max(buf.len()), 0);
        let job = Job {
            inode: *inode,
            offset,
            len,
            buf,
        };
        let dead = || Error::limit("", "the worker thread ended");
        self.jobs.send(job).map_err(|_| dead())?;
        let (buf, n) = self.done.recv().map_err(|_| dead())?;
        self.buf = buf;
        Ok(&self.buf[..n?])
    }
}
