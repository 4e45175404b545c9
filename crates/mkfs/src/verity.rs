//! dm-verity hash tree of an image: appended during a build, or created for an existing image. A
//! build creates the tree before it writes block 0, so that a patched image never has the tree of
//! an older state.

use super::emit::Head;
use super::options::Verity;
use super::progress::Progress;
use crate::{Error, Place, Remedy, Result};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::verity::{self, HEADER_ALIGN, HashTree, hash_offset};
use tuff_store::{FileStore, Output, ReadAt, Target, is_same};
use tuff_verity::{BuiltTree, Header, make, tree_end};

/// Creates the header, or fails for parameters that no kernel accepts.
fn header(options: &Verity, image_len: u64, uuid: [u8; 16]) -> Result<Header> {
    if options.block > 4096 {
        return Err(Error::usage(format_args!(
            "blocks of {} bytes in a hash tree: kernels take none larger than their pages, 4096",
            options.block
        )));
    }
    let len = hash_offset(image_len);
    Header::new(len, options.block, options.salt.clone(), uuid).map_err(Error::usage)
}

/// End of the hash tree for an image of `image_len` bytes. Unit: bytes.
pub(crate) fn end(options: &Verity, image_len: u64) -> Result<u64> {
    let header = header(options, image_len, [0; 16])?;
    tree_end(&header, options.parity, hash_offset(image_len)).map_err(Error::usage)
}

/// Appends the hash tree of the first `image_len` bytes. Block 0 is taken from `head`, because it
/// is written later.
pub(crate) fn append(
    options: &Verity,
    head: &Head,
    image_len: u64,
    threads: usize,
    output: &Output,
    progress: &Progress,
) -> Result<HashTree> {
    let header = header(options, image_len, head.uuid)?;
    let at = hash_offset(image_len);
    let failed = |e| Error::io(Place::image(), "cannot write its hash tree", e);
    // Fits: less than a block.
    let zeros = vec![0; (at - image_len) as usize];
    output.write_at(&zeros, image_len).map_err(failed)?;
    let clone = output.file().try_clone();
    let file = clone.and_then(FileStore::new).map_err(failed)?;
    let image = ImageWithHead {
        file,
        head,
        len: at,
    };
    let parity = options.parity;
    // The progress counts bytes of files only.
    let step = |_| stopped(progress);
    let built = make(&image, &header, parity, output, at, threads, &step);
    progress.check()?;
    Ok(tree(header, parity, at, &built.map_err(failed)?))
}

/// Converts a stop request to the error that ends the creation of a tree.
fn stopped(progress: &Progress) -> io::Result<()> {
    let stop = |_| io::ErrorKind::Interrupted.into();
    progress.check().map_err(stop)
}

fn tree(header: Header, parity: Option<u32>, hash_offset: u64, built: &BuiltTree) -> HashTree {
    HashTree {
        root: built.root,
        header,
        hash_offset,
        parity,
        end: built.end,
    }
}

/// Creates the hash tree of the image in the file or block device `image`: appended to it, or in
/// the file `into`. `replace` allows an existing tree to be overwritten.
///
/// # Errors
///
/// * `Usage`: the block size or salt is invalid, or other data follows the image.
/// * Errors of opening the image, reading and writing.
pub fn hash_tree(
    image: &Path,
    into: Option<&Path>,
    options: &Verity,
    replace: bool,
    threads: usize,
    progress: &Progress,
) -> Result<HashTree> {
    let name = image.display().to_string();
    let failed = |what, e| Error::io(Place::file(&name), what, e);
    if let Some(path) = into.filter(|into| is_same(into, image)) {
        return Err(Error::usage(format_args!(
            "{}: a hash tree cannot take the place of its image",
            path.display()
        )));
    }
    // Open for writing before the image is read, so that no other writer changes it in between.
    let output = match into {
        Some(path) => Output::create(&Target::Path(path.to_owned()))
            .map_err(|e| Error::io(path.display(), "cannot create", e))?,
        None => Output::grow(image, 0).map_err(|e| failed("cannot append to the image", e))?,
    };
    let store = FileStore::open(image).map_err(|e| failed("cannot open", e))?;
    let is_file = store.file().metadata().is_ok_and(|m| m.is_file());
    let data: Arc<dyn ReadAt> = Arc::new(store);
    let opened = Image::open_shared(Arc::clone(&data), OpenOptions::default());
    let opened = opened.map_err(|e| e.within(Place::file(&name)))?;
    let image_len = verity::end(&opened).map_err(|e| e.within(Place::file(&name)))?;
    if image_len > data.size().next_multiple_of(HEADER_ALIGN) {
        let (place, size) = (format_args!("{name}: superblock"), data.size());
        let what = format_args!(
            "the image is {image_len} bytes long by its blocks, but only {size} are there; copy it again"
        );
        return Err(Error::corrupt(place, what));
    }
    let existing = verity::appended_tree(&opened).map_err(|e| e.within(Place::file(&name)))?;
    let place = hash_offset(image_len);
    let at = if into.is_some() { 0 } else { place };
    let free = replace || into.is_some();
    if existing.is_some() && !free {
        let what = format_args!("{name}: the image already has a hash tree");
        return Err(Error::usage(what).with_remedy(Remedy::ReplaceHashTree));
    }
    let trailing = data.size().saturating_sub(place);
    if is_file && trailing > 0 && existing.is_none() && into.is_none() {
        let what = format_args!(
            "{name}: the file continues for {trailing} bytes after the image, where the hash tree would be"
        );
        return Err(Error::usage(what).with_remedy(Remedy::SeparateHashTree));
    }
    let header = header(options, image_len, opened.superblock().uuid)?;
    // Reject impossible trees before anything is read.
    tree_end(&header, options.parity, at).map_err(Error::usage)?;
    progress.stage("hash");
    progress.set_total(place * (1 + u64::from(options.parity.is_some())));
    let step = |bytes| {
        progress.add_bytes(bytes);
        stopped(progress)
    };
    let image = StorePrefix {
        store: data,
        len: place,
    };
    let built = make(&image, &header, options.parity, &output, at, threads, &step);
    progress
        .check()
        .map_err(|e| e.rename_place(Place::image(), Place::file(&name)))?;
    let built = built.map_err(|e| failed("cannot make its hash tree", e))?;
    output
        .finish(built.end, true)
        .map_err(|e| failed("cannot finish its hash tree", e))?;
    Ok(tree(header, options.parity, at, &built))
}

/// First `len` bytes of a store.
struct StorePrefix {
    store: Arc<dyn ReadAt>,
    len: u64,
}

impl ReadAt for StorePrefix {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.store.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.len.min(self.store.size())
    }
}

/// Image in its final state, with the head that is not yet written.
struct ImageWithHead<'a> {
    file: FileStore,
    head: &'a Head,
    len: u64,
}

impl ReadAt for ImageWithHead<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (at, bytes) = self.head.bytes();
        let head_end = at + bytes.len() as u64;
        if offset >= head_end {
            return self.file.read_at(buf, offset);
        }
        // The file may be shorter than the head.
        let n = buf.len().min((head_end - offset) as usize);
        let existing = self.file.size().saturating_sub(offset).min(n as u64) as usize;
        buf[..n].fill(0);
        self.file.read_exact_at(&mut buf[..existing], offset)?;
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
