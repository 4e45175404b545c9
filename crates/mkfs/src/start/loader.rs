//! Libraries that a dynamic loader loads with a program, found in the image alone.
//!
//! Sources: ld.so(8) for glibc; the manual of musl for its loader.

use super::cache::{self, Cache};
use super::elf::{self, Elf};
use super::lookup::{Files, Found, base, join, parent, within};
use crate::Result;
use crate::tree::InodeId;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;
use tuff_format::elf::Abi;

/// Files that one process loads.
const OBJECTS_MAX: usize = 1024;
/// Directories of one search path.
const DIRS_MAX: usize = 64;
/// Files above this size are read in parts first. Unit: bytes.
pub(super) const LARGE: u64 = 1 << 20;
/// Longest list of libraries or directories in a file. Unit: bytes.
const TEXT_MAX: usize = 64 << 10;

/// ELF files of an image that were parsed.
#[derive(Default)]
pub(super) struct ElfFiles(HashMap<InodeId, Option<Rc<Elf>>>);

impl ElfFiles {
    /// Returns the ELF file; `None` if the file is another one.
    pub(super) fn get(&mut self, files: &Files<'_>, inode: InodeId) -> Result<Option<Rc<Elf>>> {
        if let Some(known) = self.0.get(&inode) {
            return Ok(known.clone());
        }
        let size = files.tree.size(inode);
        let read = |offset, len| files.read(inode, offset, len);
        let elf = elf::parse(&read, size, size > LARGE)?.map(Rc::new);
        self.0.insert(inode, elf.clone());
        Ok(elf)
    }

    /// Returns the ELF file if it was parsed.
    pub(super) fn known(&self, inode: InodeId) -> Option<&Rc<Elf>> {
        self.0.get(&inode)?.as_ref()
    }
}

/// Environment of a program, as far as its loader uses it.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Value of the variable `LD_LIBRARY_PATH`.
    pub(super) library_path: Vec<u8>,
    /// Value of the variable `LD_PRELOAD`.
    pub(super) preload: Vec<u8>,
    /// Working directory of the process.
    pub(super) directory: Vec<u8>,
}

/// Rules of a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Glibc,
    Musl,
}

/// File that the process has loaded.
struct Object {
    inode: InodeId,
    elf: Rc<Elf>,
    /// Names by which the file is found again.
    names: Vec<Vec<u8>>,
    /// Directory that `$ORIGIN` stands for.
    origin: Vec<u8>,
    /// Object that needs this one. `None` for the program.
    parent: Option<usize>,
}

/// Candidate for a library.
struct Candidate {
    /// Path by which it was found.
    path: Vec<u8>,
    found: Found,
}

/// Process of a program, with the libraries that it has loaded.
pub(super) struct Process<'f, 'a> {
    files: &'f Files<'a>,
    search: Search,
    rules: Rules,
    abi: Abi,
    objects: Vec<Object>,
    /// Objects whose libraries are loaded.
    done: usize,
    cache: Option<Cache>,
    /// Directories that are searched last.
    defaults: Vec<Vec<u8>>,
    /// Name that `$LIB` stands for.
    lib: Vec<u8>,
    /// Variants for some processors, with the object that needs them.
    variants: VecDeque<(Candidate, usize)>,
    /// Files in the order in which they are loaded.
    pub(super) loaded: Vec<Found>,
}

impl<'f, 'a> Process<'f, 'a> {
    /// Loads a program with its libraries. `None` if it is no ELF file.
    pub(super) fn start(
        files: &'f Files<'a>,
        elves: &mut ElfFiles,
        program: &Found,
        search: &Search,
    ) -> Result<Option<Self>> {
        let Some(elf) = elves.get(files, program.inode)? else {
            return Ok(None);
        };
        let mut process = Self {
            files,
            search: search.clone(),
            rules: Rules::Glibc,
            abi: elf.abi,
            objects: Vec::new(),
            done: 0,
            cache: None,
            defaults: Vec::new(),
            lib: Vec::new(),
            variants: VecDeque::new(),
            loaded: Vec::new(),
        };
        let loader = elf.interpreter.as_ref();
        let loader = loader
            .and_then(|path| Some((path.clone(), files.file(&within(&search.directory, path))?)));
        // The kernel follows the links of a program: $ORIGIN is the directory of the file.
        process.objects.push(Object {
            inode: program.inode,
            elf,
            names: Vec::new(),
            origin: parent(&program.path).to_vec(),
            parent: None,
        });
        let Some((path, loader)) = loader else {
            process.done = 1;
            process.loaded.push(program.clone());
            return Ok(Some(process));
        };
        process.prepare(&path, &loader)?;
        process.loaded.push(program.clone());
        if let Some(elf) = elves.get(files, loader.inode)? {
            process.add(loader, vec![base(&path).to_vec()], &path, Some(0), elf);
        }
        for name in process.preloaded()? {
            process.need(elves, &name, 0)?;
        }
        process.complete(elves)?;
        Ok(Some(process))
    }

