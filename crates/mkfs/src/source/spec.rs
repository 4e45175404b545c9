//! Sources of a build, as the caller names them.

use super::input_image::InputImage;
use super::memory::MemoryTree;
use super::placed::PlacedTree;
use super::stream::TarStream;
use std::path::PathBuf;
use std::sync::Arc;

/// Source of a build.
#[derive(Clone, Debug)]
pub enum Source {
    /// Directory to walk recursively.
    Dir(PathBuf),
    /// Tar file, plain or compressed with gzip, xz, LZMA, lzip or zstd; or cpio archives in the form of an
    /// initramfs.
    Tar(PathBuf),
    /// Layer of a container image: a tar inside a file, plain or compressed. Its whiteouts are applied, even if it is
    /// the only source.
    TarWithin {
        /// File that contains the tar.
        file: PathBuf,
        /// First byte of the tar.
        offset: u64,
        /// Length of the tar. Unit: bytes.
        len: u64,
        /// SHA-256 of the plain tar. It is verified if the tar is compressed.
        unpacked: Option<[u8; 32]>,
        /// Name of the source in messages.
        name: String,
    },
    /// Tar on standard input, plain or compressed, or cpio archives.
    TarStdin,
    /// Tar from a reader, plain or compressed, or cpio archives.
    TarStream(TarStream),
    /// Tree in memory.
    Memory(MemoryTree),
    /// Manifest in the format of `docs/reference/manifest.md`.
    Manifest(PathBuf),
    /// EROFS image.
    Image(InputImage),
    /// SquashFS image.
    SquashFs(PathBuf),
    /// Tree whose data lies in the bases.
    Placed(Arc<dyn PlacedTree>),
}

impl Source {
    /// Returns the name that messages use.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Dir(path) | Self::Tar(path) | Self::Manifest(path) | Self::SquashFs(path) => {
                path.display().to_string()
            }
            Self::Image(image) => image.name().display().to_string(),
            Self::TarWithin { name, .. } => name.clone(),
            Self::TarStdin => "standard input".to_owned(),
            Self::TarStream(stream) => stream.name().to_owned(),
            Self::Memory(_) => "tree in memory".to_owned(),
            Self::Placed(tree) => tree.name(),
        }
    }
}
