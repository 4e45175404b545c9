//! Comparison of EROFS and SquashFS for backups: the definition `backup`, on a part of a tree.

use super::definition::Definition;
use super::run::{self, Conditions, Emit};
use crate::definition::Definition as _;
use crate::measure::root;
use crate::measure::workspace::Work;
use crate::{Error, Result, engines};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Text of the definition in `benchmarks/definitions`.
const DEFINITION: &str = include_str!("../../../../../benchmarks/definitions/backup.toml");

/// Runs the definition and writes a record. Returns true if `tuff` succeeded in all of its runs.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let definition = Definition::parse("backup", DEFINITION)?;
    if !conditions.want_any(&definition) {
        return Err(Error::Usage("--only matches no task".to_owned()));
    }
    run::run("backup", &definition, conditions, emit)
}

/// Part of a tree, removed on drop.
#[derive(Debug)]
pub struct Part {
    tree: PathBuf,
    _work: Work,
}

impl Part {
    /// Copies every n-th file of `tree` with its metadata into a new folder in `work`, so that about `bytes` bytes result.
    /// A smaller tree is copied whole.
    pub fn of(tree: &Path, bytes: u64, work: &Path) -> Result<Part> {
        let rsync = engines::search("rsync")
            .ok_or_else(|| Error::Usage("the program rsync was not found".to_owned()))?;
        let work = Work::create(work)?;
        let mut files = Vec::new();
        root::list(tree, &mut files)?;
        let total: u64 = files.iter().map(|(_, length)| length).sum();
        let step = total.div_ceil(bytes).max(1);
        let mut names = Vec::new();
        for (path, _) in files
            .iter()
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
        {
            let name = path.strip_prefix(tree).unwrap_or(path);
            names.extend_from_slice(name.as_os_str().as_bytes());
            names.push(0);
        }
        let list = work.path("list");
        std::fs::write(&list, names).map_err(|e| Error::io("write", &list, e))?;
        let part = work.path("part");
        let mut command = Command::new(&rsync);
        command.args(["-aHAX", "--from0"]);
        if step > 1 {
            let mut from = OsString::from("--files-from=");
            from.push(&list);
            command.arg(from);
        }
        let mut slashed = OsString::from(tree);
        slashed.push("/");
        let output = command.arg(slashed).arg(&part).output();
        let output = output.map_err(|e| Error::io("run", &rsync, e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Command(format!("rsync: {said}")));
        }
        Ok(Part {
            tree: part,
            _work: work,
        })
    }

    /// Returns the path of the part.
    pub fn path(&self) -> &Path {
        &self.tree
    }
}
