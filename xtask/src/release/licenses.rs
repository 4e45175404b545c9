//! License texts of the libraries that a program or a library contains, which packages ship beside it.

use super::build::Build;
use super::run::{Result, at, output};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Beginnings of the names of license files.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// Folders of programs that the libraries do not contain.
const OTHERS: [&str; 4] = ["examples", "programs", "tests", "build-aux"];

/// Levels of folders that are searched: bundled C sources have their own licenses.
const DEPTH: usize = 2;

/// Returns the texts of all dependencies of a crate of the workspace, by name.
pub(super) fn of_dependencies(build: &Build, of: &str) -> Result<String> {
    let mut tree = build.cargo(&["tree", "--package", of, "--edges", "normal", "--locked"]);
    tree.args(["--prefix", "none", "--format", "{p}\t{l}"]);
    let list = output(&mut tree)?;
    let mut packages: Vec<&str> = list
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.contains("(/") && line.contains('\t'))
        .collect();
    packages.sort_unstable();
    packages.dedup();
    let sources = sources()?;
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut out = String::from(
        "Libraries that tuff contains, with their licenses. Where a choice is offered, any of them applies.\n",
    );
    for package in packages {
        let (id, license) = package.split_once('\t').unwrap_or((package, ""));
        // `NAME vVERSION`, and `(proc-macro)` for what runs in the compiler only.
        let mut words = id.split(' ');
        let (Some(name), Some(version), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let folder = format!("{name}-{}", version.trim_start_matches('v'));
        let dir = sources.iter().map(|dir| dir.join(&folder));
        let dir = dir
            .into_iter()
            .find(|dir| dir.is_dir())
            .ok_or_else(|| format!("{folder}: no source in cargo's registry"))?;
        let _ = write!(out, "\n==== {name} {version}: {license}\n");
        let mut files = Vec::new();
        texts(&dir, DEPTH, &mut files);
        files.sort();
        for file in files {
            let text = std::fs::read(&file).map_err(at(&file))?;
            let shown = file.strip_prefix(&dir).unwrap_or(&file);
            let text = String::from_utf8_lossy(&text).trim_end().to_owned();
            let place = format!("{} of {name}", shown.display());
            let _ = match seen.get(&text) {
                Some(first) => write!(out, "\n-- {}: as {first}\n", shown.display()),
                None => write!(out, "\n-- {}\n\n{text}\n", shown.display()),
            };
            seen.entry(text).or_insert(place);
        }
    }
    Ok(out)
}

/// Folders in which cargo unpacks sources.
fn sources() -> Result<Vec<PathBuf>> {
    let home = match (std::env::var_os("CARGO_HOME"), std::env::var_os("HOME")) {
        (Some(home), _) => PathBuf::from(home),
        (None, Some(home)) => Path::new(&home).join(".cargo"),
        _ => return Err("neither CARGO_HOME nor HOME is set".to_owned()),
    };
    let dir = home.join("registry/src");
    let entries = std::fs::read_dir(&dir).map_err(at(&dir))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn texts(dir: &Path, depth: usize, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_other = OTHERS.iter().any(|other| name == *other);
        let name = name.to_string_lossy().to_uppercase();
        match entry.file_type() {
            Ok(t) if t.is_dir() && depth > 0 && !is_other => texts(&entry.path(), depth - 1, out),
            Ok(t) if t.is_file() && is_license(&name) => {
                out.push(entry.path());
            }
            _ => {}
        }
    }
}

/// True for the name of a license file, except of the GPL, under which nothing is linked.
fn is_license(name: &str) -> bool {
    NAMES.iter().any(|start| name.starts_with(start)) && !name.contains("GPL")
}
