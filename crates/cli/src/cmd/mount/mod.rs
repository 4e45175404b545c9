//! `tuff mount`: serves an image through FUSE until it is unmounted.

mod args;
pub(super) mod background;
pub(crate) mod helper;
pub(super) mod kernel;
pub(crate) mod options;
mod prefetch;
mod profile;
mod trace;

use crate::advice;
use crate::image;
use crate::next_command::shell_word;
use crate::sink::keep;
use background::Role;
use options::Mounting;
use profile::Recording;
use signal_hook::consts::SIGUSR1;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trace::TraceFile;
use tuff_erofs::serve::{Profile, ServeOptions, Server};
use tuff_erofs::{Error, Place, Remedy, Result};
use tuff_fuse::mountpoint::{self, MountOptions};
use tuff_fuse::transport::Transport;
use tuff_fuse::{Handler, Log, Session, SessionOptions};
use tuff_mount::counters_socket::{self, Device};
use tuff_mount::export::THREADS;
use tuff_mount::exported;
use tuff_mount::lifetime::{Lifetime, Signals};
use tuff_mount::memory_pressure::relieve;
use tuff_mount::prefetch::Prefetch;
use tuff_mount::swap::{Replaced, Swap};
use tuff_mount::{ImageFs, OwnerOverride};
use tuff_open::{Container, OnRepair, OpenOptions, RemoteImage};
use tuff_store::{MemoryPressure, memory_limit};

pub(crate) use args::Args;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut mounting = Mounting::default();
    for list in &args.options {
        mounting.add(list)?;
    }
    if exported::is_child() {
        let image = &args.image.image;
        return Ok(
            match exported::mount_from_input(image, &args.dir, mounting.general.flags) {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            },
        );
    }
    let role = Role::of_this_process(args.foreground);
    // Before anything is downloaded or opened.
    check_directory(&args.dir)?;
    TraceFile::check(args.trace.as_deref(), &args.image.image)?;
    if role == Role::Starter && args.kernel && args.image.image.url().is_none() {
        let container = container(args, &mounting, None)?;
        let devices = match image::read(&container) {
            // The kernel would read something else at the addresses of absent devices.
            Ok(image) => image.has_devices().map_err(|e| advice::message(&e)),
            // FUSE would fail, too.
            Err(e @ (Error::Corrupt(_) | Error::Io(..))) => return Err(e),
            Err(_) => Ok(()),
        };
        match devices.and_then(|()| kernel::mount(args, &mounting, &container)) {
            Ok(how) => {
                if args.verbose {
                    eprintln!("tuff: mounted by the kernel, {how}");
                }
                return Ok(ExitCode::SUCCESS);
            }
            Err(why) => not_by_kernel(&why),
        }
    }
    match role {
        Role::Starter => background::start(),
        Role::Server { in_background } => serve(args, &mounting, in_background),
    }
}

/// Opens the container of the image, as arguments and mount options say.
fn container(args: &Args, mounting: &Mounting, on_repair: Option<OnRepair>) -> Result<Container> {
    let mut open = args.image.open.clone();
    mounting.apply(&mut open);
    let mut options = OpenOptions {
        on_repair,
        ..open.options()?
    };
    options.cache.offline = true;
    options.for_kernel = args.kernel;
    image::container(&args.image.image, &options)
}

/// Fails if there is no directory to mount on.
fn check_directory(dir: &Path) -> Result<()> {
    match std::fs::metadata(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let what = format!(
                "no such directory; create it first: mkdir {}",
                shell_word(dir)
            );
            let e = std::io::Error::new(e.kind(), what);
            Err(Error::io(dir.display(), "cannot mount", e))
        }
        // The mount reports other errors. A directory whose server is dead has some.
        _ => Ok(()),
    }
}

fn not_by_kernel(why: &str) {
    eprintln!("tuff: not mounted by the kernel: {why}; serving it through FUSE");
}

fn serve(args: &Args, mounting: &Mounting, in_background: bool) -> Result<ExitCode> {
    if in_background {
        background::leave_terminal();
    }
    #[cfg(feature = "remote")]
    if args.image.image.url().is_some() {
        crate::allocator::share_heap();
    }
    let log = background::log(args.log.as_deref(), in_background)?;
    let profile = args.prefetch.profile(&args.image.image)?;
    let trace = args.trace.as_deref();
    let trace = trace.map(|path| TraceFile::start(path, &log));
    let trace = trace.transpose()?;
    let repaired = Arc::new(AtomicU64::new(0));
    let container = container(args, mounting, Some(on_repair(&repaired, &log)))?;
    let mount = Mount {
        args,
        mounting,
        repaired: container.is_verified().then_some(repaired),
        container,
        profile,
        trace,
        log,
        in_background,
    };
    let store = mount.container.remote();
    if let (true, Some(store)) = (args.kernel, store) {
        match mount.by_kernel(store)? {
            Ok(code) => return Ok(code),
            Err(why) => not_by_kernel(&why),
        }
    }
    mount.through_fuse(store)
}

