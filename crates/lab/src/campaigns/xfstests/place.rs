//! Folder of a run: filesystems under test, a view of xfstests with our functions, and mount(8)'s helper.
//!
//! ```text
//!  suite/     links to the built tree; `common/rc` is a copy with functions.sh at its end
//!  place      makes, checks and mounts the filesystems: place.sh
//!  config     settings of xfstests
//!  test, scratch, results
//!  /sbin/mount.fuse.NAME ─► place
//! ```

use crate::measure::device::Device;
use crate::measure::helper;
use crate::measure::workspace::Work;
use crate::{At, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Size of each filesystem. Its file is sparse. Unit: bytes.
const SIZE: u64 = 12 << 30;
/// Size of a device. A volume does not take all of one. Unit: bytes.
const DEVICE_SIZE: u64 = 14 << 30;
/// Variable by which processes of a run are found.
const MARK: &str = "SUITE_PLACE";

/// Kind of filesystem under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Volume in a directory of zone files.
    Directory,
    /// Volume on a loop device.
    Device,
    /// ext4 image, served by fuse2fs.
    Fuse2fs,
    /// ext4 of the kernel, passed on by libfuse's example.
    #[value(name = "passthrough_hp")]
    PassthroughHp,
}

impl Kind {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Device => "device",
            Self::Fuse2fs => "fuse2fs",
            Self::PassthroughHp => "passthrough_hp",
        }
    }

    /// Returns the name of the program that serves it.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Directory | Self::Device => "tuff",
            other => other.name(),
        }
    }

    /// Returns true if the filesystem is ours.
    pub(super) fn is_ours(self) -> bool {
        self.program() == "tuff"
    }
}

/// Folder of a run. Dropping it unmounts the filesystems and removes them.
pub(super) struct Place {
    /// Folder in which the program `check` runs.
    suite: PathBuf,
    config: PathBuf,
    helper: PathBuf,
    subtype: String,
    kind: Kind,
    /// Sources of the test filesystem and of the scratch filesystem, and their mount points.
    filesystems: [(PathBuf, PathBuf); 2],
    _devices: Vec<Device>,
    work: Work,
}

impl Place {
    /// Makes the folder and both filesystems.
    pub(super) fn create(work: Work, tree: &Path, kind: Kind, program: &Path) -> Result<Self> {
        let subtype = format!("lab{}", std::process::id());
        let mut devices = Vec::new();
        let mut filesystems = Vec::new();
        for name in ["test", "scratch"] {
            let (mut source, dir) = (work.path(&format!("{name}.place")), work.path(name));
            fs::create_dir(&dir).at("create", &dir)?;
            if kind == Kind::Device {
                let file = File::create(&source).at("create", &source)?;
                file.set_len(DEVICE_SIZE).at("extend", &source)?;
                let device = Device::attach(&source, &[])?;
                source = device.path().to_owned();
                devices.push(device);
            }
            filesystems.push((source, dir));
        }
        let [test, scratch] = filesystems.try_into().expect("two were made");
        let place = Self {
            suite: work.path("suite"),
            config: work.path("config"),
            helper: Path::new("/sbin").join(format!("mount.fuse.{subtype}")),
            subtype,
            kind,
            filesystems: [test, scratch],
            _devices: devices,
            work,
        };
        place.view(tree)?;
        place.scripts(program)?;
        place.make()?;
        Ok(place)
    }

    /// Makes the view of the built tree.
    fn view(&self, tree: &Path) -> Result<()> {
        let common = self.suite.join("common");
        fs::create_dir_all(&common).at("create", &common)?;
        link_all(tree, &self.suite, "common")?;
        link_all(&tree.join("common"), &common, "rc")?;
        let rc = tree.join("common/rc");
        let functions = fs::read_to_string(&rc).at("read", &rc)? + include_str!("functions.sh");
        let rc = common.join("rc");
        fs::write(&rc, functions).at("write", &rc)
    }

