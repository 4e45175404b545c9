//! Measurements of "EROFS: A Compression-friendly Readonly File System for Resource-scarce Devices", USENIX ATC 2019,
//! sections 5.2 to 5.7.
//!
//! The definitions in `benchmarks/definitions/paper` run on the serve and start campaigns. All samples form one record.
//!
//! | part | content | section |
//! |---|---|---|
//! | reads | throughput, bytes read from the device, memory and size, for two corpora | 5.2 to 5.5 |
//! | strategies | each decode strategy alone | 5.6 |
//! | scheduling | decoding in the thread that reads, or in a worker | 5.6 |
//! | start | start times of programs | 5.7 |
//!
//! Cells of reads have the label `filesystem`: the name of the image, and that of the server unless it is the kernel. Their
//! samples repeat the space saved by the image.

pub(crate) mod report;

use crate::campaigns::corpus::Corpora;
use crate::campaigns::{serve, start};
use crate::definition::Definition as _;
use crate::measure::workspace;
use crate::options::{Emit, Options, need_root};
use crate::record::{Header, Labels, Line, labels};
use crate::{At, Result};
use std::path::{Path, PathBuf};

/// Parts that read files, with their definitions and corpora.
const READS: [(&str, &str, &[&str]); 3] = [
    (
        "reads",
        include_str!("../../../../../benchmarks/definitions/paper/erofs-reads.toml"),
        &["text", "mixed"],
    ),
    (
        "strategies",
        include_str!("../../../../../benchmarks/definitions/paper/erofs-strategies.toml"),
        &["text"],
    ),
    (
        "scheduling",
        include_str!("../../../../../benchmarks/definitions/paper/erofs-scheduling.toml"),
        &["text"],
    ),
];

/// Definition of the part that starts programs.
const START: &str = include_str!("../../../../../benchmarks/definitions/paper/erofs-start.toml");

/// Name of that part.
const START_PART: &str = "start";

/// Space that an image saves, in percent of its content: value of the image, and of the reads from it.
const SAVING: (&str, &str) = ("saving_percent", "image_saving_percent");

/// Compare EROFS with SquashFS and writable filesystems (Gao et al., USENIX ATC 2019)
///
/// Throughput and bytes read from a device for sequential, random and strided reads; memory; space; decode strategies;
/// scheduling; start of programs, idle, beside threads that read and write, and with little memory. Writes a record
/// and prints its tables. Requires root, and packages of Debian for the corpora.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Folder of the corpora paper-text and paper-mixed; missing ones are created
    #[arg(long, default_value = "trees", value_name = "DIR")]
    pub trees: PathBuf,
    /// Measure only this part; may be repeated
    #[arg(long, value_name = "NAME", value_parser = ["reads", "strategies", "scheduling", "start"])]
    pub part: Vec<String>,
    /// Number of rounds of reads (default: those of the definitions)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Number of starts of each program (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub starts: Option<u32>,
    /// Read only images whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub image: Option<String>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Runs all parts. Returns true if `tuff` took part everywhere with correct answers.
///
/// # Errors
/// `Usage` if the user is not root.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    need_root("mounts and loop devices")?;
    let is_chosen = |part: &str| {
        let parts = &conditions.part;
        parts.is_empty() || parts.iter().any(|p| p == part)
    };
    let settings = [(
        "images",
        format!(
            "on {}, through a loop device with direct I/O, not cached",
            workspace::filesystem(conditions.options.work())?
        ),
    )];
    emit(&Line::Header(Header::here("paper erofs", settings)?))?;
    let mut fine = true;
    for (part, text, corpora) in READS.into_iter().filter(|(part, ..)| is_chosen(part)) {
        let definition = serve::definition::Definition::parse(part, text)?;
        for corpus in corpora {
            let tree = provide(corpus, &conditions.trees, emit)?;
            let conditions = serve::run::Conditions {
                tree,
                rounds: conditions.rounds,
                only: None,
                image: conditions.image.clone(),
                options: conditions.options.clone(),
            };
            let place = labels([("part", part), ("corpus", corpus)]);
            let mut saving = None;
            fine &= serve::run::run(&definition, &conditions, &mut |line| {
                let mut line = placed(line, &place);
                if let Line::Sample(sample) = &mut line {
                    match sample.values.get(SAVING.0) {
                        Some(percent) => saving = Some(*percent),
                        None => sample
                            .values
                            .extend(saving.map(|percent| (SAVING.1.to_owned(), percent))),
                    }
                }
                emit(&line)
            })?;
        }
    }
    if is_chosen(START_PART) {
        let definition = start::definition::Definition::parse(START_PART, START)?;
        let conditions = start::run::Conditions {
            starts: conditions.starts,
            options: conditions.options.clone(),
            ..start::run::Conditions::default()
        };
        let place = labels([("part", START_PART)]);
        fine &= start::run::run(&definition, &conditions, &mut |line| {
            emit(&placed(line, &place))
        })?;
    }
    Ok(fine)
}

