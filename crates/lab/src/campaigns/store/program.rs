//! Command lines of the programs that make backups.
//!
//! All of a program is in one folder: store, caches and configuration. A copy of the folder is a store of its own.

use super::bucket::Bucket;
use super::days::copy;
use super::definition::{Kind, Way};
use crate::measure::link::Traffic;
use crate::measure::process::Place;
use crate::measure::{self, Job, Usage, helper, workspace};
use crate::{At, Error, Result};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

/// Passphrase of stores that are encrypted.
const PASSPHRASE: &str = "lab";
/// Time limit of a command that is not measured.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Command with the environment of its program.
#[derive(Clone, Debug)]
pub(super) struct Call {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    folder: PathBuf,
}

impl Call {
    fn args<I: Into<OsString>>(mut self, words: impl IntoIterator<Item = I>) -> Call {
        self.arguments.extend(words.into_iter().map(Into::into));
        self
    }

    /// Returns the call as a command.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the call inside a control group, given by its file of processes.
    pub(super) fn inside(&self, group: &Path) -> Call {
        let script = r#"echo $$ > "$0" && exec "$@""#;
        let shell = [OsString::from("-c"), script.into(), group.into()];
        Call {
            program: "/bin/sh".into(),
            arguments: Vec::new(),
            ..self.clone()
        }
        .args(shell)
        .args([self.program.clone()])
        .args(self.arguments.clone())
    }

    /// Runs the command unmeasured, and returns its standard output.
    pub(super) fn run(&self) -> Result<String> {
        helper::run(&mut self.command(), 0, LIMIT).map_err(Error::Command)
    }

    /// Measures the command. Fails if its exit code is not 0.
    pub(super) fn measure(&self) -> Result<Usage> {
        let outcome = self.sample()?;
        match outcome.usage.exit {
            Some(0) => Ok(outcome.usage),
            Some(code) => Err(Error::Command(format!(
                "exit code {code}: {}",
                outcome.message
            ))),
            None => Err(Error::Command("killed by a signal".to_owned())),
        }
    }

    /// Measures the command, whatever its exit code.
    pub(super) fn sample(&self) -> Result<measure::Outcome> {
        // env(1) becomes the program, so that it is the only process.
        let mut words: Vec<OsString> = Vec::new();
        for (name, value) in &self.environment {
            let mut word = OsString::from(format!("{name}="));
            word.push(value);
            words.push(word);
        }
        words.push(self.program.clone().into());
        words.extend(self.arguments.iter().cloned());
        measure::sample(&Job {
            program: Path::new("/usr/bin/env"),
            arguments: &words,
            folder: &self.folder,
        })
    }
}

/// Program with a store.
#[derive(Clone)]
pub(super) struct Backup {
    way: Way,
    program: PathBuf,
    /// Other programs.
    place: Place,
    /// Folder of the store, caches and configuration.
    home: PathBuf,
    /// Tree of which backups are made.
    tree: PathBuf,
    /// Bucket of the store. None for a directory, and until the store is created or opened.
    bucket: Option<Rc<Bucket>>,
}

impl Backup {
    /// Returns the program of a way with a folder. None if it could not be had.
    pub(super) fn new(
        way: &Way,
        place: &Place,
        tuff: &Path,
        home: PathBuf,
        tree: PathBuf,
    ) -> Option<Backup> {
        let bin = place.dir.join("bin");
        let program = match way.kind {
            Kind::Tuff => tuff.to_owned(),
            Kind::Restic => bin.join("restic"),
            Kind::Kopia => bin.join("kopia"),
            Kind::Borg => bin.join("borg"),
            Kind::Dwarfs => bin.join("mkdwarfs"),
        };
        let has_server = !way.is_in_bucket || bin.join("versitygw").exists();
        (program.exists() && has_server).then(|| Backup {
            way: way.clone(),
            program,
            place: place.clone(),
            home,
            tree,
            bucket: None,
        })
    }

