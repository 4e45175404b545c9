//! Verification of an image by the judges.
//!
//! A judge may skip an image if it lacks privileges, a program or a feature of the kernel. Skipped images are
//! counted by reason.

use super::case::{Case, Failure, Image, Outcome, failed, found, words};
use super::options::Judge;
use super::planted::{Planted, Probe};
use crate::engines::{Tool, numbers};
use crate::verify::mount::Mount;
use crate::verify::required;
use crate::verify::tree::{FACETS, Facet, Tree, path_of};
use crate::{At, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Number of byte ranges that are read from a mount before it is walked.
const PROBED: usize = 8;

/// Time after which a mount is busy for another reason.
const BUSY_MAX: Duration = Duration::from_secs(20);

/// Oldest usable version of fsck.erofs. Older ones lack features and are not always right.
const OLDEST_FSCK: [u32; 2] = [1, 9];

impl Case<'_> {
    pub(super) fn is_judge(&self, judge: Judge) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.contains(&judge)
    }

    pub(super) fn saw(&mut self, judge: Judge) {
        *self.counts.judged.entry(judge).or_default() += 1;
    }

    pub(super) fn skip(&mut self, judge: Judge, why: &str) {
        let why = format!("{judge}: {why}");
        *self.counts.skipped.entry(why).or_default() += 1;
    }

    /// Reads the current tree and draws its probes.
    pub(super) fn tree(&self, rng: &mut Rng) -> Result<Planted> {
        let tree = Tree::read(&self.path("tree"))?;
        let probes = self.probes(&tree, rng)?;
        Ok(Planted { tree, probes })
    }

    /// Verifies an image of a tree with the selected judges.
    pub(super) fn judge(&mut self, image: &Image, planted: &Planted) -> Outcome {
        let (source, probes) = (&planted.tree, &planted.probes);
        let device = image.devices.iter().map(|name| format!("--device={name}"));
        let with = |line: &[&str]| -> Vec<String> {
            words(line).into_iter().chain(device.clone()).collect()
        };
        let name = image.name.as_str();
        if self.is_judge(Judge::Check) {
            self.saw(Judge::Check);
            self.done(&with(&["check", "--quiet", name]))?;
        }
        if self.is_judge(Judge::Extract) {
            self.by_extract(source, &with(&["extract", "--quiet", name, "target"]))?;
        }
        if self.is_judge(Judge::Mount) {
            self.by_mount(source, probes, &with(&["mount", name, "mnt"]))?;
        }
        if self.is_judge(Judge::Kernel) {
            self.by_kernel(source, probes, image)?;
        }
        if self.is_judge(Judge::Fsck) {
            self.by_fsck(source, image, &with(&[name]))?;
        }
        Ok(())
    }

    fn by_extract(&mut self, source: &Tree, extract: &[String]) -> Outcome {
        let target = self.cleared("target")?;
        let output = self.tuff(extract)?;
        let message = String::from_utf8_lossy(&output.stderr);
        // The number of attributes that fit depends on the order in which they are set.
        if message.contains("attribute") && message.contains("No space left") {
            self.skip(
                Judge::Extract,
                "the host has no space for the extended attributes",
            );
            return Ok(());
        }
        self.saw(Judge::Extract);
        match output.status.success() {
            true => compare(source, &target, Judge::Extract, &FACETS),
            false => Err(failed("tuff extract", &output)),
        }
    }

    fn by_mount(&mut self, source: &Tree, probes: &[Probe], mount: &[String]) -> Outcome {
        if !Path::new("/dev/fuse").exists() {
            self.skip(Judge::Mount, "/dev/fuse does not exist");
            return Ok(());
        }
        let point = self.path("mnt");
        fs::create_dir_all(&point).at("create", &point)?;
        self.done(mount)?;
        let same = probe(probes, &point, Judge::Mount)
            .and_then(|()| compare(source, &point, Judge::Mount, &FACETS));
        let start = Instant::now();
        let mut ended = self.done(&words(&["umount", "mnt"]));
        // A process that another thread starts has copies of open files until it executes its program.
        while matches!(&ended, Err(Failure::Found(what)) if what.contains("busy"))
            && start.elapsed() < BUSY_MAX
        {
            std::thread::sleep(Duration::from_millis(5));
            ended = self.done(&words(&["umount", "mnt"]));
        }
        self.saw(Judge::Mount);
        same.and(ended)
    }

    fn by_kernel(&mut self, source: &Tree, probes: &[Probe], image: &Image) -> Outcome {
        if !rustix::process::geteuid().is_root() {
            self.skip(Judge::Kernel, "mounting needs root");
            return Ok(());
        }
        let running = rustix::system::uname();
        let running = running.release().to_string_lossy().into_owned();
        if numbers(&image.kernel) > numbers(&running) {
            self.skip(
                Judge::Kernel,
                &format!("the running kernel is older than {}", image.kernel),
            );
            return Ok(());
        }
        let devices: Vec<PathBuf> = image.devices.iter().map(|name| self.path(name)).collect();
        match Mount::erofs(&self.path(&image.name), &devices, &self.path("mnt")) {
            Ok(mount) => {
                self.saw(Judge::Kernel);
                probe(probes, mount.point(), Judge::Kernel)?;
                compare(source, mount.point(), Judge::Kernel, &FACETS)
            }
            Err(why) if why.unable => {
                self.skip(Judge::Kernel, &why.text);
                Ok(())
            }
            Err(why) => found(format!("the kernel cannot mount the image: {}", why.text)),
        }
    }

    fn by_fsck(&mut self, source: &Tree, image: &Image, arguments: &[String]) -> Outcome {
        let Some(fsck) = self.programs.fsck.clone() else {
            self.skip(Judge::Fsck, "the program is not found");
            return Ok(());
        };
        let number = fsck.number();
        if numbers(number) < OLDEST_FSCK {
            self.skip(Judge::Fsck, &format!("{number} is older than 1.9"));
            return Ok(());
        }
        let mut extracted = match self.beyond_fsck(image)? {
            Beyond::All(why) => {
                self.skip(Judge::Fsck, why);
                return Ok(());
            }
            Beyond::Extraction => false,
            Beyond::Nothing => true,
        };
        let target = self.cleared("target")?;
        let into = [arguments, &words(&["--extract=target"])].concat();
        let mut output = self.command(&fsck.path, &into)?;
        // Version 1.9.3 writes the packed inode to the path of the target.
        if target.is_file() {
            fs::remove_file(&target).at("remove", &target)?;
            let nowhere = [arguments, &words(&["--extract"])].concat();
            output = self.command(&fsck.path, &nowhere)?;
            extracted = false;
        }
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let unknown = ["unsupported", "not supported", "unidentified"];
        if unknown.iter().any(|word| message.contains(word)) {
            self.skip(Judge::Fsck, &format!("{number} does not support a feature"));
            return Ok(());
        }
        self.saw(Judge::Fsck);
        match output.status.success() {
            true if extracted => compare(source, &target, Judge::Fsck, required(Tool::FsckErofs)),
            true => Ok(()),
            false => Err(failed("fsck.erofs", &output)),
        }
    }

    /// Returns the description of an image.
    fn info(&mut self, name: &str) -> Outcome<serde_json::Value> {
        let output = self.tuff(&words(&["info", "--json", name]))?;
        match serde_json::from_slice(&output.stdout) {
            Ok(info) => Ok(info),
            Err(_) => Err(failed("tuff info", &output)),
        }
    }

    /// Returns the features of an image that fsck.erofs 1.9.3 does not read, not even in images of mkfs.erofs
    /// 1.9.3.
    fn beyond_fsck(&mut self, image: &Image) -> Outcome<Beyond> {
        // Only clusters have no device number.
        for device in image.devices.iter().filter(|_| image.refers) {
            let info = self.info(device)?;
            let mut layouts = info["layouts"].as_object().into_iter().flatten();
            if layouts.any(|(layout, _)| layout.starts_with("compressed")) {
                let why = "it does not find compressed data on other devices";
                return Ok(Beyond::All(why));
            }
        }
        let info = self.info(&image.name)?;
        let ends = info["inline"]["tails"].as_u64() > Some(0);
        let boxed = info["metabox_nid"].is_u64();
        if boxed && ends {
            let why = "it does not find inline tails in compressed metadata";
            return Ok(Beyond::All(why));
        }
        // Files that end with a hole are extracted too short.
        Ok(match info["holes"]["bytes"].as_u64() {
            Some(1..) => Beyond::Extraction,
            _ => Beyond::Nothing,
        })
    }

    /// Draws byte ranges of random files of the tree.
    fn probes(&self, source: &Tree, rng: &mut Rng) -> Result<Vec<Probe>> {
        let root = self.path("tree");
        let mut files = Vec::new();
        for entry in &source.entries {
            let path = path_of(entry);
            let metadata = fs::symlink_metadata(root.join(&path)).at("stat", &path)?;
            if metadata.is_file() && metadata.len() > 0 {
                files.push((path, metadata.len()));
            }
        }
        let mut probes = Vec::new();
        for _ in 0..PROBED.min(files.len()) {
            let (path, length) = files[rng.below(files.len())].clone();
            let full = root.join(&path);
            let file = File::open(&full).at("read", &full)?;
            // Fits: the files are short.
            let offset = rng.below(length as usize);
            let most = [1, 4096, 70_000, 400_000][rng.below(4)];
            let mut bytes = vec![0; (1 + rng.below(most)).min(length as usize - offset)];
            let offset = offset as u64;
            file.read_exact_at(&mut bytes, offset).at("read", &full)?;
            probes.push(Probe {
                path,
                offset,
                bytes,
            });
        }
        Ok(probes)
    }
}

