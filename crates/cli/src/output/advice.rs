//! Adds to an error what the user can do about it: an option, or the verb for the format that a wrong file has.

use crate::file_kind::{FileKind, HEAD, is_image};
use crate::next_command::shell_word;
use std::io::Read;
use std::path::Path;
use tuff_erofs::{Error, Remedy};
use tuff_format::superblock;
use tuff_store::{FileStore, ReadAt};

/// Message for an error: the error and the option that avoids it, if there is one.
pub(crate) fn message(e: &Error) -> String {
    let option = e.remedy().and_then(|remedy| match remedy {
        Remedy::Devices => Some("give it with --device FILE"),
        Remedy::SourceDevices => Some("give it with --source-device FILE"),
        Remedy::Offset => Some("give the start of an image with --offset"),
        Remedy::BuildImage => Some("'tuff build' makes one of it"),
        Remedy::ReplaceHashTree => Some("replace it with --replace"),
        Remedy::SeparateHashTree => Some("write the hash tree to a file with --into FILE"),
        Remedy::Overwrite => {
            Some("replace it with --overwrite, or keep files that match with --update")
        }
        Remedy::ExistingPath => Some("'tuff ls -R IMAGE' lists all paths"),
        Remedy::AddHashTree => {
            Some("add one with 'tuff verity add', or name the file that has it with --verity-tree")
        }
        Remedy::NewerKernel => Some("raise it with --kernel, or leave this out"),
        Remedy::MoreFiles => Some("allow more with --max-files N"),
        Remedy::MoreBytes => Some("allow more with --max-bytes SIZE"),
        Remedy::MountHost => Some("'tuff doctor' shows what this host lacks"),
        _ => None,
    });
    match option {
        Some(option) => format!("{e}; {option}"),
        None => e.to_string(),
    }
}

/// The error for the file at `path`, which does not open as an image because of `e`.
pub(crate) fn not_opened(e: Error, path: &Path, store: &dyn ReadAt) -> Error {
    if !matches!(e, Error::Corrupt(_)) {
        return e;
    }
    if e.remedy() == Some(Remedy::IgnoreChecksum) {
        return e
            .with_advice("the file may be truncated or damaged, --no-checksum reads it anyway");
    }
    let Some(head) = head(store).filter(|head| !is_image(head)) else {
        return e;
    };
    let name = path.display();
    let Some(kind) = FileKind::detect(&head) else {
        // The first bytes of an image may be anything, so a short one cannot be told from other files.
        let min = superblock::OFFSET + 128;
        let what = match store.size() < min {
            true => format!("too short for an EROFS image, which has {min} bytes or more"),
            false => {
                "not an EROFS image, by its magic number, and no other known format".to_owned()
            }
        };
        return Error::source(format_args!(
            "{name}: {what}; check the path, or give --offset if an image starts later in the file"
        ));
    };
    let advice = match kind {
        FileKind::Tar | FileKind::Cpio | FileKind::Manifest | FileKind::SquashFs => {
            format!("convert it with 'tuff build {name} IMAGE'")
        }
        FileKind::AndroidSparse => simg2img(path),
        FileKind::Compressed(_) if holds_image(path) => "decompress it: it holds one".to_owned(),
        FileKind::Compressed(_) => {
            "decompress it, or convert an archive with 'tuff build'".to_owned()
        }
        FileKind::Partitions(_) => {
            "name the device of a partition, or give its start with --offset".to_owned()
        }
        FileKind::Volume => "use the verbs of 'tuff volume'".to_owned(),
        FileKind::Stream => "apply it with 'tuff volume receive'".to_owned(),
        FileKind::HashTree => "name the image, and give this file with --verity-tree".to_owned(),
        FileKind::Profile => "show it with 'tuff profile show'".to_owned(),
        FileKind::Filesystem(_) | FileKind::Archive(_) => {
            "unpack it, and build an image from the directory with 'tuff build'".to_owned()
        }
        FileKind::Image | FileKind::Text | FileKind::Other(_) => {
            "check the path, or give --offset if an image starts later in the file".to_owned()
        }
    };
    Error::source(format_args!(
        "{name}: is {}, not an EROFS image: {advice}",
        kind.name()
    ))
}

