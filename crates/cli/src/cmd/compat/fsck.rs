//! `fsck.erofs`: checks or extracts an image.

use super::dump::number;
use super::getopt::{self, OptionTable, Token};
use super::tool::Tool;
use crate::image::{ImageArgs, OpenArgs};
use crate::out::Out;
use crate::progress::on_signal;
use crate::text::escaped_path;
use crate::units::{counted, parse_size};
use rustix::fs::Mode;
use rustix::process::{geteuid, umask};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::check::{self, Rule, Severity};
use tuff_erofs::extract::Options;
use tuff_erofs::read::{Image, Nid};
use tuff_erofs::walk::Walk;
use tuff_erofs::{Error, Result};

static OPTIONS: OptionTable = OptionTable {
    letters: "VhpaAy",
    valued_letters: "d",
    flags: b"\0force\0help\0no-preserve\0no-preserve-owner\0no-preserve-perms\0no-sbcrc\0no-xattrs\0overwrite\0preserve\0\
        preserve-owner\0preserve-perms\0version\0xattr-inode-digest\0xattrs\0",
    valued: b"\0device\0nid\0offset\0path\0",
    optional: b"\0extract\0",
};

/// Parsed arguments of `fsck.erofs`.
#[derive(Default)]
struct FsckArgs {
    help: bool,
    version: bool,
    /// Detail of the output, 2 without the option.
    level: Option<u8>,
    ratio: bool,
    /// Also read all file data.
    data: bool,
    to: Option<PathBuf>,
    /// Limits the work to this path and everything below it. A path takes precedence over a number.
    path: Option<PathBuf>,
    nid: Option<Nid>,
    xattrs: bool,
    fingerprints: bool,
    overwrite: bool,
    force: bool,
    owners: Option<bool>,
    /// Restores modes exactly, not without the bits of the umask. Default: only as root.
    modes: Option<bool>,
    image: Option<PathBuf>,
    open: OpenArgs,
}

pub(super) fn run(raw: &[OsString]) -> Result<ExitCode> {
    let mut args = read_args(getopt::parse(raw, &OPTIONS)?)?;
    if args.version {
        return Tool::Fsck.version(Some(
            "available decompressors: lz4, lz4hc, lzma, deflate, libdeflate, zstd",
        ));
    }
    if args.help {
        return Tool::print(include_bytes!("fsck-help.txt"));
    }
    let place = ImageArgs {
        image: args.image.clone().ok_or_else(Tool::no_image)?.into(),
        open: args.open.clone(),
    };
    let mut out = Out::new();
    // The check reports a wrong checksum itself.
    let checks = args.to.is_none();
    let image = match checks {
        true => place.open_unverified()?,
        false => place.open()?,
    };
    if args.data {
        image.with_devices()?;
    }
    if let (None, Some(nid)) = (&args.path, args.nid) {
        args.path = Some(path_of(&image, nid)?);
    }
    let good = match &args.to {
        None => checked(&image, &place, &args, &mut out)?,
        Some(dir) => {
            extract(&image, dir, &args)?;
            true
        }
    };
    out.finish()?;
    Ok(ExitCode::from(u8::from(!good)))
}

fn read_args(tokens: Vec<Token>) -> Result<FsckArgs> {
    let mut args = FsckArgs::default();
    for token in tokens {
        match token {
            Token::Option(name, value) => args.take(&name, value)?,
            Token::Operand(path) => getopt::one_image(&mut args.image, path)?,
        }
    }
    Ok(args)
}

impl FsckArgs {
    fn take(&mut self, name: &str, value: Option<OsString>) -> Result<()> {
        let text = || {
            value
                .as_ref()
                .map_or_else(Default::default, |v| v.to_string_lossy())
        };
        let invalid = |what: &str| Error::usage(format_args!("{name}: {what}"));
        match name {
            "-h" | "--help" => self.help = true,
            "-V" | "--version" => self.version = true,
            "-p" => self.ratio = true,
            "-d" => {
                let level = text().parse().ok().filter(|level| *level <= 9);
                self.level = Some(level.ok_or_else(|| invalid("0 to 9"))?);
            }
            "-a" | "-A" | "-y" => {}
            "--extract" => {
                self.data = true;
                self.to = value.map(PathBuf::from);
            }
            "--device" => self
                .open
                .device
                .extend(value.map(|path| PathBuf::from(path).into())),
            "--offset" => self.open.offset = parse_size(&text()).map_err(|e| invalid(&e))?,
            "--path" => self.path = value.map(PathBuf::from),
            "--no-sbcrc" => self.open.no_checksum = true,
            "--xattrs" => self.xattrs = true,
            "--no-xattrs" => self.xattrs = false,
            "--xattr-inode-digest" => self.fingerprints = true,
            "--overwrite" => self.overwrite = true,
            "--force" => self.force = true,
            "--preserve" => (self.owners, self.modes) = (Some(true), Some(true)),
            "--no-preserve" => (self.owners, self.modes) = (Some(false), Some(false)),
            "--preserve-owner" => self.owners = Some(true),
            "--no-preserve-owner" => self.owners = Some(false),
            "--preserve-perms" => self.modes = Some(true),
            "--no-preserve-perms" => self.modes = Some(false),
            "--nid" => self.nid = Some(Nid(number(&text()).map_err(|e| invalid(&e))?)),
            _ => return Err(invalid("not supported: leave it out")),
        }
        Ok(())
    }
}