/// Part of an image that fsck.erofs does not read.
enum Beyond {
    /// The whole image, with the reason.
    All(&'static str),
    /// The extracted tree, so that only the exit status is verified.
    Extraction,
    Nothing,
}

/// Reads byte ranges in random order. Partial reads may be wrong even if reads of whole files are right.
fn probe(probes: &[Probe], shown: &Path, judge: Judge) -> Outcome {
    for probe in probes {
        let (path, offset) = (probe.path.display(), probe.offset);
        let mut read = vec![0; probe.bytes.len()];
        let file = File::open(shown.join(&probe.path));
        match file.and_then(|file| file.read_exact_at(&mut read, offset)) {
            Ok(()) if read == probe.bytes => {}
            Ok(()) => {
                let length = read.len();
                return found(format!(
                    "by {judge}: {length} bytes at {offset} of {path} differ"
                ));
            }
            Err(e) => return found(format!("by {judge}: byte {offset} of {path}: {e}")),
        }
    }
    Ok(())
}

/// Compares the tree that a judge presents with the source tree, in the facets that the judge preserves.
fn compare(source: &Tree, shown: &Path, judge: Judge, facets: &[Facet]) -> Outcome {
    let tree = Tree::read(shown);
    let tree = tree.map_err(|e| Failure::Found(format!("by {judge}: {e}")))?;
    let found_at = source.differences(&tree);
    match found_at.iter().find(|d| facets.contains(&d.facet)) {
        None => Ok(()),
        Some(difference) => found(format!("by {judge}: {difference}")),
    }
}
