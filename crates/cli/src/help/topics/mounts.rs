//! Verbs that transfer and mount images.

use super::super::topic::{DATE, HELPER, NONE, NOTIFY, Topic};

pub(super) const TOPICS: &[Topic] = &[
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
        environment: &[NOTIFY, HELPER],
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
        environment: &[HELPER],
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
];