    /// Returns true if the program has a loader.
    pub(super) fn is_dynamic(&self) -> bool {
        self.objects.len() > 1
    }

    /// Sets what depends on the loader: its rules and its directories.
    fn prepare(&mut self, path: &[u8], loader: &Found) -> Result<()> {
        let name = base(&loader.path);
        let is_musl = |name: &[u8]| name.starts_with(b"ld-musl-");
        if is_musl(base(path)) || is_musl(name) {
            self.rules = Rules::Musl;
            let name = if is_musl(name) { name } else { base(path) };
            let arch = name.strip_prefix(b"ld-musl-").unwrap_or(name);
            let arch = arch.split(|byte| *byte == b'.').next().unwrap_or_default();
            let file = [b"etc/ld-musl-", arch, b".path"].concat();
            let listed = match self.files.file(&file) {
                Some(file) => {
                    self.loaded.push(file.clone());
                    self.files.head(file.inode, TEXT_MAX)?
                }
                None => b"/lib:/usr/local/lib:/usr/lib".to_vec(),
            };
            let dirs = listed.split(|byte| matches!(byte, b':' | b'\n'));
            self.defaults = dirs
                .filter(|dir| !dir.is_empty())
                .take(DIRS_MAX)
                .map(<[u8]>::to_vec)
                .collect();
            return Ok(());
        }
        if let Some(file) = self.files.file(b"etc/ld.so.cache") {
            let bytes = self.files.head(file.inode, cache::FILE_MAX)?;
            self.cache = Cache::parse(&bytes, self.abi.is_little);
            self.loaded.push(file);
        }
        let dir = parent(&loader.path);
        let short = dir.strip_prefix(b"usr/").unwrap_or(dir);
        self.lib = short.to_vec();
        let mut dirs = vec![short.to_vec(), join(b"usr", short), dir.to_vec()];
        let usual: [&[u8]; 4] = [b"lib", b"usr/lib", b"lib64", b"usr/lib64"];
        dirs.extend(usual.map(<[u8]>::to_vec));
        self.defaults = dirs.iter().map(|dir| [b"/", &dir[..]].concat()).collect();
        self.defaults.dedup();
        Ok(())
    }

    /// Libraries that are loaded before all others.
    fn preloaded(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut names = self.search.preload.clone();
        if self.rules == Rules::Glibc
            && let Some(file) = self.files.file(b"etc/ld.so.preload")
        {
            names.push(b' ');
            names.extend(self.files.head(file.inode, TEXT_MAX)?);
            self.loaded.push(file);
        }
        let names = names.split(|byte| byte.is_ascii_whitespace() || *byte == b':');
        let names = names.filter(|name| !name.is_empty());
        Ok(names.take(DIRS_MAX).map(<[u8]>::to_vec).collect())
    }

    /// Opens a library as the program itself does.
    pub(super) fn open(&mut self, elves: &mut ElfFiles, name: &[u8]) -> Result<bool> {
        if !self.is_dynamic() {
            return Ok(false);
        }
        let is_there = self.need(elves, name, 0)?;
        self.complete(elves)?;
        Ok(is_there)
    }

    /// Opens an ELF file with its libraries. Returns those that were not loaded before.
    pub(super) fn open_file(&mut self, elves: &mut ElfFiles, file: &Found) -> Result<Vec<Found>> {
        let before = self.loaded.len();
        if let Some(elf) = elves
            .get(self.files, file.inode)?
            .filter(|elf| elf.abi == self.abi)
            && self.is_dynamic()
        {
            let names = vec![base(&file.path).to_vec()];
            self.add(file.clone(), names, &file.path, Some(0), elf);
            self.complete(elves)?;
        }
        Ok(self.loaded.get(before..).unwrap_or_default().to_vec())
    }

