//! Tables and plots of the serve campaign.

use super::definition::{Bar, Figure, Pass};
use super::record::{FailedLine, ImageLine, Line, SampleLine, WorkloadLine};
use super::server::Used;
use crate::Result;
use crate::measure::stats::{Spread, median};
use crate::report::plot::{self, BarGroup};
use std::fmt::Write;

/// Lines of a record, grouped by kind.
#[derive(Debug)]
pub struct Gathered<'a> {
    servers: Vec<&'a str>,
    conditions: Vec<String>,
    images: Vec<&'a ImageLine>,
    cases: Vec<&'a WorkloadLine>,
    samples: Vec<&'a SampleLine>,
    failed: Vec<&'a FailedLine>,
}

/// Groups the lines of a record by kind.
pub fn gather(lines: &[Line]) -> Gathered<'_> {
    let mut all = Gathered {
        servers: Vec::new(),
        conditions: Vec::new(),
        images: Vec::new(),
        cases: Vec::new(),
        samples: Vec::new(),
        failed: Vec::new(),
    };
    for line in lines {
        match line {
            Line::Header(header) => {
                let m = &header.machine;
                for (name, _) in &header.servers {
                    if !all.servers.contains(&&**name) {
                        all.servers.push(name);
                    }
                }
                all.conditions.push(format!(
                    "{}, {} CPUs, {}; images on {}; cache before each mount: {:?}.",
                    m.cpu, m.cpus_allowed, m.kernel, header.work_filesystem, header.cache
                ));
                for (name, version) in &header.servers {
                    all.conditions.push(format!("- {name}: {version}"));
                }
            }
            Line::Image(image) => all.images.push(image),
            Line::Workload(case) => all.cases.push(case),
            Line::Sample(sample) => all.samples.push(sample),
            Line::Failed(failed) => all.failed.push(failed),
        }
    }
    all
}

impl Gathered<'_> {
    /// Returns the samples of a server in the order of the rounds.
    fn of<'a>(
        &'a self,
        case: &'a WorkloadLine,
        server: &'a str,
    ) -> impl DoubleEndedIterator<Item = &'a SampleLine> {
        self.samples.iter().copied().filter(move |s| {
            s.workload == case.workload && s.image == case.image && s.server == server
        })
    }

    fn times(&self, case: &WorkloadLine, server: &str, pass: Pass) -> Vec<f64> {
        let time = |s: &SampleLine| match pass {
            Pass::Cold => s.cold_ns as f64 / 1e6,
            Pass::Warm => s.warm_ns as f64 / 1e6,
        };
        self.of(case, server).map(time).collect()
    }

    /// Returns a figure of a server for every round, in milliseconds or MiB.
    fn figures(&self, case: &WorkloadLine, server: &str, bar: &Bar) -> Vec<f64> {
        let figure: fn(&Used) -> Option<u64> = match bar.of {
            Figure::Time => return self.times(case, server, bar.pass),
            Figure::Fetched => |used| used.fetched_bytes,
            Figure::Daemon => |used| used.memory_bytes,
            Figure::Machine => |used| used.system_bytes,
            Figure::Held => |used| used.held_bytes,
        };
        self.of(case, server)
            .filter_map(|s| figure(&s.used).map(mib))
            .collect()
    }

    fn median(&self, case: &WorkloadLine, server: &str, pass: Pass) -> Option<f64> {
        median(&self.times(case, server, pass))
    }

    /// Returns the median processor time of the client in milliseconds. None for older records.
    fn asker(&self, case: &WorkloadLine, server: &str, pass: Pass) -> Option<f64> {
        let time = |s: &SampleLine| match pass {
            Pass::Cold => s.cold_asker_ns,
            Pass::Warm => s.warm_asker_ns,
        };
        let times = self.of(case, server).filter_map(time);
        median(&times.map(|ns| ns as f64 / 1e6).collect::<Vec<_>>())
    }

    /// Returns the servers with a time in any of these cases.
    fn servers_of(&self, cases: &[&&WorkloadLine]) -> Vec<&&str> {
        let timed = |s: &&&str| {
            let mut cases = cases.iter();
            cases.any(|c| self.median(c, s, Pass::Cold).is_some())
        };
        self.servers.iter().filter(timed).collect()
    }

    fn last_used(&self, case: &WorkloadLine, server: &str) -> Used {
        let last = self.of(case, server).next_back();
        last.map(|s| s.used).unwrap_or_default()
    }
}

