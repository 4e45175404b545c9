//! Progress: a bar on a terminal, events with `--json`, silence otherwise. And ^C.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tuff_image::build::Progress;

/// What to show while a long work runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// A bar if standard error is a terminal.
    Auto,
    /// Nothing.
    Quiet,
    /// One JSON object per line on standard error.
    Json,
}

/// One line on a terminal that says what a long work is doing, gone when it is dropped.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Shows something only if `wanted` and standard error is a terminal.
    pub(crate) fn new(wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if wanted && std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            // The template is a constant of ours.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
        }
        Self(bar)
    }

    /// Replaces the line.
    pub(crate) fn show(&self, what: impl std::fmt::Display) {
        if !self.0.is_hidden() {
            self.0.set_message(what.to_string());
            self.0.tick();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Is set by the first ^C or SIGTERM from now on. One that comes a second later or more ends the process at once; sooner,
/// it is taken for the same one: who signals a process and its group sends two.
pub(crate) fn on_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    set_on_signal(&stop);
    stop
}

/// The same for a flag that is there.
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
    // Signals that cannot be watched, or by nobody, end the process, as they would without this.
    if watcher.is_ok()
        && let Ok(signals) = Signals::new([SIGINT, SIGTERM])
    {
        let _ = hand_over.send(signals);
    }
}

/// Shows a build's progress until it is dropped; turns the first ^C or SIGTERM into a request to stop.
pub(crate) struct Watch {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch.
    pub(crate) fn start(progress: &Arc<Progress>, show: Show) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        set_on_signal(&progress.stop_flag());
        let (progress, ended) = (Arc::clone(progress), Arc::clone(&done));
        // Without it nothing is shown.
        let thread = thread::Builder::new().spawn(move || watch(&progress, show, &ended));
        Self {
            done,
            thread: thread.ok(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(progress: &Progress, show: Show, done: &AtomicBool) {
    let draw = show == Show::Auto && std::io::stderr().is_terminal();
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    if draw {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        // The template is a constant of ours.
        if let Ok(style) = ProgressStyle::with_template(
            "{msg:6} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
        ) {
            bar.set_style(style);
        }
    }
    let mut last = Instant::now();
    while !done.load(Ordering::Relaxed) {
        let s = progress.snapshot();
        if draw {
            bar.set_message(s.stage);
            bar.set_length(s.total_bytes);
            bar.set_position(s.bytes);
        }
        if show == Show::Json && last.elapsed() >= Duration::from_millis(500) {
            last = Instant::now();
            let event = serde_json::json!({"event": "progress", "stage": s.stage, "entries": s.entries,
                "bytes": s.bytes, "total_bytes": s.total_bytes});
            eprintln!("{event}");
        }
        thread::park_timeout(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}
