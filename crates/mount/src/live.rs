//! A handler, its connection and its threads.

use crate::handler::Handler;
use crate::mountpoint::{self, Mountpoint};
use crate::transport::dev;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A mount that is being served.
pub struct Mount {
    handler: Arc<Handler>,
    mountpoint: Arc<Mountpoint>,
    threads: Vec<JoinHandle<()>>,
    /// What the mount agreed on and got, for those who want to know.
    pub summary: String,
}

impl Mount {
    /// Serves `handler` at `mountpoint` with so many threads, and returns when it has answered what every user asks
    /// first: the attributes of the root.
    ///
    /// # Errors
    /// If the kernel cannot be served, or no thread can be started. It is unmounted then.
    pub fn start(
        handler: Arc<Handler>,
        mountpoint: Mountpoint,
        threads: usize,
    ) -> io::Result<Self> {
        let mut mount = Self {
            handler,
            mountpoint: Arc::new(mountpoint),
            threads: Vec::new(),
            summary: String::new(),
        };
        let started = mount.run(threads);
        if started.is_err() {
            let _ = mountpoint::detach(&mount.mountpoint.dir, mountpoint::Detach::Lazily);
        }
        started.map(|()| mount)
    }

    fn run(&mut self, threads: usize) -> io::Result<()> {
        dev::start(&*self.mountpoint, &self.handler)?;
        for seat in 0..threads.max(1) {
            let (handler, mountpoint) = (self.handler.clone(), self.mountpoint.clone());
            let serve = move || dev::serve(&*mountpoint, &handler, seat);
            let name = format!("fuse-{seat}");
            self.threads
                .push(std::thread::Builder::new().name(name).spawn(serve)?);
        }
        let device = mountpoint::device_of(&self.mountpoint.dir)?;
        let read_ahead = match mountpoint::raise_read_ahead(device) {
            Ok(()) => format!("reading ahead {} KiB", mountpoint::READ_AHEAD_KB),
            Err(_) => "reading ahead as the kernel does by default".to_owned(),
        };
        self.summary = format!(
            "transport /dev/fuse, protocol 7.{}, threads: {}, {read_ahead}",
            self.handler.minor(),
            self.threads.len(),
        );
        Ok(())
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &std::path::Path {
        &self.mountpoint.dir
    }

    /// The handler.
    pub fn handler(&self) -> &Arc<Handler> {
        &self.handler
    }

    /// Waits until it is unmounted by whoever does that.
    pub fn wait(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// As many threads as processors, which is when nothing waits for its turn; more than 16 only cost memory.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 16))
}
