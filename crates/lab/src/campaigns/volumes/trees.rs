//! Loads of many small files: a tree of the machine is unpacked and removed, and a repository of it is cloned.

use super::load::Cost;
use crate::measure::helper;
use crate::measure::workspace::Work;
use crate::{At, Error, Result};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files that are created and deleted in one directory.
const FILES: usize = 12_000;
/// The same, while the data of the unpacked tree is being written.
const FILES_AFTER: usize = 3000;
/// Time after which git does not take files for just changed, and attributes that were kept for a second are asked for.
const PAUSE: Duration = Duration::from_millis(1500);

/// Tree, archive and repository, outside of the places.
pub(super) struct Trees {
    tree: PathBuf,
    tar: PathBuf,
    repository: PathBuf,
    entries: usize,
}

fn run(program: &str, words: &[&OsStr]) -> Result<String> {
    helper::output(program, words.iter().copied())
}

fn git(words: &[&OsStr]) -> Result<String> {
    let user = ["-c", "user.name=lab", "-c", "user.email=lab@localhost"].map(OsStr::new);
    run("git", &[&user, words].concat())
}

/// Calls `what` and returns its time as the cost of each of `count` operations. Unit: nanoseconds.
fn timed(count: usize, what: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    what()?;
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}

fn sync(place: &Path) -> Result<()> {
    run("sync", &["-f".as_ref(), place.as_os_str()]).map(drop)
}

impl Trees {
    /// Packs a tree and commits it to a repository.
    pub(super) fn prepare(work: &Work, tree: &Path) -> Result<Self> {
        let tree = tree.canonicalize().at("find", tree)?;
        let (tar, repository) = (work.path("tree.tar"), work.path("tree.git"));
        run(
            "tar",
            &[
                "-cf".as_ref(),
                tar.as_os_str(),
                "-C".as_ref(),
                tree.as_os_str(),
                ".".as_ref(),
            ],
        )?;
        let listed = run("tar", &["-tf".as_ref(), tar.as_os_str()])?;
        git(&["init".as_ref(), "-q".as_ref(), repository.as_os_str()])?;
        let of = |words: &[&str]| {
            let words = words.iter().map(OsStr::new).collect::<Vec<_>>();
            let dir = [
                "-C".as_ref(),
                repository.as_os_str(),
                "--work-tree".as_ref(),
            ];
            git(&[&dir, &[tree.as_os_str()][..], &words].concat())
        };
        of(&["add", "-A", "."])?;
        of(&["commit", "-q", "-m", "tree"])?;
        Ok(Self {
            entries: listed.lines().count(),
            tree,
            tar,
            repository,
        })
    }

    /// Runs all loads in a place. The unpacked tree is compared with its source.
    pub(super) fn run(&self, place: &Path) -> Result<Vec<Cost>> {
        let (tree, made, clone) = (place.join("tree"), place.join("made"), place.join("clone"));
        fs::create_dir(&tree).at("create", &tree)?;
        let unpack = [
            "-xf".as_ref(),
            self.tar.as_os_str(),
            "-C".as_ref(),
            tree.as_os_str(),
        ];
        let mut costs = vec![(
            "untar an entry, us",
            timed(self.entries, || run("tar", &unpack).map(drop))?,
        )];
        costs.push(("create after it, us", create(&made, FILES_AFTER)?));
        costs.push(("unlink after it, us", unlink(&made, FILES_AFTER)?));
        sync(place)?;
        let compared = ["-r".as_ref(), "--no-dereference".as_ref()];
        run(
            "diff",
            &[&compared[..], &[self.tree.as_os_str(), tree.as_os_str()]].concat(),
        )?;
        costs.push((
            "rm -rf, an entry, us",
            timed(self.entries, || {
                run("rm", &["-rf".as_ref(), tree.as_os_str()]).map(drop)
            })?,
        ));
        sync(place)?;
        costs.push(("create a file, us", create(&made, FILES)?));
        sync(place)?;
        costs.push(("unlink a file, us", unlink(&made, FILES)?));
        let words = ["clone", "-q", "--no-hardlinks"].map(OsStr::new);
        let both = [self.repository.as_os_str(), clone.as_os_str()];
        costs.push((
            "git clone, a file, us",
            timed(self.entries, || {
                git(&[&words[..], &both].concat()).map(drop)
            })?,
        ));
        let status = [
            "-C".as_ref(),
            clone.as_os_str(),
            "status".as_ref(),
            "-s".as_ref(),
        ];
        std::thread::sleep(PAUSE);
        git(&status)?;
        std::thread::sleep(PAUSE);
        let mut changes = String::new();
        costs.push((
            "git status, a file, us",
            timed(self.entries, || {
                changes = git(&status)?;
                Ok(())
            })?,
        ));
        match changes.is_empty() {
            true => Ok(costs),
            false => Err(Error::Command(format!("the clone has changes: {changes}"))),
        }
    }
}

/// Creates empty files in a new directory.
fn create(dir: &Path, count: usize) -> Result<f64> {
    fs::create_dir(dir).at("create", dir)?;
    timed(count, || {
        for n in 0..count {
            let path = dir.join(n.to_string());
            File::create_new(&path).at("create", &path)?;
        }
        Ok(())
    })
}

/// Deletes the files of [`create`], and their directory.
fn unlink(dir: &Path, count: usize) -> Result<f64> {
    let cost = timed(count, || {
        for n in 0..count {
            let path = dir.join(n.to_string());
            fs::remove_file(&path).at("delete", &path)?;
        }
        Ok(())
    })?;
    fs::remove_dir(dir).at("delete", dir)?;
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_unpacked_and_cloned_and_a_changed_one_is_found() {
        if git(&["--version".as_ref()]).is_err() {
            tuff_testkit::skipped("no git");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (tree, place) = (folder.path().join("t"), folder.path().join("p"));
        fs::create_dir_all(tree.join("d")).unwrap();
        fs::write(tree.join("d/f"), "content").unwrap();
        fs::create_dir(&place).unwrap();
        let work = Work::create(folder.path()).unwrap();
        let trees = Trees::prepare(&work, &tree).unwrap();
        assert_eq!(trees.entries, 3);
        let costs = trees.run(&place).unwrap();
        assert!(costs.iter().all(|(_, cost)| *cost > 0.0), "{costs:?}");
        fs::remove_dir_all(&place).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(tree.join("d/f"), "changed").unwrap();
        let error = trees.run(&place).unwrap_err();
        assert!(error.to_string().contains("diff"), "{error}");
    }
}
