//! Verbs that write, with their inputs and the states that a kill may leave.

use serde::Deserialize;
use std::sync::LazyLock;

/// Rule for the state after a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rule {
    /// Each path has its old or its new content. Paths that exist in neither state are temporary.
    #[default]
    OldOrNew,
    /// The new directory has its name with all of its content, or does not exist. Paths outside of it are temporary.
    WholeOrNone,
    /// As [`Rule::OldOrNew`] for files from 1 MiB on, and for the others any content: they are written in place.
    LargeOldOrNew,
    /// The image, which grows in place, shows the same tree as before.
    SameTree,
    /// Each block of the image, which is repaired in place, has its old or its new content.
    BlocksOldOrNew,
    /// The registry has no manifest under the tag, or the new one, whose blobs are all there. Files as in [`Rule::OldOrNew`].
    Pushed,
}

/// Verb with its arguments and inputs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Verb {
    pub(super) name: String,
    /// Arguments. Words in capitals stand for files of the fixture.
    pub(super) arguments: String,
    /// Additional arguments of the run after a kill that left an output, for verbs that refuse one.
    #[serde(default)]
    pub(super) again: String,
    /// Files of the fixture that are copied into the folder, as `NAME=FILE`.
    #[serde(default)]
    pub(super) files: Vec<String>,
    #[serde(default)]
    pub(super) rule: Rule,
}

/// All verbs, in the order of the report.
pub(super) static VERBS: LazyLock<Vec<Verb>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Table {
        verb: Vec<Verb>,
    }
    let table: Table = toml::from_str(include_str!("verbs.toml")).expect("a table that tests read");
    table.verb
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        assert!(VERBS.len() >= 24);
    }
}
