//! Images that are open, and walks over them.

use crate::errors::convert;
use crate::interrupt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tuff_erofs::read::{self, Nid};
use tuff_erofs::{Error, check, extract, walk};
use tuff_format::dirent::is_name;
use tuff_open::{ImageRef, OpenOptions, open_stores};
use tuff_store::{MemStore, RangeStore};

/// Memory for ranges of a file object. Unit: bytes.
const RANGES: usize = 64 << 20;

/// Mode, size, owner, group, number of names, modification time in nanoseconds, major and minor number of a device.
type Stat = (u32, u64, u32, u32, u32, i128, u32, u32);

/// Open image. Any number of threads may use it.
#[pyclass(frozen, module = "tuff._tuff")]
pub(crate) struct Image {
    image: Arc<read::Image>,
    /// Ranges of a file object, which the part in Python supplies.
    ranges: Option<Arc<RangeStore>>,
    /// Reads may wait for a network.
    is_network: bool,
    /// URL of the image without credentials.
    url: Option<String>,
}

#[pymethods]
impl Image {
    /// Opens the image at a path or URL. The settings are options of the command: names and values.
    #[staticmethod]
    fn open(py: Python<'_>, image: PathBuf, settings: Vec<(String, PathBuf)>) -> PyResult<Self> {
        let image = ImageRef::from(image);
        let is_network = image.is_network();
        let url = image.url().map(ToString::to_string);
        let opened = interrupt::leave(py, move || {
            let mut options = OpenOptions::default();
            for (name, value) in &settings {
                options.set(name, value.as_os_str())?;
            }
            tuff_open::open(&image, &options)
        })?;
        Ok(Self {
            image: Arc::new(opened.map_err(convert)?.into_image()),
            ranges: None,
            is_network,
            url,
        })
    }

