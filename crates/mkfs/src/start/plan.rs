//! Files that a command reads when it starts, in the order in which they are wanted.
//!
//! ```text
//! words ──► program ──► libraries of its loader
//!              │  └───► files and modules of the table
//!              └──► script ──► interpreter, programs that it names
//! ```

use super::invocation::{Arguments, Places, ShellScript};
use super::loader::{ElfFiles, Process, Search};
use super::lookup::{Files, Found, base, join, parent, within};
use super::modules::Modules;
use super::script::{self, Commands};
use super::table::{Kind, Rule, Table};
use super::types::Command;
use crate::Result;
use crate::options::Options;
use crate::tree::InodeId;
use hashbrown::HashSet;

/// Programs that start one another.
const DEPTH_MAX: usize = 8;
/// Programs that scripts name.
const HELPERS_MAX: usize = 64;
/// Words of a script that are looked up.
const WORDS_MAX: usize = 1024;
/// Longest script, and longest configuration file, that is read. Unit: bytes.
const TEXT_MAX: usize = 256 << 10;
/// Files that a list has.
const FILES_MAX: usize = 16_384;
/// Files of one row of the table.
const ROW_MAX: usize = 256;
/// Files of directories that are listed beyond those that the start surely reads. Unit: bytes.
const BEYOND_MAX: u64 = 64 << 20;
/// Names of directories whose files do not belong together.
const SHARED_DIRS: [&[u8]; 8] = [
    b"", b"bin", b"sbin", b"etc", b"lib", b"usr", b"tmp", b"libexec",
];

/// Parts of the list, in their order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Programs and their libraries.
    Programs,
    /// Programs that scripts name, and their libraries.
    Helpers,
    /// Files of configuration and of the locale.
    Settings,
    /// Scripts, and modules that every start reads.
    Scripts,
    /// Files in directories of modules.
    Libraries,
}

/// Directory of modules that is listed when all programs are known.
struct Library {
    dir: Found,
    rule: Rule,
    tag: Vec<u8>,
    /// Process that opens the modules.
    process: usize,
}

/// Search for the files of a start.
pub(super) struct Plan<'f, 'a> {
    files: &'f Files<'a>,
    command: &'f Command,
    table: Table,
    search: Search,
    elves: ElfFiles,
    processes: Vec<Process<'f, 'a>>,
    parts: [Vec<Found>; 5],
    seen: HashSet<InodeId>,
    libraries: Vec<Library>,
    modules: Modules<'f, 'a>,
    helpers: HashSet<InodeId>,
    /// Scripts whose commands are known.
    scripts: HashSet<InodeId>,
}

/// Files of a start.
pub(super) struct FoundFiles {
    /// Files in their order.
    pub(super) files: Vec<Found>,
    /// Number of files of the programs, which are the first ones.
    pub(super) programs: usize,
    /// Number of files before those of directories of modules.
    pub(super) before_libraries: usize,
    pub(super) elves: ElfFiles,
    /// Warning about bytecode.
    pub(super) warning: Option<String>,
}

/// Program as it is started.
struct Program<'p> {
    /// File of the program.
    file: &'p Found,
    /// Path by which it was found.
    path: &'p [u8],
    /// Words after its name.
    arguments: &'p [Vec<u8>],
    part: Part,
    depth: usize,
}

impl<'f, 'a> Plan<'f, 'a> {
    pub(super) fn new(files: &'f Files<'a>, command: &'f Command, options: &'f Options) -> Self {
        Self {
            files,
            command,
            table: Table::built_in(),
            search: Search {
                library_path: command.variable(b"LD_LIBRARY_PATH").to_vec(),
                preload: command.variable(b"LD_PRELOAD").to_vec(),
                directory: within(b"/", &command.directory),
            },
            elves: ElfFiles::default(),
            processes: Vec::new(),
            parts: Default::default(),
            seen: HashSet::new(),
            libraries: Vec::new(),
            modules: Modules::new(files, options),
            helpers: HashSet::new(),
            scripts: HashSet::new(),
        }
    }

    /// Finds all files. Returns false if the command is not in the image.
    pub(super) fn run(&mut self) -> Result<bool> {
        let words = self.command.words();
        if !self.start(&words, Part::Programs, 0)? {
            return Ok(false);
        }
        self.add_common()?;
        self.add_libraries()?;
        self.add_settings_of_libraries()?;
        Ok(true)
    }

