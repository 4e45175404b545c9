//! Table of a record: cost of each load in each place, and the speed relative to ext4 or the host.

use super::load::{LOADS, Load};
use super::place::{Kind, PLACES};
use super::record::{Header, Sample};
use crate::measure::stats::Spread;
use std::fmt::Write as _;

/// Returns the bar of a load: the required share of the speed of another place. None if there is no
/// requirement.
fn bar(load: Load) -> Option<(Kind, f64)> {
    match load {
        Load::Write | Load::Read => Some((Kind::Ext4, 0.8)),
        Load::Make | Load::Delete | Load::Overwrite => Some((Kind::Ext4, 0.5)),
        Load::Fdatasync => Some((Kind::Host, 1.0 / 1.5)),
        Load::Beside | Load::BesideTail | Load::BesideLongest => None,
    }
}

/// Renders the table as Markdown, after a line about the machine.
pub fn render(header: &Header, samples: &[Sample]) -> String {
    let machine = &header.machine;
    let mut out = format!(
        "{}, {} processors, {}, on {}; {} rounds. Medians; parentheses hold the speed relative to ext4 in the same round: median, minimum, maximum.\n\n",
        machine.cpu, machine.cpus_allowed, machine.kernel, header.host, header.rounds
    );
    let names = PLACES.map(Kind::name).join(" | ");
    let _ = writeln!(out, "| | {names} | bar |\n|---|--:|--:|--:|--:|---|");
    for load in LOADS {
        let of = |place| costs(samples, load, place);
        if of(Kind::Ext4).is_empty() {
            continue;
        }
        let _ = write!(out, "| {} ", load.name());
        for place in PLACES {
            let costs = of(place);
            let all: Vec<f64> = costs.iter().map(|(_, cost)| cost / 1e3).collect();
            let Some(spread) = Spread::of(&all) else {
                let _ = write!(out, "| ");
                continue;
            };
            let _ = write!(out, "| {}", figure(spread.median));
            let ratios = speeds(&costs, &of(Kind::Ext4));
            if let Some(ratio) = Spread::of(&ratios).filter(|_| place != Kind::Ext4) {
                let _ = write!(
                    out,
                    " ({:.2}, {:.2}, {:.2})",
                    ratio.median, ratio.min, ratio.max
                );
            }
            let _ = write!(out, " ");
        }
        let said = bar(load).and_then(|(rival, least)| {
            let ratios = speeds(&of(Kind::Zones), &of(rival));
            let median = Spread::of(&ratios)?.median;
            let place = if rival == Kind::Host {
                "the host"
            } else {
                "ext4"
            };
            let held = if median >= least { "met" } else { "missed" };
            Some(format!("{least:.2} of {place}: {median:.2}, {held}"))
        });
        let _ = writeln!(out, "| {} |", said.unwrap_or_default());
    }
    out
}

/// Returns the costs of a load in a place, each with its round.
fn costs(samples: &[Sample], load: Load, place: Kind) -> Vec<(u32, f64)> {
    samples
        .iter()
        .filter(|s| s.load == load && s.place == place)
        .map(|s| (s.round, s.cost))
        .collect()
}

/// Returns the speed relative to the rival in each round that has both.
fn speeds(ours: &[(u32, f64)], rival: &[(u32, f64)]) -> Vec<f64> {
    ours.iter()
        .filter_map(|(round, cost)| {
            let (_, other) = rival.iter().find(|(r, _)| r == round)?;
            Some(other / cost)
        })
        .collect()
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
    use crate::measure::machine::Machine;

    #[test]
    fn speeds_compare_the_same_round_and_bars_are_judged() {
        let sample = |round, place, load, cost| Sample {
            round,
            place,
            load,
            cost,
        };
        let samples = [
            sample(1, Kind::Zones, Load::Make, 30_000.0),
            sample(1, Kind::Ext4, Load::Make, 15_000.0),
            sample(2, Kind::Zones, Load::Make, 40_000.0),
            sample(2, Kind::Ext4, Load::Make, 10_000.0),
            sample(3, Kind::Zones, Load::Make, 1.0),
        ];
        assert_eq!(
            speeds(
                &costs(&samples, Load::Make, Kind::Zones),
                &costs(&samples, Load::Make, Kind::Ext4)
            ),
            [0.5, 0.25]
        );
        let header = Header {
            format: crate::record::FORMAT,
            machine: Machine::inspect().unwrap(),
            host: "ext4".to_owned(),
            rounds: 3,
        };
        let table = render(&header, &samples);
        assert!(table.contains("(0.38, 0.25, 0.50)"), "{table}");
        assert!(table.contains("0.50 of ext4: 0.38, missed"), "{table}");
        assert!(!table.contains("delete"), "{table}");
    }
}
