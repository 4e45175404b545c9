//! `tuff-lab paper backup`: compares EROFS with SquashFS as formats for backups.

use super::options::tool_at;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::commands::backup;
use tuff_lab::campaigns::commands::run::Conditions;

/// Compare EROFS with SquashFS for backups: algorithms, levels, cluster sizes (a user's study, 2023)
///
/// Builds images with tuff, mkfs.erofs and mksquashfs, and copies the tree out of each mounted image with
/// rsync. Images and copies are compared with the tree. Writes a record and prints its tables. Requires root
/// for the mounts.
#[derive(clap::Args)]
pub(crate) struct Backup {
    /// Tree to measure on
    #[arg(long, default_value = "/usr", value_name = "DIR")]
    tree: PathBuf,
    /// Largest size of the part of the tree that is used, in MiB: every n-th file
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 64)]
    size: u64,
    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 1)]
    rounds: u32,
    /// Run only tasks whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Path of a tool (default: search beside this program and in PATH)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Folder for images and copies, preferably on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/backup", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Backup) -> Result<bool> {
    let name = args.tree.file_name().unwrap_or_default().to_string_lossy();
    let part = backup::Part::of(&args.tree, args.size << 20, &args.work)?;
    let tools = args.tool.iter().map(|t| tool_at(t));
    let conditions = Conditions {
        trees: vec![(name.into_owned(), part.path().to_owned())],
        tools: tools.collect::<Result<_>>()?,
        rounds: Some(args.rounds),
        only: args.only.clone(),
        seed: None,
        work: args.work.clone(),
        max_foreign: 0.1,
        retries: 1,
        verify_every_round: false,
        cgroup: None,
    };
    let (path, fine) = record::write(&args.records, "backup", |emit| {
        backup::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(fine)
}