    /// Returns the files in their order, the number of those before the directories of modules, and the warning about
    /// bytecode.
    pub(super) fn into_list(self) -> FoundFiles {
        let warning = self.modules.made_stale.warning(
            "the time that the options set makes bytecode stale: Python compiles these files at every start",
        );
        let [programs, .., libraries] = &self.parts;
        let programs = programs.len();
        let all = self.parts.iter().map(Vec::len).sum::<usize>();
        let before_libraries = all - libraries.len();
        let mut files: Vec<Found> = self.parts.into_iter().flatten().collect();
        files.truncate(FILES_MAX);
        FoundFiles {
            files,
            programs,
            before_libraries,
            elves: self.elves,
            warning,
        }
    }

    /// Adds a file to a part. Returns false if another part has it.
    fn add(&mut self, part: Part, found: Found) -> bool {
        let is_new = self.files.tree.size(found.inode) > 0 && self.seen.insert(found.inode);
        if is_new {
            self.parts[part as usize].push(found);
        }
        is_new
    }

    /// Finds a program as a runtime does: by its path, or in the directories of `PATH`. Returns its file and the path.
    fn program(&self, name: &[u8]) -> Option<(Found, Vec<u8>)> {
        let at = |path: Vec<u8>| {
            let found = self.files.file(&path)?;
            self.files
                .is_executable(found.inode)
                .then_some((found, path))
        };
        match name {
            [] => None,
            _ if name.contains(&b'/') => at(within(&self.search.directory, name)),
            _ => {
                let dirs = self.command.path();
                let dirs = dirs.iter().map(|dir| within(&self.search.directory, dir));
                dirs.take(64).find_map(|dir| at(join(&dir, name)))
            }
        }
    }

    /// Adds what the start of a command reads. Returns false if the image does not have its program.
    fn start(&mut self, words: &[Vec<u8>], part: Part, depth: usize) -> Result<bool> {
        let Some((name, arguments)) = words.split_first() else {
            return Ok(false);
        };
        let Some((file, path)) = self.program(name) else {
            return Ok(false);
        };
        if depth >= DEPTH_MAX {
            return Ok(true);
        }
        let program = Program {
            file: &file,
            path: &path,
            arguments,
            part,
            depth,
        };
        let process = Process::start(self.files, &mut self.elves, &file, &self.search)?;
        if let Some(process) = process {
            self.start_process(&program, process)?;
            return Ok(true);
        }
        self.add(part, file.clone());
        let head = self.files.head(file.inode, 256)?;
        if let Some((interpreter, argument)) = script::shebang(&head) {
            let mut words = vec![interpreter];
            words.extend(argument);
            words.push(path.clone());
            words.extend(arguments.iter().cloned());
            self.start(&words, part, depth + 1)?;
        }
        Ok(true)
    }

    /// Adds the files of a process, and what the table says about its program.
    fn start_process(&mut self, program: &Program<'_>, process: Process<'f, 'a>) -> Result<()> {
        let at = self.processes.len();
        self.processes.push(process);
        self.add_loaded(at, program.part);
        let names = [base(&program.file.path), base(program.path)];
        let Some(rule) = self.table.program(names).cloned() else {
            return Ok(());
        };
        match rule.kind {
            Kind::Env => {
                let words = script::of_env(program.arguments);
                self.start(&words, program.part, program.depth + 1)?;
            }
            Kind::Wrapper(count) => {
                let words = program.arguments.iter();
                let words = words.skip_while(|word| word.starts_with(b"-")).skip(count);
                let words: Vec<Vec<u8>> = words.cloned().collect();
                self.start(&words, program.part, program.depth + 1)?;
            }
            Kind::Shell => self.start_shell(program)?,
            Kind::Interpreter => self.start_interpreter(program, at, &rule)?,
        }
        self.add_rows(program, at, &rule)
    }

    /// Adds what a process has loaded.
    fn add_loaded(&mut self, process: usize, part: Part) {
        for found in self.processes[process].loaded.clone() {
            self.add(part, found);
        }
    }

