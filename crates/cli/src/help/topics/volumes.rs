//! Verbs of volumes.

use super::super::topic::{FINDINGS, NONE, NOTIFY, Topic};

pub(super) const TOPICS: &[Topic] = &[
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
];
