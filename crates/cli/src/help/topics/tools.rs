//! `tuff` itself, the command lines of erofs-utils, and the verbs for a host.

use super::super::topic::{DATE, NONE, Topic};

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        path: "",
        examples: &[
            (
                "Build an image of a directory",
                "tuff build rootfs/ image.erofs",
            ),
            ("Check it, and list its files", "tuff check image.erofs"),
            ("Mount it without root", "tuff mount image.erofs mnt/"),
        ],
        failure: Some("A check, a comparison or an extraction has findings."),
        related: &["build", "mount", "check", "volume"],
        ..NONE
    },
    Topic {
        path: "mkfs.erofs",
        examples: &[
            (
                "Build an image compressed with LZ4HC",
                "tuff mkfs.erofs -zlz4hc image.erofs rootfs/",
            ),
            (
                "Build an image with fixed times",
                "tuff mkfs.erofs -T0 image.erofs rootfs/",
            ),
        ],
        failure: Some("Any error: this verb has the exit codes of mkfs.erofs."),
        environment: &[DATE],
        related: &["build"],
        ..NONE
    },
    Topic {
        path: "fsck.erofs",
        examples: &[
            ("Check an image", "tuff fsck.erofs image.erofs"),
            (
                "Extract an image",
                "tuff fsck.erofs --extract=restored image.erofs",
            ),
        ],
        failure: Some("Any error or finding: this verb has the exit codes of fsck.erofs."),
        related: &["check", "extract"],
        ..NONE
    },
    Topic {
        path: "dump.erofs",
        examples: &[
            ("Show the superblock", "tuff dump.erofs -s image.erofs"),
            (
                "Show a file and its extents",
                "tuff dump.erofs --path=/etc/hostname -e image.erofs",
            ),
        ],
        failure: Some("Any error: this verb has the exit codes of dump.erofs."),
        related: &["info", "stat"],
        ..NONE
    },
    Topic {
        path: "doctor",
        common: &["quiet", "json"],
        examples: &[
            ("Show what this host can do", "tuff doctor"),
            (
                "Show only what is limited or missing",
                "tuff doctor --quiet",
            ),
        ],
        environment: &[
            (
                "TMPDIR",
                "Directory of a test image of 4 KiB, as root (default: /tmp).",
            ),
            (
                "XDG_CACHE_HOME",
                "Directory of the cache that is examined (default: ~/.cache).",
            ),
        ],
        related: &["mount", "push", "pull"],
        ..NONE
    },
    Topic {
        path: "man",
        examples: &[
            ("Write the manual pages", "tuff man man1/"),
            (
                "Install them for one user",
                "tuff man .local/share/man/man1",
            ),
        ],
        related: &["completions"],
        ..NONE
    },
    Topic {
        path: "completions",
        examples: &[
            (
                "Write completions for bash",
                "tuff completions bash > tuff.bash",
            ),
            ("Write completions for zsh", "tuff completions zsh > _tuff"),
        ],
        failure: Some("The command line (-- WORD...) does not end with a path in an image."),
        related: &["man"],
        ..NONE
    },
];
