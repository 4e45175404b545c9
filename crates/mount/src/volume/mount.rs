//! Start and end of a mount: the server, its connection and its threads.

use super::server::VolumeServer;
use super::session::{Buffers, VolumeRings};
use rustix::fd::AsFd;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tuff_fuse::mountpoint::{self, Mountpoint};
use tuff_fuse::protocol::init;
use tuff_fuse::schedule::affinity::ClientAffinity;
use tuff_fuse::schedule::cpu_latency::CpuLatency;
use tuff_fuse::session::SessionOptions;
use tuff_fuse::transport::Transport;
use tuff_fuse::transport::uring::{DEPTH, Rings};
use tuff_iplfs::{Error, Nid};

/// Slots of all queues together, where there are few queues.
const SLOTS: usize = 48;

/// Volume that is mounted and served.
pub struct VolumeMount {
    server: Arc<VolumeServer>,
    threads: Vec<JoinHandle<()>>,
    keeper: JoinHandle<()>,
    writer: JoinHandle<()>,
    seeker: JoinHandle<()>,
}

impl VolumeMount {
    /// Serves `server` at `mountpoint`.
    ///
    /// # Errors
    /// Fails if the kernel cannot be served or no thread can be started.
    pub fn start(
        server: VolumeServer,
        mountpoint: Mountpoint,
        how: SessionOptions,
    ) -> io::Result<Self> {
        let SessionOptions {
            threads, transport, ..
        } = how;
        let (server, mountpoint) = (Arc::new(server), Arc::new(mountpoint));
        let rings = match transport {
            Transport::Dev => None,
            Transport::Auto => Rings::probe().ok(),
            Transport::Uring => Some(Rings::probe()?),
        };
        server.negotiation.offer_io_uring(rings.is_some());
        server.threads.store(threads.max(1), Relaxed);
        let (seeks, pending) = mpsc::channel();
        *server.seeks() = Some(seeks);
        // INIT precedes all other requests.
        let begun = server.step(
            &&*mountpoint,
            &mut Buffers::new(None),
            &mut ClientAffinity::default(),
            None,
        );
        if !begun.is_some_and(|(_, well)| well) {
            return Err(io::Error::other("the kernel's FUSE is too old"));
        }
        let agreed = server.negotiation.features() & init::OVER_IO_URING != 0;
        let rings = rings.filter(|_| agreed);
        // A request that waits for a flush occupies a slot.
        let depth = |queues: usize| (SLOTS / queues).clamp(DEPTH, SLOTS / 2);
        let cpu_latency = CpuLatency::start(how.cpu_latency);
        let new = |queues| Rings::new(queues, threads, depth(queues), cpu_latency.clone());
        let rings = rings.map(|queues| Arc::new(new(queues)));
        let mut handles = Vec::new();
        let mut spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name);
            thread.spawn(run).map(|handle| handles.push(handle))
        };
        // Few requests bypass the rings.
        let readers = if rings.is_some() { 1 } else { threads.max(1) };
        for number in 0..readers {
            let (server, mountpoint) = (server.clone(), mountpoint.clone());
            let (rings, cpu_latency) = (rings.clone(), cpu_latency.clone());
            let serve = move || server.serve(&*mountpoint, rings.as_ref(), cpu_latency.as_deref());
            spawn(format!("volume-{number}"), Box::new(serve))?;
        }
        for number in 0..rings.as_ref().map_or(0, |rings| rings.threads()) {
            let (server, mountpoint) = (server.clone(), mountpoint.clone());
            let Some(rings) = rings.clone() else { break };
            let cpu_latency = cpu_latency.clone();
            let serve = move || {
                ring(
                    &server,
                    &mountpoint,
                    (&rings, cpu_latency.as_deref()),
                    number,
                )
            };
            spawn(format!("volume-ring-{number}"), Box::new(serve))?;
        }
        if transport == Transport::Uring && !agreed {
            return Err(io::Error::other("the kernel offers no FUSE over io_uring"));
        }
        // Needs root. Reads are shorter without it.
        let device = mountpoint::device_known(&mountpoint.dir);
        let _ = device.and_then(|device| mountpoint::raise_read_ahead(device, agreed));
        let keeper = server.clone();
        let keeper = std::thread::Builder::new()
            .name("volume-keeper".to_owned())
            .spawn(move || keeper.keep())?;
        let writer = server.clone();
        let writer = std::thread::Builder::new()
            .name("volume-writer".to_owned())
            .spawn(move || writer.begin_writing())?;
        let seeker = server.clone();
        let seeker = std::thread::Builder::new()
            .name("volume-seeker".to_owned())
            .spawn(move || seeker.finish_seeks(&*mountpoint, rings.as_ref(), &pending))?;
        Ok(Self {
            server,
            threads: handles,
            keeper,
            writer,
            seeker,
        })
    }

    /// Waits for the end of the mount and unmounts the volume.
    ///
    /// # Errors
    /// Fails if a change was lost.
    pub fn wait(self) -> tuff_iplfs::Result<()> {
        for thread in self.threads {
            let _ = thread.join();
        }
        self.server.keep_state().ended = true;
        self.server.wake.notify_all();
        let _ = self.keeper.join();
        self.server.behind().ended = true;
        self.server.much.notify_all();
        let _ = self.writer.join();
        *self.server.seeks() = None;
        let _ = self.seeker.join();
        let poisoned = || Error::Limit("a bug ended the service early; mount again".to_owned());
        let mut core = self.server.core.lock().map_err(|_| poisoned())?;
        let known: Vec<Nid> = core.known.drain().map(|(ino, _)| ino).collect();
        match core.volume.take() {
            Some(mut volume) => {
                known.into_iter().for_each(|ino| volume.release(ino));
                // Blocks of recent deletions are discarded before the next mount. The checkpoint counts even if this
                // fails.
                if !volume.is_read_only()
                    && let Err(e) = volume.drain()
                {
                    self.server
                        .log
                        .line(format_args!("cannot give everything back: {e}"));
                }
                volume.unmount()
            }
            None => Ok(()),
        }
    }
}

/// Serves ring `number`, and the device if the ring ends early.
fn ring(
    server: &VolumeServer,
    mountpoint: &Mountpoint,
    (rings, cpu_latency): (&Arc<Rings>, Option<&CpuLatency>),
    number: usize,
) {
    let (waits, left) = mpsc::channel();
    std::thread::scope(|scope| {
        let wait = move || server.wait_for_ring(mountpoint, rings, number, &left);
        let waiting = std::thread::Builder::new().name(format!("volume-wait-{number}"));
        // Without this thread the kernel does not get the ring, and uses the device.
        if waiting.spawn_scoped(scope, wait).is_ok() {
            // Dropped with the service, which ends the thread.
            let fuse = mountpoint.as_fd();
            let service = VolumeRings {
                server,
                fuse,
                waits,
            };
            let _ = rings.serve(mountpoint, &service, (number, number));
        }
    });
    server.serve(mountpoint, None, cpu_latency);
}
