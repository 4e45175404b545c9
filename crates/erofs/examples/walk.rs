//! Opens an image and lists everything in it: mode, size and path.

use tuff_erofs::Error;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::walk::{Walk, shown};
use tuff_store::FileStore;

pub(crate) fn list(path: &std::path::Path) -> Result<(), Error> {
    let store = FileStore::open(path).map_err(|e| Error::io(path.display(), "cannot open", e))?;
    let image = Image::open(store, OpenOptions::default())?;
    for entry in Walk::root(&image)? {
        let entry = entry?;
        let (mode, size) = (entry.inode.mode(), entry.inode.size());
        println!("{mode:o} {size:>10} {}", shown(&entry.path));
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    list(std::env::args().nth(1).expect("usage: walk IMAGE").as_ref())
}
