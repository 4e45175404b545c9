//! Images mounted by the kernel of a guest, which is older than that of the host. Each file of a mounted
//! image is compared with its source. An image with a newer feature must be refused, or read correctly.
//!
//! ```text
//!  host                                          guest
//!  trees ──► tuff build ──► images ── disks ──►  mount ──► tree ──► digests
//!    └──► digests ──► compared ◄───────────── messages ──────────────┘
//! ```

use crate::engines::filesystem::{attach, detach};
use crate::engines::numbers;
use crate::guest::inside::{self, POINT, Port};
use crate::guest::{Guest, Hardware, Machine, Plan};
use crate::measure::helper;
use crate::measure::workspace::{self, Work};
use crate::options::{Emit, Options};
use crate::record::{Header, Line, Record, labels};
use crate::report::table::{self, Columns, Table};
use crate::verify::tree::Tree;
use crate::{At, Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tuff_testkit::Rng;

/// Name of images with drawn settings.
const RANDOM: &str = "random";
/// Name of the image with a block that does not match its hash.
const DAMAGED: &str = "dm-verity, a damaged block";
/// Images of one guest. Each is a disk on the PCI bus.
const BATCH: usize = 24;
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Settings by name: features that the table promises for some kernel.
const SETTINGS: [(&str, &str); 21] = [
    ("defaults", ""),
    ("uncompressed", "-z none"),
    ("uncompressed, chunks", "-z none --chunk=4K"),
    ("for Linux 5.4", "--kernel=5.4"),
    ("for Linux 5.16", "--kernel=5.16"),
    ("lz4, 4K clusters", "-z lz4 -C 4K --fragments=off"),
    ("lz4hc, 64K clusters", "-C 64K --fragments=off --dedupe=off"),
    ("lz4, 1M clusters", "-z lz4 -C 1M"),
    ("tail packing", "--fragments=off --tail-packing=on"),
    ("all in fragments", "--fragments=all"),
    (
        "full index, extended inodes",
        "--set=index=full --set=inodes=extended",
    ),
    ("dm-verity", "--verity"),
    (DAMAGED, "--verity"),
    ("lzma", "-z lzma"),
    ("deflate", "-z deflate"),
    ("zstd", "-z zstd"),
    ("1K blocks", "-z none -b 1K"),
    ("xattr prefixes", "--xattr-prefix=user.name"),
    ("byte-packed clusters", "--unaligned"),
    ("short metadata", "--metadata=short"),
    ("compressed metadata", "--metadata=compressed"),
];

/// Mount images in an older kernel, in a virtual machine, and compare every file
///
/// Builds images of random trees: with settings for each feature, and with random settings. A guest mounts them with its own
/// EROFS. Names, content, metadata and attributes of all files must match the source; an image that needs a newer kernel may
/// also be refused. Writes a record and prints its table. Exit code 1 if an outcome is not the expected one.
/// benchmarks/guest-packages installs QEMU and the kernel.
#[derive(Debug, clap::Args)]
pub struct Conditions {
    /// Number of images with random settings, each of a tree of its own
    #[arg(long, value_name = "N", default_value_t = 48)]
    pub random: u32,
    /// Seed of trees and settings
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Kernel of the guest.
    #[command(flatten)]
    pub machine: Machine,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Job of a guest: images in the order of their disks, each with the table of its dm-verity device, if it has one. DISK stands
/// for the path of the disk.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    images: Vec<Option<String>>,
}

/// Result of the guest: number of the image, and its tree or the outcome without one.
#[derive(Debug, Serialize, Deserialize)]
struct Seen(usize, Result<Tree, (String, String)>);

/// Outcomes of images: all files match the source, the kernel refuses to mount the image, a read returns an error.
const IDENTICAL: &str = "identical";
const REFUSED: &str = "refused";
const READ_ERROR: &str = "read error";
/// Name of an outcome that is not the promised one.
const WRONG: &str = "wrong";

const OUTCOMES: Table = Table {
    rows: &["image", "lowest kernel"],
    columns: Columns::Count("outcome", &[IDENTICAL, REFUSED, READ_ERROR, WRONG]),
    ..table::PLAIN
};

/// Renders the number of images with each outcome as Markdown.
pub(crate) fn render(record: &Record) -> String {
    table::heading(record) + &OUTCOMES.render(record) + &table::notes(record)
}

/// Image that a guest will mount.
struct Prepared {
    name: String,
    /// Arguments of `tuff build`, without paths.
    settings: String,
    lowest_kernel: String,
    bytes: u64,
    path: PathBuf,
    mapping: Option<String>,
    tree: Tree,
    /// Outcomes that the table of features promises for this kernel.
    expected: &'static [&'static str],
    /// Name and description of the outcome.
    outcome: (String, String),
}

