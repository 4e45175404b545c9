//! Libraries that ELF files of an image need, for requests in advance.
//!
//! Names are looked for where a loader would, except that neither the cache nor the settings of the loader are read, and that no
//! kind of processor is compared. Libraries that are missed or found by mistake cost requests, and nothing else.

use std::cell::Cell;
use std::collections::HashSet;
use tuff_erofs::read::{FileType, Image, Inode, Nid};
use tuff_format::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, File, text};

/// Number of libraries of one program.
const LIBRARIES_MAX: usize = 128;

/// Longest table of strings that is read. Unit: bytes.
const STRINGS_MAX: u64 = 64 << 10;

/// Number of directories in which a name is looked for.
const DIRECTORIES_MAX: usize = 64;

/// Number of symbolic links that one path may lead through.
const LINKS_MAX: usize = 40;

/// Number of path components of one path.
const COMPONENTS_MAX: usize = 256;

/// Directories of libraries, and those whose subdirectories for kinds of processors have some.
const DIRECTORIES: [&[u8]; 5] = [
    b"/lib",
    b"/usr/lib",
    b"/lib64",
    b"/usr/lib64",
    b"/usr/local/lib",
];

/// Libraries that a file needs, and where it looks for them, as it states.
#[derive(Default)]
struct Needs {
    /// Names or paths of libraries.
    names: Vec<Vec<u8>>,
    /// Directories that are searched first.
    directories: Vec<Vec<u8>>,
}

/// True for the first bytes of an ELF file.
pub(crate) fn is_elf(head: &[u8]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// Reads what a file of `size` bytes needs, by `read(offset, length)`, which returns fewer bytes where the file ends. `None` if it is
/// no ELF file that a loader would take, or cannot be read.
fn needs(read: impl Fn(u64, usize) -> Option<Vec<u8>>, size: u64) -> Option<Needs> {
    let file = File::open(|offset, len| read(offset, len).ok_or(()), size);
    let file = file.ok()??;
    let dynamic = file.dynamic().ok()??;
    let strings = file.strings(&dynamic, STRINGS_MAX).ok()?;
    let text = |at: u64| Some(text(&strings, at, strings.len())?.to_vec());
    let names = dynamic.all(DT_NEEDED).take(LIBRARIES_MAX).filter_map(text);
    let list = dynamic.value(DT_RUNPATH).or(dynamic.value(DT_RPATH));
    let list = list.and_then(text).unwrap_or_default();
    let directories = list.split(|byte| *byte == b':').take(DIRECTORIES_MAX);
    Some(Needs {
        names: names.collect(),
        directories: directories.map(<[u8]>::to_vec).collect(),
    })
}

/// Search for the libraries of an image.
pub(crate) struct Libraries {
    /// Directories that every name is looked for in.
    directories: Vec<Nid>,
}

impl Libraries {
    /// Finds the directories of libraries. `None` if metadata cannot be read.
    pub(crate) fn new(image: &Image) -> Option<Self> {
        let mut directories = Vec::new();
        for path in DIRECTORIES {
            let Some(dir) = image.find_following(path).ok()? else {
                continue;
            };
            if !dir.is_dir() {
                continue;
            }
            directories.push(dir.nid());
            let entries: Vec<_> = image.read_dir(&dir).ok()?.collect::<Result<_, _>>().ok()?;
            let of_processors = entries.iter().filter(|entry| {
                let name: &[u8] = &entry.name;
                name.windows(7).any(|part| part == b"-linux-")
            });
            directories.extend(of_processors.map(|entry| entry.nid));
            directories.truncate(DIRECTORIES_MAX);
        }
        let mut seen = HashSet::new();
        directories.retain(|dir| seen.insert(*dir));
        Some(Self { directories })
    }

    /// Finds the libraries that a file in `dir` needs, and what these need. Calls `found` with those of each step, before
    /// they are read. Returns false if one of them cannot be read.
    pub(crate) fn find(&self, image: &Image, file: (Inode, Nid), found: &dyn Fn(&[Inode])) -> bool {
        let is_complete = Cell::new(true);
        let mut seen = HashSet::from([file.0.nid()]);
        let mut step = vec![file];
        while !step.is_empty() {
            let mut next = Vec::new();
            for (inode, dir) in &step {
                let read = |offset, len| {
                    let bytes = part(image, inode, offset, len);
                    is_complete.set(is_complete.get() && bytes.is_some());
                    bytes
                };
                let needs = needs(read, inode.size());
                for name in needs.iter().flat_map(|needs| &needs.names) {
                    let own = needs.iter().flat_map(|needs| &needs.directories);
                    if seen.len() > LIBRARIES_MAX {
                        break;
                    }
                    let library = self.library(image, *dir, own, name);
                    next.extend(library.filter(|(inode, _)| seen.insert(inode.nid())));
                }
            }
            let inodes: Vec<Inode> = next.iter().map(|(inode, _)| *inode).collect();
            if !inodes.is_empty() {
                found(&inodes);
            }
            step = next;
        }
        is_complete.get()
    }

    /// Finds a library and its directory. `origin`: directory of the file that needs it.
    fn library<'a>(
        &self,
        image: &Image,
        origin: Nid,
        own: impl Iterator<Item = &'a Vec<u8>>,
        name: &[u8],
    ) -> Option<(Inode, Nid)> {
        let root = image.root().ok()?.nid();
        let file = |dir: Nid, path: &[u8]| {
            let (inode, dir) = walk(image, dir, path)?;
            (inode.file_type() == FileType::File).then_some((inode, dir))
        };
        if name.contains(&b'/') {
            return file(root, name);
        }
        for directory in own {
            let (start, path) = match directory
                .strip_prefix(b"$ORIGIN")
                .or_else(|| directory.strip_prefix(b"${ORIGIN}"))
            {
                Some(rest) => (origin, rest.strip_prefix(b"/").unwrap_or(rest)),
                None => (root, &directory[..]),
            };
            let found = file(start, &[path, b"/", name].concat());
            if found.is_some() {
                return found;
            }
        }
        let mut directories = self.directories.iter();
        directories.find_map(|dir| file(*dir, name))
    }
}

