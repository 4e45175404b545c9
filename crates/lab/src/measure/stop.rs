//! ^C and SIGTERM: the run ends between two samples, with its mounts and folders taken away.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

/// Makes signals requests to stop. A second signal within a second counts as the same request, because some senders
/// signal both the process and its group. A later one ends the process at once.
pub fn watch() {
    // Signals that cannot be watched end the process, as they would without this.
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

/// True for a signal that asks for a stop.
pub(crate) fn is_request(signal: i32) -> bool {
    [SIGINT, SIGTERM].contains(&signal)
}

/// An error once a stop was asked for. Long work asks between two of its steps.
pub(crate) fn check() -> Result<()> {
    match STOP.load(Ordering::Relaxed) {
        true => Err(Error::Stopped),
        false => Ok(()),
    }
}