/// Renders a report as Markdown.
pub fn render(all: &Gathered<'_>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "Milliseconds, median [min..max]; cold is the first pass after mounting, warm the second. In parentheses the \
         ratio to the first server of the row that is a kernel.\n"
    );
    let workloads = {
        let mut names: Vec<&str> = Vec::new();
        for case in &all.cases {
            if !names.contains(&&*case.workload) {
                names.push(&case.workload);
            }
        }
        names
    };
    for workload in workloads {
        let cases: Vec<_> = all
            .cases
            .iter()
            .filter(|c| c.workload == workload)
            .collect();
        let servers = all.servers_of(&cases);
        let _ = writeln!(out, "**{workload}**\n");
        let heads: Vec<&str> = servers.iter().map(|s| **s).collect();
        let _ = writeln!(out, "| image | pass | {} |", heads.join(" | "));
        let _ = writeln!(out, "|---|---|{}", "--:|".repeat(heads.len()));
        for case in cases {
            for pass in [Pass::Cold, Pass::Warm] {
                let base = servers.iter().filter(|s| s.starts_with("kernel"));
                let base = base.filter_map(|s| all.median(case, s, pass)).next();
                let cell = |server: &&&str| {
                    let spread = Spread::of(&all.times(case, server, pass));
                    spread.map_or("-".to_owned(), |s| {
                        let ratio =
                            base.map_or(String::new(), |b| format!(" ({:.2})", s.median / b));
                        format!("{:.1} [{:.1}..{:.1}]{ratio}", s.median, s.min, s.max)
                    })
                };
                let cells: Vec<String> = servers.iter().map(cell).collect();
                let pass = format!("{pass:?}").to_lowercase();
                let _ = writeln!(out, "| {} | {pass} | {} |", case.image, cells.join(" | "));
            }
        }
        out.push('\n');
    }
    askers(&mut out, all);
    used(&mut out, all);
    bars(&mut out, all);
    for failed in &all.failed {
        let _ = writeln!(
            out,
            "- {} dropped out of {} on {}: {}",
            failed.server, failed.workload, failed.image, failed.reason
        );
    }
    let _ = writeln!(out, "\n**Images**\n");
    for image in &all.images {
        let mib = image.image_bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(out, "- {}: {mib:.1} MiB, `{}`", image.image, image.command);
    }
    let _ = writeln!(out, "\n{}", all.conditions.join("\n"));
    out
}

