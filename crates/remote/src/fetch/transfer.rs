//! Requests: from the bytes of a server to verified chunks in the cache.

use super::chunks::{Arrived, Cutter, Progress, Request, missing_of};
use super::fetcher::Fetcher;
use super::queue::{FillFailure, Priority};
use super::shared::{SharedBlocks, SharedChunk};
use crate::error::{Error, Kind, Result};
use crate::source::Later;
use crate::verify::VERIFY_ATTEMPTS;
use std::collections::BTreeSet;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// Bytes that are verified and stored at once. Unit: bytes.
const BATCH: u64 = 512 << 10;

/// Part of bandwidth x round trip up to which chunks that are known are fetched again between others.
const GAP_SHARE: u64 = 4;

/// Number of requests for each late one that is repeated: at most 5 % are.
const REQUESTS_PER_HEDGE: u64 = 20;

/// Chunks of an answer that do not match, and how.
#[derive(Default)]
struct Kept {
    wrong: BTreeSet<u64>,
    mismatch: String,
}

impl Fetcher {
    /// Fetches, verifies and stores a run of chunks, each as soon as it has arrived.
    pub(super) async fn get(self: &Arc<Self>, request: &Request) -> Result<()> {
        for missing in self.copy_shared(request).await {
            self.get_missing(missing, request).await?;
        }
        Ok(())
    }

    async fn get_missing(
        self: &Arc<Self>,
        mut missing: Range<u64>,
        request: &Request,
    ) -> Result<()> {
        let mut mismatch = String::new();
        for _ in 0..VERIFY_ATTEMPTS {
            let (sender, receiver) = unbounded_channel();
            let (this, priority) = (Arc::clone(self), request.priority);
            let digests = self.prepare(&missing);
            let keeping = async move { this.keep_all(receiver, digests, priority).await };
            let keeping = self.runtime.spawn(keeping);
            // The first request keeps the deadline by itself.
            let left = match mismatch.is_empty() {
                true => Duration::MAX,
                false => self.deadline.saturating_sub(request.started.elapsed()),
            };
            let answer = request
                .priority
                .reason()
                .scope(self.request(&missing, request, sender));
            let answer = tokio::time::timeout(left, answer).await;
            let kept = keeping.await;
            let kept = kept.map_err(|e| self.error(Kind::Unavailable, &missing, e))?;
            let kept = kept.map_err(|e| self.of_run(&missing, &e))?;
            let Ok(answer) = answer else {
                break;
            };
            if let Err(e) = answer {
                return Err(self.of_run(&missing, &e));
            }
            let (Some(first), Some(last)) = (kept.wrong.first(), kept.wrong.last()) else {
                return Ok(());
            };
            missing = *first..*last + 1;
            mismatch = kept.mismatch;
        }
        Err(self.error(Kind::Corrupt, &missing, mismatch))
    }

    /// The error of a request, with the bytes that it was for.
    fn of_run(&self, run: &Range<u64>, e: &Error) -> Error {
        let of_run = self.error(e.kind(), run, e.what());
        match e.is_refused() {
            true => of_run.refused(),
            false => of_run,
        }
    }

    /// Starts to fetch the digests of a run.
    fn prepare(self: &Arc<Self>, run: &Range<u64>) -> JoinHandle<Result<()>> {
        let this = Arc::clone(self);
        let start = run.start * self.chunk_size();
        let range = start..start + self.run_len(run);
        self.runtime.spawn(async move {
            match &this.verifier {
                Some(verifier) => verifier.prepare(range, &this.place).await,
                None => Ok(()),
            }
        })
    }

    /// Copies chunks that other images in the cache have. Returns the rest, which is missing.
    async fn copy_shared(self: &Arc<Self>, request: &Request) -> Vec<Range<u64>> {
        let run = request.run.clone();
        let Some(verifier) = &self.verifier else {
            return vec![run];
        };
        let find = || async {
            let (this, verifier) = (Arc::clone(self), Arc::clone(verifier));
            let work = move || SharedBlocks::find(&this.directory, &this.key, &verifier);
            self.runtime.spawn_blocking(work).await.unwrap_or_default()
        };
        if self.shared.get_or_init(find).await.is_none() {
            return vec![run];
        }
        // The digests tell which blocks to look for. A failure comes again when they are needed.
        let _ = self.prepare(&run).await;
        let (this, copied, priority) = (Arc::clone(self), run.clone(), request.priority);
        let work = move || this.copy_chunks(&copied, priority);
        let missing = self.runtime.spawn_blocking(work).await;
        let missing = missing.unwrap_or_else(|_| vec![run]);
        let left: u64 = missing.iter().map(|run| self.run_len(run)).sum();
        let copied = self.run_len(&request.run) - left;
        request.flight.arrived(copied as usize); // fits: at most 2 MiB
        let first = missing.first().map(|run| run.start);
        if first != Some(request.run.start) {
            request.flight.has_first();
        }
        missing
    }

