//! Progress: a bar on a terminal, events with `--json`, silence otherwise. And ^C.

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
    }
    let mut last = Instant::now();
    let (mut drawn, mut counted) = (None, None);
    while !done.load(Ordering::Relaxed) {
        let s = progress.snapshot();
        if draw {
            let template = template(&s, columns());
            // Rate and remaining time are those of this stage, from its first bytes on.
            if counted.replace((s.stage, has_share(&s))) != Some((s.stage, has_share(&s))) {
                bar.reset();
            }
            if drawn.replace(template) != Some(template) {
                // The templates are constants of ours.
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

/// Template of the progress line for a terminal of that width: a bar only while bytes of a known total are done.
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
        // All bytes are those that are to be read, or none is done.
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
            // From standard input: no total.
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
