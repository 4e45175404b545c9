//! Options common to all measurements: trees, tools, rounds and conditions.

use std::path::{Path, PathBuf};
use tuff_lab::campaigns::commands::run::Conditions;
use tuff_lab::campaigns::serve::program::program;
use tuff_lab::engines::{TOOLS, Tool};
use tuff_lab::{Error, Result};

/// Options of a measurement.
#[derive(clap::Args)]
pub(crate) struct MeasureOptions {
    /// Tree to measure on (default for NAME: the last component of the path)
    #[arg(long, required = true, value_name = "[NAME=]DIR")]
    tree: Vec<String>,
    /// Path of a tool (default: search beside this program and in PATH)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Number of rounds (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Shuffle the order of tools in each round with this seed (default: the order of the
    /// definition)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Folder for images and extracted trees, preferably on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    work: PathBuf,
    /// Reject a sample if other processes used more than this fraction of the CPU time
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    max_foreign: f64,
    /// Repeat a rejected sample up to N times
    #[arg(long, default_value_t = 0, value_name = "N")]
    retries: u32,
    /// Verify results completely in every round instead of only the first
    #[arg(long)]
    verify_every_round: bool,
    /// Control group (a folder) for measured commands, to record the peak memory of all processes
    /// together
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
}

impl MeasureOptions {
    /// Returns the conditions of a campaign.
    pub(crate) fn conditions(&self) -> Result<Conditions> {
        let mut trees: Vec<(String, PathBuf)> = Vec::new();
        for text in &self.tree {
            let (name, path) = match text.split_once('=') {
                Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
                None => {
                    let path = PathBuf::from(text);
                    let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
                    (name.unwrap_or_else(|| "tree".to_owned()), path)
                }
            };
            if trees.iter().any(|(n, _)| *n == name) {
                return Err(Error::Usage(format!("two trees are called '{name}'")));
            }
            if !path.is_dir() {
                return Err(Error::Usage(format!(
                    "tree {}: not a directory",
                    path.display()
                )));
            }
            trees.push((name, path));
        }
        let tools = self
            .tool
            .iter()
            .map(|t| tool_at(t))
            .collect::<Result<_>>()?;
        Ok(Conditions {
            trees,
            tools,
            rounds: self.rounds,
            only: None,
            seed: self.seed,
            work: self.work.clone(),
            max_foreign: self.max_foreign,
            retries: self.retries,
            verify_every_round: self.verify_every_round,
            cgroup: self.cgroup.clone(),
        })
    }
}

pub(crate) fn tool_at(text: &str) -> Result<(Tool, PathBuf)> {
    let parsed = program_at(text).ok();
    let Some((tool, path)) = parsed.and_then(|(n, p)| Some((Tool::from_name(&n)?, p))) else {
        let names: Vec<&str> = TOOLS.iter().map(|t| t.name()).collect();
        return Err(Error::Usage(format!(
            "--tool '{text}': expected NAME=PATH; names are {}",
            names.join(", ")
        )));
    };
    Ok((tool, path))
}

/// Parses `NAME=PATH`. The path becomes absolute, because commands run in another folder.
fn program_at(text: &str) -> Result<(String, PathBuf)> {
    let (name, path) = text
        .split_once('=')
        .ok_or_else(|| Error::Usage(format!("--tool '{text}': expected NAME=PATH")))?;
    Ok((name.to_owned(), absolute(Path::new(path))?))
}

/// Returns a path as an absolute one.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("find", path, e))
}

/// Option for the paths of programs.
#[derive(clap::Args)]
pub(crate) struct Programs {
    /// Path of a program (default: search beside this program and in PATH)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
}

impl Programs {
    /// Returns the given programs as names and absolute paths.
    pub(crate) fn given(&self) -> Result<Vec<(String, PathBuf)>> {
        self.tool.iter().map(|t| program_at(t)).collect()
    }

    /// Returns the path of `tuff`.
    pub(crate) fn tuff(&self) -> Result<PathBuf> {
        program("tuff", &self.given()?).ok_or_else(|| {
            Error::Usage(
                "the program tuff was not found; give its path with --tool tuff=PATH".to_owned(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_parsed_as_name_and_path() {
        assert_eq!(
            tool_at("mkfs.erofs=/a/b").unwrap(),
            (Tool::MkfsErofs, "/a/b".into())
        );
        assert!(tool_at("mkfs.ext4=/a/b").is_err());
        assert!(tool_at("tuff").is_err());
    }
}
