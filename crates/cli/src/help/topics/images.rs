//! Verbs that create, read and verify images.

use super::super::topic::{DAMAGE, DATE, FINDINGS, NONE, TEMPORARY, Topic};

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        path: "build",
        common: &["output", "kernel", "compress", "auto", "exclude", "verify"],
        examples: &[
            (
                "Build an image of a directory",
                "tuff build rootfs/ image.erofs",
            ),
            (
                "Compress with Zstandard for Linux 6.12, and verify the result",
                "tuff build -z zstd:9 --kernel 6.12 --verify rootfs/ image.erofs",
            ),
            (
                "Convert a tar from standard input",
                "tuff build - image.erofs < layer.tar",
            ),
            (
                "Store only what a base image lacks",
                "tuff build --base base.erofs rootfs/ delta.erofs",
            ),
        ],
        environment: &[DATE, TEMPORARY],
        related: &["patch", "suggest", "check", "mount"],
        ..NONE
    },
    Topic {
        path: "disk",
        common: &["output", "sign", "arch", "flat", "compress", "exclude"],
        examples: &[
            (
                "Build a disk that systemd and virtual machines read",
                "tuff disk rootfs/ out.raw",
            ),
            (
                "Write the image, its hash tree and its root hash as files of their own",
                "tuff disk --flat rootfs/ flat.raw",
            ),
            (
                "Sign the root hash",
                "tuff disk --sign key.pem,cert.pem rootfs/ out.raw",
            ),
        ],
        environment: &[DATE, TEMPORARY],
        related: &["build", "sysext", "check", "verity"],
        ..NONE
    },
    Topic {
        path: "sysext",
        common: &["output", "release", "confext", "sign", "arch", "exclude"],
        examples: &[
            (
                "Build an extension for any system",
                "tuff sysext --release ID=_any tree/ tool.raw",
            ),
            (
                "Build one for Debian 13",
                "tuff sysext --release ID=debian --release VERSION_ID=13 tree/ tool.raw",
            ),
            (
                "Sign it",
                "tuff sysext --release ID=_any --sign key.pem,cert.pem tree/ tool.raw",
            ),
        ],
        environment: &[DATE, TEMPORARY],
        related: &["disk", "check"],
        ..NONE
    },
    Topic {
        path: "patch",
        common: &["output", "exclude", "verify", "quiet", "json"],
        examples: &[
            (
                "Update an image to the current state of a directory",
                "tuff patch rootfs/ image.erofs",
            ),
            (
                "Update it from a tar, and verify the result",
                "tuff patch --verify layer.tar image.erofs",
            ),
        ],
        environment: &[DATE],
        related: &["build", "diff"],
        ..NONE
    },
    Topic {
        path: "suggest",
        common: &["kernel", "sample", "quiet", "json"],
        examples: &[
            ("Compare options for a directory", "tuff suggest rootfs/"),
            (
                "Compare options for Linux 6.12 on a small sample",
                "tuff suggest --kernel 6.12 --sample 4M rootfs/",
            ),
        ],
        environment: &[("TMPDIR", "Directory of the trial images.")],
        related: &["build"],
        ..NONE
    },
    Topic {
        path: "info",
        common: &["brief", "files", "json"],
        examples: &[
            ("Show features and space usage", "tuff info image.erofs"),
            (
                "Print the superblock as JSON",
                "tuff info --brief --json image.erofs",
            ),
        ],
        related: &["dump", "stat"],
        ..NONE
    },
    Topic {
        path: "explore",
        common: &[],
        examples: &[
            ("Look around in an image", "tuff explore image.erofs"),
            (
                "Show what differs between two images",
                "tuff explore base.erofs image.erofs",
            ),
        ],
        related: &["report", "ls", "diff"],
        ..NONE
    },
    Topic {
        path: "report",
        common: &["output", "profile", "force", "json"],
        examples: &[
            (
                "Write a page about an image",
                "tuff report image.erofs -o report.html",
            ),
            (
                "Show what differs between two images",
                "tuff report base.erofs image.erofs -o changes.html",
            ),
            (
                "Mark what the programs of a recording read",
                "tuff report image.erofs --profile monday.profile -o start.html",
            ),
        ],
        related: &["explore", "info", "diff"],
        ..NONE
    },
    Topic {
        path: "stat",
        common: &["dereference", "extents", "json"],
        examples: &[
            (
                "Show the inode of a file",
                "tuff stat image.erofs etc/hostname",
            ),
            (
                "Add the extents of its data",
                "tuff stat --extents image.erofs etc/hostname",
            ),
        ],
        related: &["extents", "ls"],
        ..NONE
    },
    Topic {
        path: "extents",
        common: &["json"],
        examples: &[
            (
                "List the extents of a file",
                "tuff extents image.erofs etc/services",
            ),
            (
                "Print them as JSON",
                "tuff extents --json image.erofs etc/services",
            ),
        ],
        related: &["stat", "dump"],
        ..NONE
    },
    Topic {
        path: "dump",
        common: &["summary", "inode", "json"],
        examples: &[
            (
                "Show the table of space usage",
                "tuff dump --summary image.erofs",
            ),
            (
                "Print every structure",
                "tuff dump image.erofs > image.dump",
            ),
        ],
        related: &["info", "extents"],
        ..NONE
    },
    Topic {
        path: "diff",
        common: &["content_only", "quiet", "threads", "json"],
        examples: &[
            ("Compare two images", "tuff diff base.erofs image.erofs"),
            (
                "Compare an image and a directory",
                "tuff diff image.erofs rootfs/",
            ),
        ],
        failure: Some("The trees differ."),
        related: &["check", "patch"],
        ..NONE
    },
    Topic {
        path: "ls",
        common: &["long", "recursive", "directory", "null", "json"],
        examples: &[
            (
                "List a directory with attributes",
                "tuff ls -l image.erofs etc",
            ),
            (
                "Find all files with a suffix",
                "tuff ls image.erofs '*.conf'",
            ),
        ],
        related: &["stat", "cat"],
        ..NONE
    },
    Topic {
        path: "cat",
        examples: &[
            ("Print a file", "tuff cat image.erofs etc/hostname"),
            (
                "Copy a file out of the image",
                "tuff cat image.erofs etc/services > services",
            ),
        ],
        related: &["ls", "extract"],
        ..NONE
    },
    Topic {
        path: "extract",
        common: &["overwrite", "update", "exclude", "keep_going", "quiet"],
        examples: &[
            ("Extract everything", "tuff extract image.erofs restored/"),
            (
                "Extract one directory, or continue an interrupted extraction",
                "tuff extract --update image.erofs restored/ etc",
            ),
        ],
        failure: Some("Something could not be restored as it is in the image."),
        related: &["cat", "tar"],
        ..NONE
    },
    Topic {
        path: "tar",
        common: &["force", "no_sparse", "no_xattrs"],
        examples: &[
            (
                "Convert an image to a tar",
                "tuff tar image.erofs image.tar",
            ),
            (
                "Write one directory to standard output",
                "tuff tar image.erofs - etc > etc.tar",
            ),
        ],
        related: &["extract", "build"],
        ..NONE
    },
    Topic {
        path: "check",
        common: &["metadata", "errors_only", "threads", "quiet", "json"],
        examples: &[
            ("Check everything", "tuff check image.erofs"),
            (
                "Check only metadata, and print JSON",
                "tuff check --metadata --json image.erofs",
            ),
        ],
        failure: FINDINGS,
        related: &["verity", "diff"],
        ..NONE
    },
    Topic {
        path: "verity",
        examples: &[
            ("Add a hash tree to an image", "tuff verity add image.erofs"),
            (
                "Verify an image against a root hash",
                "tuff verity check sealed.erofs \"$ROOT_HASH\"",
            ),
        ],
        failure: DAMAGE,
        related: &["build", "check"],
        ..NONE
    },
    Topic {
        path: "verity add",
        common: &["into", "replace", "fec", "quiet", "json"],
        examples: &[
            (
                "Append a hash tree to an image",
                "tuff verity add image.erofs",
            ),
            (
                "Write tree and parity to a separate file",
                "tuff verity add --fec 2 --into image.verity image.erofs",
            ),
        ],
        related: &["verity check", "verity show"],
        ..NONE
    },
    Topic {
        path: "verity check",
        common: &["tree", "threads", "quiet", "json"],
        examples: &[
            (
                "Verify an image against a root hash",
                "tuff verity check sealed.erofs \"$ROOT_HASH\"",
            ),
            (
                "Print the result as JSON",
                "tuff verity check --json sealed.erofs \"$ROOT_HASH\"",
            ),
        ],
        failure: DAMAGE,
        related: &["verity repair", "check"],
        ..NONE
    },
    Topic {
        path: "verity repair",
        common: &["tree", "threads", "quiet", "json"],
        examples: &[
            (
                "Repair an image that has parity",
                "tuff verity repair sealed.erofs \"$ROOT_HASH\"",
            ),
            (
                "Print the result as JSON",
                "tuff verity repair --json sealed.erofs \"$ROOT_HASH\"",
            ),
        ],
        failure: Some("Something is still damaged."),
        related: &["verity check"],
        ..NONE
    },
    Topic {
        path: "verity show",
        common: &["tree", "json"],
        examples: &[
            (
                "Show the root hash and the veritysetup command",
                "tuff verity show sealed.erofs",
            ),
            (
                "Print the header as JSON",
                "tuff verity show --json sealed.erofs",
            ),
        ],
        related: &["verity add"],
        ..NONE
    },
];
