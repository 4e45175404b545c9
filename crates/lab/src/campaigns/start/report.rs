//! Tables and plots of the start campaign.

use super::definition::{CONDITIONS, Condition};
use super::record::{FailedLine, ImageLine, Line, ProgramLine, SampleLine, WithoutLine};
use crate::Result;
use crate::engines::settings::Size;
use crate::measure::stats::{median, quantile};
use crate::report::plot::{LineChart, line_charts};
use std::fmt::Write;

/// Lines of records, grouped by kind.
#[derive(Debug)]
pub struct Gathered<'a> {
    servers: Vec<&'a str>,
    machines: Vec<String>,
    versions: Vec<String>,
    images: Vec<&'a ImageLine>,
    programs: Vec<&'a ProgramLine>,
    without: Vec<&'a WithoutLine>,
    samples: Vec<&'a SampleLine>,
    failed: Vec<&'a FailedLine>,
}

/// Groups the lines of records by kind.
pub fn gather(lines: &[Line]) -> Gathered<'_> {
    let mut all = Gathered {
        servers: Vec::new(),
        machines: Vec::new(),
        versions: Vec::new(),
        images: Vec::new(),
        programs: Vec::new(),
        without: Vec::new(),
        samples: Vec::new(),
        failed: Vec::new(),
    };
    for line in lines {
        match line {
            Line::Header(header) => {
                let m = &header.machine;
                for (name, version) in &header.servers {
                    if !all.servers.contains(&&**name) {
                        all.servers.push(name);
                        all.versions.push(format!("- {name}: {version}"));
                    }
                }
                let (files, bytes) = header.tree;
                let machine = format!(
                    "{}, {} CPUs, {}, {}; tree of {files} files, {:.0} MiB; images on {}; cache before each mount: {:?}.",
                    m.cpu,
                    m.cpus_allowed,
                    m.kernel,
                    m.system,
                    mib(bytes),
                    header.work_filesystem,
                    header.cache
                );
                if !all.machines.contains(&machine) {
                    all.machines.push(machine);
                }
            }
            Line::Image(image) => {
                if !all.images.iter().any(|i| i.image == image.image) {
                    all.images.push(image);
                }
            }
            Line::Program(program) => {
                if !all.programs.iter().any(|p| p.program == program.program) {
                    all.programs.push(program);
                }
            }
            Line::Without(without) => {
                if !all.without.iter().any(|w| w.what == without.what) {
                    all.without.push(without);
                }
            }
            Line::Sample(sample) => all.samples.push(sample),
            Line::Failed(failed) => all.failed.push(failed),
        }
    }
    all
}

impl Gathered<'_> {
    fn samples<'a>(
        &'a self,
        program: &'a ProgramLine,
        condition: Condition,
        server: &'a str,
    ) -> impl Iterator<Item = &'a SampleLine> {
        let of = move |s: &&&SampleLine| {
            s.program == program.program && s.condition == condition && s.server == server
        };
        self.samples.iter().filter(of).copied()
    }

    /// Returns the start times in milliseconds.
    fn times(&self, program: &ProgramLine, condition: Condition, server: &str) -> Vec<f64> {
        let samples = self.samples(program, condition, server);
        samples.map(|s| s.ns as f64 / 1e6).collect()
    }

    /// Returns the servers with samples.
    fn able(&self) -> Vec<&str> {
        let servers = self.servers.iter().copied();
        servers
            .filter(|name| self.samples.iter().any(|s| s.server == *name))
            .collect()
    }

    /// Returns the largest number of samples of a server.
    fn count(&self, servers: &[&str], program: &ProgramLine, condition: Condition) -> usize {
        let counts = servers.iter();
        let counts = counts.map(|s| self.samples(program, condition, s).count());
        counts.max().unwrap_or(0)
    }

    /// Returns a cell for each server: median, 10 % and 90 % quantile, and ratio to the median of the first
    /// kernel. None without samples.
    fn cells(
        &self,
        servers: &[&str],
        program: &ProgramLine,
        condition: Condition,
    ) -> Option<Vec<String>> {
        let base = servers.iter().find(|s| s.starts_with("kernel"));
        let base = base.and_then(|s| median(&self.times(program, condition, s)));
        let cell = |server: &&str| {
            let times = self.times(program, condition, server);
            let low = quantile(&times, 0.1);
            let (Some(middle), Some((low, high))) =
                (median(&times), low.zip(quantile(&times, 0.9)))
            else {
                return "-".to_owned();
            };
            let ratio = base.map_or(String::new(), |b| format!(" ({:.2})", middle / b));
            format!("{middle:.1} [{low:.1}..{high:.1}]{ratio}")
        };
        let cells: Vec<String> = servers.iter().map(cell).collect();
        cells.iter().any(|c| c != "-").then_some(cells)
    }
}

const WHAT: &str = "Milliseconds from fork to exit, median [10 %..90 %]; in parentheses the ratio of medians to the first \
                    server that is a kernel.";

