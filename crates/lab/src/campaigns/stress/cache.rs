//! Campaign of attacks on the cache directory of remote images.
//!
//! ```text
//!  honest run ──► cache ──► attack: planted, foreign, poisoned, damaged, or exchanged during the run ──► run
//!                                                     right bytes or an error; files outside of the cache are as before
//! ```
//!
//! The seed determines image, attack and verb.

use super::program::{self, Ran, SealedImage};
use super::rounds::{self, Campaign, Tally};
use crate::measure::helper;
use crate::measure::workspace::Work;
use crate::{At, Error, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Server};

/// Attack the cache directory of remote images, and read through it
///
/// Attacks are planted links and special files, foreign owners and modes, poisoned and damaged files, and files that are exchanged
/// during a run. Each run gives the right bytes or an error, and changes nothing outside of the cache. On a finding, keeps the
/// folder and exits with 1. Attacks by other users need root.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of attacks on cache directories
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub rounds: u64,
    /// Folder, seed, time and programs.
    #[command(flatten)]
    pub common: rounds::Options,
}

/// Counters of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Attacks, and those after which the run succeeded, by the name of the attack.
    pub attacks: BTreeMap<&'static str, (u64, u64)>,
}

impl rounds::Counts for Counts {
    const UNIT: &'static str = "attacks";

    fn count(&self) -> u64 {
        self.attacks.values().map(|(rounds, _)| rounds).sum()
    }
}

/// Attack on the files of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// A file is a symbolic link to a file outside.
    Link,
    /// The directory is a symbolic link to another directory.
    LinkedDirectory,
    /// Other users may write to the directory, and one has poisoned a file.
    WritableByOthers,
    /// The directory belongs to another user, who has poisoned a file or planted links.
    ForeignDirectory,
    /// A file belongs to another user.
    ForeignFile,
    /// Bytes of a file are changed.
    Poisoned,
    /// A file is shorter or longer.
    Length,
    /// A file is a directory, a FIFO or missing.
    Kind,
    /// A file is exchanged for a link and other bytes again and again during the run.
    Exchanged,
    /// The directory is exchanged for a link to another one during the run.
    ExchangedDirectory,
}

const ATTACKS: [(Attack, &str); 10] = [
    (Attack::Link, "planted link"),
    (Attack::LinkedDirectory, "linked directory"),
    (Attack::WritableByOthers, "directory writable by others"),
    (Attack::ForeignDirectory, "directory of another user"),
    (Attack::ForeignFile, "file of another user"),
    (Attack::Poisoned, "poisoned file"),
    (Attack::Length, "other length"),
    (Attack::Kind, "other type, or missing"),
    (Attack::Exchanged, "exchanged file"),
    (Attack::ExchangedDirectory, "exchanged directory"),
];

/// User and group of attacks: nobody and nogroup in Debian.
const OTHER: u32 = 65534;
/// Content of the file outside of the cache.
const VICTIM: &[u8] = b"not yours\n";

impl Campaign for Options {
    type Counts = Counts;

    fn run(&self, tally: &mut Tally<Counts>) -> Result<()> {
        let common = &self.common;
        let tuff = common.options.need("tuff")?;
        let work = Work::create(common.options.work())?;
        let fixture = Fixture::create(&work, tuff)?;
        let is_root = rustix::process::geteuid().is_root();
        let place = ("cache", self.rounds, &work);
        common.run(place, tally, |seed, folder, counts| {
            let mut rng = Rng::new(seed);
            let (attack, name) = ATTACKS[rng.below(ATTACKS.len())];
            let is_foreign = matches!(attack, Attack::ForeignDirectory | Attack::ForeignFile);
            if is_foreign && !is_root {
                return Ok(Vec::new());
            }
            let (is_success, wrong) = fixture.round(folder, attack, &mut rng)?;
            let row = counts.attacks.entry(name).or_default();
            row.0 += 1;
            row.1 += u64::from(is_success);
            Ok(wrong
                .map(|wrong| format!("{name}: {wrong}"))
                .into_iter()
                .collect())
        })
    }
}

/// Image on a server, and its expected content.
struct Fixture {
    tuff: PathBuf,
    server: Server,
    image: SealedImage,
    /// Content of the file `data` in the image.
    data: Vec<u8>,
}

impl Fixture {
    fn create(work: &Work, tuff: PathBuf) -> Result<Fixture> {
        let tree = work.path("tree");
        fs::create_dir(&tree).at("create", &tree)?;
        let data = helper::noise(&mut Rng::new(1), 700_001);
        fs::write(tree.join("data"), &data).at("write", &tree)?;
        fs::write(tree.join("small"), b"small\n").at("write", &tree)?;
        let path = work.path("image");
        let image = SealedImage::build(&tuff, &[], &tree, &path)?;
        let served = image.bytes.clone();
        Ok(Fixture {
            tuff,
            server: Server::start(move |request| Answer::object(request, &served, "\"1\"")),
            image,
            data,
        })
    }

