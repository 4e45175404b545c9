//! Findings about what an image is verified by: hash tree, partition table and signature.

use serde_json::{Value, json};
use tuff_erofs::check::Severity;

/// Finding about what an image is verified by.
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) rule: &'static str,
    pub(super) place: String,
    pub(super) what: String,
}

impl Finding {
    /// Error of a rule.
    pub(super) fn error(rule: &'static str, place: &str, what: impl ToString) -> Self {
        Self {
            severity: Severity::Error,
            rule,
            place: place.to_owned(),
            what: what.to_string(),
        }
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{}[{}]: {}: {}",
            self.severity, self.rule, self.place, self.what
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({"severity": self.severity.to_string(), "rule": self.rule, "place": self.place, "message": self.what})
    }
}
