//! Fact about the host, and its forms of output.

use super::host::Host;
use crate::text::escaped_line;
use serde_json::{Value, json};
use std::fmt;

/// Usefulness of a part of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Everything works that depends on it.
    Ok,
    /// Works in part, or could not be determined.
    Limited,
    /// Does not work on this host.
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// Part of the host that verbs use.
#[derive(Debug)]
pub(super) struct Fact {
    /// Name in lower case; stays the same between versions.
    pub(super) name: &'static str,
    pub(super) state: State,
    /// Use that the verbs make of it.
    purpose: String,
    /// Evidence for the state.
    found: String,
    /// Remedy, unless all is well.
    advice: Option<String>,
}

/// Fact whose state is not yet known.
pub(super) struct Question {
    name: &'static str,
    purpose: String,
}

impl Fact {
    /// Begins a fact, whose state the [`Question`] takes.
    pub(super) fn about(name: &'static str, purpose: impl Into<String>) -> Question {
        Question {
            name,
            purpose: purpose.into(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name, "state": self.state.name(), "purpose": self.purpose, "found": self.found,
            "advice": self.advice,
        })
    }
}

impl Question {
    pub(super) fn ok(self, found: impl Into<String>) -> Fact {
        self.fact(State::Ok, found.into(), None)
    }

    /// The state of what only root can use.
    pub(super) fn for_root(self, host: &Host, found: &str, advice: impl Into<String>) -> Fact {
        match host.is_root {
            true => self.ok(found),
            false => self.limited("it needs root", advice),
        }
    }

    pub(super) fn limited(self, found: impl Into<String>, advice: impl Into<String>) -> Fact {
        self.fact(State::Limited, found.into(), Some(advice.into()))
    }

    pub(super) fn missing(self, found: impl Into<String>, advice: impl Into<String>) -> Fact {
        self.fact(State::Missing, found.into(), Some(advice.into()))
    }

    fn fact(self, state: State, found: String, advice: Option<String>) -> Fact {
        Fact {
            name: self.name,
            state,
            purpose: self.purpose,
            found,
            advice,
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, found) = (self.state.name(), escaped_line(&self.found));
        write!(f, "{state:<8} {:<16} {}: {found}", self.name, self.purpose)?;
        match &self.advice {
            Some(advice) => write!(f, "; {}", escaped_line(advice)),
            None => Ok(()),
        }
    }
}
