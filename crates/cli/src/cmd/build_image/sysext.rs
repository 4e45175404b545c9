//! `tuff sysext`: extensions of a running system, for systemd-sysext and systemd-confext.

use super::args::Args;
use super::disk::{self, Content, SealArgs};
use crate::image::OpenArgs;
use crate::text::escaped;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_disk::discoverable::Role;
use tuff_erofs::read::{FileType, Image, Inode};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Source;
use tuff_store::TemporaryDir;

/// Longest extension-release file that is read. Unit: bytes.
const RELEASE_MAX: u64 = 64 << 10;

/// Build a system extension: a disk that systemd-sysext merges
///
/// The disk is that of tuff disk. SOURCE is a tree with usr and opt, and with --confext one with etc. An extension states the
/// system that it is for in usr/lib/extension-release.d/extension-release.NAME, where NAME.raw is the name of the disk. SOURCE has
/// this file, or --release writes it.
#[derive(clap::Args)]
#[command(
    override_usage = "tuff sysext [OPTIONS] <SOURCE>... <NAME.raw>\n       tuff sysext [OPTIONS] -o <NAME.raw> <SOURCE>..."
)]
pub(crate) struct SysextArgs {
    /// Line of the extension-release file to write, such as ID=debian, VERSION_ID=13, or ID=_any for any system
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_line, help_heading = "Disk")]
    release: Vec<String>,
    /// Build a configuration extension, which systemd-confext merges into /etc
    #[arg(long, help_heading = "Disk")]
    confext: bool,
    #[command(flatten)]
    seal: SealArgs,
    #[command(flatten)]
    build: Args,
}

fn parse_line(text: &str) -> Result<String, String> {
    let is_name = |key: &str| {
        let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        !key.is_empty() && key.chars().all(is_part)
    };
    let is_plain = |value: &str| !value.is_empty() && !value.chars().any(char::is_control);
    match text.split_once('=') {
        Some((key, value)) if is_name(key) && is_plain(value) => Ok(text.to_owned()),
        _ => Err("write it as in os-release, such as ID=debian".to_owned()),
    }
}

pub(crate) fn run(args: SysextArgs) -> Result<ExitCode> {
    let kind = if args.confext { &CONFEXT } else { &SYSEXT };
    let out = disk::output_path(&args.build)?;
    let name = out.file_name().map(OsStrExt::as_bytes);
    let name = name.and_then(|name| name.strip_suffix(b".raw"));
    let name = name.filter(|name| !name.is_empty()).ok_or_else(|| {
        Error::usage(format_args!(
            "{}: an extension is named NAME.raw",
            out.display()
        ))
    })?;
    let name = std::str::from_utf8(name)
        .map_err(|_| Error::usage("the name of an extension is UTF-8"))?
        .to_owned();
    let lines = args.release.iter().map(|line| format!("{line}\n"));
    let release: String = lines.collect();
    if !release.is_empty() {
        kind.check_release("--release", &release)?;
    }
    let lowest = (!release.is_empty()).then(|| ReleaseTree::create(kind, &name, &release));
    let lowest = lowest.transpose()?;
    let content = Content {
        role: Role::Root,
        lowest: lowest
            .as_ref()
            .map(|tree| Source::Manifest(tree.manifest())),
        check: &|image| kind.check(image, &name, &release),
    };
    disk::write(args.build, &args.seal, &content)
}

/// Kind of an extension.
struct Kind {
    /// Directory of the extension-release file.
    dir: &'static str,
    /// Directories that are merged.
    merged: &'static [&'static str],
    /// Key of the compatibility level.
    level: &'static str,
    /// File that would hide that of the host.
    os_release: &'static str,
}

const SYSEXT: Kind = Kind {
    dir: "usr/lib/extension-release.d",
    merged: &["usr", "opt"],
    level: "SYSEXT_LEVEL",
    os_release: "usr/lib/os-release",
};

const CONFEXT: Kind = Kind {
    dir: "etc/extension-release.d",
    merged: &["etc"],
    level: "CONFEXT_LEVEL",
    os_release: "etc/os-release",
};

/// Start of the name of an extension-release file.
const RELEASE_PREFIX: &[u8] = b"extension-release.";

/// Value of a key of an os-release file, without quotes.
fn value<'a>(release: &'a str, key: &str) -> Option<&'a str> {
    let mut values = release.lines().filter_map(|line| {
        let (found, value) = line.trim().split_once('=')?;
        (found == key).then(|| value.trim_matches(['"', '\'']))
    });
    values.next_back().filter(|value| !value.is_empty())
}

impl Kind {
    /// Path of the extension-release file.
    fn path(&self, name: &str) -> String {
        format!("{}/extension-release.{name}", self.dir)
    }

    /// Fails for a release that no system matches. Returns a warning for one that few systems match.
    fn check_release(&self, place: &str, release: &str) -> Result<Option<String>> {
        let id = value(release, "ID").ok_or_else(|| {
            let what = "ID is missing: that of the system, or ID=_any for any system";
            Error::usage(format_args!("{place}: {what}"))
        })?;
        let has_version = [self.level, "VERSION_ID"]
            .iter()
            .any(|key| value(release, key).is_some());
        Ok((id != "_any" && !has_version).then(|| {
            let level = self.level;
            format!("{place}: without {level} and VERSION_ID only systems without a version take the extension")
        }))
    }

