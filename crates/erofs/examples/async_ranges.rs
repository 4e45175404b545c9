//! Reads an image in an asynchronous program, in two ways:
//!
//! * A store that waits, as `tuff-remote` has one for URLs, belongs on a thread that may block.
//! * With a `RangeStore` nothing blocks: a read names the range that it lacks, and the program awaits it.

use std::error::Error;
use std::sync::Arc;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::{FileStore, RangeStore, ReadAt};

type Failure = Box<dyn Error + Send + Sync>;

/// Runs blocking reads on a thread of their own.
async fn read_on_a_thread(image: Arc<Image>, path: String) -> Result<Vec<u8>, Failure> {
    let read = move || -> Result<Vec<u8>, Failure> {
        let inode = image.resolve(path.as_bytes())?;
        let mut bytes = vec![0; usize::try_from(inode.size())?];
        image.read_at(&inode, &mut bytes, 0)?;
        Ok(bytes)
    };
    tokio::task::spawn_blocking(read).await?
}

/// Repeats an operation until all ranges that it needs are there. `fetch` may be any request for a range.
async fn retry<T>(
    store: &RangeStore,
    fetch: impl AsyncFn(u64, u64) -> std::io::Result<Vec<u8>>,
    mut operation: impl FnMut() -> tuff_erofs::Result<T>,
) -> Result<T, Failure> {
    loop {
        match (operation(), store.missing()) {
            (Err(_), Some(range)) => {
                store.put(range.offset, fetch(range.offset, range.len).await?);
            }
            (done, _) => return Ok(done?),
        }
    }
}

pub(crate) async fn read_both_ways(image: &str, path: &str) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let file = Arc::new(FileStore::open(image.as_ref())?);
    let opened = Image::open_shared(file.clone(), OpenOptions::default())?;
    let first = read_on_a_thread(Arc::new(opened), path.to_owned()).await?;

    let store = Arc::new(RangeStore::new(file.size(), 64 << 20));
    let fetch = async |offset: u64, len: u64| -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).map_err(std::io::Error::other)?];
        file.read_exact_at(&mut bytes, offset)?; // instead of, for example, an HTTP request
        Ok(bytes)
    };
    let open = || Image::open_shared(store.clone(), OpenOptions::default());
    let image = retry(&store, &fetch, open).await?;
    let inode = retry(&store, &fetch, || image.resolve(path.as_bytes())).await?;
    let mut second = vec![0; usize::try_from(inode.size())?];
    retry(&store, &fetch, || image.read_at(&inode, &mut second, 0)).await?;
    Ok((first, second))
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, path] = &args[..] else {
        return Err("usage: async_ranges IMAGE PATH".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (first, second) = runtime.block_on(read_both_ways(image, path))?;
    assert_eq!(first, second);
    println!("{} bytes", first.len());
    Ok(())
}