    /// Makes an attack and reads. Returns whether the run succeeded, and the violation of a rule.
    fn round(
        &self,
        folder: &Path,
        attack: Attack,
        rng: &mut Rng,
    ) -> Result<(bool, Option<String>)> {
        let outside = folder.join("outside");
        let cache = folder.join("cache/tuff");
        fs::create_dir(&outside).at("create", &outside)?;
        let victim = outside.join("victim");
        fs::write(&victim, VICTIM).at("write", &victim)?;
        let url = self.server.url("/image");
        let mut verb = match rng.below(4) {
            0 => vec!["cat", &url, "data"],
            1 => vec!["cat", &url, "small"],
            2 => vec!["pull", "-q", "--force", &url, "pulled"],
            _ => vec!["check", "-q", &url],
        };
        if rng.below(2) == 0 {
            verb.extend(["--root-hash", &self.image.root]);
        }
        // The warm cache has all files, whose names the attack needs.
        let warm = program::run(&self.tuff, folder, &["check", "-q", &url], || None)?;
        let warm_verified = ["check", "-q", &url, "--root-hash", &self.image.root];
        let verified = program::run(&self.tuff, folder, &warm_verified, || None)?;
        if !warm.is_success() || !verified.is_success() {
            return Err(Error::Command(format!(
                "the honest run fails: {}{}",
                warm.message(),
                verified.message()
            )));
        }
        let plan = Plan {
            cache: &cache,
            outside: &outside,
            victim: &victim,
        };
        plan.prepare(attack, rng)?;
        let stopped = AtomicBool::new(false);
        let seed = rng.draw();
        let ran = std::thread::scope(|scope| {
            let racing = || {
                if matches!(attack, Attack::Exchanged | Attack::ExchangedDirectory) {
                    scope.spawn(|| plan.exchange(attack, &mut Rng::new(seed), &stopped));
                }
                None
            };
            let ran = program::run(&self.tuff, folder, &verb, racing);
            stopped.store(true, Ordering::Relaxed);
            ran
        })?;
        let wrong = ran.fault().or_else(|| self.judge(&ran, &verb, folder));
        let wrong = wrong.or(plan.victims(attack)?);
        let wrong = wrong.map(|wrong| {
            format!(
                "{attack:?}, tuff {}: {wrong}",
                verb.join(" ").replace(&url, "URL")
            )
        });
        Ok((ran.is_success(), wrong))
    }

    /// Compares the output of a successful run.
    fn judge(&self, ran: &Ran, verb: &[&str], folder: &Path) -> Option<String> {
        if !ran.is_success() {
            return ran
                .errors
                .is_empty()
                .then(|| "an error without a word".to_owned());
        }
        let is_right = match verb {
            ["cat", _, "data", ..] => ran.output == self.data,
            ["cat", ..] => ran.output == b"small\n",
            ["pull", ..] => {
                fs::read(folder.join("pulled")).is_ok_and(|bytes| bytes == self.image.bytes)
            }
            _ => true,
        };
        (!is_right).then(|| "wrong bytes, exit code 0".to_owned())
    }
}

/// Places of an attack.
struct Plan<'a> {
    cache: &'a Path,
    /// Directory outside of the cache.
    outside: &'a Path,
    /// File in that directory.
    victim: &'a Path,
}

