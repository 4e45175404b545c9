//! Tables of a record: counts of outcomes by failure and filesystem.

use super::kind::Kind;
use super::record::{FAILURES, Failure, Header, Line, OUTCOMES, Outcome, Round};
use std::fmt::Write as _;

/// Renders the tables as Markdown, after a line about the conditions.
pub fn render(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        match line {
            Line::Header(header) => out.push_str(&heading(header)),
            Line::Without(without) => {
                let name = without.filesystem.name();
                let _ = writeln!(out, "\nNot tested: {name} ({}).", without.reason);
            }
            Line::Round(_) => {}
        }
    }
    for failure in FAILURES {
        out.push_str(&table(lines, failure));
    }
    out
}

/// Returns the first round in which a volume failed. A volume must be clean after every power cut on a disk
/// that honours flushes, and must never return wrong data silently after bit errors.
pub fn failed(lines: &[Line]) -> Option<&Round> {
    rounds(lines).find(|round| {
        let fine = match round.failure {
            Failure::CutSync | Failure::CutAsync => round.outcome == Outcome::Clean,
            Failure::CutLying => true,
            Failure::BitsForever | Failure::BitsBurst => round.outcome != Outcome::Silent,
        };
        round.filesystem == Kind::Volume && !fine
    })
}

fn heading(header: &Header) -> String {
    let versions: Vec<&str> = header.filesystems.iter().map(|(_, v)| v.as_str()).collect();
    format!(
        "{}; {}; seed {}. Rounds by outcome.\n",
        header.machine.kernel,
        versions.join("; "),
        header.seed
    )
}

fn rounds(lines: &[Line]) -> impl Iterator<Item = &Round> {
    lines.iter().filter_map(|line| match line {
        Line::Round(round) => Some(round),
        _ => None,
    })
}

fn table(lines: &[Line], failure: Failure) -> String {
    let mut kinds: Vec<Kind> = Vec::new();
    for round in rounds(lines).filter(|r| r.failure == failure) {
        if !kinds.contains(&round.filesystem) {
            kinds.push(round.filesystem);
        }
    }
    if kinds.is_empty() {
        return String::new();
    }
    let names = OUTCOMES.map(Outcome::name).join(" | ");
    let mut out = format!(
        "\n| {} | rounds | {names} |\n|---|--:|--:|--:|--:|--:|--:|\n",
        failure.name()
    );
    for kind in kinds {
        let of: Vec<&Round> = rounds(lines)
            .filter(|r| r.failure == failure && r.filesystem == kind)
            .collect();
        let _ = write!(out, "| {} | {} ", kind.name(), of.len());
        for outcome in OUTCOMES {
            let count = of.iter().filter(|r| r.outcome == outcome).count();
            let _ = write!(out, "| {count} ");
        }
        out.push_str("|\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(filesystem: Kind, failure: Failure, outcome: Outcome) -> Line {
        Line::Round(Round {
            round: 1,
            filesystem,
            failure,
            seed: 1,
            writes: 1,
            wrong_bits: 0,
            outcome,
            found: None,
        })
    }

    #[test]
    fn outcomes_are_counted_and_volumes_are_judged() {
        let fine = [
            round(Kind::Volume, Failure::CutSync, Outcome::Clean),
            round(Kind::Volume, Failure::CutLying, Outcome::Fatal),
            round(Kind::Volume, Failure::BitsBurst, Outcome::Fatal),
            round(Kind::Ext4, Failure::CutSync, Outcome::NeedsFsck),
            round(Kind::Ext4, Failure::CutSync, Outcome::Clean),
            round(Kind::Ext4, Failure::BitsBurst, Outcome::Silent),
        ];
        assert!(failed(&fine).is_none());
        let table = render(&fine);
        assert!(
            table.contains("| ext4 | 2 | 1 | 0 | 1 | 0 | 0 |"),
            "{table}"
        );
        for (failure, outcome) in [
            (Failure::CutAsync, Outcome::AutoFixed),
            (Failure::BitsForever, Outcome::Silent),
        ] {
            let lines = [round(Kind::Volume, failure, outcome)];
            assert_eq!(failed(&lines).map(|r| r.failure), Some(failure));
        }
    }
}
