//! Faults during `extract`: the tree is complete or the error is reported, and no file has wrong content.

use crate::inject::{Fault, Run};
use crate::sweep::{Dir, Scene, interrupt, sweep};
use crate::tree::{self, Contents};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// True if files get their final names only when complete. Otherwise only files of full length are compared.
const NAMES_ARE_FINAL: bool = true;

struct Extract {
    dir: Dir,
    args: &'static [&'static str],
    expected: Contents,
}

impl Extract {
    fn new(name: &str, build: &[&str], args: &'static [&'static str]) -> Self {
        let dir = Dir::new(name);
        tree::make(&dir.path("tree"));
        let out = Command::new(env!("CARGO_BIN_EXE_tuff"))
            .current_dir(&dir.0)
            .args(["build", "tree", "image"])
            .args(build)
            .output()
            .unwrap();
        assert!(out.status.success());
        let expected = tree::contents(&dir.path("tree"));
        Self {
            dir,
            args,
            expected,
        }
    }
}

impl Scene for Extract {
    fn args(&self) -> Vec<&'static str> {
        self.args.to_vec()
    }

    fn files(&self) -> Vec<PathBuf> {
        let image = [self.dir.path("image")];
        let out = self.dir.path("out").display().to_string();
        let made = self
            .expected
            .keys()
            .map(|path| PathBuf::from(format!("{out}{path}")));
        image.into_iter().chain(made).collect()
    }

    fn reset(&self) {
        let _ = fs::remove_dir_all(self.dir.path("out"));
    }

    /// 1: something could not be restored.
    fn codes(&self) -> &'static [i32] {
        &[1, 5]
    }

    fn judge(&self, _: &Fault, run: &Run) -> Result<(), String> {
        let out = self.dir.path("out");
        let found = match out.exists() {
            true => tree::contents(&out),
            false => Contents::new(),
        };
        if run.succeeded() {
            let wrong = tree::difference(&self.expected, &found);
            return wrong.map_or(Ok(()), |what| Err(format!("exit code 0, but {what}")));
        }
        for (path, entry) in &found {
            let Some(expected) = self.expected.get(path) else {
                if run.failed_call("unlink") {
                    continue;
                }
                return Err(format!("{path:?} stays"));
            };
            let is_whole = entry.content.len() == expected.content.len();
            if (is_whole || NAMES_ARE_FINAL) && entry.content != expected.content {
                return Err(format!("an error, and {path:?} has wrong content"));
            }
        }
        Ok(())
    }
}

#[test]
fn extract_restores_the_tree_or_reports_missing_files() {
    let scene = Extract::new(
        "extract",
        &["-z", "zstd"],
        &["extract", "-j", "1", "image", "out"],
    );
    sweep(&scene.dir.0, &scene);
}

#[test]
fn extract_of_plain_files_restores_the_tree_or_reports_missing_files() {
    let scene = Extract::new(
        "plain",
        &["-z", "none"],
        &["extract", "-j", "2", "image", "out"],
    );
    sweep(&scene.dir.0, &scene);
}

#[test]
fn extract_retries_interrupted_calls() {
    let scene = Extract::new(
        "extract-interrupted",
        &["-z", "zstd"],
        &["extract", "-j", "1", "image", "out"],
    );
    interrupt(&scene.dir.0, &scene);
}

#[test]
fn extract_of_plain_files_retries_interrupted_calls() {
    let scene = Extract::new(
        "plain-interrupted",
        &["-z", "none"],
        &["extract", "-j", "1", "image", "out"],
    );
    interrupt(&scene.dir.0, &scene);
}
