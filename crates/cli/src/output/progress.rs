//! Progress on a terminal or as JSON events, and handling of ^C.

use crate::text::escaped_line;
use crate::units::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tuff_mkfs::Progress;
use tuff_mkfs::progress::Snapshot;
use tuff_store::ReadAt;

/// Form of progress output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// A bar if standard error is a terminal.
    Auto,
    /// No progress at all.
    Quiet,
    /// One JSON object per line on standard error.
    Json,
}

impl Show {
    /// Form for a verb whose progress is not part of its JSON output.
    pub(crate) fn unless(is_quiet: bool) -> Self {
        match is_quiet {
            true => Self::Quiet,
            false => Self::Auto,
        }
    }
}

/// State of some work at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    stage: Cow<'static, str>,
    entries: Option<u64>,
    bytes: u64,
    /// 0 while unknown.
    total_bytes: u64,
}

impl From<Snapshot> for State {
    fn from(s: Snapshot) -> Self {
        Self {
            stage: match s.attempt {
                Some((number, count)) => format!("setting {number} of {count}: {}", s.stage).into(),
                None => s.stage.into(),
            },
            entries: Some(s.entries),
            bytes: s.bytes,
            total_bytes: s.total_bytes,
        }
    }
}

/// Counts work in bytes. Threads that do the work share it.
pub(crate) struct Counter {
    stage: Mutex<Cow<'static, str>>,
    bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl Counter {
    /// Adds work that was done.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds work to do, of which nothing was known before.
    pub(crate) fn add_total(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Declares the amount of work unknown: only a part of the image is read.
    pub(crate) fn forget_total(&self) {
        self.total_bytes.store(0, Ordering::Relaxed);
    }

    /// Sets all that is shown.
    pub(crate) fn set(&self, stage: impl Into<Cow<'static, str>>, bytes: u64, total_bytes: u64) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage.into();
        self.bytes.store(bytes, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    /// Counts all bytes that are read from a store, and adds its size to the work.
    pub(crate) fn watch(self: &Arc<Self>, store: Arc<dyn ReadAt>) -> Arc<dyn ReadAt> {
        self.add_total(store.size());
        let counter = Arc::clone(self);
        Arc::new(CountedStore { store, counter })
    }

    fn state(&self) -> State {
        let (stage, total_bytes) = (
            self.stage.lock().unwrap_or_else(PoisonError::into_inner),
            self.total_bytes.load(Ordering::Relaxed),
        );
        let bytes = self.bytes.load(Ordering::Relaxed);
        State {
            stage: stage.clone(),
            entries: None,
            // Parts of an image may be read twice.
            bytes: match total_bytes {
                0 => bytes,
                total => bytes.min(total),
            },
            total_bytes,
        }
    }
}

/// Store whose reads are counted.
struct CountedStore {
    store: Arc<dyn ReadAt>,
    counter: Arc<Counter>,
}

impl ReadAt for CountedStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let n = self.store.read_at(buf, offset)?;
        self.counter.add(n as u64);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.store.size()
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.store.will_need(offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        self.store.done_with(offset, len);
    }

    fn touch(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.store.touch(offset, len)
    }
}

/// Counter that is shown until the value is dropped.
pub(crate) struct Meter {
    counter: Arc<Counter>,
    display: Display,
}

impl Meter {
    /// Starts to show work.
    pub(crate) fn start(stage: &'static str, show: Show) -> Self {
        let counter = Arc::new(Counter {
            stage: Mutex::new(stage.into()),
            bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
        });
        let shared = Arc::clone(&counter);
        let display = Display::start(move || shared.state(), show);
        Self { counter, display }
    }

    /// The counter, for the threads that do the work.
    pub(crate) fn counter(&self) -> &Arc<Counter> {
        &self.counter
    }

    /// Returns true if the progress is shown.
    pub(crate) fn is_shown(&self) -> bool {
        self.display.thread.is_some()
    }

    /// Runs `print`, which writes to the terminal, without the line of progress.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match self.is_shown() {
            true => self.display.bar.suspend(print),
            false => print(),
        }
    }
}

/// Returns a flag that the first ^C or SIGTERM sets. A further signal ends the process at once, unless it follows
/// within a second: a signal to a process and its group arrives twice.
pub(crate) fn on_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    set_on_signal(&stop);
    stop
}

/// Sets an existing flag on the first signal: see [`on_signal`].
pub(crate) fn set_on_signal(stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    let (hand_over, watched) = mpsc::channel::<Signals>();
    let watcher = thread::Builder::new().spawn(move || {
        let Ok(mut signals) = watched.recv() else {
            return;
        };
        let mut first = None;
        for _ in signals.forever() {
            let since = first.get_or_insert_with(Instant::now).elapsed();
            if since >= Duration::from_secs(1) {
                signal_hook::low_level::exit(130);
            }
            stop.store(true, Ordering::Relaxed);
        }
    });
    // If no thread or handler is available, signals end the process as by default.
    if watcher.is_ok()
        && let Ok(signals) = Signals::new([SIGINT, SIGTERM])
    {
        let _ = hand_over.send(signals);
    }
}