    /// Loads what the loaded objects need, in the order of the loader: breadth first, then what notes name, then variants.
    fn complete(&mut self, elves: &mut ElfFiles) -> Result<()> {
        let mut noted = self.done;
        loop {
            while self.done < self.objects.len() {
                let at = self.done;
                self.done += 1;
                let elf = Rc::clone(&self.objects[at].elf);
                for name in &elf.needed {
                    self.need(elves, name, at)?;
                }
            }
            if noted < self.objects.len() {
                let elf = Rc::clone(&self.objects[noted].elf);
                for names in &elf.opened {
                    for name in names {
                        if self.need(elves, name, noted)? {
                            break;
                        }
                    }
                }
                noted += 1;
                continue;
            }
            let Some((variant, from)) = self.variants.pop_front() else {
                return Ok(());
            };
            if let Some(elf) = elves.get(self.files, variant.found.inode)? {
                // The baseline keeps the names.
                self.add(variant.found, Vec::new(), &variant.path, Some(from), elf);
            }
        }
    }

    fn add(
        &mut self,
        found: Found,
        mut names: Vec<Vec<u8>>,
        path: &[u8],
        parent_object: Option<usize>,
        elf: Rc<Elf>,
    ) {
        if let Some(known) = self.objects.iter_mut().find(|o| o.inode == found.inode) {
            known.names.extend(names);
            return;
        }
        if self.objects.len() >= OBJECTS_MAX {
            return;
        }
        if !names.is_empty() {
            names.extend(elf.soname.clone());
        }
        self.objects.push(Object {
            inode: found.inode,
            elf,
            names,
            origin: parent(path).to_vec(),
            parent: parent_object,
        });
        self.loaded.push(found);
    }