    fn copy_chunks(&self, run: &Range<u64>, priority: Priority) -> Vec<Range<u64>> {
        let Some(Some(shared)) = self.shared.get() else {
            return vec![run.clone()];
        };
        // A gap that takes longer than a part of a round trip is worth a request.
        let gap = self.link().pace().around() / GAP_SHARE / self.chunk_size();
        let find = |chunk| shared.chunk(chunk);
        missing_of(run, gap, find, |chunk, SharedChunk { bytes, place }| {
            let counter = &self.counters.shared_bytes;
            counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let place = place.map(|(image, at)| (shared.image(image), at));
            self.keep(vec![Arrived { chunk, bytes }], place, priority);
        })
    }

    /// Reads a run of chunks from the source. A late answer that a reader waits for is requested again.
    async fn request(
        &self,
        run: &Range<u64>,
        request: &Request,
        chunks: UnboundedSender<Arrived>,
    ) -> Result<()> {
        let start = run.start * self.chunk_size();
        let range = start..start + self.run_len(run);
        let is_demand = request.priority == Priority::Demand;
        let progress = Arc::new(Progress::new(run.start, Instant::now()));
        let cutter = |range: &Range<u64>| {
            let flight = Arc::clone(&request.flight);
            Cutter::new(
                range,
                self.chunk_size(),
                chunks.clone(),
                flight,
                Arc::clone(&progress),
            )
        };
        let mut of_first = cutter(&range);
        if !is_demand {
            return self.request_in_steps(range, request, &mut of_first).await;
        }
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut sink = |bytes: &[u8]| of_first.put(bytes);
        let mut first = self.object.read_to(range.clone(), true, &mut sink);
        let late_after = match self.hedging {
            true => self.queue().durations.late_after(),
            false => None,
        };
        let finished = match late_after {
            None => Some(first.as_mut().await),
            Some(late_after) => in_time(&mut first, late_after, &progress).await,
        };
        let rest = progress.next() * self.chunk_size()..range.end;
        let result = match finished {
            Some(result) => result,
            None if !rest.is_empty() && self.may_hedge() => {
                let mut of_second = cutter(&rest);
                let mut sink = |bytes: &[u8]| of_second.put(bytes);
                race(first, self.object.read_to(rest, true, &mut sink)).await
            }
            None => first.await,
        };
        if let Some(time) = progress.first() {
            self.queue().durations.add(time);
        }
        result
    }

    /// Reads a range that no reader waits for, and lets readers go first between its steps.
    async fn request_in_steps(
        &self,
        range: Range<u64>,
        request: &Request,
        cutter: &mut Cutter,
    ) -> Result<()> {
        let mut next = range.start;
        while next < range.end {
            let end = range.end.min(next.saturating_add(request.step));
            if next > range.start {
                self.link().yield_to_readers().await;
                request.flight.add_bytes(end - next);
            }
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            let mut sink = |bytes: &[u8]| cutter.put(bytes);
            self.object.read_to(next..end, false, &mut sink).await?;
            next = end;
        }
        Ok(())
    }

    /// Verifies and keeps chunks as they arrive, once their digests are there.
    async fn keep_all(
        self: &Arc<Self>,
        mut chunks: UnboundedReceiver<Arrived>,
        digests: JoinHandle<Result<()>>,
        priority: Priority,
    ) -> Result<Kept> {
        digests
            .await
            .map_err(|e| Error::new(Kind::Unavailable, &self.place, e))??;
        let mut kept = Kept::default();
        let mut batch = Vec::new();
        let limit = (BATCH / self.chunk_size()) as usize; // fits: at most 16
        // A request that was repeated sends some chunks twice.
        let mut seen = BTreeSet::new();
        while chunks.recv_many(&mut batch, limit).await > 0 {
            let numbers: Vec<u64> = batch.iter().map(|arrived| arrived.chunk).collect();
            let new = batch.iter().filter(|arrived| seen.insert(arrived.chunk));
            let new: u64 = new.map(|arrived| arrived.bytes.len() as u64).sum();
            self.counters
                .fetched_bytes
                .fetch_add(new, Ordering::Relaxed);
            let (this, arrived) = (Arc::clone(self), std::mem::take(&mut batch));
            let work = move || this.verify_and_keep(arrived, priority);
            let wrong = self.runtime.spawn_blocking(work).await.map_err(|e| {
                let run = numbers[0]..numbers[numbers.len() - 1] + 1;
                self.error(Kind::Unavailable, &run, e)
            })?;
            for number in &numbers {
                kept.wrong.remove(number);
            }
            for (number, mismatch) in wrong {
                kept.wrong.insert(number);
                kept.mismatch = mismatch;
            }
        }
        Ok(kept)
    }

