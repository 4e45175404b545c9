//! Cpio archives as sources. Plain archives in a file are read in place; compressed archives and
//! streams are copied first.

use super::{ContentProvider, Loader};
use crate::source::Content;
use crate::source::cpio::CpioReader;
use crate::source::error::SourceError;
use crate::source::expansion::Expansion;
use crate::source::file::SourceFile;
use crate::{Error, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use tuff_store::FileStore;

impl Loader<'_, '_> {
    /// Loads the archives in a file.
    pub(super) fn load_cpio(&mut self, name: &str, file: File) -> Result<()> {
        let same = file.try_clone();
        let store = FileStore::new(same.map_err(|e| Error::io(name, "cannot open", e))?);
        let store = store.map_err(|e| Error::io(name, "cannot examine", e))?;
        let cpio = CpioReader::of_store(name, &store);
        self.read_cpio(name, Some(file), cpio)
    }

    /// Loads archives from a stream.
    pub(super) fn load_cpio_stream(&mut self, name: &str, reader: impl Read + Send) -> Result<()> {
        let cpio = CpioReader::new(name, reader);
        self.read_cpio(name, None, cpio)
    }

    fn read_cpio(
        &mut self,
        name: &str,
        file: Option<File>,
        mut cpio: CpioReader<'_>,
    ) -> Result<()> {
        let limit = Expansion::new(self.options.resources.max_expansion);
        cpio = cpio.limited(limit);
        let mut copy = None;
        while let Some(mut entry) = cpio.next_entry().map_err(Error::from)? {
            if entry.content == Content::Stream && !self.exclude.is_left_out(&entry.path) {
                let temporary = &self.environment.temporary;
                let fail = |e| Error::io(temporary.display(), "cannot copy the archive", e);
                let copy = match &mut copy {
                    Some(copy) => copy,
                    None => copy.insert(MemberCopies {
                        file: tuff_store::anonymous(temporary).map_err(fail)?,
                        len: 0,
                        buf: vec![0; COPY_BUFFER],
                    }),
                };
                entry.content = Content::Copied { offset: copy.len };
                loop {
                    let n = cpio.data().read(&mut copy.buf);
                    match n.map_err(|e| Error::from(SourceError::from(e)))? {
                        0 => break,
                        n => {
                            copy.file.write_all(&copy.buf[..n]).map_err(fail)?;
                            copy.len += n as u64;
                        }
                    }
                }
            }
            self.add(entry, name)?;
        }
        self.warnings.extend(cpio.warning());
        self.contents.layers.push(ContentProvider::Archive {
            file: file.map(|file| Arc::new(SourceFile::new(file, name))),
            copy: copy.map(|copy| Arc::new(SourceFile::new(copy.file, name))),
        });
        Ok(())
    }
}

/// Buffer for copying members. Unit: bytes.
const COPY_BUFFER: usize = 256 << 10;

/// Anonymous file with the data of members that cannot be read again, back to back.
struct MemberCopies {
    file: File,
    len: u64,
    buf: Vec<u8>,
}
