//! Time at which discards are issued.

use std::str::FromStr;

/// Time at which a mount issues the discards that its checkpoints allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DiscardPolicy {
    /// All of them after each checkpoint.
    #[default]
    Eager,
    /// At most 8 per round, and only if there was no request for 50 ms, as F2FS.
    Polite,
    /// At most 16 per round of 50 ms, whether or not there are requests, as the published IPLFS.
    Dispatch,
}

impl DiscardPolicy {
    /// Maximum number of discards in a round, and whether it waits for an idle device. None without rounds.
    pub(super) fn round(self) -> Option<(usize, bool)> {
        match self {
            Self::Eager => None,
            Self::Polite => Some((8, true)),
            Self::Dispatch => Some((16, false)),
        }
    }
}

impl FromStr for DiscardPolicy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "eager" => Ok(Self::Eager),
            "polite" => Ok(Self::Polite),
            "dispatch" => Ok(Self::Dispatch),
            _ => Err(format!(
                "{s:?} is no discard policy: expected eager, polite or dispatch"
            )),
        }
    }
}
