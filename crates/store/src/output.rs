//! Where a finished image goes.
//!
//! What holds: under its final name there is either what was there before or the complete image, never a part of it. A
//! block device has no second name, so that promise cannot be made there.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What to write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file, made or replaced when the image is complete; or an existing block device, written in place.
    Path(PathBuf),
    /// Standard output, written when the image is complete.
    Stdout,
}

/// An image while it is written.
pub struct Output {
    file: File,
    kind: Kind,
}

enum Kind {
    /// A file with a temporary name, beside its final one.
    Named {
        temporary: PathBuf,
        path: PathBuf,
    },
    Device,
    /// A file without a name, copied out at the end.
    Spool,
    Done,
}

impl Output {
    /// Opens a place for the bytes: beside the final name, so that the last step is a rename.
    pub fn create(target: &Target) -> io::Result<Self> {
        match target {
            Target::Stdout => Ok(Self {
                file: anonymous(&std::env::temp_dir())?,
                kind: Kind::Spool,
            }),
            Target::Path(path) => {
                if std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device()) {
                    let file = OpenOptions::new().read(true).write(true).open(path)?;
                    return Ok(Self {
                        file,
                        kind: Kind::Device,
                    });
                }
                // A symbolic link is followed, so that the link stays and what it names is replaced.
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                if path.is_dir() {
                    return Err(io::Error::new(
                        io::ErrorKind::IsADirectory,
                        "is a directory",
                    ));
                }
                let (file, temporary) = beside(&path)?;
                Ok(Self {
                    file,
                    kind: Kind::Named { temporary, path },
                })
            }
        }
    }

    /// Writes all of `bytes` at `offset`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Reads back what was written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The image is complete and `len` bytes long: gives it its name. `sync` waits until it is on the disk.
    pub fn finish(mut self, len: u64, sync: bool) -> io::Result<()> {
        if !matches!(self.kind, Kind::Device) {
            self.file.set_len(len)?;
        }
        match &self.kind {
            Kind::Named { temporary, path } => {
                if sync {
                    self.file.sync_all()?;
                }
                std::fs::rename(temporary, path)?;
            }
            Kind::Device => self.file.sync_all()?,
            Kind::Spool => {
                let mut out = io::stdout().lock();
                let mut buf = vec![0; 1 << 20];
                let mut at = 0;
                while at < len {
                    let n = buf
                        .len()
                        .min(usize::try_from(len - at).unwrap_or(usize::MAX));
                    self.file.read_exact_at(&mut buf[..n], at)?;
                    out.write_all(&buf[..n])?;
                    at += n as u64;
                }
                out.flush()?;
            }
            Kind::Done => {}
        }
        self.kind = Kind::Done;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Kind::Named { temporary, .. } = &self.kind {
            // Nothing to report to: the build has failed already and says why.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// A file without a name in `dir`: gone when it is closed, however that happens.
pub fn anonymous(dir: &Path) -> io::Result<File> {
    let (file, path) = beside(&dir.join("tuff"))?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// A new file in the directory of `path`, under a name of its own.
fn beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "has no file name"))?;
    let dir = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    for n in 0..1000u32 {
        let mut temporary = std::ffi::OsString::from(".");
        // A name may be 255 bytes long; the temporary one must fit, too.
        let keep = name.as_encoded_bytes().len().min(200);
        temporary.push(String::from_utf8_lossy(&name.as_encoded_bytes()[..keep]).as_ref());
        temporary.push(format!(".tuff-{}-{n}", std::process::id()));
        let temporary = dir.join(temporary);
        match OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(&temporary)
        {
            Ok(file) => return Ok((file, temporary)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("tuff-output-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn an_unfinished_output_leaves_nothing_and_replaces_nothing() {
        let dir = dir("unfinished");
        let path = dir.join("image");
        std::fs::write(&path, "before").unwrap();
        let output = Output::create(&Target::Path(path.clone())).unwrap();
        output.write_at(b"half", 0).unwrap();
        drop(output);
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_finished_output_has_its_name_and_length() {
        let dir = dir("finished");
        let path = dir.join("image");
        let output = Output::create(&Target::Path(path.clone())).unwrap();
        output.write_at(b"end", 5).unwrap();
        output.finish(10, false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0\0\0end\0\0");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