    /// Adds the files that the table names for a program.
    fn add_rows(&mut self, program: &Program<'_>, process: usize, rule: &Rule) -> Result<()> {
        let places = Places::new(&program.file.path, program.path);
        for pattern in &rule.elf {
            for found in self.files.matches(&places.fill(pattern), ROW_MAX) {
                self.processes[process].open_file(&mut self.elves, &found)?;
            }
        }
        self.add_loaded(process, program.part);
        for pattern in &rule.file {
            self.add_pattern(&places.fill(pattern))?;
        }
        Ok(())
    }

    /// Adds the files that match a pattern, and those in matching directories.
    fn add_pattern(&mut self, pattern: &[u8]) -> Result<()> {
        for found in self.files.matches(pattern, ROW_MAX) {
            if self.files.is_file(found.inode) {
                self.add(Part::Settings, found);
                continue;
            }
            let mut inside = Vec::new();
            self.modules
                .walk(&found, &Rule::default(), b"", &mut |file| {
                    inside.push(file);
                    Ok(inside.len() < ROW_MAX)
                })?;
            for file in inside {
                self.add(Part::Settings, file);
            }
        }
        Ok(())
    }

    /// Adds the script of a shell, and what it runs.
    fn start_shell(&mut self, program: &Program<'_>) -> Result<()> {
        let mut arguments = program.arguments;
        // The applet of a binary of many programs.
        if base(&program.file.path) == b"busybox"
            && base(program.path) == b"busybox"
            && let Some((name, rest)) = arguments.split_first()
        {
            if !matches!(&name[..], b"sh" | b"ash") {
                return Ok(());
            }
            arguments = rest;
        }
        let Some(script) = ShellScript::in_arguments(arguments) else {
            return Ok(());
        };
        let (first, rest) = (script.word, script.arguments);
        if script.is_text {
            // The word after the text is the name of the script.
            let text = first.get(..TEXT_MAX.min(first.len())).unwrap_or_default();
            let commands = script::commands(text);
            return self.add_commands(&commands, rest.get(1..).unwrap_or_default(), program);
        }
        if let Some(file) = self.files.file(&within(&self.search.directory, first)) {
            self.add_shell_script(file, rest, program)?;
        }
        Ok(())
    }

    /// Adds a script in a file, and what it runs.
    fn add_shell_script(
        &mut self,
        file: Found,
        arguments: &[Vec<u8>],
        program: &Program<'_>,
    ) -> Result<()> {
        if !self.scripts.insert(file.inode) || self.scripts.len() > HELPERS_MAX {
            return Ok(());
        }
        let text = self.files.head(file.inode, TEXT_MAX)?;
        self.add(program.part, file);
        self.add_commands(&script::commands(&text), arguments, program)
    }

    /// Adds what the commands of a script read.
    fn add_commands(
        &mut self,
        commands: &Commands,
        arguments: &[Vec<u8>],
        program: &Program<'_>,
    ) -> Result<()> {
        let depth = program.depth + 1;
        if commands.runs_arguments {
            self.start(arguments, program.part, depth)?;
        }
        if depth >= DEPTH_MAX {
            return Ok(());
        }
        for path in commands.sourced.iter().take(HELPERS_MAX) {
            if let Some(file) = self.files.file(&within(&self.search.directory, path)) {
                self.add_shell_script(file, &[], program)?;
            }
        }
        for words in commands.commands.iter().take(WORDS_MAX) {
            let Some((file, _)) = words.first().and_then(|name| self.program(name)) else {
                continue;
            };
            if self.helpers.len() >= HELPERS_MAX && !self.helpers.contains(&file.inode) {
                return Ok(());
            }
            self.helpers.insert(file.inode);
            self.start(words, Part::Helpers, depth)?;
        }
        for word in commands.words.iter().take(WORDS_MAX) {
            self.add_word(word, program, depth)?;
        }
        Ok(())
    }

