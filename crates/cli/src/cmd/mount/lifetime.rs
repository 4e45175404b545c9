//! Life of a mount: signals, counters, and what is saved at its end.

use super::background;
use super::swap::Swap;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, Detach};
use tuff_fuse::{Handler, Log, Session};

/// Writes what was recorded. Its errors are in the log.
pub(in crate::cmd) type Save = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Signals that arrive from before the mount exists.
pub(in crate::cmd) struct Signals {
    stop: UnixStream,
    show_stats: UnixStream,
}

/// Mount that is served until it ends.
pub(in crate::cmd) struct Lifetime {
    dir: PathBuf,
    session: Session<Handler>,
    save: Save,
}

impl Signals {
    /// Registers the signals that end a mount or ask for its counters.
    pub(in crate::cmd) fn register() -> Result<Self> {
        Ok(Self {
            stop: signals(&[SIGTERM, SIGINT, SIGHUP])?,
            show_stats: signals(&[SIGUSR1])?,
        })
    }
}

/// Serves the counters of `handler` at the address of `--metrics`.
pub(in crate::cmd) fn serve_metrics(
    address: Option<SocketAddr>,
    is_verbose: bool,
    handler: &Arc<Handler>,
) -> Result<()> {
    let Some(address) = address else {
        return Ok(());
    };
    let served = tuff_fuse::metrics::serve(address, handler.clone());
    let at = served.map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => Error::usage(format_args!("--metrics: {e}")),
        _ => Error::io(address.to_string(), "cannot serve counters", e),
    })?;
    if is_verbose {
        eprintln!("tuff: counters at http://{at}/metrics");
    }
    Ok(())
}

impl Lifetime {
    /// Starts to follow the signals, for the mount at `dir`.
    pub(in crate::cmd) fn start(
        signals: Signals,
        session: Session<Handler>,
        dir: PathBuf,
        log: &Log,
        save: Save,
    ) -> Result<Self> {
        let handler = Arc::clone(session.service());
        let life = Self { dir, session, save };
        let (dir, stop_log, save) = (life.dir.clone(), log.clone(), life.save.clone());
        life.beside(move || end_when_told(signals.stop, &dir, &stop_log, &save))?;
        let (stats_log, save) = (log.clone(), life.save.clone());
        life.beside(move || {
            each_signal(signals.show_stats, || {
                for line in handler.stats_text().lines() {
                    stats_log.again(line);
                }
                // `save` logs its errors.
                let _ = save();
                true
            });
        })?;
        Ok(life)
    }

    /// Runs `work` in a thread of its own. Detaches the mount if there can be none.
    pub(in crate::cmd) fn beside(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().spawn(work);
        self.or_detach(
            thread.map_err(|e| Error::io(self.dir.display(), "cannot start a thread", e)),
        )?;
        Ok(())
    }

    /// Detaches the mount if `result` is an error.
    pub(in crate::cmd) fn or_detach<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| {
            let _ = mountpoint::detach(&self.dir, Detach::Lazily);
        })
    }

    /// Reports that the mount is ready, and serves it until it ends.
    pub(in crate::cmd) fn wait(self, swap: Option<Swap>, in_background: bool) -> Result<ExitCode> {
        background::ready(in_background)?;
        self.session.wait();
        if let Some(swap) = swap {
            swap.finish();
        }
        (self.save)()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a stream that receives a byte for every signal.
fn signals(which: &[i32]) -> Result<UnixStream> {
    let failed = |e| Error::io("signals", "cannot register", e);
    let (read, write) = UnixStream::pair().map_err(failed)?;
    for signal in which {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(*signal, write).map_err(failed)?;
    }
    Ok(read)
}

/// Calls `f` after every signal, until it returns false.
fn each_signal(mut signals: UnixStream, mut f: impl FnMut() -> bool) {
    let mut byte = [0];
    while signals.read_exact(&mut byte).is_ok() && f() {}
}

/// Unmounts at the first signal. A mount that is in use is detached at once and served until its last user is done. A
/// second signal ends the process after `save`.
fn end_when_told(stop: UnixStream, dir: &Path, log: &Log, save: &Save) {
    let mut first = true;
    each_signal(stop, || {
        if !std::mem::take(&mut first) {
            std::process::exit(if save().is_ok() { 0 } else { 5 });
        }
        match mountpoint::detach(dir, Detach::Now) {
            Ok(()) => false,
            Err(e) => {
                log.again(format_args!(
                    "unmounting {}: {e}; it is detached and ends when its last user is done, or at the next signal",
                    dir.display()
                ));
                if let Err(e) = mountpoint::detach(dir, Detach::Lazily) {
                    log.again(format_args!("unmounting {}: {e}", dir.display()));
                }
                true
            }
        }
    });
}
