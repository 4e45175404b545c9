//! Handling of SIGINT and SIGTERM: a run ends between two samples and removes its mounts and
//! folders.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

/// Installs the signal handlers. A second signal within one second counts as the same request,
/// because some senders signal both the process and its group. A later signal ends the process
/// immediately.
pub fn watch() {
    // Without handlers, the signals end the process by default.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else {
        return;
    };
    std::thread::spawn(move || {
        let mut first = None;
        for _ in signals.forever() {
            let since = first.get_or_insert_with(Instant::now).elapsed();
            if since >= Duration::from_secs(1) {
                signal_hook::low_level::exit(130);
            }
            STOP.store(true, Ordering::Relaxed);
        }
    });
}

/// Returns true for a signal that requests a stop.
pub(crate) fn is_request(signal: i32) -> bool {
    [SIGINT, SIGTERM].contains(&signal)
}

/// Returns an error after a stop request. Long operations call it between their steps.
pub(crate) fn check() -> Result<()> {
    match STOP.load(Ordering::Relaxed) {
        true => Err(Error::Stopped),
        false => Ok(()),
    }
}