/// Returns the first path of an inode.
fn path_of(image: &Image, nid: Nid) -> Result<PathBuf> {
    let named = Walk::root(image)?.flatten();
    let found = named.into_iter().find(|entry| entry.inode.nid() == nid);
    let entry =
        found.ok_or_else(|| Error::usage(format_args!("--nid={nid}: no path leads there")))?;
    Ok(OsString::from_vec([&b"/"[..], &entry.path].concat()).into())
}

/// Checks an image and prints its errors. Returns true if there are none.
fn checked(image: &Image, place: &ImageArgs, args: &FsckArgs, out: &mut Out) -> Result<bool> {
    if let Some(path) = &args.path {
        image.resolve(path.as_os_str().as_bytes().trim_ascii())?;
    }
    let options = check::Options {
        data: args.data,
        fingerprints: args.fingerprints,
        ..check::Options::default()
    };
    let report = check::check(image, &options, |_| ());
    let ignored = |rule: Rule| args.open.no_checksum && rule == Rule::Checksum;
    let errors = report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error && !ignored(f.rule));
    let mut count = report.dropped;
    for finding in errors {
        count += 1;
        if args.level != Some(0) {
            eprintln!("fsck.erofs: {finding}");
        }
    }
    if count > 0 {
        let errors = counted(count, "error");
        eprintln!("fsck.erofs: {}: {errors}", place.image);
        return Ok(false);
    }
    let t = &report.totals;
    if args.level.unwrap_or(2) > 2 {
        out.line(format_args!(
            "No errors found: {} inodes, {} directories",
            t.inodes, t.directories
        ))?;
    }
    if args.ratio {
        let whole = std::fs::metadata(place.image.name()).map_or(0, |m| m.len());
        let share = whole.saturating_sub(args.open.offset) as f64 * 100.0;
        let share = match t.file_bytes {
            0 => 100.0,
            bytes => share / bytes as f64,
        };
        out.line(format_args!("Compression ratio: {share:.2}(%)"))?;
    }
    Ok(true)
}

/// Extracts an image. Attributes and special files that the system refuses are warnings, as in fsck.erofs.
fn extract(image: &Image, dir: &Path, args: &FsckArgs) -> Result<()> {
    if !args.force && std::fs::canonicalize(dir).is_ok_and(|d| d == Path::new("/")) {
        return Err(Error::usage("--extract=/ needs --force"));
    }
    let mut options = Options {
        overwrite: args.overwrite,
        owners: args.owners,
        umask: match args.modes.unwrap_or_else(|| geteuid().is_root()) {
            true => 0,
            false => own_umask(),
        },
        xattrs: args.xattrs,
        stop: on_signal(),
        ..Options::default()
    };
    if let Some(path) = &args.path {
        let names = path.as_os_str().as_bytes().split(|b| *b == b'/');
        let names: Vec<&[u8]> = names.filter(|name| !name.is_empty()).collect();
        if !names.is_empty() {
            options.strip = names.len();
            options.paths = vec![names.join(&b'/')];
        }
    }
    let report = tuff_erofs::extract::extract(image, dir, &options, |_| ())?;
    for problem in report
        .problems
        .iter()
        .filter(|_| args.level.unwrap_or(2) > 1)
    {
        eprintln!(
            "fsck.erofs: warning: {}: {}",
            escaped_path(&problem.path),
            problem.what
        );
    }
    Ok(())
}

/// Returns the umask of the process.
fn own_umask() -> u32 {
    // It can be read only by setting it. No other thread creates files yet.
    let own = umask(Mode::from_raw_mode(0o077));
    umask(own);
    own.as_raw_mode()
}
