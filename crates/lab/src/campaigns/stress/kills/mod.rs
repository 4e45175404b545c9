//! Campaign that kills every verb that writes, at random moments, and runs it again.
//!
//! ```text
//!  inputs ──► run ──► expected files
//!     └────► run, SIGKILL ──► old or new content under each final name ──► run again ──► the expected files, and no others
//! ```
//!
//! The seed determines the verbs and the moments. What a moment meets depends on the machine.

mod options;
mod snapshot;
mod verbs;

pub use options::{Counts, Options, Row};

use super::program::{self, SealedImage};
use super::rounds::{Campaign, Counts as _, Tally};
use crate::measure::helper;
use crate::measure::workspace::{self, Work};
use crate::{At, Error, Result};
use snapshot::{Content, Snapshot};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;
use tuff_testkit::http::Server;
use tuff_testkit::registry::{self, Registry};
use verbs::{Rule, VERBS, Verb};

/// Size of a block of an image.
const BLOCK: usize = 4096;
/// Smallest file that an extraction gives its name when it is complete.
const LARGE: u64 = 1 << 20;
/// Names of a folder that are not part of its state: temporary files of the host have no final name, and the cache has its own rules.
const NOT_COMPARED: [&str; 1] = ["cache"];

/// Returns the names of the verbs.
pub fn verbs() -> impl Iterator<Item = &'static str> {
    VERBS.iter().map(|verb| &*verb.name)
}

impl Campaign for Options {
    type Counts = Counts;

    fn run(&self, tally: &mut Tally<Counts>) -> Result<()> {
        let common = &self.common;
        let tuff = common.options.need("tuff")?;
        let work = Work::create(common.options.work())?;
        let fixture = Fixture::create(&work, tuff)?;
        let is_chosen = |verb: &&Verb| self.only.is_empty() || self.only.contains(&verb.name);
        let mut subjects = Vec::new();
        for verb in VERBS.iter().filter(is_chosen) {
            subjects.push(Subject::new(&fixture, verb)?);
        }
        if subjects.is_empty() {
            let names: Vec<&str> = verbs().collect();
            let names = names.join("; ");
            return Err(Error::Usage(format!(
                "--only names no verb; verbs are {names}"
            )));
        }
        let place = ("kill", self.kills, &work);
        common.run(place, tally, |seed, folder, counts| {
            // Each verb gets as many kills as any other. A run that ends before its kill is repeated at another moment.
            let subject = &subjects[counts.count() as usize % subjects.len()];
            let outcome = subject.round(&fixture, folder, &mut Rng::new(seed))?;
            counts.record(&subject.verb.name, &outcome);
            Ok(match outcome {
                Round::Wrong(what) => vec![format!("{}: {what}", subject.verb.name)],
                Round::Late | Round::Fine(_) => Vec::new(),
            })
        })
    }
}

/// Result of a kill.
pub(super) enum Round {
    /// The run ended before it was killed.
    Late,
    /// The rules hold. True if the kill left the output complete.
    Fine(bool),
    Wrong(String),
}

/// Inputs of all verbs.
pub(super) struct Fixture {
    folder: PathBuf,
    tuff: PathBuf,
    root_hash: String,
    stored: Arc<Vec<u8>>,
}

impl Fixture {
    fn create(work: &Work, tuff: PathBuf) -> Result<Fixture> {
        let folder = work.path("fixture");
        fs::create_dir(&folder).at("create", &folder)?;
        let fixture = Fixture {
            folder,
            tuff,
            root_hash: String::new(),
            stored: Arc::default(),
        };
        fixture.trees()?;
        for (tree, name) in [("tree", "image.erofs"), ("newer", "newer.erofs")] {
            let (tree, image) = (fixture.path(tree), fixture.path(name));
            let words = ["build", "-q", "-z", "lz4"].map(OsStr::new).into_iter();
            let paths = [tree.as_os_str(), image.as_os_str()];
            helper::output(&fixture.tuff, words.chain(paths))?;
        }
        let at = |name: &str| fixture.path(name);
        fs::copy(at("image.erofs"), at("patched.erofs")).at("copy", &at("image.erofs"))?;
        let (newer, patched) = (at("newer"), at("patched.erofs"));
        let words = ["patch", "-q"].map(OsStr::new).into_iter();
        helper::output(
            &fixture.tuff,
            words.chain([newer.as_os_str(), patched.as_os_str()]),
        )?;
        let options = ["-z", "lz4", "--verity-fec=24"];
        let (tree, sealed) = (at("tree"), at("sealed.erofs"));
        let root_hash = SealedImage::build(&fixture.tuff, &options, &tree, &sealed)?.root;
        fs::copy(at("sealed.erofs"), at("damaged.erofs")).at("copy", &at("sealed.erofs"))?;
        let damaged = at("damaged.erofs");
        let file = File::options()
            .write(true)
            .open(&damaged)
            .at("open", &damaged)?;
        for block in [3, 40, 41, 90] {
            file.write_all_at(&[0xFF; 512], block * BLOCK as u64)
                .at("write", &damaged)?;
        }
        let stored = Arc::new(fs::read(at("image.erofs")).at("read", &at("image.erofs"))?);
        Ok(Fixture {
            root_hash,
            stored,
            ..fixture
        })
    }

