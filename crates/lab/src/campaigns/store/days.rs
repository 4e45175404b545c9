//! Input of the campaign: one tree that changes day by day, as a machine in use does.
//!
//! | part | content | each day |
//! |---|---|---|
//! | `source` | a git repository's files | the files of a later commit |
//! | `documents` | texts | some are edited in the middle, some are new, one is renamed, one is removed |
//! | `mail` | one mailbox | grows at its end |
//! | `database` | one file of pages | some pages change |
//! | `photos` | incompressible files | some are new |
//! | `packages` | Debian packages, with the full scale | updates |
//! | `python` | Python packages, with the full scale | updates |
//!
//! Files that do not change keep inode and times, because programs skip files by them. The tree of a day is the same on each machine that
//! has the same packages. Files that change get the time of their day.

use crate::campaigns::corpus::Corpora;
use crate::measure::{helper, stop, workspace};
use crate::{At, Error, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tuff_testkit::Rng;

/// Seed of everything random.
const SEED: u64 = 46;
/// Time of the first day in seconds: 2026-01-01.
const FIRST_DAY: i64 = 1_767_225_600;
const DAY: i64 = 86_400;
/// Commits of the repository between two days.
const COMMITS: u32 = 20;
/// Last day for which the repository is asked for a commit.
const LAST_DAY: u32 = 29;
const PAGE: usize = 4096;
/// File that no day renames or removes, for restores of one file.
pub(super) const FILE: &str = "documents/kept.txt";
/// Time limit of a command of git or of a copy.
const LIMIT: Duration = Duration::from_secs(1800);

/// Size of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scale {
    /// About 2.5 GB, with packages of the Debian release that runs here.
    Full,
    /// Some 20 MB of what needs no network, to try the campaign.
    Small,
}

impl Scale {
    /// Returns the name of the scale.
    pub(super) fn name(self) -> &'static str {
        match self {
            Scale::Full => "full",
            Scale::Small => "small",
        }
    }

    /// Returns the number that is for the full scale, and its share for the small one.
    fn share(self, full: usize) -> usize {
        match self {
            Scale::Full => full,
            Scale::Small => (full / 50).max(1),
        }
    }
}

/// Tree of a day, in a folder.
pub(super) struct Days {
    folder: PathBuf,
    scale: Scale,
    /// Repository and the commit of the last day.
    repository: PathBuf,
    commit: String,
}

impl Days {
    /// Returns the tree in a folder. `repository` has the commit.
    pub(super) fn new(folder: PathBuf, scale: Scale, repository: &Path, commit: &str) -> Days {
        Days {
            folder,
            scale,
            repository: repository.to_owned(),
            commit: commit.to_owned(),
        }
    }

    /// Returns the path of the tree.
    pub(super) fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// Returns the day of the tree. None if it is not complete.
    pub(super) fn day(&self) -> Option<u32> {
        self.number("day")
    }

    /// Returns the number of times that the tree was made from the beginning.
    pub(super) fn generation(&self) -> u32 {
        self.number("generation").unwrap_or(0)
    }

    fn number(&self, name: &str) -> Option<u32> {
        let text = std::fs::read_to_string(self.folder.join(name));
        text.ok()?.trim().parse().ok()
    }

    /// Removes the tree and makes that of day 0.
    pub(super) fn begin(&self) -> Result<()> {
        let generation = self.generation() + 1;
        std::fs::create_dir_all(&self.folder).at("create", &self.folder)?;
        self.mark("day", None)?;
        workspace::remove(&self.tree())?;
        std::fs::create_dir(self.tree()).at("create", &self.tree())?;
        self.mark("generation", Some(generation))?;
        self.change(0)
    }

    /// Makes the tree that of the next day.
    pub(super) fn advance(&self) -> Result<()> {
        let day = self.day().ok_or_else(|| {
            Error::Usage("there is no tree of a day; --make-days makes it".to_owned())
        })?;
        self.mark("day", None)?;
        self.change(day + 1)
    }

    fn mark(&self, name: &str, number: Option<u32>) -> Result<()> {
        let path = self.folder.join(name);
        match number {
            Some(number) => std::fs::write(&path, number.to_string()).at("write", &path),
            None => workspace::remove(&path),
        }
    }

