//! Checks of files and their paths.
//!
//! * Every path that a document names exists, and so does every identifier of four words or more, such as a test, and every heading
//!   that a link leads to.
//! * Every row of the trust model names a test that exists, and so does every command `cargo test` of a document.
//! * Documents for newcomers are short.
//! * Every binary file has a recipe beside it, or in a README of a directory above.
//! * Every Rust file is reached from its crate's root.
//! * No file contains a path of a developer's machine.
//! * A skipped test reports through `tuff_testkit`, which `TUFF_REQUIRE_ALL` turns into a failure.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Root directory of the project.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Checks all files and returns the findings, a sentence each.
pub(crate) fn run(root: &Path) -> Vec<String> {
    let files = files(root);
    let mut findings = Vec::new();
    let known = identifiers(root, &files);
    for file in &files {
        let name = file.display();
        let Ok(bytes) = std::fs::read(root.join(file)) else {
            continue;
        };
        let Ok(text) = String::from_utf8(bytes) else {
            if !has_recipe(root, file) {
                findings.push(format!(
                    "{name}: is a binary file without a recipe beside it"
                ));
            }
            continue;
        };
        if HOMES.iter().any(|home| text.contains(home)) {
            findings.push(format!("{name}: contains a path of a developer's machine"));
        }
        match file.extension().and_then(|e| e.to_str()) {
            Some("md") => {
                findings.extend(too_long(file, &text));
                if file == Path::new(TRUST) {
                    let tests = test_functions(root, &files);
                    findings.extend(untested(&text, &tests).map(|why| format!("{name}: {why}")));
                }
                for missing in named_identifiers(&text).difference(&known) {
                    findings.push(format!("{name}: names {missing}, which no source contains"));
                }
                for command in missing_tests(root, &files, &text) {
                    findings.push(format!("{name}: names `{command}`, which runs no test"));
                }
                for path in named_paths(&text) {
                    if !exists(root, file, &path) {
                        findings.push(format!("{name}: names {path}, which does not exist"));
                    }
                }
                for link in broken_fragments(root, file, &text) {
                    findings.push(format!("{name}: links {link}, which is no heading there"));
                }
            }
            Some("rs") => {
                findings.extend(unreached(root, file).map(|why| format!("{name}: {why}")));
                if is_silent(&text) && !file.starts_with("crates/testkit") {
                    findings.push(format!(
                        "{name}: prints SKIPPED itself; use tuff_testkit::skipped"
                    ));
                }
            }
            _ => {}
        }
    }
    findings
}

/// Table of who may lie about what.
const TRUST: &str = "docs/design/trust.md";

/// Findings about rows of the trust model: each names tests in its fourth cell, as code spans, and all of them exist.
fn untested<'a>(text: &'a str, tests: &'a BTreeSet<String>) -> impl Iterator<Item = String> + 'a {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let rows = rows.map(|line| line.split('|').skip(1).collect::<Vec<_>>());
    let rows = rows.filter(|cells| cells.len() == 5 && cells[3].trim() != "test");
    rows.flat_map(move |cells| {
        let names: Vec<_> = cells[3].split('`').skip(1).step_by(2).collect();
        let place = format!("the row \"{}, {}\"", cells[0].trim(), cells[1].trim());
        if names.is_empty() {
            return vec![format!("{place} names no test")];
        }
        let missing = names.into_iter().filter(|name| !tests.contains(*name));
        missing
            .map(|name| format!("{place} names {name}, which is no test"))
            .collect()
    })
}

/// Names of all functions with the attribute `#[test]`, and of Python's test functions.
fn test_functions(root: &Path, files: &[PathBuf]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue;
        };
        let function = |line: &str, keyword: &str| -> Option<String> {
            let rest = line.trim().strip_prefix(keyword)?;
            Some(rest.split('(').next()?.to_owned())
        };
        match file.extension().and_then(|e| e.to_str()) {
            Some("rs") => {
                let mut lines = text.lines();
                while lines.by_ref().any(|line| line.trim() == "#[test]") {
                    names.extend(lines.clone().find_map(|line| function(line, "fn ")));
                }
            }
            Some("py") => {
                names.extend(text.lines().filter_map(|line| function(line, "def ")));
            }
            _ => {}
        }
    }
    names
}

/// Code spans of a document that run no test, although they begin with `cargo test -p`.
fn missing_tests<'a>(root: &Path, files: &[PathBuf], text: &'a str) -> Vec<&'a str> {
    let spans = text.split('`').skip(1).step_by(2);
    let commands = spans.filter_map(|span| Some((span, span.strip_prefix("cargo test -p ")?)));
    let missing = commands.filter(|(_, arguments)| !has_tests(root, files, arguments));
    missing.map(|(span, _)| span).collect()
}