/// Returns the tree of a corpus, and records its digest and its packages.
fn provide(corpus: &str, trees: &Path, emit: Emit<'_>) -> Result<PathBuf> {
    std::fs::create_dir_all(trees).at("create", trees)?;
    let tree = Corpora::provide(&format!("paper-{corpus}"), trees)?;
    let source = match corpus {
        "text" => "documents",
        _ => "assortment",
    };
    let file = tree.join("file");
    let text = format!(
        "one file of {} bytes, BLAKE3 {}",
        workspace::length(&file)?,
        workspace::digest(&file)?
    );
    let note = |text: String| Line::note(labels([("corpus", corpus)]), text);
    emit(&note(text))?;
    // Written when the corpus is made.
    let packages = trees.join(format!("{source}.packages"));
    if let Ok(list) = std::fs::read_to_string(packages) {
        let package = |line: &str| {
            let (digest, name) = line.split_once(' ')?;
            Some(format!("{name} (BLAKE3 {})", digest.get(..16)?))
        };
        let packages: Vec<String> = list.lines().filter_map(package).collect();
        emit(&note(packages.join(", ")))?;
    }
    Ok(tree)
}

/// Returns the line with the labels of its part and corpus, and with the label `filesystem`.
fn placed(line: &Line, place: &Labels) -> Line {
    let within = |cell: &Labels| {
        let mut cell = named(cell);
        cell.extend(place.clone());
        cell
    };
    let mut line = line.clone();
    match &mut line {
        Line::Header(_) => {}
        Line::Sample(sample) | Line::Rejected(sample) => sample.cell = within(&sample.cell),
        // Versions and command lines are the same in all parts.
        Line::Note(note) => note.cell = named(&note.cell),
        Line::Failure(note) => note.cell = within(&note.cell),
        Line::Bar(bar) => {
            bar.cell = within(&bar.cell);
            bar.against = bar.against.as_ref().map(named);
        }
    }
    line
}

/// Combines the labels `image` and `server` of a read.
fn named(cell: &Labels) -> Labels {
    let mut cell = cell.clone();
    let (image, server) = (cell.remove("image"), cell.get("server").cloned());
    let name = match (image, server.as_deref()) {
        (Some(image), Some("kernel") | None) => image,
        (Some(image), Some(server)) => format!("{image}, {server}"),
        (None, _) => return cell,
    };
    cell.remove("server");
    cell.insert("filesystem".to_owned(), name);
    cell
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Bar, Record};

    #[test]
    fn the_definitions_make_sense() {
        for (part, text, _) in READS {
            let definition = serve::definition::Definition::parse(part, text).unwrap();
            assert_eq!(definition.cache, serve::definition::Cache::Device, "{part}");
        }
        start::definition::Definition::parse(START_PART, START).unwrap();
    }

    #[test]
    fn a_read_is_named_by_image_and_server_and_compared_with_ext4() {
        let place = labels([("part", "reads"), ("corpus", "text")]);
        let cell = |image: &str, server: &str| labels([("image", image), ("server", server)]);
        let sample = |image: &str, server: &str, bytes: f64| {
            let mut cell = cell(image, server);
            cell.insert("read".to_owned(), "sequential".to_owned());
            Line::sample(cell, 1, [("memory_bytes", bytes)])
        };
        let mut bar = Bar {
            cell: cell("EROFS", "tuff"),
            value: "memory_bytes".to_owned(),
            against: Some(cell("ext4", "kernel")),
            at_most: Some(1.05),
            at_least: None,
        };
        bar.cell.insert("read".to_owned(), "sequential".to_owned());
        let header = Header::here("paper erofs", []).unwrap();
        let lines = [
            Line::Header(header),
            Line::Bar(bar),
            sample("ext4", "kernel", 100.0),
            sample("EROFS", "tuff", 104.0),
        ];
        let record = Record::collect(lines.iter().map(|line| placed(line, &place))).unwrap();
        let text = report::render(&record);
        assert!(text.contains("| EROFS, tuff |"), "{text}");
        assert!(
            text.contains("of ext4 | ≤ 1.05 | 1.040 | reached |"),
            "{text}"
        );
    }
}
