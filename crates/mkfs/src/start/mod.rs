//! Files that the start of an image's command reads, found without running anything.
//!
//! ```text
//! load ──► tree, contents ──► start files ──► order of data, start list
//! ```
//!
//! The result follows from the tree, the command and the [table](table) of programs alone. Files that nothing but running the
//! command would find are missing.
//!
//! | module | subject |
//! |---|---|
//! | `types` | how the files are named |
//! | `lookup` | paths and contents of the image, within limits |
//! | `elf`, `cache`, `loader` | libraries of a program |
//! | `script` | commands of scripts |
//! | `table`, `modules` | interpreters, their modules, and configuration |
//! | `invocation` | places and scripts that the path of a program and its arguments name |
//! | `plan` | all files of a command, in their order |
//! | `ranges` | parts of large files that come first |

mod cache;
mod elf;
mod invocation;
mod loader;
mod lookup;
mod modules;
mod plan;
mod ranges;
mod script;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod types;

pub use types::{Command, Start, StartFile};

use crate::Result;
use crate::load::Loaded;
use crate::options::Options;
use crate::source::error::Quoted;
use crate::source::tally::AffectedPaths;
use lookup::{Files, within};
use plan::Plan;

/// Largest program, and library of one, whose rest is wanted before the directories of modules. Unit: bytes.
const REST_MAX: u64 = 16 << 20;

/// Files that a start reads, in the order in which they are wanted.
pub(crate) fn files(loaded: &mut Loaded, options: &Options) -> Result<Vec<StartFile>> {
    let command = match &options.sources.start {
        Start::None => return Ok(Vec::new()),
        Start::Files(files) => return Ok(given(files, loaded)),
        Start::Command(command) => command.clone(),
        Start::Path(path) => Command {
            entrypoint: vec![within(b"/", path)],
            ..Command::default()
        },
    };
    let (list, warnings) = of_command(loaded, &command, options)?;
    loaded.warnings.extend(warnings);
    Ok(list)
}

/// Finds the files of a command. Also returns warnings.
fn of_command(
    loaded: &Loaded,
    command: &Command,
    options: &Options,
) -> Result<(Vec<StartFile>, Vec<String>)> {
    let files = Files::new(&loaded.tree, &loaded.contents);
    let name = command.words().into_iter().next().unwrap_or_default();
    let mut plan = Plan::new(&files, command, options);
    if !plan.run()? {
        let warning = missing(&files, command, &options.sources.start, &name);
        return Ok((Vec::new(), vec![warning]));
    }
    if files.has_unreadable() {
        let name = Quoted(&name);
        let warning = format!(
            "{name}: no start list: the source cannot be read a second time, so give it as a file"
        );
        return Ok((Vec::new(), vec![warning]));
    }
    let heads = plan.heads();
    let found = plan.into_list();
    let mut list: Vec<StartFile> = Vec::with_capacity(found.files.len());
    let mut rests = Vec::new();
    for (i, file) in found.files.iter().enumerate() {
        if i == found.before_libraries {
            list.append(&mut rests);
        }
        let head = heads.iter().find(|(path, _)| path.as_bytes() == file.path);
        let first = match head {
            Some((_, len)) => ranges::head(&files, file, *len),
            None => ranges::first(&files, &found.elves, file)?,
        };
        let whole = StartFile {
            path: file.path.clone(),
            first: Vec::new(),
        };
        if !first.is_empty() && i < found.programs && loaded.tree.size(file.inode) <= REST_MAX {
            rests.push(whole.clone());
        }
        list.push(StartFile { first, ..whole });
    }
    Ok((list, found.warning.into_iter().collect()))
}

/// Consequence of a command that is not in the image, and its remedy.
const NO_LIST: &str =
    "there is no start list; name a program with --start-with PATH, or none with --start-with none";

/// Warning for a command that is not in the image.
fn missing(files: &Files<'_>, command: &Command, start: &Start, name: &[u8]) -> String {
    let shown = Quoted(name);
    match start {
        Start::Path(path) if files.find(path).is_none() => {
            format!(
                "{}: the program of the start, but not in the tree: {NO_LIST}",
                Quoted(path)
            )
        }
        Start::Path(path) => format!(
            "{}: the program of the start, but no executable file: {NO_LIST}",
            Quoted(path)
        ),
        _ if command.words().is_empty() => {
            format!("the image has no command: {NO_LIST}")
        }
        _ => format!("{shown}: the command of the image, but no program in the tree: {NO_LIST}"),
    }
}

/// Returns the files of a given list that are in the tree, by their paths without links. The others are warnings.
fn given(list: &[StartFile], loaded: &mut Loaded) -> Vec<StartFile> {
    let mut absent = AffectedPaths::default();
    let files = Files::new(&loaded.tree, &loaded.contents);
    let mut kept = Vec::new();
    for file in list {
        match files.file(&file.path) {
            Some(found) => kept.push(StartFile {
                path: found.path,
                first: file.first.clone(),
            }),
            None => absent.add(|| file.path.clone()),
        }
    }
    let warning = absent.warning("listed as files of the start, but not in the tree");
    loaded.warnings.extend(warning);
    kept
}
