//! Corpora, the source trees of the measurements, and recipes to recreate them: `benchmarks/corpora.toml`.
//!
//! * `packages`: Debian packages, unpacked into one tree and not configured. `closure` adds all dependencies,
//!   alternatives included. apt selects the versions; `NAME.packages` lists them.
//! * `archive`: the content of a tar file inside a package.
//! * `generated`: small files generated from a seed.
//! * `releases`: tags of a git repository, one directory each.
//! * `parts`: directories and byte ranges of other corpora in the same directory.

use crate::engines::settings::Size;
use crate::{Error, Result};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs::{File, FileTimes};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

/// Text of the shipped `benchmarks/corpora.toml`.
pub const SHIPPED: &str = include_str!("../../../../benchmarks/corpora.toml");

/// Content of a corpora file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpora {
    /// Corpora in the order of the file.
    #[serde(rename = "corpus")]
    pub list: Vec<Corpus>,
}

/// Corpus: a source tree and its recipe.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpus {
    /// Name of the corpus and of its directory.
    pub name: String,
    /// Description, as a sentence.
    pub about: String,
    /// Whether the corpus is made when no corpus is named on the command line.
    #[serde(default)]
    pub usual: bool,
    /// Recipe that produces the tree.
    pub recipe: Recipe,
}

/// Recipe of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Recipe {
    /// Debian packages, unpacked into one tree.
    Packages {
        /// Names of Debian packages.
        packages: Vec<String>,
        /// Whether the dependencies of the packages are unpacked, too.
        #[serde(default)]
        closure: bool,
    },
    /// Content of a tar file inside a Debian package.
    Archive {
        /// Name of the Debian package.
        package: String,
        /// Path of the tar file in the package.
        archive: PathBuf,
    },
    /// Small files generated from a seed.
    Generated(Generated),
    /// Tags of a git repository, each in a directory named after the tag.
    Releases {
        /// Repository URL or path, as accepted by `git fetch`.
        repository: String,
        /// Names of the tags.
        tags: Vec<String>,
    },
    /// Parts of other corpora in the same directory.
    Parts {
        /// Directories to copy; each keeps its last path component as its name.
        folders: Vec<PathBuf>,
        /// Files cut from the content of one or several files.
        cuts: Vec<Cut>,
    },
}

/// File whose content is a byte range of other files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// Path of the new file in the tree.
    pub file: PathBuf,
    /// Source: a file, or a directory whose regular files are concatenated in path order.
    pub from: PathBuf,
    /// Ends of the names of the files that belong to the source. Empty for all files.
    #[serde(default)]
    pub endings: Vec<String>,
    /// Offset of the range in the source.
    #[serde(default)]
    pub skip: Size,
    /// Length of the range.
    pub length: Size,
}

/// Parameters of generated small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Generated {
    /// Total number of files.
    pub files: u64,
    /// Number of files in each directory.
    pub files_per_folder: u64,
    /// Largest file size in bytes. Sizes are distributed uniformly from 0.
    pub bytes_max: u64,
    /// Seed of the random generator.
    pub seed: u64,
}

impl Corpora {
    /// Creates a corpus of the shipped file in `folder`, and those it is cut from, unless they exist.
    pub fn provide(name: &str, folder: &Path) -> Result<PathBuf> {
        let tree = folder.join(name);
        if tree.exists() {
            return Ok(tree);
        }
        let corpora = Corpora::parse(SHIPPED)?;
        let corpus = corpora.list.iter().find(|c| c.name == name);
        let corpus = corpus.ok_or_else(|| Error::Usage(format!("no corpus is called '{name}'")))?;
        if let Recipe::Parts { folders, cuts } = &corpus.recipe {
            let sources = folders.iter().chain(cuts.iter().map(|c| &c.from));
            for source in sources.filter_map(|path| path.iter().next()) {
                Corpora::provide(&source.to_string_lossy(), folder)?;
            }
        }
        eprintln!("{}: {}", corpus.name, corpus.about);
        corpus.make(folder)?;
        Ok(tree)
    }

    /// Parses the text of a corpora file.
    pub fn parse(text: &str) -> Result<Corpora> {
        toml::from_str(text).map_err(|e| Error::Usage(format!("corpora: {}", e.to_string().trim())))
    }
}