/// The error for a build from the archive at `path`, which fails with `e`.
pub(crate) fn not_an_archive(e: Error, path: &Path) -> Error {
    let name = path.display();
    let concerns = matches!(e, Error::Source(_)) && e.place().is_in_file(&name);
    let store = concerns.then(|| FileStore::open(path).ok()).flatten();
    let Some(head) = store.and_then(|store| head(&store)) else {
        return e;
    };
    let simg2img = simg2img(path);
    let advice = match FileKind::detect(&head) {
        Some(kind @ FileKind::Compressed(_)) if holds_image(path) => {
            return Error::source(format_args!(
                "{name}: is {} of an EROFS image, not an archive: decompress it, and build from the image",
                kind.name()
            ));
        }
        Some(FileKind::Tar | FileKind::Cpio | FileKind::Compressed(_)) => return e,
        Some(FileKind::AndroidSparse) => simg2img.as_str(),
        Some(FileKind::Manifest | FileKind::Text) => "read a manifest with --source-type manifest",
        Some(FileKind::Filesystem(_)) => "mount or unpack it, and build from the directory",
        Some(FileKind::Partitions(_)) => "mount a partition, and build from the directory",
        Some(FileKind::Archive(_)) => "unpack it, and build from the directory",
        Some(FileKind::Volume) => "convert it with 'tuff volume export', and build from the tar",
        // An empty file has a message of its own.
        None if head.is_empty() => return e,
        None | Some(_) => {
            "name a directory, a tar, a cpio archive, a manifest, or an EROFS or SquashFS image"
        }
    };
    match FileKind::detect(&head) {
        Some(kind) => Error::source(format_args!(
            "{name}: is {}, which is no source of an image: {advice}",
            kind.name()
        )),
        None => e.with_advice(format_args!("if it is not an archive, {advice}")),
    }
}

/// Advice for an Android sparse image.
fn simg2img(path: &Path) -> String {
    let word = shell_word(path);
    format!("convert it with 'simg2img {word} IMAGE'")
}

/// Returns true if the compressed file at `path` begins with an EROFS image.
fn holds_image(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else {
        return false;
    };
    let Ok((_, content)) = tuff_mkfs::source::compressed::open("", file) else {
        return false;
    };
    let mut head = Vec::new();
    let read = content.take(4096).read_to_end(&mut head);
    read.is_ok() && is_image(&head)
}

/// The error for a file of a known format that is named as a volume. None for other files, and for those with the superblock of a
/// volume; a stream has one inside.
pub(crate) fn not_a_volume(path: &Path, has_superblock: bool) -> Option<Error> {
    let is_dir = path.is_dir();
    let store = (!is_dir).then(|| FileStore::open(path).ok()).flatten()?;
    let kind = FileKind::detect(&head(&store)?)?;
    if has_superblock && kind != FileKind::Stream {
        return None;
    }
    let advice = match kind {
        FileKind::Image => "read it with 'tuff ls', 'tuff extract' or 'tuff mount'",
        FileKind::Tar | FileKind::Cpio | FileKind::Compressed(_) | FileKind::Archive(_) => {
            "unpack it, and copy the directory with 'tuff volume import'"
        }
        FileKind::Filesystem(_) | FileKind::SquashFs | FileKind::AndroidSparse => {
            "mount it, and copy its files with 'tuff volume import'"
        }
        FileKind::Partitions(_) => "name the device of a partition",
        FileKind::Stream => "apply it with 'tuff volume receive'",
        // A volume may be damaged so that it looks like these.
        FileKind::Volume
        | FileKind::Profile
        | FileKind::HashTree
        | FileKind::Manifest
        | FileKind::Text
        | FileKind::Other(_) => return None,
    };
    Some(Error::source(format_args!(
        "{}: is {}, not a volume: {advice}",
        path.display(),
        kind.name()
    )))
}

/// The first bytes of a store, if they can be read.
pub(crate) fn head(store: &dyn ReadAt) -> Option<Vec<u8>> {
    // Fits: at most `HEAD`.
    let mut head = vec![0; store.size().min(HEAD as u64) as usize];
    store.read_exact_at(&mut head, 0).ok()?;
    Some(head)
}