    fn change(&self, day: u32) -> Result<()> {
        eprintln!("tree of day {day}");
        let mut tree = Tree {
            root: self.tree(),
            seconds: FIRST_DAY + i64::from(day) * DAY,
            random: Rng::new(SEED << 32 | u64::from(day)),
            touched: BTreeSet::new(),
            texts: Vec::new(),
        };
        self.source(&mut tree, day)?;
        if self.scale == Scale::Full {
            self.packages(&mut tree, day)?;
            self.python(&mut tree, day)?;
        }
        self.documents(&mut tree, day)?;
        self.mail(&mut tree, day)?;
        self.database(&mut tree, day)?;
        self.photos(&mut tree, day)?;
        tree.finish()?;
        rustix::fs::sync();
        self.mark("day", Some(day))
    }

    /// Files of the repository, 20 commits a day.
    fn source(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let back = COMMITS * LAST_DAY.saturating_sub(day);
        let (scratch, tar) = (self.folder.join("source"), self.folder.join("source.tar"));
        workspace::remove(&scratch)?;
        std::fs::create_dir(&scratch).at("create", &scratch)?;
        let mut git = Command::new("git");
        git.arg("-C")
            .arg(&self.repository)
            .args(["archive", "--format=tar", "-o"])
            .arg(&tar)
            .arg(format!("{}~{back}", self.commit));
        helper::run(&mut git, 0, LIMIT).map_err(Error::Command)?;
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&tar).arg("-C").arg(&scratch);
        helper::run(&mut unpack, 0, LIMIT).map_err(Error::Command)?;
        tree.update(&scratch, Path::new("source"))?;
        workspace::remove(&scratch)?;
        workspace::remove(&tar)
    }

    /// Debian packages: on day 0 older versions where the archive has one, then the newer ones, some each day.
    fn packages(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let corpora = self.folder.join("trees");
        let (root, older) = (corpora.join("root"), corpora.join("older"));
        if day == 0 {
            std::fs::create_dir_all(&corpora).at("create", &corpora)?;
            for name in ["root", "older", "wheels", "documents"] {
                Corpora::provide(name, &corpora)?;
            }
            copy(&root, &tree.root.join("packages"))?;
        }
        for (number, name) in names(&older)?.iter().enumerate() {
            let update_day = 1 + number as u32 % LAST_DAY;
            for path in files_below(&older.join(name))? {
                let to = Path::new("packages").join(&path);
                if day == 0 {
                    tree.put(&older.join(name).join(&path), &to)?;
                } else if day == update_day {
                    match root.join(&path).symlink_metadata() {
                        Ok(_) => tree.put(&root.join(&path), &to)?,
                        Err(_) => tree.remove(&to)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Python packages: each is updated every few days, and all of its files are written anew.
    fn python(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let wheels = self.folder.join("trees/wheels");
        for (number, name) in names(&wheels)?.iter().enumerate() {
            let releases = names(&wheels.join(name))?;
            let every = (LAST_DAY + 1) / releases.len().max(1) as u32;
            let (turn, rest) = (day / every, (day + number as u32) % every);
            let Some(release) = releases.get(turn as usize) else {
                continue;
            };
            if day == 0 || rest == 0 {
                let to = Path::new("python").join(name);
                workspace::remove(&tree.root.join(&to))?;
                tree.update(&wheels.join(name).join(release), &to)?;
            }
        }
        Ok(())
    }

    fn documents(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let folder = Path::new("documents");
        if day == 0 {
            // The full scale has manuals of Debian packages, the small one those of the repository.
            let from = match self.scale {
                Scale::Full => self.folder.join("trees/documents/usr/share"),
                Scale::Small => tree.root.join("source/docs"),
            };
            for path in files_below(&from)? {
                if from
                    .join(&path)
                    .symlink_metadata()
                    .is_ok_and(|m| m.is_file())
                {
                    tree.put(&from.join(&path), &folder.join(&path))?;
                }
            }
            let text = tree.passage(40_000)?;
            return tree.write(Path::new(FILE), &text);
        }
        let mut paths = files_below(&tree.root.join(folder))?;
        paths.retain(|path| folder.join(path) != Path::new(FILE));
        for _ in 0..self.scale.share(60) {
            let at = tree.random.below(paths.len());
            tree.edit(&folder.join(&paths[at]))?;
        }
        for number in 0..self.scale.share(30) {
            let length = 2000 + tree.random.below(60_000);
            let text = tree.passage(length)?;
            let name = format!("new/{day:02}-{number:03}.txt");
            tree.write(&folder.join(name), &text)?;
        }
        let (old, gone) = (
            tree.random.below(paths.len()),
            tree.random.below(paths.len()),
        );
        let name = format!("renamed-{day:02}");
        tree.rename(&folder.join(&paths[old]), &folder.join(name))?;
        if old != gone {
            tree.remove(&folder.join(&paths[gone]))?;
        }
        Ok(())
    }

    fn mail(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let length = self.scale.share(if day == 0 { 150 << 20 } else { 1 << 20 });
        let mut text = Vec::new();
        while text.len() < length {
            let size = 1000 + tree.random.below(20_000);
            text.extend_from_slice(format!("From lab {:016x}\n", tree.random.draw()).as_bytes());
            text.extend_from_slice(&tree.passage(size)?);
        }
        tree.append(Path::new("mail/inbox"), &text)
    }

    fn database(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let path = Path::new("database/data.db");
        let page = |tree: &mut Tree| -> Result<Vec<u8>> {
            let mut page = tree.passage(PAGE / 2)?;
            page.resize(PAGE / 2, b' ');
            page.extend(helper::noise(&mut tree.random, PAGE / 2));
            Ok(page)
        };
        let new = self.scale.share(if day == 0 { 65_536 } else { 128 });
        let mut pages = Vec::with_capacity(new * PAGE);
        for _ in 0..new {
            pages.extend(page(tree)?);
        }
        tree.append(path, &pages)?;
        if day > 0 {
            let count = (tree.len(path)? / PAGE as u64) as usize;
            for _ in 0..self.scale.share(300) {
                let at = tree.random.below(count) * PAGE;
                let content = page(tree)?;
                tree.overwrite(path, at as u64, &content)?;
            }
        }
        Ok(())
    }

    fn photos(&self, tree: &mut Tree, day: u32) -> Result<()> {
        let count = match (self.scale, day) {
            (Scale::Full, 0) => 150,
            (Scale::Full, _) => 6,
            (Scale::Small, 0) => 20,
            (Scale::Small, _) => 3,
        };
        for number in 0..count {
            stop::check()?;
            let full = self.scale.share(2 << 20);
            let length = full + tree.random.below(full);
            let photo = helper::noise(&mut tree.random, length);
            let path = format!("photos/{day:02}/{number:04}.jpg");
            tree.write(Path::new(&path), &photo)?;
        }
        Ok(())
    }
}

/// Tree that changes, and the folders whose times are to be set.
struct Tree {
    root: PathBuf,
    seconds: i64,
    random: Rng,
    touched: BTreeSet<PathBuf>,
    /// Texts of which passages are made.
    texts: Vec<Vec<u8>>,
}

impl Tree {
    /// Makes a folder equal to another one. Files with equal content, mode and kind stay as they are.
    fn update(&mut self, from: &Path, to: &Path) -> Result<()> {
        let new = files_below(from)?;
        for path in &new {
            let (source, old) = (from.join(path), self.root.join(to).join(path));
            if !is_equal(&source, &old)? {
                self.put(&source, &to.join(path))?;
            }
        }
        if !self.root.join(to).exists() {
            return Ok(());
        }
        let new: BTreeSet<&PathBuf> = new.iter().collect();
        for path in files_below(&self.root.join(to))? {
            if !new.contains(&path) {
                self.remove(&to.join(path))?;
            }
        }
        Ok(())
    }

    /// Copies a file or a symbolic link.
    fn put(&mut self, from: &Path, to: &Path) -> Result<()> {
        let metadata = from.symlink_metadata().at("stat", from)?;
        if metadata.is_symlink() {
            let target = from.read_link().at("read the link", from)?;
            let path = self.prepare(to)?;
            workspace::remove(&path)?;
            symlink(target, &path).at("create", &path)?;
            return self.stamp(to);
        }
        let content = std::fs::read(from).at("read", from)?;
        // As a package manager does: a new file takes the place of the old one.
        workspace::remove(&self.root.join(to))?;
        self.write(to, &content)?;
        let path = self.root.join(to);
        std::fs::set_permissions(&path, metadata.permissions()).at("change the mode of", &path)
    }

    fn write(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        let full = self.prepare(path)?;
        std::fs::write(&full, content).at("write", &full)?;
        self.stamp(path)
    }

    fn append(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        let full = self.prepare(path)?;
        let at = full.metadata().map_or(0, |m| m.len());
        self.overwrite(path, at, content)
    }

    fn overwrite(&mut self, path: &Path, at: u64, content: &[u8]) -> Result<()> {
        let full = self.prepare(path)?;
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(&full);
        let file = file.at("open", &full)?;
        file.write_all_at(content, at).at("write", &full)?;
        self.stamp(path)
    }

    /// Inserts a passage in the middle of a file, and removes some bytes further on.
    fn edit(&mut self, path: &Path) -> Result<()> {
        let full = self.root.join(path);
        let mut content = std::fs::read(&full).at("read", &full)?;
        let at = self.random.below(content.len() + 1);
        let length = 20 + self.random.below(400);
        let passage = self.passage(length)?;
        content.splice(at..at, passage);
        let cut = self.random.below(content.len());
        let end = content.len().min(cut + self.random.below(100));
        content.drain(cut..end);
        self.write(path, &content)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let (old, new) = (self.root.join(from), self.prepare(to)?);
        std::fs::rename(&old, &new).at("rename", &old)?;
        self.touch(from);
        self.touch(to);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        workspace::remove(&self.root.join(path))?;
        self.touch(path);
        Ok(())
    }

    fn len(&self, path: &Path) -> Result<u64> {
        workspace::length(&self.root.join(path))
    }

    /// Returns a passage of the source code: text that is not equal in two places by chance alone.
    fn passage(&mut self, length: usize) -> Result<Vec<u8>> {
        if self.texts.is_empty() {
            for name in ["CHANGELOG.md", "Cargo.lock", "ARCHITECTURE.md"] {
                let path = self.root.join("source").join(name);
                let text = std::fs::read(&path).unwrap_or_default();
                self.texts.push([name.as_bytes(), &text[..]].concat());
            }
        }
        let mut out = Vec::with_capacity(length + 512);
        while out.len() < length {
            let text = &self.texts[self.random.below(self.texts.len())];
            let begin = self.random.below(text.len());
            let end = text.len().min(begin + 20 + self.random.below(200));
            out.extend_from_slice(&text[begin..end]);
            out.extend_from_slice(format!(" {:x}\n", self.random.draw()).as_bytes());
        }
        out.truncate(length);
        Ok(out)
    }

    /// Creates the parents of a path, and returns it below the root.
    fn prepare(&mut self, path: &Path) -> Result<PathBuf> {
        let full = self.root.join(path);
        if let Some(parent) = full.parent()
            && !parent.exists()
        {
            std::fs::create_dir_all(parent).at("create", parent)?;
        }
        self.touch(path);
        Ok(full)
    }

    /// Notes that the folders of a path change.
    fn touch(&mut self, path: &Path) {
        let parents = path.ancestors().skip(1).map(Path::to_owned);
        self.touched.extend(parents);
    }

    fn stamp(&self, path: &Path) -> Result<()> {
        let time = Timespec {
            tv_sec: self.seconds,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        let full = self.root.join(path);
        utimensat(CWD, &full, &times, AtFlags::SYMLINK_NOFOLLOW).at("set the times of", &full)
    }

    /// Removes folders that became empty, and sets the times of the others that changed.
    fn finish(&mut self) -> Result<()> {
        let touched = std::mem::take(&mut self.touched);
        // Children first.
        for path in touched.iter().rev() {
            let full = self.root.join(path);
            if !path.as_os_str().is_empty() && std::fs::remove_dir(&full).is_ok() {
                continue;
            }
            if full.exists() {
                self.stamp(path)?;
            }
        }
        Ok(())
    }
}

/// Returns the names in a folder in order.
fn names(folder: &Path) -> Result<Vec<std::ffi::OsString>> {
    let listing = std::fs::read_dir(folder).at("list", folder)?;
    let names: std::io::Result<Vec<_>> = listing.map(|e| e.map(|e| e.file_name())).collect();
    let mut names = names.at("list", folder)?;
    names.sort();
    Ok(names)
}

/// Returns the relative paths of everything below a folder that is no folder, in order.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(path) = stack.pop() {
        let full = folder.join(&path);
        let metadata = full.symlink_metadata().at("stat", &full)?;
        match metadata.is_dir() {
            true => stack.extend(names(&full)?.iter().map(|name| path.join(name))),
            false => out.push(path),
        }
    }
    out.sort();
    Ok(out)
}

fn is_equal(new: &Path, old: &Path) -> Result<bool> {
    let Ok(before) = old.symlink_metadata() else {
        return Ok(false);
    };
    let now = new.symlink_metadata().at("stat", new)?;
    if now.mode() != before.mode() || now.len() != before.len() {
        return Ok(false);
    }
    if now.is_symlink() {
        return Ok(new.read_link().at("read the link", new)?
            == old.read_link().at("read the link", old)?);
    }
    Ok(std::fs::read(new).at("read", new)? == std::fs::read(old).at("read", old)?)
}

/// Copies a folder with all attributes, without data where the filesystem shares it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let words = ["-a", "--reflink=auto"].map(OsStr::new);
    helper::output(
        "cp",
        words.into_iter().chain([from.as_os_str(), to.as_os_str()]),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::tree;

    /// Makes a repository with more commits than the days need, each of which changes the same file.
    fn repository(folder: &Path) -> Option<PathBuf> {
        let repository = folder.join("repository");
        let script = "git init -q . && git config user.name lab && git config user.email lab@localhost
            mkdir docs && for n in 1 2 3 4 5; do seq $n 500 > docs/$n.md; done
            for n in 1 2 3; do seq $n 900 > CHANGELOG.md; seq $n > Cargo.lock; git add . && git commit -qm $n; done";
        std::fs::create_dir(&repository).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script]).current_dir(&repository);
        match helper::run(&mut shell, 0, LIMIT) {
            Ok(_) => Some(repository),
            Err(e) => {
                tuff_testkit::skipped(e);
                None
            }
        }
    }

    #[test]
    fn a_day_changes_some_files_and_leaves_the_others_alone() {
        let folder = tempfile::tempdir().unwrap();
        let Some(repository) = repository(folder.path()) else {
            return;
        };
        let make = |name: &str| {
            let days = Days::new(folder.path().join(name), Scale::Small, &repository, "HEAD");
            // Only the last day has a commit in so short a history.
            std::fs::create_dir_all(days.tree()).unwrap();
            days.mark("day", Some(LAST_DAY - 1)).unwrap();
            days
        };
        let fill = |days: &Days| {
            let mut tree = Tree {
                root: days.tree(),
                seconds: FIRST_DAY,
                random: Rng::new(1),
                touched: BTreeSet::new(),
                texts: Vec::new(),
            };
            days.source(&mut tree, LAST_DAY).unwrap();
            days.documents(&mut tree, 0).unwrap();
            days.photos(&mut tree, 0).unwrap();
            tree.finish().unwrap();
        };
        let (one, two) = (make("one"), make("two"));
        fill(&one);
        fill(&two);
        let before = tree::Tree::read(&one.tree()).unwrap();
        let inode = |days: &Days, path: &str| days.tree().join(path).metadata().unwrap().ino();
        let kept = inode(&one, FILE);
        one.advance().unwrap();
        two.advance().unwrap();
        assert_eq!(one.day(), Some(LAST_DAY));
        let after = tree::Tree::read(&one.tree()).unwrap();
        assert_eq!(
            after.differences(&tree::Tree::read(&two.tree()).unwrap()),
            []
        );
        assert_eq!(inode(&one, FILE), kept);
        assert_ne!(before.differences(&after), []);
        let changed = |path: &str| {
            let entry = |tree: &tree::Tree| {
                let found = tree.entries.iter().find(|e| e.path == path.as_bytes());
                found.cloned().unwrap()
            };
            entry(&before) != entry(&after)
        };
        assert!(!changed(FILE) && !changed("photos/00/0000.jpg") && !changed("source/Cargo.lock"));
        assert!(changed("documents") && changed("photos"));
    }
}
