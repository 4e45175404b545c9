//! The hash tree behind an image: made before block 0 is written, so that a patched image never has a tree that is not its
//! own. Or, later, that of an image that is there.

use super::emit::Head;
use super::options::Verity;
use super::progress::Progress;
use crate::{Error, Remedy, Result};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::verity::{self, HEADER_ALIGN, HashTree, hash_offset};
use tuff_store::{FileStore, Output, ReadAt, Target, is_same};
use tuff_verity::{BuiltTree, Header, make, tree_end};

/// What there is no header for is what nobody can ask for.
fn header(wanted: &Verity, image_len: u64, uuid: [u8; 16]) -> Result<Header> {
    if wanted.block > 4096 {
        return Err(Error::usage(format_args!(
            "blocks of {} bytes in a hash tree: kernels take none larger than their pages, 4096",
            wanted.block
        )));
    }
    let len = hash_offset(image_len);
    Header::new(len, wanted.block, wanted.salt.clone(), uuid).map_err(Error::usage)
}

/// Where an image of so many bytes ends with its tree. Unit: bytes.
pub(crate) fn end(wanted: &Verity, image_len: u64) -> Result<u64> {
    let header = header(wanted, image_len, [0; 16])?;
    tree_end(&header, wanted.parity, hash_offset(image_len)).map_err(Error::usage)
}

/// Writes the tree of the first `image_len` bytes behind them. Block 0 is as `head` has it.
pub(crate) fn append(
    wanted: &Verity,
    head: &Head,
    image_len: u64,
    threads: usize,
    output: &Output,
    progress: &Progress,
) -> Result<HashTree> {
    let header = header(wanted, image_len, head.uuid)?;
    let at = hash_offset(image_len);
    let failed = |e| Error::io("image", "cannot write its hash tree", e);
    // Fits: less than a block.
    let zeros = vec![0; (at - image_len) as usize];
    output.write_at(&zeros, image_len).map_err(failed)?;
    let clone = output.file().try_clone();
    let file = clone.and_then(FileStore::new).map_err(failed)?;
    let image = WithHead {
        file,
        head,
        len: at,
    };
    let parity = wanted.parity;
    // The files' bytes are what the progress counts.
    let step = |_| stopped(progress);
    let made = make(&image, &header, parity, output, at, threads, &step);
    progress.check()?;
    Ok(tree(header, parity, at, &made.map_err(failed)?))
}

/// The error that ends the making of a tree, if the work is to stop.
fn stopped(progress: &Progress) -> io::Result<()> {
    let stop = |_| io::ErrorKind::Interrupted.into();
    progress.check().map_err(stop)
}

fn tree(header: Header, parity: Option<u32>, hash_offset: u64, made: &BuiltTree) -> HashTree {
    HashTree {
        root: made.root,
        header,
        hash_offset,
        parity,
        end: made.end,
    }
}

/// Makes the hash tree of the image in the file or block device `image`: behind it, or in the file `into`. `replace` says that
/// it may take the place of one that is there.
///
/// # Errors
/// `Usage` for blocks and salts that no tree has, or something behind the image that is in the way; what opening the
/// image, reading and writing give.
pub fn hash_tree(
    image: &Path,
    into: Option<&Path>,
    wanted: &Verity,
    replace: bool,
    threads: usize,
    progress: &Progress,
) -> Result<HashTree> {
    let name = image.display().to_string();
    let failed = |what, e| Error::io(&name, what, e);
    if let Some(path) = into.filter(|into| is_same(into, image)) {
        return Err(Error::usage(format_args!(
            "{}: a hash tree cannot take the place of its image",
            path.display()
        )));
    }
    // Before the image is read: nobody is to change it meanwhile.
    let output = match into {
        Some(path) => Output::create(&Target::Path(path.to_owned()))
            .map_err(|e| Error::io(path.display(), "cannot create", e))?,
        None => Output::grow(image, 0).map_err(|e| failed("cannot write behind the image", e))?,
    };
    let store = FileStore::open(image).map_err(|e| failed("cannot open", e))?;
    let is_file = store.file().metadata().is_ok_and(|m| m.is_file());
    let data: Arc<dyn ReadAt> = Arc::new(store);
    let opened = Image::open_shared(Arc::clone(&data), OpenOptions::default());
    let opened = opened.map_err(|e| e.within(&name))?;
    let image_len = verity::end(&opened).map_err(|e| e.within(&name))?;
    if image_len > data.size().next_multiple_of(HEADER_ALIGN) {
        let (place, size) = (format_args!("{name}: superblock"), data.size());
        let what = format_args!(
            "the image is {image_len} bytes long by its blocks, but only {size} are there; copy it again"
        );
        return Err(Error::corrupt(place, what));
    }
    let there = verity::appended_tree(&opened).map_err(|e| e.within(&name))?;
    let place = hash_offset(image_len);
    let at = if into.is_some() { 0 } else { place };
    let free = replace || into.is_some();
    if there.is_some() && !free {
        let what = format_args!("{name}: the image already has a hash tree");
        return Err(Error::usage(what).with_remedy(Remedy::ReplaceHashTree));
    }
    let behind = data.size().saturating_sub(place);
    if is_file && behind > 0 && there.is_none() && into.is_none() {
        let what = format_args!(
            "{name}: the file continues for {behind} bytes after the image, where the hash tree would be"
        );
        return Err(Error::usage(what).with_remedy(Remedy::SeparateHashTree));
    }
    let header = header(wanted, image_len, opened.superblock().uuid)?;
    // What there cannot be is said before anything is read.
    tree_end(&header, wanted.parity, at).map_err(Error::usage)?;
    progress.stage("hash");
    progress.set_total(place * (1 + u64::from(wanted.parity.is_some())));
    let step = |bytes| {
        progress.add_bytes(bytes);
        stopped(progress)
    };
    let image = Start {
        store: data,
        len: place,
    };
    let made = make(&image, &header, wanted.parity, &output, at, threads, &step);
    progress
        .check()
        .map_err(|e| e.rename_place("image", &name))?;
    let made = made.map_err(|e| failed("cannot make its hash tree", e))?;
    output
        .finish(made.end, true)
        .map_err(|e| failed("cannot finish its hash tree", e))?;
    Ok(tree(header, wanted.parity, at, &made))
}

/// The first bytes of a store, as far as there are so many.
struct Start {
    store: Arc<dyn ReadAt>,
    len: u64,
}

impl ReadAt for Start {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.store.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.len.min(self.store.size())
    }
}

/// The image as it will be.
struct WithHead<'a> {
    file: FileStore,
    head: &'a Head,
    len: u64,
}

impl ReadAt for WithHead<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (at, bytes) = self.head.bytes();
        let head_end = at + bytes.len() as u64;
        if offset >= head_end {
            return self.file.read_at(buf, offset);
        }
        // Up to the head's end, where the file may not have anything yet.
        let n = buf.len().min((head_end - offset) as usize);
        let there = self.file.size().saturating_sub(offset).min(n as u64) as usize;
        buf[..n].fill(0);
        self.file.read_exact_at(&mut buf[..there], offset)?;
        let from = offset.max(at);
        let into = &mut buf[(from - offset).min(n as u64) as usize..n];
        let skip = (from - at) as usize;
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.len
    }
}