    /// Opens an image in memory.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        let image = open_stores(Arc::new(MemStore::new(bytes)), Vec::new());
        Ok(Self {
            image: Arc::new(image.map_err(convert)?),
            ranges: None,
            is_network: false,
            url: None,
        })
    }

    /// Opens an image of `size` bytes, the start of which is `head`. Other ranges are supplied on request.
    #[staticmethod]
    fn from_ranges(size: u64, head: &[u8]) -> PyResult<Self> {
        let ranges = Arc::new(RangeStore::new(size, RANGES));
        ranges.put(0, head.to_vec());
        let image = open_stores(ranges.clone(), Vec::new());
        Ok(Self {
            image: Arc::new(image.map_err(convert)?),
            ranges: Some(ranges),
            is_network: false,
            url: None,
        })
    }

    /// URL that the image was opened by, without credentials.
    fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Returns position and length of the range that the last `BlockingIOError` was about.
    fn missing(&self) -> Option<(u64, u64)> {
        let missing = self.ranges.as_ref()?.missing()?;
        Some((missing.offset, missing.len))
    }

    /// Supplies a range that was missing.
    fn put(&self, offset: u64, bytes: &[u8]) {
        if let Some(ranges) = &self.ranges {
            ranges.put(offset, bytes.to_vec());
        }
    }

    /// Returns the inode number of a path. `None` if it does not exist.
    fn find(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Option<u64>> {
        let path = path.to_vec();
        let found = self.wait(py, move |image| match follow {
            true => image.find_following(&path),
            false => image.find(&path),
        })?;
        Ok(found.map_err(convert)?.map(|inode| inode.nid().0))
    }

    /// Returns the attributes of an inode.
    fn stat(&self, py: Python<'_>, nid: u64) -> PyResult<Stat> {
        let inode = self.inode(py, nid)?;
        let (seconds, nanoseconds) = inode.mtime();
        let time = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        let (major, minor) = inode.device().unwrap_or_default();
        let (mode, size, nlink) = (inode.mode().into(), inode.size(), inode.nlink());
        Ok((
            mode,
            size,
            inode.uid(),
            inode.gid(),
            nlink,
            time,
            major,
            minor,
        ))
    }

    /// Reads up to `size` bytes of an inode's data.
    fn read<'py>(
        &self,
        py: Python<'py>,
        nid: u64,
        offset: u64,
        size: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.wait(py, move |image| {
            let inode = image.inode(Nid(nid))?;
            let left = inode.size().saturating_sub(offset).min(size);
            let mut bytes = Vec::new();
            // The size that an image states for a file is no reason to allocate it at once.
            while (bytes.len() as u64) < left {
                let done = bytes.len();
                // Fits: at most 4 MiB.
                let more = (left - done as u64).min(4 << 20) as usize;
                bytes.resize(done + more, 0);
                let at = offset + done as u64;
                let n = image.read_at(&inode, &mut bytes[done..], at)?;
                bytes.truncate(done + n);
                if n == 0 {
                    break;
                }
            }
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes.map_err(convert)?))
    }

    /// Returns the target of a symbolic link.
    fn readlink<'py>(&self, py: Python<'py>, nid: u64) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.wait(py, move |image| image.readlink(&image.inode(Nid(nid))?))?;
        Ok(PyBytes::new(py, &target.map_err(convert)?))
    }

    /// Returns names and values of extended attributes.
    fn xattrs<'py>(
        &self,
        py: Python<'py>,
        nid: u64,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let xattrs = self.wait(py, move |image| image.xattrs(&image.inode(Nid(nid))?))?;
        let xattrs = xattrs.map_err(convert)?;
        let pair = |x: &read::Xattr| (PyBytes::new(py, &x.name), PyBytes::new(py, &x.value));
        Ok(xattrs.iter().map(pair).collect())
    }

    /// Returns names and inode numbers of a directory's entries, without "." and "..".
    fn list<'py>(&self, py: Python<'py>, nid: u64) -> PyResult<Vec<(Bound<'py, PyBytes>, u64)>> {
        let entries = self.wait(py, move |image| {
            let dir = image.inode(Nid(nid))?;
            let mut entries = Vec::new();
            for entry in image.read_dir(&dir)? {
                let entry = entry?;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                if !is_name(&entry.name) {
                    let name = entry.name.escape_ascii().to_string();
                    let what = format!("entry {name:?} is not a name");
                    return Err(Error::corrupt(dir.place(), what));
                }
                entries.push((entry.name, entry.nid.0));
            }
            Ok(entries)
        })?;
        let entries = entries.map_err(convert)?.into_iter();
        let named = entries.map(|(name, nid)| (PyBytes::new(py, &name), nid));
        Ok(named.collect())
    }

    /// Starts a walk over an inode and everything below it.
    fn walk(&self, py: Python<'_>, nid: u64) -> PyResult<Walk> {
        let start = self.inode(py, nid)?;
        let walk = walk::Walk::new(Arc::clone(&self.image), Vec::new(), start);
        Ok(Walk {
            walk: Arc::new(Mutex::new(walk)),
            is_network: self.is_network,
        })
    }

    /// Extracts a path, and everything below it, into a directory.
    fn extract(
        &self,
        py: Python<'_>,
        path: &[u8],
        target: PathBuf,
        overwrite: bool,
    ) -> PyResult<u64> {
        let path: Vec<&[u8]> = path
            .split(|b| *b == b'/')
            .filter(|n| !n.is_empty())
            .collect();
        let path = path.join(&b'/');
        let stop = Arc::new(AtomicBool::new(false));
        let options = extract::Options {
            stop: Arc::clone(&stop),
            paths: match path.is_empty() {
                true => Vec::new(),
                false => vec![path],
            },
            overwrite,
            ..extract::Options::default()
        };
        let report = match self.is_network {
            // After ^C the thread ends with the request that it waits for.
            true => {
                let (image, stopped) = (Arc::clone(&self.image), Arc::clone(&stop));
                let work = move || extract::extract(&image, &target, &options, |_| ());
                interrupt::leave(py, work).inspect_err(|_| stopped.store(true, Relaxed))?
            }
            false => interrupt::run(py, &stop, || {
                extract::extract(&self.image, &target, &options, |_| ())
            })?,
        };
        Ok(report.map_err(convert)?.totals.files)
    }

    /// Checks every structure and all data. Returns severities and texts of the findings.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let options = check::Options::default();
        let report = self.wait(py, move |image| check::check(image, &options, |_| ()))?;
        let pair = |f: &check::Finding| (f.severity.to_string(), f.to_string());
        Ok(report.findings.iter().map(pair).collect())
    }
}

impl Image {
    fn inode(&self, py: Python<'_>, nid: u64) -> PyResult<read::Inode> {
        let inode = self.wait(py, move |image| image.inode(Nid(nid)))?;
        inode.map_err(convert)
    }

    /// Runs `work` without the interpreter. ^C ends a wait for a network.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&read::Image) -> T + Send + 'static,
    ) -> PyResult<T> {
        match self.is_network {
            true => {
                let image = Arc::clone(&self.image);
                interrupt::leave(py, move || work(&image))
            }
            false => Ok(py.detach(|| work(&self.image))),
        }
    }
}

/// Walk: iterates over pairs of a path, relative to its start, and an inode number.
#[pyclass(frozen, module = "tuff._tuff")]
pub(crate) struct Walk {
    walk: Arc<Mutex<walk::Walk<Arc<read::Image>>>>,
    is_network: bool,
}

#[pymethods]
impl Walk {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let walk = Arc::clone(&self.walk);
        let next = move || {
            let walk = walk.try_lock();
            walk.map(|mut walk| walk.next()).map_err(drop)
        };
        let next = match self.is_network {
            true => interrupt::leave(py, next)?,
            false => py.detach(next),
        };
        match next {
            Err(()) => Err(PyRuntimeError::new_err(
                "the walk is used by another thread",
            )),
            Ok(None) => Ok(None),
            Ok(Some(entry)) => {
                let entry = entry.map_err(convert)?;
                Ok(Some((PyBytes::new(py, &entry.path), entry.inode.nid().0)))
            }
        }
    }

    /// Leaves out the entries below the directory that was returned last.
    fn skip(&self) {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        walk.skip_below();
    }
}
