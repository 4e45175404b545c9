//! Grouping of record lines by tree and task.

use crate::campaigns::commands::record::{
    Header, Line, MadeLine, SampleLine, SubjectLine, TaskLine, TreeLine,
};
use crate::engines::Tool;
use crate::engines::settings::Action;
use crate::measure::stats::Spread;
use crate::verify::Verdict;
use crate::{Error, Result};

/// Input of a report, gathered from records.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Tasks on trees, in the order of the records.
    pub cases: Vec<Case>,
    /// Descriptions of machines, versions and conditions, without duplicates.
    pub conditions: Vec<String>,
}

/// Task on a tree.
#[derive(Clone, Debug)]
pub struct Case {
    /// Source tree of the task.
    pub tree: TreeLine,
    /// Task with its action and bars.
    pub task: TaskLine,
    /// Input images built for extract or check.
    pub made: Vec<MadeLine>,
    /// Participating tools, in the order of the definition.
    pub subjects: Vec<Subject>,
}

/// Tool in a task.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Settings and command line of the tool.
    pub line: SubjectLine,
    /// Version number, or `?` if unknown.
    pub version: String,
    /// All samples, including those that do not count.
    pub samples: Vec<SampleLine>,
    /// Results of all verifications of the tool's output.
    pub verdicts: Vec<Verdict>,
    /// Reason for which the tool dropped out, if it did.
    pub failed: Option<String>,
}

impl Case {
    /// Returns the subject that ratios are relative to.
    pub fn incumbent(&self) -> Option<&Subject> {
        self.subject(self.task.incumbent.as_deref()?)
    }

    /// Returns the subject with this label.
    pub fn subject(&self, label: &str) -> Option<&Subject> {
        self.subjects.iter().find(|s| s.line.label == label)
    }
}

impl Subject {
    /// Returns whether the tool is `tuff`.
    pub fn is_ours(&self) -> bool {
        self.line.tool == Tool::Tuff
    }

    /// Returns the samples that count; none if the subject dropped out.
    pub fn counted(&self) -> impl Iterator<Item = &SampleLine> {
        let fine = self.failed.is_none();
        self.samples.iter().filter(move |s| fine && s.kept)
    }

    fn spread(&self, value: impl Fn(&SampleLine) -> f64) -> Option<Spread> {
        Spread::of(&self.counted().map(value).collect::<Vec<f64>>())
    }

    /// Returns the elapsed time in seconds.
    pub fn wall(&self) -> Option<Spread> {
        self.spread(|s| s.usage.wall_s())
    }

    /// Returns the elapsed time of each round in seconds.
    pub fn wall_by_round(&self) -> Vec<(u32, f64)> {
        self.counted()
            .map(|s| (s.round, s.usage.wall_s()))
            .collect()
    }

    /// Returns the CPU time in seconds.
    pub fn cpu(&self) -> Option<Spread> {
        self.spread(|s| s.usage.cpu_s())
    }

    /// Returns the CPU time of each round in seconds.
    pub fn cpu_by_round(&self) -> Vec<(u32, f64)> {
        self.counted().map(|s| (s.round, s.usage.cpu_s())).collect()
    }

    /// Returns the peak memory in bytes.
    pub fn memory(&self) -> Option<Spread> {
        self.spread(|s| s.usage.max_rss_bytes as f64)
    }

    /// Returns the median size in bytes of the image that was built or read.
    pub fn image_bytes(&self) -> Option<f64> {
        self.spread(|s| s.image_bytes as f64).map(|s| s.median)
    }
}