    /// Adds the file that a word of a script names: a program, a file with an absolute path, or scripts in a directory of them.
    fn add_word(&mut self, word: &[u8], program: &Program<'_>, depth: usize) -> Result<()> {
        if self.helpers.len() >= HELPERS_MAX {
            return Ok(());
        }
        if let Some((file, _)) = self.program(word) {
            if self.helpers.insert(file.inode) {
                self.start(&[word.to_vec()], Part::Helpers, depth)?;
            }
            return Ok(());
        }
        if word.first() != Some(&b'/') {
            return Ok(());
        }
        let Some(found) = self.files.find(word) else {
            return Ok(());
        };
        if self.files.is_file(found.inode) {
            self.helpers.insert(found.inode);
            self.add(Part::Helpers, found);
        } else if base(&found.path).ends_with(b".d") {
            let pattern = join(&found.path, b"*sh");
            for file in self.files.matches(&pattern, HELPERS_MAX) {
                if self.files.is_file(file.inode) {
                    let program = Program {
                        part: Part::Helpers,
                        depth,
                        ..*program
                    };
                    self.add_shell_script(file, &[], &program)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the script of an interpreter, and notes the directories of its modules.
    fn start_interpreter(
        &mut self,
        program: &Program<'_>,
        process: usize,
        rule: &Rule,
    ) -> Result<()> {
        if rule.library.is_empty() && rule.kinds.is_empty() && rule.script.is_empty() {
            return Ok(());
        }
        let places = Places::new(&program.file.path, program.path);
        let tag = places.tag();
        let mut dirs: Vec<Found> = Vec::new();
        let arguments = Arguments::read(rule, program.arguments);
        for path in &arguments.paths {
            for found in self
                .files
                .matches(&within(&self.search.directory, path), ROW_MAX)
            {
                if self.files.is_file(found.inode) {
                    self.add(Part::Scripts, found);
                }
            }
        }
        if let Some(found) = arguments.script.and_then(|path| self.script(rule, path)) {
            dirs.extend(self.dir_of_script(rule, &found));
            for file in self.modules.module(found, rule, &tag)? {
                self.add(Part::Scripts, file);
            }
        }
        if let Some(module) = arguments.module {
            let module = module
                .split(|byte| *byte == b'.')
                .next()
                .unwrap_or_default();
            dirs.extend(self.files.dir(&join(&self.search.directory, module)));
        }
        // The application lies in the working directory, if that is not a directory for everything.
        let own = self.files.dir(&self.search.directory);
        dirs.extend(own.filter(|dir| !SHARED_DIRS.contains(&base(&dir.path))));
        let from_environment = rule.variables.iter().flat_map(|name| {
            let value = self.command.variable(name);
            value
                .split(|byte| *byte == b':')
                .filter(|dir| !dir.is_empty())
        });
        dirs.extend(
            from_environment
                .take(64)
                .filter_map(|dir| self.files.dir(dir)),
        );
        for pattern in &rule.library {
            let found = self.files.matches(&places.fill(pattern), 16);
            dirs.extend(
                found
                    .into_iter()
                    .filter(|found| !self.files.is_file(found.inode)),
            );
        }
        let mut known = HashSet::new();
        dirs.retain(|dir| known.insert(dir.inode));
        for first in &rule.first {
            for dir in &dirs {
                for found in self
                    .files
                    .matches(&join(&dir.path, first.as_bytes()), ROW_MAX)
                {
                    if self.files.is_file(found.inode) {
                        for file in self.modules.module(found, rule, &tag)? {
                            self.add(Part::Scripts, file);
                        }
                    }
                }
            }
        }
        self.libraries.extend(dirs.into_iter().map(|dir| Library {
            dir,
            rule: rule.clone(),
            tag: tag.clone(),
            process,
        }));
        Ok(())
    }

    /// Finds the script that an argument names.
    fn script(&mut self, rule: &Rule, path: &[u8]) -> Option<Found> {
        let path = within(&self.search.directory, path);
        let found = self.files.find(&path);
        if let Some(file) = found
            .clone()
            .filter(|found| self.files.is_file(found.inode))
        {
            return Some(file);
        }
        if let (Some(name), Some(dir)) = (rule.package, found) {
            let package = self.files.file(&join(&dir.path, name.as_bytes()));
            let main = package.and_then(|package| {
                let text = self.files.head(package.inode, TEXT_MAX).ok()?;
                let text: serde_json::Value = serde_json::from_slice(&text).ok()?;
                Some(text.get("main")?.as_str()?.as_bytes().to_vec())
            });
            let file = main.and_then(|main| self.files.file(&join(&dir.path, &main)));
            if file.is_some() {
                return file;
            }
        }
        let with = |suffix: &&[u8]| self.files.file(&[&path[..], suffix].concat());
        rule.suffixes.iter().find_map(with)
    }

    /// Directory of the application that a script belongs to: its package, or the directory of the script.
    fn dir_of_script(&mut self, rule: &Rule, script: &Found) -> Option<Found> {
        let dir = parent(&script.path);
        if let Some(name) = rule.package {
            let mut at = dir;
            for _ in 0..DEPTH_MAX {
                if let Some(package) = self.files.file(&join(at, name.as_bytes())) {
                    self.add(Part::Scripts, package);
                    return self.files.dir(at);
                }
                at = parent(at);
            }
        }
        self.files
            .dir(dir)
            .filter(|_| !SHARED_DIRS.contains(&base(dir)))
    }

    /// Adds the files that every program may read.
    fn add_common(&mut self) -> Result<()> {
        for pattern in self.table.every.file.clone() {
            self.add_pattern(pattern.as_bytes())?;
        }
        for (path, _) in self.table.heads.clone() {
            if let Some(found) = self.files.file(path.as_bytes()) {
                self.add(Part::Settings, found);
            }
        }
        self.add_name_services()
    }

    /// Adds the files that the table names for the libraries that were found.
    fn add_settings_of_libraries(&mut self) -> Result<()> {
        let names: Vec<Vec<u8>> = (self.parts.iter().flatten())
            .map(|found| base(&found.path).to_vec())
            .filter(|name| self.table.of_library(name).next().is_some())
            .collect();
        for name in &names {
            let patterns: Vec<&str> = self.table.of_library(name).collect();
            for pattern in patterns {
                self.add_pattern(pattern.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Adds the libraries of the name services that `nsswitch.conf` names.
    fn add_name_services(&mut self) -> Result<()> {
        let Some(file) = self.files.file(b"etc/nsswitch.conf") else {
            return Ok(());
        };
        let text = self.files.head(file.inode, 16 << 10)?;
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.starts_with(b"#"));
        let services = lines.filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b':')?;
            Some(line[at + 1..].split(u8::is_ascii_whitespace))
        });
        let is_name = |name: &&[u8]| !name.is_empty() && name.iter().all(u8::is_ascii_alphanumeric);
        let mut names: Vec<&[u8]> = services.flatten().filter(is_name).take(64).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let library = [b"libnss_", name, b".so.2"].concat();
            for process in 0..self.processes.len() {
                if self.processes[process].open(&mut self.elves, &library)? {
                    break;
                }
            }
        }
        for process in 0..self.processes.len() {
            self.add_loaded(process, Part::Settings);
        }
        Ok(())
    }

    /// Adds directories of modules, as far as they may cause transfers that nothing reads.
    fn add_libraries(&mut self) -> Result<()> {
        let tree = self.files.tree;
        let all = (0..tree.len() as InodeId).filter(|inode| tree.nlink(*inode) > 0);
        let total = all
            .map(|inode| tree.size(inode))
            .fold(0, u64::saturating_add);
        let mut left = BEYOND_MAX.min(total / 3);
        let libraries = std::mem::take(&mut self.libraries);
        let mut listed = Vec::new();
        for library in &libraries {
            let Self {
                files,
                elves,
                processes,
                seen,
                modules,
                ..
            } = self;
            let process = &mut processes[library.process];
            modules.walk(&library.dir, &library.rule, &library.tag, &mut |file| {
                let mut opened = vec![file];
                if is_library(base(&opened[0].path)) {
                    opened.extend(process.open_file(elves, &opened[0])?);
                }
                for file in opened {
                    let size = files.tree.size(file.inode);
                    if size == 0 || size > left || seen.contains(&file.inode) {
                        continue;
                    }
                    left -= size;
                    seen.insert(file.inode);
                    listed.push(file);
                }
                Ok(listed.len() < FILES_MAX)
            })?;
        }
        self.parts[Part::Libraries as usize].extend(listed);
        Ok(())
    }

    /// Files of which only the first bytes are read, with the number of bytes.
    pub(super) fn heads(&self) -> Vec<(&'static str, u64)> {
        self.table.heads.clone()
    }
}

/// Returns true for the name of a library.
fn is_library(name: &[u8]) -> bool {
    name.ends_with(b".so") || name.ends_with(b".node")
}
