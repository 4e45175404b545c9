//! Session: a service, its connection and its threads.

use crate::mountpoint::{self, Mountpoint};
use crate::protocol::init;
use crate::schedule::cpu_latency::{CpuLatency, CpuLatencyMode};
use crate::service::Service;
use crate::transport::connection::Connection;
use crate::transport::uring::rings::Rings;
use crate::transport::uring::worker;
use crate::transport::{Transport, device};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Options of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Number of serving threads.
    pub threads: usize,
    /// Transport that carries requests.
    pub transport: Transport,
    /// Policy for holding the CPU latency limit while requests arrive.
    pub cpu_latency: CpuLatencyMode,
    /// True to raise the kernel's readahead, where root runs the session. False for a service that reads ahead itself.
    pub raises_read_ahead: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            threads: default_threads(),
            transport: Transport::Auto,
            cpu_latency: CpuLatencyMode::Auto,
            raises_read_ahead: true,
        }
    }
}

/// Running session of a mounted filesystem.
pub struct Session<S: Service> {
    service: Arc<S>,
    connection: Arc<Connection>,
    serving: Vec<JoinHandle<()>>,
    background: Vec<JoinHandle<()>>,
    /// Description of the transport, version and settings, for the user.
    pub summary: String,
}

impl<S: Service> Session<S> {
    /// Serves `service` at `mountpoint`. Returns when the mount is ready.
    ///
    /// It sends no request to its own mount: see [`mountpoint::device_known`].
    ///
    /// # Errors
    /// Fails and unmounts if the kernel cannot be served or no thread can be started.
    pub fn start(
        service: Arc<S>,
        mountpoint: Mountpoint,
        options: SessionOptions,
    ) -> io::Result<Self> {
        let dir = mountpoint.dir.clone();
        let started = connect(&*service, mountpoint, &options).and_then(|connection| {
            let mut session = Self {
                service: service.clone(),
                connection: Arc::new(connection),
                serving: Vec::new(),
                background: Vec::new(),
                summary: String::new(),
            };
            session.run(&options).map(|()| session)
        });
        started.inspect_err(|_| {
            let _ = mountpoint::detach(&dir, mountpoint::Detach::Lazily);
            service.end();
        })
    }

    /// Starts all threads and waits for the rings.
    fn run(&mut self, options: &SessionOptions) -> io::Result<()> {
        let connection = self.connection.clone();
        let threads = options.threads.max(1);
        // Few requests bypass the rings.
        let (readers, ring_threads) = match &connection.rings {
            Some(rings) => (1, rings.threads.len()),
            None => (threads, 0),
        };
        for number in 0..readers {
            let serve = move |service: &S, connection: &_| {
                device::serve(connection, service, number);
            };
            self.spawn(format!("fuse-{number}"), serve)?;
        }
        for number in 0..ring_threads {
            let worker = readers + number;
            self.spawn(format!("ring-{number}"), move |service, connection| {
                if let Some(rings) = &connection.rings {
                    worker::serve(connection, rings, service, (worker, number));
                }
                // Ends with the mount. Without a ring this thread serves the device.
                device::serve(connection, service, worker);
            })?;
        }
        for (name, run) in self.service.background() {
            let connection = connection.clone();
            let run = move || run(&connection.replies());
            let thread = std::thread::Builder::new().name(name.to_owned());
            self.background.push(thread.spawn(run)?);
        }
        let rings = connection.rings.as_ref();
        let ringing = rings.map_or(Ok(false), Rings::wait_started)?;
        if options.transport == Transport::Uring && !ringing {
            return Err(io::Error::other(
                "the kernel offers no FUSE over io_uring: it needs Linux 6.14 and Y in /sys/module/fuse/parameters/enable_uring",
            ));
        }
        // Needs root. Reads are shorter without it.
        let raised = options
            .raises_read_ahead
            .then(|| mountpoint::raise_read_ahead(self.dir(), ringing));
        let read_ahead = match raised {
            Some(Ok(kb)) => format!("reading ahead {kb} KiB"),
            _ => "reading ahead as the kernel does by default".to_owned(),
        };
        self.summary = format!(
            "transport {}, protocol 7.{}, threads: {}, {read_ahead}{}",
            if ringing { "io_uring" } else { "/dev/fuse" },
            self.service.negotiation().minor(),
            self.serving.len(),
            match connection.cpu_latency {
                Some(_) => ", keeping processors awake",
                None => "",
            },
        );
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        serve: impl FnOnce(&S, &Connection) + Send + 'static,
    ) -> io::Result<()> {
        let (service, connection) = (self.service.clone(), self.connection.clone());
        let run = move || serve(&service, &connection);
        let thread = std::thread::Builder::new().name(name);
        self.serving.push(thread.spawn(run)?);
        Ok(())
    }

    /// Returns the directory of the mount.
    pub fn dir(&self) -> &std::path::Path {
        &self.connection.mountpoint.dir
    }

    /// Returns the service that answers requests.
    pub fn service(&self) -> &Arc<S> {
        &self.service
    }

    /// Waits until the filesystem is unmounted and all threads have ended. Returns the service.
    pub fn wait(self) -> Arc<S> {
        for thread in self.serving {
            let _ = thread.join();
        }
        self.service.end();
        for thread in self.background {
            let _ = thread.join();
        }
        self.service
    }
}

/// Agrees on a version and a transport with the kernel.
fn connect<S: Service>(
    service: &S,
    mountpoint: Mountpoint,
    options: &SessionOptions,
) -> io::Result<Connection> {
    let queues = match options.transport {
        Transport::Dev => None,
        Transport::Auto => Rings::probe().ok(),
        Transport::Uring => Some(Rings::probe()?),
    };
    let negotiation = service.negotiation();
    negotiation.begin(options.threads.max(1), queues.is_some());
    device::start(&mountpoint, service)?;
    let queues = queues.filter(|_| negotiation.features() & init::OVER_IO_URING != 0);
    Ok(Connection {
        mountpoint,
        rings: queues.map(|queues| Rings::new(queues, options.threads, S::WRITABLE)),
        cpu_latency: CpuLatency::start(options.cpu_latency),
    })
}

/// Returns the number of processors, at least 1 and at most 16. More threads only cost memory.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 16))
}
