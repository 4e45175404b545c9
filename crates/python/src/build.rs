//! Building of images from sources and options.

use crate::errors::convert;
use crate::interrupt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::path::PathBuf;
use tuff_mkfs::settings::Settings;
use tuff_mkfs::source::{Device, Kind};
use tuff_mkfs::{Error, MemoryEntry, MemoryTree, Progress, Source};
use tuff_store::Target;

/// Entry of a tree: path, type bits of `st_mode` or 0 for a hard link, content or target, device, attributes.
type Entry = (PyBackedBytes, u32, PyBackedBytes, (u32, u32), Attributes);

/// Mode, owner and group, modification time in nanoseconds, extended attributes.
type Attributes = (Option<u16>, u32, u32, i128, Vec<Xattr>);

/// Name and value of an extended attribute.
type Xattr = (PyBackedBytes, PyBackedBytes);

/// Source of a build.
#[derive(FromPyObject)]
pub(crate) enum Input {
    /// "dir" or "tar", and a path.
    Path(String, PathBuf),
    /// "tree", and its entries.
    Tree(String, Vec<Entry>),
}

/// Builds an image from sources, merged in order. Returns its bytes if `out` is `None`.
#[pyfunction]
pub(crate) fn build<'py>(
    py: Python<'py>,
    inputs: Vec<Input>,
    settings: Vec<(String, OsString)>,
    out: Option<PathBuf>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let progress = Progress::default();
    let stop = progress.stop_flag();
    let built = interrupt::run(py, &stop, || {
        let mut given = Settings::default();
        for (name, value) in settings {
            given.set(&name, value)?;
        }
        let mut options = given.options()?;
        tuff_open::open_bases(&mut options)?;
        let sources: Vec<Source> = inputs.into_iter().map(source).collect::<Result<_, _>>()?;
        let mut image = Vec::new();
        match out {
            Some(path) => {
                tuff_mkfs::build(&sources, &options, &Target::Path(path), &progress)?;
                Ok(None)
            }
            None => {
                tuff_mkfs::build_to(&sources, &options, &mut image, &progress)?;
                Ok(Some(image))
            }
        }
    })?;
    let image = built.map_err(convert)?;
    Ok(image.map(|image| PyBytes::new(py, &image)))
}

fn unknown(kind: &str) -> Error {
    Error::usage(format_args!("{kind} is not a kind of source"))
}

fn source(input: Input) -> Result<Source, Error> {
    match input {
        Input::Path(kind, path) if kind == "dir" => Ok(Source::Dir(path)),
        Input::Path(kind, path) if kind == "tar" => Ok(Source::Tar(path)),
        Input::Path(kind, _) => Err(unknown(&kind)),
        Input::Tree(kind, _) if kind != "tree" => Err(unknown(&kind)),
        Input::Tree(_, entries) => {
            let mut tree = MemoryTree::new();
            for entry in entries {
                add(&mut tree, entry)?;
            }
            Ok(Source::Memory(tree))
        }
    }
}

fn add(tree: &mut MemoryTree, entry: Entry) -> Result<(), Error> {
    let (path, kind, data, (major, minor), attributes) = entry;
    let device = Device { major, minor };
    let entry = match kind {
        0 => tree.add_hard_link(path, data)?,
        0o100_000 => tree.add_file(path, &data[..])?,
        0o040_000 => tree.add_dir(path)?,
        0o120_000 => tree.add_symlink(path, &data[..])?,
        0o020_000 => tree.add_special(path, Kind::Char(device))?,
        0o060_000 => tree.add_special(path, Kind::Block(device))?,
        0o010_000 => tree.add_special(path, Kind::Fifo)?,
        0o140_000 => tree.add_special(path, Kind::Socket)?,
        _ => return Err(Error::usage(format_args!("{kind:o} is not a type of file"))),
    };
    describe(entry, attributes)
}

fn describe(entry: &mut MemoryEntry, attributes: Attributes) -> Result<(), Error> {
    let (mode, uid, gid, mtime, xattrs) = attributes;
    if let Some(mode) = mode {
        entry.set_mode(mode);
    }
    let seconds = i64::try_from(mtime.div_euclid(1_000_000_000));
    let seconds = seconds.map_err(|_| Error::usage("a time is out of range"))?;
    // Fits: below 10^9.
    let nanoseconds = mtime.rem_euclid(1_000_000_000) as u32;
    entry.set_owner(uid, gid).set_mtime(seconds, nanoseconds);
    for (name, value) in xattrs {
        entry.set_xattr(&name[..], &value[..]);
    }
    Ok(())
}
