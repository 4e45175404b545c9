//! Progress on a terminal or as JSON events, and handling of ^C.

use crate::units::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tuff_mkfs::Progress;
use tuff_mkfs::progress::Snapshot;

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

/// Status line on a terminal, cleared on drop.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Creates a status line, visible only if `wanted` and standard error is a terminal.
    pub(crate) fn new(wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if wanted && std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            // The template is a constant.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
        }
        Self(bar)
    }

    /// Replaces the text of the line.
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
pub(crate) struct Watch {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the display in a thread.
    pub(crate) fn start(progress: &Arc<Progress>, show: Show) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        set_on_signal(&progress.stop_flag());
        let (progress, ended) = (Arc::clone(progress), Arc::clone(&done));
        // Without a thread nothing is shown.
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
    }
    let mut last = Instant::now();
    let (mut drawn, mut counted) = (None, None);
    while !done.load(Ordering::Relaxed) {
        let s = progress.snapshot();
        if draw {
            let template = template(&s, columns());
            // Rate and remaining time refer to the current stage, from its first bytes.
            if counted.replace((s.stage, has_share(&s))) != Some((s.stage, has_share(&s))) {
                bar.reset();
            }
            if drawn.replace(template) != Some(template) {
                // The templates are constants.
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style);
                }
            }
            bar.set_length(s.total_bytes);
            bar.set_position(s.bytes);
            bar.set_message(message(&s));
            bar.tick();
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

const WIDE: &str = "{msg:7} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
const MEDIUM: &str = "{msg:7} {wide_bar} {percent:>3}% eta {eta}";
const NARROW: &str = "{msg:7} {percent:>3}%";
const SPINNER: &str = "{spinner} {msg} {elapsed}";

/// Template of the progress line for a terminal width. A bar is drawn only if the total is known and some bytes are
/// done.
fn template(s: &Snapshot, columns: u16) -> &'static str {
    match columns {
        _ if !has_share(s) => SPINNER,
        80.. => WIDE,
        40.. => MEDIUM,
        _ => NARROW,
    }
}

fn has_share(s: &Snapshot) -> bool {
    (1..s.total_bytes).contains(&s.bytes)
}

fn message(s: &Snapshot) -> String {
    match s {
        _ if has_share(s) => s.stage.to_owned(),
        // Either all bytes are done, or none.
        _ if s.total_bytes > 0 => format!("{} {}", s.stage, size(s.total_bytes)),
        _ if s.bytes > 0 => format!("{} {}", s.stage, size(s.bytes)),
        _ => format!("{} {} entries", s.stage, s.entries),
    }
}

/// Width of the terminal on standard error. Unit: columns.
fn columns() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(stage: &'static str, bytes: u64, total_bytes: u64) -> Snapshot {
        Snapshot {
            stage,
            entries: 7,
            bytes,
            total_bytes,
        }
    }

    #[test]
    fn a_bar_is_drawn_only_while_a_share_is_known() {
        for (s, columns, wanted, says) in [
            // Standard input has no total.
            (at("walk", 5 << 20, 0), 80, SPINNER, "walk 5.0 MiB"),
            (at("walk", 0, 0), 80, SPINNER, "walk 7 entries"),
            (at("compare", 0, 9 << 20), 80, SPINNER, "compare 9.0 MiB"),
            (at("pack", 1, 9 << 20), 80, WIDE, "pack"),
            (at("pack", 1, 9 << 20), 50, MEDIUM, "pack"),
            (at("pack", 1, 9 << 20), 30, NARROW, "pack"),
            (at("write", 9, 9), 80, SPINNER, "write 9 B"),
        ] {
            assert_eq!(template(&s, columns), wanted, "{s:?}");
            assert_eq!(message(&s), says);
        }
    }
}
