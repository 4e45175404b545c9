//! Corpora, the source trees of the measurements, and scripts that make them: `benchmarks/corpora.toml` and the functions in
//! `benchmarks/corpora.sh`.
//!
//! Trees consist of Debian packages, unpacked and not configured, whose list is `NAME.packages`; of generated or downloaded files;
//! or of parts of other trees in the same directory.

use crate::measure::{helper, workspace};
use crate::{At, Error, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a script, which may download packages.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Text of the shipped `benchmarks/corpora.toml`.
pub const SHIPPED: &str = include_str!("../../../../benchmarks/corpora.toml");
/// Functions for the scripts.
const FUNCTIONS: &str = include_str!("../../../../benchmarks/corpora.sh");

/// Content of a corpora file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpora {
    /// Corpora in the order of the file.
    #[serde(rename = "corpus")]
    pub list: Vec<Corpus>,
}

/// Corpus: a source tree and its recipe.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpus {
    /// Name of the corpus and of its directory.
    pub name: String,
    /// Description, as a sentence.
    pub about: String,
    /// Whether the corpus is made when no corpus is named on the command line.
    #[serde(default)]
    pub usual: bool,
    /// Names of the corpora that the script reads.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Script of sh that runs in the tree and ends at the first error.
    pub script: String,
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
    /// Creates a corpus of the shipped file in `folder`, and those that it needs, unless they exist.
    pub fn provide(name: &str, folder: &Path) -> Result<PathBuf> {
        let tree = folder.join(name);
        if tree.exists() {
            return Ok(tree);
        }
        let corpora = Corpora::parse(SHIPPED)?;
        let corpus = corpora.list.iter().find(|c| c.name == name);
        let corpus = corpus.ok_or_else(|| Error::Usage(format!("no corpus is called '{name}'")))?;
        for needed in &corpus.needs {
            Corpora::provide(needed, folder)?;
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
        let (part, debs) = (scratch.join("tree"), scratch.join("debs"));
        for path in [&part, &debs] {
            std::fs::create_dir_all(path).at("create", path)?;
        }
        let absolute = |path: &Path| path.canonicalize().at("find", path);
        let mut shell = Command::new("sh");
        shell
            .args(["-e", "-c", &format!("{FUNCTIONS}\n{}", self.script)])
            .current_dir(&part)
            .env("CORPORA", absolute(folder)?)
            .env("DEBS", absolute(&debs)?);
        helper::run(&mut shell, 0, LIMIT).map_err(Error::Command)?;
        list(&debs, &folder.join(format!("{}.packages", self.name)))?;
        std::fs::rename(&part, &tree).at("rename", &part)?;
        workspace::remove(&scratch)
    }
}

/// Writes the list of packages of a tree, if there are some: digest and file name, which contains the version.
fn list(debs: &Path, file: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for deb in std::fs::read_dir(debs).at("list", debs)?.flatten() {
        let digest = workspace::digest(&deb.path())?;
        lines.push((deb.file_name(), digest));
    }
    lines.sort();
    let line = |(name, digest): &(_, String)| format!("{digest} {}\n", Path::new(name).display());
    let text: String = lines.iter().map(line).collect();
    match text.is_empty() {
        true => Ok(()),
        false => std::fs::write(file, text).at("write", file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_lists_the_measured_trees() {
        let corpora = Corpora::parse(SHIPPED).unwrap();
        let usual = corpora.list.iter().filter(|c| c.usual).map(|c| &*c.name);
        assert_eq!(usual.collect::<Vec<_>>(), ["root", "linux"]);
        assert_eq!(corpora.list.len(), 12);
    }

    #[test]
    fn a_script_makes_a_tree_of_parts_of_others_or_fails() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, script: &str| {
            let corpus = Corpus {
                name: name.to_owned(),
                script: script.to_owned(),
                ..Corpus::default()
            };
            corpus.make(folder.path())
        };
        let text = |path: &str| std::fs::read(folder.path().join(path)).unwrap();
        make("s", "mkdir a; for f in a/b a.c z; do printf $f > $f; done").unwrap();
        assert!(make("s", "").is_err(), "it exists");
        assert!(make("t", "false\ntrue").is_err());
        // The order is that of path components.
        let filter = r#"content "$CORPORA/s" \( -name "a*" -o -name b \) > all"#;
        make("u", filter).unwrap();
        assert_eq!(text("u/all"), b"a/ba.c");
        let part =
            |range: &str| format!("head -c 3145728 /dev/zero | tr '\\0' x | part {range} d/f");
        make("v", &part("1 2")).unwrap();
        assert_eq!(text("v/d/f"), [b'x'; 2 << 20]);
        assert!(make("w", &part("2 2")).is_err(), "too short");
        // A package, a dependency of it, a virtual package, and one of another architecture.
        let depends = "echo 'printf \"gcc\\n  Depends: cpp\\n<virtual>\\ncpp\\nlibc6:i386\\ncpp\\n\"' > apt-cache
            chmod +x apt-cache
            PATH=.:$PATH
            closure gcc > list";
        make("x", depends).unwrap();
        assert_eq!(text("x/list"), b"cpp\ngcc\n");
        // A package with two versions, one with the same version twice, and one with a single version.
        let madison = "printf 'printf \"  b | 2-1 | u\\n  b | 1-1 | u\\n  b | 0-1 | u\\nlongname | 3 | u\\nlongname | 3 | u\\n c | 1 | u\\n\"' > apt-cache
            chmod +x apt-cache
            PATH=.:$PATH
            older b longname c > list";
        make("y", madison).unwrap();
        assert_eq!(text("y/list"), b"b 1-1\n");
    }
}
