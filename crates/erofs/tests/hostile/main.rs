//! Damaged images: every operation on them ends in a result or an error, within bounded time and
//! memory, and writes only to the target of an extraction.
//!
//! Cases run in child processes, so that panics, aborts, hangs and unbounded allocation are
//! findings, identified by image and damage. To repeat a case:
//!
//! ```sh
//! TUFF_HOSTILE="every mutation:17 1 1" cargo test -p tuff-erofs --test hostile -- bounded --nocapture
//! ```
//!
//! The fields are the image, the first damage, the step, and the number of cases.

mod campaign;
mod every;
mod mutate;
mod probe;

use campaign::{Batch, run};
use mutate::{Base, Damage, bases};
use std::collections::BTreeSet;
use tuff_erofs::check::{Options, check};
use tuff_erofs::read::{Image, Location, OpenOptions};
use tuff_erofs::walk::Walk;
use tuff_format::features::incompat;
use tuff_format::inode::{FileType, Inode, Layout};
use tuff_store::MemStore;
use tuff_testkit::shapes;
use tuff_testkit::sheet::{Sheet, inode, place};

/// All features except the metabox.
const EXTENDED: u32 = incompat::KNOWN & !incompat::METABOX;

fn open(base: &Base) -> Image {
    let options = OpenOptions {
        devices: base.devices.clone(),
        ..OpenOptions::default()
    };
    Image::open(MemStore::new(&base.good[..]), options).unwrap()
}

/// The undamaged images are valid and cover every feature, so that damage below reaches all of
/// them.
#[test]
fn the_base_images_are_valid_and_cover_every_feature() {
    let mut seen = BTreeSet::new();
    for base in bases() {
        let image = open(&base);
        let report = check(&image, &Options::default(), |_| ());
        if base.name == "claims-shared" {
            continue; // directories that share blocks are invalid
        }
        assert!(report.is_clean(), "{}: {:#?}", base.name, report.findings);
        probe::use_all(
            &base.good,
            &base.devices,
            tuff_testkit::Scratch::new("sound").path(),
            None,
        );
        if !base.name.starts_with("every") {
            continue;
        }
        assert_eq!(image.superblock().incompat, incompat::KNOWN);
        let hidden = [image.packed(), image.metabox()].into_iter().flatten();
        let tree = Walk::root(&image).unwrap().map(|e| e.unwrap().inode);
        for inode in tree.chain(hidden.cloned()) {
            seen.insert(format!("{:?}", inode.file_type()));
            seen.insert(match inode.layout() {
                Layout::FlatPlain | Layout::FlatInline if !inode.raw().extended => "compact".into(),
                layout => format!("{layout:?}"),
            });
            if !inode.has_xattrs() {
                seen.insert("no attributes".into());
            }
            for extent in image.extents(&inode, 0..u64::MAX).unwrap() {
                seen.insert(match extent.unwrap().location {
                    Location::Cluster(c) => format!("{:?}, partial: {}", c.coding, c.partial),
                    Location::Raw { device, .. } => format!("Raw on device {device}"),
                    Location::Inline { coding, .. } => format!("Inline {coding:?}"),
                    Location::Fragment { .. } => "Fragment".into(),
                    Location::Hole => "Hole".into(),
                });
            }
        }
    }
    let all = [
        "Char",
        "ChunkBased",
        "Compressed(0), partial: false",
        "Compressed(0), partial: true",
        "Compressed(1), partial: false",
        "Compressed(2), partial: false",
        "Compressed(2), partial: true",
        "Compressed(3), partial: false",
        "CompressedCompact",
        "CompressedFull",
        "Dir",
        "Fifo",
        "File",
        "FlatInline",
        "FlatPlain",
        "Fragment",
        "Hole",
        "Inline Compressed(3)",
        "Inline Stored",
        "Interlaced, partial: false",
        "Raw on device 0",
        "Raw on device 1",
        "Raw on device 2",
        "Stored, partial: false",
        "Symlink",
        "compact",
        "no attributes",
    ];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

/// Regression: the cost of an operation must depend on the length of the image, not on size fields.
/// Flipped bits in a size had these effects:
///
/// * A dump listed a region per 16 blocks of a directory until memory was exhausted.
/// * An extraction that continues after damage tried each block of a directory.
/// * With a damaged index, it reopened the directory forever.
/// * A comparison read holes of any length.
#[test]
fn claimed_sizes_cost_no_time_or_memory() {
    let dir = |layout, size, u| Inode {
        mode: 0o040755,
        nlink: 2,
        ..inode(layout, size, u)
    };
    let ones = (1 << 48) - 1;
    for (name, inode, payload) in [
        ("long", dir(Layout::FlatPlain, 1 << 62, 1), &[][..]),
        ("below the limit", dir(Layout::FlatPlain, 1 << 30, 1), &[]),
        (
            "broken index",
            dir(Layout::CompressedFull, 5000, 1),
            &[0xFF; 100],
        ),
        ("holes", inode(Layout::FlatPlain, 1 << 62, ones), &[]),
    ] {
        let kind = FileType::from_mode(inode.mode).unwrap();
        let mut sheet = Sheet::new(EXTENDED);
        let entry = [("entry", place(1), kind)];
        sheet.put_dir(place(0), place(0), &[], &entry);
        sheet.put(place(1), inode, &[], 8, payload);
        let around = tuff_testkit::Scratch::new("claims");
        eprintln!("{name}");
        probe::use_all(&sheet.finish(), &[], around.path(), None);
    }
}

/// Regression: images that were findings. In image-head-behind.erofs, a COMPACT index entry claims
/// to start after its own lcluster. The extent started after the requested offset, and its length
/// underflowed.
#[test]
fn former_findings_end_in_a_result_or_an_error() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/invalid");
    let mut seen = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "erofs") {
            let bytes = std::fs::read(path).unwrap();
            probe::use_all(
                &bytes,
                &[],
                tuff_testkit::Scratch::new("found").path(),
                None,
            );
            seen += 1;
        }
    }
    assert!(seen > 1);
}

