//! Tables of a record: throughput, latency and CPU time of each cell and place, and the costs of places.

use super::cell::{Cell, Figures, all};
use super::place::{Cost, PLACES, Where};
use super::record::{Header, Line, Sample};
use crate::measure::stats::median;
use std::fmt::Write as _;

/// Group of places, and the rival: the place that each is compared with.
struct Group {
    title: &'static str,
    places: Vec<Where>,
    rival: Where,
}

fn groups() -> [Group; 2] {
    let (disks, images) = PLACES.into_iter().partition(|place| place.is_writable());
    [
        Group {
            title: "Volumes and filesystems",
            places: disks,
            rival: Where::Ext4,
        },
        Group {
            title: "Images",
            places: images,
            rival: Where::Kernel,
        },
    ]
}

/// Figure of a cell that a table shows.
struct Aspect {
    title: &'static str,
    value: fn(&Figures) -> f64,
    /// True if higher values are better.
    more: bool,
}

const ASPECTS: [Aspect; 4] = [
    Aspect {
        title: "MB/s",
        value: |f| f.bytes as f64 / f.ns.max(1) as f64 * 1e3,
        more: true,
    },
    Aspect {
        title: "median latency, us",
        value: |f| f.median_ns / 1e3,
        more: false,
    },
    Aspect {
        title: "99th percentile latency, us",
        value: |f| f.tail_ns / 1e3,
        more: false,
    },
    Aspect {
        title: "CPU time, us per MiB",
        value: |f| f.cpu_us as f64 / (f.bytes.max(1) as f64 / 1_048_576.0),
        more: false,
    },
];

/// Renders all tables of a record as Markdown.
pub fn render(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        if let Line::Header(header) = line {
            out.push_str(&heading(header));
        }
    }
    for group in groups() {
        for aspect in &ASPECTS {
            out.push_str(&table(lines, &group, aspect));
        }
    }
    out.push_str(&costs(lines));
    out.push_str(&failures(lines));
    out
}

/// Renders the tables of throughput and costs as Markdown.
pub fn brief(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        if let Line::Header(header) = line {
            out.push_str(&heading(header));
        }
    }
    for group in groups() {
        out.push_str(&table(lines, &group, &ASPECTS[0]));
    }
    out.push_str(&costs(lines));
    out.push_str(&failures(lines));
    out
}

fn heading(header: &Header) -> String {
    let machine = &header.machine;
    let versions: Vec<&str> = header.programs.iter().map(|(_, v)| v.as_str()).collect();
    format!(
        "{}, {} processors, {}, on {}; {}; a file of {} MiB, {} rounds. Medians; parentheses hold the median ratio to {} or {} in the same round.\n",
        machine.cpu,
        machine.cpus_allowed,
        machine.kernel,
        header.host,
        versions.join("; "),
        header.file_mib,
        header.rounds,
        Where::Ext4.name(),
        Where::Kernel.name(),
    )
}

fn samples(lines: &[Line]) -> impl Iterator<Item = &Sample> {
    lines.iter().filter_map(|line| match line {
        Line::Sample(sample) => Some(sample),
        _ => None,
    })
}

fn table(lines: &[Line], group: &Group, aspect: &Aspect) -> String {
    let there = |place: &&Where| samples(lines).any(|s| s.place == **place);
    let places: Vec<Where> = group.places.iter().filter(there).copied().collect();
    if places.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = places.iter().map(|place| place.name()).collect();
    let mut out = format!(
        "\n| {}: {} | {} |\n|---|{}\n",
        group.title,
        aspect.title,
        names.join(" | "),
        "--:|".repeat(names.len())
    );
    let values = |cell: &Cell, place: Where| -> Vec<(u32, f64)> {
        samples(lines)
            .filter(|s| s.cell == *cell && s.place == place)
            .map(|s| (s.round, (aspect.value)(&s.figures)))
            .collect()
    };
    for cell in all() {
        if !samples(lines).any(|s| s.cell == cell && places.contains(&s.place)) {
            continue;
        }
        let _ = write!(out, "| {} ", cell.name());
        let rival = values(&cell, group.rival);
        for &place in &places {
            let own = values(&cell, place);
            let all: Vec<f64> = own.iter().map(|(_, value)| *value).collect();
            match median(&all) {
                None => out.push_str("| - "),
                Some(value) => {
                    let _ = write!(out, "| {}", figure(value));
                    let ratio = ratio(&own, &rival).filter(|_| place != group.rival);
                    let _ = match ratio {
                        Some(ratio) => write!(out, " ({ratio:.2}) "),
                        None => write!(out, " "),
                    };
                }
            }
        }
        out.push_str("|\n");
    }
    let _ = writeln!(
        out,
        "\n{} is better.",
        if aspect.more { "Higher" } else { "Lower" }
    );
    out
}