/// Gathers the tasks of `records`, or only those with the given action. A task on a tree that occurs in two
/// records is an error, because the report cannot decide between them.
pub fn gather(records: &[Vec<Line>], action: Option<Action>) -> Result<Gathered> {
    let mut gathered = Gathered::default();
    for lines in records {
        let mut header: Option<&Header> = None;
        let mut trees: Vec<&TreeLine> = Vec::new();
        let begin = gathered.cases.len();
        for line in lines {
            match line {
                Line::Header(h) => header = Some(h),
                Line::Tree(tree) => trees.push(tree),
                Line::Task(task) => {
                    let twice = |c: &Case| {
                        c.task.tree == task.tree
                            && c.task.task == task.task
                            && c.task.action == task.action
                    };
                    if gathered.cases.iter().any(twice) {
                        return Err(Error::Usage(format!(
                            "task '{}' on tree '{}' occurs twice in the records; select one of them",
                            task.task, task.tree
                        )));
                    }
                    let tree = trees.iter().find(|t| t.tree == task.tree);
                    let tree = *tree.ok_or_else(|| orphan("task", &task.tree, &task.task))?;
                    gathered.cases.push(Case {
                        tree: tree.clone(),
                        task: task.clone(),
                        made: Vec::new(),
                        subjects: Vec::new(),
                    });
                }
                Line::Made(made) => {
                    last(&mut gathered.cases[begin..], &made.tree, &made.task)?
                        .made
                        .push(made.clone());
                }
                Line::Subject(line) => {
                    let version = header.and_then(|h| h.tools.iter().find(|t| t.tool == line.tool));
                    let version = version.map_or("?", |r| r.number()).to_owned();
                    last(&mut gathered.cases[begin..], &line.tree, &line.task)?
                        .subjects
                        .push(Subject {
                            line: line.clone(),
                            version,
                            samples: Vec::new(),
                            verdicts: Vec::new(),
                            failed: None,
                        });
                }
                Line::Verdict(v) => {
                    let case = last(&mut gathered.cases[begin..], &v.tree, &v.task)?;
                    of(case, &v.label)?.verdicts.push(v.verdict.clone());
                }
                Line::Sample(s) => {
                    let case = last(&mut gathered.cases[begin..], &s.tree, &s.task)?;
                    of(case, &s.label)?.samples.push(s.clone());
                }
                Line::Failed(f) => {
                    let case = last(&mut gathered.cases[begin..], &f.tree, &f.task)?;
                    of(case, &f.label)?.failed = Some(f.reason.clone());
                }
            }
        }
        for text in header.map(conditions).into_iter().flatten() {
            if !gathered.conditions.contains(&text) {
                gathered.conditions.push(text);
            }
        }
    }
    gathered
        .cases
        .retain(|c| action.is_none_or(|a| a == c.task.action));
    Ok(gathered)
}

/// Returns the last case, to which the line must belong.
fn last<'a>(cases: &'a mut [Case], tree: &str, task: &str) -> Result<&'a mut Case> {
    let case = cases
        .last_mut()
        .filter(|c| c.task.tree == tree && c.task.task == task);
    case.ok_or_else(|| orphan("line", tree, task))
}

fn of<'a>(case: &'a mut Case, label: &str) -> Result<&'a mut Subject> {
    let orphan = orphan(label, &case.task.tree, &case.task.task);
    case.subjects
        .iter_mut()
        .find(|s| s.line.label == label)
        .ok_or(orphan)
}

fn orphan(what: &str, tree: &str, task: &str) -> Error {
    Error::Corrupt(format!(
        "{what} of task '{task}' on tree '{tree}' comes before what it belongs to"
    ))
}

fn conditions(header: &Header) -> Vec<String> {
    let machine = &header.machine;
    let governor = machine
        .governor
        .as_ref()
        .map_or(String::new(), |g| format!(", governor {g}"));
    let cache = header.cache.split(':').next().unwrap_or_default();
    let allowed = match machine.cpus_allowed {
        n if n == machine.cpus => String::new(),
        n => format!(" ({n} allowed)"),
    };
    let versions: Vec<&str> = header.tools.iter().map(|t| t.version.as_str()).collect();
    vec![
        format!(
            "{}, {} CPUs{allowed}{}{governor}, {:.1} GiB of memory, {}, {}. Caches {cache}; results on {}.",
            machine.cpu,
            machine.cpus,
            if machine.virtual_machine {
                ", virtual"
            } else {
                ""
            },
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.kernel,
            machine.system,
            header.work_filesystem,
        ),
        format!("Medians of interleaved rounds. {}.", versions.join("; ")),
    ]
}