/// Cases for a normal test run: one in five bits of every structure of one image with every feature, one
/// in 61 truncations, and 60 mutations of each image. The ignored tests below have all of them.
#[test]
fn bounded_damage_ends_in_a_result_or_an_error() {
    let bases = bases();
    let every = &bases[0];
    let mut batches = vec![
        // Five and eight have no common divisor: all bits of a byte are hit.
        Batch::new(every, Damage::Bit(0), every.structure_len() * 8).one_of(5),
        Batch::new(every, Damage::Cut(0), every.good.len()).one_of(61),
    ];
    for base in &bases {
        batches.push(Batch::new(base, Damage::Mutation(1 << 32), 60));
    }
    run(
        &bases,
        &batches,
        "bounded_damage_ends_in_a_result_or_an_error",
    );
}

/// Every bit and every truncation of the image with every feature, and every bit of the structures
/// of its second form.
#[test]
#[ignore = "takes about half an hour in a release build"]
fn every_bit_and_every_truncation_ends_in_a_result_or_an_error() {
    let bases = bases();
    let (flat, boxed) = (&bases[0], &bases[1]);
    let batches = [
        Batch::new(flat, Damage::Cut(0), flat.good.len()),
        Batch::new(flat, Damage::AnyBit(0), flat.good.len() * 8),
        Batch::new(boxed, Damage::Bit(0), boxed.structure_len() * 8),
    ];
    run(
        &bases,
        &batches,
        "every_bit_and_every_truncation_ends_in_a_result_or_an_error",
    );
}

/// Mutations of all images: `TUFF_HOSTILE_MUTATIONS` in total (default: 200,000), from seed
/// `TUFF_HOSTILE_SEED` on (default: 0).
#[test]
#[ignore = "takes about half an hour in a release build"]
fn mutations_end_in_a_result_or_an_error() {
    let number = |name| std::env::var(name).ok().map(|v| v.parse().unwrap());
    let mutations = number("TUFF_HOSTILE_MUTATIONS").unwrap_or(200_000u64);
    let seed = number("TUFF_HOSTILE_SEED").unwrap_or(0u64);
    let bases = bases();
    // Half of the mutations are for the two images with every feature.
    let batches: Vec<_> = bases
        .iter()
        .enumerate()
        .map(|(i, base)| {
            let share = match i {
                0 | 1 => mutations.div_ceil(4),
                _ => mutations.div_ceil(2 * (bases.len() as u64 - 2)),
            };
            Batch::new(base, Damage::Mutation(seed << 32), share as usize)
        })
        .collect();
    run(&bases, &batches, "mutations_end_in_a_result_or_an_error");
}

/// Files of every layout that claim sizes up to 2^63, and trees that are deep or list their names
/// repeatedly.
#[test]
fn claims_end_in_a_result_or_an_error() {
    let sizes = [1 << 32, 1 << 46, 1 << 58, (1 << 63) - 4096];
    let all = shapes::claimed_files(&sizes);
    let mut all: Vec<_> = all.into_iter().map(|shape| (shape, None)).collect();
    all.push((("deep".into(), shapes::deep(2_000, 200)), None));
    // Extraction and builds are left out: they would create as many files as the limit allows.
    let shared = shapes::shared(400, 4_000);
    all.push((("shared".into(), shared.clone()), Some(0)));
    all.push((("shared".into(), shared), Some(2)));
    for ((name, bytes), turn) in all {
        eprintln!("{name}");
        let around = tuff_testkit::Scratch::new("claims");
        campaign::within_budget(&bytes, &[], around.path(), turn);
    }
}
