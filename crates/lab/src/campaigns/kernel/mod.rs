//! Images mounted by the kernel of a guest, which is older than that of the host. Each file of a mounted
//! image is compared with its source. An image with a newer feature must be refused, or read correctly.
//!
//! ```text
//!  host                                          guest
//!  trees ──► tuff build ──► images ── disks ──►  mount ──► tree ──► digests
//!    └──► digests ──► compared ◄───────────── messages ──────────────┘
//! ```

use crate::guest::inside::{self, POINT, Port};
use crate::guest::{Guest, Hardware, Plan};
use crate::measure::workspace::{self, Work};
use crate::record::{Header, Line, Note, Record, Sample, labels};
use crate::report::table::{self, Columns, Table};
use crate::verify::tree::{Difference, Tree};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tuff_testkit::Rng;

/// Name of images with drawn settings.
const RANDOM: &str = "random";
/// Name of the image with a block that does not match its hash.
const DAMAGED: &str = "dm-verity, a damaged block";
/// Images of one guest. Each is a disk on the PCI bus.
const BATCH: usize = 24;
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings by name: features that the table promises for some kernel.
const SETTINGS: [(&str, &[&str]); 21] = [
    ("defaults", &[]),
    ("uncompressed", &["-z", "none"]),
    ("uncompressed, chunks", &["-z", "none", "--chunk=4K"]),
    ("for Linux 5.4", &["--kernel=5.4"]),
    ("for Linux 5.16", &["--kernel=5.16"]),
    (
        "lz4, 4K clusters",
        &["-z", "lz4", "-C", "4K", "--fragments=off"],
    ),
    (
        "lz4hc, 64K clusters",
        &["-C", "64K", "--fragments=off", "--dedupe=off"],
    ),
    ("lz4, 1M clusters", &["-z", "lz4", "-C", "1M"]),
    ("tail packing", &["--fragments=off", "--tail-packing=on"]),
    ("all in fragments", &["--fragments=all"]),
    (
        "full index, extended inodes",
        &["--index=full", "--inodes=extended"],
    ),
    ("dm-verity", &["--verity"]),
    (DAMAGED, &["--verity"]),
    ("lzma", &["-z", "lzma"]),
    ("deflate", &["-z", "deflate"]),
    ("zstd", &["-z", "zstd"]),
    ("1K blocks", &["-z", "none", "-b", "1K"]),
    ("xattr prefixes", &["--xattr-prefix=user.name"]),
    ("byte-packed clusters", &["--unaligned"]),
    ("short metadata", &["--metadata=short"]),
    ("compressed metadata", &["--metadata=compressed"]),
];

/// Selection and settings of a test.
#[derive(Debug)]
pub struct Conditions {
    /// Path of the program `tuff`.
    pub tuff: PathBuf,
    /// Kernel of the guest.
    pub guest: Guest,
    /// Number of images with drawn settings, each of a tree of its own.
    pub random: u32,
    /// Seed of trees and settings.
    pub seed: u64,
    /// Folder for trees and images.
    pub work: PathBuf,
}

/// Job of a guest.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    /// Images in the order of their disks.
    images: Vec<Mapping>,
}

/// Device of an image, apart from its disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Mapping {
    /// The disk itself.
    Plain,
    /// A dm-verity device: the table, with DISK for the path of the disk.
    Verity(String),
}

/// Result of the guest: number of the image, and its tree or the outcome without one.
#[derive(Debug, Serialize, Deserialize)]
struct Seen(usize, Result<Tree, Outcome>);

/// Outcome that a mounted image has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    /// All facets of all files match the source.
    Same,
    /// It mounts, and these facets differ.
    Different(Vec<Difference>),
    /// The kernel refuses to mount it, with this error.
    Refused(String),
    /// It mounts, and a read returns this error.
    ReadError(String),
}

/// Outcome that the table of features promises for this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The kernel supports all features.
    Same,
    /// The kernel is older than a feature, or built without it.
    Refused,
    /// A block does not match its hash.
    ReadError,
}

