//! Files of a disk without a partition table, by the names that systemd expects.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Files beside an image: hash tree, root hash, and its signature.
pub struct FlatFiles {
    /// File with the hash tree.
    pub tree: PathBuf,
    /// Root hash in hexadecimal digits.
    pub root: PathBuf,
    /// Signature of the root hash in DER.
    pub signature: PathBuf,
}

impl FlatFiles {
    /// Files of the image at `path`. `None` for a path without a name.
    pub fn beside(path: &Path) -> Option<Self> {
        let name = path.file_name().filter(|_| path != Path::new("-"))?;
        let stem = match path.extension() {
            Some(raw) if raw == "raw" => path.file_stem().unwrap_or(name),
            _ => name,
        };
        Some(Self::with_stem(path, stem))
    }

    /// Files whose names begin with all of the image's, also if that ends with `.raw`. `None` for a path without a name.
    pub(crate) fn of_name(path: &Path) -> Option<Self> {
        path.file_name().map(|name| Self::with_stem(path, name))
    }

    fn with_stem(path: &Path, stem: &OsStr) -> Self {
        let with = |suffix: &str| {
            let mut name = stem.to_owned();
            name.push(suffix);
            path.with_file_name(name)
        };
        Self {
            tree: with(".verity"),
            root: with(".roothash"),
            signature: with(".roothash.p7s"),
        }
    }

    /// All three, the signature last.
    pub fn all(&self) -> [&PathBuf; 3] {
        [&self.tree, &self.root, &self.signature]
    }
}