/// Builds the images, mounts them in guests and compares them. Returns false if an outcome is not the promised one.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let guest = conditions.machine.guest()?;
    let tuff = conditions.options.need("tuff")?;
    let work = Work::create(conditions.options.work())?;
    let version = helper::output(&tuff, ["--version"])?;
    let settings = [
        ("guest", guest.release().to_owned()),
        ("version", version.trim().to_owned()),
        ("seed", conditions.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("guest", settings)?))?;
    let plan = Plan {
        modules: &["crc32c_generic", "sha256_generic", "erofs", "dm_verity"],
        programs: &["/sbin/dmsetup".into()],
    };
    let initramfs = guest.initramfs(&plan, work.folder())?;
    let fixed = SETTINGS.iter().map(|(name, settings)| {
        (
            *name,
            settings.split_whitespace().map(str::to_owned).collect(),
        )
    });
    let mut seeds = Rng::new(conditions.seed);
    let mut variants: Vec<(&str, Vec<String>)> = fixed.collect();
    for _ in 0..conditions.random {
        let settings = crate::campaigns::stress::images::random_settings(&mut seeds);
        variants.push((RANDOM, settings));
    }
    let (mut number, mut is_right) = (0, true);
    for batch in variants.chunks(BATCH) {
        let mut images = Vec::new();
        for (name, settings) in batch {
            number += 1;
            let seed = Rng::new(conditions.seed ^ u64::from(number) << 32);
            images.extend(prepare(&guest, &tuff, &work, number, seed, name, settings)?);
        }
        let job = Job {
            images: images.iter().map(|p| p.mapping.clone()).collect(),
        };
        let hardware = Hardware {
            disks: images.iter().map(|p| p.path.clone()).collect(),
            direct: false,
            region: None,
            memory_mib: 768,
            time_limit: TIME_LIMIT,
        };
        let running = guest.boot(&initramfs, &hardware, work.folder(), &job)?;
        for Seen(at, seen) in running.results()? {
            let prepared = images
                .get_mut(at)
                .ok_or_else(|| Error::Command("the guest reports an unknown image".to_owned()))?;
            prepared.outcome = match seen {
                Ok(tree) => {
                    let differ = prepared.tree.differences(&tree);
                    let name = if differ.is_empty() { IDENTICAL } else { WRONG };
                    (name.to_owned(), format!("{differ:?}"))
                }
                Err(outcome) => outcome,
            };
        }
        for prepared in images {
            is_right &= report(&prepared, emit)?;
            workspace::remove(&prepared.path)?;
        }
    }
    Ok(is_right)
}

/// Records an image. Returns false if its outcome is not the promised one.
fn report(prepared: &Prepared, emit: Emit<'_>) -> Result<bool> {
    let (expected, outcome) = (prepared.expected, &prepared.outcome);
    let judged = expected.iter().find(|name| **name == outcome.0);
    let judged = *judged.unwrap_or(&WRONG);
    let cell = labels([
        ("image", &prepared.name),
        ("lowest kernel", &prepared.lowest_kernel),
        ("settings", &prepared.settings),
        ("outcome", judged),
    ]);
    if judged == WRONG {
        let text = format!("expected {expected:?}, found {outcome:?}");
        eprintln!(
            "tuff-lab: {} ({}): {text}",
            prepared.name, prepared.settings
        );
        emit(&Line::note(cell.clone(), text))?;
    }
    let (entries, bytes) = (prepared.tree.size.entries as f64, prepared.bytes as f64);
    emit(&Line::sample(
        cell,
        1,
        [("entries", entries), ("bytes", bytes)],
    ))?;
    Ok(judged != WRONG)
}

