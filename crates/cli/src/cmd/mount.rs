//! `tuff mount`: serves an image through FUSE until it is unmounted.

mod args;
pub(super) mod background;
mod kernel;
mod options;
mod prefetch;
mod profile;

use crate::image::OnMend;
use crate::remote;
use crate::sink::keep;
use background::Role;
use options::Mounting;
use profile::Recording;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tuff_erofs::serve::{MemoryPressure, ServeOptions, Server, memory_limit};
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, Detach, MountOptions};
use tuff_fuse::{Handler, Log, Session, SessionOptions};
use tuff_mount::memory_pressure::relieve;
use tuff_mount::{ImageFs, OwnerOverride};

pub(crate) use args::Args;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut mounting = Mounting::default();
    for list in &args.options {
        mounting.add(list)?;
    }
    let role = Role::of_this_process(args.foreground);
    if role == Role::Starter && args.kernel {
        match kernel::mount(args, &mounting) {
            Ok(how) => {
                if args.verbose {
                    eprintln!("tuff: mounted by the kernel, {how}");
                }
                return Ok(ExitCode::SUCCESS);
            }
            Err(why) => {
                eprintln!("tuff: not mounted by the kernel: {why}; serving it through FUSE")
            }
        }
    }
    match role {
        Role::Starter => background::start(),
        Role::Server { in_background } => serve(args, &mounting, in_background),
    }
}

fn serve(args: &Args, mounting: &Mounting, in_background: bool) -> Result<ExitCode> {
    if in_background {
        background::leave_terminal();
    }
    let log = background::log(args.log.as_deref(), in_background)?;
    let mut open = args.image.open.clone();
    mounting.apply(&mut open);
    let repaired = open.verity.map(|_| Arc::new(AtomicU64::new(0)));
    open.on_mend = repaired
        .clone()
        .map(|repaired| on_mend(repaired, log.clone()));
    let profile = args.prefetch.profile(&args.image.image)?;
    let image = open.open(&args.image.image)?;
    args.image.with_devices(&image)?;
    let show = OwnerOverride {
        uid: mounting.uid,
        gid: mounting.gid,
    };
    let mut options = ServeOptions::default();
    let cache = || default_cache(options.budget, memory_limit());
    (options.budget, options.policy) = (args.cache.unwrap_or_else(cache), args.decode);
    options.record = args.record.is_some();
    // Reads from the page cache would not be recorded.
    options.push = !args.no_push && !options.record;
    if let Some(record) = &args.record {
        keep(record, &open.files(&args.image.image))?;
    }
    let recording = args.record.as_deref().map(Recording::start).transpose()?;
    let recording = recording.map(Arc::new);
    let pin = (args.pin.clone()).map(|pin| pin.read().map(|profile| (profile, pin)));
    let pin = pin.transpose()?;
    let server = Server::new(image, options);
    let fs = ImageFs::new(server, show, log.clone())
        .map_err(|e| e.within(remote::shown(&args.image.image).display()))?
        .with_repaired(repaired)
        .with_store_counters(prefetch::counters(&open))
        .with_hand_off(args.hand_off);
    let threads = args
        .threads
        .map_or_else(tuff_fuse::session::default_threads, usize::from);
    let handler = Arc::new(Handler::new(Arc::new(fs.clone()), threads, log.clone()));
    let metrics = match args.metrics {
        Some(address) => Some(tuff_fuse::metrics::serve(address, handler.clone()).map_err(
            |e| match e.kind() {
                std::io::ErrorKind::InvalidInput => Error::usage(format_args!("--metrics: {e}")),
                _ => Error::io(address, "cannot serve counters", e),
            },
        )?),
        None => None,
    };
    let stop = signals(&[SIGTERM, SIGINT, SIGHUP])?;
    let show_stats = signals(&[SIGUSR1])?;
    let failed = |e| Error::io(args.dir.display(), "cannot mount", e);
    let shown = remote::shown(&args.image.image);
    let name = || match remote::is_url(&args.image.image) {
        true => None,
        false => std::path::absolute(&shown).ok(),
    };
    let source = mounting.source.clone().or_else(name);
    let mountpoint = mountpoint::attach(
        &args.dir,
        &MountOptions {
            source: source.unwrap_or(shown),
            allow_other: mounting.allow_other,
            flags: mounting.flags,
        },
    )
    .map_err(failed)?;
    let how = SessionOptions {
        threads,
        transport: args.transport,
        cpu_latency: args.keep_awake,
    };
    let mount = Session::start(handler.clone(), mountpoint, how).map_err(failed)?;
    let dir = mount.dir().to_owned();
    let save = {
        let (fs, log) = (fs.clone(), log.clone());
        move || match recording.as_ref().map(|r| r.save(fs.server())) {
            Some(Err(e)) => {
                log.again(&e);
                Err(e)
            }
            _ => Ok(()),
        }
    };
    let beside = |work: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().spawn(work);
        thread.map(drop).map_err(|e| {
            let _ = mountpoint::detach(mount.dir(), Detach::Lazily);
            Error::io(args.dir.display(), "cannot start a thread", e)
        })
    };
    let (stop_log, save_at_once) = (log.clone(), save.clone());
    beside(Box::new(move || {
        end_when_told(stop, &dir, &stop_log, save_at_once);
    }))?;
    let (stats_log, save_now) = (log.clone(), save.clone());
    beside(Box::new(move || {
        each_signal(show_stats, || {
            for line in handler.stats_text().lines() {
                stats_log.again(line);
            }
            // `save` logs its errors.
            let _ = save_now();
            true
        });
    }))?;
    if let Some(pressure) = MemoryPressure::open() {
        let fs = fs.clone();
        beside(Box::new(move || {
            relieve(fs.server(), |time| pressure.wait(time));
        }))?;
    }
    let report = prefetch::Report {
        log: log.clone(),
        is_verbose: args.verbose,
        is_foreground: args.foreground,
    };
    if let Some(work) = args.prefetch.work(&open, profile, &fs, report) {
        beside(work)?;
    }
    if let Some((profile, pin)) = pin {
        let what = pin.apply(fs.server(), &profile);
        if args.verbose {
            eprintln!("tuff: {what}");
        }
    }
    if args.verbose {
        eprintln!("tuff: {}", mount.summary);
    }
    if let (Some(at), true) = (metrics, args.verbose) {
        eprintln!("tuff: counters at http://{at}/metrics");
    }
    background::ready(in_background)?;
    mount.wait();
    save()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a callback that counts and logs blocks repaired from parity.
fn on_mend(repaired: Arc<AtomicU64>, log: Log) -> OnMend {
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
fn end_when_told(
    stop: UnixStream,
    dir: &std::path::Path,
    log: &Log,
    save: impl Fn() -> Result<()>,
) {
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
