//! Names in an image that complete a word.

use crate::image::OpenArgs;
use crate::select::normal;
use crate::text::is_hidden;
use clap::{ArgMatches, Command, FromArgMatches};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use tuff_erofs::Result;
use tuff_erofs::read::{FileType, Image};
use tuff_format::dirent::is_name;
use tuff_open::ImageRef;

/// Stands for the word that is completed while the command line is parsed.
const MARK: &str = "\u{1}tuff-completes-this";

/// Argument of verbs with the image, and the one with paths in it.
const IMAGE: &str = "image";
const PATHS: &str = "paths";

/// Returns the paths that the last word of a line for `command` may become, directories with a slash. None if the word is not a
/// path in an image. If the image cannot be read there are none.
pub(super) fn complete(words: &[OsString], command: Command) -> Option<Vec<Vec<u8>>> {
    let (last, before) = words.split_last()?;
    if last.as_bytes().starts_with(b"-") {
        return None;
    }
    let marked = before.iter().map(OsString::as_os_str);
    let marked = marked.chain([OsStr::new(MARK)]);
    // Other errors of an unfinished line do not matter.
    let command = command.ignore_errors(true);
    let parsed = command.try_get_matches_from(marked).ok()?;
    let (_, verb) = parsed.subcommand()?;
    if !is_marked(verb) {
        return None;
    }
    let image: &ImageRef = verb.try_get_one(IMAGE).ok()??;
    if image.url().is_some() {
        return Some(Vec::new());
    }
    let open = OpenArgs::from_arg_matches(verb).unwrap_or_default();
    let found = open
        .open(image)
        .and_then(|image| list(&image, last.as_bytes()));
    Some(found.unwrap_or_default())
}

/// Returns true if a terminal shows all of a name.
fn is_shown(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| !name.chars().any(is_hidden))
}

/// Returns true if the mark is one of the paths in the image.
fn is_marked(verb: &ArgMatches) -> bool {
    let paths = verb.try_get_raw(PATHS).ok().flatten();
    paths.is_some_and(|mut paths| paths.any(|path| path == MARK))
}

/// Entries of the directory that `word` leads to, whose names begin with the rest of it.
fn list(image: &Image, word: &[u8]) -> Result<Vec<Vec<u8>>> {
    let cut = word.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let (typed, start) = word.split_at(cut);
    let dir = image.resolve_following(&normal(typed))?;
    let mut names = Vec::new();
    for entry in image.read_dir(&dir)? {
        let Ok(entry) = entry else { break };
        let is_dot = matches!(&entry.name[..], b"." | b"..");
        // Shells get a line per name, and some show it on the terminal as it is.
        let is_line = is_name(&entry.name) && is_shown(&entry.name);
        if is_line && !is_dot && entry.name.starts_with(start) {
            // A word that begins like an option would be one.
            let here: &[u8] = match typed.is_empty() && entry.name.starts_with(b"-") {
                true => b"./",
                false => typed,
            };
            let mut path = [here, &entry.name[..]].concat();
            if entry.file_type == Some(FileType::Dir) {
                path.push(b'/');
            }
            names.push(path);
        }
    }
    Ok(names)
}