/// Creates a tree and an image of it. Returns `None` if `tuff build` refuses drawn settings.
fn prepare(
    guest: &Guest,
    tuff: &Path,
    work: &Work,
    number: u32,
    seed: Rng,
    name: &str,
    settings: &[String],
) -> Result<Option<Prepared>> {
    let source = work.path("tree");
    workspace::remove(&source)?;
    std::fs::create_dir(&source).at("create", &source)?;
    crate::campaigns::stress::images::random_tree(seed, &source)?;
    let path = work.path(&format!("image-{number}"));
    let mut arguments = vec!["build".to_owned(), "--quiet".to_owned()];
    arguments.extend_from_slice(settings);
    arguments.extend([&source, &path].map(|p| p.display().to_string()));
    match helper::output(tuff, &arguments) {
        Ok(_) => {}
        Err(_) if name == RANDOM => return Ok(None),
        Err(e) => return Err(e),
    }
    let info = json(tuff, &["info", "--json"], &path)?;
    let text = |key: &str| info[key].as_str().unwrap_or_default().to_owned();
    let lowest_kernel = text("lowest_kernel");
    let algorithms = info["algorithms"].as_object();
    let lacks_lzma = algorithms.is_some_and(|a| a.contains_key("lzma"))
        && !guest.is_configured("EROFS_FS_ZIP_LZMA");
    let bytes = workspace::length(&path)?;
    let mut mapping = None;
    if name.starts_with("dm-verity") {
        let tree = json(tuff, &["verity", "show", "--json"], &path)?;
        mapping = Some(table(&tree));
    }
    // Distributions and stable kernels take over features from newer kernels, so an image that need not mount may also be read
    // correctly.
    let mut expected: &[&str] =
        match lacks_lzma || numbers(&lowest_kernel) > numbers(guest.release()) {
            true => &[IDENTICAL, REFUSED],
            false => &[IDENTICAL],
        };
    if name == DAMAGED {
        expected = &[READ_ERROR];
        let blocks = info["blocks"].as_u64().unwrap_or(1);
        damage(&path, blocks / 2 * 4096)?;
    }
    pad(&path)?;
    let tree = Tree::read(&source)?;
    Ok(Some(Prepared {
        name: name.to_owned(),
        settings: settings.join(" "),
        lowest_kernel,
        bytes,
        path,
        mapping,
        tree,
        expected,
        outcome: (WRONG.to_owned(), "the guest did not report it".to_owned()),
    }))
}

/// Returns the table of a dm-verity device, from the JSON of `tuff verity show`.
fn table(tree: &serde_json::Value) -> String {
    let number = |key: &str| tree[key].as_u64().unwrap_or_default();
    let text = |key: &str, empty: &'static str| match tree[key].as_str() {
        None | Some("") => empty.to_owned(),
        Some(text) => text.to_owned(),
    };
    let (blocks, size, hash_size) = (
        number("data_blocks"),
        number("data_block_bytes"),
        number("hash_block_bytes"),
    );
    // The hash tree starts after the block with its header.
    let start = number("hash_offset") / hash_size.max(1) + 1;
    format!(
        "0 {} verity 1 DISK DISK {size} {hash_size} {blocks} {start} {} {} {}",
        blocks * size / 512,
        text("algorithm", "sha256"),
        text("root_hash", "-"),
        text("salt", "-"),
    )
}

/// Inverts a byte of an image.
fn damage(path: &Path, offset: u64) -> Result<()> {
    let file = std::fs::File::options().read(true).write(true).open(path);
    let done = file.and_then(|file| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        file.write_all_at(&[!byte[0]], offset)
    });
    done.at("damage", path)
}

/// Extends an image to whole sectors.
fn pad(path: &Path) -> Result<()> {
    let length = workspace::length(path)?.next_multiple_of(4096);
    let file = std::fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_len(length))
        .at("extend", path)
}

fn json(tuff: &Path, words: &[&str], image: &Path) -> Result<serde_json::Value> {
    let words = words.iter().map(OsStr::new);
    helper::json(tuff, words.chain([image.as_os_str()]))
}

/// Mounts each image in the guest and sends its tree.
pub fn inside(job: &Job, port: &mut Port) -> Result<()> {
    for (at, mapping) in job.images.iter().enumerate() {
        port.send(&Seen(at, read_tree(at, mapping)?))?;
    }
    Ok(())
}

/// Returns the tree of an image. The inner error is the outcome without one.
fn read_tree(at: usize, mapping: &Option<String>) -> Result<Result<Tree, (String, String)>> {
    let disk = inside::disk(at);
    let device = match mapping {
        None => disk,
        Some(table) => {
            inside::map("verity", &table.replace("DISK", &disk), true).map_err(Error::Command)?
        }
    };
    let seen = match attach("erofs", &device, POINT, "", true) {
        Err(reason) => Err((REFUSED.to_owned(), reason)),
        Ok(()) => {
            let tree = Tree::read(Path::new(POINT));
            detach(POINT).map_err(Error::Command)?;
            tree.map_err(|e| (READ_ERROR.to_owned(), e.to_string()))
        }
    };
    if mapping.is_some() {
        inside::unmap("verity").map_err(Error::Command)?;
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tree_of_a_table_starts_after_its_header() {
        let tree = serde_json::json!({
            "algorithm": "sha256", "data_block_bytes": 4096, "data_blocks": 89,
            "hash_block_bytes": 4096, "hash_offset": 364_544, "root_hash": "ab", "salt": "",
        });
        assert_eq!(
            table(&tree),
            "0 712 verity 1 DISK DISK 4096 4096 89 90 sha256 ab -"
        );
    }
}
