//! Comparison of EROFS and SquashFS for backups: the definition `backup`, on a part of a tree.

use super::definition::Definition;
use super::run;
use crate::definition::Definition as _;
use crate::measure::workspace::Work;
use crate::measure::{helper, root};
use crate::options::{Emit, Options};
use crate::{At, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Text of the definition in `benchmarks/definitions`.
const DEFINITION: &str = include_str!("../../../../../benchmarks/definitions/backup.toml");

/// Compare EROFS with SquashFS for backups: algorithms, levels, cluster sizes (a user's study, 2023)
///
/// Builds images with tuff, mkfs.erofs and mksquashfs, and copies the tree out of each mounted image with rsync. Images and
/// copies are compared with the tree. Writes a record and prints its tables. Requires root for the mounts.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Tree to measure on
    #[arg(long, default_value = "/usr", value_name = "DIR")]
    pub tree: PathBuf,
    /// Largest size of the part of the tree that is used, in MiB: every n-th file
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 64)]
    pub size: u64,
    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 1)]
    pub rounds: u32,
    /// Run only tasks whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Runs the definition and writes a record. Returns true if `tuff` succeeded in all of its runs.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let tree = &conditions.tree;
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let mut inner = run::Conditions {
        trees: vec![(name.into_owned(), PathBuf::new())],
        rounds: Some(conditions.rounds),
        only: conditions.only.clone(),
        seed: None,
        retries: 1,
        options: conditions.options.clone(),
    };
    let work = Work::create(inner.work())?;
    let rsync = conditions.options.need("rsync")?;
    inner.trees[0].1 = part(tree, conditions.size << 20, &work, &rsync)?;
    let definition = Definition::parse("backup", DEFINITION)?;
    run::run("backup", "backup", &definition, &inner, emit)
}

/// Copies every n-th file of `tree` with its metadata into a new folder in `work`, so that about `bytes` bytes result.
/// A smaller tree is copied whole.
fn part(tree: &Path, bytes: u64, work: &Work, rsync: &Path) -> Result<PathBuf> {
    let mut files = Vec::new();
    root::list(tree, &mut files)?;
    let total: u64 = files.iter().map(|(_, length)| length).sum();
    let step = usize::try_from(total.div_ceil(bytes).max(1)).unwrap_or(usize::MAX);
    let mut names = Vec::new();
    for (path, _) in files.iter().step_by(step) {
        let name = path.strip_prefix(tree).unwrap_or(path);
        names.extend_from_slice(name.as_os_str().as_bytes());
        names.push(0);
    }
    let list = work.path("list");
    std::fs::write(&list, names).at("write", &list)?;
    let mut from = OsString::from("--files-from=");
    from.push(&list);
    let from = Some(from).filter(|_| step > 1);
    let mut slashed = OsString::from(tree);
    slashed.push("/");
    let part = work.path("part");
    let words = ["-aHAX", "--from0"].map(OsStr::new).into_iter();
    let paths = [slashed.as_os_str(), part.as_os_str()];
    helper::output(rsync, words.chain(from.as_deref()).chain(paths))?;
    Ok(part)
}