/// Ratio of medians with its range over rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) of_medians: f64,
    rounds: Option<(f64, f64)>,
}

impl Ratio {
    pub(super) fn shown(self) -> String {
        match self.rounds {
            Some((min, max)) => format!("{:.2} ({min:.2}..{max:.2})", self.of_medians),
            None => format!("{:.2}", self.of_medians),
        }
    }
}

/// Returns the ratio of `subject` to `other` in a measure given by round. The ratio of a subject to itself
/// has no range.
pub(super) fn ratio_of(
    subject: &Subject,
    other: &Subject,
    by_round: fn(&Subject) -> Vec<(u32, f64)>,
) -> Option<Ratio> {
    let (ours, theirs) = (by_round(subject), by_round(other));
    let values = |list: &[(u32, f64)]| list.iter().map(|(_, v)| *v).collect::<Vec<f64>>();
    let of_medians = Spread::of(&values(&ours))?.median / Spread::of(&values(&theirs))?.median;
    if std::ptr::eq(subject, other) {
        return Some(Ratio {
            of_medians,
            rounds: None,
        });
    }
    let in_rounds: Vec<f64> = ours
        .iter()
        .filter_map(|(round, a)| {
            let (_, b) = theirs.iter().find(|(r, _)| r == round)?;
            Some(a / b)
        })
        .collect();
    let rounds = Spread::of(&in_rounds).map(|s| (s.min, s.max));
    Some(Ratio { of_medians, rounds })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::campaigns::commands::definition::{Bar, Limit, Measure};
    use crate::campaigns::commands::record::tests::header;
    use crate::campaigns::commands::record::{FailedLine, VerdictLine};
    use crate::engines::Receipt;
    use crate::engines::settings::{Settings, Size};
    use crate::measure::Usage;
    use crate::verify::Judge;
    use crate::verify::tree::{Difference, Facet, TreeSize};

    fn receipt(tool: Tool, version: &str) -> Receipt {
        Receipt {
            tool,
            version: version.to_owned(),
            program_digest: "00".to_owned(),
        }
    }

    fn bar(measure: Measure, against: Option<&str>, at_most: Limit) -> Bar {
        Bar {
            measure,
            run: "tuff".to_owned(),
            against: against.map(str::to_owned),
            at_most,
            trees: None,
        }
    }

    fn sample(label: &str, round: u32, wall_ms: u64, mib: (u64, u64)) -> SampleLine {
        SampleLine {
            tree: "root".to_owned(),
            task: "LZ4 4K".to_owned(),
            label: label.to_owned(),
            round,
            attempt: 1,
            kept: true,
            loud: false,
            usage: Usage {
                wall_ns: wall_ms * 1_000_000,
                user_us: wall_ms * 1500,
                system_us: wall_ms * 500,
                max_rss_bytes: mib.0 << 20,
                cpus: 2,
                exit: Some(0),
                ..Usage::default()
            },
            image_bytes: mib.1 << 20,
            image_digest: None,
        }
    }

    /// Returns the lines of a task with three tools. One tool drops out, one sample is loud, and one is
    /// repeated.
    pub(crate) fn lines() -> Vec<Line> {
        let (tree, task) = ("root".to_owned(), "LZ4 4K".to_owned());
        let mut header = header();
        header.tools = vec![
            receipt(Tool::Tuff, "tuff 0.1.0"),
            receipt(Tool::MkfsErofs, "mkfs.erofs (erofs-utils) 1.9.3"),
            receipt(Tool::Mksquashfs, "mksquashfs version 4.5.1"),
        ];
        let subject = |tool: Tool, command: &str| {
            Line::Subject(SubjectLine {
                tree: "root".to_owned(),
                task: "LZ4 4K".to_owned(),
                label: tool.name().to_owned(),
                tool,
                settings: Settings::default(),
                command: command.to_owned(),
                notes: Vec::new(),
            })
        };
        let mut rejected = sample("tuff", 2, 9000, (100, 512));
        (rejected.kept, rejected.loud) = (false, true);
        let mut loud = sample("tuff", 2, 2400, (110, 512));
        (loud.attempt, loud.loud) = (2, true);
        vec![
            Line::Header(header),
            Line::Tree(TreeLine {
                tree: tree.clone(),
                size: TreeSize {
                    entries: 21_016,
                    files: 20_000,
                    bytes: 1 << 30,
                },
                digest: "00".to_owned(),
                filesystem: "ext4".to_owned(),
            }),
            Line::Task(TaskLine {
                tree: tree.clone(),
                task: task.clone(),
                action: Action::Build,
                rounds: 3,
                incumbent: Some("mkfs.erofs".to_owned()),
                bars: vec![
                    bar(Measure::Wall, Some("mkfs.erofs"), Limit::Ratio(1.0)),
                    bar(Measure::Size, Some("mkfs.erofs"), Limit::Ratio(0.98)),
                    bar(Measure::Memory, None, Limit::Bytes(Size(300 << 20))),
                    bar(Measure::Wall, Some("mksquashfs"), Limit::Ratio(1.0)),
                ],
                cold: false,
            }),
            subject(Tool::Tuff, "tuff build TREE IMAGE"),
            subject(Tool::MkfsErofs, "mkfs.erofs IMAGE TREE"),
            subject(Tool::Mksquashfs, "mksquashfs TREE IMAGE"),
            Line::Sample(sample("tuff", 1, 2000, (100, 512))),
            Line::Verdict(VerdictLine {
                tree: tree.clone(),
                task: task.clone(),
                label: "mkfs.erofs".to_owned(),
                round: 1,
                verdict: Verdict {
                    judge: Judge::KernelMount,
                    differ: vec![Difference {
                        facet: Facet::Nanoseconds,
                        count: 5,
                        first: "a".to_owned(),
                    }],
                    wrong: None,
                },
            }),
            Line::Sample(sample("mkfs.erofs", 1, 4200, (90, 520))),
            Line::Failed(FailedLine {
                tree,
                task,
                label: "mksquashfs".to_owned(),
                reason: "exit code 1: no such algorithm".to_owned(),
            }),
            Line::Sample(rejected),
            Line::Sample(loud),
            Line::Sample(sample("mkfs.erofs", 2, 4000, (90, 520))),
            Line::Sample(sample("tuff", 3, 1800, (100, 512))),
            Line::Sample(sample("mkfs.erofs", 3, 4000, (90, 520))),
        ]
    }

    pub(crate) fn example() -> Gathered {
        gather(&[lines()], None).unwrap()
    }

    #[test]
    fn samples_that_do_not_count_move_no_figure() {
        let gathered = example();
        let wall = gathered.cases[0].subjects[0].wall().unwrap();
        assert_eq!((wall.median, wall.max, wall.count), (2.0, 2.4, 3));
    }

    #[test]
    fn a_task_in_two_records_is_refused() {
        let error = gather(&[lines(), lines()], None).unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
    }

    #[test]
    fn other_actions_are_left_out() {
        assert_eq!(
            gather(&[lines()], Some(Action::Check)).unwrap().cases.len(),
            0
        );
        assert_eq!(
            gather(&[lines()], Some(Action::Build)).unwrap().cases.len(),
            1
        );
    }

    #[test]
    fn a_line_without_its_task_is_corrupt() {
        let mut lines = lines();
        lines.remove(2);
        let error = gather(&[lines], None).unwrap_err();
        assert!(error.to_string().contains("comes before"), "{error}");
    }
}
