//! Directories with the modules of an interpreter.

use super::lookup::{Files, Found, join};
use super::table::{Rule, matches};
use crate::Result;
use crate::layout::stored_time;
use crate::options::Options;
use crate::source::tally::AffectedPaths;
use crate::tree::InodeId;
use hashbrown::HashSet;
use tuff_format::inode::FileType;

/// Depth of directories in a directory of modules.
const DEPTH_MAX: usize = 24;
/// Entries of directories that are looked at for one image.
const ENTRIES_MAX: usize = 1 << 18;

/// Bytecode of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytecode {
    /// It is read alone.
    Valid,
    /// The source is read as well, to compare it.
    Checked,
    /// It is for another source: the source is compiled.
    Stale,
}

/// Reader of directories with modules.
pub(super) struct Modules<'f, 'a> {
    pub(super) files: &'f Files<'a>,
    pub(super) options: &'f Options,
    /// Entries that may still be looked at.
    pub(super) left: usize,
    /// Bytecode that options of the build made stale.
    pub(super) made_stale: AffectedPaths,
    /// Sources of that bytecode.
    stale: HashSet<InodeId>,
}

impl<'f, 'a> Modules<'f, 'a> {
    pub(super) fn new(files: &'f Files<'a>, options: &'f Options) -> Self {
        Self {
            files,
            options,
            left: ENTRIES_MAX,
            made_stale: AffectedPaths::default(),
            stale: HashSet::new(),
        }
    }

    /// Lists the files in and below a directory that a rule names, each directory's files before its subdirectories. `visit`
    /// returns false to end.
    pub(super) fn walk(
        &mut self,
        dir: &Found,
        rule: &Rule,
        tag: &[u8],
        visit: &mut dyn FnMut(Found) -> Result<bool>,
    ) -> Result<bool> {
        self.walk_at(dir, rule, tag, 0, visit)
    }

    fn walk_at(
        &mut self,
        dir: &Found,
        rule: &Rule,
        tag: &[u8],
        depth: usize,
        visit: &mut dyn FnMut(Found) -> Result<bool>,
    ) -> Result<bool> {
        let mut dirs = Vec::new();
        let files = self.files;
        for entry in files.tree.children(dir.inode) {
            let Some(left) = self.left.checked_sub(1) else {
                return Ok(false);
            };
            self.left = left;
            let name = files.tree.name(entry);
            if matches(&rule.skip, name) || rule.has_bytecode && name == b"__pycache__" {
                continue;
            }
            let path = join(&dir.path, name);
            if files.tree.file_type(entry.inode) == FileType::Dir {
                let inode = entry.inode;
                dirs.push(Found { inode, path });
                continue;
            }
            if !rule.kinds.is_empty() && !matches(&rule.kinds, name) {
                continue;
            }
            if let Some(found) = files.file(&path) {
                for file in self.module(found, rule, tag)? {
                    if !visit(file)? {
                        return Ok(false);
                    }
                }
            }
        }
        for dir in dirs.iter().filter(|_| depth < DEPTH_MAX) {
            if !self.walk_at(dir, rule, tag, depth + 1, visit)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns what is read of a module: the file, or its bytecode.
    pub(super) fn module(&mut self, file: Found, rule: &Rule, tag: &[u8]) -> Result<Vec<Found>> {
        if !rule.has_bytecode {
            return Ok(vec![file]);
        }
        let Some(compiled) = self.compiled(&file, tag) else {
            return Ok(vec![file]);
        };
        Ok(match self.compare(&file, &compiled)? {
            Bytecode::Valid => vec![compiled],
            Bytecode::Checked | Bytecode::Stale => vec![compiled, file],
        })
    }

    /// Finds the bytecode of a module. `tag` is part of its name.
    fn compiled(&self, file: &Found, tag: &[u8]) -> Option<Found> {
        let (dir, name) = match file.path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&file.path[..at], &file.path[at + 1..]),
            None => (&[][..], &file.path[..]),
        };
        let stem = name.strip_suffix(b".py")?;
        let cache = self.files.dir(&join(dir, b"__pycache__"))?;
        if !tag.contains(&b'*') {
            let name = [stem, b".", tag, b".pyc"].concat();
            return self.files.file(&join(&cache.path, &name));
        }
        let pattern = [&cache.path[..], b"/", stem, b".", tag, b".pyc"].concat();
        let found = self.files.matches(&pattern, 8);
        found
            .into_iter()
            .find(|found| self.files.is_file(found.inode))
    }

    /// Compares the header of bytecode with the source, as PEP 552 describes.
    fn compare(&mut self, source: &Found, compiled: &Found) -> Result<Bytecode> {
        let head = self.files.head(compiled.inode, 16)?;
        let number = |at: usize| {
            let field = head.get(at..at + 4).and_then(|field| field.try_into().ok());
            field.map(u32::from_le_bytes)
        };
        let (Some(flags), Some(time), Some(size)) = (number(4), number(8), number(12)) else {
            return Ok(Bytecode::Stale);
        };
        if flags & 1 == 1 {
            return Ok(match flags & 2 {
                0 => Bytecode::Valid,
                _ => Bytecode::Checked,
            });
        }
        let tree = self.files.tree;
        // Both numbers have 32 bits there.
        let is_of = |seconds: i64| time == seconds as u32 && size == tree.size(source.inode) as u32;
        if is_of(self.stored_seconds(source.inode)) {
            return Ok(Bytecode::Valid);
        }
        if is_of(tree.meta(source.inode).mtime) && self.stale.insert(source.inode) {
            self.made_stale.add(|| source.path.clone());
        }
        Ok(Bytecode::Stale)
    }

    /// Returns the time of an inode as the image stores it.
    pub(super) fn stored_seconds(&self, inode: InodeId) -> i64 {
        stored_time(self.files.tree, self.options, inode).0
    }
}