/// Describes the condition of a program, with the memory limit.
fn beside(condition: Condition, program: &ProgramLine) -> String {
    match (condition, program.limit) {
        (Condition::Pressure, Some(limit)) => format!("pressure, {}", Size(limit)),
        _ => condition.name().to_owned(),
    }
}

/// Renders a report as Markdown.
pub fn render(all: &Gathered<'_>) -> String {
    let mut out = String::new();
    let servers = all.able();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "{WHAT}\n");
    for condition in CONDITIONS {
        let rows: Vec<_> = all
            .programs
            .iter()
            .filter_map(|p| Some((p, all.cells(&servers, p, condition)?)))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "**{}**\n", condition.name());
        let _ = writeln!(out, "| program | {} | starts |", servers.join(" | "));
        let _ = writeln!(out, "|---|{}", "--:|".repeat(servers.len() + 1));
        for (program, cells) in rows {
            let name = match (condition, program.limit) {
                (Condition::Pressure, Some(limit)) => {
                    format!("{}, {}", program.program, Size(limit))
                }
                _ => program.program.clone(),
            };
            let count = all.count(&servers, program, condition);
            let _ = writeln!(out, "| {name} | {} | {count} |", cells.join(" | "));
        }
        out.push('\n');
    }
    hits(&mut out, all, &servers);
    absent(&mut out, all);
    let _ = writeln!(out, "\n**Programs**\n");
    for program in &all.programs {
        let _ = writeln!(
            out,
            "- {}: `{}`, output of {} bytes",
            program.program,
            program.command.join(" ").replace('\n', " "),
            program.answer.bytes
        );
    }
    let _ = writeln!(out, "\n**Images**\n");
    for image in &all.images {
        let _ = writeln!(
            out,
            "- {}: {:.1} MiB, `{}`, {}",
            image.image,
            mib(image.image_bytes),
            image.command,
            image.version
        );
    }
    let _ = writeln!(
        out,
        "\n{}\n{}",
        all.machines.join("\n"),
        all.versions.join("\n")
    );
    out
}

/// Lists servers that dropped out, and items that did not take part.
fn absent(out: &mut String, all: &Gathered<'_>) {
    for failed in &all.failed {
        let _ = writeln!(
            out,
            "- {} dropped out of {}, {}: {}",
            failed.server,
            failed.program,
            failed.condition.name(),
            failed.reason
        );
    }
    for without in &all.without {
        let _ = writeln!(out, "- Without {}: {}.", without.what, without.reason);
    }
}

/// Writes how often control groups reached their limits during starts.
fn hits(out: &mut String, all: &Gathered<'_>, servers: &[&str]) {
    if all.samples.iter().all(|s| s.limit_hits.is_none()) {
        return;
    }
    let _ = writeln!(
        out,
        "Times that the memory limit was reached per start, median:\n"
    );
    let _ = writeln!(out, "| program | {} |", servers.join(" | "));
    let _ = writeln!(out, "|---|{}", "--:|".repeat(servers.len()));
    for program in all.programs.iter().filter(|p| p.limit.is_some()) {
        let cell = |server: &&str| {
            let samples = all.samples(program, Condition::Pressure, server);
            let counts: Vec<f64> = samples
                .filter_map(|s| s.limit_hits)
                .map(|h| h as f64)
                .collect();
            median(&counts).map_or("-".to_owned(), |m| format!("{m:.0}"))
        };
        let cells: Vec<String> = servers.iter().map(cell).collect();
        let _ = writeln!(out, "| {} | {} |", program.program, cells.join(" | "));
    }
    out.push('\n');
}

