//! Header of the directory, and its copy: what the directory is, and the size of a zone.

use crate::backend::host::{open_regular, retry};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

const MAGIC: &str = "tuff volume in zone files, version 1";
/// Names of the header and its copy.
pub(super) const HEADERS: [&str; 2] = ["volume", "volume.copy"];
/// Upper bound of the length of a header. Unit: bytes.
const HEADER_LEN_MAX: u64 = 128;

/// Reads the size of a zone, and which headers are damaged.
pub(super) fn read_headers(path: &Path) -> io::Result<(u64, Vec<&'static str>)> {
    let headers = HEADERS.map(|name| read_header(&path.join(name)));
    let none =
        |header: &io::Result<_>| matches!(header, Err(e) if e.kind() == io::ErrorKind::NotFound);
    if headers.iter().all(none) {
        let what = "is not a volume: the directory has no file `volume`";
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    let mut damaged = Vec::new();
    let mut sizes = Vec::new();
    for (name, header) in HEADERS.into_iter().zip(&headers) {
        match header {
            Ok(Some(size)) => sizes.push(*size),
            _ => damaged.push(name),
        }
    }
    let zone_blocks = match sizes[..] {
        [a, b] if a != b => {
            return Err(bad(&format!(
                "`volume` states zones of {a} blocks and `volume.copy` of {b}: remove the wrong one"
            )));
        }
        [size, ..] => size,
        [] => {
            // An unreadable copy may be sound.
            if let Some(e) = headers
                .into_iter()
                .filter_map(io::Result::err)
                .find(|e| e.kind() != io::ErrorKind::NotFound)
            {
                return Err(e);
            }
            return Err(bad(
                "neither `volume` nor `volume.copy` is the header of a volume in zone files; a new volume with zones of the same size has the same two files",
            ));
        }
    };
    Ok((zone_blocks, damaged))
}

/// Reads the zone size from a header. `None` if the header is damaged.
fn read_header(path: &Path) -> io::Result<Option<u64>> {
    let file = match open_regular(path, OpenOptions::new().read(true)) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(HEADER_LEN_MAX).read_to_end(&mut bytes)?;
    let mut sizes = (4..=24).map(|bits| 1 << bits);
    Ok(sizes.find(|size| bytes == header(*size).as_bytes()))
}

fn header(zone_blocks: u64) -> String {
    format!("{MAGIC}\nzone_blocks {zone_blocks}\n")
}

/// Writes headers one after the other, so that one is always intact.
pub(super) fn write_headers(path: &Path, names: &[&str], zone_blocks: u64) -> io::Result<()> {
    for name in names {
        let path = path.join(name);
        if retry(|| fs::metadata(&path)).is_ok_and(|meta| !meta.is_file()) {
            let what = format!("{} is not a regular file: remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut file = File::create(path)?;
        file.write_all(header(zone_blocks).as_bytes())?;
        file.sync_all()?;
    }
    File::open(path)?.sync_all()
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
