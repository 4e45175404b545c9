//! Replacement of a mount by the kernel's mount of the complete image, beneath programs that use it.
//!
//! When every byte is in the cache, the kernel's EROFS is mounted from the plain files and moved beneath the mount at DIR, which
//! is then detached. Paths lead to the new mount, with the same inode numbers; open files stay with the old one.

use crate::counters_socket;
use crate::kernel_erofs::{self, FileReads, KernelErofs};
use rustix::mount::MountFlags;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, Detach};
use tuff_fuse::{Handler, Log};
use tuff_open::RemoteImage;

/// Interval of checks whether the mount has ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time from the mount of a complete image to its replacement, which reads all of it: a program that starts reads first.
const START_TIME: Duration = Duration::from_secs(2);

/// Mount that is to be replaced.
pub struct Replaced {
    /// Store of the image.
    pub store: Arc<RemoteImage>,
    /// Directory of the mount: absolute, without symlinks.
    pub dir: PathBuf,
    /// Device number of the mount, major and minor.
    pub device: (u32, u32),
    /// Flags of the mount, such as "nosuid".
    pub flags: MountFlags,
    /// Service whose counters belong to both mounts.
    pub handler: Arc<Handler>,
    /// Log of the mount.
    pub log: Log,
}

/// Progress of a replacement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The first mount is the only one.
    Waiting,
    /// The kernel's mount of the plain files has taken its place.
    Replaced,
    /// The first mount ended before it was replaced.
    Ended,
}

/// Running replacement of a mount.
pub struct Swap {
    progress: Arc<Mutex<Progress>>,
    thread: JoinHandle<()>,
}

impl Swap {
    /// Starts to wait for the image to be complete.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(mount: Replaced) -> Result<Self> {
        let progress = Arc::new(Mutex::new(Progress::Waiting));
        let shared = Arc::clone(&progress);
        let place = mount.dir.display().to_string();
        let thread = std::thread::Builder::new().name("swap".to_owned());
        let thread = thread.spawn(move || mount.run(&shared));
        let thread = thread.map_err(|e| Error::io(place, "cannot start a thread", e))?;
        Ok(Self { progress, thread })
    }

    /// Waits for the end of the mount that replaced the first one, which has ended.
    pub fn finish(self) {
        let is_replaced = {
            let mut progress = lock(&self.progress);
            if *progress == Progress::Waiting {
                *progress = Progress::Ended;
            }
            *progress == Progress::Replaced
        };
        if is_replaced {
            let _ = self.thread.join();
        }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replaced {
    fn run(&self, progress: &Mutex<Progress>) {
        let was_complete = self.store.wait_complete(Duration::ZERO);
        while !self.store.wait_complete(CHECK_INTERVAL) {
            // The fill has reported it.
            if self.store.failure().is_some() {
                return;
            }
            if *lock(progress) == Progress::Ended {
                return;
            }
        }
        if was_complete {
            std::thread::sleep(START_TIME);
        }
        if *lock(progress) == Progress::Ended {
            return;
        }
        if let Err(why) = self.replace(progress) {
            let dir = self.dir.display();
            self.log.line(format_args!(
                "{dir}: served through FUSE although the image is complete: {why}"
            ));
        }
    }

    /// Replaces the mount and waits for the end of the new one. Until then the files stay in the cache.
    fn replace(&self, progress: &Mutex<Progress>) -> std::result::Result<(), String> {
        let files = self.store.complete_files().map_err(|e| e.to_string())?;
        let (image, devices) = (&files.image, &files.devices);
        let mount = KernelErofs::open(image, devices, FileReads::Cached, self.flags);
        let mount = mount.map_err(kernel_erofs::reason)?;
        let end = mount.watch().map_err(|e| e.to_string())?;
        // Without counters the mount is as good.
        let handler = Arc::clone(&self.handler);
        let device = mount.device().map_err(|e| e.to_string())?;
        if let Ok(end) = mount.watch() {
            let _ = counters_socket::serve(device, end, move || handler.report());
        }
        {
            let mut progress = lock(progress);
            let found = mountpoint::find(&self.dir).map_err(|e| e.to_string())?;
            let is_ours = found.is_some_and(|m| m.device == self.device);
            if *progress == Progress::Ended || !is_ours {
                return Ok(());
            }
            mount
                .attach_beneath(&self.dir)
                .map_err(|e| format!("{e}; replacing a mount needs Linux 6.5"))?;
            *progress = Progress::Replaced;
            let detached = mountpoint::detach(&self.dir, Detach::Lazily);
            detached.map_err(|e| format!("detaching: {e}"))?;
        }
        end.wait().map_err(|e| e.to_string())
    }
}