    /// Counts another request for the same bytes, if there are not too many of them.
    fn may_hedge(&self) -> bool {
        let requests = self.counters.requests.load(Ordering::Relaxed);
        let allowed = requests / REQUESTS_PER_HEDGE;
        let add = |hedged: u64| (hedged < allowed).then_some(hedged + 1);
        let hedged = &self.counters.hedged;
        hedged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Verifies chunks, and keeps those that match. Returns the others with the mismatch.
    fn verify_and_keep(&self, chunks: Vec<Arrived>, priority: Priority) -> Vec<(u64, String)> {
        let mut wrong = Vec::new();
        let mut right = Vec::new();
        for arrived in chunks {
            let at = arrived.chunk * self.chunk_size();
            let verifier = self.verifier.as_ref();
            match verifier.map_or(Ok(()), |verifier| verifier.verify(at, &arrived.bytes)) {
                Ok(()) => right.push(arrived),
                Err(e) => {
                    let what = format!("{e}, fetched up to {VERIFY_ATTEMPTS} times");
                    wrong.push((arrived.chunk, what));
                }
            }
        }
        self.keep(right, None, priority);
        wrong
    }

    /// Stores chunks, and hands them to their readers. `source`: place where a single chunk was copied from.
    fn keep(&self, chunks: Vec<Arrived>, source: Option<(&File, u64)>, priority: Priority) {
        let all = chunks.iter().map(|kept| (kept.chunk, &kept.bytes[..]));
        // A full disk does not keep readers from what was fetched.
        let stored = self.cache.store_all(all, source);
        for Arrived { chunk, bytes } in chunks {
            let mut queue = self.queue();
            let Some(slot) = queue.slots.remove(&chunk) else {
                continue;
            };
            // A request that was repeated by another one.
            queue.demand.remove(&chunk);
            let _ = slot.set(Ok(Arc::new(bytes)));
            let has_reader = Arc::strong_count(&slot) > 1;
            drop(queue);
            if has_reader {
                self.finished.notify_all();
            }
        }
        let charged = stored.and_then(|stored| self.charge(stored, priority));
        if let (Err(e), Priority::Fill) = (charged, priority) {
            self.queue().fill.failed = Some(FillFailure {
                error: self.fill_error(format_args!("cannot keep more in the cache: {e}")),
                is_final: true,
            });
        }
    }

    /// Counts bytes that were stored.
    fn charge(&self, stored: u64, priority: Priority) -> io::Result<()> {
        // The fill evicts no chunk of an image in use.
        let image = (priority != Priority::Fill).then_some(&*self.cache);
        match self.directory.charge(stored, image)? {
            true => Ok(()),
            false => Err(io::Error::other(
                "it is full of images in use; make it larger with --cache-max SIZE",
            )),
        }
    }
}

/// Result of a request, or `None` if it is late: without a chunk for some time.
async fn in_time(
    request: &mut Later<'_, Result<()>>,
    late_after: Duration,
    progress: &Progress,
) -> Option<Result<()>> {
    loop {
        let before = progress.next();
        match tokio::time::timeout(late_after, &mut *request).await {
            Ok(result) => return Some(result),
            Err(_) if progress.next() > before => {}
            Err(_) => return None,
        }
    }
}

/// Result of `first`, or of `second` if that succeeds before. A failure of `second` is of no interest.
async fn race<T>(mut first: Later<'_, Result<T>>, second: Later<'_, Result<T>>) -> Result<T> {
    let mut second = Some(second);
    poll_fn(|context| {
        if let Poll::Ready(result) = first.as_mut().poll(context) {
            return Poll::Ready(result);
        }
        let polled = second.as_mut().map(|second| second.as_mut().poll(context));
        match polled {
            Some(Poll::Ready(Ok(value))) => Poll::Ready(Ok(value)),
            Some(Poll::Ready(Err(_))) => {
                second = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    })
    .await
}