/// Median of the ratios to the rival, over the rounds that have both.
fn ratio(own: &[(u32, f64)], rival: &[(u32, f64)]) -> Option<f64> {
    let both = own.iter().filter_map(|(round, value)| {
        let (_, other) = rival.iter().find(|(r, _)| r == round)?;
        Some(value / other)
    });
    median(&both.collect::<Vec<f64>>())
}

fn costs(lines: &[Line]) -> String {
    const COSTS: [(Cost, &str); 5] = [
        (Cost::Mount, "mount, ms"),
        (Cost::Check, "check, ms"),
        (Cost::Empty, "KiB on the host when empty"),
        (Cost::Withheld, "KiB of 4 GiB unavailable"),
        (Cost::Image, "image size / file size"),
    ];
    let of = |place: Where, cost: Cost| {
        let all = lines.iter().filter_map(|line| match line {
            Line::Costs(costs) if costs.place == place => {
                costs.costs.iter().find(|(c, _)| *c == cost)
            }
            _ => None,
        });
        median(&all.map(|(_, value)| *value).collect::<Vec<f64>>())
    };
    let names: Vec<&str> = COSTS.iter().map(|(_, name)| *name).collect();
    let mut out = format!(
        "\n| place | {} |\n|---|{}\n",
        names.join(" | "),
        "--:|".repeat(names.len())
    );
    for place in PLACES {
        let values = COSTS.map(|(cost, _)| of(place, cost));
        if values.iter().all(Option::is_none) {
            continue;
        }
        let shown = values.map(|value| value.map_or("-".to_owned(), figure));
        let _ = writeln!(out, "| {} | {} |", place.name(), shown.join(" | "));
    }
    out
}

fn failures(lines: &[Line]) -> String {
    let mut said: Vec<String> = Vec::new();
    for line in lines {
        if let Line::Failed(failed) = line {
            let what = failed.cell.as_deref().unwrap_or("all cells");
            let text = format!("* {}, {what}: {}", failed.place.name(), failed.reason);
            if !said.contains(&text) {
                said.push(text);
            }
        }
    }
    match said.is_empty() {
        true => String::new(),
        false => format!("\nNot measured:\n\n{}\n", said.join("\n")),
    }
}

/// Formats a value with three significant digits.
fn figure(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_the_same_round() {
        let own = [(1, 10.0), (2, 30.0), (3, 99.0)];
        assert_eq!(ratio(&own, &[(1, 5.0), (2, 10.0)]), Some(2.5));
        assert_eq!(ratio(&own, &[]), None);
    }

    #[test]
    fn a_cell_without_a_sample_is_shown_as_a_dash() {
        let sample = |place, direct, bytes| {
            Line::Sample(Sample {
                round: 1,
                place,
                cell: Cell {
                    direct,
                    ..all()[0].clone()
                },
                figures: Figures {
                    bytes,
                    ns: 1000,
                    median_ns: 1.0,
                    tail_ns: 1.0,
                    cpu_us: 1,
                },
            })
        };
        let lines = [
            sample(Where::Kernel, false, 200),
            sample(Where::Tuff, false, 300),
            sample(Where::Tuff, true, 50),
        ];
        let out = brief(&lines);
        let row = "| sequential read, 1 MiB, buffered | 300 (1.50) | 200 |";
        assert!(out.contains(row), "{out}");
        let row = "| sequential read, 1 MiB, direct | 50.0 | - |";
        assert!(out.contains(row), "{out}");
        assert!(!out.contains("ext4 |"), "{out}");
    }
}
