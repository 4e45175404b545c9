//! Command line of mount(8) for the type `tuff`: `mount.tuff SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.

use crate::advice;
use crate::file_kind::FileKind;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use tuff_iplfs::backend::ZoneDir;
use tuff_store::FileStore;

/// Names of the program, or of its verb, with which mount(8) runs it: for new mounts, and for changes of those in `/proc/mounts`.
const NAMES: [&str; 3] = ["mount.tuff", "mount.fuse.tuff", "mount.fuseblk.tuff"];

/// Command line of `tuff` for the one of mount(8).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// Arguments of `tuff`, from its name on.
    Mount(Vec<OsString>),
    /// Nothing is to be mounted (`-f`).
    Fake,
}

/// Returns what to do if mount(8) runs the program.
pub(crate) fn of_mount(args: &[OsString]) -> Option<Helper> {
    let is_name = |name: &OsStr| NAMES.iter().any(|known| name == *known);
    let rest = match args {
        [first, rest @ ..] if Path::new(first).file_name().is_some_and(is_name) => rest,
        [_, second, rest @ ..] if is_name(second) => rest,
        _ => return None,
    };
    let mut words: Vec<OsString> = vec!["tuff".into()];
    // The source comes first. One verb changes mounts of volumes and of images.
    let is_change = |pair: &[OsString]| pair[0] == "-o" && changes_a_mount(&pair[1]);
    let is_volume = rest.windows(2).any(is_change)
        || rest
            .first()
            .is_some_and(|source| is_volume(source.as_ref()));
    words.extend(is_volume.then(|| "volume".into()));
    words.push("mount".into());
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            // It has no table of mounts, and unknown options are always errors.
            Some("-n" | "-s") => {}
            Some("-f") => return Some(Helper::Fake),
            Some("-t") => _ = rest.next(),
            // There is one way to mount a volume.
            Some("-v") if is_volume => {}
            _ => words.push(arg.clone()),
        }
    }
    Some(Helper::Mount(words))
}

/// Returns true if a list of options says `remount`.
fn changes_a_mount(options: &OsStr) -> bool {
    let mut options = options.as_encoded_bytes().split(|byte| *byte == b',');
    options.any(|option| option == b"remount")
}

/// Returns true if a volume is at `path`: in a directory, a file or a block device.
fn is_volume(path: &Path) -> bool {
    let Ok(kind) = std::fs::metadata(path).map(|m| m.file_type()) else {
        return false;
    };
    if kind.is_dir() {
        return ZoneDir::is_at(path);
    }
    let may_be = kind.is_file() || kind.is_block_device();
    let head = may_be.then(|| FileStore::open(path).ok()).flatten();
    let head = head.and_then(|store| advice::head(&store));
    head.is_some_and(|head| FileKind::detect(&head) == Some(FileKind::Volume))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn mount_8_runs_the_program_by_a_link_or_as_a_verb() {
        for (line, expected) in [
            ("/sbin/mount.tuff i d -o ro,dev", "tuff mount i d -o ro,dev"),
            ("tuff mount.tuff i d -n -s -v -t tuff", "tuff mount i d -v"),
            ("mount.tuff i d -N 5", "tuff mount i d -N 5"),
            (
                "/sbin/mount.fuse.tuff i d -o ro,remount",
                "tuff volume mount i d -o ro,remount",
            ),
            (
                "tuff mount.fuseblk.tuff remount d -o ro",
                "tuff mount remount d -o ro",
            ),
        ] {
            assert_eq!(of_mount(&words(line)), Some(Helper::Mount(words(expected))));
        }
        assert_eq!(of_mount(&words("mount.tuff i d -f")), Some(Helper::Fake));
        assert_eq!(of_mount(&words("tuff mount i mount.tuff")), None);
    }
}
