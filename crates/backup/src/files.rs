//! Files of a store that appear complete or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use tuff_mkfs::{Error, Place, Result};

/// Makes a file that must not exist, durably.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<()> {
    let make = || {
        let temporary = write(path, bytes)?;
        // Unlike a rename it fails if the name exists.
        let made = fs::hard_link(&temporary, path);
        fs::remove_file(&temporary)?;
        made?;
        sync_parent(path)
    };
    make().map_err(|e| Error::io(Place::file(path.display()), "cannot create", e))
}

/// Writes a file or replaces it, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let make = || {
        let temporary = write(path, bytes)?;
        fs::rename(&temporary, path)?;
        sync_parent(path)
    };
    make().map_err(|e| Error::io(Place::file(path.display()), "cannot write", e))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<std::path::PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(temporary)
}

/// Makes the names of a directory durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
