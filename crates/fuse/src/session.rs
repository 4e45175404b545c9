//! Session: a handler, its connection and its threads.

use crate::filesystem::Parts;
use crate::handler::{Handler, Request, Worker};
use crate::log::Log;
use crate::mountpoint::{self, Mountpoint};
use crate::protocol::{OutHeader, init};
use crate::schedule::cpu_latency::{CpuLatency, CpuLatencyMode};
use crate::transport::push::{self, PushQueue};
use crate::transport::uring::{DEPTH, RingRequest, RingService, Rings};
use crate::transport::{Transport, device, head};
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
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            threads: default_threads(),
            transport: Transport::Auto,
            cpu_latency: CpuLatencyMode::Auto,
        }
    }
}

/// Running session of a mounted filesystem.
pub struct Session {
    handler: Arc<Handler>,
    mountpoint: Arc<Mountpoint>,
    threads: Vec<JoinHandle<()>>,
    /// Description of the transport, version and settings, for the user.
    pub summary: String,
}

impl Session {
    /// Serves `handler` at `mountpoint`. Returns when the mount is ready.
    ///
    /// It sends no request to its own mount: see [`mountpoint::device_known`].
    ///
    /// # Errors
    /// Fails and unmounts if the kernel cannot be served or no thread can be started.
    pub fn start(
        handler: Arc<Handler>,
        mountpoint: Mountpoint,
        how: SessionOptions,
    ) -> io::Result<Self> {
        let mut mount = Self {
            handler,
            mountpoint: Arc::new(mountpoint),
            threads: Vec::new(),
            summary: String::new(),
        };
        let started = mount.run(how);
        if started.is_err() {
            let _ = mountpoint::detach(&mount.mountpoint.dir, mountpoint::Detach::Lazily);
        }
        started.map(|()| mount)
    }

    fn run(&mut self, how: SessionOptions) -> io::Result<()> {
        let SessionOptions {
            threads, transport, ..
        } = how;
        let rings = match transport {
            Transport::Dev => None,
            Transport::Auto => Rings::probe().ok(),
            Transport::Uring => Some(Rings::probe()?),
        };
        if rings.is_some() {
            self.handler.negotiation().offer_io_uring(true);
        }
        device::start(&*self.mountpoint, &self.handler)?;
        let agreed = self.handler.negotiation().features() & init::OVER_IO_URING != 0;
        let rings = rings.filter(|_| agreed);
        let cpu_latency = CpuLatency::start(how.cpu_latency);
        let new = |queues| Rings::new(queues, threads, DEPTH, cpu_latency.clone());
        let rings = rings.map(|queues| Arc::new(new(queues)));
        // Few requests bypass the rings.
        let readers = if rings.is_some() { 1 } else { threads.max(1) };
        let (pushes, rests) = PushQueue::new();
        let mut workers = 0..;
        for worker in workers.by_ref().take(readers) {
            let (pushes, cpu_latency) = (pushes.clone(), cpu_latency.clone());
            let serve = move |fuse: &_, handler: &_| {
                device::serve(fuse, handler, worker, (&pushes, cpu_latency.as_deref()));
            };
            self.spawn(format!("fuse-{worker}"), serve)?;
        }
        if let Some(rings) = &rings {
            for (number, worker) in (0..rings.threads()).zip(workers) {
                let (rings, pushes, cpu_latency) =
                    (rings.clone(), pushes.clone(), cpu_latency.clone());
                self.spawn(format!("ring-{number}"), move |fuse, handler| {
                    let service = Served {
                        handler,
                        pushes: &pushes,
                    };
                    let _ = rings.serve(fuse, &service, (worker, number));
                    // Ends with the mount. Without a ring this thread serves the device.
                    device::serve(fuse, handler, worker, (&pushes, cpu_latency.as_deref()));
                })?;
            }
        }
        let serving = self.threads.len();
        drop(pushes);
        self.spawn("store".to_owned(), move |fuse, handler| {
            push::run(fuse, handler, serving, &rests);
        })?;
        let ringing = rings.map_or(Ok(false), |rings| rings.wait_begun())?;
        if transport == Transport::Uring && !ringing {
            return Err(io::Error::other(
                "the kernel offers no FUSE over io_uring: it needs Linux 6.14 and Y in /sys/module/fuse/parameters/enable_uring",
            ));
        }
        let device = mountpoint::device_known(&self.mountpoint.dir);
        let raised = device.and_then(|device| mountpoint::raise_read_ahead(device, ringing));
        let read_ahead = match raised {
            Ok(kb) => format!("reading ahead {kb} KiB"),
            Err(_) => "reading ahead as the kernel does by default".to_owned(),
        };
        self.summary = format!(
            "transport {}, protocol 7.{}, threads: {}, {read_ahead}{}",
            if ringing { "io_uring" } else { "/dev/fuse" },
            self.handler.negotiation().minor(),
            serving,
            cpu_latency.map_or("", |_| ", keeping processors awake"),
        );
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        serve: impl FnOnce(&Mountpoint, &Handler) + Send + 'static,
    ) -> io::Result<()> {
        let (handler, mountpoint) = (self.handler.clone(), self.mountpoint.clone());
        let run = move || serve(&mountpoint, &handler);
        let thread = std::thread::Builder::new().name(name);
        self.threads.push(thread.spawn(run)?);
        Ok(())
    }

    /// Returns the directory of the mount.
    pub fn dir(&self) -> &std::path::Path {
        &self.mountpoint.dir
    }

    /// Returns the handler that answers requests.
    pub fn handler(&self) -> &Arc<Handler> {
        &self.handler
    }

    /// Waits until the filesystem is unmounted.
    pub fn wait(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Handler as a service for io_uring.
struct Served<'a> {
    handler: &'a Handler,
    pushes: &'a PushQueue,
}

/// State of a thread, and a copy of the request: the reply overwrites the request in its slot.
type RingWorker = (Worker, Vec<u8>);

impl RingService for Served<'_> {
    type Worker = RingWorker;

    fn worker(&self, worker: usize, _: usize) -> RingWorker {
        (self.handler.worker(worker, false), Vec::new())
    }

    fn answer(&self, worker: &mut RingWorker, call: RingRequest<'_>) -> Option<(OutHeader, usize)> {
        let (worker, body) = worker;
        body.clear();
        body.extend_from_slice(call.op);
        body.extend_from_slice(&call.payload[..call.behind]);
        let request = Request {
            header: call.header,
            body,
        };
        let reply = self.handler.handle(worker, &request, call.payload);
        // Every request in a ring expects a reply.
        let (out, body) = head(&request, reply).unwrap_or_default();
        debug_assert!(!matches!(body, Parts::Many(_)), "nothing is lent here");
        Some((out, body.len()))
    }

    fn after(&self, worker: &mut RingWorker, send: &mut dyn FnMut()) {
        if let Some(rest) = self.handler.take_push(&mut worker.0) {
            send();
            self.pushes.offer(rest);
        }
    }

    fn log(&self) -> &Log {
        self.handler.log()
    }
}

/// Returns the number of processors, at least 1 and at most 16. More threads only cost memory.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 16))
}
