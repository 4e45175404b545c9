//! `cargo xtask site`: the project's documents as a website, made by mdBook in `target/site/html`.
//!
//! The documents are the pages, as they are. The table of contents follows the links of each folder's README.md, so a
//! page that no README.md links is a finding. After the build every link of every HTML page is followed.

mod contents;
mod links;
mod paths;

use contents::Contents;
use std::path::Path;
use std::process::Command;

/// Folder of the website, below the project's root.
pub(crate) const SITE: &str = "target/site";

/// Command that installs mdBook without its web server.
const INSTALL: &str = "cargo install --locked mdbook --no-default-features --features search";

/// Makes the website and returns the findings, a line each.
pub(crate) fn run(root: &Path) -> Vec<String> {
    let contents = Contents::collect(root);
    if !contents.missing.is_empty() {
        return contents.missing;
    }
    let site = root.join(SITE);
    if let Err(e) = stage(root, &site, &contents) {
        return vec![format!("{}: cannot be written: {e}", site.display())];
    }
    match Command::new("mdbook").arg("build").arg(&site).status() {
        Ok(status) if status.success() => {
            let html = site.join("html");
            match add_index_pages(&html) {
                Ok(()) => links::run(&html),
                Err(e) => vec![format!("{}: cannot be written: {e}", html.display())],
            }
        }
        Ok(status) => vec![format!("mdbook build: {status}")],
        Err(e) => vec![format!(
            "mdbook cannot run ({e}); install it with: {INSTALL}"
        )],
    }
}

/// Copies pages, the files that they link, and mdBook's configuration to a new folder.
fn stage(root: &Path, site: &Path, contents: &Contents) -> std::io::Result<()> {
    if site.exists() {
        std::fs::remove_dir_all(site)?;
    }
    std::fs::create_dir_all(site)?;
    for name in ["book.toml", "book.css"] {
        std::fs::copy(root.join("docs").join(name), site.join(name))?;
    }
    let source = site.join("src");
    for file in contents.files(root) {
        let to = source.join(&file);
        std::fs::create_dir_all(to.parent().unwrap_or(&source))?;
        std::fs::copy(root.join(&file), to)?;
    }
    std::fs::write(source.join("SUMMARY.md"), contents.summary())
}

/// Adds an index.html beside each README.html, which leads there, so that the address of a folder is one of a page.
fn add_index_pages(folder: &Path) -> std::io::Result<()> {
    const PAGE: &str = "<!doctype html>\n<meta charset=utf-8>\n<meta http-equiv=refresh content=\"0; url=README.html\">\n\
                        <title>Tuff</title>\n<a href=\"README.html\">Overview</a>\n";
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            add_index_pages(&path)?;
        }
    }
    let index = folder.join("index.html");
    match folder.join("README.html").exists() && !index.exists() {
        true => std::fs::write(index, PAGE),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::root;

    #[test]
    fn the_address_of_a_folder_leads_to_its_readme() {
        let dir = std::env::temp_dir().join(format!("xtask-index-{}", std::process::id()));
        let (guide, plain) = (dir.join("docs/guide"), dir.join("plots"));
        for folder in [&guide, &plain] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(guide.join("README.html"), "guide").unwrap();
        std::fs::write(dir.join("README.html"), "start").unwrap();
        std::fs::write(dir.join("index.html"), "kept").unwrap();
        add_index_pages(&dir).unwrap();
        let index = std::fs::read_to_string(guide.join("index.html")).unwrap();
        assert!(index.contains("url=README.html"));
        assert_eq!(
            std::fs::read_to_string(dir.join("index.html")).unwrap(),
            "kept"
        );
        assert!(!plain.join("index.html").exists());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn every_document_is_a_page_of_the_website() {
        let missing = Contents::collect(root()).missing;
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }
}