impl Corpus {
    /// Creates the tree as `folder/NAME`, which must not exist.
    pub fn make(&self, folder: &Path) -> Result<()> {
        let tree = folder.join(&self.name);
        if tree.exists() {
            return Err(Error::Usage(format!("{} already exists", tree.display())));
        }
        let scratch = folder.join(format!("{}.part", self.name));
        remove(&scratch)?;
        create(&scratch)?;
        // Commands run in other working directories, so paths must be absolute.
        let scratch = scratch
            .canonicalize()
            .map_err(|e| Error::io("find", &scratch, e))?;
        let part = scratch.join("tree");
        create(&part)?;
        match &self.recipe {
            Recipe::Packages { packages, closure } => {
                let packages = if *closure {
                    self::closure(packages)?
                } else {
                    packages.clone()
                };
                let debs = download(&packages, &scratch)?;
                for deb in &debs {
                    unpack(deb, &part)?;
                }
                list(&debs, &folder.join(format!("{}.packages", self.name)))?;
            }
            Recipe::Archive { package, archive } => {
                let debs = download(std::slice::from_ref(package), &scratch)?;
                let package = scratch.join("package");
                create(&package)?;
                for deb in &debs {
                    unpack(deb, &package)?;
                }
                let tar = package.join(archive);
                done(
                    Command::new("tar")
                        .arg("-xf")
                        .arg(&tar)
                        .arg("-C")
                        .arg(&part),
                )?;
                list(&debs, &folder.join(format!("{}.packages", self.name)))?;
            }
            Recipe::Generated(generated) => generated.make(&part)?,
            Recipe::Releases { repository, tags } => releases(repository, tags, &scratch, &part)?,
            Recipe::Parts { folders, cuts } => {
                for name in folders {
                    let mut copy = Command::new("cp");
                    done(copy.arg("-a").arg(folder.join(name)).arg(&part))?;
                }
                for cut in cuts {
                    cut.make(folder, &part)?;
                }
            }
        }
        std::fs::rename(&part, &tree).map_err(|e| Error::io("rename", &part, e))?;
        remove(&scratch)
    }
}

impl Cut {
    fn make(&self, folder: &Path, tree: &Path) -> Result<()> {
        let from = folder.join(&self.from);
        let path = tree.join(&self.file);
        if let Some(parent) = path.parent() {
            create(parent)?;
        }
        let mut file = File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
        let (mut skip, mut left) = (self.skip.0, self.length.0);
        let mut sources = files_in_order(&from)?;
        sources.retain(|source| {
            let name = source.to_string_lossy();
            self.endings.is_empty() || self.endings.iter().any(|e| name.ends_with(e.as_str()))
        });
        for source in sources {
            let failed = |e| Error::io("copy", &source, e);
            let mut content = File::open(&source).map_err(failed)?;
            let length = content.metadata().map_err(failed)?.len();
            if skip >= length {
                skip -= length;
                continue;
            }
            content.seek(SeekFrom::Start(skip)).map_err(failed)?;
            skip = 0;
            left -= std::io::copy(&mut content.take(left), &mut file).map_err(failed)?;
            if left == 0 {
                return Ok(());
            }
        }
        Err(Error::Usage(format!(
            "{} is too short for {}",
            from.display(),
            self.file.display()
        )))
    }
}

/// Returns `path` itself if it is a file, or the regular files below it, sorted by path.
fn files_in_order(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let kind = path
            .symlink_metadata()
            .map_err(|e| Error::io("stat", &path, e))?;
        if kind.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(|e| Error::io("list", &path, e))? {
                open.push(entry.map_err(|e| Error::io("list", &path, e))?.path());
            }
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", folder, e)),
        _ => Ok(()),
    }
}

