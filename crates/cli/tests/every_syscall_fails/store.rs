//! Faults of the verbs of backup stores: what was reported can be restored, and an error leaves the store sound.

use crate::inject::{Fault, Run};
use crate::sweep::{Dir, Scene, interrupt, sweep};
use crate::tree::{self, Contents};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tuff(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tuff"));
    command.current_dir(dir).args(args).output().unwrap()
}

fn good(dir: &Path, args: &[&str]) -> Result<(), String> {
    let out = tuff(dir, args);
    match out.status.success() {
        true => Ok(()),
        false => {
            let bytes = [&out.stdout[..], &out.stderr[..]].concat();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Err(format!("{args:?}: {}: {text}", out.status))
        }
    }
}

/// Verb of a store that has a snapshot of a tree, and another one of it with more files.
struct StoreVerb {
    dir: Dir,
    args: &'static [&'static str],
    /// The trees of the snapshots.
    first: Contents,
    second: Contents,
    density: (usize, u64),
}

impl StoreVerb {
    fn new(name: &str, args: &'static [&'static str]) -> Self {
        let dir = Dir::new(name);
        let source = dir.path("source");
        tree::make(&source);
        good(&dir.0, &["backup", "-q", "source", "old"]).unwrap();
        let first = tree::contents(&source);
        fs::write(source.join("more"), tree::bytes(200_000, 4)).unwrap();
        fs::write(source.join("sub/small"), "more").unwrap();
        let second = tree::contents(&source);
        match args {
            ["backup", ..] => {}
            ["store", "prune", ..] => {
                // The first snapshot goes, with a file that only it has.
                fs::remove_file(source.join("big")).unwrap();
                good(&dir.0, &["backup", "-q", "source", "old"]).unwrap();
                good(&dir.0, &["store", "forget", "old", "1"]).unwrap();
            }
            _ => good(&dir.0, &["backup", "-q", "source", "old"]).unwrap(),
        }
        let second = match args {
            ["store", "prune", ..] => tree::contents(&source),
            _ => second,
        };
        Self {
            dir,
            args,
            first,
            second,
            // Each run is followed by a check and a restore.
            density: (3, 12),
        }
    }

    /// Tree of the newest snapshot.
    fn restored(&self) -> Result<Contents, String> {
        let dir = &self.dir.0;
        let _ = fs::remove_dir_all(dir.join("restored"));
        good(dir, &["store", "restore", "-q", "store", "restored"])?;
        let source = self.dir.path("source");
        Ok(tree::contents(
            &dir.join("restored").join(source.strip_prefix("/").unwrap()),
        ))
    }

    /// Compares the newest snapshot with the trees that it may have.
    fn is_sound(&self, has_new: Option<bool>) -> Result<(), String> {
        let dir = &self.dir.0;
        let check = ["store", "check", "-q", "--read-data", "100%", "store"];
        if good(dir, &check).is_err() {
            good(dir, &["store", "repair", "-q", "store"])?;
            good(dir, &check)?;
        }
        let found = self.restored()?;
        let mut wrong = None;
        if has_new != Some(false) {
            wrong = tree::difference(&self.second, &found);
        }
        if has_new == Some(false) || has_new.is_none() && wrong.is_some() {
            wrong = tree::difference(&self.first, &found);
        }
        wrong.map_or(Ok(()), |what| Err(format!("restored: {what}")))
    }
}

