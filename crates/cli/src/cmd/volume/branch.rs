//! `tuff volume branch`: lists, deletes, flattens and renames branches.

use super::failure::{At, Failure, Result};
use super::live::mounted_directory;
use super::open::{branch_device, bytes, now};
use crate::out::Out;
use crate::progress::{Meter, Show};
use crate::text::{escaped, full_time};
use crate::units::size;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_iplfs::BranchInfo;

/// List, delete, flatten, promote and roll back branches
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// List branches with their origin and space
    ///
    /// The sizes are those of the newest checkpoints: shared with other branches, of the branch alone, and kept only for
    /// snapshots and forks of it. Branches may be mounted.
    List(ListArgs),
    /// Delete a branch and return its space to the host
    ///
    /// Blocks that its forks need stay until the forks are deleted. The branch must not be mounted; others may be.
    Delete(NameArgs),
    /// Make a branch independent of the branch it was forked from
    ///
    /// Copies every block that the branch shares, so it needs as much free space. The branch has no parent then, and the
    /// parent returns to the host what only this fork needed: blocks that both had deleted or overwritten. A mounted parent
    /// does so at its next checkpoint. The branch must not be mounted, and its own snapshots and forks must not need blocks of
    /// the parent; other branches may be mounted. A killed command can be repeated, and continues.
    Flatten(NameArgs),
    /// Make a branch the main one
    ///
    /// The branch gets the name main, and the old main the name main-1, or the next free one. Neither may be mounted.
    Promote(NameArgs),
    /// Take a branch back to one of its snapshots
    ///
    /// A fork of the snapshot gets the name. What the branch was stays as NAME-1, or the next free name, unless
    /// --discard is given. The branch must not be mounted; others may be.
    Rollback(RollbackArgs),
}

/// Arguments of the list of branches.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Directory of the volume, or the mount point of one of its branches
    path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments that name a branch.
#[derive(clap::Args)]
pub(crate) struct NameArgs {
    /// Directory of the volume, or the mount point of one of its branches
    path: PathBuf,
    /// Name of the branch
    name: String,
}

/// Arguments of a rollback.
#[derive(clap::Args)]
pub(crate) struct RollbackArgs {
    /// Directory of the volume, or the mount point of one of its branches
    path: PathBuf,
    /// Name of the branch
    name: String,
    /// Snapshot of the branch to go back to
    #[arg(long, value_name = "NAME")]
    snapshot: String,
    /// Delete what was written since, with all later snapshots, instead of keeping it as a branch
    #[arg(long)]
    discard: bool,
}

pub(super) fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::List(args) => list(args)?,
        Verb::Delete(args) => {
            let dir = directory(&args.path)?;
            tuff_iplfs::delete_branch(&dir, &args.name).at(dir.display())?;
        }
        Verb::Flatten(args) => flatten(args)?,
        Verb::Promote(args) => {
            let dir = directory(&args.path)?;
            let old = tuff_iplfs::promote_branch(&dir, &args.name).at(dir.display())?;
            report(&format!("the old main is '{old}'"))?;
        }
        Verb::Rollback(args) => {
            let dir = directory(&args.path)?;
            let (name, snapshot) = (&args.name, &args.snapshot);
            let old = tuff_iplfs::rollback_branch(&dir, name, snapshot, args.discard, now());
            if let Some(old) = old.at(dir.display())? {
                report(&format!("what '{name}' was is '{old}'"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn flatten(args: &NameArgs) -> Result<()> {
    let dir = directory(&args.path)?;
    let meter = Meter::start("flatten", Show::unless(false));
    let counter = meter.counter().clone();
    let mut progress = |blocks, total| counter.set("flatten", bytes(blocks), bytes(total));
    let copied = tuff_iplfs::flatten_branch(&dir, &args.name, &mut progress);
    drop(meter);
    match copied.at(dir.display())? {
        Some(blocks) => report(&format!("{} copied", size(bytes(blocks)))),
        None => report(&format!("'{}' has no parent", args.name)),
    }
}

fn report(line: &str) -> Result<()> {
    let mut out = Out::new();
    out.line(escaped(line.as_bytes()))?;
    Ok(out.finish().map(drop)?)
}

/// Returns the directory of a volume that can have branches, also for its mount point.
pub(super) fn directory(path: &Path) -> Result<PathBuf> {
    if let Some(dir) = mounted_directory(path)? {
        return Ok(dir);
    }
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    // A missing or damaged volume has its own error.
    branch_device(path, None, true)?;
    Err(Failure::Volume(
        path.display().to_string(),
        tuff_iplfs::Error::Unsupported(
            "only a volume in a directory has branches: copy this one with `send` and `receive`"
                .to_owned(),
        ),
    ))
}

fn list(args: &ListArgs) -> Result<()> {
    let dir = directory(&args.path)?;
    let branches = tuff_iplfs::branches(&dir).at(dir.display())?;
    let mut out = Out::new();
    if args.json {
        let list: Vec<Value> = branches.iter().map(to_json).collect();
        let left = tuff_iplfs::forks_left(&dir).at(dir.display())?;
        out.json(&json!({"branches": list, "forks_left": left}))?;
    } else {
        for branch in &branches {
            out.line(to_line(branch))?;
        }
    }
    out.finish()?;
    Ok(())
}

fn to_json(branch: &BranchInfo) -> Value {
    let time = branch
        .forked_at
        .map(|time| full_time((time.sec, time.nsec)));
    json!({
        "name": branch.name, "number": branch.number, "parent": branch.parent, "parent_name": branch.parent_name,
        "snapshot": branch.snapshot, "forked": time, "forks": branch.children, "mounted": branch.is_mounted,
        "shared_bytes": bytes(branch.shared_blocks), "private_bytes": bytes(branch.private_blocks),
        "held_bytes": bytes(branch.held_blocks),
    })
}

fn to_line(branch: &BranchInfo) -> String {
    let shown = |name: &str| escaped(name.as_bytes()).to_string();
    let name = match &branch.name {
        Some(name) => shown(name),
        None => format!("(deleted, number {})", branch.number),
    };
    let origin = branch.parent.map(|number| {
        let parent = branch
            .parent_name
            .as_deref()
            .map_or_else(|| format!("number {number}"), shown);
        match &branch.snapshot {
            Some(snapshot) => format!(" from {parent} at {}", shown(snapshot)),
            None => format!(" from {parent}"),
        }
    });
    format!(
        "{:>10} shared  {:>10} own  {:>10} held  {name}{}{}",
        size(bytes(branch.shared_blocks)),
        size(bytes(branch.private_blocks)),
        size(bytes(branch.held_blocks)),
        origin.unwrap_or_default(),
        if branch.is_mounted { ", mounted" } else { "" },
    )
}
