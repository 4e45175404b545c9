//! Tables generated from records.
//!
//! A value is the median of the samples that count, with range and median absolute deviation. A ratio is one
//! of medians; its range is that of the ratios within each round, whose runs are adjacent in time.
//!
//! The table lists tools that dropped out. The notes below it hold their reasons and the differences from the
//! source tree.

mod bars;
mod gather;

use gather::ratio_of;
pub use gather::{Case, Gathered, Subject, gather};

use crate::engines::settings::Action;
use crate::verify::Judge;
use std::fmt::Write;

/// Level of detail of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Every tool of every task, then notes, bars and command lines.
    Full,
    /// A row for each pair of `tuff` and a rival.
    Brief,
    /// Bars with limits and measured values.
    Bars,
}

/// Renders a report as Markdown.
pub fn render(gathered: &Gathered, style: Style) -> String {
    let mut out = String::new();
    match style {
        Style::Full => full(&mut out, gathered),
        Style::Brief => brief(&mut out, gathered),
        Style::Bars => bars::table(&mut out, gathered),
    }
    out.truncate(out.trim_end().len());
    out.push_str("\n\n");
    for line in &gathered.conditions {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "{line}");
    }
    out
}

fn full(out: &mut String, gathered: &Gathered) {
    for (title, cases) in sections(&gathered.cases) {
        let _ = writeln!(out, "**{title}**\n");
        out.push_str("| task | tool | wall, s | min..max (MAD) | wall ratio | CPU, s | memory, MiB | image, MiB | size ratio |\n");
        out.push_str("|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
        for case in &cases {
            for (i, subject) in case.subjects.iter().enumerate() {
                let task = if i == 0 { case.task.task.as_str() } else { "" };
                full_row(out, task, case, subject);
            }
        }
        out.push('\n');
        notes(out, &cases);
    }
    if gathered.cases.iter().any(|c| !c.task.bars.is_empty()) {
        out.push_str("**Bars**\n\n");
        bars::table(out, gathered);
        out.push('\n');
    }
    out.push_str("**Command lines**\n\n");
    let mut shown = Vec::new();
    for case in &gathered.cases {
        let made = case.made.iter().map(|m| ("image", &m.command));
        let ran = case
            .subjects
            .iter()
            .map(|s| (s.line.label.as_str(), &s.line.command));
        for (label, command) in made.chain(ran) {
            let line = format!(
                "- {} {}, {label}: `{command}`",
                case.task.action, case.task.task
            );
            if !shown.contains(&line) {
                let _ = writeln!(out, "{line}");
                shown.push(line);
            }
        }
    }
}

fn full_row(out: &mut String, task: &str, case: &Case, subject: &Subject) {
    let label = named(case, subject);
    let Some(wall) = subject.wall() else {
        let _ = writeln!(out, "| {task} | {label} | dropped out | | | | | | |");
        return;
    };
    let incumbent = case.incumbent();
    let ratio = incumbent.and_then(|i| ratio_of(subject, i, Subject::wall_by_round));
    let sizes = incumbent.and_then(|i| Some(subject.image_bytes()? / i.image_bytes()?));
    let _ = writeln!(
        out,
        "| {task} | {label} | {} | {}..{} ({}) | {} | {} | {} | {} | {} |",
        seconds(wall.median),
        seconds(wall.min),
        seconds(wall.max),
        seconds(wall.mad),
        ratio.map_or("-".to_owned(), |r| r.shown()),
        subject.cpu().map_or("-".to_owned(), |s| seconds(s.median)),
        subject
            .memory()
            .map_or("-".to_owned(), |s| mebibytes(s.median)),
        subject.image_bytes().map_or("-".to_owned(), mebibytes),
        sizes.map_or("-".to_owned(), |s| format!("{s:.3}")),
    );
}

fn named(case: &Case, subject: &Subject) -> String {
    let bold = case.task.incumbent.as_deref() != Some(&subject.line.label) && subject.is_ours();
    match (bold, subject.version == "?") {
        (true, true) => format!("**{}**", subject.line.label),
        (true, false) => format!("**{}** {}", subject.line.label, subject.version),
        (false, true) => subject.line.label.clone(),
        (false, false) => format!("{} {}", subject.line.label, subject.version),
    }
}

/// Writes a row for each pair of `tuff` and a rival.
fn brief(out: &mut String, gathered: &Gathered) {
    out.push_str("| task | tree | tuff, s | compared with | s | wall ratio (by round) | memory, MiB | image, MiB | size ratio |\n");
    out.push_str("|---|---|--:|---|--:|--:|--:|--:|--:|\n");
    for case in &gathered.cases {
        let (ours, rivals): (Vec<_>, Vec<_>) = case.subjects.iter().partition(|s| s.is_ours());
        for our in &ours {
            for rival in &rivals {
                brief_row(out, case, our, rival);
            }
        }
    }
    let cases: Vec<&Case> = gathered.cases.iter().collect();
    out.push('\n');
    notes(out, &cases);
}

fn brief_row(out: &mut String, case: &Case, our: &Subject, rival: &Subject) {
    let time = |s: &Subject| {
        s.wall()
            .map_or("dropped out".to_owned(), |w| seconds(w.median))
    };
    let memory = |s: &Subject| s.memory().map_or("-".to_owned(), |m| mebibytes(m.median));
    let image = |s: &Subject| s.image_bytes().map_or("-".to_owned(), mebibytes);
    let ratio = ratio_of(our, rival, Subject::wall_by_round);
    let build = case.task.action == Action::Build;
    let sizes = our.image_bytes().zip(rival.image_bytes()).filter(|_| build);
    let label = if our.line.label == "tuff" {
        String::new()
    } else {
        format!(" ({})", our.line.label)
    };
    let _ = writeln!(
        out,
        "| {} {}{label} | {} | {} | {} {} | {} | {} | {} / {} | {} / {} | {} |",
        case.task.action,
        case.task.task,
        case.task.tree,
        time(our),
        rival.line.label,
        rival.version,
        time(rival),
        ratio.map_or("-".to_owned(), |r| r.shown()),
        memory(our),
        memory(rival),
        image(our),
        image(rival),
        sizes.map_or("-".to_owned(), |(a, b)| format!("{:.3}", a / b)),
    );
}

/// Groups cases by action and tree, in the order of first occurrence, with a title for each group.
fn sections(cases: &[Case]) -> Vec<(String, Vec<&Case>)> {
    let mut sections: Vec<(String, Vec<&Case>)> = Vec::new();
    for case in cases {
        let action = match case.task.action {
            Action::Build => "Build",
            Action::Extract => "Extract",
            Action::Check => "Check",
        };
        let title = format!(
            "{action}, {}: {} entries, {} MiB",
            case.task.tree,
            grouped(case.tree.size.entries),
            grouped(case.tree.size.bytes >> 20)
        );
        match sections.iter_mut().find(|(t, _)| *t == title) {
            Some((_, list)) => list.push(case),
            None => sections.push((title, vec![case])),
        }
    }
    sections
}

/// Writes remarks on the results, each once.
fn notes(out: &mut String, cases: &[&Case]) {
    let mut notes: Vec<String> = Vec::new();
    let mut note = |text: String| {
        if !notes.contains(&text) {
            notes.push(text);
        }
    };
    for case in cases {
        for subject in &case.subjects {
            let label = &subject.line.label;
            if let Some(reason) = &subject.failed {
                note(format!(
                    "{}, {}: {label} dropped out: {}.",
                    case.task.tree,
                    case.task.task,
                    reason.trim_end_matches('.')
                ));
            }
            for verdict in &subject.verdicts {
                for difference in verdict.differ.iter().filter(|_| verdict.wrong.is_none()) {
                    note(format!(
                        "{label}: some {} differ from the source.",
                        difference.facet
                    ));
                }
                if let Judge::ExtractedBy(tool) = &verdict.judge {
                    note(format!(
                        "{label}: not mounted; verified by extraction with {}.",
                        tool.name()
                    ));
                }
            }
            for text in &subject.line.notes {
                note(format!("{text}."));
            }
        }
        for made in &case.made {
            note(format!("Input images built by {}.", made.tool.name()));
        }
        if case.task.cold {
            note(format!(
                "{}: caches dropped before each sample.",
                case.task.task
            ));
        }
    }
    let fine = || {
        cases
            .iter()
            .flat_map(|c| &c.subjects)
            .filter(|s| s.failed.is_none())
    };
    let samples = || fine().flat_map(|s| &s.samples);
    let kept = samples().filter(|s| s.kept).count();
    let loud = samples().filter(|s| s.kept && s.loud).count();
    let again = samples().filter(|s| !s.kept && s.loud).count();
    let warm = cases.iter().filter(|c| !c.task.cold);
    let warm = warm
        .flat_map(|c| &c.subjects)
        .filter(|s| s.failed.is_none());
    let warm = warm.flat_map(|s| &s.samples).filter(|s| s.kept);
    let in_memory = warm.clone().count();
    let cold = warm.filter(|s| s.usage.read_bytes > 0).count();
    if loud > 0 {
        note(format!(
            "Noise: in {loud} of {kept} samples, other processes used more CPU time than permitted."
        ));
    }
    if again > 0 {
        note(format!("Samples repeated because of noise: {again}."));
    }
    if cold > 0 {
        note(format!(
            "In {cold} of {in_memory} warm samples, data was read from a device."
        ));
    }
    for text in &notes {
        let _ = writeln!(out, "- {text}");
    }
    if !notes.is_empty() {
        out.push('\n');
    }
}

/// Formats seconds with three significant digits, but at most three decimals.
fn seconds(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

fn mebibytes(bytes: f64) -> String {
    let value = bytes / f64::from(1 << 20);
    if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::gather::tests::example;
    use super::*;

    #[test]
    fn the_full_report_is_this_text() {
        let expected = "\
**Build, root: 21,016 entries, 1,024 MiB**

| task | tool | wall, s | min..max (MAD) | wall ratio | CPU, s | memory, MiB | image, MiB | size ratio |
|---|---|--:|--:|--:|--:|--:|--:|--:|
| LZ4 4K | **tuff** 0.1.0 | 2.00 | 1.80..2.40 (0.200) | 0.50 (0.45..0.60) | 4.00 | 100 | 512 | 0.985 |
|  | mkfs.erofs 1.9.3 | 4.00 | 4.00..4.20 (0.000) | 1.00 | 8.00 | 90.0 | 520 | 1.000 |
|  | mksquashfs 4.5.1 | dropped out | | | | | | |

- mkfs.erofs: some nanoseconds differ from the source.
- root, LZ4 4K: mksquashfs dropped out: exit code 1: no such algorithm.
- Noise: in 1 of 6 samples, other processes used more CPU time than permitted.
- Samples repeated because of noise: 1.

**Bars**

| task | tree | measure | at most | measured | |
|---|---|---|--:|--:|---|
| build LZ4 4K | root | wall time, tuff of mkfs.erofs | 1.000 | 0.500 | reached |
| build LZ4 4K | root | image size, tuff of mkfs.erofs | 0.9800 | 0.9846 | **missed** |
| build LZ4 4K | root | peak memory, tuff | 300 MiB | 110 MiB | reached |
| build LZ4 4K | root | wall time, tuff of mksquashfs | 1.000 | - | not measured |

**Command lines**

- build LZ4 4K, tuff: `tuff build TREE IMAGE`
- build LZ4 4K, mkfs.erofs: `mkfs.erofs IMAGE TREE`
- build LZ4 4K, mksquashfs: `mksquashfs TREE IMAGE`

Example CPU, 2 CPUs, virtual, 8.0 GiB of memory, Linux 6.1.0 x86_64, Example OS 1. Caches warm; results on tmpfs.
Medians of interleaved rounds. tuff 0.1.0; mkfs.erofs (erofs-utils) 1.9.3; mksquashfs version 4.5.1.
";
        assert_eq!(render(&example(), Style::Full), expected);
    }

    #[test]
    fn the_brief_report_is_this_text() {
        let expected = "\
| task | tree | tuff, s | compared with | s | wall ratio (by round) | memory, MiB | image, MiB | size ratio |
|---|---|--:|---|--:|--:|--:|--:|--:|
| build LZ4 4K | root | 2.00 | mkfs.erofs 1.9.3 | 4.00 | 0.50 (0.45..0.60) | 100 / 90.0 | 512 / 520 | 0.985 |
| build LZ4 4K | root | 2.00 | mksquashfs 4.5.1 | dropped out | - | 100 / - | 512 / - | - |

- mkfs.erofs: some nanoseconds differ from the source.
- root, LZ4 4K: mksquashfs dropped out: exit code 1: no such algorithm.
- Noise: in 1 of 6 samples, other processes used more CPU time than permitted.
- Samples repeated because of noise: 1.

";
        let text = render(&example(), Style::Brief);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn numbers_have_the_figures_that_matter() {
        assert_eq!(
            [0.0123, 1.234, 12.34, 123.4].map(seconds),
            ["0.012", "1.23", "12.3", "123"]
        );
        assert_eq!(mebibytes(1_572_864.0), "1.5");
        assert_eq!(
            [7, 1234, 1_234_567].map(grouped),
            ["7", "1,234", "1,234,567"]
        );
    }
}
