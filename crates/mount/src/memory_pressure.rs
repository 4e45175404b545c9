//! Giving memory back when the host is short of it.

use std::io;
use std::time::Duration;
use tuff_erofs::serve::Server;

/// How long no news is good news.
const CALM: Duration = Duration::from_secs(10);

/// Shrinks the caches of `server` each time that `short`, which waits as long as it is told, says that memory is short:
/// to half of their budget, and to half of that again as long as it stays so. They may grow again at once. Returns when
/// `short` has nothing to say any more.
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
