//! Reads a range of a file, then the same through a reader that seeks.

use std::error::Error;
use std::io::{Read, Seek, SeekFrom};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::FileStore;

pub(crate) fn read_range(
    image: &str,
    path: &str,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let image = Image::open(FileStore::open(image.as_ref())?, OpenOptions::default())?;
    let inode = image.resolve(path.as_bytes())?;
    let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
    let n = image.read_at(&inode, &mut bytes, range.start)?;
    bytes.truncate(n); // the file may end first

    let (mut reader, mut again) = (image.reader(&inode)?, Vec::new());
    reader.seek(SeekFrom::Start(range.start))?;
    reader
        .take(range.end - range.start)
        .read_to_end(&mut again)?;
    assert_eq!(bytes, again);
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, path, start, end] = &args[..] else {
        return Err("usage: read_range IMAGE PATH START END".into());
    };
    let bytes = read_range(image, path, start.parse()?..end.parse()?)?;
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &bytes)?)
}