impl Plan<'_> {
    /// Returns a file of the cache.
    fn file(&self, rng: &mut Rng) -> Result<PathBuf> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.cache).at("list", self.cache)? {
            files.push(entry.at("list", self.cache)?.path());
        }
        files.sort();
        match files.len() {
            0 => Err(Error::Command("the cache has no files".to_owned())),
            count => Ok(files.swap_remove(rng.below(count))),
        }
    }

    /// Changes the cache before the run.
    fn prepare(&self, attack: Attack, rng: &mut Rng) -> Result<()> {
        let cache = self.cache;
        let path = self.file(rng)?;
        let own = |path: &Path| chown(path, Some(OTHER), Some(OTHER)).at("give away", path);
        match attack {
            Attack::Link => self.plant(&path)?,
            Attack::LinkedDirectory => {
                let moved = self.outside.join("moved");
                fs::rename(cache, &moved).at("move", cache)?;
                symlink(&moved, cache).at("link", cache)?;
                fs::set_permissions(&moved, Permissions::from_mode(0o777)).at("change", &moved)?;
            }
            Attack::WritableByOthers => {
                let mode = [0o777, 0o1777, 0o770, 0o722][rng.below(4)];
                fs::set_permissions(cache, Permissions::from_mode(mode)).at("change", cache)?;
                match rng.below(2) {
                    0 => self.poison(&path, rng)?,
                    _ => self.plant(&path)?,
                }
            }
            Attack::ForeignDirectory => {
                match rng.below(3) {
                    0 => self.poison(&path, rng)?,
                    1 => self.plant(&path)?,
                    _ => {
                        fs::remove_file(&path).at("remove", &path)?;
                        fs::hard_link(self.victim, &path).at("link", &path)?;
                    }
                }
                own(cache)?;
            }
            Attack::ForeignFile => {
                self.poison(&path, rng)?;
                own(&path)?;
            }
            Attack::Poisoned => self.poison(&path, rng)?,
            Attack::Length => {
                let file = File::options().write(true).open(&path).at("open", &path)?;
                let length = file.metadata().at("stat", &path)?.len();
                let length = match rng.below(3) {
                    0 => 0,
                    1 => rng.below_u64(length + 1),
                    _ => length + rng.below_u64(1 << 20),
                };
                file.set_len(length).at("change", &path)?;
            }
            Attack::Kind => {
                fs::remove_file(&path).at("remove", &path)?;
                match rng.below(3) {
                    0 => fs::create_dir(&path).at("create", &path)?,
                    1 => {
                        let mode = Mode::from_raw_mode(0o600);
                        mknodat(CWD, &path, FileType::Fifo, mode, 0).at("create", &path)?;
                    }
                    _ => {}
                }
            }
            Attack::Exchanged | Attack::ExchangedDirectory => {}
        }
        Ok(())
    }

    /// Replaces a file by a link to the file outside.
    fn plant(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).at("remove", path)?;
        symlink(self.victim, path).at("link", path)
    }

    /// Changes some bytes of a file.
    fn poison(&self, path: &Path, rng: &mut Rng) -> Result<()> {
        let file = File::options().write(true).open(path).at("open", path)?;
        let length = file.metadata().at("stat", path)?.len();
        for _ in 0..1 + rng.below(64) {
            let bytes = rng.draw().to_le_bytes();
            file.write_all_at(&bytes, rng.below_u64(length))
                .at("write", path)?;
        }
        Ok(())
    }

    /// Exchanges a file or the directory until `stopped`. A step may fail, because the program replaces files, too.
    fn exchange(&self, attack: Attack, rng: &mut Rng, stopped: &AtomicBool) {
        let moved_away = self.outside.join("aside");
        while !stopped.load(Ordering::Relaxed) {
            let Ok(path) = (match attack {
                Attack::Exchanged => self.file(rng),
                _ => Ok(self.cache.to_owned()),
            }) else {
                continue;
            };
            if fs::rename(&path, &moved_away).is_ok() {
                let target = match attack {
                    Attack::Exchanged => self.victim,
                    _ => self.outside,
                };
                let _ = symlink(target, &path);
                std::thread::sleep(Duration::from_micros(rng.below_u64(300)));
                let _ = fs::remove_file(&path);
                let _ = fs::rename(&moved_away, &path);
            }
            std::thread::sleep(Duration::from_micros(rng.below_u64(300)));
        }
    }

    /// Returns what changed outside of the cache.
    fn victims(&self, attack: Attack) -> Result<Option<String>> {
        let found = fs::read(self.victim).at("read", self.victim)?;
        if found != VICTIM {
            return Ok(Some(format!(
                "a file outside of the cache has {} other bytes",
                found.len()
            )));
        }
        // The directory may be a link of the same user's when it is opened.
        if attack == Attack::ExchangedDirectory {
            return Ok(None);
        }
        let expected: &[&str] = match attack {
            Attack::LinkedDirectory => &["moved", "victim"],
            // A step of the exchange may be left over.
            Attack::Exchanged => &["aside", "victim"],
            _ => &["victim"],
        };
        for entry in fs::read_dir(self.outside).at("list", self.outside)? {
            let name = entry.at("list", self.outside)?.file_name();
            if !expected.iter().any(|expected| name == *expected) {
                return Ok(Some(format!(
                    "new outside of the cache: {}",
                    name.display()
                )));
            }
        }
        Ok(None)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| attack | rounds | right bytes | refused |")?;
        writeln!(f, "|---|--:|--:|--:|")?;
        for (name, (rounds, fine)) in &self.attacks {
            writeln!(f, "| {name} | {rounds} | {fine} | {} |", rounds - fine)?;
        }
        Ok(())
    }
}
