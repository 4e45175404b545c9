//! Violation of a rule.

use std::fmt;

/// Violation of a rule.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seed that repeats it.
    pub seed: u64,
    /// Name of the verb or attack.
    pub subject: &'static str,
    /// Description of the violation, with the place.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}: {}", self.seed, self.subject, self.what)
    }
}
