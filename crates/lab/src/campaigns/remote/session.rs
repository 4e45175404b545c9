//! Conditions of a part, and what all parts share: mounts, images, counters, and waiting.

use super::super::serve::server::{Served, Server};
use super::super::start::definition::{Definition, Program};
use super::super::start::run::make;
use super::network::{Network, Remote};
use crate::definition::Definition as _;
use crate::measure::helper;
use crate::measure::workspace::{self, Work};
use crate::options::{Emit, Options};
use crate::record::{Bar, Labels, Line, labels};
use crate::{At, Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Text of the definition in `benchmarks/definitions`.
const DEFINITION: &str = include_str!("../../../../../benchmarks/definitions/remote/programs.toml");
/// Path of the image on the server.
pub(super) const PATH: &str = "/image";
/// Time limit for an image to be complete.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Part of the campaign, which has a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Programs that start out of a mount, beside other ways to get them.
    Starts,
    /// Reads once the image is complete, beside the kernel's mount of a local image.
    Complete,
    /// CPU time of the daemon with and without a root hash.
    Verification,
    /// Latency of reads at a server with slow answers, with and without second requests.
    Slow,
    /// Peak memory of the daemon for a small and a large image.
    Memory,
}

impl Part {
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Measure images behind URLs, over an emulated network
///
/// Compares starts of programs without a profile, with one, and with one while the rest is fetched, with a download of the
/// whole image first and the plain tree. --part measures something else. Writes a record and prints its tables. Requires root,
/// because programs run with the mount as their root directory.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Part to measure
    #[arg(long, value_enum, default_value = "starts")]
    pub part: Part,
    /// Conditions of the link.
    #[command(flatten)]
    pub network: Network,
    /// Number of rounds (default: 3, or that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub starts: Option<u32>,
    /// Start only programs whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Tree of the large image of --part memory
    #[arg(long, value_name = "DIR", default_value = "/usr")]
    pub tree: PathBuf,
    /// Name of the record (default: that of the part)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

impl Conditions {
    /// Returns the name of the record.
    pub fn record(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.part.name())
    }

    pub(super) fn rounds(&self) -> u32 {
        self.starts.unwrap_or(3)
    }
}

/// Program under test, and places of its images.
pub(super) struct Session<'a> {
    pub(super) conditions: &'a Conditions,
    pub(super) tuff: PathBuf,
    pub(super) work: Work,
}

pub(super) type Values = BTreeMap<String, f64>;

impl Session<'_> {
    /// Mounts an image with options of `tuff mount`. The inner error is the reason for a failure.
    pub(super) fn mount(
        &self,
        tuff: &Path,
        image: &Path,
        options: &[String],
    ) -> Result<Result<Served, String>> {
        let point = self.work.path("mount");
        Served::start(Server::Tuff, Some(tuff), options, (image, "erofs"), &point)
    }

    /// Mounts the image behind a URL with an empty cache.
    pub(super) fn mount_remote(&self, remote: &Remote, options: &[String]) -> Result<Served> {
        let url = PathBuf::from(remote.url(PATH));
        let options = [options, &[self.empty_cache()?]].concat();
        self.mount(&self.tuff, &url, &options)?
            .map_err(Error::Command)
    }

    /// Returns the option for an empty cache.
    pub(super) fn empty_cache(&self) -> Result<String> {
        let cache = self.work.path("cache");
        workspace::remove(&cache)?;
        Ok(format!("--cache-dir={}", cache.display()))
    }

    /// Serves an image over the network of the conditions.
    pub(super) fn serve(&self, image: &Path, seed: u64) -> Result<Remote> {
        Remote::serve(PATH, image, &self.conditions.network, seed)
    }

    /// Returns a tree with the programs of the definition.
    pub(super) fn programs<'d>(
        &self,
        definition: &'d Definition,
        emit: Emit<'_>,
    ) -> Result<(PathBuf, Vec<&'d Program>)> {
        let only = self.conditions.only.as_deref().unwrap_or_default();
        let named = definition.programs.iter().filter(|p| p.name.contains(only));
        let mut without = Vec::new();
        let made = make(definition, named, &self.work, &mut without)?;
        for (cell, reason) in without {
            emit(&Line::failure(cell, reason))?;
        }
        Ok(made)
    }

    /// Builds an image of a tree, with a hash tree. Returns it with its root hash.
    pub(super) fn verified_image(
        &self,
        tree: &Path,
        options: &[&str],
    ) -> Result<(PathBuf, String)> {
        let path = self.work.path("image");
        let words = [&["build", "--quiet", "--verity"], options].concat();
        let words = words.into_iter().map(OsStr::new);
        let paths = [tree.as_os_str(), path.as_os_str()];
        workspace::remove(&path)?;
        helper::output(&self.tuff, words.chain(paths))?;
        let words = ["verity", "show", "--json"].map(OsStr::new).into_iter();
        let shown = helper::json(&self.tuff, words.chain([path.as_os_str()]))?;
        let root = shown["root_hash"].as_str().unwrap_or_default().to_owned();
        Ok((path, root))
    }

    /// Writes a tree with one file of random bytes, `content`. Returns the tree.
    pub(super) fn noise(&self, length: u64) -> Result<PathBuf> {
        const STEP: u64 = 16 << 20;
        let tree = self.work.path("noise");
        std::fs::create_dir_all(&tree).at("create", &tree)?;
        let path = tree.join("content");
        let mut file = File::create(&path).at("create", &path)?;
        let mut rng = Rng::new(1);
        for _ in 0..length / STEP {
            let bytes = helper::noise(&mut rng, STEP as usize);
            file.write_all(&bytes).at("write", &path)?;
        }
        Ok(tree)
    }

    /// Returns a counter of a mount.
    pub(super) fn counter(&self, point: &Path, name: &str) -> Option<f64> {
        counter(&self.tuff, point, name)
    }

    /// Waits until all of an image is in the cache.
    pub(super) fn wait_complete(&self, point: &Path) -> Result<()> {
        wait("the image to be complete", || {
            let present = self.counter(point, "remote_present_bytes");
            present.is_some() && present == self.counter(point, "remote_size_bytes")
        })
    }
}

/// Returns a counter of a mount, read by the program that mounted it.
pub(super) fn counter(tuff: &Path, point: &Path, name: &str) -> Option<f64> {
    let words = ["stats", "--json"].map(OsStr::new).into_iter();
    let stats = helper::json(tuff, words.chain([point.as_os_str()])).ok()?;
    find(&stats, name)
}

/// Waits until something is true.
pub(super) fn wait(what: &str, mut is_true: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + TIME_LIMIT;
    while !is_true() {
        crate::measure::stop::check()?;
        if Instant::now() > end {
            return Err(Error::Command(format!("waiting for {what} timed out")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the first number of a name in a JSON value, at any depth.
fn find(value: &serde_json::Value, name: &str) -> Option<f64> {
    let object = value.as_object()?;
    let here = object.get(name).and_then(serde_json::Value::as_f64);
    here.or_else(|| object.values().find_map(|inner| find(inner, name)))
}

/// Returns the limit of a value of the cells with a label, of the value of another label if there is one.
pub(super) fn bar(
    label: &str,
    (of, against): (&str, Option<&str>),
    value: &str,
    at_most: f64,
) -> Line {
    let cell = |name: &str| -> Labels { labels([(label, name)]) };
    Line::Bar(Bar {
        cell: cell(of),
        value: value.to_owned(),
        against: against.map(cell),
        at_most: Some(at_most),
        at_least: None,
    })
}

pub(super) fn definition() -> Result<Definition> {
    Definition::parse("remote", DEFINITION)
}
