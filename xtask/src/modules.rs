//! Module tree of a crate, and which module uses which.
//!
//! A dependency is a path in code outside of tests that leads into another file: `use crate::a::B`, `super::c::d()`,
//! `child::E`. A name that a module re-exports leads to the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::{Token, scan};

/// A file of a crate, and what it uses.
#[derive(Debug)]
pub(crate) struct File {
    /// Path, relative to the project's root.
    pub(crate) path: PathBuf,
    /// Indices of the files it uses, with the first path that leads there and its line.
    pub(crate) uses: BTreeMap<usize, (String, usize)>,
}

/// Reads the crate whose root file is `root_file` and returns its files.
pub(crate) fn files(project: &Path, root_file: &Path) -> Vec<File> {
    let mut tree = Tree {
        project: project.to_owned(),
        modules: Vec::new(),
        files: Vec::new(),
    };
    let dir = root_file.parent().unwrap_or(Path::new("")).to_owned();
    tree.read_file(Vec::new(), root_file.to_owned(), dir);
    tree.connect();
    tree.files
}

/// Keywords whose next word is the name of an item.
const ITEMS: [&str; 9] = [
    "struct", "enum", "union", "trait", "type", "fn", "const", "static", "mod",
];

struct Tree {
    project: PathBuf,
    modules: Vec<Module>,
    files: Vec<File>,
}

/// A module: a file, or an inline `mod name { ... }`.
struct Module {
    path: Vec<String>,
    file: usize,
    /// Child modules by name.
    children: BTreeMap<String, usize>,
    /// Items that the module defines.
    defined: BTreeSet<String>,
    /// Names that `use` brings in, with their paths as written.
    aliases: BTreeMap<String, Vec<String>>,
    /// Paths of `use path::*`.
    globs: Vec<Vec<String>>,
    /// Paths in code, outside of tests.
    mentions: Vec<Mention>,
    /// Words of the code outside of `use`, to tell a re-export from a use.
    words: BTreeSet<String>,
}

/// A path in code outside of tests, and its place.
struct Mention {
    path: Vec<String>,
    line: usize,
    /// Name that a `pub use` exports: counts as a dependency only if the module's own code has the name.
    exported: Option<String>,
}

impl Tree {
    /// Reads one file as module `path`, whose child files are in `dir`.
    fn read_file(&mut self, path: Vec<String>, file: PathBuf, dir: PathBuf) -> Option<usize> {
        let text = std::fs::read_to_string(self.project.join(&file)).ok()?;
        let (tokens, _) = scan(&text);
        self.files.push(File {
            path: file,
            uses: BTreeMap::new(),
        });
        let module = self.new_module(path, self.files.len() - 1);
        Parser {
            tree: self,
            tokens: &tokens,
            at: 0,
        }
        .module(module, &dir);
        Some(module)
    }

    fn new_module(&mut self, path: Vec<String>, file: usize) -> usize {
        self.modules.push(Module {
            path,
            file,
            children: BTreeMap::new(),
            defined: BTreeSet::new(),
            aliases: BTreeMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
            words: BTreeSet::new(),
        });
        self.modules.len() - 1
    }

    /// Fills `File::uses` from the mentions of all modules.
    fn connect(&mut self) {
        for from in 0..self.modules.len() {
            for mention in &self.modules[from].mentions {
                if let Some(name) = &mention.exported
                    && !self.modules[from].words.contains(name)
                {
                    continue;
                }
                let Some(to) = self.resolve(from, &mention.path, 0) else {
                    continue;
                };
                let (from, to) = (self.modules[from].file, self.modules[to].file);
                if from != to {
                    let what = (mention.path.join("::"), mention.line);
                    self.files[from].uses.entry(to).or_insert(what);
                }
            }
        }
    }

    /// Module that defines `path` as written in module `from`. `None`: another crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        // Re-exports may lead in circles.
        if depth > 16 {
            return None;
        }
        let mut rest = path;
        let mut at = from;
        let first = rest.first()?.as_str();
        match first {
            "crate" => {
                at = 0;
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    at = self.parent(at)?;
                    rest = &rest[1..];
                }
            }
            _ => {
                let module = &self.modules[from];
                let is_known = module.children.contains_key(first)
                    || module.aliases.contains_key(first)
                    || module.defined.contains(first);
                if !is_known {
                    return None;
                }
            }
        }
        self.descend(at, rest, depth)
    }

    fn descend(&self, mut at: usize, path: &[String], depth: usize) -> Option<usize> {
        for (i, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            if let Some(&child) = module.children.get(name) {
                at = child;
            } else if module.defined.contains(name) {
                return Some(at);
            } else if let Some(target) = module.aliases.get(name) {
                // `use foo::foo` of another crate's `foo` does not lead back here.
                if target.first() == Some(name) {
                    return None;
                }
                let mut target = target.clone();
                target.extend_from_slice(&path[i + 1..]);
                return self.resolve(at, &target, depth + 1);
            } else {
                let through_glob = module.globs.iter().find_map(|glob| {
                    let to = self.resolve(at, glob, depth + 1)?;
                    self.has(to, name)
                        .then(|| self.descend(to, &path[i..], depth + 1))?
                });
                return Some(through_glob.unwrap_or(at));
            }
        }
        Some(at)
    }

    fn has(&self, module: usize, name: &str) -> bool {
        let module = &self.modules[module];
        module.children.contains_key(name)
            || module.defined.contains(name)
            || module.aliases.contains_key(name)
    }

    fn parent(&self, module: usize) -> Option<usize> {
        let path = &self.modules[module].path;
        let parent = &path[..path.len().checked_sub(1)?];
        self.modules.iter().position(|m| m.path == parent)
    }
}

