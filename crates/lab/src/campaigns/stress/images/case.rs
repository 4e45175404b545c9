//! Case of a campaign: the images of one seed, in a separate folder.

use super::counts::Counts;
use super::options::{Judge, Options, Programs};
use super::plant::Gardener;
use super::planted::Planted;
use super::settings;
use crate::measure::{stop, workspace};
use crate::{At, Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Timeout of a command, in the format of timeout(1). Unit: seconds.
const TIME_LIMIT: &str = "300";

/// Reason for the early end of a case: a finding, or an error of the lab itself.
pub(super) enum Failure {
    Found(String),
    Lab(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Lab(e)
    }
}

pub(super) type Outcome<T = ()> = std::result::Result<T, Failure>;

/// Returns a finding as an error.
pub(super) fn found<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Failure::Found(what.into()))
}

/// A tree and its images.
pub(super) struct Case<'a> {
    pub(super) options: &'a Options,
    pub(super) programs: &'a Programs,
    pub(super) counts: &'a mut Counts,
    /// Command lines that were run.
    pub(super) commands: Vec<String>,
    folder: &'a Path,
}

/// Image file with the information that is needed to read it.
#[derive(Clone)]
pub(super) struct Image {
    /// File name in the folder of the case.
    pub(super) name: String,
    /// File names of its extra devices, in the order of the device table.
    pub(super) devices: Vec<String>,
    /// True if its files refer to data of the images on its devices.
    pub(super) refers: bool,
    /// Version of the oldest kernel that mounts it.
    pub(super) kernel: String,
}

impl<'a> Case<'a> {
    /// Creates a case in an empty folder.
    pub(super) fn new(
        options: &'a Options,
        programs: &'a Programs,
        folder: &'a Path,
        counts: &'a mut Counts,
    ) -> Self {
        Self {
            options,
            programs,
            counts,
            commands: Vec::new(),
            folder,
        }
    }

