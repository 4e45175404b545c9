//! Failures that rounds inject, and outcomes of rounds.

/// Failure that a round injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Failure {
    /// Power cut; every operation is synced before the next one
    CutSync,
    /// Power cut; one operation in 24 is synced
    CutAsync,
    /// Power cut as in cut-sync, but the disk ignores flushes
    CutLying,
    /// After a random write, one write in 16 has a bit error
    BitsForever,
    /// Eight consecutive writes have a bit error each
    BitsBurst,
}

/// All failures in the order of a round.
pub const FAILURES: [Failure; 5] = [
    Failure::CutSync,
    Failure::CutAsync,
    Failure::CutLying,
    Failure::BitsForever,
    Failure::BitsBurst,
];

impl Failure {
    /// Name of the table column or row.
    pub fn name(self) -> &'static str {
        match self {
            Failure::CutSync => "power cut, every operation synced",
            Failure::CutAsync => "power cut, one operation in 24 synced",
            Failure::CutLying => "power cut, every operation synced, the disk ignores flushes",
            Failure::BitsForever => "bit errors in one of 16 writes",
            Failure::BitsBurst => "bit errors in eight consecutive writes",
        }
    }

    /// True if the failure is a power cut.
    pub fn is_cut(self) -> bool {
        matches!(
            self,
            Failure::CutSync | Failure::CutAsync | Failure::CutLying
        )
    }

    /// True if a volume may have this outcome. It must be clean after every power cut on a disk that honours
    /// flushes, and must never return wrong data silently after bit errors.
    pub fn permits(self, outcome: Outcome) -> bool {
        match self {
            Failure::CutSync | Failure::CutAsync => outcome == Outcome::Clean,
            Failure::CutLying => true,
            Failure::BitsForever | Failure::BitsBurst => outcome != Outcome::Silent,
        }
    }
}

/// Outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It mounts, all promises hold, and the check finds nothing.
    Clean,
    /// Clean after the automatic repair of the filesystem.
    AutoFixed,
    /// Clean after a manual repair.
    NeedsFsck,
    /// Promised data is lost even after a repair, and errors report it.
    Fatal,
    /// Promised data is missing or wrong, and no error reports it.
    Silent,
}

/// Names of all outcomes from best to worst.
pub const OUTCOMES: [&str; 5] = [
    Outcome::Clean.name(),
    Outcome::AutoFixed.name(),
    Outcome::NeedsFsck.name(),
    Outcome::Fatal.name(),
    Outcome::Silent.name(),
];

impl Outcome {
    /// Name of the table column or row.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Clean => "clean",
            Outcome::AutoFixed => "auto-fixed",
            Outcome::NeedsFsck => "needs fsck",
            Outcome::Fatal => "fatal",
            Outcome::Silent => "silent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_to_be_clean_after_cuts_and_never_silent_after_bit_errors() {
        use Outcome::{AutoFixed, Clean, Fatal, Silent};
        for failure in FAILURES {
            let permitted = [Clean, AutoFixed, Fatal, Silent].map(|o| failure.permits(o));
            let expected = match failure {
                Failure::CutSync | Failure::CutAsync => [true, false, false, false],
                Failure::CutLying => [true; 4],
                Failure::BitsForever | Failure::BitsBurst => [true, true, true, false],
            };
            assert_eq!(permitted, expected, "{}", failure.name());
        }
    }
}