    /// Writes the configuration and the helper.
    fn scripts(&self, program: &Path) -> Result<()> {
        let (script, program) = (self.script(), program.display());
        let text = format!(
            "#!/bin/bash\nkind={}\nprogram='{program}'\nsize={SIZE}\n{}",
            self.kind.name(),
            include_str!("place.sh")
        );
        fs::write(&script, text).at("write", &script)?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&script, mode).at("permit", &script)?;
        symlink(&script, &self.helper).at("create", &self.helper)?;
        let results = self.work.path("results");
        let mut text = format!(
            "export FSTYP=fuse FUSE_SUBTYP=.{}\nexport MOUNT_OPTIONS='-o noatime' TEST_FS_MOUNT_OPTS='-o noatime'\n\
             export {MARK}={} RESULT_BASE={}\n",
            self.subtype,
            script.display(),
            results.display()
        );
        for ((source, dir), [device, mount]) in self
            .filesystems
            .iter()
            .zip([["TEST_DEV", "TEST_DIR"], ["SCRATCH_DEV", "SCRATCH_MNT"]])
        {
            let (source, dir) = (source.display(), dir.display());
            let _ = writeln!(text, "export {device}={source} {mount}={dir}");
        }
        fs::write(&self.config, text).at("write", &self.config)
    }

    fn script(&self) -> PathBuf {
        self.work.path("place")
    }

    /// Makes both filesystems anew.
    pub(super) fn make(&self) -> Result<()> {
        for (source, _) in &self.filesystems {
            helper::output(self.script(), [Path::new("make"), source])?;
        }
        Ok(())
    }

    /// Returns a run of `check`.
    pub(super) fn check(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("./check");
        command
            .args(arguments)
            .current_dir(&self.suite)
            .env("HOST_OPTIONS", &self.config)
            .env(MARK, self.script());
        command
    }

    /// Ends all processes of a test that does not end, and unmounts what it had.
    pub(super) fn abandon(&self) {
        for _ in 0..10 {
            // Requests without an answer keep processes alive.
            self.mounts().iter().for_each(|(_, device)| abort(*device));
            self.processes()
                .for_each(|pid| _ = kill_process(pid, Signal::KILL));
            for (dir, _) in self.mounts() {
                let mut umount = Command::new("umount");
                let umount = umount.arg("--lazy").arg(dir).stderr(Stdio::null());
                let _ = umount.status();
            }
            if self.mounts().is_empty() && self.processes().next().is_none() {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns the mount points of the run, the last first, and their device numbers.
    fn mounts(&self) -> Vec<(PathBuf, u64)> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = |line: &str| {
            let mut words = line.split(' ');
            let (major, minor) = words.nth(2)?.split_once(':')?;
            let dir = Path::new(words.nth(1)?);
            let device = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
            let is_ours = self
                .filesystems
                .iter()
                .any(|(_, ours)| dir.starts_with(ours));
            is_ours.then(|| (dir.to_owned(), device))
        };
        let mut found: Vec<_> = table.lines().filter_map(below).collect();
        found.reverse();
        found
    }

    /// Returns the processes that a test has left, servers included.
    fn processes(&self) -> impl Iterator<Item = Pid> + use<> {
        let mark = format!("{MARK}={}", self.script().display());
        let listing = fs::read_dir("/proc").into_iter().flatten().flatten();
        listing.filter_map(move |entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let variables = fs::read(entry.path().join("environ")).ok()?;
            let mut variables = variables.split(|byte| *byte == 0);
            let is_ours = variables.any(|variable| variable == mark.as_bytes());
            is_ours.then(|| Pid::from_raw(pid)).flatten()
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.abandon();
        if self.kind == Kind::PassthroughHp {
            for (source, _) in &self.filesystems {
                let _ = Command::new("umount").arg(source).status();
            }
        }
        let _ = fs::remove_file(&self.helper);
    }
}

/// Ends a connection of FUSE. Every request of it fails.
fn abort(device: u64) {
    let _ = fs::write(format!("/sys/fs/fuse/connections/{device}/abort"), "1");
}

/// Makes links to all entries of a folder except one.
fn link_all(from: &Path, to: &Path, except: &str) -> Result<()> {
    for entry in fs::read_dir(from).at("list", from)? {
        let name = entry.at("list", from)?.file_name();
        if name != except {
            let (target, link) = (from.join(&name), to.join(&name));
            symlink(&target, &link).at("create", &link)?;
        }
    }
    Ok(())
}
