//! Guest: a virtual machine that runs a job of the lab under another kernel.
//!
//! ```text
//!  host                                guest
//!  Guest::boot ──► QEMU ──► kernel ──► initramfs ──► this program as process 1
//!                   │        job        /dev/vda ──────────► job (JSON)
//!                   │        disks      /dev/vdb, ... ─────► filesystems under test
//!  Running::receive ◄──┘        messages   virtio-serial ◄───── lines of JSON
//! ```
//!
//! The kernel is a Debian package, unpacked into a folder by `benchmarks/guest-packages`. The initramfs holds
//! this program, the programs of the plan with their libraries, and the kernel modules of the plan. QEMU uses
//! KVM where the CPU has it, and emulates the CPU elsewhere. Emulated times are comparable within the guest only.

pub mod inside;

use crate::measure::helper;
use crate::measure::root::Root;
use crate::measure::stop;
use crate::measure::workspace;
use crate::{At, Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Folder in which `benchmarks/guest-packages` puts the kernel by default.
pub const KERNEL_FOLDER: &str = "target/guest";
/// Program that runs the guest.
const QEMU: &str = "qemu-system-x86_64";
/// Modules that every guest needs: the disks and the port of the messages.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "virtio_console"];
/// Interval at which the host looks for new messages.
const POLL: Duration = Duration::from_millis(10);
/// Time limit of modprobe.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Number of lines of the console that an error message quotes.
const CONSOLE_LINES: usize = 6;

/// Line that the guest sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message<T> {
    /// Result of the job.
    Result(T),
    /// The job failed. Nothing follows.
    Failed(String),
    /// The job is complete. Nothing follows.
    End,
}

/// Option for the kernel of a guest.
#[derive(Clone, Debug, clap::Args)]
pub struct Machine {
    /// Folder with the unpacked package of the guest's kernel
    #[arg(long, default_value = KERNEL_FOLDER, value_name = "DIR")]
    pub kernel: PathBuf,
}

impl Machine {
    /// Returns the kernel in the folder that the option names.
    pub fn guest(&self) -> Result<Guest> {
        let folder = std::path::absolute(&self.kernel);
        Guest::find(&folder.at("find", &self.kernel)?)
    }
}

/// Kernel for guests.
#[derive(Debug)]
pub struct Guest {
    folder: PathBuf,
    release: String,
}

/// Content of a guest's initramfs.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Kernel modules by name, with parameters after a space. Modules that they depend on are added.
    pub modules: &'a [&'a str],
    /// Programs, each added with its libraries at the path that it has on the host.
    pub programs: &'a [PathBuf],
}

/// Initramfs in a file.
#[derive(Debug)]
pub struct Initramfs(PathBuf);

/// Hardware of a guest, apart from its initramfs.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Images of disks. They are /dev/vdb, /dev/vdc and so on in the guest.
    pub disks: Vec<PathBuf>,
    /// True to open the images without the page cache of the host, so that a disk may fail and recover: after a failed flush
    /// of a cached image, QEMU fails all others.
    pub direct: bool,
    /// File that the guest sees as a PCI memory region. It keeps its content when the guest dies.
    pub region: Option<PathBuf>,
    /// Main memory in MiB.
    pub memory_mib: u32,
    /// Time after which the guest is killed.
    pub time_limit: Duration,
}

impl Guest {
    /// Finds the kernel below `folder`.
    ///
    /// # Errors
    /// `Usage` if QEMU or the kernel is missing.
    pub fn find(folder: &Path) -> Result<Guest> {
        let missing = |what: &str| {
            let text = format!("{what} is missing; benchmarks/guest-packages installs it");
            Error::Usage(text)
        };
        crate::engines::search(QEMU).ok_or_else(|| missing(QEMU))?;
        let kernels = folder.join("lib/modules");
        let listing = std::fs::read_dir(&kernels).map_err(|_| missing("the guest's kernel"))?;
        let names = listing.flatten().map(|entry| entry.file_name());
        let release = names.max().ok_or_else(|| missing("the guest's kernel"))?;
        Ok(Guest {
            folder: folder.to_owned(),
            release: release.to_string_lossy().into_owned(),
        })
    }

    /// Returns the release of the kernel, as `uname -r` prints it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Returns true if the kernel was built with an option, such as `EROFS_FS_ZIP_LZMA`.
    pub fn is_configured(&self, option: &str) -> bool {
        let path = self.folder.join(format!("boot/config-{}", self.release));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let prefix = format!("CONFIG_{option}=");
        text.lines().any(|line| line.starts_with(&prefix))
    }

