//! Help on the verbs beyond their arguments, from `topics.txt`.
//!
//! ```text
//!  = Create                      heading of the verbs below it
//!  [build]                       words that name a verb; empty for tuff itself
//!  # Build an image              purpose of the example that follows
//!  tuff build rootfs/ image
//!  1 The trees differ.           meaning of an exit code; those of tuff itself hold for every verb
//!  $TMPDIR Temporary files.      environment variable; without a meaning, that of an earlier verb holds
//!  common: output kernel         options that the short help shows, by their ids
//!  related: patch, check         verbs that belong to the same task
//! ```

use std::sync::LazyLock;

/// Help on a verb beyond its arguments.
#[derive(Default)]
pub(crate) struct Topic {
    /// Heading of the verb in the help of `tuff`.
    pub(super) group: &'static str,
    /// Words that name the verb, such as `volume create`; empty for `tuff` itself.
    pub(crate) path: &'static str,
    /// Options that the short help shows, by their ids.
    pub(super) common: Vec<&'static str>,
    /// Purposes and command lines; the short help shows two.
    pub(crate) examples: Vec<(&'static str, &'static str)>,
    /// Exit codes that the verb gives a meaning of its own.
    pub(crate) exit_codes: Vec<(&'static str, &'static str)>,
    /// Environment variables that the verb reads, and their meanings.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// Verbs that belong to the same task.
    pub(crate) related: Vec<&'static str>,
}

/// Help on all verbs, in the order of the help of `tuff`.
pub(super) static TOPICS: LazyLock<Vec<Topic>> =
    LazyLock::new(|| parse(include_str!("topics.txt")));

/// Returns the help on a verb.
pub(crate) fn topic(path: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|topic| topic.path == path)
}

fn parse(text: &'static str) -> Vec<Topic> {
    let mut topics: Vec<Topic> = Vec::new();
    let (mut group, mut purpose) = ("", "");
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("= ") {
            group = name;
            continue;
        }
        if let Some(path) = line.strip_prefix('[') {
            let path = path.trim_end_matches(']');
            topics.push(Topic {
                group,
                path,
                ..Topic::default()
            });
            continue;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let known = topics.iter().flat_map(|topic| &topic.environment);
        let known = known
            .copied()
            .find(|(name, _)| word.strip_prefix('$') == Some(*name));
        let topic = topics.last_mut().expect("a verb is named first");
        match word {
            "#" => purpose = rest,
            "tuff" => topic.examples.push((purpose, line)),
            "common:" => topic.common = rest.split(' ').collect(),
            "related:" => topic.related = rest.split(", ").collect(),
            _ => match (word.strip_prefix('$'), known) {
                (Some(_), Some(variable)) if rest.is_empty() => topic.environment.push(variable),
                (Some(name), _) => topic.environment.push((name, rest)),
                (None, _) => topic.exit_codes.push((word, rest)),
            },
        }
    }
    topics
}