/// True if a crate has the test program and the filters of a command.
fn has_tests(root: &Path, files: &[PathBuf], arguments: &str) -> bool {
    let mut words = arguments.split_whitespace();
    let package = words.next().unwrap_or_default();
    let folder = match package.strip_prefix("tuff-") {
        Some(name) => Path::new("crates").join(name),
        None => PathBuf::from(package),
    };
    let mut found = files.iter().any(|file| file.starts_with(&folder));
    while let Some(word) = words.next().filter(|word| *word != "--") {
        found &= match word {
            "--lib" | "--locked" => true,
            "--test" => {
                let program = folder.join("tests").join(words.next().unwrap_or_default());
                let roots = [program.with_extension("rs"), program.join("main.rs")];
                roots.iter().any(|file| files.contains(file))
            }
            filter => names(root, files, &folder, filter),
        };
    }
    found
}

/// True if a module or a function of a crate has the name of a filter, or one that contains it.
fn names(root: &Path, files: &[PathBuf], folder: &Path, filter: &str) -> bool {
    let mut parts = filter.rsplit("::").filter(|part| !part.is_empty());
    let part = parts.next().unwrap_or_default();
    let is_named = |line: &str| line.trim_start().starts_with("fn ") && line.contains(part);
    files
        .iter()
        .filter(|file| file.starts_with(folder))
        .any(|file| {
            let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            file.iter()
                .any(|name| Path::new(name).file_stem() == Some(OsStr::new(part)))
                || text.lines().any(is_named)
        })
}

/// Prefixes of home directories.
const HOMES: [&str; 2] = [concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// True for a source that prints the word `SKIPPED` itself.
fn is_silent(source: &str) -> bool {
    source.contains(concat!("\"SKIP", "PED"))
}

fn has_recipe(root: &Path, file: &Path) -> bool {
    // A README stands for the directories below its own, but that of the project for none.
    let dirs = file.ancestors().skip(1);
    let readmes = dirs
        .filter(|dir| *dir != Path::new(""))
        .map(|dir| dir.join("README.md"));
    let mut recipes = readmes.chain([file.with_extension("md")]);
    recipes.any(|recipe| root.join(recipe).exists())
}

/// All files of the project, relative to its root: those that git tracks, or would after `git add`.
pub(crate) fn files(root: &Path) -> Vec<PathBuf> {
    let out = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output();
    match out {
        Ok(out) if out.status.success() && !out.stdout.is_empty() => out
            .stdout
            .split(|b| *b == 0)
            .filter(|name| !name.is_empty())
            .map(|name| PathBuf::from(OsStr::from_bytes(name)))
            .collect(),
        _ => files_without_git(root),
    }
}

/// The same for a copy without git: every file outside of build and fuzzing output.
fn files_without_git(root: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(dir) = stack.pop() {
        let Ok(entries) = std::fs::read_dir(root.join(&dir)) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = dir.join(entry.file_name());
            let skip = ["target", ".git", "corpus", "artifacts"]
                .iter()
                .any(|s| path.ends_with(s));
            match entry.file_type() {
                Ok(t) if t.is_dir() && !skip => stack.push(path),
                Ok(t) if t.is_file() => out.push(path),
                _ => {}
            }
        }
    }
    out.sort();
    out
}

/// Paths of the project in a document: code spans and link targets that look like one.
fn named_paths(text: &str) -> BTreeSet<String> {
    const ROOTS: [&str; 9] = [
        "crates/",
        "docs/",
        "benchmarks/",
        "testdata/",
        "fuzz/",
        "xtask/",
        ".ci/",
        ".cargo/",
        "README.md",
    ];
    let mut out = BTreeSet::new();
    for (i, span) in text.split('`').enumerate() {
        let span = span.trim();
        let is_code = i % 2 == 1;
        if is_code
            && ROOTS.iter().any(|r| span.starts_with(r))
            && !span.contains(['*', '<', '{', ' ', '\n', '…'])
        {
            out.insert(span.split("::").next().unwrap_or(span).to_owned());
        }
    }
    for link in text.split("](").skip(1) {
        let target = link.split([')', '#']).next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
            out.insert(target.to_owned());
        }
    }
    out
}