impl Scene for StoreVerb {
    fn args(&self) -> Vec<&'static str> {
        self.args.to_vec()
    }

    fn reset(&self) {
        let dir = &self.dir.0;
        for name in ["store", "out"] {
            let _ = fs::remove_dir_all(dir.join(name));
        }
        let mut copy = Command::new("cp");
        copy.current_dir(dir).args(["-a", "old", "store"]);
        assert!(copy.status().unwrap().success());
    }

    fn files(&self) -> Vec<PathBuf> {
        let dirs = ["store", "source"].map(|name| self.dir.path(name));
        dirs.iter().flat_map(|dir| tree::paths(dir)).collect()
    }

    fn codes(&self) -> &'static [i32] {
        &[1, 3, 5]
    }

    fn density(&self) -> (usize, u64) {
        self.density
    }

    /// `check`, `prune` and `repair` print what they find.
    fn prints_findings(&self) -> bool {
        matches!(self.args, ["store", "check" | "prune" | "repair", ..])
    }

    fn judge(&self, fault: &Fault, run: &Run) -> Result<(), String> {
        match self.args {
            ["backup", ..] if run.code() == Some(1) => {
                // A file is left out and named. The next run has it.
                good(&self.dir.0, &["backup", "-q", "source", "store"])?;
                self.is_sound(Some(true))
            }
            ["backup", ..] => self.is_sound(run.succeeded().then_some(true)),
            ["store", "prune" | "repair", ..] => self.is_sound(Some(true)),
            ["store", "check", ..] => {
                // Content that a second attempt reads is no damage. Blocks are read a second time for the parity.
                let reads = fault.lasting && fault.call.contains("read");
                let of_content =
                    |call: &String| call.contains("/store/packs/") && !call.contains(", 4096, ");
                match run.succeeded() && reads && run.injected.iter().any(of_content) {
                    true => Err("a read failed, and nothing was found".to_owned()),
                    false => Ok(()),
                }
            }
            _ => self.judge_restored(run),
        }
    }
}

impl StoreVerb {
    fn judge_restored(&self, run: &Run) -> Result<(), String> {
        let source = self.dir.path("source");
        let out = self.dir.path("out");
        let out = out.join(source.strip_prefix("/").unwrap());
        let found = match out.exists() {
            true => tree::contents(&out),
            false => Contents::new(),
        };
        if run.succeeded() {
            let wrong = tree::difference(&self.second, &found);
            return wrong.map_or(Ok(()), |what| Err(format!("exit code 0, but {what}")));
        }
        for (path, entry) in &found {
            let is_known = self.second.get(path);
            if is_known.is_none_or(|expected| expected.content != entry.content)
                && !run.failed_call("unlink")
            {
                return Err(format!("an error, and {path:?} has wrong content"));
            }
        }
        Ok(())
    }
}

#[test]
fn backup_adds_a_whole_snapshot_or_none() {
    let scene = StoreVerb::new("backup", &["backup", "-q", "source", "store"]);
    sweep(&scene.dir.0, &scene);
}

#[test]
fn prune_keeps_what_snapshots_name() {
    let scene = StoreVerb::new("prune", &["store", "prune", "-q", "store"]);
    sweep(&scene.dir.0, &scene);
}

#[test]
fn check_of_a_store_hides_no_failed_read() {
    let args = &["store", "check", "-q", "--read-data", "100%", "store"];
    let scene = StoreVerb::new("store-check", args);
    sweep(&scene.dir.0, &scene);
}

#[test]
fn repair_loses_nothing_that_can_be_read_later() {
    let scene = StoreVerb::new("store-repair", &["store", "repair", "-q", "store"]);
    sweep(&scene.dir.0, &scene);
}

#[test]
fn restore_gives_the_tree_or_reports_missing_files() {
    let scene = StoreVerb::new("restore", &["store", "restore", "-q", "store", "out"]);
    sweep(&scene.dir.0, &scene);
}

#[test]
fn verbs_of_stores_repeat_interrupted_calls() {
    let all: [&[&str]; 4] = [
        &["backup", "-q", "source", "store"],
        &["store", "prune", "-q", "store"],
        &["store", "repair", "-q", "store"],
        &["store", "restore", "-q", "store", "out"],
    ];
    for args in all {
        let scene = StoreVerb {
            density: (1, 60),
            ..StoreVerb::new("interrupted", args)
        };
        interrupt(&scene.dir.0, &scene);
    }
}
