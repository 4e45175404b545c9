//! Faults during `volume import`: acknowledged data stays, and the volume remains usable.

use crate::inject::{Fault, Run, is_possible};
use crate::sweep::{Dir, Scene, interrupt, run_all, sweep};
use crate::tree::{self, Contents};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn tuff(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tuff"));
    command
        .current_dir(dir)
        .arg("volume")
        .args(args)
        .output()
        .unwrap()
}

pub(crate) fn good(dir: &Path, args: &[&str]) {
    let out = tuff(dir, args);
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {message}");
}

/// Checks and repairs a volume; a second check must find nothing.
pub(crate) fn check(dir: &Path) -> Result<(), String> {
    let message = |out: &Output| {
        let bytes = [&out.stdout[..], &out.stderr[..]].concat();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let out = tuff(dir, &["check", "--data", "-q", "v"]);
    if out.status.success() {
        return Ok(());
    }
    let repair = tuff(dir, &["check", "--data", "--repair", "-q", "v"]);
    let again = tuff(dir, &["check", "--data", "-q", "v"]);
    match again.status.success() {
        true => Ok(()),
        false => Err(format!(
            "check: {} repair: {} then: {}",
            message(&out),
            message(&repair),
            message(&again)
        )),
    }
}

/// Reads the content of the volume through `volume export` and tar.
pub(crate) fn contents(dir: &Path) -> Result<Contents, String> {
    let _ = fs::remove_dir_all(dir.join("out"));
    fs::create_dir(dir.join("out")).unwrap();
    let out = tuff(dir, &["export", "v", "v.tar"]);
    if !out.status.success() {
        return Err(format!("export: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let tar = Command::new("tar")
        .current_dir(dir.join("out"))
        .args([
            "-x",
            "--delay-directory-restore",
            "--xattrs",
            "--xattrs-include=*",
            "-p",
            "-f",
            "../v.tar",
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&tar.stderr);
    assert!(tar.status.success(), "{message}");
    Ok(tree::contents(&dir.join("out")))
}

/// Replaces `v` by a copy of a volume.
pub(crate) fn copy_volume(dir: &Path, from: &str) {
    let _ = fs::remove_dir_all(dir.join("v"));
    let out = Command::new("cp")
        .current_dir(dir)
        .args(["-r", "--sparse=always", from, "v"])
        .output()
        .unwrap();
    assert!(out.status.success());
}

struct Import {
    dir: Dir,
    /// Content of the volume before the import, without the root.
    before: Contents,
    /// Content after an import without faults.
    after: Contents,
}

impl Import {
    fn new(name: &str) -> Self {
        let dir = Dir::new(name);
        tree::make(&dir.path("first/before"));
        tree::make(&dir.path("tree/after"));
        good(&dir.0, &["create", "old", "-s", "64M", "--zone", "16M"]);
        good(&dir.0, &["import", "old", "first"]);
        copy_volume(&dir.0, "old");
        let mut before = contents(&dir.0).unwrap();
        before.remove("");
        assert_eq!(
            before.get("/before/big").unwrap().content,
            tree::bytes(300_000, 1)
        );
        good(&dir.0, &["import", "v", "tree"]);
        let after = contents(&dir.0).unwrap();
        assert!(after.contains_key("/after/sub/deep/small"));
        Self { dir, before, after }
    }
}

impl Scene for Import {
    fn args(&self) -> Vec<&'static str> {
        vec!["volume", "import", "v", "tree"]
    }

    fn files(&self) -> Vec<PathBuf> {
        let dirs = ["v", "tree"].map(|name| self.dir.path(name));
        dirs.iter().flat_map(|dir| tree::paths(dir)).collect()
    }

    fn reset(&self) {
        copy_volume(&self.dir.0, "old");
    }

    fn judge(&self, _: &Fault, run: &Run) -> Result<(), String> {
        self.judge_content(run)?;
        check(&self.dir.0)?;
        self.judge_content(run)
    }
}

impl Import {
    fn judge_content(&self, run: &Run) -> Result<(), String> {
        let found = contents(&self.dir.0)?;
        if run.succeeded() {
            let wrong = tree::difference(&self.after, &found);
            return wrong.map_or(Ok(()), |what| Err(format!("exit code 0, but {what}")));
        }
        let kept = found
            .into_iter()
            .filter(|(path, _)| path.starts_with("/before"));
        let wrong = tree::difference(&self.before, &kept.collect());
        wrong.map_or(Ok(()), |what| Err(format!("an error, and {what}")))
    }
}

#[test]
fn import_keeps_existing_files_of_the_volume() {
    let scene = Import::new("import");
    sweep(&scene.dir.0, &scene);
}

#[test]
fn a_full_host_is_not_reported_as_a_full_volume() {
    // Regression: exit code 4 and "no space left in the volume", though most of it was free.
    if !is_possible() {
        return;
    }
    let scene = Import::new("full");
    let faults = (1..=4).map(|n| Fault {
        call: "fallocate",
        error: "ENOSPC",
        n,
        lasting: true,
        on_files: false,
    });
    run_all(&scene.dir.0, &scene, &faults.collect::<Vec<_>>());
}

#[test]
fn import_retries_interrupted_calls() {
    let scene = Import::new("import-interrupted");
    interrupt(&scene.dir.0, &scene);
}
