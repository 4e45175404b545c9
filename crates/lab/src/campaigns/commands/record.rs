//! Records of command measurements: JSON lines with all raw samples.
//!
//! A record file is a sequence of objects, one on each line, distinguished by `kind`:
//!
//! ```text
//!  header                   machine, tools, conditions                   once, first
//!  tree                     name, size, digest                           before its tasks
//!  task                     tree, name, action, bars
//!  made                     an input image for extract or check: command, size
//!  subject                  a tool in a task: settings, command line
//!  verdict                  result of the verification                   before its samples
//!  sample                   one measurement; `kept` tells whether it counts
//!  failed                   a tool dropped out: reason
//! ```
//!
//! Invariants: a file is created once and never appended to or replaced. Every attempt has a line. Lines do
//! not contain local paths, times of day or names of persons.

use crate::campaigns::commands::definition::Bar;
use crate::engines::settings::{Action, Settings};
use crate::engines::{Receipt, Tool};
use crate::measure::Usage;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use crate::verify::Verdict;
use crate::verify::tree::TreeSize;
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// Conditions of all following lines.
    Header(Header),
    /// Source tree and its size.
    Tree(TreeLine),
    /// Start of a task on a tree.
    Task(TaskLine),
    /// Input image built for extract or check.
    Made(MadeLine),
    /// Tool that takes part in the task.
    Subject(SubjectLine),
    /// Verification result of a tool's output.
    Verdict(VerdictLine),
    /// Measurement of one attempt.
    Sample(SampleLine),
    /// Reason for which a tool dropped out.
    Failed(FailedLine),
}

/// Machine, tools and conditions of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format, [`crate::record::FORMAT`].
    pub format: u32,
    /// Name of the definition.
    pub definition: String,
    /// Description of the machine.
    pub machine: Machine,
    /// Available tools and their versions.
    pub tools: Vec<Receipt>,
    /// State of the page cache, as a description.
    pub cache: String,
    /// Type of the filesystem that holds images and extracted trees.
    pub work_filesystem: String,
    /// Seed of the order in each round. None for the order of the definition.
    pub seed: Option<u64>,
    /// Share of CPU time of other processes above which a sample is loud.
    pub max_foreign: f64,
    /// Maximum number of repetitions of a loud sample.
    pub retries: u32,
    /// Whether results are compared in full in every round, not only in the first.
    pub verify_every_round: bool,
}

/// Source tree of the following tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeLine {
    /// Name of the tree.
    pub tree: String,
    /// Number of entries and files, and their size.
    #[serde(flatten)]
    pub size: TreeSize,
    /// Digest of names, contents and attributes, 16 hexadecimal digits.
    pub digest: String,
    /// Type of the filesystem that holds the tree.
    pub filesystem: String,
}

/// Task on a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskLine {
    /// Name of the tree.
    pub tree: String,
    /// Name of the task.
    pub task: String,
    /// Action that was measured.
    pub action: Action,
    /// Number of rounds requested.
    pub rounds: u32,
    /// Label of the run that ratios are relative to.
    pub incumbent: Option<String>,
    /// Bars that apply on this tree.
    pub bars: Vec<Bar>,
    /// Whether caches were dropped before each sample.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold: bool,
}

/// Input image built for extract or check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MadeLine {
    /// Name of the tree.
    pub tree: String,
    /// Name of the task.
    pub task: String,
    /// Tool that built the image.
    pub tool: Tool,
    /// Command line without local paths.
    pub command: String,
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Verification result of the image.
    pub verdict: Verdict,
}

/// Tool that takes part in a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectLine {
    /// Name of the tree.
    pub tree: String,
    /// Name of the task.
    pub task: String,
    /// Name of the run in the task.
    pub label: String,
    /// Tool that performs the action.
    pub tool: Tool,
    /// Settings requested by the definition.
    pub settings: Settings,
    /// Command line, with TREE, IMAGE and TARGET in place of local paths.
    pub command: String,
    /// Remarks on the translation of settings into options.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Verification result of a tool's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictLine {
    /// Name of the tree.
    pub tree: String,
    /// Name of the task.
    pub task: String,
    /// Name of the run in the task.
    pub label: String,
    /// Round of the verified result.
    pub round: u32,
    /// Result of the verification.
    pub verdict: Verdict,
}

/// Measurement of one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// Name of the tree.
    pub tree: String,
    /// Name of the task.
    pub task: String,
    /// Name of the run in the task.
    pub label: String,
    /// Number of the round, from 1.
    pub round: u32,
    /// Number of the attempt in the round, from 1.
    pub attempt: u32,
    /// Whether the sample counts. At most one attempt of a round does.
    pub kept: bool,
    /// Whether other processes used more CPU time than permitted.
    pub loud: bool,
    /// Resources used by the command.
    pub usage: Usage,
    /// Size in bytes of the image that was built or read.
    pub image_bytes: u64,
    /// BLAKE3 of the built image, 16 hexadecimal digits. None for other actions and failures.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image_digest: Option<String>,
}

/// Tool that dropped out of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedLine {
    /// Name of the tree.
    pub tree: String,
    /// Name of the task.
    pub task: String,
    /// Name of the run in the task.
    pub label: String,
    /// Reason, as a sentence.
    pub reason: String,
}

