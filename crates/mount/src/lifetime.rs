//! Life of a mount that a process serves: the signals that end it, and threads beside it.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, Detach};
use tuff_fuse::{Log, Service, Session};

/// Signals that arrive from before the mount exists.
pub struct Signals(UnixStream);

impl Signals {
    /// Registers the signals that end a mount: SIGTERM, SIGINT and SIGHUP.
    ///
    /// # Errors
    /// `Io` if they cannot be registered.
    pub fn of_end() -> Result<Self> {
        Self::register(&[SIGTERM, SIGINT, SIGHUP])
    }

    /// Registers signals.
    ///
    /// # Errors
    /// `Io` if they cannot be registered.
    pub fn register(which: &[i32]) -> Result<Self> {
        let failed = |e| Error::io("signals", "cannot register", e);
        let (read, write) = UnixStream::pair().map_err(failed)?;
        for signal in which {
            let write = write.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(*signal, write).map_err(failed)?;
        }
        Ok(Self(read))
    }

    /// Calls `f` after every signal, until it returns false.
    pub fn each(mut self, mut f: impl FnMut() -> bool) {
        let mut byte = [0];
        while self.0.read_exact(&mut byte).is_ok() && f() {}
    }
}

/// Mount that is served until it ends.
pub struct Lifetime<S: Service> {
    dir: PathBuf,
    session: Session<S>,
}

impl<S: Service> Lifetime<S> {
    /// Starts to follow the signals, for the mount at `dir`. The first one unmounts. A mount that is in use is detached at once
    /// and served until its last user is done. `on_second` runs at each further signal, also where the mount is gone but a copy
    /// in another mount namespace keeps the filesystem.
    ///
    /// # Errors
    /// `Io` if there can be no thread. The mount is detached.
    pub fn start(
        signals: Signals,
        session: Session<S>,
        dir: PathBuf,
        log: Log,
        on_second: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let life = Self { dir, session };
        let dir = life.dir.clone();
        let mut is_first = true;
        let detach = move || {
            if !std::mem::take(&mut is_first) {
                on_second();
                return true;
            }
            let Err(e) = mountpoint::detach(&dir, Detach::Now) else {
                return true;
            };
            let dir_shown = dir.display();
            log.again(format_args!(
                "unmounting {dir_shown}: {e}; it is detached and ends when its last user is done, or at the next signal"
            ));
            if let Err(e) = mountpoint::detach(&dir, Detach::Lazily) {
                log.again(format_args!("unmounting {dir_shown}: {e}"));
            }
            true
        };
        life.beside(move || signals.each(detach))?;
        Ok(life)
    }

    /// Runs `work` in a thread of its own.
    ///
    /// # Errors
    /// `Io` if there can be none. The mount is detached.
    pub fn beside(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().spawn(work);
        let failed = |e| Error::io(self.dir.display(), "cannot start a thread", e);
        self.or_detach(thread.map(drop).map_err(failed))
    }

    /// Detaches the mount if `result` is an error.
    ///
    /// # Errors
    /// That of `result`.
    pub fn or_detach<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| {
            let _ = mountpoint::detach(&self.dir, Detach::Lazily);
        })
    }

    /// Serves the mount until it ends. Returns the service.
    pub fn wait(self) -> Arc<S> {
        self.session.wait()
    }
}
