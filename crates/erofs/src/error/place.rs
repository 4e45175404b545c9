//! Where an error is, as data.

use std::fmt;
use std::path;
use tuff_format::Nid;

/// Place of an error: steps from the outermost, such as a file, to the innermost, such as a byte. May be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(Vec<Step>);

/// Step of a [`Place`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// File, device or URL, without credentials.
    File(String),
    /// Output whose name the failing stage does not know.
    Output(Output),
    /// Path in an image, escaped for messages.
    Path(String),
    /// Inode, and its position in the metadata if that is known. Unit: bytes.
    Inode(Nid, Option<u64>),
    /// Position on a device of the image, of which 0 is the primary one. Unit: bytes.
    Byte(u16, u64),
    /// Cluster of a file.
    Cluster {
        /// Range of the file that the extent covers. Unit: bytes.
        range: (u64, u64),
        /// Position of the cluster in the unified address space. Unit: bytes.
        byte: u64,
        /// Stored length. Unit: bytes.
        len: u32,
        /// Name of the coding.
        coding: &'static str,
    },
    /// Structure, or another part that only people read.
    Part(String),
}

/// Output of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Image that is built or changed.
    Image,
    /// Extra device that a build writes data to.
    Blob,
    /// Tar that an image is converted to.
    Tar,
}

impl Place {
    /// Returns the place of a file, device or URL. A URL must not contain credentials.
    pub fn file(name: impl fmt::Display) -> Self {
        Step::File(name.to_string()).into()
    }

    /// Returns the place of an image that is built or changed, and whose name is not known.
    pub fn image() -> Self {
        Step::Output(Output::Image).into()
    }

    /// Returns the place of an extra device that a build writes to, and whose name is not known.
    pub fn blob() -> Self {
        Step::Output(Output::Blob).into()
    }

    /// Returns the place of a tar that is written.
    pub fn tar() -> Self {
        Step::Output(Output::Tar).into()
    }

    /// Returns the place of a path in an image, escaped for messages.
    pub fn path(path: impl fmt::Display) -> Self {
        Step::Path(path.to_string()).into()
    }

    /// Returns the place of an inode at a position in its space.
    pub fn inode(nid: Nid, at: u64) -> Self {
        Step::Inode(nid, Some(at)).into()
    }

    /// Returns the place of an inode of which only the number is known.
    pub fn nid(nid: Nid) -> Self {
        Step::Inode(nid, None).into()
    }

    /// Returns the place of a byte of the primary device.
    pub fn byte(at: u64) -> Self {
        Self::byte_of(0, at)
    }

    /// Returns the place of a byte of a device of the image.
    pub fn byte_of(device: u16, at: u64) -> Self {
        Step::Byte(device, at).into()
    }

    /// Steps from the outermost to the innermost.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Returns true if the file, device or URL `name` is one of the steps.
    pub fn is_in_file(&self, name: impl fmt::Display) -> bool {
        self.0.contains(&Step::File(name.to_string()))
    }

    /// Returns true if a path in an image is the outermost step.
    pub fn begins_with_path(&self) -> bool {
        matches!(self.0.first(), Some(Step::Path(_)))
    }

    /// Returns this place with `outer` as the enclosing context.
    #[must_use]
    pub fn within(self, outer: Self) -> Self {
        Self(outer.0.into_iter().chain(self.0).collect())
    }
}

impl From<Step> for Place {
    fn from(step: Step) -> Self {
        Self(vec![step])
    }
}

impl From<String> for Place {
    fn from(part: String) -> Self {
        match part.is_empty() {
            true => Self::default(),
            false => Step::Part(part).into(),
        }
    }
}

impl From<&str> for Place {
    fn from(part: &str) -> Self {
        part.to_owned().into()
    }
}

impl From<fmt::Arguments<'_>> for Place {
    fn from(part: fmt::Arguments<'_>) -> Self {
        part.to_string().into()
    }
}

impl From<path::Display<'_>> for Place {
    fn from(file: path::Display<'_>) -> Self {
        Self::file(file)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            let separator = if i > 0 { ": " } else { "" };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(text) | Self::Path(text) | Self::Part(text) => f.write_str(text),
            Self::Output(Output::Image) => f.write_str("image"),
            Self::Output(Output::Blob) => f.write_str("blob"),
            Self::Output(Output::Tar) => f.write_str("tar"),
            Self::Inode(nid, None) => write!(f, "nid {nid}"),
            Self::Inode(nid, Some(at)) => write!(f, "nid {nid} (byte {at:#x})"),
            Self::Byte(0, at) => write!(f, "byte {at:#x}"),
            Self::Byte(device, at) => write!(f, "device {device}, byte {at:#x}"),
            Self::Cluster {
                range: (start, end),
                byte,
                len,
                coding,
            } => write!(
                f,
                "file bytes {start} to {end}: cluster at byte {byte:#x} ({len} bytes, {coding})"
            ),
        }
    }
}