/// Mount that this process serves.
struct Mount<'a> {
    args: &'a Args,
    mounting: &'a Mounting,
    container: Container,
    /// Number of blocks repaired from parity, if something verifies the image.
    repaired: Option<Arc<AtomicU64>>,
    /// Profile of `--prefetch`, if it was given.
    profile: Option<Profile>,
    /// Output of `--trace`.
    trace: Option<TraceFile>,
    log: Log,
    in_background: bool,
}

impl Mount<'_> {
    fn failed(&self, e: std::io::Error) -> Error {
        Error::io(self.args.dir.display(), "cannot mount", e).with_remedy(Remedy::MountHost)
    }

    /// Mounts the kernel's EROFS on a remote image and serves it until the end. Returns the reason if the kernel cannot.
    fn by_kernel(&self, store: &Arc<RemoteImage>) -> Result<std::result::Result<ExitCode, String>> {
        let args = self.args;
        if let Some(why) = self.refusal() {
            return Ok(Err(why));
        }
        let handler = exported::handler(store, &args.image.image, &self.log);
        let image = image::read(&self.container)?;
        if let Err(e) = image.has_devices() {
            return Ok(Err(advice::message(&e)));
        }
        // It finds files by their addresses, and caches next to nothing.
        let options = ServeOptions {
            budget: 0,
            ..ServeOptions::default()
        };
        let server = Arc::new(Server::new(image, options));
        let requests = self.requests(store);
        let neighbours = requests.follow_addresses(&server);
        let prefetch = self.prefetch(requests, server);
        let save = self.saving(None);
        let ending = Ending::register(&self.log, Arc::clone(&save))?;
        let mounted = background::same_command().map_err(|e| self.failed(e))?;
        let mount = match exported::mount(
            &args.image.image,
            &args.dir,
            &handler,
            store.devices().len(),
            args.keep_awake,
            mounted,
        ) {
            Ok(mount) => mount,
            Err(why) => return Ok(Err(why)),
        };
        let how = mount.session.summary.clone();
        let (dir, device, end) = (mount.dir, mount.device, mount.end);
        let life = ending.follow(mount.session, dir.clone())?;
        life.or_detach(serve_metrics(args.metrics, args.verbose, &handler))?;
        let counters = Arc::clone(&handler);
        // Without counters the mount is as good.
        let _ = counters_socket::serve(device, end, move || counters.report());
        life.beside(prefetch)?;
        life.beside(move || neighbours.run())?;
        let swap = life.or_detach(self.swap(store, &handler, (dir, device)))?;
        if args.verbose {
            eprintln!("tuff: mounted by the kernel, on the served image; {how}");
        }
        let code = self.wait(life, Some(swap))?;
        save()?;
        Ok(Ok(code))
    }

    /// Returns the reason why the kernel cannot mount an image behind a URL as it is asked to.
    fn refusal(&self) -> Option<String> {
        let (mounting, container) = (self.mounting, &self.container);
        let why = match () {
            () if !rustix::process::geteuid().is_root() => "that needs root",
            () if mounting.uid.is_some() || mounting.gid.is_some() => kernel::SHOWS_OWNERS,
            () if container.offset() > 0
                || !container.devices().is_empty()
                || container.has_separate_tree() =>
            {
                "an image behind a URL has no offset, local devices or separate hash tree there"
            }
            () => return None,
        };
        Some(why.to_owned())
    }

    /// Reports that the mount is ready, and serves it until it ends.
    fn wait(&self, life: Lifetime<Handler>, swap: Option<Swap>) -> Result<ExitCode> {
        background::ready(self.in_background)?;
        life.wait();
        if let Some(swap) = swap {
            swap.finish();
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Replaces the mount of an image when that is complete.
    fn swap(
        &self,
        store: &Arc<RemoteImage>,
        handler: &Arc<Handler>,
        (dir, device): (PathBuf, Device),
    ) -> Result<Swap> {
        Swap::start(Replaced {
            store: Arc::clone(store),
            dir,
            device,
            flags: self.mounting.general.flags,
            handler: Arc::clone(handler),
            log: self.log.clone(),
        })
    }

    /// Requests the parts of a given profile, before a program can read them. Returns what is left for a thread of its own.
    fn prefetch(&self, requests: Prefetch, server: Arc<Server>) -> impl FnOnce() + Send + 'static {
        let report = prefetch::Report {
            is_verbose: self.args.verbose,
            is_foreground: self.args.foreground,
        };
        let profile = self.profile.clone();
        self.args.prefetch.work(requests, profile, server, report)
    }

    /// Requests in advance for the image.
    fn requests(&self, store: &Arc<RemoteImage>) -> Prefetch {
        Prefetch {
            store: Arc::clone(store),
            offset: self.container.offset(),
            log: self.log.clone(),
        }
    }

    fn through_fuse(&self, store: Option<&Arc<RemoteImage>>) -> Result<ExitCode> {
        let Self { args, log, .. } = self;
        let (fs, recording) = self.filesystem()?;
        let (fs, neighbours, prefetch) = match store.map(|store| self.requests(store)) {
            Some(requests) => {
                let (fs, neighbours) = requests.follow(fs);
                let prefetch = self.prefetch(requests, Arc::clone(fs.server()));
                (fs, Some(neighbours), Some(prefetch))
            }
            None => (fs, None, None),
        };
        let pin = args
            .pin
            .clone()
            .map(|pin| pin.read().map(|read| (pin, read)));
        let pin = pin.transpose()?;
        // Reads of a remote image wait for the network, but not for each other.
        let (threads, transport) = match (store, args.transport) {
            (Some(_), Transport::Auto) => (THREADS, Transport::Dev),
            (_, transport) => (tuff_fuse::session::default_threads(), transport),
        };
        let threads = args.threads.map_or(threads, usize::from);
        let handler = Arc::new(Handler::new(Arc::new(fs.clone()), threads, log.clone()));
        serve_metrics(args.metrics, args.verbose, &handler)?;
        let save = self.saving(recording.map(|recording| (recording, fs.clone())));
        let ending = Ending::register(log, Arc::clone(&save))?;
        let mountpoint = mountpoint::attach(&args.dir, &self.mount_options());
        let how = SessionOptions {
            threads,
            transport,
            cpu_latency: args.keep_awake,
            // Longer readahead would fetch, and record, what no program reads.
            raises_read_ahead: store.is_none() && args.record.is_none(),
        };
        let session = Session::start(
            handler.clone(),
            mountpoint.map_err(|e| self.failed(e))?,
            how,
        );
        let session = session.map_err(|e| self.failed(e))?;
        let (dir, summary) = (session.dir().to_owned(), session.summary.clone());
        let life = ending.follow(session, dir.clone())?;
        if let Some(pressure) = MemoryPressure::open() {
            let fs = fs.clone();
            life.beside(move || relieve(fs.server(), |time| pressure.wait(time)))?;
        }
        if let Some((pin, profile)) = pin {
            let what = pin.apply(fs.server(), &profile);
            if args.verbose {
                eprintln!("tuff: {what}");
            }
        }
        if args.verbose {
            eprintln!("tuff: {summary}");
        }
        let mut swap = None;
        if let Some(prefetch) = prefetch {
            life.beside(prefetch)?;
        }
        if let Some(neighbours) = neighbours {
            life.beside(move || neighbours.run())?;
        }
        if let Some(store) = store
            && self.refusal().is_none()
            && args.record.is_none()
        {
            let device = mountpoint::device_known(&dir).map_err(|e| self.failed(e));
            let started = device.and_then(|device| self.swap(store, &handler, (dir, device)));
            swap = Some(life.or_detach(started)?);
        }
        self.wait(life, swap)?;
        save()?;
        Ok(ExitCode::SUCCESS)
    }

    /// Opens the image as a filesystem.
    fn filesystem(&self) -> Result<(ImageFs, Option<Recording>)> {
        let Self { args, log, .. } = self;
        let image = image::read(&self.container)?;
        if let Err(e) = image.has_devices()
            && !args.kernel
        {
            let what = advice::message(&e);
            eprintln!("tuff: warning: only names and attributes can be read: {what}");
        }
        let mut options = ServeOptions::default();
        let cache = || default_cache(options.budget, memory_limit());
        (options.budget, options.policy) = (args.cache.unwrap_or_else(cache), args.decode);
        options.record = args.record.is_some();
        // Reads from the page cache would not be recorded.
        options.push = !args.no_push && !options.record;
        if let Some(record) = &args.record {
            keep(record, &self.container.files())?;
        }
        let recording = args.record.as_deref().map(Recording::start).transpose()?;
        let show = OwnerOverride {
            uid: self.mounting.uid,
            gid: self.mounting.gid,
        };
        let fs = ImageFs::new(Server::new(image, options), show, log.clone())
            .map_err(|e| e.within(Place::file(&args.image.image)))?
            .with_repaired(self.repaired.clone())
            .with_store_counters(self.container.remote().map(prefetch::counters))
            .with_store_requests(self.container.remote().map(prefetch::requests_of));
        Ok((fs, recording))
    }

    /// Returns a function that writes the profile, if one is recorded, and the trace.
    fn saving(&self, recording: Option<(Recording, ImageFs)>) -> Save {
        let (log, trace) = (self.log.clone(), self.trace.clone());
        let trace = trace.zip(self.container.remote().cloned());
        Arc::new(move || {
            if let Some((trace, image)) = &trace {
                trace.save(image);
            }
            let saved = recording.as_ref().map(|(r, fs)| r.save(fs.server()));
            if let Some(Err(e)) = &saved {
                log.again(e);
            }
            saved.unwrap_or(Ok(()))
        })
    }

    fn mount_options(&self) -> MountOptions {
        let image = &self.args.image.image;
        let path = image.path().and_then(|path| std::path::absolute(path).ok());
        let source = self.mounting.general.source.clone().or(path);
        MountOptions {
            source: source.unwrap_or_else(|| image.name()),
            allow_other: self.mounting.general.allow_other,
            flags: self.mounting.general.flags,
            ..MountOptions::default()
        }
    }
}