impl Expected {
    /// Returns the name of an outcome in tables. Distributions and stable kernels take over features from newer
    /// kernels, so an image that need not mount may also be read correctly.
    fn judge(self, outcome: &Outcome) -> &'static str {
        match (self, outcome) {
            (Expected::Same | Expected::Refused, Outcome::Same) => "identical",
            (Expected::Refused, Outcome::Refused(_)) => "refused",
            (Expected::ReadError, Outcome::ReadError(_)) => "read error",
            _ => WRONG,
        }
    }
}

/// Name of an outcome that is not the promised one.
const WRONG: &str = "wrong";

const OUTCOMES: Table = Table {
    title: "",
    only: &[],
    rows: &["image", "lowest kernel"],
    columns: Columns::Count("outcome", &["identical", "refused", "read error", WRONG]),
    base: ("", &[]),
    spread: false,
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
    mapping: Mapping,
    tree: Tree,
    expected: Expected,
    outcome: Outcome,
}

/// Builds the images, mounts them in guests and compares them. Returns false if an outcome is not the promised one.
pub fn run(conditions: &Conditions, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<bool> {
    let work = Work::create(&conditions.work)?;
    let version = output(&conditions.tuff, &["--version".to_owned()])?;
    let settings = [
        ("guest", conditions.guest.release().to_owned()),
        ("version", version.trim().to_owned()),
        ("seed", conditions.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("guest", settings)?))?;
    let plan = Plan {
        modules: &["crc32c_generic", "sha256_generic", "erofs", "dm_verity"],
        programs: &["/sbin/dmsetup".into()],
    };
    let initramfs = conditions.guest.initramfs(&plan, work.folder())?;
    let fixed = SETTINGS
        .iter()
        .map(|(name, settings)| (*name, settings.iter().map(|s| (*s).to_owned()).collect()));
    let mut seeds = Rng::new(conditions.seed);
    let mut wanted: Vec<(&str, Vec<String>)> = fixed.collect();
    for _ in 0..conditions.random {
        let settings = crate::campaigns::stress::images::random_settings(&mut seeds);
        wanted.push((RANDOM, settings));
    }
    let (mut number, mut is_right) = (0, true);
    for batch in wanted.chunks(BATCH) {
        let mut images = Vec::new();
        for (name, settings) in batch {
            number += 1;
            let seed = Rng::new(conditions.seed ^ u64::from(number) << 32);
            images.extend(prepare(conditions, &work, number, seed, name, settings)?);
        }
        let job = Job {
            images: images.iter().map(|p| p.mapping.clone()).collect(),
        };
        let hardware = Hardware {
            disks: images.iter().map(|p| p.path.clone()).collect(),
            direct: false,
            region: None,
            memory_mib: 768,
            patience: PATIENCE,
        };
        let guest = conditions
            .guest
            .boot(&initramfs, &hardware, work.folder(), &job)?;
        for Seen(at, seen) in guest.results()? {
            let prepared = images
                .get_mut(at)
                .ok_or_else(|| Error::Command("the guest reports an unknown image".to_owned()))?;
            prepared.outcome = match seen {
                Ok(tree) => match prepared.tree.differences(&tree) {
                    none if none.is_empty() => Outcome::Same,
                    some => Outcome::Different(some),
                },
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
fn report(prepared: &Prepared, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<bool> {
    let (expected, outcome) = (prepared.expected, &prepared.outcome);
    let judged = expected.judge(outcome);
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
        let cell = cell.clone();
        emit(&Line::Note(Note { cell, text }))?;
    }
    let value = |name: &str, value: u64| (name.to_owned(), value as f64);
    let entries = prepared.tree.size.entries;
    emit(&Line::Sample(Sample {
        cell,
        round: 1,
        values: [value("entries", entries), value("bytes", prepared.bytes)].into(),
    }))?;
    Ok(judged != WRONG)
}

/// Creates a tree and an image of it. Returns `None` if `tuff build` refuses drawn settings.
fn prepare(
    conditions: &Conditions,
    work: &Work,
    number: u32,
    seed: Rng,
    name: &str,
    settings: &[String],
) -> Result<Option<Prepared>> {
    let source = work.path("tree");
    workspace::remove(&source)?;
    std::fs::create_dir(&source).map_err(|e| Error::io("create", &source, e))?;
    crate::campaigns::stress::images::random_tree(seed, &source)?;
    let path = work.path(&format!("image-{number}"));
    let mut arguments = vec!["build".to_owned(), "--quiet".to_owned()];
    arguments.extend_from_slice(settings);
    arguments.extend([&source, &path].map(|p| p.display().to_string()));
    match output(&conditions.tuff, &arguments) {
        Ok(_) => {}
        Err(_) if name == RANDOM => return Ok(None),
        Err(e) => return Err(e),
    }
    let info = json(&conditions.tuff, &["info", "--json"], &path)?;
    let text = |key: &str| info[key].as_str().unwrap_or_default().to_owned();
    let lowest_kernel = text("lowest_kernel");
    let algorithms = info["algorithms"].as_object();
    let lacks_lzma = algorithms.is_some_and(|a| a.contains_key("lzma"))
        && !conditions.guest.is_configured("EROFS_FS_ZIP_LZMA");
    let bytes = workspace::length(&path)?;
    let mut mapping = Mapping::Plain;
    if name.starts_with("dm-verity") {
        let tree = json(&conditions.tuff, &["verity", "show", "--json"], &path)?;
        mapping = Mapping::Verity(table(&tree));
    }
    let mut expected =
        match lacks_lzma || number_of(&lowest_kernel) > number_of(conditions.guest.release()) {
            true => Expected::Refused,
            false => Expected::Same,
        };
    if name == DAMAGED {
        expected = Expected::ReadError;
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
        outcome: Outcome::Refused("the guest did not report it".to_owned()),
    }))
}

/// Returns the two leading numbers of a kernel release.
fn number_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-']).flat_map(str::parse);
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
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
    done.map_err(|e| Error::io("damage", path, e))
}

/// Extends an image to whole sectors.
fn pad(path: &Path) -> Result<()> {
    let length = workspace::length(path)?.next_multiple_of(4096);
    let file = std::fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_len(length))
        .map_err(|e| Error::io("extend", path, e))
}

fn json(tuff: &Path, words: &[&str], image: &Path) -> Result<serde_json::Value> {
    let mut arguments: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    arguments.push(image.display().to_string());
    let text = output(tuff, &arguments)?;
    serde_json::from_str(&text).map_err(|e| Error::Command(format!("tuff {}: {e}", words[0])))
}

/// Runs `tuff` and returns its standard output.
fn output(tuff: &Path, arguments: &[String]) -> Result<String> {
    let output = Command::new(tuff)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|e| Error::io("run", tuff, e))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Error::Command(format!(
            "tuff {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

/// Mounts each image in the guest and sends its tree.
pub fn inside(job: &Job, port: &mut Port) -> Result<()> {
    for (at, mapping) in job.images.iter().enumerate() {
        port.send(&Seen(at, look(at, mapping)?))?;
    }
    Ok(())
}

/// Returns the tree of an image. The inner error is the outcome without one.
fn look(at: usize, mapping: &Mapping) -> Result<Result<Tree, Outcome>> {
    let disk = inside::disk(at);
    let device = match mapping {
        Mapping::Plain => disk,
        Mapping::Verity(table) => {
            inside::map("verity", &table.replace("DISK", &disk), true).map_err(Error::Command)?
        }
    };
    let seen = match inside::attach("erofs", &device, POINT, "", true) {
        Err(reason) => Err(Outcome::Refused(reason)),
        Ok(()) => {
            let tree = Tree::read(Path::new(POINT));
            inside::detach(POINT).map_err(Error::Command)?;
            tree.map_err(|e| match e {
                Error::Io(_, error) => Outcome::ReadError(error.to_string()),
                other => Outcome::ReadError(other.to_string()),
            })
        }
    };
    if let Mapping::Verity(_) = mapping {
        inside::unmap("verity").map_err(Error::Command)?;
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_leading_numbers() {
        assert!(number_of("6.10") > number_of("6.1.0-56-amd64"));
        assert!(number_of("5.16") < number_of("6.1"));
        assert_eq!(number_of("6.1"), number_of("6.1.0-56-amd64"));
    }

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