    /// Writes an initramfs into `work`, an existing folder.
    pub fn initramfs(&self, plan: &Plan<'_>, work: &Path) -> Result<Initramfs> {
        let folder = work.join("initramfs");
        workspace::remove(&folder)?;
        let mut root = Root::create(&folder)?;
        let program =
            std::env::current_exe().map_err(|e| Error::Io("find this program".to_owned(), e))?;
        for path in std::iter::once(&program).chain(plan.programs) {
            if !root.add(path)? {
                let text = format!("{} is missing", path.display());
                return Err(Error::Usage(text));
            }
        }
        let folder = root.folder();
        let modules = folder.join("modules");
        for path in [
            &modules,
            &folder.join("sys"),
            &folder.join("mnt"),
            &folder.join("etc"),
        ] {
            std::fs::create_dir_all(path).at("create", path)?;
        }
        for (target, link) in [
            (program.as_path(), "init"),
            (Path::new("/proc/mounts"), "etc/mtab"),
        ] {
            std::os::unix::fs::symlink(target, folder.join(link)).at("create a link to", target)?;
        }
        for (number, (module, parameters)) in self.ordered(plan.modules)?.iter().enumerate() {
            let to = modules.join(format!("{number:03}.ko"));
            std::fs::copy(module, &to)
                .and_then(|_| std::fs::write(to.with_extension("parameters"), parameters))
                .at("copy", module)?;
        }
        let archive = work.join("initramfs.cpio");
        let file = File::create(&archive).at("create", &archive)?;
        let pack = "find . -print0 | cpio --null --create --format=newc --quiet";
        let mut command = Command::new("sh");
        command.args(["-c", pack]).current_dir(folder).stdout(file);
        let status = command
            .status()
            .map_err(|e| Error::Io("run cpio".to_owned(), e))?;
        match status.success() {
            true => Ok(Initramfs(archive)),
            false => Err(Error::Command(
                "cpio failed to write the initramfs".to_owned(),
            )),
        }
    }

    /// Returns the paths and parameters of modules and of those that they need, in the order of loading.
    fn ordered<'a>(&self, modules: &[&'a str]) -> Result<Vec<(PathBuf, &'a str)>> {
        let mut order: Vec<(PathBuf, &str)> = Vec::new();
        for module in MODULES.iter().chain(modules) {
            let (name, parameters) = module.split_once(' ').unwrap_or((module, ""));
            let mut modprobe = Command::new("modprobe");
            modprobe
                .args([
                    "--show-depends",
                    "-C",
                    "/dev/null",
                    "-S",
                    &self.release,
                    name,
                    "-d",
                ])
                .arg(&self.folder);
            let text = helper::run(&mut modprobe, 0, TIME_LIMIT).map_err(Error::Usage)?;
            // The lines of modules that are a part of the kernel's image begin with another word. The named module is the last one.
            let needed = text.lines().filter_map(|l| l.strip_prefix("insmod "));
            let needed: Vec<PathBuf> = needed.map(|path| PathBuf::from(path.trim())).collect();
            let last = needed.len().saturating_sub(1);
            for (at, path) in needed.into_iter().enumerate() {
                if !order.iter().any(|(known, _)| *known == path) {
                    order.push((path, if at == last { parameters } else { "" }));
                }
            }
        }
        Ok(order)
    }

    /// Starts a guest that runs `job`. Files of the guest are created in `work`.
    pub fn boot(
        &self,
        initramfs: &Initramfs,
        hardware: &Hardware,
        work: &Path,
        job: &impl Serialize,
    ) -> Result<Running> {
        let [order, messages, console, errors] =
            ["job", "messages", "console", "errors"].map(|name| work.join(name));
        let mut text = serde_json::to_vec(job)
            .map_err(|e| Error::Command(format!("cannot encode the job: {e}")))?;
        text.resize(text.len().next_multiple_of(512), b' ');
        std::fs::write(&order, text).at("write", &order)?;
        let errors = File::create(&errors).at("create", &errors)?;
        File::create(&messages).at("create", &messages)?;
        let mut command = Command::new(QEMU);
        let kernel = self.folder.join(format!("boot/vmlinuz-{}", self.release));
        command
            .args(["-machine", "q35", "-cpu", "max", "-smp", "1", "-nodefaults"])
            .args(["-accel", accelerator(), "-no-reboot"])
            .args(["-display", "none", "-m", &hardware.memory_mib.to_string()])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(&initramfs.0)
            .args([
                "-append",
                "console=ttyS0 quiet loglevel=4 panic=-1 -- agent",
            ])
            .arg("-serial")
            .arg(format!("file:{}", quoted(&console)))
            .args(["-device", "virtio-serial-pci", "-chardev"])
            .arg(format!("file,id=messages,path={}", quoted(&messages)))
            .args(["-device", "virtserialport,chardev=messages,name=messages"]);
        let cache = if hardware.direct { "none" } else { "writeback" };
        let disks = hardware.disks.iter().map(|disk| (disk, cache));
        for (disk, cache) in std::iter::once((&order, "writeback")).chain(disks) {
            // A flush of the guest is a flush of the file, and a lock is not needed.
            command.arg("-drive").arg(format!(
                "if=virtio,format=raw,cache={cache},discard=unmap,file.locking=off,file={}",
                quoted(disk)
            ));
        }
        if let Some(region) = &hardware.region {
            let size = workspace::length(region)?;
            command
                .arg("-object")
                .arg(format!(
                    "memory-backend-file,id=region,share=on,size={size},mem-path={}",
                    quoted(region)
                ))
                .args(["-device", "ivshmem-plain,memdev=region"]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .map_err(|e| Error::Io(format!("run {QEMU}"), e))?;
        let messages = File::open(&messages).at("open", &messages)?;
        Ok(Running {
            child,
            messages: BufReader::new(messages),
            rest: Vec::new(),
            end: Instant::now() + hardware.time_limit,
            work: work.to_owned(),
        })
    }
}

/// Returns the name of QEMU's accelerator: `kvm`, or `tcg`, which emulates the CPU. Without the CPU's flag, /dev/kvm may exist and
/// not work.
pub fn accelerator() -> &'static str {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has_flag = flags.split_whitespace().any(|f| f == "vmx" || f == "svm");
    let device = File::options().read(true).write(true).open("/dev/kvm");
    if has_flag && device.is_ok() {
        "kvm"
    } else {
        "tcg"
    }
}