/// Shows the progress of a build until it is dropped, and turns the first ^C or SIGTERM into a stop request.
pub(crate) struct Watch(#[expect(dead_code, reason = "shown until it is dropped")] Display);

impl Watch {
    /// Starts the display in a thread.
    pub(crate) fn start(progress: &Arc<Progress>, show: Show) -> Self {
        set_on_signal(&progress.stop_flag());
        let progress = Arc::clone(progress);
        Self(Display::start(move || progress.snapshot().into(), show))
    }
}

/// Thread that shows the state of some work until the value is dropped.
struct Display {
    done: Arc<AtomicBool>,
    bar: ProgressBar,
    /// None if nothing is shown.
    thread: Option<JoinHandle<()>>,
}

impl Display {
    fn start(state: impl Fn() -> State + Send + 'static, show: Show) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        // The first drawing already has its form.
        if let Ok(style) = ProgressStyle::with_template(SPINNER) {
            bar.set_style(style);
        }
        bar.set_message(escaped_line(state().stage));
        let draws = show == Show::Auto && std::io::stderr().is_terminal();
        if draws {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let work = {
            let (bar, done) = (bar.clone(), Arc::clone(&done));
            move || match show {
                Show::Json => report(&state, &done),
                _ => draw(&state, &bar, &done),
            }
        };
        // Without a thread nothing is shown.
        let thread = (draws || show == Show::Json).then(|| thread::Builder::new().spawn(work));
        Self {
            done,
            bar,
            thread: thread.and_then(Result::ok),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Draws the state until the work is done, at least once.
fn draw(state: &dyn Fn() -> State, bar: &ProgressBar, done: &AtomicBool) {
    let (mut drawn, mut counted) = (None, None);
    loop {
        let s = state();
        let template = template(&s, columns());
        if drawn.replace(template) != Some(template) {
            // The templates are constants.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
        }
        bar.set_message(escaped_line(message(&s)));
        // Rate and remaining time refer to the current stage, from its first bytes.
        let stage = Some((s.stage.clone(), has_share(&s)));
        if counted != stage {
            bar.reset();
            counted = stage;
        }
        bar.set_length(s.total_bytes);
        bar.set_position(s.bytes);
        bar.tick();
        if done.load(Ordering::Relaxed) {
            break;
        }
        thread::park_timeout(DRAW);
    }
    bar.finish_and_clear();
}

/// Prints the state as a JSON object per line until the work is done.
fn report(state: &dyn Fn() -> State, done: &AtomicBool) {
    let mut last = Instant::now();
    while !done.load(Ordering::Relaxed) {
        if last.elapsed() >= REPORT {
            last = Instant::now();
            let s = state();
            let mut event = serde_json::json!({"event": "progress", "stage": s.stage, "bytes": s.bytes,
                "total_bytes": s.total_bytes});
            if let Some(entries) = s.entries {
                event["entries"] = entries.into();
            }
            eprintln!("{}", crate::text::json(&event));
        }
        thread::park_timeout(DRAW);
    }
}

/// Time between two drawings.
const DRAW: Duration = Duration::from_millis(100);

/// Time between two JSON objects.
const REPORT: Duration = Duration::from_millis(500);

const WIDE: &str = "{msg:7} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
const MEDIUM: &str = "{msg:7} {wide_bar} {percent:>3}% {bytes_per_sec} eta {eta}";
const NARROW: &str = "{msg:7} {percent:>3}%";
const SPINNER: &str = "{spinner} {msg} {elapsed}";
const RATE: &str = "{spinner} {msg} {bytes_per_sec} {elapsed}";

/// Template of the progress line for a terminal width. A bar is drawn only if the total is known and some bytes are
/// done.
fn template(s: &State, columns: u16) -> &'static str {
    match columns {
        40.. if s.bytes > 0 && s.total_bytes == 0 => RATE,
        _ if !has_share(s) => SPINNER,
        80.. => WIDE,
        40.. => MEDIUM,
        _ => NARROW,
    }
}

fn has_share(s: &State) -> bool {
    (1..s.total_bytes).contains(&s.bytes)
}

fn message(s: &State) -> String {
    match s {
        _ if has_share(s) => s.stage.clone().into_owned(),
        // Either all bytes are done, or none.
        _ if s.total_bytes > 0 => format!("{} {}", s.stage, size(s.total_bytes)),
        _ if s.bytes > 0 => format!("{} {}", s.stage, size(s.bytes)),
        State {
            stage,
            entries: Some(entries),
            ..
        } => format!("{stage} {entries} entries"),
        _ => s.stage.clone().into_owned(),
    }
}

/// Width of the terminal on standard error. Unit: columns.
fn columns() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_store::MemStore;

    fn at(stage: &'static str, bytes: u64, total_bytes: u64) -> State {
        State {
            stage: stage.into(),
            entries: Some(7),
            bytes,
            total_bytes,
        }
    }

    #[test]
    fn a_bar_is_drawn_only_while_a_share_is_known() {
        for (s, columns, expected, says) in [
            // Standard input has no total.
            (at("walk", 5 << 20, 0), 80, RATE, "walk 5.0 MiB"),
            (at("walk", 5 << 20, 0), 30, SPINNER, "walk 5.0 MiB"),
            (at("walk", 0, 0), 80, SPINNER, "walk 7 entries"),
            (at("compare", 0, 9 << 20), 80, SPINNER, "compare 9.0 MiB"),
            (at("pack", 1, 9 << 20), 80, WIDE, "pack"),
            (at("pack", 1, 9 << 20), 50, MEDIUM, "pack"),
            (at("pack", 1, 9 << 20), 30, NARROW, "pack"),
            (at("write", 9, 9), 80, SPINNER, "write 9 B"),
        ] {
            assert_eq!(template(&s, columns), expected, "{s:?}");
            assert_eq!(message(&s), says);
        }
    }

    #[test]
    fn reads_of_a_watched_store_are_work_of_its_size() {
        let meter = Meter::start("check", Show::Quiet);
        let store = meter.counter().watch(Arc::new(MemStore::new([7; 100])));
        let mut buf = [0; 60];
        for (offset, bytes) in [(0, 60), (50, 100)] {
            store.read_at(&mut buf, offset).unwrap();
            let state = meter.counter().state();
            assert_eq!((state.bytes, state.total_bytes), (bytes, 100));
        }
        assert!(!meter.is_shown());
    }
}