struct Parser<'a> {
    tree: &'a mut Tree,
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens
            .get(self.at + ahead)
            .map_or("", |t| t.text.as_str())
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |t| t.line)
    }

    /// Reads to the end of the tokens, or to the brace that closes an inline module.
    fn module(&mut self, module: usize, dir: &Path) {
        let mut depth = 0_usize;
        let mut is_pub = false;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "#" => self.attribute(),
                "{" => {
                    depth += 1;
                    self.at += 1;
                }
                "}" => {
                    self.at += 1;
                    match depth.checked_sub(1) {
                        Some(less) => depth = less,
                        None => return,
                    }
                }
                "pub" => {
                    is_pub = true;
                    self.at += 1;
                    if self.text(0) == "(" {
                        self.skip_group();
                    }
                    continue;
                }
                "use" if self.text(1) != "<" => self.use_item(module, is_pub),
                "mod" if is_name(self.text(1)) => self.mod_item(module, dir),
                word if ITEMS.contains(&word) && is_name(self.text(1)) => {
                    if depth == 0 && !ITEMS.contains(&self.text(1)) {
                        let name = self.text(1).to_owned();
                        self.tree.modules[module].defined.insert(name);
                        self.at += 2;
                    } else {
                        self.at += 1;
                    }
                }
                "macro_rules" if self.text(1) == "!" => {
                    let name = self.text(2).to_owned();
                    self.tree.modules[module].defined.insert(name);
                    self.at += 3;
                }
                word if is_name(word) => self.path(module),
                _ => self.at += 1,
            }
            is_pub = false;
        }
    }

    /// Skips `#[...]`, and the item below it if that is compiled for tests only.
    fn attribute(&mut self) {
        self.at += 1;
        let is_inner = self.text(0) == "!";
        if is_inner {
            self.at += 1;
        }
        if self.text(0) != "[" {
            return;
        }
        let start = self.at;
        self.skip_group();
        let words: Vec<&str> = self.tokens[start..self.at]
            .iter()
            .map(|t| t.text.as_str())
            .collect();
        let is_test = words.get(1) == Some(&"cfg")
            && (words.get(3) == Some(&"test") || words[3..].starts_with(&["all", "(", "test"]))
            || words.get(1) == Some(&"test");
        if is_test && is_inner {
            self.at = self.tokens.len();
        } else if is_test {
            self.skip_item();
        }
    }

    /// Skips a group in brackets of any kind that begins here.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips an item, a field, an arm or a statement.
    fn skip_item(&mut self) {
        while self.text(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        let mut has_block = true;
        let mut is_item = false;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "use" | "let" | "static" | "type" => has_block = false,
                "const" if self.text(1) != "fn" => has_block = false,
                "fn" | "struct" | "enum" | "impl" | "mod" | "trait" => is_item = true,
                "(" | "[" => {
                    self.skip_group();
                    continue;
                }
                "{" => {
                    self.skip_group();
                    if has_block {
                        return;
                    }
                    continue;
                }
                ";" => {
                    self.at += 1;
                    return;
                }
                "," if !is_item && has_block => {
                    self.at += 1;
                    return;
                }
                "}" | ")" | "]" => return,
                _ => {}
            }
            self.at += 1;
        }
    }

    fn mod_item(&mut self, module: usize, dir: &Path) {
        let name = self.text(1).to_owned();
        let mut path = self.tree.modules[module].path.clone();
        path.push(name.clone());
        let below = dir.join(&name);
        let is_inline = self.text(2) == "{";
        self.at += 3;
        let child = if is_inline {
            let file = self.tree.modules[module].file;
            let child = self.tree.new_module(path, file);
            self.module(child, &below);
            Some(child)
        } else {
            let beside = dir.join(format!("{name}.rs"));
            if self.tree.project.join(&beside).exists() {
                self.tree.read_file(path, beside, below)
            } else {
                self.tree.read_file(path, below.join("mod.rs"), below)
            }
        };
        if let Some(child) = child {
            self.tree.modules[module].children.insert(name, child);
        }
    }

    fn use_item(&mut self, module: usize, is_pub: bool) {
        self.at += 1;
        if self.text(0) == "::" {
            self.at += 1;
        }
        self.use_tree(module, &[], is_pub);
    }

    /// Reads one branch of a `use` after the path `prefix`, to the `;`, `,` or `}` after it.
    fn use_tree(&mut self, module: usize, prefix: &[String], is_pub: bool) {
        let mut path = prefix.to_vec();
        let mut alias = None;
        let line = self.line();
        while self.at < self.tokens.len() {
            match self.text(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "") {
                        self.use_tree(module, &path, is_pub);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    let module = &mut self.tree.modules[module];
                    module.globs.push(path.clone());
                    if !is_pub {
                        let exported = None;
                        module.mentions.push(Mention {
                            path,
                            line,
                            exported,
                        });
                    }
                    return;
                }
                "as" => {
                    alias = Some(self.text(1).to_owned());
                    self.at += 2;
                }
                "," | "}" | ";" => break,
                "::" => self.at += 1,
                "self" if !path.is_empty() => self.at += 1,
                name => {
                    path.push(name.trim_start_matches('$').to_owned());
                    self.at += 1;
                }
            }
        }
        let Some(name) = alias.or_else(|| path.last().cloned()) else {
            return;
        };
        let module = &mut self.tree.modules[module];
        let exported = is_pub.then(|| name.clone());
        module.aliases.insert(name, path.clone());
        module.mentions.push(Mention {
            path,
            line,
            exported,
        });
    }

    /// Reads a path, or a word that is none.
    fn path(&mut self, module: usize) {
        let line = self.line();
        let mut path = vec![self.text(0).to_owned()];
        let follows = self.at > 0 && matches!(self.tokens[self.at - 1].text.as_str(), "::" | ".");
        self.at += 1;
        while self.text(0) == "::" && is_name(self.text(1)) {
            path.push(self.text(1).to_owned());
            self.at += 2;
        }
        let module = &mut self.tree.modules[module];
        if !follows {
            module.words.insert(path[0].clone());
        }
        if path.len() > 1 && !follows {
            let exported = None;
            module.mentions.push(Mention {
                path,
                line,
                exported,
            });
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dependencies between the files of a crate that is written out, as "a -> b".
    fn uses(name: &str, sources: &[(&str, &str)]) -> Vec<String> {
        let dir = std::env::temp_dir().join(format!("xtask-modules-{name}-{}", std::process::id()));
        for (path, text) in sources {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let files = files(&dir, Path::new("lib.rs"));
        std::fs::remove_dir_all(&dir).unwrap();
        let mut out: Vec<String> = files
            .iter()
            .flat_map(|f| f.uses.keys().map(|&to| (f.path.clone(), to)))
            .map(|(from, to)| format!("{} -> {}", from.display(), files[to].path.display()))
            .collect();
        out.sort();
        out
    }

    #[test]
    fn declarations_and_reexports_are_no_dependencies() {
        let found = uses(
            "reexports",
            &[
                (
                    "lib.rs",
                    "mod a; pub mod b; pub use a::A; pub(crate) use b::*;",
                ),
                ("a.rs", "pub struct A;"),
                ("b.rs", "use crate::A; use super::a; pub fn b(_: A) {}"),
            ],
        );
        assert_eq!(found, ["b.rs -> a.rs"]);
    }

    #[test]
    fn a_parent_that_uses_a_child_depends_on_it() {
        let found = uses(
            "parent",
            &[
                (
                    "lib.rs",
                    "mod a; pub use a::A; pub struct R(A); fn f() { a::g() }",
                ),
                (
                    "a/mod.rs",
                    "mod c; pub struct A; pub fn g() { c::h(super::R) }",
                ),
                (
                    "a/c.rs",
                    "pub fn h(_: crate::R) { self::inner::i() } mod inner { pub fn i() { super::super::g() } }",
                ),
            ],
        );
        assert_eq!(
            found,
            [
                "a/c.rs -> a/mod.rs",
                "a/c.rs -> lib.rs",
                "a/mod.rs -> a/c.rs",
                "a/mod.rs -> lib.rs",
                "lib.rs -> a/mod.rs"
            ]
        );
    }

    #[test]
    fn names_through_globs_and_aliases_lead_to_their_definition() {
        let found = uses(
            "globs",
            &[
                ("lib.rs", "mod a; mod b; mod c;"),
                ("a.rs", "pub use crate::b::*; pub use crate::b::B as Bee;"),
                ("b.rs", "pub struct B; pub enum E { V }"),
                ("c.rs", "use crate::a::{Bee, E::{self, V}}; use std::fmt;"),
            ],
        );
        assert_eq!(found, ["c.rs -> b.rs"]);
    }

    #[test]
    fn code_for_tests_is_left_out() {
        let found = uses(
            "tests",
            &[
                ("lib.rs", "mod a; mod b;"),
                (
                    "a.rs",
                    "#[cfg(test)] use crate::b::{B, C}; pub struct A { #[cfg(test)] x: crate::b::B, y: u8 }
                     #[cfg(test)] impl A { fn f(_: crate::b::B) {} } #[cfg(test)] mod tests { use crate::b::B; }",
                ),
                ("b.rs", "#[cfg(all(test, unix))] #[allow(x)] fn g<A, B>(_: [u8; 4]) { crate::a::A } fn h() { \"crate::a::A\" } use crate::a::A;"),
            ],
        );
        assert_eq!(found, ["b.rs -> a.rs"]);
    }
}
