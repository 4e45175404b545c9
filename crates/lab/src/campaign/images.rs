//! Images of random trees at random settings, before several judges.
//!
//! ```text
//!  seed ──► tree ──► settings ──► image ──► the same bytes by other threads
//!                                   │  └──► tuff check, tuff extract, tuff mount, the kernel, fsck.erofs
//!                                   └──► the tree changes: a patch of it, or another image over it ──► the same judges
//! ```
//!
//! A judge reads the image by its own means, and what it gives is walked and compared with the tree facet by facet. A case is
//! made again by its seed alone.

mod plant;
mod settings;

use crate::engine::is_program;
use crate::verify::mount::Mount;
use crate::verify::tree::Tree;
use crate::{Error, Result, stop};
use plant::Gardener;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tuff_iplfs::crash::Rng;

/// A tool that takes longer hangs. Unit: seconds.
const PATIENCE: &str = "300";

/// How much, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fixes every case.
    pub seed: u64,
    /// Cases; without a number as many as there is time for.
    pub cases: Option<u64>,
    /// No case begins later.
    pub time: Option<Duration>,
    /// The program under test.
    pub tuff: PathBuf,
    /// Another judge, 1.9 or newer.
    pub fsck: Option<PathBuf>,
}

/// Who judges an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// A build on another number of threads.
    Threads,
    /// A build from the image in place of the tree.
    Source,
    /// `tuff check`.
    Check,
    /// `tuff extract`.
    Extract,
    /// `tuff mount`.
    Fuse,
    /// The running kernel.
    Kernel,
    /// `fsck.erofs`.
    Fsck,
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judge::Threads => "other threads",
            Judge::Source => "a build from the image",
            Judge::Check => "tuff check",
            Judge::Extract => "tuff extract",
            Judge::Fuse => "tuff mount",
            Judge::Kernel => "the kernel",
            Judge::Fsck => "fsck.erofs",
        })
    }
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cases begun.
    pub cases: u64,
    /// Images made, those of changed trees included.
    pub images: u64,
    /// Settings that were refused as wrong usage.
    pub refused: u64,
    /// Images that each judge saw.
    pub judged: BTreeMap<Judge, u64>,
    /// Why a judge did not see an image, and how often.
    pub skipped: BTreeMap<String, u64>,
    /// Whatever is wrong.
    pub findings: Vec<Finding>,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The case's own seed.
    pub seed: u64,
    /// Command lines, in the folder that is left.
    pub commands: Vec<String>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        for command in &self.commands {
            writeln!(f, "  {command}")?;
        }
        Ok(())
    }
}

/// Runs the campaign; the folders of cases with findings stay in `out`. `tell` hears of each case.
pub fn run(options: &Options, out: &Path, tell: &mut dyn FnMut(&Tally)) -> Result<Tally> {
    fs::create_dir_all(out).map_err(|e| Error::io("make", out, e))?;
    let out = out.canonicalize().map_err(|e| Error::io("find", out, e))?;
    let mut tally = Tally::default();
    let start = Instant::now();
    let over = |cases: u64| {
        options.cases.is_some_and(|most| cases >= most)
            || options.time.is_some_and(|most| start.elapsed() >= most)
    };
    while !over(tally.cases) {
        let seed = options.seed + tally.cases;
        tally.cases += 1;
        let folder = out.join(format!("case-{seed}"));
        clear(&folder)?;
        fs::create_dir(&folder).map_err(|e| Error::io("make", &folder, e))?;
        let mut case = Case {
            options,
            folder: &folder,
            tally: &mut tally,
            commands: Vec::new(),
        };
        match case.run(&mut Rng::new(seed)) {
            Ok(()) => clear(&folder)?,
            Err(Failure::Found(what)) => {
                let commands = case.commands;
                tally.findings.push(Finding {
                    seed,
                    commands,
                    what,
                });
            }
            Err(Failure::Lab(e)) => {
                clear(&folder)?;
                return Err(e);
            }
        }
        tell(&tally);
    }
    Ok(tally)
}

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", folder, e)),
        _ => Ok(()),
    }
}

/// Why a case ends early.
enum Failure {
    Found(String),
    Lab(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Lab(e)
    }
}

type Outcome<T = ()> = std::result::Result<T, Failure>;