/// Renders a single table for a document: a row for each program and condition.
pub fn brief(all: &Gathered<'_>) -> String {
    let mut out = String::new();
    let servers = all.able();
    let _ = writeln!(
        out,
        "| program | condition | starts | {} |",
        servers.join(" | ")
    );
    let _ = writeln!(out, "|---|---|{}", "--:|".repeat(servers.len() + 1));
    for program in &all.programs {
        for condition in CONDITIONS {
            if let Some(cells) = all.cells(&servers, program, condition) {
                let (name, beside) = (&program.program, beside(condition, program));
                let count = all.count(&servers, program, condition);
                let cells = cells.join(" | ");
                let _ = writeln!(out, "| {name} | {beside} | {count} | {cells} |");
            }
        }
    }
    out.push('\n');
    absent(&mut out, all);
    let images = all.images.iter();
    let images = images.map(|i| format!("{} {:.0} MiB", i.image, mib(i.image_bytes)));
    let _ = writeln!(
        out,
        "{WHAT}\n\n{}\nImages: {}.",
        all.machines.join("\n"),
        images.collect::<Vec<_>>().join(", ")
    );
    out
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Draws a chart of the cumulative distribution of start times for each program and condition. Returns an SVG
/// document.
pub fn plot(all: &Gathered<'_>) -> Result<String> {
    let conditions: Vec<Condition> = CONDITIONS
        .into_iter()
        .filter(|c| all.samples.iter().any(|s| s.condition == *c))
        .collect();
    let row = |program: &&ProgramLine| -> Vec<LineChart> {
        let chart = |condition: &Condition| line_chart(all, program, *condition);
        conditions.iter().filter_map(chart).collect()
    };
    line_charts(&all.programs.iter().map(row).collect::<Vec<_>>())
}

fn line_chart(
    all: &Gathered<'_>,
    program: &ProgramLine,
    condition: Condition,
) -> Option<LineChart> {
    let servers = all.able().into_iter();
    let times: Vec<(&str, Vec<f64>)> = servers
        .map(|s| (s, all.times(program, condition, s)))
        .collect();
    // Cutting at 95 % keeps single outliers from compressing the other lines.
    let slowest = times.iter().filter_map(|(_, t)| quantile(t, 0.95));
    let end = slowest.map(|t| t * 1.1).reduce(f64::max)?;
    let series = times.into_iter();
    Some(LineChart {
        title: format!("{}, {}", program.program, beside(condition, program)),
        x: format!("ms from fork to exit, up to {end:.0}"),
        y: "share of starts".to_owned(),
        series: series
            .map(|(name, times)| (name.to_owned(), shares(times, end)))
            .collect(),
    })
}

/// Returns the points of the cumulative distribution up to `end`.
fn shares(mut times: Vec<f64>, end: f64) -> Vec<(f64, f64)> {
    times.sort_by(f64::total_cmp);
    let count = times.len() as f64;
    let mut points = Vec::new();
    for (before, time) in times.iter().enumerate().filter(|(_, t)| **t <= end) {
        points.push((*time, before as f64 / count));
        points.push((*time, (before as f64 + 1.0) / count));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaigns::start::inside::Answer;
    use crate::campaigns::start::record::Header;

    fn lines() -> Vec<Line> {
        let sample = |server: &str, condition, round, ms: u64| {
            Line::Sample(SampleLine {
                program: "sh <x>".to_owned(),
                condition,
                server: server.to_owned(),
                round,
                ns: ms * 1_000_000,
                limit_hits: (condition == Condition::Pressure).then_some(7),
            })
        };
        let mut lines = vec![
            Line::Header(Header {
                format: crate::record::FORMAT,
                definition: "x".to_owned(),
                machine: crate::measure::machine::Machine::inspect().unwrap(),
                cache: Default::default(),
                work_filesystem: "ext4".to_owned(),
                servers: vec![
                    ("tuff".to_owned(), "1".to_owned()),
                    ("kernel EROFS".to_owned(), "2".to_owned()),
                    ("absent".to_owned(), "not found".to_owned()),
                ],
                starts: 3,
                tree: (5, 3 << 20),
                tree_made: true,
                seed: 1,
            }),
            Line::Program(ProgramLine {
                program: "sh <x>".to_owned(),
                command: vec!["/bin/sh".to_owned()],
                answer: Answer {
                    exit: 0,
                    bytes: 3,
                    digest: "0".repeat(16),
                },
                limit: Some(8 << 20),
            }),
            Line::Without(WithoutLine {
                what: "vim".to_owned(),
                reason: "not installed on this machine".to_owned(),
            }),
        ];
        for (round, ms) in [(1, 8), (2, 9), (3, 40)] {
            lines.push(sample("tuff", Condition::Idle, round, ms));
            lines.push(sample("kernel EROFS", Condition::Idle, round, 10));
            lines.push(sample("tuff", Condition::Pressure, round, ms));
        }
        lines
    }

    #[test]
    fn a_row_has_medians_their_spread_and_their_ratio_to_the_kernels() {
        let lines = lines();
        let all = gather(&lines);
        let (table, short) = (render(&all), brief(&all));
        for (text, expected) in [
            (
                &table,
                "| sh <x> | 9.0 [8.0..40.0] (0.90) | 10.0 [10.0..10.0] (1.00) | 3 |",
            ),
            (&table, "| sh <x>, 8M | 9.0 [8.0..40.0] | - | 3 |"),
            (&table, "| sh <x> | 7 | - |"),
            (
                &short,
                "| sh <x> | idle | 3 | 9.0 [8.0..40.0] (0.90) | 10.0 [10.0..10.0] (1.00) |",
            ),
            (
                &short,
                "| sh <x> | pressure, 8M | 3 | 9.0 [8.0..40.0] | - |",
            ),
            (&short, "- Without vim: not installed on this machine."),
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!table.contains("background"), "{table}");
    }

    #[test]
    fn a_distribution_ends_at_one() {
        let expected = vec![(1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0)];
        assert_eq!(shares(vec![3.0, 1.0], 3.0), expected);
        assert_eq!(shares(vec![3.0, 1.0], 2.0), expected[..2]);
    }

    #[test]
    fn a_plot_has_a_chart_for_each_condition_and_no_raw_markup() {
        let lines = lines();
        let svg = plot(&gather(&lines)).unwrap();
        assert_eq!(svg.matches("share of starts").count(), 2);
        assert!(svg.contains("sh &lt;x&gt;, pressure, 8M"));
    }
}