/// Runs a command and returns its standard output. The error holds the last line of its standard error.
fn done(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| Error::Io(format!("run {name}"), e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said
        .lines()
        .rfind(|l| !l.trim().is_empty())
        .unwrap_or("no message");
    Err(Error::Command(format!("{name} failed: {}", line.trim())))
}

/// Returns `packages` and their dependencies, without recommended and suggested packages.
fn closure(packages: &[String]) -> Result<Vec<String>> {
    let mut command = Command::new("apt-cache");
    command.args([
        "depends",
        "--recurse",
        "--no-recommends",
        "--no-suggests",
        "--no-conflicts",
    ]);
    command
        .args(["--no-breaks", "--no-replaces", "--no-enhances"])
        .args(packages);
    Ok(names(&String::from_utf8_lossy(&done(&mut command)?)))
}

/// Parses the output of `apt-cache depends`: unindented lines are packages. Virtual packages (in angle
/// brackets) and packages of other architectures (with a colon) are skipped.
fn names(depends: &str) -> Vec<String> {
    let begins = |l: &&str| l.starts_with(|c: char| c.is_ascii_alphanumeric());
    let mut names: Vec<String> = depends
        .lines()
        .filter(begins)
        .map(str::trim)
        .filter(|l| !l.contains([':', '<']))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Downloads packages and returns the files sorted by name, which is the order of unpacking.
fn download(packages: &[String], scratch: &Path) -> Result<Vec<PathBuf>> {
    let folder = scratch.join("debs");
    create(&folder)?;
    let mut command = Command::new("apt-get");
    done(
        command
            .args(["download", "-qq"])
            .args(packages)
            .current_dir(&folder),
    )?;
    let listing = std::fs::read_dir(&folder).map_err(|e| Error::io("list", &folder, e))?;
    let mut debs: Vec<PathBuf> = listing
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension() == Some(OsStr::new("deb")))
        .collect();
    debs.sort();
    Ok(debs)
}

fn unpack(deb: &Path, tree: &Path) -> Result<()> {
    done(Command::new("dpkg").arg("-x").args([deb, tree])).map(|_| ())
}

/// Writes the list of packages of a tree: digest and file name, which contains the version.
fn list(debs: &[PathBuf], file: &Path) -> Result<()> {
    let mut text = String::new();
    for deb in debs {
        let bytes = std::fs::read(deb).map_err(|e| Error::io("read", deb, e))?;
        let name = deb.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{} {name}\n", blake3::hash(&bytes).to_hex());
    }
    std::fs::write(file, text).map_err(|e| Error::io("write", file, e))
}

fn releases(repository: &str, tags: &[String], scratch: &Path, tree: &Path) -> Result<()> {
    let clone = scratch.join("clone");
    let git = || {
        let mut command = Command::new("git");
        command.arg("--git-dir").arg(&clone);
        command
    };
    done(git().args(["init", "--quiet", "--bare"]))?;
    for tag in tags {
        let reference = format!("refs/tags/{tag}");
        done(
            git()
                .args(["fetch", "--quiet", "--depth=1", repository])
                .arg(format!("{reference}:{reference}")),
        )?;
        let tar = scratch.join("release.tar");
        let prefix = format!("--prefix={tag}/");
        done(
            git()
                .args(["archive", "--format=tar", &prefix, "-o"])
                .arg(&tar)
                .arg(&reference),
        )?;
        done(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(tree))?;
    }
    Ok(())
}

/// Vocabulary of generated files.
const WORDS: [&str; 16] = [
    "image", "block", "inode", "cluster", "extent", "offset", "length", "write", "read", "mount",
    "tree", "path", "name", "time", "owner", "\n",
];

impl Generated {
    /// Writes the files below `tree`. All of them have the same timestamps.
    pub fn make(&self, tree: &Path) -> Result<()> {
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let times = FileTimes::new().set_accessed(time).set_modified(time);
        let stamp = |path: &Path| {
            let file = File::open(path).and_then(|f| f.set_times(times));
            file.map_err(|e| Error::io("set the times of", path, e))
        };
        let mut state = self.seed;
        let mut text = Vec::new();
        let mut folder = tree.to_owned();
        for number in 0..self.files {
            if number % self.files_per_folder.max(1) == 0 {
                folder = tree.join(format!("d{:06}", number / self.files_per_folder.max(1)));
                create(&folder)?;
            }
            // fits: sizes of small files
            let size = (next(&mut state) % (self.bytes_max + 1)) as usize;
            text.clear();
            while text.len() < size {
                let word = WORDS[(next(&mut state) % WORDS.len() as u64) as usize];
                text.extend_from_slice(word.as_bytes());
                text.push(b' ');
            }
            let path = folder.join(format!("f{number:07}"));
            let mut file = File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
            file.write_all(&text[..size])
                .map_err(|e| Error::io("write", &path, e))?;
            file.set_times(times)
                .map_err(|e| Error::io("set the times of", &path, e))?;
            if (number + 1) % self.files_per_folder.max(1) == 0 || number + 1 == self.files {
                stamp(&folder)?;
            }
        }
        stamp(tree)
    }
}

/// Returns the next number of Xorshift64*, the same on every platform.
fn next(state: &mut u64) -> u64 {
    let mut x = state.wrapping_add(0x9E37_79B9_7F4A_7C15).max(1);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::tree::Tree;

    #[test]
    fn the_shipped_file_lists_the_measured_trees() {
        let corpora = Corpora::parse(SHIPPED).unwrap();
        let names: Vec<&str> = corpora.list.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "root",
                "linux",
                "million",
                "releases",
                "reading",
                "bigtext",
                "documents",
                "assortment",
                "paper-text",
                "paper-mixed"
            ]
        );
        let Recipe::Releases { tags, .. } = &corpora.list[3].recipe else {
            panic!("releases")
        };
        assert_eq!(tags.len(), 20);
    }

    #[test]
    fn parts_are_copied_and_cut_from_other_corpora() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("s/d");
        std::fs::create_dir_all(&source).unwrap();
        for (name, text) in [("a", "0123"), ("b", "4567"), ("c", "89")] {
            std::fs::write(source.join(name), text).unwrap();
        }
        let cut = |skip, length| Cut {
            file: "sub/cut".into(),
            from: "s".into(),
            endings: Vec::new(),
            skip: Size(skip),
            length: Size(length),
        };
        let corpus = |name: &str, cut| Corpus {
            name: name.to_owned(),
            about: String::new(),
            usual: false,
            recipe: Recipe::Parts {
                folders: vec!["s/d".into()],
                cuts: vec![cut],
            },
        };
        corpus("t", cut(5, 4)).make(folder.path()).unwrap();
        let text = |path: &str| std::fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(
            (text("t/d/b"), text("t/sub/cut")),
            ("4567".to_owned(), "5678".to_owned())
        );
        assert!(corpus("u", cut(5, 6)).make(folder.path()).is_err());
        let ending = Cut {
            endings: vec!["c".to_owned()],
            ..cut(0, 2)
        };
        corpus("v", ending).make(folder.path()).unwrap();
        assert_eq!(text("v/sub/cut"), "89");
    }

    #[test]
    fn only_real_packages_of_this_architecture_are_in_a_closure() {
        let text = "\
gcc
  Depends: cpp
 |Depends: <virtual>
    libc6
<virtual>
cpp
libc6:i386
libc6
gcc
";
        assert_eq!(names(text), ["cpp", "gcc", "libc6"]);
    }

    #[test]
    fn the_same_seed_makes_the_same_tree() {
        let folder = tempfile::tempdir().unwrap();
        let generated = Generated {
            files: 25,
            files_per_folder: 10,
            bytes_max: 300,
            seed: 1,
        };
        let trees = ["one", "two"].map(|name| {
            let root = folder.path().join(name);
            create(&root).unwrap();
            generated.make(&root).unwrap();
            Tree::read(&root).unwrap()
        });
        assert_eq!(trees[0].differences(&trees[1]), []);
        assert_eq!((trees[0].size.files, trees[0].size.entries), (25, 29));
    }

    #[test]
    fn each_release_has_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("repository");
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command
                .args(["-c", "user.name=A", "-c", "user.email=a@example.org", "-C"])
                .arg(&repository);
            done(command.args(arguments)).unwrap();
        };
        let made = Command::new("git")
            .args(["init", "--quiet"])
            .arg(&repository)
            .status();
        if !made.is_ok_and(|s| s.success()) {
            tuff_testkit::skipped("each_release_has_its_own_folder: git was not found");
            return;
        }
        for tag in ["v1", "v2"] {
            std::fs::write(repository.join("file"), tag).unwrap();
            git(&["add", "file"]);
            git(&["commit", "--quiet", "-m", tag]);
            git(&["tag", tag]);
        }
        let corpus = Corpus {
            name: "r".to_owned(),
            about: String::new(),
            usual: false,
            recipe: Recipe::Releases {
                repository: repository.to_string_lossy().into_owned(),
                tags: vec!["v1".to_owned(), "v2".to_owned()],
            },
        };
        corpus.make(folder.path()).unwrap();
        for tag in ["v1", "v2"] {
            let file = folder.path().join("r").join(tag).join("file");
            assert_eq!(std::fs::read_to_string(file).unwrap(), tag);
        }
        assert!(corpus.make(folder.path()).is_err());
    }
}