/// Writes what was recorded. Its errors are in the log.
type Save = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Signals that arrive from before the mount exists: those that end it, and the one that asks for its counters.
pub(super) struct Ending {
    stop: Signals,
    report: Signals,
    log: Log,
    save: Save,
}

impl Ending {
    pub(super) fn register(log: &Log, save: Save) -> Result<Self> {
        Ok(Self {
            stop: Signals::of_end()?,
            report: Signals::register(&[SIGUSR1])?,
            log: log.clone(),
            save,
        })
    }

    /// Starts to follow the signals. A second one that ends the mount ends the process, after `save`.
    pub(super) fn follow(
        self,
        session: Session<Handler>,
        dir: PathBuf,
    ) -> Result<Lifetime<Handler>> {
        let (handler, save) = (Arc::clone(session.service()), Arc::clone(&self.save));
        let end = move || std::process::exit(if save().is_ok() { 0 } else { 5 });
        let life = Lifetime::start(self.stop, session, dir, self.log.clone(), end)?;
        let report = move || {
            for line in handler.stats_text().lines() {
                self.log.again(line);
            }
            // `save` logs its errors.
            let _ = (self.save)();
            true
        };
        life.beside(move || self.report.each(report))?;
        Ok(life)
    }
}

/// Serves the counters of `handler` at the address of `--metrics`.
pub(super) fn serve_metrics(
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

/// Returns a callback that counts and logs blocks repaired from parity.
fn on_repair(repaired: &Arc<AtomicU64>, log: &Log) -> OnRepair {
    let (repaired, log) = (Arc::clone(repaired), log.clone());
    Arc::new(move |tree, at| {
        repaired.fetch_add(1, Ordering::Relaxed);
        let what = if tree { "hash tree" } else { "image" };
        // The log drops repeated lines.
        log.line(format_args!(
            "the block at byte {at} of the {what} is damaged and repaired from parity on every read; 'tuff verity repair' repairs it in place"
        ));
    })
}

/// Default memory budget: at most a quarter of the control group's limit, since the page cache and other programs share
/// it.
fn default_cache(usual: usize, limit: Option<u64>) -> usize {
    let quarter = limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit / 4).unwrap_or(usize::MAX)
    });
    usual.min(quarter)
}

#[cfg(test)]
mod tests {
    use super::default_cache;

    #[test]
    fn a_group_with_little_memory_gets_a_small_cache() {
        assert_eq!(default_cache(48 << 20, None), 48 << 20);
        assert_eq!(default_cache(48 << 20, Some(1 << 40)), 48 << 20);
        assert_eq!(default_cache(48 << 20, Some(64 << 20)), 16 << 20);
    }
}
