//! Links of a website: every local target exists, and so does every fragment.

use super::paths::normal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Page that servers answer for all paths, so its relative links have no fixed base.
const ANY_PATH: &str = "404.html";

/// HTML page: its fragments and link targets.
struct Html {
    fragments: BTreeSet<String>,
    targets: Vec<String>,
}

/// Follows the local links of all pages below `dir`. Returns the broken ones, a line each.
pub(super) fn run(dir: &Path) -> Vec<String> {
    let mut pages = BTreeMap::new();
    let mut files = BTreeSet::new();
    walk(dir, &mut |path| {
        let name = path.strip_prefix(dir).unwrap_or(&path).to_owned();
        if name.extension().is_some_and(|e| e == "html") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            pages.insert(name.clone(), parse(&text));
        }
        files.insert(name);
    });
    let mut findings = Vec::new();
    for (name, page) in pages
        .iter()
        .filter(|(name, _)| *name != Path::new(ANY_PATH))
    {
        for target in &page.targets {
            if let Some(why) = broken(name, target, &pages, &files) {
                findings.push(format!("{}: {target}: {why}", name.display()));
            }
        }
    }
    if pages.is_empty() {
        findings.push(format!("{}: has no pages", dir.display()));
    }
    findings
}

fn walk(dir: &Path, each: &mut impl FnMut(PathBuf)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(t) if t.is_dir() => walk(&entry.path(), each),
            _ => each(entry.path()),
        }
    }
}

/// Reason why a link leads nowhere. `None`: it is good, or leaves the website.
fn broken(
    page: &Path,
    target: &str,
    pages: &BTreeMap<PathBuf, Html>,
    files: &BTreeSet<PathBuf>,
) -> Option<&'static str> {
    if target.contains(':') {
        return None;
    }
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let dir = page.parent().unwrap_or(Path::new(""));
    let mut file = match path {
        "" => page.to_owned(),
        path => normal(&dir.join(path)),
    };
    if path.ends_with('/') {
        file.push("index.html");
    }
    if !files.contains(&file) {
        return Some("no such file");
    }
    let html = pages.get(&file)?;
    (!fragment.is_empty() && !html.fragments.contains(fragment)).then_some("no such fragment")
}

/// Collects `id`, `name`, `href` and `src` of all tags.
fn parse(text: &str) -> Html {
    let mut page = Html {
        fragments: BTreeSet::new(),
        targets: Vec::new(),
    };
    for tag in text.split('<').skip(1) {
        // `>` within a value is written `&gt;` by mdBook.
        let tag = tag.split('>').next().unwrap_or_default();
        if tag.starts_with('!') || tag.starts_with('/') {
            continue;
        }
        for name in ["id", "name"] {
            page.fragments.extend(value(tag, name));
        }
        for name in ["href", "src"] {
            page.targets.extend(value(tag, name));
        }
    }
    page
}

/// Value of an attribute in double quotes.
fn value(tag: &str, name: &str) -> Option<String> {
    let start = format!(" {name}=\"");
    let rest = &tag[tag.find(&start)? + start.len()..];
    let text = &rest[..rest.find('"')?];
    Some(text.replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_and_fragments_are_found() {
        let dir = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        let index = r##"<a href="sub/a.html#part">x</a><a href="#top"></a><a href="https://example.org/"></a>
            <img src="none.svg"><p id="top">"##;
        let page =
            r#"<h2 id="part"></h2><a href="../index.html">x</a><a href="../index.html#none">x</a>"#;
        std::fs::write(dir.join("index.html"), index).unwrap();
        std::fs::write(dir.join("sub/a.html"), page).unwrap();
        let found = run(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            found,
            [
                "index.html: none.svg: no such file",
                "sub/a.html: ../index.html#none: no such fragment"
            ]
        );
    }
}
