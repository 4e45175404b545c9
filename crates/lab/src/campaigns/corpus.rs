//! Corpora, the source trees of the measurements, and recipes to recreate them: `benchmarks/corpora.toml`.
//!
//! * `packages`: Debian packages, unpacked into one tree and not configured. `closure` adds all dependencies,
//!   alternatives included. apt selects the versions; `NAME.packages` lists them.
//!   `archive` names a tar file in them, whose content is the tree.
//! * `script`: a shell script that runs in the tree.
//! * `parts`: directories and byte ranges of other corpora in the same directory.

use crate::engines::settings::Size;
use crate::measure::{helper, root, workspace};
use crate::{At, Error, Result};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a command, such as a download.
const LIMIT: Duration = Duration::from_secs(3600);
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
        /// Path of a tar file in the packages. Its content is the tree.
        archive: Option<PathBuf>,
    },
    /// Tree that a script makes.
    Script {
        /// Script of sh, which ends at the first error.
        script: String,
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

/// Create trees to measure on, from packages of the running Debian release
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder for the trees
    pub dir: PathBuf,
    /// Create only these trees (default: those marked as usual)
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// List the available trees and exit
    #[arg(long)]
    pub list: bool,
}

/// Creates the selected trees.
pub fn run(options: &Options) -> Result<()> {
    let corpora = Corpora::parse(SHIPPED)?;
    for corpus in &corpora.list {
        if options.list {
            println!("{:<10} {}", corpus.name, corpus.about);
        } else if corpus.usual && options.only.is_empty() {
            Corpora::provide(&corpus.name, &options.dir)?;
        }
    }
    let mut only = options.only.iter().filter(|_| !options.list);
    only.try_for_each(|name| Corpora::provide(name, &options.dir).map(|_| ()))
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
        workspace::remove(&scratch)?;
        create(&scratch)?;
        // Commands run in other working directories, so paths must be absolute.
        let scratch = scratch.canonicalize().at("find", &scratch)?;
        let part = scratch.join("tree");
        create(&part)?;
        match &self.recipe {
            Recipe::Packages {
                packages,
                closure,
                archive,
            } => {
                let unpacked = match archive {
                    Some(_) => scratch.join("packages"),
                    None => part.clone(),
                };
                create(&unpacked)?;
                let packages = if *closure {
                    self::closure(packages)?
                } else {
                    packages.clone()
                };
                let debs = download(&packages, &scratch)?;
                for deb in &debs {
                    done(Command::new("dpkg").arg("-x").args([deb, &unpacked]))?;
                }
                if let Some(archive) = archive {
                    let tar = unpacked.join(archive);
                    done(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(&part))?;
                }
                list(&debs, &folder.join(format!("{}.packages", self.name)))?;
            }
            Recipe::Script { script } => {
                let mut shell = Command::new("sh");
                done(shell.args(["-e", "-c", script]).current_dir(&part))?;
            }
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
        std::fs::rename(&part, &tree).at("rename", &part)?;
        workspace::remove(&scratch)
    }
}

impl Cut {
    fn make(&self, folder: &Path, tree: &Path) -> Result<()> {
        let from = folder.join(&self.from);
        let path = tree.join(&self.file);
        if let Some(parent) = path.parent() {
            create(parent)?;
        }
        let mut file = File::create_new(&path).at("create", &path)?;
        let (mut skip, mut left) = (self.skip.0, self.length.0);
        let mut sources = files_in_order(&from)?;
        sources.retain(|source| {
            let name = source.to_string_lossy();
            self.endings.is_empty() || self.endings.iter().any(|e| name.ends_with(e.as_str()))
        });
        for source in sources {
            let mut content = File::open(&source).at("copy", &source)?;
            let length = content.metadata().at("copy", &source)?.len();
            if skip >= length {
                skip -= length;
                continue;
            }
            content.seek(SeekFrom::Start(skip)).at("copy", &source)?;
            skip = 0;
            left -= std::io::copy(&mut content.take(left), &mut file).at("copy", &source)?;
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
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    root::list(path, &mut files)?;
    let mut files: Vec<PathBuf> = files.into_iter().map(|(path, _)| path).collect();
    files.sort();
    Ok(files)
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).at("create", folder)
}

/// Runs a command and returns its standard output.
fn done(command: &mut Command) -> Result<String> {
    helper::run(command, 0, LIMIT).map_err(Error::Command)
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
    Ok(names(&done(&mut command)?))
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
    let listing = std::fs::read_dir(&folder).at("list", &folder)?;
    let mut debs: Vec<PathBuf> = listing
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension() == Some(OsStr::new("deb")))
        .collect();
    debs.sort();
    Ok(debs)
}

/// Writes the list of packages of a tree: digest and file name, which contains the version.
fn list(debs: &[PathBuf], file: &Path) -> Result<()> {
    let mut text = String::new();
    for deb in debs {
        let bytes = std::fs::read(deb).at("read", deb)?;
        let name = deb.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{} {name}\n", blake3::hash(&bytes).to_hex());
    }
    std::fs::write(file, text).at("write", file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_lists_the_measured_trees() {
        let corpora = Corpora::parse(SHIPPED).unwrap();
        let usual = corpora.list.iter().filter(|c| c.usual).map(|c| &*c.name);
        assert_eq!(usual.collect::<Vec<_>>(), ["root", "linux"]);
        assert_eq!(corpora.list.len(), 10);
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
    fn a_script_makes_a_tree_or_fails() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = |name: &str, script: &str| Corpus {
            name: name.to_owned(),
            about: String::new(),
            usual: false,
            recipe: Recipe::Script {
                script: script.to_owned(),
            },
        };
        corpus("s", "echo a > b").make(folder.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(folder.path().join("s/b")).unwrap(),
            "a\n"
        );
        assert!(corpus("s", "").make(folder.path()).is_err());
        assert!(corpus("t", "false\ntrue").make(folder.path()).is_err());
    }
}