/// Returns a path for an option of QEMU, in which a comma is doubled.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Running guest. Dropping it kills the guest, like a power cut.
#[derive(Debug)]
pub struct Running {
    child: Child,
    messages: BufReader<File>,
    /// Beginning of a line that is not complete.
    rest: Vec<u8>,
    end: Instant,
    work: PathBuf,
}

impl Running {
    /// Waits for the next result. Returns `None` when the job is complete.
    ///
    /// # Errors
    /// `Command` if the job failed, or if the guest died or took too long.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            match self.poll()? {
                Some(Message::Result(result)) => return Ok(Some(result)),
                Some(Message::End) => return Ok(None),
                Some(Message::Failed(reason)) => return Err(self.failed(&reason)),
                None => {}
            }
        }
    }

    /// Returns the next message, or `None` if none arrives for a moment.
    ///
    /// # Errors
    /// `Command` if the guest died or took too long.
    pub(crate) fn poll<T: DeserializeOwned>(&mut self) -> Result<Option<Message<T>>> {
        stop::check()?;
        // Asked before reading, so that the last lines of a guest are not lost.
        let is_over = self.is_over()?;
        if let Some(line) = self.line()? {
            let message = serde_json::from_slice(&line);
            let unreadable = |e| self.failed(&format!("sent an unreadable line: {e}"));
            return message.map(Some).map_err(unreadable);
        }
        if is_over {
            return Err(self.failed("ended before its job"));
        }
        if Instant::now() > self.end {
            return Err(self.failed("took too long"));
        }
        std::thread::sleep(POLL);
        Ok(None)
    }

    /// Returns all remaining results.
    pub fn results<T: DeserializeOwned>(mut self) -> Result<Vec<T>> {
        let mut all = Vec::new();
        while let Some(result) = self.receive()? {
            all.push(result);
        }
        Ok(all)
    }

    /// True if the guest has ended.
    fn is_over(&mut self) -> Result<bool> {
        let status = self.child.try_wait();
        Ok(status
            .map_err(|e| Error::Io(format!("wait for {QEMU}"), e))?
            .is_some())
    }

    /// Returns a complete line of the messages, if one has arrived.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let read = self.messages.read_until(b'\n', &mut self.rest);
        read.map_err(|e| Error::Io("read the messages of the guest".to_owned(), e))?;
        let is_complete = self.rest.ends_with(b"\n");
        Ok(is_complete.then(|| std::mem::take(&mut self.rest)))
    }

    fn printed(&self, name: &str) -> String {
        let bytes = std::fs::read(self.work.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns an error with the end of the console.
    fn failed(&self, reason: &str) -> Error {
        let text = self.printed("errors") + &self.printed("console");
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        let last = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("; ");
        Error::Command(format!(
            "the guest: {reason}. Its console ends with: {last}"
        ))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A guest that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