impl RecordLine for Line {
    fn format(&self) -> Option<u32> {
        match self {
            Line::Header(header) => Some(header.format),
            _ => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Line::Sample(_) | Line::Failed(_))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::campaigns::commands::definition::{Limit, Measure};
    use crate::engines::settings::{Algorithm, Size};
    use crate::record::{FORMAT, RecordWriter, decode, encode, read_all};
    use crate::verify::Judge;
    use crate::verify::tree::{Difference, Facet};

    /// Returns a header with a fictitious machine.
    pub(crate) fn header() -> Header {
        Header {
            format: FORMAT,
            definition: "example".to_owned(),
            machine: Machine {
                cpu: "Example CPU".to_owned(),
                cpus: 2,
                cpus_allowed: 2,
                virtual_machine: true,
                governor: None,
                kernel: "Linux 6.1.0 x86_64".to_owned(),
                memory_bytes: 8 << 30,
                system: "Example OS 1".to_owned(),
            },
            tools: vec![Receipt {
                tool: Tool::MkfsErofs,
                version: "mkfs.erofs (erofs-utils) 1.9.3".to_owned(),
                program_digest: "0123456789abcdef".to_owned(),
            }],
            cache: "warm".to_owned(),
            work_filesystem: "tmpfs".to_owned(),
            seed: None,
            max_foreign: 0.1,
            retries: 3,
            verify_every_round: false,
        }
    }

    fn one_of_each() -> Vec<Line> {
        let (tree, task, label) = ("root".to_owned(), "LZ4 4K".to_owned(), "tuff".to_owned());
        let verdict = Verdict {
            judge: Judge::ExtractedBy(Tool::Tuff),
            differ: vec![Difference {
                facet: Facet::Xattrs,
                count: 2,
                first: "a".to_owned(),
            }],
            wrong: None,
        };
        vec![
            Line::Header(header()),
            Line::Tree(TreeLine {
                tree: tree.clone(),
                size: TreeSize {
                    entries: 3,
                    files: 2,
                    bytes: 10,
                },
                digest: "00112233aabbccdd".to_owned(),
                filesystem: "ext4".to_owned(),
            }),
            Line::Task(TaskLine {
                tree: tree.clone(),
                task: task.clone(),
                action: Action::Build,
                rounds: 5,
                incumbent: Some("mkfs.erofs".to_owned()),
                bars: vec![
                    Bar {
                        measure: Measure::Wall,
                        run: label.clone(),
                        against: Some("mkfs.erofs".to_owned()),
                        at_most: Limit::Ratio(1.0),
                        trees: None,
                    },
                    Bar {
                        measure: Measure::Memory,
                        run: label.clone(),
                        against: None,
                        at_most: Limit::Bytes(Size(300 << 20)),
                        trees: Some(vec![tree.clone()]),
                    },
                ],
                cold: true,
            }),
            Line::Made(MadeLine {
                tree: tree.clone(),
                task: task.clone(),
                tool: Tool::MkfsErofs,
                command: "mkfs.erofs IMAGE TREE".to_owned(),
                image_bytes: 4096,
                verdict: verdict.clone(),
            }),
            Line::Subject(SubjectLine {
                tree: tree.clone(),
                task: task.clone(),
                label: label.clone(),
                tool: Tool::Tuff,
                settings: Settings {
                    algorithm: Some(Algorithm::Lz4),
                    cluster: Some(Size(4096)),
                    ..Settings::default()
                },
                command: "tuff build TREE IMAGE".to_owned(),
                notes: vec!["a note".to_owned()],
            }),
            Line::Verdict(VerdictLine {
                tree: tree.clone(),
                task: task.clone(),
                label: label.clone(),
                round: 1,
                verdict,
            }),
            Line::Sample(SampleLine {
                tree: tree.clone(),
                task: task.clone(),
                label: label.clone(),
                round: 1,
                attempt: 2,
                kept: true,
                loud: false,
                usage: Usage {
                    wall_ns: 1_500_000_000,
                    cpus: 2,
                    exit: Some(0),
                    ..Usage::default()
                },
                image_bytes: 4096,
                image_digest: Some("ffeeddccbbaa9988".to_owned()),
            }),
            Line::Failed(FailedLine {
                tree,
                task,
                label,
                reason: "it failed".to_owned(),
            }),
        ]
    }

    #[test]
    fn every_kind_of_line_survives_the_round_trip() {
        let lines = one_of_each();
        let text: String = lines.iter().map(|l| encode(l) + "\n").collect();
        assert_eq!(decode::<Line>(&text).unwrap(), lines);
    }

    #[test]
    fn the_form_of_a_sample_is_pinned() {
        assert_eq!(
            encode(&one_of_each()[6]),
            r#"{"kind":"sample","tree":"root","task":"LZ4 4K","label":"tuff","round":1,"attempt":2,"kept":true,"loud":false,"usage":{"wall_ns":1500000000,"user_us":0,"system_us":0,"max_rss_bytes":0,"foreign_us":0,"steal_us":0,"cpus":2,"read_bytes":0,"exit":0},"image_bytes":4096,"image_digest":"ffeeddccbbaa9988"}"#
        );
    }

    #[test]
    fn a_broken_record_is_named_by_its_line() {
        let header = encode(&one_of_each()[0]);
        let error = |text: &str| decode::<Line>(text).unwrap_err().to_string();
        assert!(
            error(&format!("{header}\n{{\"kind\":\"sampl")).starts_with("corrupt record: line 2:")
        );
        assert_eq!(error(""), "corrupt record: line 1: not a header");
        let other = header.replacen("\"format\":1", "\"format\":9", 1);
        assert_eq!(
            error(&other),
            "corrupt record: line 1: format 9, expected 1"
        );
    }

    #[test]
    fn a_record_never_replaces_another() {
        let folder = tempfile::tempdir().unwrap();
        let lines = one_of_each();
        for name in ["build.jsonl", "build-2.jsonl", "build-3.jsonl"] {
            let mut writer = RecordWriter::create(folder.path(), "build").unwrap();
            writer.write(&lines[0]).unwrap();
            assert_eq!(writer.path(), folder.path().join(name));
        }
        assert_eq!(read_all::<Line>(folder.path()).unwrap().len(), 3);
    }
}