/// Part of a file, shorter at its end. `None` if it cannot be read.
pub(crate) fn part(image: &Image, inode: &Inode, offset: u64, len: usize) -> Option<Vec<u8>> {
    let left = inode.size().saturating_sub(offset);
    // Fits: at most `len`.
    let mut bytes = vec![0; left.min(len as u64) as usize];
    let read = image.read_at(inode, &mut bytes, offset).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// Follows a path from a directory, and its symbolic links within the image. Returns the inode and the directory that has it.
fn walk(image: &Image, start: Nid, path: &[u8]) -> Option<(Inode, Nid)> {
    let root = image.root().ok()?.nid();
    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
        let parts = path.split(|byte| *byte == b'/').rev();
        let named = parts.filter(|part| !part.is_empty() && *part != b".");
        named.map(<[u8]>::to_vec).collect()
    };
    let mut dir = start;
    let mut here = image.inode(start).ok()?;
    let mut left = parts(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        if left.len() > COMPONENTS_MAX {
            return None;
        }
        dir = here.nid();
        let next = image.inode(image.lookup(&here, &name).ok()??).ok()?;
        if next.file_type() != FileType::Symlink {
            here = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return None;
        }
        let target = image.readlink(&next).ok()?;
        left.extend(parts(&target));
        if target.starts_with(b"/") {
            here = image.inode(root).ok()?;
        }
    }
    Some((here, dir))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;
    use tuff_erofs::read::OpenOptions;
    use tuff_mkfs::Options;
    use tuff_store::MemStore;
    use tuff_testkit::Rng;
    use tuff_testkit::elf::Sample;
    use tuff_testkit::variants::build_dir;

    fn elf(needed: &[&'static str], runpath: &'static str) -> Vec<u8> {
        let sample = Sample {
            needed: needed.to_vec(),
            runpath,
            ..Sample::default()
        };
        sample.bytes()
    }

    /// Image of a program and its libraries. Those with the number 2 are in other places than the ones that are needed.
    pub(crate) fn image(name: &str) -> Image {
        let dir = tuff_testkit::unused_path(name);
        let source = dir.join("tree");
        for (path, bytes) in [
            (
                "bin/app",
                elf(&["libz.so.1", "/opt/plain.so"], "$ORIGIN/../private"),
            ),
            ("private/libz.so.1.2", elf(&["libc.so.6", "libgone.so"], "")),
            ("usr/lib/x86_64-linux-gnu/libc.so.6", elf(&["ld.so"], "")),
            ("usr/lib/libz.so.1", elf(&["lib2.so"], "")),
            ("usr/lib/lib2.so", elf(&[], "")),
            ("usr/lib/ld.so", elf(&["libc.so.6"], "")),
            ("opt/plain.so", b"text".to_vec()),
        ] {
            let path = source.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // Too long to lie beside its inode.
            let mut bytes = bytes;
            bytes.resize(9000, b'x');
            fs::write(path, bytes).unwrap();
        }
        symlink("libz.so.1.2", source.join("private/libz.so.1")).unwrap();
        symlink("usr/lib", source.join("lib")).unwrap();
        let path = dir.join("image");
        build_dir(&source, &path, &Options::default());
        let store = MemStore::new(fs::read(path).unwrap());
        fs::remove_dir_all(dir).unwrap();
        Image::open(store, OpenOptions::default()).unwrap()
    }

    #[test]
    fn libraries_are_found_where_a_loader_looks_for_them() {
        let image = image("libraries");
        let inode = |path: &str| image.resolve(path.as_bytes()).unwrap();
        let found = Mutex::new(Vec::new());
        let file = (inode("/bin/app"), inode("/bin").nid());
        let note = |step: &[Inode]| {
            let nids: Vec<Nid> = step.iter().map(Inode::nid).collect();
            found.lock().unwrap().push(nids);
        };
        let libraries = Libraries::new(&image).unwrap();
        assert!(libraries.find(&image, file, &note));
        let nids = |paths: &[&str]| -> Vec<Nid> { paths.iter().map(|p| inode(p).nid()).collect() };
        assert_eq!(
            *found.lock().unwrap(),
            [
                nids(&["/private/libz.so.1.2", "/opt/plain.so"]),
                nids(&["/usr/lib/x86_64-linux-gnu/libc.so.6"]),
                nids(&["/usr/lib/ld.so"]),
            ]
        );
    }

    #[test]
    fn changed_and_cut_files_are_read_without_a_panic() {
        let bytes = elf(&["libz.so.1"], "/a:/b");
        let read_of = |bytes: &[u8]| {
            let read = |offset, len: usize| {
                let rest = bytes.get(usize::try_from(offset).ok()?..)?;
                Some(rest[..len.min(rest.len())].to_vec())
            };
            needs(read, bytes.len() as u64)
        };
        let needs = read_of(&bytes).unwrap();
        assert_eq!(needs.names, [b"libz.so.1"]);
        assert_eq!(needs.directories, [b"/a", b"/b"]);
        for len in 0..bytes.len() {
            read_of(&bytes[..len]);
        }
        let mut rng = Rng::new(9);
        for _ in 0..20_000 {
            let mut changed = bytes.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(changed.len());
                changed[at] = rng.draw() as u8;
            }
            read_of(&changed);
        }
    }
}