/// Links of a document to headings that the other document, or this one, does not have.
fn broken_fragments(root: &Path, document: &Path, text: &str) -> Vec<String> {
    let links = text.split("](").skip(1);
    let links = links.filter_map(|link| link.split(')').next());
    let links = links.filter(|link| !link.contains("://"));
    let with_fragment = links.filter_map(|link| Some((link, link.split_once('#')?)));
    let broken = with_fragment.filter(|(_, (path, fragment))| {
        let beside = root.join(document.parent().unwrap_or(Path::new("")));
        match *path {
            "" => !headings(text).contains(*fragment),
            path if path.ends_with(".md") => std::fs::read_to_string(beside.join(path))
                .is_ok_and(|text| !headings(&text).contains(*fragment)),
            _ => false,
        }
    });
    broken.map(|(link, _)| link.to_owned()).collect()
}

/// Fragments that the headings of a document have on its website.
fn headings(text: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let lines = text.lines().filter(move |line| {
        in_block ^= line.starts_with("```");
        !in_block && line.starts_with('#')
    });
    lines
        .map(|line| {
            let words = line.trim_start_matches('#').trim().chars();
            words
                .filter_map(|c| match c {
                    c if c.is_whitespace() => Some('-'),
                    c if c.is_alphanumeric() || "-_".contains(c) => Some(c.to_ascii_lowercase()),
                    _ => None,
                })
                .collect()
        })
        .collect()
}

/// Documents that one reads before all others, with their longest length in lines and words.
const LENGTHS: [(&str, usize, usize); 3] = [
    ("README.md", 150, 900),
    ("ARCHITECTURE.md", 165, usize::MAX),
    ("CONTRIBUTING.md", 100, usize::MAX),
];

fn too_long(file: &Path, text: &str) -> Option<String> {
    let (name, lines_max, words_max) = LENGTHS
        .into_iter()
        .find(|(name, ..)| file == Path::new(name))?;
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    (lines > lines_max || words > words_max).then(|| {
        format!("{name}: has {lines} lines and {words} words, at most {lines_max} and {words_max}")
    })
}

/// Words of a source or document with at least three underscores.
fn long_identifiers(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.matches('_').count() >= 3)
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(str::to_owned)
}

/// Identifiers of four words or more in a document's code spans: names of tests, counters, keys.
fn named_identifiers(text: &str) -> BTreeSet<String> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|span| long_identifiers(span).any(|word| word == *span))
        .map(str::to_owned)
        .collect()
}

/// Identifiers of four words or more in all sources.
fn identifiers(root: &Path, files: &[PathBuf]) -> BTreeSet<String> {
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "rs"))
        .filter_map(|file| std::fs::read_to_string(root.join(file)).ok())
        .flat_map(|text| long_identifiers(&text).collect::<Vec<_>>())
        .collect()
}

fn exists(root: &Path, document: &Path, path: &str) -> bool {
    let beside = document.parent().unwrap_or(Path::new("")).join(path);
    root.join(path).exists() || root.join(beside).exists()
}

