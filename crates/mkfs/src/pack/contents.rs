//! Contents of the sources: where the content of each file of the tree is read.

use super::content::FileContent;
use crate::source::Content;
use crate::source::dir::DirSource;
use crate::source::file::{HostFile, SourceFile};
use crate::source::image::ImageFiles;
use crate::tree::{InodeId, Tree, lossy};
use crate::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use tuff_format::inode::FileType;

/// Source of file contents, by which the locations of one layer are resolved.
pub(crate) enum ContentProvider {
    Dir(Arc<DirSource>),
    /// `file` holds the members of a tar and plain ones of a cpio archive, `copy` those that were decompressed or read
    /// from a stream.
    Archive {
        file: Option<Arc<SourceFile>>,
        copy: Option<Arc<SourceFile>>,
    },
    Image(Arc<dyn ImageFiles>),
    /// The tree holds all contents, or they were packed from a stream.
    Elsewhere,
}

/// Contents of all sources.
#[derive(Default)]
pub(crate) struct Contents {
    /// Providers by layer of the tree.
    pub(crate) layers: Vec<ContentProvider>,
}

impl Contents {
    /// Returns the content of a file. `None` if it has none or was packed from a stream.
    pub(crate) fn get(&self, tree: &Tree, inode: InodeId) -> Result<Option<FileContent>> {
        if tree.file_type(inode) != FileType::File {
            return Ok(None);
        }
        let host_file = |dir, path, mtime| {
            FileContent::Host(Arc::new(HostFile {
                dir,
                path,
                size: tree.size(inode),
                mtime,
            }))
        };
        let content = tree.content(inode);
        let (location, runs) = content.parts();
        let provider = self.layers.get(usize::from(tree.layer(inode)));
        let (file, offset) = match (location, provider) {
            (Content::None | Content::Stream, _) => return Ok(None),
            (Content::Bytes(bytes), _) => return Ok(Some(FileContent::Bytes(Arc::clone(bytes)))),
            (Content::Path(path), _) => {
                let path = path.as_os_str().as_bytes().into();
                return Ok(Some(host_file(None, path, None)));
            }
            (Content::InSource, Some(ContentProvider::Dir(dir))) => {
                let meta = tree.meta(inode);
                let mtime = Some((meta.mtime, meta.mtime_nsec));
                let dir = Some(Arc::clone(dir));
                return Ok(Some(host_file(dir, tree.path(inode).into(), mtime)));
            }
            (Content::Range { offset: key }, Some(ContentProvider::Image(source))) => {
                return Ok(Some(FileContent::Image {
                    source: Arc::clone(source),
                    key: *key,
                    path: tree.path(inode).into(),
                }));
            }
            (Content::Range { offset }, Some(ContentProvider::Archive { file, .. })) => {
                (file, *offset)
            }
            (Content::Copied { offset }, Some(ContentProvider::Archive { copy, .. })) => {
                (copy, *offset)
            }
            _ => (&None, 0),
        };
        let Some(file) = file.clone() else {
            let what = match location {
                Content::Range { .. } => {
                    "the tar of this index cannot be read a second time; give it as a file"
                }
                _ => "content of another kind of source",
            };
            let path = tree.path(inode);
            return Err(Error::usage(format_args!("{}: {what}", lossy(&path))));
        };
        Ok(Some(match runs.cloned() {
            Some(runs) => FileContent::Runs { file, runs },
            None => FileContent::Range { file, offset },
        }))
    }

    /// Returns the content of a file that must exist. Contents of streams cannot be read before packing.
    pub(crate) fn readable(&self, tree: &Tree, inode: InodeId) -> Result<FileContent> {
        let content = self.get(tree, inode)?;
        content.ok_or_else(|| Error::usage("content that cannot be read twice"))
    }
}