/// Renders a single table for a document: a row for each workload and image with the first pass, and one with
/// the second pass if a bar refers to it.
pub fn brief(all: &Gathered<'_>) -> String {
    let mut out = String::new();
    let base = all.servers.iter().find(|s| s.starts_with("kernel"));
    let cases: Vec<_> = all.cases.iter().collect();
    let servers = all.servers_of(&cases);
    let heads: Vec<String> = servers.iter().map(|s| format!("{s}, ms")).collect();
    let _ = writeln!(out, "| read | image | {} |", heads.join(" | "));
    let _ = writeln!(out, "|---|---|{}", "--:|".repeat(heads.len()));
    for case in cases {
        for (pass, name) in [(Pass::Cold, ""), (Pass::Warm, ", again")] {
            if pass == Pass::Warm && case.bars.iter().all(|b| b.pass != pass) {
                continue;
            }
            let base = base.and_then(|s| all.median(case, s, pass));
            let cell = |server: &&&str| {
                let time = all.median(case, server, pass);
                time.map_or("-".to_owned(), |time| {
                    let ratio = base.map_or(String::new(), |b| format!(" ({:.2})", time / b));
                    format!("{time:.1}{ratio}")
                })
            };
            let cells: Vec<String> = servers.iter().map(cell).collect();
            let (workload, image) = (&case.workload, &case.image);
            let _ = writeln!(
                out,
                "| {workload}{name} | {image} | {} |",
                cells.join(" | ")
            );
        }
    }
    out
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Writes the processor time of the client, which is independent of the server.
fn askers(out: &mut String, all: &Gathered<'_>) {
    let rows = all
        .cases
        .iter()
        .flat_map(|case| all.servers.iter().map(move |server| (case, server)));
    let mut rows = rows
        .filter(|(case, server)| all.asker(case, server, Pass::Cold).is_some())
        .peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(
        out,
        "**Client time**: processor time of the reading threads alone, including their time in the kernel. A server cannot shorten it. The kernel's own filesystems may decode in it. \
         In parentheses the ratio to the total time of the first server that is a kernel.\n"
    );
    let _ = writeln!(
        out,
        "| workload | image | server | cold, ms | of which client, ms | warm, ms | of which client, ms |"
    );
    let _ = writeln!(out, "|---|---|---|--:|--:|--:|--:|");
    for (case, server) in rows {
        let _ = write!(out, "| {} | {} | {server} |", case.workload, case.image);
        for pass in [Pass::Cold, Pass::Warm] {
            let mut kernels = all.servers.iter().filter(|s| s.starts_with("kernel"));
            let kernel = kernels.find_map(|kernel| all.median(case, kernel, pass));
            for time in [
                all.median(case, server, pass),
                all.asker(case, server, pass),
            ] {
                let _ = match (time, kernel) {
                    (Some(time), Some(kernel)) => {
                        write!(out, " {time:.1} ({:.2}) |", time / kernel)
                    }
                    (Some(time), None) => write!(out, " {time:.1} |"),
                    (None, _) => write!(out, " - |"),
                };
            }
        }
        out.push('\n');
    }
    out.push('\n');
}

/// Writes the resources used by servers until the end of the first pass.
fn used(out: &mut String, all: &Gathered<'_>) {
    let _ = writeln!(out, "**Resources used, first pass**\n");
    let _ = writeln!(
        out,
        "| workload | image | server | read, MiB | fetched, MiB | daemon memory, MiB | daemon CPU, ms | machine memory, MiB | pages and daemon, MiB |"
    );
    let _ = writeln!(out, "|---|---|---|--:|--:|--:|--:|--:|--:|");
    let mib = |bytes: u64| format!("{:.1}", mib(bytes));
    for case in &all.cases {
        for server in &all.servers {
            let used = all.last_used(case, server);
            if used == Used::default() {
                continue;
            }
            let _ = writeln!(
                out,
                "| {} | {} | {server} | {} | {} | {} | {} | {} | {} |",
                case.workload,
                case.image,
                mib(case.answer.bytes),
                used.fetched_bytes.map_or("-".to_owned(), mib),
                used.memory_bytes.map_or("-".to_owned(), mib),
                used.cpu_us
                    .map_or("-".to_owned(), |us| (us / 1000).to_string()),
                used.system_bytes.map_or("-".to_owned(), mib),
                used.held_bytes.map_or("-".to_owned(), mib),
            );
        }
    }
    out.push('\n');
}

/// Writes a row for each bar: limit, measured value and whether the limit is met.
fn bars(out: &mut String, all: &Gathered<'_>) {
    if all.cases.iter().all(|c| c.bars.is_empty()) {
        return;
    }
    let _ = writeln!(out, "**Bars**\n");
    let _ = writeln!(out, "| workload | image | figure | at most | measured | |");
    let _ = writeln!(out, "|---|---|---|--:|--:|---|");
    for case in &all.cases {
        for bar in &case.bars {
            let found = found(all, case, bar);
            let verdict = match found {
                Some(found) if found <= bar.at_most => "reached",
                Some(_) => "**missed**",
                None => "not measured",
            };
            let found = found.map_or("-".to_owned(), |f| format!("{f:.2}"));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {:.2} | {found} | {verdict} |",
                case.workload,
                case.image,
                what(bar),
                bar.at_most
            );
        }
    }
    out.push('\n');
}

/// Describes the figure of a bar.
fn what(bar: &Bar) -> String {
    let pass = match bar.pass {
        Pass::Cold => "cold",
        Pass::Warm => "warm",
    };
    let figure = match (bar.of, &bar.against) {
        (Figure::Time, None) => format!("time, {pass}, ms"),
        (Figure::Time, Some(_)) => pass.to_owned(),
        (Figure::Fetched, None) => "fetched, MiB".to_owned(),
        (Figure::Fetched, Some(_)) => "fetched".to_owned(),
        (Figure::Daemon, None) => "daemon memory, MiB".to_owned(),
        (Figure::Daemon, Some(_)) => "daemon memory".to_owned(),
        (Figure::Machine, None) => "machine memory, MiB".to_owned(),
        (Figure::Held, None) => "pages and daemon, MiB".to_owned(),
        (Figure::Machine, Some(_)) => "machine memory".to_owned(),
        (Figure::Held, Some(_)) => "pages and daemon".to_owned(),
    };
    match &bar.against {
        Some(against) => format!("{} of {against}, {figure}", bar.server),
        None => format!("{}, {figure}", bar.server),
    }
}

