//! Images on several devices: separate stores, or all devices appended to the primary store.

use std::sync::Arc;
use tuff_erofs::Error;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_format::superblock::seal;
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::Scratch;
use tuff_testkit::content::mixed;
use tuff_testkit::content::text;
use tuff_testkit::tree::Ignore;
use tuff_testkit::tree::assert_same;
use tuff_testkit::tree::host_tree;
use tuff_testkit::tree::image_tree;
use tuff_testkit::variants::mkfs;

#[test]
fn separate_and_appended_devices_read_the_same() {
    let scratch = Scratch::new("devices");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), text(100_000, 1)).unwrap();
    std::fs::write(source.join("mixed"), mixed(300_000, 2)).unwrap();
    std::fs::write(source.join("small"), b"small").unwrap();
    let (file, blob) = (scratch.path().join("image"), scratch.path().join("blob"));
    let option = format!("--blobdev={}", blob.display());
    if mkfs(&file, &source, &["--chunksize=4096", &option]).is_none() {
        return;
    }
    let (primary, blob) = (std::fs::read(&file).unwrap(), std::fs::read(&blob).unwrap());
    let expected = host_tree(&source);
    let ignore = Ignore {
        holes: true,
        dir_size: true,
        dir_nlink: true,
        ..Ignore::default()
    };

    let device: Arc<dyn ReadAt> = Arc::new(MemStore::new(blob.clone()));
    let options = OpenOptions {
        devices: vec![device.clone()],
        ..OpenOptions::default()
    };
    let explicit = Image::open(MemStore::new(primary.clone()), options).unwrap();
    assert_same("explicit", &expected, &image_tree(&explicit), ignore);

    // A single store with the device after the primary. mkfs.erofs 1.5 does not set the device's
    // address.
    let start = primary.len().next_multiple_of(4096);
    let mut flat = primary.clone();
    let slot = usize::from(explicit.superblock().devt_slotoff) * 128;
    flat[slot + 0x44..slot + 0x48].copy_from_slice(&(start as u32 / 4096).to_le_bytes());
    seal(&mut flat[1024..4096]);
    flat.resize(start, 0);
    flat.extend(&blob);
    let flat = Image::open(MemStore::new(flat), OpenOptions::default()).unwrap();
    assert_same("flat", &expected, &image_tree(&flat), ignore);

    let two = OpenOptions {
        devices: vec![device.clone(), device],
        ..OpenOptions::default()
    };
    assert!(matches!(
        Image::open(MemStore::new(primary.clone()), two),
        Err(Error::Usage(_))
    ));

    // If the device is missing, reading its data fails, and metadata is still readable.
    let alone = Image::open(MemStore::new(primary), OpenOptions::default()).unwrap();
    let mut buf = [0; 10];
    assert!(
        alone
            .read_at(&alone.resolve(b"text").unwrap(), &mut buf, 0)
            .is_err()
    );
    assert_eq!(alone.resolve(b"text").unwrap().size(), 100_000);
}
