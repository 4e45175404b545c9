//! Comparison with an earlier program of ours: the ratio of each round, and the spread of the earlier program against itself.

use super::table::{Figure, distinct, number};
use crate::definition::RUNS;
use crate::measure::stats::Spread;
use crate::record::{Labels, Record};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Largest median of the ratios of a program that is not slower.
const RATIO_MAX: f64 = 1.02;

/// Renders a row for each participant and figure that an earlier program has, too. `label` names the participants.
pub(crate) fn render(record: &Record, label: &str, figures: &[Figure]) -> String {
    let [before, again] = RUNS;
    let mut rows = String::new();
    let cells = record.samples.iter().map(|sample| &sample.cell);
    for cell in distinct(cells.filter(|c| c.contains_key(label)).cloned()) {
        let Some(name) = cell[label].strip_suffix(before) else {
            continue;
        };
        let named = |name: String| {
            let mut cell = cell.clone();
            cell.insert(label.to_owned(), name);
            cell
        };
        let (new, other) = (named(name.to_owned()), named(name.to_owned() + again));
        for figure in figures {
            let of = |cell: &Labels| by_round(record, cell, figure);
            row(&mut rows, &new, figure, [of(&cell), of(&new), of(&other)]);
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "\n**Beside the earlier program**\n\nRatio: median of the ratios of the rounds, at most {RATIO_MAX} or within the ratios of the \
         earlier program to itself.\n\n\
         | participant | figure | earlier | this | ratio | earlier to itself | |\n|---|---|--:|--:|--:|--:|---|\n{rows}"
    )
}

fn row(
    rows: &mut String,
    cell: &Labels,
    figure: &Figure,
    [before, new, again]: [BTreeMap<u32, f64>; 3],
) {
    let ratios = |of: &BTreeMap<u32, f64>| -> Vec<f64> {
        let pairs = of
            .iter()
            .filter_map(|(round, value)| Some(value / before.get(round)?));
        pairs.filter(|ratio| ratio.is_finite()).collect()
    };
    let median = |of: &BTreeMap<u32, f64>| {
        let values: Vec<f64> = of.values().copied().collect();
        Spread::from_samples(&values).map_or(String::new(), |spread| number(spread.median))
    };
    let (Some(ratio), Some(itself)) = (
        Spread::from_samples(&ratios(&new)),
        Spread::from_samples(&ratios(&again)),
    ) else {
        return;
    };
    let verdict = match ratio.median {
        ratio if ratio <= RATIO_MAX => "reached",
        ratio if ratio <= itself.max => "within the spread",
        _ => "**missed**",
    };
    let names: Vec<&str> = cell.values().map(String::as_str).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(
        rows,
        "| {} | {} | {} | {} | {:.3} | {:.3}..{:.3} | {verdict} |",
        names.join(", "),
        figure.title,
        median(&before),
        median(&new),
        ratio.median,
        itself.min,
        itself.max,
    );
}

/// Returns the values of a cell by round, in the unit of the figure.
fn by_round(record: &Record, cell: &Labels, figure: &Figure) -> BTreeMap<u32, f64> {
    let samples = record.samples.iter().filter(|sample| sample.cell == *cell);
    let value = |sample: &crate::record::Sample| {
        let value = sample.values.get(figure.value)?;
        Some((sample.round, value / figure.divisor))
    };
    samples.filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, Line, labels};

    const WALL: Figure = Figure::new("wall_ns", "wall, s", 1e9);

    fn rendered(times: &[(&str, [f64; 3])]) -> String {
        let mut lines = vec![Line::Header(Header::here("commands", []).unwrap())];
        for (name, times) in times {
            for (round, seconds) in (1..).zip(times) {
                let cell = labels([("task", "t"), ("tool", name)]);
                lines.push(Line::sample(cell, round, [("wall_ns", seconds * 1e9)]));
            }
        }
        render(&Record::collect(lines).unwrap(), "tool", &[WALL])
    }

    #[test]
    fn a_slower_program_misses_the_bar_unless_the_earlier_one_varies_as_much() {
        let before = ("tuff, before", [1.0, 2.0, 4.0]);
        let same = rendered(&[
            ("tuff", [1.01, 2.02, 4.04]),
            before,
            ("tuff, before again", [1.0, 2.0, 4.0]),
        ]);
        assert!(
            same.contains("| t, tuff | wall, s | 2 | 2.02 | 1.010 | 1.000..1.000 | reached |"),
            "{same}"
        );
        let slow = ("tuff", [1.1, 2.2, 4.0]);
        let missed = rendered(&[slow, before, ("tuff, before again", [1.05, 2.0, 4.0])]);
        assert!(
            missed.contains("| 1.100 | 1.000..1.050 | **missed** |"),
            "{missed}"
        );
        let within = rendered(&[slow, before, ("tuff, before again", [1.2, 2.0, 4.0])]);
        assert!(
            within.contains("| 1.100 | 1.000..1.200 | within the spread |"),
            "{within}"
        );
        assert_eq!(rendered(&[slow, ("mkfs.erofs", [1.0; 3])]), "");
    }
}
