//! Files that hold contents: archives that stay open, and files of the host that are opened when
//! they are read.

use super::dir::DirSource;
use crate::{Error, Place, Result};
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Open file that holds the contents of many files: an archive, or a temporary copy of one.
pub(crate) struct SourceFile {
    file: File,
    /// Name in messages.
    name: String,
}

impl SourceFile {
    /// Returns the source file with its name in messages.
    pub(crate) fn new(file: File, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { file, name }
    }

    /// Fills `buf` from byte `offset` of the file.
    pub(crate) fn read_exact(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        read_exact(&self.file, &self.name, buf, offset)
    }
}

/// File of the host whose content is read when it is packed.
pub(crate) struct HostFile {
    /// Source directory that contains the file. `None` for a file that a manifest names.
    pub(crate) dir: Option<Arc<DirSource>>,
    /// Path below `dir`, or path of the host.
    pub(crate) path: Box<[u8]>,
    /// Size when the source was read. Unit: bytes.
    pub(crate) size: u64,
    /// Modification time when the source was read: seconds and nanoseconds. `None` if any is valid.
    pub(crate) mtime: Option<(i64, u32)>,
}

impl HostFile {
    /// Opens the file and verifies that it is regular and unchanged since the source was read.
    pub(crate) fn open(&self) -> Result<File> {
        let file = self
            .open_unverified()
            .map_err(|e| self.failed("cannot open", e))?;
        let meta = tuff_store::retry(|| file.metadata());
        let meta = meta.map_err(|e| self.failed("cannot examine", e))?;
        if !meta.is_file() {
            return Err(self.changed("it is no regular file any more"));
        }
        if meta.size() != self.size {
            let (was, is) = (self.size, meta.size());
            return Err(self.changed(format_args!("its size was {was} bytes and is {is}")));
        }
        let is = (meta.mtime(), meta.mtime_nsec());
        if self.mtime.is_some_and(|(s, ns)| is != (s, ns.into())) {
            return Err(self.changed("its modification time is another"));
        }
        Ok(file)
    }

    /// Error of a system call. The file is left out of the next attempt to build, if there is one.
    fn failed(&self, what: impl Display, e: io::Error) -> Error {
        if let Some(dir) = &self.dir {
            dir.leaves_out(&self.path, &what, &e);
        }
        Error::io(Place::file(self), what, e)
    }

    fn changed(&self, how: impl Display) -> Error {
        let how = format!("the file changed while the image was built: {how}");
        if let Some(dir) = &self.dir {
            dir.leave_out_changed(&self.path, &how);
        }
        Error::io(Place::file(self), "cannot read", io::Error::other(how))
    }

    /// Opens whatever is at the path, without blocking.
    pub(crate) fn open_unverified(&self) -> io::Result<File> {
        match &self.dir {
            Some(dir) => dir.open_file(&self.path),
            None => {
                let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
                let mut options = File::options();
                options
                    .read(true)
                    .custom_flags(flags)
                    .open(self.host_path())
            }
        }
    }

    /// Fills `buf` from byte `offset` of `file`, which [`open`](Self::open) returned.
    pub(crate) fn read_exact(&self, file: &File, buf: &mut [u8], offset: u64) -> Result<()> {
        file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.changed("it became shorter"),
            _ => self.failed(format_args!("cannot read at byte {offset}"), e),
        })
    }

    fn host_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}

impl Display for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dir {
            Some(dir) => f.write_str(&dir.display(&self.path)),
            None => self.host_path().display().fmt(f),
        }
    }
}

fn read_exact(file: &File, name: impl Display, buf: &mut [u8], offset: u64) -> Result<()> {
    file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => changed(name, "it became shorter"),
        _ => Error::io(
            Place::file(name),
            format_args!("cannot read at byte {offset}"),
            e,
        ),
    })
}

fn changed(name: impl Display, how: impl Display) -> Error {
    let e = io::Error::other(format!("the file changed while the image was built: {how}"));
    Error::io(Place::file(name), "cannot read", e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::left_out::LeftOut;
    use crate::{Options, Progress, Source, build_to};

    /// A file that changes or vanishes after the walk ends one attempt to build; the next one leaves it out.
    #[test]
    fn a_file_that_changes_or_vanishes_is_left_out_of_the_next_attempt() {
        let root = tempfile::tempdir().unwrap();
        for name in ["changed", "kept", "vanished"] {
            std::fs::write(root.path().join(name), "text").unwrap();
        }
        let left_out = LeftOut::default();
        let dir = DirSource::open(root.path()).unwrap();
        let dir = Arc::new(dir.leaving_out(Some(left_out.clone())));
        let open = |name: &str, size| {
            let file = HostFile {
                dir: Some(Arc::clone(&dir)),
                path: name.as_bytes().into(),
                size,
                mtime: None,
            };
            file.open()
        };
        assert!(open("kept", 4).is_ok());
        assert_eq!(left_out.count(), 0);
        assert!(open("changed", 3).is_err());
        std::fs::remove_file(root.path().join("vanished")).unwrap();
        assert!(open("vanished", 4).is_err());
        let lines = left_out.lines();
        assert!(
            lines[0].ends_with("its size was 3 bytes and is 4"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains("vanished\": cannot open: No such file"),
            "{lines:?}"
        );

        std::fs::write(root.path().join("vanished"), "text").unwrap();
        let mut options = Options::default();
        options.sources.keep_going = Some(left_out);
        let source = Source::Dir(root.path().to_owned());
        let summary = build_to(&[source], &options, &mut Vec::new(), &Progress::default());
        assert_eq!(summary.unwrap().stats.files, 1);
    }

    #[test]
    fn failures_of_the_host_are_errors_of_the_build() {
        let left_out = LeftOut::default();
        for (errno, is_of_file) in [(13, true), (2, true), (5, true), (24, false), (12, false)] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(left_out.take("f", "cannot open", &error), is_of_file);
        }
        assert_eq!(left_out.count(), 1);
    }
}
