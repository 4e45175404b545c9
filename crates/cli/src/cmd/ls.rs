//! `tuff ls`: lists files in an image.

use crate::image::ImageArgs;
use crate::out::Out;
use crate::select::{Selected, entry, select};
use crate::text::{escape, full_time, mode_string, object, or_root, put_bytes, time};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use tuff_erofs::read::{FileType, Image, Inode};
use tuff_erofs::walk::{Entry, Walk};
use tuff_erofs::{Error, Result};

/// List files in an image
///
/// Directories are listed with their entries. Patterns are *, ?, [..], {..} and ** for any number of directories. A
/// pattern without a slash matches names anywhere, one with a slash matches paths from the root. Control characters and
/// bytes that are not UTF-8 are escaped as in C, so that each line is one name.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Paths or patterns (default: the root directory)
    #[arg(value_name = "PATH|GLOB")]
    paths: Vec<OsString>,
    /// Print mode, link count, owner, group, size or device, time (UTC), name and link target
    #[arg(short, long)]
    long: bool,
    /// List directories recursively, with full paths
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List directories themselves, not their entries
    #[arg(short, long, conflicts_with = "recursive")]
    directory: bool,
    /// Print the inode number of each name
    #[arg(short, long)]
    inode: bool,
    /// Print times to the nanosecond (with -l)
    #[arg(long)]
    full_time: bool,
    /// Print raw names, each terminated by NUL instead of a newline
    #[arg(short = '0', long, conflicts_with = "json")]
    null: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    list(args).map_err(|e| args.image.named(e))
}

fn list(args: &Args) -> Result<ExitCode> {
    let image = args.image.open()?;
    let mut lister = Lister {
        image: &image,
        args,
        out: Out::new(),
        broken: None,
    };
    if args.paths.is_empty() {
        let root = Entry {
            path: Vec::new(),
            inode: image.root()?,
        };
        lister.path(root)?;
    }
    for path in &args.paths {
        match select(&image, path) {
            Ok(Selected::Path(entry)) => lister.path(entry)?,
            Ok(Selected::Pattern(entries)) => lister.pattern(entries)?,
            // The path may lead through a symlink. If not, the first error is the clearer one.
            Err(e @ Error::Usage(_)) => match entry(&image, path, false) {
                Ok(entry) => lister.path(entry)?,
                Err(_) => return Err(e),
            },
            Err(e) => return Err(e),
        }
    }
    lister.out.finish()?;
    // Everything readable has been listed. The first error determines the exit code.
    lister.broken.map_or(Ok(ExitCode::SUCCESS), Err)
}

struct Lister<'a> {
    image: &'a Image,
    args: &'a Args,
    out: Out,
    broken: Option<Error>,
}

impl Lister<'_> {
    /// Lists a path that was named exactly.
    fn path(&mut self, entry: Entry) -> Result<()> {
        if self.args.recursive {
            return self.tree(entry);
        }
        if !entry.inode.is_dir() || self.args.directory {
            return self.entry(&entry.path, &entry.inode);
        }
        let mut walk = Walk::new(self.image, entry.path.clone(), entry.inode);
        walk.next();
        while let Some(entry) = walk.next() {
            walk.skip_below();
            match entry {
                Ok(entry) if self.args.json => self.entry(&entry.path, &entry.inode)?,
                Ok(entry) => self.entry(entry.name(), &entry.inode)?,
                Err(e) => self.error(e),
            }
        }
        Ok(())
    }

    /// Lists the matches of a pattern.
    fn pattern(&mut self, entries: Vec<Entry>) -> Result<()> {
        if !self.args.recursive {
            return entries
                .iter()
                .try_for_each(|e| self.entry(&e.path, &e.inode));
        }
        entries.into_iter().try_for_each(|e| self.tree(e))
    }

    fn tree(&mut self, entry: Entry) -> Result<()> {
        for entry in Walk::new(self.image, entry.path, entry.inode) {
            match entry {
                Ok(entry) => self.entry(&entry.path, &entry.inode)?,
                Err(e) => self.error(e),
            }
        }
        Ok(())
    }

    fn error(&mut self, e: Error) {
        if let Some(before) = self.broken.replace(e) {
            eprintln!("tuff: {}", self.args.image.named(before));
        }
    }

    fn entry(&mut self, name: &[u8], inode: &Inode) -> Result<()> {
        let name = or_root(name);
        if self.args.json {
            let object = self.object(name, inode)?;
            return self.out.json(&Value::Object(object));
        }
        let mut line = String::new();
        if self.args.inode {
            line += &format!("{:>10} ", inode.nid());
        }
        if self.args.long {
            let (size, mtime) = (size_or_device(inode), inode.mtime());
            let time = if self.args.full_time {
                full_time(mtime)
            } else {
                time(mtime.0)
            };
            line += &format!(
                "{} {:>3} {:>5} {:>5} {size:>10} {time} ",
                mode_string(inode.mode()),
                inode.nlink(),
                inode.uid(),
                inode.gid()
            );
        }
        let target = match inode.file_type() {
            FileType::Symlink if self.args.long => Some(self.image.readlink(inode)?),
            _ => None,
        };
        if self.args.null {
            self.out.bytes(line.as_bytes())?;
            self.out.bytes(name)?;
            if let Some(target) = target {
                self.out.bytes(b" -> ")?;
                self.out.bytes(&target)?;
            }
            return self.out.bytes(&[0]);
        }
        escape(name, &mut line);
        if let Some(target) = target {
            line += " -> ";
            escape(&target, &mut line);
        }
        self.out.line(line)
    }

    fn object(&self, path: &[u8], inode: &Inode) -> Result<Map<String, Value>> {
        let mut out = Map::new();
        put_bytes(&mut out, "path", path);
        put_inode(self.image, inode, &mut out)?;
        Ok(out)
    }
}

/// Adds the properties of an inode that every verb prints as JSON.
pub(crate) fn put_inode(image: &Image, inode: &Inode, out: &mut Map<String, Value>) -> Result<()> {
    let (seconds, nanos) = inode.mtime();
    let kind = inode.file_type();
    out.append(&mut object(json!({
        "type": kind.name(), "nid": inode.nid().0, "mode": format!("{:04o}", inode.mode() & 0o7777),
        "nlink": inode.nlink(), "uid": inode.uid(), "gid": inode.gid(), "size": inode.size(),
        "mtime": seconds, "mtime_nsec": nanos,
    })));
    if let Some((major, minor)) = inode.device() {
        out.insert("major".into(), major.into());
        out.insert("minor".into(), minor.into());
    }
    if kind == FileType::Symlink {
        put_bytes(out, "target", &image.readlink(inode)?);
    }
    Ok(())
}

fn size_or_device(inode: &Inode) -> String {
    match inode.device() {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => inode.size().to_string(),
    }
}
