//! Threads that encode ranges. Results come in the order of the requests, so that packs do not depend on timing.

use crate::digest::Digest;
use crate::encode::RangeEncoder;
use crate::segment::NewRange;
use crate::store::StoreCompression;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use tuff_mkfs::{Error, Place, Result};

/// Most bytes of content that wait for their turn, and those for each thread: the next ranges while one is encoded.
const WAITING_MAX: usize = 64 << 20;
const WAITING_OF_THREAD: usize = 4 << 20;

/// Range to encode: its content, and its parts if it is a group.
pub(crate) struct Job {
    pub(crate) digest: Digest,
    pub(crate) content: Vec<u8>,
    pub(crate) members: Vec<(Digest, u32, u32)>,
    /// Groups have smaller clusters.
    pub(crate) is_group: bool,
    /// Place at which a range compresses that has no whole blocks.
    pub(crate) probe: Option<usize>,
}

type Encoded = Result<NewRange>;

/// Queue of ranges that are being encoded.
pub(crate) struct Encoders {
    jobs: SyncSender<(Job, SyncSender<Encoded>)>,
    waiting: VecDeque<(usize, Receiver<Encoded>)>,
    bytes: usize,
    /// Most bytes of content that wait.
    bytes_max: usize,
}

impl Encoders {
    /// Starts threads that end with the queue.
    pub(crate) fn start<'s>(
        scope: &'s Scope<'s, '_>,
        threads: usize,
        compression: StoreCompression,
    ) -> Result<Self> {
        let (jobs, taken) = sync_channel::<(Job, SyncSender<Encoded>)>(threads);
        let taken = Arc::new(Mutex::new(taken));
        for number in 0..threads.max(1) {
            let taken = Arc::clone(&taken);
            let mut own = RangeEncoder::new(&compression.spec())?;
            let mut group = RangeEncoder::new(&compression.group_spec())?;
            let work = move || {
                loop {
                    let job = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((job, done)) = job else {
                        return;
                    };
                    let encoder = if job.is_group { &mut group } else { &mut own };
                    let encoded =
                        encoder
                            .encode(&job.content, job.probe)
                            .map(|(clusters, bytes)| NewRange {
                                digest: job.digest,
                                clusters,
                                bytes,
                                members: job.members,
                            });
                    // The run may have ended.
                    let _ = done.send(encoded);
                }
            };
            let thread = std::thread::Builder::new().name(format!("encode-{number}"));
            match thread.spawn_scoped(scope, work) {
                // Those that run are enough.
                Err(_) if number > 0 => break,
                started => {
                    let failed = |e| Error::io(Place::image(), "cannot start a thread", e);
                    started.map_err(failed)?;
                }
            }
        }
        Ok(Self {
            jobs,
            waiting: VecDeque::new(),
            bytes: 0,
            bytes_max: (WAITING_OF_THREAD * (threads + 1)).min(WAITING_MAX),
        })
    }

    /// Hands a range over. `take` gets those that are done.
    pub(crate) fn add(
        &mut self,
        job: Job,
        take: &mut dyn FnMut(NewRange) -> Result<()>,
    ) -> Result<()> {
        let (done, encoded) = sync_channel(1);
        let len = job.content.len();
        self.bytes += len;
        self.waiting.push_back((len, encoded));
        self.jobs.send((job, done)).map_err(|_| ended())?;
        while self.bytes > self.bytes_max {
            self.next(take)?;
        }
        Ok(())
    }

    /// Waits for all ranges.
    pub(crate) fn finish(&mut self, take: &mut dyn FnMut(NewRange) -> Result<()>) -> Result<()> {
        while !self.waiting.is_empty() {
            self.next(take)?;
        }
        Ok(())
    }

    fn next(&mut self, take: &mut dyn FnMut(NewRange) -> Result<()>) -> Result<()> {
        let Some((len, encoded)) = self.waiting.pop_front() else {
            return Ok(());
        };
        self.bytes -= len;
        take(encoded.recv().map_err(|_| ended())??)
    }
}

fn ended() -> Error {
    Error::limit(Place::image(), "a thread that compresses has ended")
}
