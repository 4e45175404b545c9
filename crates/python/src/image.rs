//! Images that are open, and walks over them.

use crate::errors::convert;
use crate::interrupt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_erofs::read::{self, Nid, OpenOptions};
use tuff_erofs::{Error, check, extract, walk};
use tuff_format::dirent::is_name;
use tuff_store::{FileStore, MemStore, RangeStore};

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
}

#[pymethods]
impl Image {
    /// Opens an image in a file or block device, with its extra devices.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, devices: Vec<PathBuf>) -> PyResult<Self> {
        let open = |path: &PathBuf| {
            FileStore::open(path).map_err(|e| Error::io(path.display(), "cannot open", e))
        };
        let image = py.detach(|| {
            let mut options = OpenOptions::default();
            for device in &devices {
                options.devices.push(Arc::new(open(device)?));
            }
            read::Image::open(open(&path)?, options)
        });
        Ok(Self {
            image: Arc::new(image.map_err(convert)?),
            ranges: None,
        })
    }

    /// Opens an image in memory.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        let image = read::Image::open(MemStore::new(bytes), OpenOptions::default());
        Ok(Self {
            image: Arc::new(image.map_err(convert)?),
            ranges: None,
        })
    }

    /// Opens an image of `size` bytes, the start of which is `head`. Other ranges are supplied on request.
    #[staticmethod]
    fn from_ranges(size: u64, head: &[u8]) -> PyResult<Self> {
        let ranges = Arc::new(RangeStore::new(size, RANGES));
        ranges.put(0, head.to_vec());
        let image = read::Image::open_shared(ranges.clone(), OpenOptions::default());
        Ok(Self {
            image: Arc::new(image.map_err(convert)?),
            ranges: Some(ranges),
        })
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
        let found = py.detach(|| match follow {
            true => self.image.find_following(path),
            false => self.image.find(path),
        });
        Ok(found.map_err(convert)?.map(|inode| inode.nid().0))
    }

    /// Returns the attributes of an inode.
    fn stat(&self, nid: u64) -> PyResult<Stat> {
        let inode = self.inode(nid)?;
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
        let inode = self.inode(nid)?;
        let bytes = py.detach(|| {
            let left = inode.size().saturating_sub(offset).min(size);
            let mut bytes = Vec::new();
            // The size that an image states for a file is no reason to allocate it at once.
            while (bytes.len() as u64) < left {
                let done = bytes.len();
                // Fits: at most 4 MiB.
                let more = (left - done as u64).min(4 << 20) as usize;
                bytes.resize(done + more, 0);
                let at = offset + done as u64;
                let n = self.image.read_at(&inode, &mut bytes[done..], at)?;
                bytes.truncate(done + n);
                if n == 0 {
                    break;
                }
            }
            Ok(bytes)
        });
        Ok(PyBytes::new(py, &bytes.map_err(convert)?))
    }

    /// Returns the target of a symbolic link.
    fn readlink<'py>(&self, py: Python<'py>, nid: u64) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.image.readlink(&self.inode(nid)?).map_err(convert)?;
        Ok(PyBytes::new(py, &target))
    }

    /// Returns names and values of extended attributes.
    fn xattrs<'py>(
        &self,
        py: Python<'py>,
        nid: u64,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let xattrs = self.image.xattrs(&self.inode(nid)?).map_err(convert)?;
        let pair = |x: &read::Xattr| (PyBytes::new(py, &x.name), PyBytes::new(py, &x.value));
        Ok(xattrs.iter().map(pair).collect())
    }

    /// Returns names and inode numbers of a directory's entries, without "." and "..".
    fn list<'py>(&self, py: Python<'py>, nid: u64) -> PyResult<Vec<(Bound<'py, PyBytes>, u64)>> {
        let dir = self.inode(nid)?;
        let mut entries = Vec::new();
        for entry in self.image.read_dir(&dir).map_err(convert)? {
            let entry = entry.map_err(convert)?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            if !is_name(&entry.name) {
                let what = format!(
                    "entry {:?} is not a name",
                    entry.name.escape_ascii().to_string()
                );
                return Err(convert(Error::corrupt(dir.place(), what)));
            }
            entries.push((PyBytes::new(py, &entry.name), entry.nid.0));
        }
        Ok(entries)
    }

    /// Starts a walk over an inode and everything below it.
    fn walk(&self, nid: u64) -> PyResult<Walk> {
        let walk = walk::Walk::new(Arc::clone(&self.image), Vec::new(), self.inode(nid)?);
        Ok(Walk(Mutex::new(walk)))
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
        let report = interrupt::run(py, &stop, || {
            extract::extract(&self.image, &target, &options, |_| ())
        })?;
        Ok(report.map_err(convert)?.totals.files)
    }

    /// Checks every structure and all data. Returns severities and texts of the findings.
    fn check(&self, py: Python<'_>) -> Vec<(String, String)> {
        let report = py.detach(|| check::check(&self.image, &check::Options::default(), |_| ()));
        let pair = |f: &check::Finding| (f.severity.to_string(), f.to_string());
        report.findings.iter().map(pair).collect()
    }
}

impl Image {
    fn inode(&self, nid: u64) -> PyResult<read::Inode> {
        self.image.inode(Nid(nid)).map_err(convert)
    }
}

/// Walk: iterates over pairs of a path, relative to its start, and an inode number.
#[pyclass(frozen, module = "tuff._tuff")]
pub(crate) struct Walk(Mutex<walk::Walk<Arc<read::Image>>>);

#[pymethods]
impl Walk {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let next = py.detach(|| {
            let walk = self.0.try_lock();
            walk.map(|mut walk| walk.next()).map_err(drop)
        });
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
        let mut walk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walk.skip_below();
    }
}
