//! `tuff volume import`: copies a directory of the host into a volume.

use super::failure::{At, Failure, Result};
use super::open::{VolumeArgs, mount, require_path};
use crate::next_command::{self, shell_word};
use crate::out::Out;
use crate::progress::{Counter, Meter, Show};
use crate::units::size;
use rustix::fs::{FileType, OFlags, SeekFrom, Stat, lgetxattr, llistxattr, lstat, seek};
use rustix::io::Errno as HostErrno;
use serde_json::json;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_iplfs::disk::node::XATTR_MAX;
use tuff_iplfs::disk::xattr::{self, Xattrs};
use tuff_iplfs::{Caller, Errno, Error, Nid, SetAttr, SetXattr, Time, Volume, acl, mode};
use tuff_store::retry;

/// Size of a read. Unit: bytes.
const STEP: usize = 1 << 20;
/// Granularity of hole detection. Unit: bytes.
const BLOCK: usize = 64 << 10;

/// Copy a directory of the host into a volume
///
/// Copies contents, owners, modes, times, hard links and extended attributes. Existing files of the volume are kept:
/// directories are merged, and any other name conflict is an error. A crash during import may leave a partial import.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Directory whose entries are copied into the root of the volume
    source: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let is_dir = match retry(|| fs::metadata(&args.source)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        meta => meta.at(args.source.display())?.is_dir(),
    };
    if !is_dir {
        return Err(Failure::Usage(format!(
            "{}: is not a directory",
            args.source.display()
        )));
    }
    require_path(&args.volume.path)?;
    // A volume inside the source would be copied while it grows.
    let at = |path: &Path| retry(|| path.canonicalize()).at(path.display());
    let (volume, source) = (at(&args.volume.path)?, at(&args.source)?);
    if volume.starts_with(&source) || source.starts_with(&volume) {
        return Err(Failure::Usage(format!(
            "{}: a volume is not copied into itself: {} holds it, or is a part of it",
            args.volume.path.display(),
            args.source.display()
        )));
    }
    let meter = Meter::start("import", Show::unless(args.json));
    if meter.is_shown() {
        meter.counter().add_total(content_bytes(&args.source));
    }
    let mut copy = Copy {
        volume: mount(&args.volume, false)?,
        place: args.volume.path.display().to_string(),
        links: HashMap::new(),
        files: 0,
        bytes: 0,
        counter: Arc::clone(meter.counter()),
    };
    // Directories left to copy. Their times are set after their entries exist.
    let mut todo = vec![(args.source.clone(), Nid::ROOT)];
    let mut times = Vec::new();
    while let Some((path, dir)) = todo.pop() {
        let stat = retry(|| lstat(&path))
            .map_err(io::Error::from)
            .at(path.display())?;
        copy.attributes(&path, dir, &stat)?;
        times.push((dir, stat));
        // Retries from the start: the iterator ends after an error.
        let list = || {
            let entries = fs::read_dir(&path)?;
            entries.map(|e| e.map(|e| e.file_name())).collect()
        };
        let mut names: Vec<_> = retry(list).at(path.display())?;
        names.sort();
        for name in names {
            let path = path.join(&name);
            if let Some(ino) = copy.entry(dir, name.as_bytes(), &path)? {
                todo.push((path, ino));
            }
        }
    }
    for (dir, stat) in times.into_iter().rev() {
        copy.times(dir, &stat)?;
    }
    copy.volume.unmount().at(&copy.place)?;
    drop(meter);
    let mut out = Out::new();
    if args.json {
        out.json(&json!({"objects": copy.files, "content_bytes": copy.bytes}))?;
    } else {
        out.line(format_args!(
            "{} objects, {} of content",
            copy.files,
            size(copy.bytes)
        ))?;
        let command = format!("tuff volume mount {} DIR", shell_word(&args.volume.path));
        next_command::line(command).map_or(Ok(()), |line| out.line(line))?;
    }
    Ok(out.finish()?)
}