    /// Checks the finished image. Returns warnings.
    fn check(&self, path: &Path, name: &str, written: &str) -> Result<Vec<String>> {
        let image = OpenArgs::default().open(&path.into())?;
        let mut place = self.path(name);
        let mut found = image.find_following(place.as_bytes())?;
        if found.is_none()
            && let Some((other, inode)) = self.relaxed(&image)?
        {
            (place, found) = (format!("{}/{}", self.dir, escaped(&other)), Some(inode));
        }
        let release = match found {
            Some(inode) if inode.size() <= RELEASE_MAX => {
                // Fits: at most `RELEASE_MAX`.
                let mut bytes = vec![0; inode.size() as usize];
                let len = image.read_at(&inode, &mut bytes, 0)?;
                String::from_utf8_lossy(&bytes[..len]).into_owned()
            }
            Some(_) => {
                return Err(Error::usage(format_args!(
                    "{place}: is too long for a list of keys"
                )));
            }
            None => return Err(self.missing(&image, name)),
        };
        if !written.is_empty() && release != written {
            return Err(Error::usage(format_args!(
                "--release: the source has its own {place}; leave out --release, or --exclude that file"
            )));
        }
        if image.resolve(self.os_release.as_bytes()).is_ok() {
            let file = self.os_release;
            return Err(Error::usage(format_args!(
                "{file}: would replace the description of the host; --exclude /{file}"
            )));
        }
        let mut warnings: Vec<_> = self.check_release(&place, &release)?.into_iter().collect();
        let mut others = Vec::new();
        for entry in image.read_dir(&image.root()?)? {
            let entry = entry?;
            let is_merged = self.merged.iter().any(|dir| dir.as_bytes() == &*entry.name);
            if !is_merged && !matches!(&*entry.name, b"." | b"..") {
                others.push(escaped(&entry.name));
            }
        }
        if !others.is_empty() {
            let (others, merged) = (others.join(", "), self.merged.join(" and "));
            warnings.push(format!(
                "only {merged} are merged into the system: {others} will not appear"
            ));
        }
        Ok(warnings)
    }

    /// Returns the extension-release file of another name that systemd takes: the only one with the attribute
    /// `user.extension-release.strict` at a value for false.
    fn relaxed(&self, image: &Image) -> Result<Option<(Vec<u8>, Inode)>> {
        const STRICT: &[u8] = b"user.extension-release.strict";
        let Some(dir) = image.find_following(self.dir.as_bytes())? else {
            return Ok(None);
        };
        let mut found = None;
        for entry in image.read_dir(&dir)? {
            let entry = entry?;
            let inode = image.inode(entry.nid)?;
            let is_file = inode.file_type() == FileType::File;
            if !is_file || !entry.name.starts_with(RELEASE_PREFIX) {
                continue;
            }
            let strict = image.xattr(&inode, STRICT)?.unwrap_or_default();
            let strict = strict.trim_ascii().to_ascii_lowercase();
            if !matches!(&strict[..], b"0" | b"no" | b"n" | b"false" | b"f" | b"off") {
                continue;
            }
            if let Some((other, _)) = found.replace((entry.name, inode)) {
                return Err(Error::usage(format_args!(
                    "{}/{}: not the only release file with user.extension-release.strict=0, so systemd takes none",
                    self.dir,
                    escaped(&other)
                )));
            }
        }
        Ok(found)
    }

    /// Error for an image without the extension-release file.
    fn missing(&self, image: &Image, name: &str) -> Error {
        let mut found = None;
        if let Ok(dir) = image.resolve_following(self.dir.as_bytes())
            && let Ok(entries) = image.read_dir(&dir)
        {
            let mut names = entries.flatten().filter_map(|entry| {
                let name = entry.name.strip_prefix(RELEASE_PREFIX)?;
                Some(escaped(name))
            });
            found = names.next();
        }
        let path = self.path(name);
        Error::usage(match found {
            Some(other) => format!(
                "the extension is named {name}, and its release file extension-release.{other}: name the output {other}.raw, or rename the file to {path}"
            ),
            None => format!(
                "the source has no {path}: write it with --release, such as --release ID=_any"
            ),
        })
    }
}

/// Manifest of a tree with an extension-release file, in a directory that is removed on drop.
struct ReleaseTree(TemporaryDir);

impl ReleaseTree {
    fn create(kind: &Kind, name: &str, release: &str) -> Result<Self> {
        let parent = std::env::temp_dir();
        let failed = |e| Error::io(parent.display(), "cannot write temporary files", e);
        let tree = Self(TemporaryDir::create(&parent).map_err(failed)?);
        let mut path = String::new();
        for byte in kind.path(name).bytes() {
            match byte {
                b'!'..=b'~' if byte != b'\\' && byte != b'#' => path.push(char::from(byte)),
                _ => path += &format!("\\{byte:03o}"),
            }
        }
        let manifest = format!("#mtree\n./{path} type=file mode=0644 contents=release\n");
        fs::write(tree.0.path().join("release"), release).map_err(failed)?;
        fs::write(tree.manifest(), manifest).map_err(failed)?;
        Ok(tree)
    }

    fn manifest(&self) -> PathBuf {
        self.0.path().join("tree.mtree")
    }
}
