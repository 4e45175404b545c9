//! Sources of a build, as the caller names them.

use std::path::PathBuf;

/// Source of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory.
    Dir(PathBuf),
    /// A tar file, plain or compressed with gzip, xz or zstd; or cpio archives, the form of an initramfs.
    Tar(PathBuf),
    /// A tar inside a file, plain or compressed: a layer of an archive.
    TarWithin {
        /// The file.
        file: PathBuf,
        /// First byte of the tar.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// SHA-256 of the plain tar. It is verified if the tar is compressed.
        unpacked: Option<[u8; 32]>,
        /// Name of the file in messages.
        name: String,
    },
    /// A tar on standard input, plain or compressed, or cpio archives.
    TarStdin,
    /// A manifest; see `docs/reference/manifest.md`.
    Manifest(PathBuf),
    /// An EROFS image.
    Image {
        /// File or block device that holds it.
        path: PathBuf,
        /// Its extra devices, in the order of its device table.
        devices: Vec<PathBuf>,
    },
}

impl Source {
    /// Returns the name that messages use.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Dir(path) | Self::Tar(path) | Self::Manifest(path) => path.display().to_string(),
            Self::Image { path, .. } => path.display().to_string(),
            Self::TarWithin { name, .. } => name.clone(),
            Self::TarStdin => "standard input".to_owned(),
        }
    }
}