/// Reason why a Rust file is part of no crate. `None`: it is part of one.
fn unreached(root: &Path, file: &Path) -> Option<String> {
    let stem = file.file_stem()?.to_str()?;
    let dir = file.parent()?;
    let is_root = matches!(stem, "main" | "lib" | "build");
    let of_cargo = ["tests", "benches", "examples", "fuzz_targets", "bin"]
        .iter()
        .any(|d| dir.ends_with(d));
    if is_root || of_cargo {
        return None;
    }
    // `a/mod.rs` is declared above `a`, `a/b.rs` in `a/mod.rs`, `a.rs` or the crate's root.
    let (name, dir) = if stem == "mod" {
        (dir.file_name()?.to_str()?, dir.parent()?)
    } else {
        (stem, dir)
    };
    let candidates = ["mod.rs", "lib.rs", "main.rs"]
        .map(|f| dir.join(f))
        .into_iter();
    let parents: Vec<PathBuf> = candidates.chain([dir.with_extension("rs")]).collect();
    // Modules that several test programs share.
    let shared = dir.ends_with("tests") || dir.ends_with("benches");
    let declared = |text: &str| {
        text.lines().any(|l| {
            let l = l
                .trim()
                .trim_start_matches("pub(crate) ")
                .trim_start_matches("pub(super) ")
                .trim_start_matches("pub ");
            l == format!("mod {name};")
        })
    };
    let found = parents
        .iter()
        .filter_map(|p| std::fs::read_to_string(root.join(p)).ok())
        .any(|t| declared(&t));
    (!found && !shared).then(|| format!("no module declares it (looked for `mod {name};`)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_tidy() {
        let findings = run(root());
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }

    #[test]
    fn git_and_a_walk_find_the_same_sources() {
        let sources = |files: Vec<PathBuf>| -> BTreeSet<PathBuf> {
            let is_source = |f: &PathBuf| f.extension().is_some_and(|e| e == "rs" || e == "md");
            let is_there = |f: &PathBuf| root().join(f).exists();
            files
                .into_iter()
                .filter(is_source)
                .filter(is_there)
                .collect()
        };
        let walked = sources(files_without_git(root()));
        assert!(walked.is_superset(&sources(files(root()))));
    }

    #[test]
    fn binary_files_need_a_recipe_and_no_file_names_a_home() {
        let dir = std::env::temp_dir().join(format!("xtask-tidy-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("image.erofs"), b"\xe2\xe1\xf5\xe0").unwrap();
        std::fs::write(dir.join("notes"), format!("see {}me/x", "/ho")).unwrap();
        let found = run(&dir);
        std::fs::write(dir.join("image.md"), "how it is made").unwrap();
        let less = run(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            found,
            [
                "image.erofs: is a binary file without a recipe beside it",
                "notes: contains a path of a developer's machine"
            ]
        );
        assert_eq!(less, found[1..]);
    }

    #[test]
    fn tests_that_print_skipped_themselves_are_found() {
        let message = concat!("\"SKIP", "PED: no root\"");
        assert!(is_silent(&format!("eprintln!(\n    {message}\n);")));
        assert!(is_silent(&format!("writeln!(stderr, {message})")));
        assert!(!is_silent("tuff_testkit::skipped(\"no root\")"));
    }

    #[test]
    fn long_introductions_are_found() {
        let long = "word\n".repeat(166);
        assert!(too_long(Path::new("ARCHITECTURE.md"), &long).is_some());
        assert!(too_long(Path::new("docs/ARCHITECTURE.md"), &long).is_none());
        assert!(too_long(Path::new("README.md"), "word").is_none());
    }

    #[test]
    fn rows_of_the_trust_model_without_a_test_are_found() {
        let tests = BTreeSet::from(["a_lie_is_refused".to_owned()]);
        let table = "| who | may lie about | what stops it | test |\n|---|---|---|---|\n";
        let found = |row: &str| untested(&format!("{table}{row}"), &tests).collect::<Vec<_>>();
        assert!(found("| server | size | limit | `a_lie_is_refused` |").is_empty());
        assert_eq!(
            found("| server | size | limit | |"),
            ["the row \"server, size\" names no test"]
        );
        assert_eq!(
            found("| server | size | limit | `a_lie_is_refused`, `absent` |"),
            ["the row \"server, size\" names absent, which is no test"]
        );
        assert!(test_functions(root(), &files(root())).contains("the_project_is_tidy"));
    }

    #[test]
    fn commands_of_absent_tests_are_found() {
        let text = "`cargo test -p xtask the_project_is_tidy`, `cargo test -p tuff-lab --test page documents_` \
                    `cargo test -p xtask --test none`, `cargo test -p xtask no_\
                    such_name`";
        let found = missing_tests(root(), &files(root()), text);
        assert_eq!(
            found,
            [
                "cargo test -p xtask --test none",
                "cargo test -p xtask no_such_name"
            ]
        );
    }

    #[test]
    fn identifiers_are_found_in_spans() {
        let text =
            "`a_test_of_mine` in `x.rs`, not an_unquoted_long_name, `two_words` or `a_b_c_d + 1`";
        let found: Vec<_> = named_identifiers(text).into_iter().collect();
        assert_eq!(found, ["a_test_of_mine"]);
    }

    #[test]
    fn fragments_lead_to_headings() {
        let text = "# A `b`, and c\n```sh\n# no heading\n```\n[x](#a-b-and-c) [y](#no-heading) [z](https://a/#b)\n";
        let document = Path::new("README.md");
        assert_eq!(broken_fragments(root(), document, text), ["#no-heading"]);
        let text = "[x](docs/guide/remote.md#credentials) [y](docs/guide/remote.md#none)\n";
        assert_eq!(
            broken_fragments(root(), document, text),
            ["docs/guide/remote.md#none"]
        );
    }

    #[test]
    fn paths_are_found_in_spans_and_links() {
        let text = "see `crates/erofs/src/lib.rs`, `docs/x.md` and [this](docs/y.md#part); not `cargo run` or `crates/*`";
        let found: Vec<_> = named_paths(text).into_iter().collect();
        assert_eq!(found, ["crates/erofs/src/lib.rs", "docs/x.md", "docs/y.md"]);
    }
}
