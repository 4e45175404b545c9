//! Groups, common options, examples, exit codes and environment variables of the verbs.

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

/// Help on a verb.
pub(crate) fn topic(path: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|topic| topic.path == path)
}

const FINDINGS: Option<&str> = Some("The check has findings.");
const DAMAGE: Option<&str> = Some("Something is damaged.");
const DATE: (&str, &str) = (
    "SOURCE_DATE_EPOCH",
    "Latest time of an inode, in seconds since 1970.",
);
const TEMPORARY: (&str, &str) = (
    "TMPDIR",
    "Directory of temporary files (default: that of IMAGE, or /tmp if IMAGE is not a regular file).",
);
const NOTIFY: (&str, &str) = (
    "NOTIFY_SOCKET",
    "Socket of the service manager, which is told when the mount is ready.",
);

const NONE: Topic = Topic {
    path: "",
    common: &[],
    examples: &[],
    failure: None,
    environment: &[],
    related: &[],
};

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
        path: "push",
        common: &["media_type", "platform", "quiet", "json"],
        examples: &[
            (
                "Build an image of a directory, and upload it to a registry",
                "tuff push rootfs/ oci://registry.example.org/team/app:v1",
            ),
            (
                "Upload an image to a bucket",
                "tuff push image.erofs s3://bucket/images/app.erofs",
            ),
            (
                "Convert a container image of a registry, layer by layer",
                "tuff push --layers docker://docker.io/debian:13 oci://registry.example.org/debian:13",
            ),
            (
                "Upload two images as the lower and the upper layer of one",
                "tuff push base.erofs app.erofs oci://registry.example.org/team/app:v1",
            ),
        ],
        environment: &[
            DATE,
            (
                "REGISTRY_AUTH_FILE",
                "File with logins of registries (default: those of containers and docker).",
            ),
            (
                "AWS_ENDPOINT_URL",
                "Service with the bucket; the other variables of aws count too.",
            ),
            (
                "TMPDIR",
                "Directory of the image that is built before the upload (default: /tmp).",
            ),
        ],
        related: &["pull", "build", "mount", "verity"],
        ..NONE
    },
    Topic {
        path: "pull",
        common: &["force", "root_hash", "trust", "quiet", "json"],
        examples: &[
            (
                "Copy an image from a registry",
                "tuff pull oci://registry.example.org/team/app:v1 app.erofs",
            ),
            (
                "Copy an image that a certificate has signed",
                "tuff pull --trust cert.pem s3://bucket/images/app.erofs app.erofs",
            ),
        ],
        related: &["push", "extract"],
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
    Topic {
        path: "mount",
        common: &[
            "options",
            "kernel",
            "foreground",
            "cache",
            "device",
            "verbose",
        ],
        examples: &[
            ("Mount an image without root", "tuff mount image.erofs mnt/"),
            (
                "Mount it in the kernel, and print how",
                "tuff mount --kernel --verbose image.erofs mnt/",
            ),
        ],
        environment: &[NOTIFY],
        related: &["umount", "stats", "profile"],
        ..NONE
    },
    Topic {
        path: "serve",
        common: &["into", "store", "store_max", "fill_rate"],
        examples: &[
            (
                "Serve the layers of an image to containerd",
                "tuff serve oci://registry.example.org/app --into /run/tuff --store /var/lib/tuff",
            ),
            (
                "Keep at most 200 GiB of complete layers",
                "tuff serve oci://registry.example.org/app --into /run/tuff --store /var/lib/tuff --store-max 200G",
            ),
        ],
        environment: &[NOTIFY],
        related: &["mount", "umount"],
        ..NONE
    },
    Topic {
        path: "umount",
        common: &["lazy"],
        examples: &[
            ("Unmount an image or a volume", "tuff umount mnt/"),
            ("Detach a mount that is in use", "tuff umount --lazy mnt/"),
        ],
        related: &["mount", "volume mount"],
        ..NONE
    },
    Topic {
        path: "stats",
        common: &["json"],
        examples: &[
            ("Show the counters of a mount", "tuff stats mnt/"),
            ("Print them as JSON", "tuff stats --json mnt/"),
        ],
        related: &["mount"],
        ..NONE
    },
    Topic {
        path: "profile",
        examples: &[
            ("Show a profile", "tuff profile show monday.profile"),
            (
                "Merge two profiles",
                "tuff profile merge -o both.profile monday.profile tuesday.profile",
            ),
        ],
        related: &["mount", "build"],
        ..NONE
    },
    Topic {
        path: "profile show",
        common: &["parts"],
        examples: &[
            (
                "List files in the order of their first use",
                "tuff profile show monday.profile",
            ),
            (
                "List every part that was read",
                "tuff profile show --parts monday.profile",
            ),
        ],
        related: &["profile merge", "mount"],
        ..NONE
    },
    Topic {
        path: "profile merge",
        common: &["output"],
        examples: &[
            (
                "Merge two profiles",
                "tuff profile merge -o both.profile monday.profile tuesday.profile",
            ),
            (
                "Write the merged profile to standard output",
                "tuff profile merge monday.profile tuesday.profile",
            ),
        ],
        related: &["profile show", "build"],
        ..NONE
    },
    Topic {
        path: "volume",
        examples: &[
            (
                "Create a volume of at most 10 GiB",
                "tuff volume create --size 10G new.vol",
            ),
            ("Mount it", "tuff volume mount data.vol mnt/"),
        ],
        failure: FINDINGS,
        related: &["umount"],
        ..NONE
    },
    Topic {
        path: "volume create",
        common: &["size", "file", "label", "json"],
        examples: &[
            (
                "Create a volume of at most 10 GiB",
                "tuff volume create --size 10G new.vol",
            ),
            (
                "Create a volume in one sparse file",
                "tuff volume create --size 1G --file new.img",
            ),
            (
                "Create a volume on a block device",
                "tuff volume create /dev/sdb",
            ),
        ],
        related: &["volume mount", "volume import"],
        ..NONE
    },
    Topic {
        path: "volume check",
        common: &["data", "repair", "quiet", "json"],
        examples: &[
            (
                "Check a volume, and verify its data",
                "tuff volume check --data data.vol",
            ),
            ("Repair a volume", "tuff volume check --repair data.vol"),
        ],
        failure: Some("The check has findings, or the repair changed something."),
        related: &["volume stat", "volume trim"],
        ..NONE
    },
    Topic {
        path: "volume stat",
        common: &["json"],
        examples: &[
            ("Show usage and host space", "tuff volume stat data.vol"),
            ("Print them as JSON", "tuff volume stat --json data.vol"),
        ],
        related: &["volume quota", "volume trim"],
        ..NONE
    },
    Topic {
        path: "volume trim",
        common: &["json"],
        examples: &[
            (
                "Return leaked blocks to the host",
                "tuff volume trim data.vol",
            ),
            (
                "Print the result as JSON",
                "tuff volume trim --json data.vol",
            ),
        ],
        related: &["volume stat", "volume check"],
        ..NONE
    },
    Topic {
        path: "volume mount",
        common: &["read_only", "foreground", "allow_other", "commit", "log"],
        examples: &[
            ("Mount a volume", "tuff volume mount data.vol mnt/"),
            (
                "Mount it read-only",
                "tuff volume mount --read-only data.vol mnt/",
            ),
        ],
        environment: &[NOTIFY],
        related: &["umount", "volume check"],
        ..NONE
    },
    Topic {
        path: "volume quota",
        common: &["user", "group", "project", "space", "inodes", "json"],
        examples: &[
            ("Show all limits", "tuff volume quota data.vol"),
            (
                "Limit a user to 10 GiB",
                "tuff volume quota data.vol --user 1000 --space 10G",
            ),
        ],
        related: &["volume stat"],
        ..NONE
    },
    Topic {
        path: "volume export",
        common: &["snapshot", "force"],
        examples: &[
            (
                "Convert a volume to a tar",
                "tuff volume export data.vol data.tar",
            ),
            (
                "Export a snapshot",
                "tuff volume export --snapshot monday data.vol monday.tar",
            ),
        ],
        related: &["volume import", "volume send"],
        ..NONE
    },
    Topic {
        path: "volume import",
        common: &["json"],
        examples: &[
            (
                "Copy a directory into a volume",
                "tuff volume import empty.vol rootfs/",
            ),
            (
                "Add another directory, and print the result as JSON",
                "tuff volume import --json data.vol update/",
            ),
        ],
        related: &["volume create", "volume export"],
        ..NONE
    },
    Topic {
        path: "volume send",
        common: &["from", "output", "force", "verbose"],
        examples: &[
            (
                "Write a full stream of a snapshot",
                "tuff volume send data.vol monday -o full.stream",
            ),
            (
                "Write the changes since an older snapshot",
                "tuff volume send data.vol tuesday --from monday -o changes.stream",
            ),
        ],
        related: &["volume receive", "volume snapshot"],
        ..NONE
    },
    Topic {
        path: "volume receive",
        common: &["input", "keep", "file", "force", "verbose"],
        examples: &[
            (
                "Create a copy from a full stream",
                "tuff volume receive copy.vol -i monday.stream",
            ),
            (
                "Apply the changes up to the next snapshot",
                "tuff volume receive copy.vol -i tuesday.stream",
            ),
        ],
        related: &["volume send"],
        ..NONE
    },
    Topic {
        path: "volume snapshot",
        examples: &[
            (
                "Create a snapshot",
                "tuff volume snapshot create data.vol friday",
            ),
            ("List all snapshots", "tuff volume snapshot list data.vol"),
        ],
        related: &["volume send", "volume export"],
        ..NONE
    },
    Topic {
        path: "volume snapshot create",
        examples: &[
            (
                "Create a snapshot",
                "tuff volume snapshot create data.vol friday",
            ),
            (
                "Create another one",
                "tuff volume snapshot create data.vol before-upgrade",
            ),
        ],
        related: &["volume snapshot list", "volume send"],
        ..NONE
    },
    Topic {
        path: "volume snapshot list",
        common: &["json"],
        examples: &[
            ("List all snapshots", "tuff volume snapshot list data.vol"),
            (
                "Print them as JSON",
                "tuff volume snapshot list --json data.vol",
            ),
        ],
        related: &["volume snapshot create", "volume snapshot delete"],
        ..NONE
    },
    Topic {
        path: "volume snapshot delete",
        examples: &[
            (
                "Delete a snapshot",
                "tuff volume snapshot delete data.vol monday",
            ),
            (
                "Delete the next one",
                "tuff volume snapshot delete data.vol tuesday",
            ),
        ],
        related: &["volume snapshot list", "volume trim"],
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
