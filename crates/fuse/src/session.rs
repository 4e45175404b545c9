//! A handler, its connection and its threads.

use crate::filesystem::Parts;
use crate::handler::{Handler, Request, Seat};
use crate::log::Log;
use crate::mountpoint::{self, Mountpoint};
use crate::protocol::{OutHeader, init};
use crate::schedule::cpu_latency::{Awake, KeepAwake};
use crate::transport::page_cache::{self, Stores};
use crate::transport::uring::{Call, DEPTH, Rings, Service};
use crate::transport::{Transport, device, head};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How a mount is served.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    /// Threads that answer.
    pub threads: usize,
    /// How requests come.
    pub transport: Transport,
    /// Whether processors are kept from halting while there is much to answer.
    pub keep_awake: KeepAwake,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            threads: default_threads(),
            transport: Transport::Auto,
            keep_awake: KeepAwake::Auto,
        }
    }
}

/// A mount that is being served.
pub struct Mount {
    handler: Arc<Handler>,
    mountpoint: Arc<Mountpoint>,
    threads: Vec<JoinHandle<()>>,
    /// What the mount agreed on and got, for those who want to know.
    pub summary: String,
}

impl Mount {
    /// Serves `handler` at `mountpoint`, and returns when whoever asks there is answered. It asks nothing there itself: see
    /// [`mountpoint::device_known`].
    ///
    /// # Errors
    /// If the kernel cannot be served, or no thread can be started. It is unmounted then.
    pub fn start(handler: Arc<Handler>, mountpoint: Mountpoint, how: Serving) -> io::Result<Self> {
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

    fn run(&mut self, how: Serving) -> io::Result<()> {
        let Serving {
            threads, transport, ..
        } = how;
        let rings = match transport {
            Transport::Dev => None,
            Transport::Auto => Rings::probe().ok(),
            Transport::Uring => Some(Rings::probe()?),
        };
        if rings.is_some() {
            self.handler.offer_rings();
        }
        device::start(&*self.mountpoint, &self.handler)?;
        let agreed = self.handler.features() & init::OVER_IO_URING != 0;
        let rings = rings.filter(|_| agreed);
        let awake = Awake::start(how.keep_awake);
        let new = |queues| Rings::new(queues, threads, DEPTH, awake.clone());
        let rings = rings.map(|queues| Arc::new(new(queues)));
        // What does not come through rings is little.
        let readers = if rings.is_some() { 1 } else { threads.max(1) };
        let (stores, rests) = Stores::new();
        let mut seats = 0..;
        for seat in seats.by_ref().take(readers) {
            let (stores, awake) = (stores.clone(), awake.clone());
            let serve = move |fuse: &_, handler: &_| {
                device::serve(fuse, handler, seat, (&stores, awake.as_deref()));
            };
            self.spawn(format!("fuse-{seat}"), serve)?;
        }
        if let Some(rings) = &rings {
            for (number, seat) in (0..rings.threads()).zip(seats) {
                let (rings, stores, awake) = (rings.clone(), stores.clone(), awake.clone());
                self.spawn(format!("ring-{number}"), move |fuse, handler| {
                    let service = Served {
                        handler,
                        stores: &stores,
                    };
                    let _ = rings.serve(fuse, &service, (seat, number));
                    // At the end this ends, too; without rings it is what serves.
                    device::serve(fuse, handler, seat, (&stores, awake.as_deref()));
                })?;
            }
        }
        let serving = self.threads.len();
        drop(stores);
        self.spawn("store".to_owned(), move |fuse, handler| {
            page_cache::run(fuse, handler, serving, &rests);
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
            self.handler.minor(),
            serving,
            awake.map_or("", |_| ", keeping processors awake"),
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

/// A handler, as rings want it.
struct Served<'a> {
    handler: &'a Handler,
    stores: &'a Stores,
}

/// What a thread answers with, and the request that is being answered: its reply overwrites it in the slot.
type RingSeat = (Seat, Vec<u8>);

impl Service for Served<'_> {
    type Seat = RingSeat;

    fn seat(&self, seat: usize, _: usize) -> RingSeat {
        (self.handler.seat(seat, false), Vec::new())
    }

    fn answer(&self, seat: &mut RingSeat, call: Call<'_>) -> Option<(OutHeader, usize)> {
        let (seat, body) = seat;
        body.clear();
        body.extend_from_slice(call.op);
        body.extend_from_slice(&call.payload[..call.behind]);
        let request = Request {
            header: call.header,
            body,
        };
        let reply = self.handler.handle(seat, &request, call.payload);
        // Everything that comes through a ring waits for something.
        let (out, body) = head(&request, reply).unwrap_or_default();
        debug_assert!(!matches!(body, Parts::Many(_)), "nothing is lent here");
        Some((out, body.len()))
    }

    fn after(&self, seat: &mut RingSeat, send: &mut dyn FnMut()) {
        if let Some(rest) = self.handler.rest(&mut seat.0) {
            send();
            self.stores.offer(rest);
        }
    }

    fn log(&self) -> &Log {
        self.handler.log()
    }
}

/// As many threads as processors, which is when nothing waits for its turn; more than 16 only cost memory.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 16))
}