    /// Builds the images and verifies them.
    pub(super) fn run(&mut self, rng: &mut Rng) -> Outcome {
        let root = self.path("tree");
        fs::create_dir(&root).at("create", &root)?;
        // Each part has a separate generator, so that draws of one part do not affect another one.
        let [tree, mut options, mut steps, mut judges] =
            std::array::from_fn(|_| Rng::new(rng.draw()));
        let mut gardener = Gardener::new(tree, &root);
        gardener.plant()?;
        self.write_order(&mut gardener)?;
        let settings = settings::draw(&mut options);
        let Some(mut image) = self.build(&settings, &["tree"], "image", &mut steps)? else {
            return Ok(());
        };
        let planted = self.tree(&mut judges)?;
        self.judge(&image, &planted)?;
        self.sources(&settings, &gardener, &planted, &mut steps)?;
        self.devices(&settings, &gardener, &planted, &mut steps)?;
        let mut merge = Rng::new(rng.draw());
        if merge.below(2) == 0 {
            self.merged(&image, &gardener, &planted, &mut merge)?;
        }

        let mut last = settings;
        let mut bases = vec![image.clone()];
        let mut planted = Rc::new(planted);
        // Tree of the last image.
        let mut held = Rc::clone(&planted);
        for round in 0..steps.below(4) {
            gardener.change()?;
            planted = Rc::new(self.tree(&mut judges)?);
            if steps.below(2) == 0 {
                last = settings::draw(&mut options);
            }
            if steps.below(2) == 0 {
                let name = format!("patched-{round}");
                // Fits: below 1000.
                let stop = (steps.below(2) == 0).then(|| steps.below(1000) as u32);
                let start = Instant::now();
                if let Some(patched) = self.patch(&last, &image, &name, &mut steps)? {
                    let took = start.elapsed();
                    self.judge(&patched, &planted)?;
                    if let Some(stop) = stop {
                        // `took` includes two patches if the judge `Threads` is selected.
                        let after = took * stop / 2000;
                        let signal = [Signal::KILL, Signal::TERM][steps.below(2)];
                        self.stop(&last, &image, (signal, after), [&held, &planted])?;
                    }
                    image = patched;
                    held = Rc::clone(&planted);
                    bases.push(image.clone());
                }
            } else {
                let name = format!("over-{round}");
                let one = bases[merge.below(bases.len())].clone();
                let of = match merge.below(4) {
                    0 => vec![one, image.clone()],
                    1 => vec![one],
                    _ => vec![image.clone()],
                };
                let named = of.iter().map(|base| format!("--base={}", base.name));
                let settings = [last.clone(), named.collect(), source_devices(&of)].concat();
                if let Some(mut over) = self.build(&settings, &["tree"], &name, &mut steps)? {
                    over.refers_to(of);
                    self.judge(&over, &planted)?;
                    bases.push(over);
                }
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the file for the option `--order`.
    fn write_order(&mut self, gardener: &mut Gardener<'_>) -> Result<()> {
        let mut order = Vec::new();
        for path in gardener.order() {
            order.extend(path.as_os_str().as_bytes());
            order.push(b'\n');
        }
        let path = self.path("order");
        fs::write(&path, order).at("write", &path)
    }

    /// Builds an image from sources that are equivalent to the tree. With the judge `Threads`, builds it
    /// again with more threads and compares the bytes. Returns None if the settings are refused.
    fn build(
        &mut self,
        settings: &[String],
        sources: &[&str],
        image: &str,
        rng: &mut Rng,
    ) -> Outcome<Option<Image>> {
        self.twice(image, rng, |case, threads, image| {
            let head = ["build", "--json", &threads].map(str::to_owned);
            let line = [&head[..], settings, &words(sources), &words(&[image])].concat();
            case.made(&line)
        })
    }

    /// Patches a copy of an image. With the judge `Threads`, patches another copy with more threads and
    /// compares the bytes. Returns None if the settings are refused.
    fn patch(
        &mut self,
        settings: &[String],
        image: &Image,
        name: &str,
        rng: &mut Rng,
    ) -> Outcome<Option<Image>> {
        self.twice(name, rng, |case, threads, name| {
            case.copy(&image.name, name)?;
            let head = ["patch", "--json", &threads].map(str::to_owned);
            case.made(&[&head[..], settings, &words(&["tree", name])].concat())
        })
    }

    /// Makes an image with one thread, and with more threads if that is a judge. The bytes must be the same.
    fn twice(
        &mut self,
        name: &str,
        rng: &mut Rng,
        make: impl Fn(&mut Self, String, &str) -> Outcome<Option<String>>,
    ) -> Outcome<Option<Image>> {
        let [one, more] = threads(rng);
        let Some(kernel) = make(self, one, name)? else {
            return Ok(None);
        };
        if self.is_judge(Judge::Threads) {
            if make(self, more, "again")?.is_none() {
                return found("the build with more threads was refused");
            }
            self.saw(Judge::Threads);
            self.same(name, "again")?;
        }
        Ok(Some(Image::new(name, kernel)))
    }

    fn copy(&mut self, image: &str, name: &str) -> Result<()> {
        let from = self.path(image);
        fs::copy(&from, self.path(name)).at("copy", &from)?;
        self.commands.push(format!("cp {image} {name}"));
        Ok(())
    }

    /// Interrupts a patch of a copy of an image by a signal. The copy must contain either the old or the new
    /// tree, and must accept the patch again.
    fn stop(
        &mut self,
        settings: &[String],
        image: &Image,
        (signal, after): (Signal, Duration),
        [before, planted]: [&Planted; 2],
    ) -> Outcome {
        stop::check()?;
        let stopped = "stopped";
        self.copy(&image.name, stopped)?;
        let line = [words(&["patch", "--quiet"]), settings.to_vec()].concat();
        let line = [line, words(&["tree", stopped])].concat();
        let (number, seconds) = (signal.as_raw(), after.as_secs_f64());
        let shown = format!("timeout -s {number} {seconds:.4} tuff {}", line.join(" "));
        self.commands.push(shown);
        let tuff = &self.programs.tuff;
        let mut patch = Command::new(tuff)
            .args(&line)
            .current_dir(self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_remove("SOURCE_DATE_EPOCH")
            .spawn()
            .at("run", tuff)?;
        std::thread::sleep(after);
        // The process was not reaped yet, so no other process has its id.
        _ = kill_process(Pid::from_child(&patch), signal);
        patch.wait().at("run", tuff)?;

        let mut copy = Image::new(stopped, image.kernel.clone());
        let is_old = self.superblock(&image.name)? == self.superblock(stopped)?;
        self.counts.stopped += 1;
        self.judge(&copy, if is_old { before } else { planted })?;
        let head = words(&["patch", "--json"]);
        let again = self.made(&[&head[..], settings, &words(&["tree", stopped])].concat())?;
        let Some(kernel) = again else {
            return found("a patch was refused after an interrupted one");
        };
        copy.kernel = kernel;
        self.judge(&copy, planted)
    }

    fn superblock(&self, image: &str) -> Result<[u8; 128]> {
        let path = self.path(image);
        let mut bytes = [0; 128];
        File::open(&path)
            .and_then(|file| file.read_exact_at(&mut bytes, 1024))
            .at("read", &path)?;
        Ok(bytes)
    }

    /// Builds the image from a source that is equivalent to the tree, and compares the bytes.
    fn sources(
        &mut self,
        settings: &[String],
        gardener: &Gardener<'_>,
        planted: &Planted,
        rng: &mut Rng,
    ) -> Outcome {
        let form = rng.below(7);
        // An image may drop holes of the tree, so a build from it would differ.
        let (holes, tar) = (gardener.is_sparse(), !gardener.is_beyond_tar());
        let sources: &[&str] = match form {
            0 if !holes => &["image"],
            1 if !holes && tar => &["image.tar"],
            2 | 5 if tar => &["tree.tar"],
            3 => &["tree", "tree"],
            4 if !holes => &["image", "tree"],
            _ => return Ok(()),
        };
        if !self.is_judge(Judge::Sources) {
            return Ok(());
        }
        match sources[0] {
            "image.tar" => self.done(&words(&["tar", "image", "image.tar"]))?,
            "tree.tar" => {
                let line = "--format=pax --sort=name --sparse --xattrs --acls --numeric-owner -C tree -cf tree.tar .";
                let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
                let output = self.command(Path::new("tar"), &line)?;
                if !output.status.success() {
                    let message = String::from_utf8_lossy(&output.stderr);
                    let message = message.lines().next().unwrap_or("").to_owned();
                    self.skip(Judge::Sources, &format!("tar failed: {message}"));
                    return Ok(());
                }
            }
            _ => {}
        }
        let stream = form == 5;
        let head = words(&["build", "--json"]);
        let line = |sources: &[&str], image| {
            [&head[..], settings, &words(sources), &words(&[image])].concat()
        };
        let made = match stream {
            true => self.made_from("tree.tar", &line(&["-"], "streamed"))?,
            false => self.made(&line(sources, "again"))?,
        };
        let Some(kernel) = made else {
            return found("the build from another source was refused");
        };
        self.saw(Judge::Sources);
        if !stream {
            return self.same("image", "again");
        }
        // Data is packed in the order of the stream, so the bytes differ but the tree is the same.
        self.judge(&Image::new("streamed", kernel), planted)
    }

    /// Builds images whose data is on an extra device: a blob of chunks, or a tar.
    fn devices(
        &mut self,
        settings: &[String],
        gardener: &Gardener<'_>,
        planted: &Planted,
        steps: &mut Rng,
    ) -> Outcome {
        match steps.below(10) {
            0 => {
                // The second build overwrites the chunks of the first one.
                let blob = words(&["--blob=blob", "--force"]);
                let settings = [settings::with_blob(settings), blob].concat();
                if let Some(mut image) = self.build(&settings, &["tree"], "chunks", steps)? {
                    image.devices.push("blob".to_owned());
                    self.judge(&image, planted)?;
                }
            }
            1 if !gardener.is_sparse() && !gardener.is_beyond_tar() => {
                self.done(&words(&["tar", "image", "image.tar"]))?;
                let head = words(&["build", "--json", "--tar-index"]);
                let paths = words(&["image.tar", "index"]);
                let line = [head, settings::of_index(settings), paths].concat();
                if let Some(kernel) = self.made(&line)? {
                    let mut image = Image::new("index", kernel);
                    image.devices.push("image.tar".to_owned());
                    self.judge(&image, planted)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Builds an image that refers to one or two images as layers. The first one is equivalent to the tree;
    /// the second one may contain only a part of it.
    fn merged(
        &mut self,
        image: &Image,
        gardener: &Gardener<'_>,
        planted: &Planted,
        rng: &mut Rng,
    ) -> Outcome {
        let mut settings = settings::draw(rng);
        if !gardener.has_links() {
            // A hard link with names in both layers would become two inodes.
            settings.push("--exclude=*1*".to_owned());
        }
        let head = words(&["build", "--json"]);
        let line = [head, settings, words(&["tree", "upper"])].concat();
        let Some(kernel) = self.made(&line)? else {
            return Ok(());
        };
        let upper = Image::new("upper", kernel);
        let layers = match rng.below(4) {
            0 => vec![image.clone()],
            _ => vec![image.clone(), upper],
        };
        let settings = match rng.below(2) {
            0 => Vec::new(),
            _ => settings::draw(rng),
        };
        let settings = [settings, words(&["--image-index"]), source_devices(&layers)].concat();
        let names: Vec<&str> = layers.iter().map(|layer| layer.name.as_str()).collect();
        if let Some(mut merged) = self.build(&settings, &names, "merged", rng)? {
            merged.refers_to(layers);
            self.judge(&merged, planted)?;
        }
        Ok(())
    }

    fn same(&self, one: &str, other: &str) -> Outcome {
        let read = |path: PathBuf| fs::read(&path).at("read", &path);
        match read(self.path(one))? == read(self.path(other))? {
            true => Ok(()),
            false => found(format!("the bytes of {other} differ from {one}")),
        }
    }

    /// Runs a command that writes an image. Returns the version of the oldest kernel that mounts the image,
    /// or None if the arguments are refused as wrong usage. Every other failure is a finding.
    fn made(&mut self, arguments: &[String]) -> Outcome<Option<String>> {
        let output = self.tuff(arguments)?;
        self.image(&output)
    }

    /// Runs a command that writes an image from a stream on standard input.
    fn made_from(&mut self, stream: &str, arguments: &[String]) -> Outcome<Option<String>> {
        let script = format!("cat {stream} | \"$0\" \"$@\"");
        let tuff = self.programs.tuff.display().to_string();
        let words = [&["-c".to_owned(), script, tuff], arguments].concat();
        let output = self.command(Path::new("sh"), &words)?;
        self.image(&output)
    }

    fn image(&mut self, output: &Output) -> Outcome<Option<String>> {
        match output.status.code() {
            Some(0) => {
                self.counts.images += 1;
                match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
                    Ok(summary) => Ok(Some(summary["kernel"].as_str().unwrap_or("").to_owned())),
                    Err(e) => found(format!("the summary is not valid JSON: {e}")),
                }
            }
            Some(2) => {
                self.counts.refused += 1;
                Ok(None)
            }
            _ => Err(failed("tuff", output)),
        }
    }

    /// Runs `tuff`. A failure is a finding.
    pub(super) fn done(&mut self, arguments: &[String]) -> Outcome {
        let output = self.tuff(arguments)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(&format!("tuff {}", arguments[0]), &output)),
        }
    }

    pub(super) fn tuff(&mut self, arguments: &[String]) -> Result<Output> {
        self.command(&self.programs.tuff, arguments)
    }

    /// Runs a program in the folder of the case.
    pub(super) fn command(&mut self, program: &Path, arguments: &[String]) -> Result<Output> {
        stop::check()?;
        let name = program.file_name().unwrap_or(program.as_os_str());
        let line = [&[name.to_string_lossy().into_owned()], arguments].concat();
        self.commands.push(line.join(" "));
        Command::new("timeout")
            .arg(TIME_LIMIT)
            .arg(program)
            .args(arguments)
            .current_dir(self.folder)
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .env_remove("SOURCE_DATE_EPOCH")
            .output()
            .at("run", Path::new("timeout"))
    }

    /// Returns a path in the folder of the case, after removing a folder of that name.
    pub(super) fn cleared(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        workspace::remove(&path)?;
        Ok(path)
    }
}

impl Image {
    /// Returns an image without extra devices.
    fn new(name: &str, kernel: String) -> Image {
        Image {
            name: name.to_owned(),
            devices: Vec::new(),
            refers: false,
            kernel,
        }
    }

    fn refers_to(&mut self, others: Vec<Image>) {
        self.devices = others.into_iter().flat_map(Image::files).collect();
        self.refers = true;
    }

    /// Returns its file and its extra devices, in the order in which a referring image lists them.
    fn files(self) -> impl Iterator<Item = String> {
        std::iter::once(self.name).chain(self.devices)
    }
}

/// Returns the options that name the extra devices of images.
fn source_devices(images: &[Image]) -> Vec<String> {
    let devices = images.iter().flat_map(|image| &image.devices);
    devices
        .map(|name| format!("--source-device={name}"))
        .collect()
}

/// Returns the options for one thread and for a random larger number of threads.
fn threads(rng: &mut Rng) -> [String; 2] {
    let more = [2, 3, 5, 7, 16][rng.below(5)];
    [1, more].map(|n| format!("--threads={n}"))
}

pub(super) fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns a finding with the exit status and the output of a failed program.
pub(super) fn failed(what: &str, output: &Output) -> Failure {
    let message = [&output.stdout[..], &output.stderr].concat();
    let message = String::from_utf8_lossy(&message);
    let code = match output.status.code() {
        Some(124) => "timed out".to_owned(),
        Some(code) => format!("exited with code {code}"),
        None => "was killed by a signal".to_owned(),
    };
    Failure::Found(format!("{what} {code}: {}", message.trim()))
}
