//! `dump.erofs`: prints an image line by line, in the form that scripts expect.
//!
//! `superblock`, `statistics` and `inode` are the parts of its output, in order.

mod inode;
mod statistics;
mod superblock;

use super::getopt::{self, OptionTable, Token};
use super::tool::Tool;
use crate::image::{ImageArgs, OpenArgs};
use crate::out::Out;
use crate::select::entry;
use crate::units::parse_size;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::read::{Image, Inode, Nid};
use tuff_erofs::walk::{Entry, shown};
use tuff_erofs::{Error, Result};

static OPTIONS: OptionTable = OptionTable {
    letters: "VheSs",
    valued_letters: "",
    flags: b"\0blkid-udev\0cat\0help\0ls\0version\0",
    valued: b"\0device\0nid\0offset\0path\0",
    optional: b"",
};

/// Parsed arguments of `dump.erofs`.
#[derive(Default)]
struct DumpArgs {
    help: bool,
    version: bool,
    superblock: bool,
    statistics: bool,
    extents: bool,
    udev: bool,
    list: bool,
    cat: bool,
    nid: Option<Nid>,
    path: Option<OsString>,
    image: Option<PathBuf>,
    open: OpenArgs,
}

/// Output for one image. The first error that does not stop it is kept for the end.
struct Dump<'a> {
    image: &'a Image,
    out: Out,
    broken: Option<Error>,
}

pub(super) fn run(raw: &[OsString]) -> Result<ExitCode> {
    let args = DumpArgs::read(getopt::parse(raw, &OPTIONS)?)?;
    if args.version {
        return Tool::Dump.version(None);
    }
    if args.help {
        return Tool::print(include_bytes!("help.txt"));
    }
    let path = args.image()?;
    let image = path.open_unverified()?;
    if args.cat {
        image.with_devices()?;
    }
    let mut dump = Dump {
        image: &image,
        out: Out::new(),
        broken: None,
    };
    if let Err(e) = dump.all(&args) {
        dump.wrong(e);
    }
    dump.out.finish()?;
    // Everything readable has been printed. The last error determines the exit code.
    dump.broken.map_or(Ok(ExitCode::SUCCESS), Err)
}

impl DumpArgs {
    fn read(tokens: Vec<Token>) -> Result<Self> {
        let mut args = Self::default();
        for token in tokens {
            match token {
                Token::Option(name, value) => args.take(&name, value)?,
                Token::Operand(path) => getopt::one_image(&mut args.image, path)?,
            }
        }
        Ok(args)
    }

    fn take(&mut self, name: &str, value: Option<OsString>) -> Result<()> {
        let text = || value.as_deref().map(|v| v.to_string_lossy());
        let invalid = |what: String| Error::usage(format_args!("{name}: {what}"));
        match name {
            "-h" | "--help" => self.help = true,
            "-V" | "--version" => self.version = true,
            "-s" => self.superblock = true,
            "-S" => self.statistics = true,
            "-e" => self.extents = true,
            "--blkid-udev" => self.udev = true,
            "--ls" => self.list = true,
            "--cat" => self.cat = true,
            "--device" => self
                .open
                .device
                .extend(value.map(|path| PathBuf::from(path).into())),
            "--offset" => {
                self.open.offset = number(&text().unwrap_or_default()).map_err(invalid)?
            }
            "--nid" => self.nid = Some(Nid(number(&text().unwrap_or_default()).map_err(invalid)?)),
            "--path" => self.path = value,
            _ => return Err(invalid("not supported: leave it out".to_owned())),
        }
        Ok(())
    }

    /// Validates the arguments and returns those that open the image.
    fn image(&self) -> Result<ImageArgs> {
        let image = self.image.clone().ok_or_else(Tool::no_image)?;
        if self.cat && (self.superblock || self.statistics || self.extents || self.list) {
            return Err(Error::usage("--cat: not with -s, -S, -e or --ls"));
        }
        let of_one = [
            (self.extents, "-e"),
            (self.list, "--ls"),
            (self.cat, "--cat"),
        ];
        let lost = of_one
            .into_iter()
            .find(|(is_requested, _)| *is_requested && !self.one());
        if let Some((_, name)) = lost {
            return Err(Error::usage(format_args!(
                "{name}: name a file with --path or --nid"
            )));
        }
        let open = self.open.clone();
        let image = image.into();
        Ok(ImageArgs { image, open })
    }

    /// Returns true if the arguments select one inode.
    fn one(&self) -> bool {
        self.path.is_some() || self.nid.is_some()
    }
}

/// Parses a number as C does: decimal, hexadecimal with `0x`, octal with `0`; or a size with a unit.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => return parse_size(text),
    };
    // `from_str_radix` would accept a sign.
    let plain = digits.bytes().all(|b| b.is_ascii_alphanumeric());
    let number = u64::from_str_radix(digits, base).ok().filter(|_| plain);
    number.ok_or_else(|| format!("'{text}' is not a number"))
}

impl Dump<'_> {
    /// Prints everything that the arguments select.
    fn all(&mut self, args: &DumpArgs) -> Result<()> {
        if self.image.checksum_ok() == Some(false) {
            let what = "the checksum does not match the bytes it covers";
            self.wrong(Error::corrupt("superblock (byte 1024)", what));
        }
        if args.udev {
            return self.udev();
        }
        if args.superblock || !args.statistics && !args.one() {
            self.superblock()?;
        }
        if args.statistics {
            self.statistics()?;
        }
        match (&args.path, args.nid) {
            (Some(path), _) => {
                let found = entry(self.image, path, false)?;
                self.one(args, Some(&found), &found.inode)
            }
            (None, Some(nid)) => {
                let inode = self.image.inode(nid)?;
                let found = if args.cat { None } else { self.name(&inode)? };
                self.one(args, found.as_ref(), &inode)
            }
            (None, None) => Ok(()),
        }
    }

    /// Prints everything that the arguments select of an inode.
    fn one(&mut self, args: &DumpArgs, found: Option<&Entry>, inode: &Inode) -> Result<()> {
        if args.cat {
            return self.cat(inode);
        }
        let path = match found {
            Some(entry) => shown(&entry.path),
            None => "(not found)".to_owned(),
        };
        self.inode(&path, inode)?;
        if args.list {
            self.list(inode)?;
        }
        if args.extents {
            self.extents(&path, inode)?;
        }
        Ok(())
    }

    /// Records an error that does not stop the output.
    fn wrong(&mut self, e: Error) {
        if let Some(before) = self.broken.replace(e) {
            eprintln!("{}: {before}", Tool::Dump.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, expected) in [
            ("0", 0),
            ("36", 36),
            ("0x24", 36),
            ("044", 36),
            ("4K", 4096),
        ] {
            assert_eq!(number(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "x",
            "0x",
            "0x+1",
            "08",
            "-1",
            "0xg",
            "18446744073709551616",
        ] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
