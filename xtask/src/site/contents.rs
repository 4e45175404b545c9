//! Table of contents of the website.

use super::paths::normal;
use crate::tidy;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Parts of the website with their first pages. A README.md brings the pages of its folder that it links.
const PARTS: [(&str, &[&str]); 5] = [
    ("Guide", &["docs/guide/README.md"]),
    (
        "Reference",
        &["docs/reference/README.md", "docs/limitations.md"],
    ),
    ("Design", &["ARCHITECTURE.md", "docs/design/README.md"]),
    ("Benchmarks", &["benchmarks/README.md"]),
    (
        "Project",
        &[
            "CONTRIBUTING.md",
            "docs/releasing.md",
            "docs/fuzzing.md",
            "SECURITY.md",
            "CHANGELOG.md",
        ],
    ),
];

/// First page, before all parts.
const FRONT: &str = "README.md";

/// Page of the website.
struct Page {
    path: PathBuf,
    title: String,
    /// Number of index pages above it in its part.
    depth: usize,
}

/// Pages by part, and what is wrong with them.
pub(super) struct Contents {
    parts: Vec<(&'static str, Vec<Page>)>,
    /// Findings: documents that no README.md links, a line each.
    pub(super) missing: Vec<String>,
}

impl Contents {
    /// Collects the pages of the project at `root`.
    pub(super) fn collect(root: &Path) -> Self {
        let mut seen = BTreeSet::from([PathBuf::from(FRONT)]);
        let mut parts = Vec::new();
        for (name, first) in PARTS {
            let mut pages = Vec::new();
            for path in first {
                add(root, Path::new(path), 0, &mut seen, &mut pages);
            }
            parts.push((name, pages));
        }
        let missing = tidy::files(root)
            .into_iter()
            .filter(|file| file.extension().is_some_and(|e| e == "md"))
            .filter(|file| file.starts_with("docs") || file.starts_with("benchmarks"))
            .filter(|file| !is_recipe(file) && root.join(file).exists() && !seen.contains(file))
            .map(|file| format!("{}: no README.md of the website links it", file.display()))
            .collect();
        Self { parts, missing }
    }

    /// Table of contents in the form of mdBook's SUMMARY.md.
    pub(super) fn summary(&self) -> String {
        let mut out = format!("# Summary\n\n[Start]({FRONT})\n");
        for (name, pages) in &self.parts {
            let _ = write!(out, "\n# {name}\n\n");
            for page in pages {
                let indent = "  ".repeat(page.depth);
                let _ = writeln!(out, "{indent}- [{}]({})", page.title, page.path.display());
            }
        }
        out
    }

    /// Pages and the files that they link, relative to the project's root.
    pub(super) fn files(&self, root: &Path) -> BTreeSet<PathBuf> {
        let pages = self.parts.iter().flat_map(|(_, pages)| pages);
        let mut files: BTreeSet<PathBuf> = pages.map(|page| page.path.clone()).collect();
        files.insert(PathBuf::from(FRONT));
        for page in files.clone() {
            let targets = targets(root, &page).into_iter();
            files.extend(targets.filter(|file| root.join(file).is_file()));
        }
        files
    }
}

/// True for a description of the records or images beside it, which is part of the repository only.
fn is_recipe(file: &Path) -> bool {
    let dirs = [
        "benchmarks/record",
        "benchmarks/definitions",
        "docs/guide/images",
    ];
    dirs.iter().any(|dir| file.starts_with(dir))
}

/// Adds a page and, if it is a README.md, the pages of its folder that it links.
fn add(
    root: &Path,
    path: &Path,
    depth: usize,
    seen: &mut BTreeSet<PathBuf>,
    pages: &mut Vec<Page>,
) {
    if !root.join(path).is_file() || !seen.insert(path.to_owned()) {
        return;
    }
    pages.push(Page {
        path: path.to_owned(),
        title: title(root, path),
        depth,
    });
    if path.file_name().is_none_or(|name| name != "README.md") {
        return;
    }
    let dir = path.parent().unwrap_or(Path::new(""));
    for target in targets(root, path) {
        if target.starts_with(dir) && target.extension().is_some_and(|e| e == "md") {
            add(root, &target, depth + 1, seen, pages);
        }
    }
}

/// First heading of a page.
fn title(root: &Path, path: &Path) -> String {
    let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    heading
        .map(str::to_owned)
        .unwrap_or_else(|| path.display().to_string())
}

/// Relative link targets of a document, in the order of the text, from the project's root.
fn targets(root: &Path, document: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(root.join(document)).unwrap_or_default();
    let dir = document.parent().unwrap_or(Path::new(""));
    text.split("](")
        .skip(1)
        .filter_map(|link| link.split([')', '#']).next())
        .filter(|target| !target.is_empty() && !target.contains(':'))
        .map(|target| normal(&dir.join(target)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directory that is removed at the end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("xtask-contents-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            for (path, text) in files {
                let path = dir.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(dir)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn pages_follow_the_links_of_their_index() {
        let place = Place::new(
            "order",
            &[
                ("README.md", "# Tuff\n"),
                (
                    "docs/guide/README.md",
                    "# Guide\n[b](b.md) [a](a.md#part) [up](../../README.md)\n",
                ),
                ("docs/guide/a.md", "# Page A\n"),
                ("docs/guide/b.md", "# Page B\n![x](x.svg)\n"),
                ("docs/guide/x.svg", "<svg/>"),
            ],
        );
        let contents = Contents::collect(&place.0);
        let summary = contents.summary();
        // The title of a page in the browser has the name of the book behind it: "Start - Tuff".
        assert!(summary.contains("[Start](README.md)\n"));
        assert!(summary.contains(
            "# Guide\n\n- [Guide](docs/guide/README.md)\n  - [Page B](docs/guide/b.md)\n  - [Page A](docs/guide/a.md)\n"
        ));
        let files = contents.files(&place.0);
        assert!(files.contains(Path::new("docs/guide/x.svg")));
    }

    #[test]
    fn a_page_without_a_link_is_found() {
        let place = Place::new(
            "missing",
            &[
                ("docs/guide/README.md", "# Guide\n"),
                ("docs/guide/lost.md", "# Lost\n"),
            ],
        );
        let missing = Contents::collect(&place.0).missing;
        assert_eq!(
            missing,
            ["docs/guide/lost.md: no README.md of the website links it"]
        );
    }
}