    /// Creates two trees: files of all sizes, one of them large enough to be written under a temporary name.
    fn trees(&self) -> Result<()> {
        let mut rng = Rng::new(1);
        for (tree, changed) in [("tree", 0), ("newer", 1)] {
            let folder = self.path(tree).join("usr/share");
            fs::create_dir_all(&folder).at("create", &folder)?;
            for number in 0..48_u64 {
                let path = folder.join(format!("file{number}"));
                let length = match number {
                    0 => 1_200_000,
                    _ => number as usize * 577,
                };
                // Every fourth file differs between the trees.
                let seed = if number % 4 == 0 {
                    number + 1000 * changed
                } else {
                    number
                };
                let mut content = helper::noise(&mut Rng::new(seed), length / 4);
                content.resize(length, b'x');
                fs::write(&path, content).at("write", &path)?;
            }
            let link = folder.join(format!("link{}", rng.below(10)));
            std::os::unix::fs::symlink("file1", &link).at("create", &link)?;
            // Directories whose time is that of the run would give other bytes.
            for path in ["usr/share", "usr", ""] {
                let path = self.path(tree).join(path);
                let file = File::open(&path).at("open", &path)?;
                file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
                    .at("set the time of", &path)?;
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Replaces a word that stands for a file of the fixture.
    fn fill(&self, word: &str, host: &str) -> String {
        let at = |name: &str| self.path(name).to_string_lossy().into_owned();
        match word {
            "TREE" => at("tree"),
            "NEWER" => at("newer"),
            "IMAGE" => at("image.erofs"),
            "SEALED" => at("sealed.erofs"),
            "ROOT" => self.root_hash.clone(),
            word => word.replace("HOST", host),
        }
    }
}

/// Verb with its expected results.
struct Subject {
    verb: &'static Verb,
    old: Snapshot,
    new: Snapshot,
    manifest: Option<serde_json::Value>,
    /// Time of a run that is not killed.
    time: Duration,
}

/// Registry of a round, and the folder in which the verb runs.
struct Place<'a> {
    fixture: &'a Fixture,
    folder: &'a Path,
    registry: Arc<Registry>,
    server: Server,
}

impl Subject {
    /// Runs a verb without a kill.
    fn new(fixture: &Fixture, verb: &'static Verb) -> Result<Subject> {
        let folder = fixture.folder.with_file_name("whole");
        let place = Place::prepare(fixture, &folder, verb)?;
        let old = snapshot::read(&folder, &NOT_COMPARED)?;
        let begin = Instant::now();
        let ended = place.run(verb, "", None)?;
        let time = begin.elapsed().max(Duration::from_millis(1));
        if let Ended::Failed(reason) = ended {
            return Err(Error::Command(format!("{}: {reason}", verb.name)));
        }
        Ok(Subject {
            verb,
            old,
            new: snapshot::read(&folder, &NOT_COMPARED)?,
            manifest: place.registry.manifest("app", "new"),
            time,
        })
    }

    fn round(&self, fixture: &Fixture, folder: &Path, rng: &mut Rng) -> Result<Round> {
        let verb = self.verb;
        let place = Place::prepare(fixture, folder, verb)?;
        let micros = self.time.as_micros() as usize;
        // Half of the moments are near the end, where names change.
        let moment = match rng.below(2) {
            0 => rng.below(micros),
            _ => micros * 3 / 4 + rng.below(micros / 3),
        };
        let killed = place.run(verb, "", Some(Duration::from_micros(moment as u64)))?;
        match killed {
            Ended::Killed => {}
            Ended::Whole => return Ok(Round::Late),
            Ended::Failed(reason) => {
                return Ok(Round::Wrong(format!("before the kill: {reason}")));
            }
        }
        let left = snapshot::read(folder, &NOT_COMPARED)?;
        if let Some(wrong) = self.judge(&place, &left)? {
            return Ok(Round::Wrong(format!("killed after {moment} µs: {wrong}")));
        }
        let is_complete = self
            .new
            .iter()
            .all(|(path, content)| left.get(path) == Some(content));
        let is_output = |path: &&PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"o");
        let is_there = left.keys().any(|path| is_output(&path)) || verb.rule == Rule::SameTree;
        let again = if is_there { &*verb.again } else { "" };
        if let Ended::Failed(reason) = place.run(verb, again, None)? {
            return Ok(Round::Wrong(format!(
                "killed after {moment} µs, the next run fails: {reason}"
            )));
        }
        let found = snapshot::read(folder, &NOT_COMPARED)?;
        if let Some(wrong) = snapshot::difference(&found, &self.new) {
            return Ok(Round::Wrong(format!(
                "killed after {moment} µs, after the next run: {wrong}"
            )));
        }
        if self.verb.rule == Rule::Pushed && place.registry.manifest("app", "new") != self.manifest
        {
            return Ok(Round::Wrong(format!(
                "killed after {moment} µs, after the next run: another manifest"
            )));
        }
        Ok(Round::Fine(is_complete))
    }

    /// Returns what a kill left that the rule of the verb forbids.
    fn judge(&self, place: &Place<'_>, left: &Snapshot) -> Result<Option<String>> {
        for path in self.old.keys().chain(self.new.keys()) {
            let states = [&self.old, &self.new].map(|state| state.get(path));
            let found = left.get(path);
            let is_small = |content: Option<&Content>| match content {
                Some(Content::File(length, _)) => *length < LARGE,
                _ => true,
            };
            let is_allowed = match self.verb.rule {
                Rule::OldOrNew | Rule::WholeOrNone | Rule::Pushed => false,
                Rule::LargeOldOrNew => states.iter().all(|state| is_small(*state)),
                Rule::SameTree | Rule::BlocksOldOrNew => true,
            };
            if !is_allowed && !states.contains(&found) {
                return Ok(Some(format!(
                    "{}: found {found:?}, expected one of {states:?}",
                    path.display()
                )));
            }
        }
        match self.verb.rule {
            Rule::SameTree => place.same_tree(),
            Rule::BlocksOldOrNew => place.blocks(),
            Rule::Pushed => Ok(place.pushed(self.manifest.as_ref())),
            Rule::WholeOrNone => {
                let is_there = left.contains_key(Path::new("o"));
                let missing = self.new.keys().find(|path| !left.contains_key(*path));
                let missing = missing.filter(|_| is_there);
                Ok(missing.map(|path| format!("{} is missing", path.display())))
            }
            Rule::OldOrNew | Rule::LargeOldOrNew => Ok(None),
        }
    }
}

/// End of a run.
enum Ended {
    Killed,
    Whole,
    Failed(String),
}

impl<'a> Place<'a> {
    /// Creates the folder of a run with its inputs.
    fn prepare(fixture: &'a Fixture, folder: &'a Path, verb: &Verb) -> Result<Place<'a>> {
        workspace::remove(folder)?;
        let temporary = folder.join("tmp");
        fs::create_dir_all(&temporary).at("create", &temporary)?;
        for (name, file) in verb.files.iter().filter_map(|f| f.split_once('=')) {
            copy(&fixture.path(file), &folder.join(name))?;
        }
        let registry = Arc::new(Registry::default());
        let blob = registry::digest(&fixture.stored);
        registry.add_blob("app", b"{}".to_vec());
        registry.add_blob("app", fixture.stored.to_vec());
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.empty.v1+json", "digest": registry::digest(b"{}"), "size": 2
            },
            "layers": [{
                "mediaType": "application/vnd.erofs", "digest": blob, "size": fixture.stored.len()
            }],
        });
        let media = "application/vnd.oci.image.manifest.v1+json";
        registry.add_manifest("app", "stored", media, manifest.to_string().as_bytes());
        let answers = Arc::clone(&registry);
        Ok(Place {
            fixture,
            folder,
            registry,
            server: Server::start(move |request| answers.answer(request)),
        })
    }

    /// Runs the verb, and kills it after a time.
    fn run(&self, verb: &Verb, again: &str, kill: Option<Duration>) -> Result<Ended> {
        let host = self.server.host();
        let words = verb.arguments.split(' ').chain(again.split(' '));
        let words = words.filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(|word| self.fixture.fill(word, &host)).collect();
        let ran = program::run(&self.fixture.tuff, self.folder, &words, || kill)?;
        Ok(match ran.status {
            Some(status) if status.success() => Ended::Whole,
            _ if ran.is_killed() && kill.is_some() => Ended::Killed,
            Some(status) => Ended::Failed(format!("{status}: {}", ran.message())),
            None => Ended::Failed("it does not end".to_owned()),
        })
    }

    /// Compares the tree of the image with the one before.
    fn same_tree(&self) -> Result<Option<String>> {
        let tar = |image: &Path| {
            let words = [OsStr::new("tar"), image.as_os_str(), OsStr::new("-")];
            let output = Command::new(&self.fixture.tuff).args(words).output();
            output.at("run", &self.fixture.tuff)
        };
        let (found, expected) = (
            tar(&self.folder.join("o.erofs"))?,
            tar(&self.fixture.path("image.erofs"))?,
        );
        let is_same = found.status.success() && found.stdout == expected.stdout;
        Ok((!is_same).then(|| {
            let message = String::from_utf8_lossy(&found.stderr);
            format!("the image shows another tree: {}", message.trim())
        }))
    }

    /// Compares the blocks of the image with those of the damaged and of the whole one.
    fn blocks(&self) -> Result<Option<String>> {
        let read = |path: &Path| fs::read(path).at("read", path);
        let found = read(&self.folder.join("o.erofs"))?;
        let (old, new) = (
            read(&self.fixture.path("damaged.erofs"))?,
            read(&self.fixture.path("sealed.erofs"))?,
        );
        if found.len() != old.len() {
            return Ok(Some(format!(
                "the image has {} bytes, not {}",
                found.len(),
                old.len()
            )));
        }
        let blocks = found
            .chunks(BLOCK)
            .zip(old.chunks(BLOCK).zip(new.chunks(BLOCK)));
        let wrong = blocks
            .enumerate()
            .find(|(_, (found, (old, new)))| found != old && found != new);
        Ok(wrong.map(|(block, _)| format!("block {block} is neither old nor new")))
    }

    /// Returns what the registry has under the tag that is not complete.
    fn pushed(&self, expected: Option<&serde_json::Value>) -> Option<String> {
        let manifest = self.registry.manifest("app", "new")?;
        if Some(&manifest) != expected {
            return Some(format!("another manifest: {manifest}"));
        }
        let layers = manifest["layers"].as_array().into_iter().flatten();
        // An index names no configuration.
        let config = Some(&manifest["config"]).filter(|config| !config.is_null());
        let mut blobs = layers.chain(config);
        let missing = blobs.find(|blob| {
            let digest = blob["digest"].as_str().unwrap_or_default();
            let content = self.registry.blob("app", digest);
            content.is_none_or(|content| registry::digest(&content) != digest)
        })?;
        Some(format!("the manifest names a missing blob: {missing}"))
    }
}

/// Copies a file, or a directory with its files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).at("copy", from).map(|_| ());
    }
    fs::create_dir(to).at("create", to)?;
    for entry in fs::read_dir(from).at("list", from)? {
        let name = entry.at("list", from)?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

impl Counts {
    fn record(&mut self, verb: &'static str, outcome: &Round) {
        let row = self.verbs.entry(verb).or_default();
        match outcome {
            Round::Late => row.late += 1,
            Round::Fine(is_complete) => {
                row.kills += 1;
                row.complete += u64::from(*is_complete);
            }
            Round::Wrong(_) => {
                row.kills += 1;
                row.wrong += 1;
            }
        }
    }
}