    /// Loads a library that an object needs. Returns false if the image does not have it.
    fn need(&mut self, elves: &mut ElfFiles, name: &[u8], from: usize) -> Result<bool> {
        if name.is_empty() || self.rules == Rules::Musl && is_loader(name) {
            return Ok(true);
        }
        if self
            .objects
            .iter()
            .any(|object| object.names.iter().any(|n| n == name))
        {
            return Ok(true);
        }
        let mut variants = Vec::new();
        let candidate = self.find(name, from, &mut variants)?;
        let variants = variants.into_iter().map(|variant| (variant, from));
        self.variants.extend(variants.take(DIRS_MAX));
        let Some(candidate) = candidate else {
            return Ok(false);
        };
        match elves.get(self.files, candidate.found.inode)? {
            Some(elf) => {
                let names = vec![name.to_vec()];
                self.add(candidate.found, names, &candidate.path, Some(from), elf);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Finds a library. Adds its variants for some processors that come before it.
    fn find(
        &self,
        name: &[u8],
        from: usize,
        variants: &mut Vec<Candidate>,
    ) -> Result<Option<Candidate>> {
        let object = &self.objects[from];
        if name.contains(&b'/') {
            let path = self.expand(name, &object.origin);
            return match path {
                Some(path) => self.candidate(within(&self.search.directory, &path)),
                None => Ok(None),
            };
        }
        for dir in self.first_dirs(from) {
            if let Some(found) = self.in_dir(&dir, name, variants)? {
                return Ok(Some(found));
            }
        }
        if object.elf.no_default {
            return Ok(None);
        }
        let mut baseline = None;
        for (path, is_variant) in self
            .cache
            .iter()
            .flat_map(|cache| cache.paths(name))
            .take(DIRS_MAX)
        {
            let candidate = self.candidate(path.to_vec())?;
            match is_variant {
                true => variants.extend(candidate),
                false => baseline = baseline.or(candidate),
            }
        }
        if baseline.is_some() {
            return Ok(baseline);
        }
        for dir in &self.defaults {
            if let Some(found) = self.in_dir(dir, name, variants)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Directories that are searched before the cache and the default directories.
    fn first_dirs(&self, from: usize) -> Vec<Vec<u8>> {
        let mut dirs = Vec::new();
        let of_environment = self
            .search
            .library_path
            .split(|byte| matches!(byte, b':' | b';'));
        let of_environment = of_environment.filter(|_| !self.search.library_path.is_empty());
        let of_environment = of_environment.take(DIRS_MAX).map(<[u8]>::to_vec);
        let list = |object: &Object, list: Option<&Vec<u8>>| -> Vec<Vec<u8>> {
            let parts = list
                .into_iter()
                .flat_map(|list| list.split(|byte| *byte == b':'));
            let parts = parts.take(DIRS_MAX);
            parts
                .filter_map(|part| self.expand(part, &object.origin))
                .collect()
        };
        let object = &self.objects[from];
        let is_musl = self.rules == Rules::Musl;
        if is_musl {
            dirs.extend(of_environment.clone());
        }
        if is_musl || object.elf.runpath.is_none() {
            let mut at = Some(from);
            while let Some(object) = at.and_then(|at| self.objects.get(at)) {
                let elf = &object.elf;
                let of_object = match (is_musl, &elf.runpath) {
                    (true, Some(runpath)) => Some(runpath),
                    // The older list counts only without the newer one.
                    (false, Some(_)) => None,
                    (_, None) => elf.rpath.as_ref(),
                };
                dirs.extend(list(object, of_object));
                if dirs.len() > 16 * DIRS_MAX {
                    break;
                }
                at = object.parent;
            }
        }
        if !is_musl {
            dirs.extend(of_environment);
            dirs.extend(list(object, object.elf.runpath.as_ref()));
        }
        // An empty name is the working directory.
        dirs.iter()
            .map(|dir| within(&self.search.directory, dir))
            .collect()
    }

    /// Finds a library in a directory. Adds its variants in subdirectories.
    fn in_dir(
        &self,
        dir: &[u8],
        name: &[u8],
        variants: &mut Vec<Candidate>,
    ) -> Result<Option<Candidate>> {
        let Some(found) = self.files.dir(dir) else {
            return Ok(None);
        };
        if self.rules == Rules::Glibc && self.files.child(found.inode, b"glibc-hwcaps").is_some() {
            let pattern = [&found.path[..], b"/glibc-hwcaps/*/", name].concat();
            for variant in self.files.matches(&pattern, DIRS_MAX) {
                variants.extend(self.candidate(variant.path)?);
            }
        }
        self.candidate(join(dir, name))
    }

    /// Returns the file at a path if it can be loaded into the process.
    fn candidate(&self, path: Vec<u8>) -> Result<Option<Candidate>> {
        let Some(found) = self.files.file(&path) else {
            return Ok(None);
        };
        let abi = match self.objects.iter().find(|o| o.inode == found.inode) {
            Some(known) => Some(known.elf.abi),
            None => Abi::decode(&self.files.head(found.inode, 20)?),
        };
        Ok((abi == Some(self.abi)).then_some(Candidate { path, found }))
    }

    /// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM`. `None` if the loader would ignore the text.
    fn expand(&self, text: &[u8], origin: &[u8]) -> Option<Vec<u8>> {
        if !text.contains(&b'$') {
            return Some(text.to_vec());
        }
        let origin = within(b"/", origin);
        let lib = Some(&self.lib[..]).filter(|lib| !lib.is_empty());
        let platform = platform(self.abi);
        let mut out = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
            out.extend(&rest[..at]);
            rest = &rest[at + 1..];
            let names: [(&[u8], Option<&[u8]>); 3] = [
                (b"ORIGIN", Some(&origin)),
                (b"LIB", lib.filter(|_| self.rules == Rules::Glibc)),
                (b"PLATFORM", platform.filter(|_| self.rules == Rules::Glibc)),
            ];
            let known = names.into_iter().find_map(|(name, value)| {
                let in_braces = rest.strip_prefix(b"{").and_then(|r| r.strip_prefix(name));
                let after = match in_braces {
                    Some(after) => after.strip_prefix(b"}")?,
                    None => rest.strip_prefix(name).filter(|after| {
                        let next = after.first();
                        next.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
                    })?,
                };
                Some((after, value))
            });
            let (after, value) = known?;
            out.extend(value?);
            rest = after;
        }
        out.extend(rest);
        (out.len() <= TEXT_MAX).then_some(out)
    }
}

/// Returns true for a library of musl that is its loader.
fn is_loader(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"lib") else {
        return false;
    };
    let parts: [&[u8]; 7] = [
        b"c.",
        b"pthread.",
        b"rt.",
        b"m.",
        b"dl.",
        b"util.",
        b"xnet.",
    ];
    parts.iter().any(|part| rest.starts_with(part))
}

/// Name that the kernel gives a processor, if it has one name for all of the kind.
fn platform(abi: Abi) -> Option<&'static [u8]> {
    Some(match (abi.machine, abi.is_little, abi.is_wide) {
        (62, ..) => b"x86_64",
        (3, ..) => b"i686",
        (183, true, _) => b"aarch64",
        (183, false, _) => b"aarch64_be",
        (22, ..) => b"z900",
        _ => return None,
    })
}