/// Content of the regular files below a directory, as far as it can be read.
fn content_bytes(dir: &Path) -> u64 {
    let mut todo = vec![dir.to_owned()];
    let mut bytes = 0;
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => todo.push(entry.path()),
                Ok(meta) if meta.is_file() => bytes += meta.len(),
                _ => {}
            }
        }
    }
    bytes
}

struct Copy {
    volume: Volume,
    place: String,
    /// Hard-linked inodes: device and inode number of the host, and the number in the volume.
    links: HashMap<(u64, u64), Nid>,
    files: u64,
    bytes: u64,
    counter: Arc<Counter>,
}

impl Copy {
    /// Copies one entry. Returns a directory for the caller to fill.
    fn entry(&mut self, dir: Nid, name: &[u8], path: &Path) -> Result<Option<Nid>> {
        let stat = retry(|| lstat(path))
            .map_err(io::Error::from)
            .at(path.display())?;
        let caller = Caller {
            now: super::open::now(),
            uid: stat.st_uid,
            gid: stat.st_gid,
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        self.files += 1;
        let key = (stat.st_dev, stat.st_ino);
        if let Some(&ino) = self.links.get(&key).filter(|_| !is_dir) {
            self.volume
                .link(ino, dir, name, &caller)
                .at(path.display())?;
            return Ok(None);
        }
        let made = if FileType::from_raw_mode(stat.st_mode).is_symlink() {
            let target = retry(|| fs::read_link(path)).at(path.display())?;
            self.volume
                .symlink(dir, name, target.as_os_str().as_bytes(), &caller)
        } else {
            self.volume
                .create(dir, name, stat.st_mode, rdev(stat.st_rdev), &caller)
        };
        let ino = match made {
            Err(Error::Posix(Errno::Exists)) if is_dir => {
                let ino = self.volume.lookup(dir, name).at(path.display())?;
                if self.volume.attr(ino).at(path.display())?.mode & mode::TYPE != mode::DIR {
                    return Err(Failure::Usage(format!(
                        "{}: something else has this name in the volume",
                        path.display()
                    )));
                }
                ino
            }
            Err(Error::Posix(Errno::Exists)) => {
                return Err(Failure::Usage(format!(
                    "{}: exists in the volume already",
                    path.display()
                )));
            }
            made => made.at(path.display())?.ino,
        };
        if is_dir {
            return Ok(Some(ino));
        }
        if stat.st_nlink > 1 {
            self.links.insert(key, ino);
        }
        if FileType::from_raw_mode(stat.st_mode).is_file() {
            self.content(ino, path)?;
        }
        self.attributes(path, ino, &stat)?;
        self.times(ino, &stat)?;
        Ok(None)
    }

    /// Copies the content. Holes are kept, and blocks of zeros become holes.
    fn content(&mut self, ino: Nid, path: &Path) -> Result<()> {
        // The file may have been replaced by a pipe since it was examined.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut options = File::options();
        let file = options.read(true).custom_flags(flags).open(path);
        let file = file.at(path.display())?;
        let mut buf = vec![0; STEP];
        let mut at = 0u64;
        loop {
            let data = match retry(|| seek(&file, SeekFrom::Data(at))) {
                Ok(data) => data,
                Err(HostErrno::NXIO) => break,
                // A file without SEEK_DATA, such as those of procfs.
                Err(HostErrno::INVAL) => at,
                Err(e) => return Err(io::Error::from(e)).at(path.display()),
            };
            let hole = retry(|| seek(&file, SeekFrom::Hole(data))).unwrap_or(u64::MAX);
            at = self.data(ino, path, &file, data..hole, &mut buf)?;
            if at < hole {
                break;
            }
        }
        // A hole at the end is not followed by data.
        let at = at.max(retry(|| file.metadata()).at(path.display())?.len());
        self.bytes += at;
        let set = SetAttr {
            size: Some(at),
            ..SetAttr::default()
        };
        self.volume
            .set_attr(ino, &set, super::open::now())
            .at(path.display())?;
        Ok(())
    }

    /// Copies a range of a file. Returns its end, or the end of the file if that comes first.
    fn data(
        &mut self,
        ino: Nid,
        path: &Path,
        file: &File,
        range: Range<u64>,
        buf: &mut [u8],
    ) -> Result<u64> {
        let mut at = range.start;
        while at < range.end {
            // Fits: at most the buffer length.
            let want = (range.end - at).min(buf.len() as u64) as usize;
            let mut n = 0;
            while n < want {
                match retry(|| file.read_at(&mut buf[n..want], at + n as u64)).at(path.display())? {
                    0 => break,
                    more => n += more,
                }
            }
            for (i, block) in buf[..n].chunks(BLOCK).enumerate() {
                if block.iter().all(|b| *b == 0) {
                    continue;
                }
                let offset = at + (i * BLOCK) as u64;
                let written = self
                    .volume
                    .write(ino, offset, block, super::open::now())
                    .at(path.display())?;
                if written < block.len() {
                    return Err(Error::Posix(Errno::NoSpace)).at(path.display());
                }
            }
            self.counter.add(n as u64);
            at += n as u64;
            if n < want {
                break;
            }
        }
        Ok(at)
    }

    fn attributes(&mut self, path: &Path, ino: Nid, stat: &Stat) -> Result<()> {
        // Removes inherited ACLs first: setting the mode would change them.
        for list in [acl::ACCESS, acl::DEFAULT] {
            match self.volume.remove_xattr(ino, list, super::open::now()) {
                Ok(()) | Err(Error::Posix(Errno::NoAttribute)) => {}
                Err(e) => return Err(e).at(path.display()),
            }
        }
        let set = SetAttr {
            mode: Some(stat.st_mode & 0o7777),
            uid: Some(stat.st_uid),
            gid: Some(stat.st_gid),
            ..SetAttr::default()
        };
        self.volume
            .set_attr(ino, &set, super::open::now())
            .at(path.display())?;
        for (name, value) in &host_attributes(path)? {
            self.volume
                .set_xattr(ino, name, value, SetXattr::Any, super::open::now())
                .at(path.display())?;
        }
        Ok(())
    }

    fn times(&mut self, ino: Nid, stat: &Stat) -> Result<()> {
        let time = |sec: i64, nsec: u64| Time {
            sec,
            nsec: u32::try_from(nsec).unwrap_or(0),
        };
        let set = SetAttr {
            atime: Some(time(stat.st_atime, stat.st_atime_nsec)),
            mtime: Some(time(stat.st_mtime, stat.st_mtime_nsec)),
            ..SetAttr::default()
        };
        self.volume
            .set_attr(ino, &set, super::open::now())
            .at(&self.place)?;
        Ok(())
    }
}

/// Reads the extended attributes of a host file. Fails if they exceed the limit of a volume.
fn host_attributes(path: &Path) -> Result<Xattrs> {
    let mut names = vec![0; 64 << 10];
    let len = match retry(|| llistxattr(path, &mut names[..])) {
        Ok(len) => len,
        Err(HostErrno::OPNOTSUPP) => 0,
        Err(e) => return Err(io::Error::from(e)).at(path.display()),
    };
    let mut all = Xattrs::new();
    for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let len = retry(|| lgetxattr(path, name, &mut value[..]))
            .map_err(io::Error::from)
            .at(path.display())?;
        value.truncate(len);
        all.insert(name.to_vec(), value);
    }
    if let Some((name, value)) = all.iter().max_by_key(|(_, value)| value.len())
        && (value.len() > XATTR_MAX || xattr::encode(&all).len() > XATTR_MAX)
    {
        let what = format!(
            "attribute {} has {} bytes, where all of a file's names and values have at most {}",
            String::from_utf8_lossy(name),
            value.len(),
            XATTR_MAX
        );
        return Err(Error::Limit(what)).at(path.display());
    }
    Ok(all)
}

/// Device number in the 32-bit encoding that Linux passes to filesystems.
fn rdev(dev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}