/// One tree and its images, in a folder of its own.
struct Case<'a> {
    options: &'a Options,
    folder: &'a Path,
    tally: &'a mut Tally,
    commands: Vec<String>,
}

impl Case<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn run(&mut self, rng: &mut Rng) -> Outcome {
        let root = self.path("tree");
        fs::create_dir(&root).map_err(|e| Error::io("make", &root, e))?;
        let settings = settings::draw(rng);
        let next = match rng.below(2) {
            0 => settings.clone(),
            _ => settings::draw(rng),
        };
        let [updates, patches, copies] = std::array::from_fn(|_| rng.below(2) == 0);
        let mut gardener = Gardener::new(rng, &root);
        gardener.plant()?;
        // Holes that an image does not keep are none for what is made of it.
        let copies = copies && !gardener.is_sparse();
        if !self.build(&settings, "image")? {
            return Ok(());
        }
        if copies {
            self.copy(&settings)?;
        }
        self.judge("image", None)?;
        if !updates {
            return Ok(());
        }
        gardener.change()?;
        if patches {
            let (from, to) = (self.path("image"), self.path("patched"));
            fs::copy(&from, &to).map_err(|e| Error::io("copy", &from, e))?;
            // The image's settings stay, or others come on top.
            let others = if next == settings { Vec::new() } else { next };
            let (head, tail) = (words(&["patch", "--quiet"]), words(&["tree", "patched"]));
            if self.made(&[head, others, tail].concat())? {
                self.judge("patched", None)?;
            }
        } else {
            let over = [next, words(&["--base=image"])].concat();
            if self.build(&over, "over")? {
                self.judge("over", Some("image"))?;
            }
        }
        Ok(())
    }

    /// Builds an image twice. False if the settings are refused.
    fn build(&mut self, settings: &[String], image: &str) -> Outcome<bool> {
        let line = |threads: &str, image: &str| {
            let head = words(&["build", "--quiet", threads]);
            [head, settings.to_vec(), words(&["tree", image])].concat()
        };
        if !self.made(&line("--threads=1", image))? {
            return Ok(false);
        }
        if !self.made(&line("--threads=5", "again"))? {
            return Err(Failure::Found("more threads were refused".to_owned()));
        }
        self.saw(Judge::Threads);
        self.same(image, "again")?;
        Ok(true)
    }

    /// Builds the image from itself.
    fn copy(&mut self, settings: &[String]) -> Outcome {
        let head = words(&["build", "--quiet"]);
        let line = [head, settings.to_vec(), words(&["image", "again"])].concat();
        if !self.made(&line)? {
            return Err(Failure::Found(
                "an image as the source was refused".to_owned(),
            ));
        }
        self.saw(Judge::Source);
        self.same("image", "again")
    }

    fn same(&self, one: &str, other: &str) -> Outcome {
        let read = |path: PathBuf| fs::read(&path).map_err(|e| Error::io("read", &path, e));
        match read(self.path(one))? == read(self.path(other))? {
            true => Ok(()),
            false => Err(Failure::Found(format!(
                "{other} has other bytes than {one}"
            ))),
        }
    }

    /// Makes an image. False if that is refused as wrong usage; every other failure is a finding.
    fn made(&mut self, arguments: &[String]) -> Outcome<bool> {
        let output = self.tuff(arguments)?;
        match output.status.code() {
            Some(0) => {
                self.tally.images += 1;
                Ok(true)
            }
            Some(2) => {
                self.tally.refused += 1;
                Ok(false)
            }
            _ => Err(failed("tuff", &output)),
        }
    }

    fn tuff(&mut self, arguments: &[String]) -> Result<Output> {
        let tuff = self.options.tuff.clone();
        self.command(&tuff, arguments)
    }

    /// Runs a program in the case's folder.
    fn command(&mut self, program: &Path, arguments: &[String]) -> Result<Output> {
        stop::check()?;
        let name = program.file_name().unwrap_or(program.as_os_str());
        let line = [&[name.to_string_lossy().into_owned()], arguments].concat();
        self.commands.push(line.join(" "));
        Command::new("timeout")
            .arg(PATIENCE)
            .arg(program)
            .args(arguments)
            .current_dir(self.folder)
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .output()
            .map_err(|e| Error::io("run", Path::new("timeout"), e))
    }

    fn saw(&mut self, judge: Judge) {
        *self.tally.judged.entry(judge).or_default() += 1;
    }

    fn skip(&mut self, judge: Judge, why: &str) {
        let why = format!("{judge}: {why}");
        *self.tally.skipped.entry(why).or_default() += 1;
    }

    /// Has all judges look at an image, with the one that it is over.
    fn judge(&mut self, image: &str, base: Option<&str>) -> Outcome {
        let device: Vec<String> = base.iter().map(|base| format!("--device={base}")).collect();
        let with = |line: &[&str]| [words(line), device.clone()].concat();
        let source = Tree::read(&self.path("tree"))?;

        let output = self.tuff(&with(&["check", "--quiet", image]))?;
        self.saw(Judge::Check);
        if !output.status.success() {
            return Err(failed("tuff check", &output));
        }

        let target = self.path("target");
        clear(&target)?;
        let output = self.tuff(&with(&["extract", "--quiet", image, "target"]))?;
        self.saw(Judge::Extract);
        if !output.status.success() {
            return Err(failed("tuff extract", &output));
        }
        compare(&source, &target, Judge::Extract)?;

        self.by_fuse(&source, &with(&["mount", image, "mnt"]))?;
        self.by_kernel(&source, image, base)?;
        self.by_fsck(&with(&[image]))
    }

    fn by_fuse(&mut self, source: &Tree, mount: &[String]) -> Outcome {
        if !Path::new("/dev/fuse").exists() {
            self.skip(Judge::Fuse, "there is no /dev/fuse");
            return Ok(());
        }
        let point = self.path("mnt");
        fs::create_dir_all(&point).map_err(|e| Error::io("make", &point, e))?;
        let output = self.tuff(mount)?;
        if !output.status.success() {
            return Err(failed("tuff mount", &output));
        }
        self.saw(Judge::Fuse);
        let same = compare(source, &point, Judge::Fuse);
        let output = self.tuff(&words(&["umount", "mnt"]))?;
        same?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed("tuff umount", &output)),
        }
    }

    fn by_kernel(&mut self, source: &Tree, image: &str, base: Option<&str>) -> Outcome {
        if !rustix::process::geteuid().is_root() {
            self.skip(Judge::Kernel, "only root mounts");
            return Ok(());
        }
        let base = base.map(|base| self.path(base));
        match Mount::erofs(&self.path(image), base.as_deref(), &self.path("mnt")) {
            Ok(mount) => {
                self.saw(Judge::Kernel);
                compare(source, mount.point(), Judge::Kernel)
            }
            Err(why) if why.unable => {
                self.skip(Judge::Kernel, &why.text);
                Ok(())
            }
            Err(why) => Err(Failure::Found(format!(
                "the kernel does not mount it: {}",
                why.text
            ))),
        }
    }

    fn by_fsck(&mut self, arguments: &[String]) -> Outcome {
        let Some(fsck) = self.options.fsck.clone() else {
            self.skip(Judge::Fsck, "not given");
            return Ok(());
        };
        if !is_program(&fsck) {
            let text = format!("{} is no program", fsck.display());
            return Err(Error::Usage(text).into());
        }
        let output = self.command(&fsck, arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("unsupported") || said.contains("not supported") {
            self.skip(Judge::Fsck, "it does not know the features");
            return Ok(());
        }
        self.saw(Judge::Fsck);
        match output.status.success() {
            true => Ok(()),
            false => Err(failed("fsck.erofs", &output)),
        }
    }
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// What a program said that should have ended well.
fn failed(what: &str, output: &Output) -> Failure {
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let code = match output.status.code() {
        Some(124) => "took too long".to_owned(),
        Some(code) => format!("ended with {code}"),
        None => "was killed".to_owned(),
    };
    Failure::Found(format!("{what} {code}: {}", said.trim()))
}

/// Compares what a judge shows with the tree.
fn compare(source: &Tree, shown: &Path, judge: Judge) -> Outcome {
    let found = match Tree::read(shown) {
        Ok(tree) => source.differences(&tree),
        Err(e) => return Err(Failure::Found(format!("by {judge}: {e}"))),
    };
    match found.first() {
        None => Ok(()),
        Some(difference) => Err(Failure::Found(format!("by {judge}: {difference}"))),
    }
}
