//! Modules of a crate depend on each other in one direction.
//!
//! Two files that need each other are one file, or miss a third that both can use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::modules::{self, File};

/// Files of one crate that all lead to each other, as a report of several lines.
#[derive(Debug)]
pub(crate) struct Circle {
    /// Folder of the crate, such as `crates/mkfs`.
    pub(crate) krate: String,
    /// Number of files in the circle.
    pub(crate) len: usize,
    /// The circle's files and the paths between them.
    pub(crate) report: String,
}

/// All circles of all crates, by crate, largest first.
pub(crate) fn run(project: &Path) -> Vec<Circle> {
    let mut circles = Vec::new();
    for (krate, root_file) in root_files(project) {
        let files = modules::files(project, &root_file);
        for component in components(&files) {
            circles.push(Circle {
                krate: krate.clone(),
                len: component.len(),
                report: report(&krate, &files, &component),
            });
        }
    }
    circles.sort_by(|a, b| (&a.krate, b.len).cmp(&(&b.krate, a.len)));
    circles
}

/// Root files of all crates: libraries and programs.
fn root_files(project: &Path) -> Vec<(String, PathBuf)> {
    let mut crates: Vec<PathBuf> = std::fs::read_dir(project.join("crates"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| Path::new("crates").join(entry.file_name()))
        .collect();
    crates.push(PathBuf::from("xtask"));
    crates.sort();
    let mut out = Vec::new();
    for krate in crates {
        let bin = krate.join("src/bin");
        let programs = std::fs::read_dir(project.join(&bin))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| bin.join(entry.file_name()));
        let roots = ["src/lib.rs", "src/main.rs"].map(|f| krate.join(f));
        for root in roots.into_iter().chain(programs) {
            if root.extension().is_some_and(|e| e == "rs") && project.join(&root).exists() {
                out.push((krate.display().to_string(), root));
            }
        }
    }
    out
}

/// Strongly connected components of two files or more.
fn components(files: &[File]) -> Vec<Vec<usize>> {
    let reach: Vec<Vec<bool>> = (0..files.len()).map(|from| reached(files, from)).collect();
    let mut by_first: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, from) in reach.iter().enumerate() {
        let first = (0..files.len()).find(|&j| i == j || (from[j] && reach[j][i]));
        by_first.entry(first.unwrap_or(i)).or_default().push(i);
    }
    by_first.into_values().filter(|c| c.len() > 1).collect()
}

fn reached(files: &[File], from: usize) -> Vec<bool> {
    let mut seen = vec![false; files.len()];
    let mut stack = vec![from];
    while let Some(at) = stack.pop() {
        for &to in files[at].uses.keys() {
            if !seen[to] {
                seen[to] = true;
                stack.push(to);
            }
        }
    }
    seen
}

fn report(krate: &str, files: &[File], component: &[usize]) -> String {
    use std::fmt::Write as _;
    let mut out = format!(
        "{krate}: {} of {} files in a circle\n",
        component.len(),
        files.len()
    );
    for &i in component {
        for (&to, (path, line)) in &files[i].uses {
            if component.contains(&to) {
                let (from, to) = (files[i].path.display(), files[to].path.display());
                let _ = writeln!(out, "  {from}:{line} -> {to} ({path})");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy;
    use std::collections::BTreeSet;

    /// Crates that may have circles. The test fails for a crate here that has none.
    const ALLOWED: &[&str] = &[];

    #[test]
    fn no_crate_has_module_circles() {
        let circles = run(tidy::root());
        let mut findings = Vec::new();
        for circle in &circles {
            println!("{}", circle.report);
            if !ALLOWED.contains(&circle.krate.as_str()) {
                findings.push(circle.report.clone());
            }
        }
        let found: BTreeSet<&str> = circles.iter().map(|c| c.krate.as_str()).collect();
        for krate in ALLOWED {
            if !found.contains(krate) {
                findings.push(format!(
                    "{krate} has no circle: remove it from ALLOWED in xtask/src/circles.rs"
                ));
            }
        }
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }

    #[test]
    fn components_are_files_that_reach_each_other() {
        let edges: [&[usize]; 5] = [&[1], &[2], &[1, 3], &[], &[0]];
        let files: Vec<File> = edges
            .iter()
            .map(|to| File {
                path: PathBuf::new(),
                uses: to.iter().map(|&t| (t, (String::new(), 0))).collect(),
            })
            .collect();
        assert_eq!(components(&files), [vec![1, 2]]);
    }
}