    /// Returns the path of the program.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the folder of the store, caches and configuration.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    fn store(&self) -> PathBuf {
        self.home.join("store")
    }

    /// Returns the place of the store as Tuff names it.
    fn location(&self) -> PathBuf {
        match self.bucket {
            Some(_) => Bucket::url().into(),
            None => self.store(),
        }
    }

    /// Returns the place of the store as kopia names it.
    fn kopia_location(&self) -> Vec<OsString> {
        match &self.bucket {
            Some(bucket) => bucket.options(),
            None => vec!["filesystem".into(), "--path".into(), self.store().into()],
        }
    }

    fn call<I: Into<OsString>>(&self, words: impl IntoIterator<Item = I>) -> Call {
        let home = |name: &str| self.home.join(name).into_os_string();
        let repository = match &self.bucket {
            Some(bucket) => bucket.url_at_server(),
            None => home("store"),
        };
        let mut environment = match self.way.kind {
            Kind::Tuff => vec![("XDG_CACHE_HOME", home("cache"))],
            Kind::Dwarfs => vec![],
            Kind::Restic => vec![
                ("RESTIC_REPOSITORY", repository),
                ("RESTIC_PASSWORD", PASSPHRASE.into()),
                ("RESTIC_CACHE_DIR", home("cache")),
                ("RESTIC_COMPRESSION", self.way.level.clone().into()),
            ],
            Kind::Kopia => vec![
                ("KOPIA_PASSWORD", PASSPHRASE.into()),
                ("KOPIA_CONFIG_PATH", home("config")),
                ("KOPIA_CACHE_DIRECTORY", home("cache")),
                ("KOPIA_LOG_DIR", home("log")),
                ("KOPIA_CHECK_FOR_UPDATES", "false".into()),
            ],
            Kind::Borg => vec![
                ("BORG_REPO", home("store")),
                ("BORG_PASSPHRASE", PASSPHRASE.into()),
                ("BORG_BASE_DIR", home("base")),
                ("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes".into()),
                ("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes".into()),
                ("BORG_CHECK_I_KNOW_WHAT_I_AM_DOING", "YES".into()),
            ],
        };
        environment.extend(self.bucket.iter().flat_map(|bucket| bucket.environment()));
        let call = Call {
            program: self.program.clone(),
            arguments: Vec::new(),
            environment,
            folder: self.home.clone(),
        };
        call.args(words)
    }

    /// Returns a call of another program of the same place.
    fn other<I: Into<OsString>>(&self, name: &str, words: impl IntoIterator<Item = I>) -> Call {
        let mut call = self.call(words);
        call.program = self.place.dir.join("bin").join(name);
        call
    }

    /// Makes an empty store in an empty folder.
    pub(super) fn create(&mut self) -> Result<()> {
        workspace::remove(&self.home)?;
        std::fs::create_dir_all(self.store()).at("create", &self.home)?;
        self.serve()?;
        match self.way.kind {
            Kind::Tuff | Kind::Dwarfs => Ok(()),
            Kind::Restic => self.call(["init"]).run().map(drop),
            Kind::Kopia => {
                let create = self.call(["repository", "create"]);
                create.args(self.kopia_location()).run()?;
                // Nothing is forgotten before `prune`.
                let policy = self.call(["policy", "set", "--global", "--compression"]);
                policy.args([&self.way.level]).run()?;
                self.keep(100_000).run().map(drop)
            }
            Kind::Borg => {
                let encryption = ["init", "--encryption", &self.way.encryption];
                self.call(encryption).run().map(drop)
            }
        }
    }

    /// Starts the object store of a store in a bucket.
    fn serve(&mut self) -> Result<()> {
        if self.way.is_in_bucket {
            self.bucket = Some(Rc::new(Bucket::serve(&self.place, &self.store())?));
        }
        Ok(())
    }

    /// Opens a store that exists at its address, which kopia keeps: another one for each start of an object store.
    pub(super) fn open(&mut self) -> Result<()> {
        self.serve()?;
        if self.way.kind == Kind::Kopia {
            let connect = self.call(["repository", "connect"]);
            connect.args(self.kopia_location()).run()?;
        }
        Ok(())
    }

    /// Returns what the program exchanged with its bucket since the last call. None for a directory.
    pub(super) fn take_traffic(&self) -> Option<Traffic> {
        self.bucket.as_ref().map(|bucket| bucket.take())
    }

    fn keep(&self, count: u32) -> Call {
        let zero = ["hourly", "daily", "weekly", "monthly", "annual"];
        let zero = zero.map(|name| format!("--keep-{name}=0"));
        let call = self.call(["policy", "set", "--global"]).args(zero);
        call.args([format!("--keep-latest={count}")])
    }

    /// Copies the program's folder. Returns the program with the copy.
    pub(super) fn copied(&self, home: &Path) -> Result<Backup> {
        workspace::remove(home)?;
        copy(&self.home, home)?;
        let mut copied = Backup {
            home: home.to_owned(),
            ..self.clone()
        };
        copied.open()?;
        Ok(copied)
    }

    /// Returns the commands of a backup, with a number that no other backup of the store has.
    pub(super) fn backup(&self, number: u32) -> Vec<Call> {
        let tree = self.tree.clone();
        let call = match self.way.kind {
            Kind::Tuff => self
                .call(["backup", "--quiet"])
                .args([tree, self.location()]),
            Kind::Restic => self.call(["backup", "--quiet", "--host=lab"]).args([tree]),
            Kind::Kopia => {
                let words = ["snapshot", "create", "--no-progress"];
                self.call(words).args([tree])
            }
            Kind::Borg => {
                let words = ["create", "--compression", &self.way.level];
                let archive = OsString::from(format!("::day-{number:05}"));
                self.call(words).args([archive, tree.into()])
            }
            Kind::Dwarfs => {
                let words = [
                    "--no-progress",
                    "--log-level=error",
                    "--force",
                    &self.way.level,
                ];
                let (input, output) = (OsString::from("-i"), OsString::from("-o"));
                let image = self.store().join("image.dwarfs");
                self.call(words)
                    .args([input, tree.into(), output, image.into()])
            }
        };
        vec![call]
    }

    /// Returns the name of the newest snapshot, for programs that need it.
    pub(super) fn newest(&self) -> Result<String> {
        match self.way.kind {
            Kind::Kopia => {
                let text = self.call(["snapshot", "list", "--all", "--json"]).run()?;
                let list: Vec<serde_json::Value> = serde_json::from_str(&text)
                    .map_err(|e| Error::Command(format!("kopia lists no snapshots: {e}")))?;
                let newest = list.iter().max_by_key(|s| s["startTime"].as_str());
                let id = newest.and_then(|s| s["id"].as_str()).unwrap_or_default();
                Ok(id.to_owned())
            }
            Kind::Borg => {
                let text = self.call(["list", "--short", "--last=1"]).run()?;
                Ok(text.trim().to_owned())
            }
            _ => Ok(String::new()),
        }
    }

    /// Returns the command that restores the snapshot [`Backup::newest`], or a file of it, into an empty folder.
    pub(super) fn restore(&self, newest: &str, target: &Path, file: Option<&Path>) -> Call {
        let full = |file: &Path| self.tree.join(file);
        match self.way.kind {
            Kind::Tuff => {
                let call = self.call(["store", "restore", "--quiet"]);
                call.args([self.location(), target.to_owned()])
                    .args(file.map(full))
            }
            Kind::Restic => {
                let mut snapshot = OsString::from("latest");
                let mut to = target.to_owned();
                let mut include = None;
                if let Some(file) = file {
                    let path = full(file);
                    snapshot.push(":");
                    snapshot.push(path.parent().unwrap_or(&path));
                    to = self.below(target).join(file.parent().unwrap_or(file));
                    let name = path.file_name().unwrap_or_default().display();
                    include = Some(format!("--include=/{name}"));
                }
                let call = self.call(["restore", "--quiet"]).args(include);
                call.args([snapshot, "--target".into(), to.into()])
            }
            Kind::Kopia => {
                let mut object = OsString::from(newest);
                let mut to = target.to_owned();
                if let Some(file) = file {
                    object.push("/");
                    object.push(file);
                    to = target.join(file);
                }
                let call = self.call(["snapshot", "restore", "--no-progress"]);
                call.args([object, to.into()])
            }
            Kind::Borg => {
                let mut call = self.call(["extract", &format!("::{newest}")]);
                call.folder = target.to_owned();
                // Archives have paths without the leading slash.
                let path = file.map(full);
                call.args(path.iter().flat_map(|path| path.strip_prefix("/")))
            }
            Kind::Dwarfs => {
                let words: [OsString; 4] = [
                    "-i".into(),
                    self.store().join("image.dwarfs").into(),
                    "-o".into(),
                    target.into(),
                ];
                let pattern = file.map(|file| format!("--pattern={}", file.display()));
                self.other("dwarfsextract", ["--log-level=error"])
                    .args(words)
                    .args(pattern)
            }
        }
    }

    /// Returns the command that restores all of the snapshot [`Backup::newest`] that is not damaged into an empty folder.
    pub(super) fn salvage(&self, newest: &str, target: &Path) -> Call {
        let call = self.restore(newest, target, None);
        match self.way.kind {
            Kind::Tuff => call.args(["--keep-going"]),
            Kind::Kopia => call.args(["--ignore-errors"]),
            Kind::Restic | Kind::Borg | Kind::Dwarfs => call,
        }
    }

    /// Returns the place of the tree's root below a folder into which it was restored, or at which it is mounted.
    pub(super) fn below(&self, target: &Path) -> PathBuf {
        match self.way.kind {
            Kind::Kopia | Kind::Dwarfs => target.to_owned(),
            _ => target.join(self.tree.strip_prefix("/").unwrap_or(&self.tree)),
        }
    }

    /// Returns the command that mounts the snapshot [`Backup::newest`] by FUSE.
    pub(super) fn mount(&self, newest: &str, point: &Path) -> Call {
        let point = point.to_owned();
        match self.way.kind {
            Kind::Tuff => self.call(["store", "mount"]).args([self.location(), point]),
            Kind::Restic => self.call(["mount"]).args([point]),
            Kind::Kopia => self.call(["mount", newest]).args([point]),
            Kind::Borg => {
                let archive = format!("::{newest}");
                self.call(["mount", "--foreground", &archive]).args([point])
            }
            Kind::Dwarfs => {
                let image = self.store().join("image.dwarfs");
                self.other("dwarfs", [image, point]).args(["-f"])
            }
        }
    }

    /// Returns the command that lets the kernel mount the newest snapshot. None if the program has none.
    pub(super) fn mount_by_kernel(&self, point: &Path) -> Option<Call> {
        let mount = || self.call(["store", "mount", "--kernel"]);
        let paths = [self.location(), point.to_owned()];
        (self.way.kind == Kind::Tuff).then(|| mount().args(paths))
    }

    /// Returns the place of the tree's root in a mount.
    pub(super) fn mounted(&self, point: &Path) -> PathBuf {
        match self.way.kind {
            Kind::Restic => self.below(&point.join("snapshots/latest")),
            _ => self.below(point),
        }
    }

    /// Returns the command that reads and verifies all content of the store.
    pub(super) fn check(&self) -> Call {
        match self.way.kind {
            Kind::Tuff => self
                .call(["store", "check", "--read-data", "100%"])
                .args([self.location()]),
            Kind::Restic => self.call(["check", "--quiet", "--read-data"]),
            Kind::Kopia => self.call(["snapshot", "verify", "--verify-files-percent=100"]),
            Kind::Borg => self.call(["check", "--verify-data"]),
            Kind::Dwarfs => {
                let image = self.store().join("image.dwarfs");
                let check = self.other("dwarfsck", ["--check-integrity", "-i"]);
                check.args([image])
            }
        }
    }

    /// Returns the commands that remove all snapshots but the newest `keep`, and the space of what they alone had. None if the
    /// program has no command for it.
    pub(super) fn prune(&self, keep: u32) -> Option<Vec<Call>> {
        let last = format!("--keep-last={keep}");
        match self.way.kind {
            Kind::Tuff => {
                let forget = self.call(["store", "forget", "--keep-last"]);
                let forget = forget.args([keep.to_string()]).args([self.location()]);
                let prune = self.call(["store", "prune"]).args([self.location()]);
                (self.has("forget") && self.has("prune")).then(|| vec![forget, prune])
            }
            Kind::Restic => Some(vec![self.call(["forget", "--quiet", "--prune", &last])]),
            Kind::Kopia => Some(vec![
                self.keep(keep),
                self.call(["snapshot", "expire", "--all", "--delete"]),
                self.call(["maintenance", "run", "--full", "--safety=none"]),
            ]),
            Kind::Borg => Some(vec![self.call(["prune", &last]), self.call(["compact"])]),
            Kind::Dwarfs => None,
        }
    }

    /// Returns the commands that repair a store in which a file is damaged. None if the program has no command for it.
    pub(super) fn repair(&self, damaged: &Path) -> Option<Vec<Call>> {
        match self.way.kind {
            Kind::Tuff => {
                let repair = || self.call(["store", "repair"]).args([self.location()]);
                self.has("repair").then(|| vec![repair()])
            }
            Kind::Restic => {
                let pack = damaged.file_name().unwrap_or_default().to_owned();
                Some(vec![
                    self.call(["repair", "packs"]).args([pack]),
                    self.call(["repair", "snapshots", "--forget"]),
                ])
            }
            Kind::Borg => Some(vec![self.call(["check", "--repair", "--verify-data"])]),
            Kind::Kopia | Kind::Dwarfs => None,
        }
    }

    /// Removes content of the store from the program's cache, which a check would read in its place.
    pub(super) fn forget_content(&self) -> Result<()> {
        match self.way.kind {
            Kind::Kopia => self.call(["cache", "clear"]).run().map(drop),
            _ => Ok(()),
        }
    }

    /// Removes locks that a killed command left behind.
    pub(super) fn unlock(&self) -> Result<()> {
        match self.way.kind {
            Kind::Restic => self.call(["unlock", "--remove-all"]).run().map(drop),
            Kind::Borg => self.call(["break-lock"]).run().map(drop),
            _ => Ok(()),
        }
    }

    /// Returns true if `tuff store` has a verb.
    fn has(&self, verb: &str) -> bool {
        self.call(["store", verb, "--help"]).run().is_ok()
    }

    /// Returns the lengths of all files of the store, and the space that they take.
    pub(super) fn size(&self) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for path in files(&self.store())? {
            let metadata = path.symlink_metadata().at("stat", &path)?;
            sum.0 += metadata.len();
            sum.1 += metadata.blocks() * 512;
        }
        Ok(sum)
    }

    /// Returns the longest file of the store, the first of equal ones.
    pub(super) fn longest(&self) -> Result<PathBuf> {
        let mut all = Vec::new();
        for path in files(&self.store())? {
            all.push((std::cmp::Reverse(workspace::length(&path)?), path));
        }
        let longest = all.into_iter().min().map(|(_, path)| path);
        longest.ok_or_else(|| Error::Command("the store is empty".to_owned()))
    }
}

/// Returns the paths of all files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let mut stack = vec![folder.to_owned()];
    while let Some(folder) = stack.pop() {
        for entry in std::fs::read_dir(&folder).at("list", &folder)? {
            let path = entry.at("list", &folder)?.path();
            match path.is_dir() {
                true => stack.push(path),
                false => out.push(path),
            }
        }
    }
    Ok(out)
}
