//! Definitions: TOML files under `benchmarks/definitions` that state what a campaign measures.

use crate::options::Options;
use crate::{At, Error, Result};
use serde::de::DeserializeOwned;
use std::path::Path;

/// Ends of the names of participants that run the earlier program. The difference between the two is the spread of one program.
pub const RUNS: [&str; 2] = [", before", ", before again"];

/// Definition of a campaign.
pub trait Definition: DeserializeOwned {
    /// Checks references between entries and other constraints that the types do not express. The
    /// error is the reason.
    fn check(&self) -> Result<(), String>;

    /// Leaves out the programs of others and their bars, and repeats each participant of ours with the earlier program, twice
    /// ([`RUNS`]). Does nothing by default, for definitions without participants.
    fn compare_with_earlier(&mut self) {}

    /// Reads and checks a definition file.
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).at("read", path)?;
        Self::parse(&name(path), &text)
    }

    /// Returns the definition for these options: with an earlier program, [`Definition::compare_with_earlier`].
    fn for_options(mut self, options: &Options) -> Self {
        if options.earlier().is_some() {
            self.compare_with_earlier();
        }
        self
    }

    /// Parses and checks the text of a definition.
    fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |reason: &str| Error::Usage(format!("definition '{name}': {reason}"));
        let definition: Self = toml::from_str(text).map_err(|e| wrong(e.to_string().trim()))?;
        definition.check().map_err(|reason| wrong(&reason))?;
        Ok(definition)
    }
}

/// Returns the name of a definition: that of its file, without the extension.
pub fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Checks that names are unique among entries of one kind, such as "server".
pub fn check_unique(kind: &str, names: &[&str]) -> Result<(), String> {
    let mut all = names.iter().enumerate();
    match all.find(|(i, name)| names[..*i].contains(name)) {
        Some((_, name)) => Err(format!("two {kind}s are called '{name}'")),
        None => Ok(()),
    }
}

/// Checks that `name` is one of `names`.
pub fn check_known(kind: &str, names: &[&str], name: &str) -> Result<(), String> {
    match names.contains(&name) {
        true => Ok(()),
        false => Err(format!("there is no {kind} '{name}'")),
    }
}
