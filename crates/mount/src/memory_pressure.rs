//! Shrinks the caches when the host is short of memory.

use std::io;
use std::time::Duration;
use tuff_erofs::serve::Server;

/// Interval without a pressure event after which the target is the full budget again.
const CALM: Duration = Duration::from_secs(10);

/// Shrinks the caches of `server` at each pressure event: to half of their budget, and to half of that while the
/// pressure lasts.
///
/// `short` waits for an event for at most the given time. Caches may grow again at once. Returns when `short` fails.
pub fn relieve(server: &Server, mut short: impl FnMut(Duration) -> io::Result<bool>) {
    let budget = server.options().budget;
    let mut target = budget / 2;
    while let Ok(is_short) = short(CALM) {
        if is_short {
            server.shrink(target);
            target /= 2;
        } else {
            target = budget / 2;
        }
    }
}
