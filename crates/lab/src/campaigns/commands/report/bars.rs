//! Table of bars: limits and measured values.

use super::gather::{Case, Gathered, Subject, ratio_of};
use crate::campaigns::commands::definition::{Bar, Limit, Measure};
use std::fmt::Write;

/// Writes a row for each bar.
pub(super) fn table(out: &mut String, gathered: &Gathered) {
    out.push_str("| task | tree | measure | at most | measured | |\n");
    out.push_str("|---|---|---|--:|--:|---|\n");
    for case in &gathered.cases {
        for bar in &case.task.bars {
            row(out, case, bar);
        }
    }
}

fn row(out: &mut String, case: &Case, bar: &Bar) {
    let found = found(case, bar);
    let (limit, shown) = match bar.at_most {
        Limit::Ratio(ratio) => (ratio, ratio_text as fn(f64, Measure) -> String),
        // Exact: sizes are far below 2^53.
        Limit::Bytes(size) => (size.0 as f64, bytes_text as fn(f64, Measure) -> String),
    };
    let against = bar
        .against
        .as_ref()
        .map_or(String::new(), |a| format!(" of {a}"));
    let verdict = match found {
        Some(found) if found <= limit => "reached",
        Some(_) => "**missed**",
        None => "not measured",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "| {} {} | {} | {}, {}{against} | {} | {} | {verdict} |",
        case.task.action,
        case.task.task,
        case.task.tree,
        bar.measure,
        bar.run,
        shown(limit, bar.measure),
        found.map_or("-".to_owned(), |f| shown(f, bar.measure)),
    );
}

/// Returns the ratio of medians, or the bytes of the worst sample. None without samples.
fn found(case: &Case, bar: &Bar) -> Option<f64> {
    let run = case.subject(&bar.run)?;
    let Some(against) = &bar.against else {
        return match bar.measure {
            Measure::Memory => run.memory().map(|s| s.max),
            Measure::Size => run.image_bytes(),
            Measure::Wall | Measure::Cpu => None,
        };
    };
    let other = case.subject(against)?;
    match bar.measure {
        Measure::Wall => ratio_of(run, other, Subject::wall_by_round).map(|r| r.of_medians),
        Measure::Cpu => ratio_of(run, other, Subject::cpu_by_round).map(|r| r.of_medians),
        Measure::Memory => Some(run.memory()?.median / other.memory()?.median),
        Measure::Size => Some(run.image_bytes()? / other.image_bytes()?),
    }
}

/// Formats a ratio. Sizes get one more digit, because a single block exceeds a bar of 1.
fn ratio_text(value: f64, measure: Measure) -> String {
    if measure == Measure::Size {
        format!("{value:.4}")
    } else {
        format!("{value:.3}")
    }
}

fn bytes_text(value: f64, _: Measure) -> String {
    format!("{:.0} MiB", value / f64::from(1 << 20))
}
