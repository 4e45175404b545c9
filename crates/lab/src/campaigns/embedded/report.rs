//! Tables of a record: figures, power cuts and faulty devices, by filesystem.

use super::kind::{KINDS, Kind};
use super::record::{Cut, FAULTS, Header, Line, Quantity, Seen};
use crate::campaigns::power_loss::record::{OUTCOMES, Outcome};
use crate::measure::stats::median;
use std::fmt::Write as _;

/// Rows of the table of figures: title, quantity, divisor of the samples, digits after the point.
const ROWS: [(&str, Quantity, f64, usize); 13] = [
    ("kernel to process 1, s", Quantity::KernelBoot, 1e6, 1),
    ("small root: mount, ms", Quantity::RootMount, 1e3, 1),
    ("small root: first program, ms", Quantity::RootStart, 1e3, 0),
    (
        "empty partition: not for files, %",
        Quantity::Overhead,
        1e4,
        1,
    ),
    ("60 % full: mount, ms", Quantity::Mount, 1e3, 1),
    ("fio read 128K, MiB/s", Quantity::FioRead, 1024.0, 1),
    ("fio randread 4K, MiB/s", Quantity::FioRandomRead, 1024.0, 1),
    ("fio write 128K, MiB/s", Quantity::FioWrite, 1024.0, 1),
    (
        "fio randwrite 4K, MiB/s",
        Quantity::FioRandomWrite,
        1024.0,
        1,
    ),
    (
        "fio randwrite 4K, fsync, MiB/s",
        Quantity::FioSyncWrite,
        1024.0,
        2,
    ),
    (
        "kernel threads during fio, CPU ms",
        Quantity::ThreadsBusy,
        1e3,
        0,
    ),
    (
        "kernel threads, 5 s idle, CPU ms",
        Quantity::ThreadsIdle,
        1e3,
        1,
    ),
    ("60 % full: check, ms", Quantity::Check, 1e3, 0),
];

/// Renders the tables as Markdown, after the conditions.
pub fn render(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        if let Line::Header(header) = line {
            out.push_str(&heading(header));
        }
    }
    figures(lines, &mut out);
    for (synced, title) in [
        (true, "power cut, every operation synced"),
        (false, "power cut, one operation in 24 synced"),
    ] {
        cuts(lines, synced, title, &mut out);
    }
    faults(lines, &mut out);
    let mut missing = lines.iter().filter_map(|line| match line {
        Line::Without(w) => Some(format!(
            "* {}, {}: {}",
            w.filesystem.name(),
            w.part,
            w.reason
        )),
        _ => None,
    });
    if let Some(first) = missing.next() {
        let _ = writeln!(out, "\nWithout a result:\n\n{first}");
        missing.for_each(|line| out.push_str(&format!("{line}\n")));
    }
    out
}

fn heading(header: &Header) -> String {
    let mut out = format!(
        "Guest kernel {}; small root of {:.1} MiB; large partition of {} MiB, or {} MiB on raw flash, 60 % full; seed {}.\n",
        header.guest,
        header.root_bytes as f64 / 1_048_576.0,
        header.partition_mib,
        header.flash_mib,
        header.seed
    );
    out.push_str(
        "\nThe CPU of the guest is emulated unless the host has KVM. Emulation stretches computation (compression, checksums, \
         the ECC of nandsim) far more than I/O, which ends in the memory of the host: compare times within this table only.\n",
    );
    out
}

fn figures(lines: &[Line], out: &mut String) {
    let of = |kind: Kind, quantity: Quantity| {
        lines.iter().find_map(|line| match line {
            Line::Figure(f) if f.filesystem == kind && f.figure == quantity => {
                // Microseconds and KiB/s are exact in this type.
                let samples: Vec<f64> = f.samples.iter().map(|s| *s as f64).collect();
                median(&samples)
            }
            _ => None,
        })
    };
    let has_figure = |kind: &Kind| ROWS.iter().any(|row| of(*kind, row.1).is_some());
    let kinds: Vec<Kind> = KINDS.into_iter().filter(has_figure).collect();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let _ = writeln!(
        out,
        "\n| | {} |\n|---|{}",
        names.join(" | "),
        "--:|".repeat(kinds.len())
    );
    for (title, quantity, divisor, digits) in ROWS {
        let _ = write!(out, "| {title} |");
        for kind in &kinds {
            let _ = match of(*kind, quantity) {
                Some(sample) => write!(out, " {:.digits$} |", sample / divisor),
                None => write!(out, " – |"),
            };
        }
        out.push('\n');
    }
}

fn cuts(lines: &[Line], synced: bool, title: &str, out: &mut String) {
    let rounds: Vec<&Cut> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Cut(cut) if cut.synced == synced => Some(cut),
            _ => None,
        })
        .collect();
    if rounds.is_empty() {
        return;
    }
    let names = OUTCOMES.map(Outcome::name).join(" | ");
    let _ = writeln!(
        out,
        "\n| {title} | rounds | {names} |\n|---|--:|--:|--:|--:|--:|--:|"
    );
    for kind in KINDS {
        let of: Vec<&&Cut> = rounds.iter().filter(|cut| cut.filesystem == kind).collect();
        if of.is_empty() {
            continue;
        }
        let _ = write!(out, "| {} | {} |", kind.name(), of.len());
        for outcome in OUTCOMES {
            let count = of.iter().filter(|cut| cut.outcome == outcome).count();
            let _ = write!(out, " {count} |");
        }
        out.push('\n');
    }
}

fn faults(lines: &[Line], out: &mut String) {
    let mut rows = String::new();
    for fault in FAULTS {
        for line in lines {
            if let Line::Fault(round) = line
                && round.fault == fault
            {
                let _ = writeln!(
                    rows,
                    "| {} | {} | {} |",
                    fault.name(),
                    round.filesystem.name(),
                    cells(&round.seen)
                );
            }
        }
    }
    if !rows.is_empty() {
        let _ = write!(
            out,
            "\n| fault of the device | filesystem | failed operations | turned read-only | synced files | lost or unreadable | silently wrong | next mount |\n|---|---|--:|---|--:|--:|--:|---|\n{rows}"
        );
    }
}

fn cells(seen: &Seen) -> String {
    format!(
        "{} | {} | {} | {} | {} | {}",
        seen.errors,
        if seen.read_only { "yes" } else { "no" },
        seen.files,
        seen.lost,
        seen.wrong,
        seen.mount_error.as_deref().unwrap_or("succeeds"),
    )
}