fn found(all: &Gathered<'_>, case: &WorkloadLine, bar: &Bar) -> Option<f64> {
    let held = median(&all.figures(case, &bar.server, bar))?;
    match &bar.against {
        Some(against) => Some(held / median(&all.figures(case, against, bar))?),
        None => Some(held),
    }
}

/// Draws the medians of the first pass as horizontal bars, grouped by workload and image. Returns an SVG
/// document.
pub fn plot(all: &Gathered<'_>) -> Result<String> {
    let group = |case: &&WorkloadLine| {
        let servers = all.servers.iter().enumerate();
        BarGroup {
            label: format!("{}, {}", case.workload, case.image),
            bars: servers
                .filter_map(|(i, s)| Some((i, all.median(case, s, Pass::Cold)?)))
                .collect(),
        }
    };
    plot::bars(
        &all.servers,
        &all.cases.iter().map(group).collect::<Vec<_>>(),
        "ms",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaigns::serve::record::Header;
    use crate::campaigns::serve::workload::Answer;

    fn lines() -> Vec<Line> {
        let sample = |server: &str, round, cold_ns| {
            Line::Sample(SampleLine {
                workload: "walk".to_owned(),
                image: "a & b".to_owned(),
                server: server.to_owned(),
                round,
                cold_ns,
                warm_ns: cold_ns / 2,
                cold_asker_ns: Some(cold_ns / 4),
                warm_asker_ns: None,
                used: Used {
                    fetched_bytes: Some(3 << 20),
                    ..Used::default()
                },
            })
        };
        let bar = |at_most| Bar {
            image: None,
            server: "tuff".to_owned(),
            against: Some("kernel".to_owned()),
            of: Figure::Time,
            pass: Pass::Cold,
            at_most,
        };
        let fetched = Bar {
            against: None,
            of: Figure::Fetched,
            ..bar(2.5)
        };
        vec![
            Line::Header(Header {
                format: crate::record::FORMAT,
                definition: "x".to_owned(),
                machine: crate::measure::machine::Machine::inspect().unwrap(),
                cache: Default::default(),
                work_filesystem: "ext4".to_owned(),
                servers: vec![
                    ("tuff".to_owned(), "1".to_owned()),
                    ("kernel".to_owned(), "2".to_owned()),
                ],
                seed: 1,
            }),
            Line::Workload(WorkloadLine {
                workload: "walk".to_owned(),
                image: "a & b".to_owned(),
                answer: Answer {
                    calls: 1,
                    bytes: 1 << 20,
                    sum: 0,
                },
                bars: vec![bar(0.9), bar(0.5), fetched],
            }),
            sample("tuff", 1, 8_000_000),
            sample("kernel", 1, 10_000_000),
            sample("tuff", 2, 8_000_000),
            sample("kernel", 2, 10_000_000),
        ]
    }

    #[test]
    fn medians_ratios_and_bars_are_in_the_table() {
        let lines = lines();
        let text = render(&gather(&lines));
        for expected in [
            "| a & b | cold | 8.0 [8.0..8.0] (0.80) | 10.0 [10.0..10.0] (1.00) |",
            "| a & b | warm | 4.0 [4.0..4.0] (0.80) | 5.0 [5.0..5.0] (1.00) |",
            "| walk | a & b | tuff | 8.0 (0.80) | 2.0 (0.20) | 4.0 (0.80) | - |",
            "| walk | a & b | tuff | 1.0 | 3.0 | - | - | - |",
            "| walk | a & b | tuff of kernel, cold | 0.90 | 0.80 | reached |",
            "| walk | a & b | tuff of kernel, cold | 0.50 | 0.80 | **missed** |",
            "| walk | a & b | tuff, fetched, MiB | 2.50 | 3.00 | **missed** |",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn a_brief_table_has_a_row_for_each_image_with_ratios() {
        let lines = lines();
        let expected = "| read | image | tuff, ms | kernel, ms |\n|---|---|--:|--:|\n\
                        | walk | a & b | 8.0 (0.80) | 10.0 (1.00) |\n";
        assert_eq!(brief(&gather(&lines)), expected);
    }

    #[test]
    fn a_plot_has_a_bar_for_each_server_and_no_raw_markup() {
        let lines = lines();
        let svg = plot(&gather(&lines)).unwrap();
        assert_eq!(svg.matches(" ms\n").count(), 2, "{svg}");
        assert!(svg.contains("walk, a &amp; b"));
    }
}
