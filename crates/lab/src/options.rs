//! Options that all campaigns with a record share.

use crate::engines::{Tool, is_program, search};
use crate::record::Line;
use crate::{Error, Result};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Programs whose path can be given.
const PROGRAMS: &str = "tuff tuff-before mkfs.erofs fsck.erofs erofsfuse mksquashfs unsquashfs squashfuse squashfuse_ll mkdwarfs \
                        dwarfsextract dwarfs fio rsync fuse2fs passthrough_hp";

/// Callback that receives each line of a record.
pub type Emit<'a> = &'a mut dyn FnMut(&Line) -> Result<()>;

/// Options of campaigns with a record.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Path of a program (default: search beside this program and in PATH)
    ///
    /// With an earlier program of ours as tuff-before, `run`, `build`, `serve`, `start` and `remote` measure it and tuff alone, in
    /// turn, and print the ratio.
    #[arg(long, value_name = "NAME=PATH", value_parser = program_at)]
    pub tool: Vec<(String, PathBuf)>,
    /// Folder for images, filesystems and mount points (default: /var/tmp; for commands, /dev/shm)
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Folder for the record (default: one in benchmarks/record)
    #[arg(long, value_name = "DIR")]
    pub records: Option<PathBuf>,
}

impl Options {
    /// Returns the folder for images, filesystems and mount points on a disk.
    pub fn work(&self) -> &Path {
        self.work.as_deref().unwrap_or(Path::new("/var/tmp"))
    }

    /// Returns the path of a program, if it is given or found.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let given = self.tool.iter().rev().find(|(known, _)| known == name);
        let found = || search(name).filter(|_| name != Tool::TuffBefore.name());
        given.map_or_else(found, |(_, path)| Some(path.clone()))
    }

    /// Returns the path of the earlier program to compare with, if it is given.
    pub fn earlier(&self) -> Option<PathBuf> {
        self.program(Tool::TuffBefore.name())
    }

    /// Returns the path of a program.
    ///
    /// # Errors
    /// `Usage` if it is not found.
    pub fn need(&self, name: &str) -> Result<PathBuf> {
        self.program(name).ok_or_else(|| {
            Error::Usage(format!(
                "the program {name} was not found; give its path with --tool {name}=PATH"
            ))
        })
    }
}

/// Parses `NAME=PATH`. The path becomes absolute, because commands run in another folder.
fn program_at(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=PATH")?;
    if !PROGRAMS.split(' ').any(|known| known == name) {
        return Err(format!(
            "no program is called '{name}'; names are {PROGRAMS}"
        ));
    }
    let path = std::path::absolute(path).map_err(|e| e.to_string())?;
    match is_program(&path) {
        true => Ok((name.to_owned(), path)),
        false => Err("not an executable file".to_owned()),
    }
}

/// Parses a number of minutes.
pub fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text
        .parse()
        .map_err(|_| "expected a number of minutes".to_owned())?;
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|e| e.to_string())
}

/// Fails for users other than root. `what` needs root.
pub fn need_root(what: &str) -> Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Error::Usage(format!("{what} needs root"))),
    }
}

/// Returns the items whose name contains `only`, in any case.
///
/// # Errors
/// `Usage` names all items if none matches.
pub fn select<T: Copy>(
    items: &[T],
    name: impl Fn(T) -> String,
    option: &str,
    only: Option<&String>,
) -> Result<Vec<T>> {
    let only = only.map_or(String::new(), |text| text.to_lowercase());
    let is_chosen = |item: &T| name(*item).to_lowercase().contains(&only);
    let chosen: Vec<T> = items.iter().copied().filter(is_chosen).collect();
    if chosen.is_empty() {
        let names: Vec<String> = items.iter().map(|item| name(*item)).collect();
        let names = names.join("; ");
        return Err(Error::Usage(format!(
            "{option} matches nothing; available: {names}"
        )));
    }
    Ok(chosen)
}

/// Part of a campaign of cells that a run measures.
#[derive(Clone, Debug, clap::Args)]
pub struct Selection {
    /// Run only the cell with this name, or cells whose name contains NAME
    #[arg(long, value_name = "NAME")]
    pub(crate) cell: Option<String>,
    /// Run only ways whose name contains NAME
    #[arg(long, value_name = "NAME")]
    pub(crate) way: Option<String>,
    /// Number of rounds (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Print the names of the cells, with the number of samples that each lacks
    #[arg(long)]
    pub(crate) list: bool,
}

/// Returns the cell with a name, or else all whose name contains it.
///
/// # Errors
/// `Usage` names all cells if none matches.
pub fn choose<'c, T: Display>(cells: &'c [T], name: Option<&String>) -> Result<Vec<&'c T>> {
    let exact = cells.iter().find(|cell| Some(&cell.to_string()) == name);
    if let Some(cell) = exact {
        return Ok(vec![cell]);
    }
    let cells: Vec<&T> = cells.iter().collect();
    select(&cells, |cell| cell.to_string(), "--cell", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_program_is_only_what_an_option_names() {
        let mut options = Options::default();
        assert_eq!(options.earlier(), None);
        options
            .tool
            .push(program_at("tuff-before=/bin/sh").unwrap());
        assert_eq!(options.earlier(), Some("/bin/sh".into()));
    }

    #[test]
    fn programs_are_parsed_as_name_and_path() {
        assert_eq!(
            program_at("fio=/bin/sh").unwrap(),
            ("fio".to_owned(), "/bin/sh".into())
        );
        for wrong in ["mkfs.none=/bin/sh", "fio", "fio=/none"] {
            assert!(program_at(wrong).is_err(), "{wrong}");
        }
    }
}
