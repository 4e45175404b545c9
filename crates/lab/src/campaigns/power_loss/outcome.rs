//! Failures that rounds inject, and outcomes of rounds.

use super::load::{NEVER_WRITTEN, Promise, Verdict};
use crate::engines::filesystem::Place;
use std::path::Path;

/// Failure that a round injects, in the order of a round.
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
        !matches!(self, Failure::BitsForever | Failure::BitsBurst)
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

    /// Determines the outcome of a round after the power is back, and the first deviation.
    pub(in crate::campaigns) fn determine(
        place: &Place<'_>,
        promise: &Promise,
    ) -> (Outcome, Option<String>) {
        let is_right = || mount_and_judge(place, promise).is_ok_and(|verdict| verdict.right());
        let found = match mount_and_judge(place, promise) {
            Ok(verdict) if verdict.right() => {
                let Some(Err(found)) = place.check() else {
                    return (Outcome::Clean, None);
                };
                let is_mended = place.mend().is_ok() && place.check().is_none_or(|c| c.is_ok());
                if is_mended && is_right() {
                    return (Outcome::AutoFixed, Some(found));
                }
                found
            }
            Ok(Verdict {
                reported,
                silent: Some(what),
            }) if reported.is_none() || what.contains(NEVER_WRITTEN) => {
                // Wrong bytes count even if other files return errors.
                return (Outcome::Silent, Some(what));
            }
            Ok(Verdict { reported, .. }) => reported.unwrap_or_default(),
            Err(refused) => refused,
        };
        // The result of a failed repair is not trusted, even if the content is right.
        let after = match (place.repair(), mount_and_judge(place, promise)) {
            (Ok(()), Ok(verdict)) if verdict.right() => return (Outcome::NeedsFsck, Some(found)),
            (Err(what), _) => what,
            (_, Ok(Verdict { reported, silent })) => {
                let is_silent = reported.is_none();
                let what = reported.or(silent).unwrap_or_default();
                if is_silent && what.contains(NEVER_WRITTEN) {
                    let found = format!("{found}; after repair {what}");
                    return (Outcome::Silent, Some(found));
                }
                what
            }
            (_, Err(refused)) => refused,
        };
        let found = format!("{found}; after repair {after}");
        (Outcome::Fatal, Some(found))
    }
}

/// Mounts the filesystem, verifies everything and unmounts it. The error is the reason of a failed mount.
fn mount_and_judge(place: &Place<'_>, promise: &Promise) -> Result<Verdict, String> {
    place.mount("")?;
    let mut verdict = promise.judge(Path::new(place.point));
    if let Err(what) = place.unmount() {
        verdict.reported.get_or_insert(what);
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn volumes_have_to_be_clean_after_cuts_and_never_silent_after_bit_errors() {
        use Outcome::{AutoFixed, Clean, Fatal, Silent};
        for failure in Failure::value_variants() {
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
