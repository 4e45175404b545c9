//! Common options, examples, exit codes and environment variables of the verbs, and their groups.

mod images;
mod mounts;
mod tools;
mod volumes;

use super::topic::Topic;

/// Verbs by purpose, in the order of the help.
pub(super) const GROUPS: &[(&str, &[&str])] = &[
    ("Create", &["build", "disk", "sysext", "patch", "suggest"]),
    (
        "Inspect",
        &[
            "explore", "report", "info", "stat", "extents", "dump", "diff",
        ],
    ),
    ("Read", &["ls", "cat", "extract", "tar"]),
    ("Verify", &["check", "verity"]),
    ("Transfer", &["push", "pull"]),
    ("Mount", &["mount", "umount", "serve", "stats", "profile"]),
    ("Volumes", &["volume"]),
    ("Compatibility", &["mkfs.erofs", "fsck.erofs", "dump.erofs"]),
    ("Setup", &["doctor", "man", "completions"]),
];

/// Help on all verbs.
pub(super) fn all() -> impl Iterator<Item = &'static Topic> {
    let topics = [
        images::TOPICS,
        mounts::TOPICS,
        volumes::TOPICS,
        tools::TOPICS,
    ];
    topics.into_iter().flatten()
}

/// Help on a verb.
pub(crate) fn topic(path: &str) -> Option<&'static Topic> {
    all().find(|topic| topic.path == path)
}
