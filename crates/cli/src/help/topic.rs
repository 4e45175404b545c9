//! Parts of the help on a verb beyond its arguments, and those that several verbs share.

/// Help on a verb beyond its arguments.
pub(crate) struct Topic {
    /// Words that name the verb, such as `volume create`; empty for `tuff` itself.
    pub(crate) path: &'static str,
    /// Options that the short help shows, by their ids.
    pub(super) common: &'static [&'static str],
    /// Purposes and command lines; the short help shows two.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// Meaning of exit code 1, if the verb uses it.
    pub(crate) failure: Option<&'static str>,
    /// Environment variables that the verb reads, and their meanings.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Verbs that belong to the same task.
    pub(crate) related: &'static [&'static str],
}

/// Exit codes of every verb, apart from 1.
pub(crate) const EXIT_CODES: &[(&str, &str)] = &[
    (
        "0",
        "Success, also if the reader of standard output closed it early.",
    ),
    (
        "2",
        "Wrong arguments, a path that is not in the image, or another invalid request.",
    ),
    (
        "3",
        "The image, the volume, the stream or the source is corrupt.",
    ),
    (
        "4",
        "The image or volume uses an unsupported feature, or a limit was reached.",
    ),
    (
        "5",
        "The host failed: an unreadable file, a full disk, or a volume that is in use.",
    ),
    (
        "6",
        "No signature by the certificate of --trust comes with the image.",
    ),
    ("130", "Stopped by a signal."),
];

pub(super) const FINDINGS: Option<&str> = Some("The check has findings.");
pub(super) const DAMAGE: Option<&str> = Some("Something is damaged.");
pub(super) const DATE: (&str, &str) = (
    "SOURCE_DATE_EPOCH",
    "Latest time of an inode, in seconds since 1970.",
);
pub(super) const TEMPORARY: (&str, &str) = (
    "TMPDIR",
    "Directory of temporary files (default: that of IMAGE, or /tmp if IMAGE is not a regular file).",
);
pub(super) const NOTIFY: (&str, &str) = (
    "NOTIFY_SOCKET",
    "Socket of the service manager, which is told when the mount is ready.",
);

pub(super) const HELPER: (&str, &str) = (
    "FUSERMOUNT_PROG",
    "Program that mounts and unmounts for users without privileges (default: fusermount3).",
);

pub(super) const NONE: Topic = Topic {
    path: "",
    common: &[],
    examples: &[],
    failure: None,
    environment: &[],
    related: &[],
};
