//! Faults during `build` and `patch`: the image is complete or absent.

use crate::inject::{Fault, Run};
use crate::sweep::{Dir, Scene, interrupt, sweep};
use crate::tree;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Runs the binary without faults; it must succeed.
fn good(dir: &Dir, args: &[&str]) {
    let out = Command::new(env!("CARGO_BIN_EXE_tuff"))
        .current_dir(&dir.0)
        .env_remove("SOURCE_DATE_EPOCH")
        .args(args)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {message}");
}

/// Scene of a verb that writes `out/image`.
struct Image<'a> {
    dir: &'a Dir,
    args: &'static [&'static str],
    /// Image before the run, if there was one.
    old: Option<Vec<u8>>,
    new: Vec<u8>,
}

impl<'a> Image<'a> {
    /// Uses an existing `out/image` as the old image, and determines the new one.
    fn new(dir: &'a Dir, args: &'static [&'static str]) -> Self {
        let old = fs::read(dir.path("out/image")).ok();
        good(dir, args);
        let new = fs::read(dir.path("out/image")).unwrap();
        assert_ne!(old.as_ref(), Some(&new));
        Self {
            dir,
            args,
            old,
            new,
        }
    }
}

impl Scene for Image<'_> {
    fn args(&self) -> Vec<&'static str> {
        self.args.to_vec()
    }

    fn files(&self) -> Vec<PathBuf> {
        let sources = self.args.iter().map(|arg| self.dir.path(arg));
        sources
            .filter(|path| path.exists())
            .flat_map(|path| tree::paths(&path))
            .collect()
    }

    fn reset(&self) {
        let out = self.dir.path("out");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        if let Some(old) = &self.old {
            fs::write(out.join("image"), old).unwrap();
        }
    }

    fn judge(&self, _: &Fault, run: &Run) -> Result<(), String> {
        let found = fs::read(self.dir.path("out/image")).ok();
        let is_new = found.as_ref() == Some(&self.new);
        let is_old = found == self.old;
        // The image has its name before its directory is synced and the summary is written.
        let is_late = run.failed_call("sync(") || run.failed_call("write(1<");
        match run.succeeded() {
            true if !is_new => return Err("exit code 0, but not the image".to_owned()),
            false if !(is_old || is_new && is_late) => {
                return Err(match is_new {
                    true => "an error, but the new image".to_owned(),
                    false => "an error, and neither the old image nor none".to_owned(),
                });
            }
            _ => {}
        }
        let names = fs::read_dir(self.dir.path("out"))
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let other: Vec<_> = names.filter(|name| name != "image").collect();
        if !other.is_empty() && !run.failed_call("unlink") {
            return Err(format!("{other:?} stays"));
        }
        Ok(())
    }
}

/// Creates a directory with a tree in `tree`, its tar in `tree.tar`, and `out` for the image.
fn place(name: &str) -> Dir {
    let dir = Dir::new(name);
    tree::make(&dir.path("tree"));
    fs::create_dir(dir.path("out")).unwrap();
    dir
}

#[test]
fn build_leaves_a_complete_image_or_nothing() {
    let dir = place("build");
    let scene = Image::new(&dir, &["build", "-j", "1", "tree", "out/image"]);
    sweep(&dir.0, &scene);
}

#[test]
fn build_replaces_an_image_in_whole_or_not_at_all() {
    let dir = place("replace");
    good(&dir, &["build", "tree/sub", "out/image"]);
    let args = &[
        "build",
        "-j",
        "2",
        "--sync",
        "--verify",
        "--verity",
        "-z",
        "zstd:3",
        "--fragments",
        "all",
        "tree",
        "out/image",
    ];
    let scene = Image::new(&dir, args);
    sweep(&dir.0, &scene);
}

#[test]
fn build_from_a_tar_leaves_a_complete_image_or_nothing() {
    let dir = place("tar");
    good(&dir, &["build", "tree", "out/image"]);
    good(&dir, &["tar", "out/image", "tree.tar"]);
    fs::remove_file(dir.path("out/image")).unwrap();
    let scene = Image::new(&dir, &["build", "-j", "1", "tree.tar", "out/image"]);
    sweep(&dir.0, &scene);
}

#[test]
fn build_from_an_image_leaves_a_complete_image_or_nothing() {
    let dir = place("image");
    good(&dir, &["build", "tree", "old.erofs"]);
    let scene = Image::new(
        &dir,
        &["build", "-j", "1", "-z", "zstd", "old.erofs", "out/image"],
    );
    sweep(&dir.0, &scene);
}

#[test]
fn patch_leaves_the_old_image_or_the_new_one() {
    let dir = place("patch");
    good(&dir, &["build", "tree", "out/image"]);
    fs::write(dir.path("tree/new"), tree::bytes(50_000, 7)).unwrap();
    fs::write(dir.path("tree/text"), "another text\n".repeat(3000)).unwrap();
    let scene = Image::new(&dir, &["patch", "-j", "1", "tree", "out/image"]);
    sweep(&dir.0, &scene);
}

#[test]
fn build_retries_interrupted_calls() {
    let dir = place("build-interrupted");
    good(&dir, &["build", "tree/sub", "out/image"]);
    let args = &[
        "build",
        "-j",
        "1",
        "--sync",
        "--verify",
        "tree",
        "out/image",
    ];
    let scene = Image::new(&dir, args);
    interrupt(&dir.0, &scene);
}

#[test]
fn patch_retries_interrupted_calls() {
    let dir = place("patch-interrupted");
    good(&dir, &["build", "tree", "out/image"]);
    fs::write(dir.path("tree/new"), tree::bytes(50_000, 7)).unwrap();
    let scene = Image::new(&dir, &["patch", "-j", "1", "tree", "out/image"]);
    interrupt(&dir.0, &scene);
}
