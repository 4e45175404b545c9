//! Verbs that write, with their inputs and the states that a kill may leave.

/// Rule for the state after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Each path has its old or its new content. Paths that exist in neither state are temporary.
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
pub(super) struct Verb {
    pub(super) name: &'static str,
    /// Arguments. Words in capitals stand for files of the fixture.
    pub(super) arguments: &'static str,
    /// Additional arguments of the run after a kill that left an output, for verbs that refuse one.
    pub(super) again: &'static str,
    /// Files of the fixture that are copied into the folder, as `NAME=FILE`.
    pub(super) files: &'static [&'static str],
    pub(super) rule: Rule,
}

const VERB: Verb = Verb {
    name: "",
    arguments: "",
    again: "",
    files: &[],
    rule: Rule::OldOrNew,
};

/// All verbs, in the order of the report.
pub(super) const VERBS: [Verb; 24] = [
    Verb {
        name: "build",
        arguments: "build -q -z lz4 TREE o.erofs",
        ..VERB
    },
    Verb {
        name: "build, replaced",
        arguments: "build -q -z lz4 TREE o.erofs",
        files: &["o.erofs=newer.erofs"],
        ..VERB
    },
    Verb {
        name: "build, hash tree",
        arguments: "build -q -z lz4 --verity TREE o.erofs",
        ..VERB
    },
    Verb {
        name: "build, blob",
        arguments: "build -q -z none --chunk=4K --blob=o.blob TREE o.erofs",
        ..VERB
    },
    Verb {
        name: "build, delta",
        arguments: "build -q --base IMAGE NEWER o.erofs",
        ..VERB
    },
    Verb {
        name: "mkfs.erofs",
        arguments: "mkfs.erofs --quiet -zlz4 o.erofs TREE",
        ..VERB
    },
    Verb {
        name: "patch",
        arguments: "patch -q NEWER o.erofs",
        files: &["o.erofs=image.erofs"],
        ..VERB
    },
    Verb {
        name: "patch --compact",
        arguments: "patch -q --compact o.erofs",
        files: &["o.erofs=patched.erofs"],
        ..VERB
    },
    Verb {
        name: "tar",
        arguments: "tar IMAGE o.tar",
        ..VERB
    },
    Verb {
        name: "tar, replaced",
        arguments: "tar --force IMAGE o.tar",
        files: &["o.tar=image.erofs"],
        ..VERB
    },
    Verb {
        name: "extract",
        arguments: "extract -q IMAGE o",
        again: "--overwrite",
        rule: Rule::WholeOrNone,
        ..VERB
    },
    Verb {
        name: "extract --overwrite",
        arguments: "extract -q --overwrite IMAGE o",
        files: &["o=newer"],
        rule: Rule::LargeOldOrNew,
        ..VERB
    },
    Verb {
        name: "fsck.erofs --extract",
        arguments: "fsck.erofs --extract=o IMAGE",
        rule: Rule::LargeOldOrNew,
        again: "--overwrite",
        ..VERB
    },
    Verb {
        name: "pull",
        arguments: "pull -q oci://HOST/app:stored o.erofs",
        ..VERB
    },
    Verb {
        name: "pull, replaced",
        arguments: "pull -q oci://HOST/app:stored o.erofs",
        files: &["o.erofs=newer.erofs"],
        ..VERB
    },
    Verb {
        name: "push",
        arguments: "push -q SEALED oci://HOST/app:new",
        rule: Rule::Pushed,
        ..VERB
    },
    Verb {
        name: "push, directory",
        arguments: "push -q TREE oci://HOST/app:new",
        rule: Rule::Pushed,
        ..VERB
    },
    Verb {
        name: "disk",
        arguments: "disk -q TREE o.raw",
        ..VERB
    },
    Verb {
        name: "disk --flat",
        arguments: "disk -q --flat TREE o.raw",
        again: "--force",
        ..VERB
    },
    Verb {
        name: "sysext",
        arguments: "sysext -q --release ID=_any TREE o.raw",
        ..VERB
    },
    Verb {
        name: "verity add",
        arguments: "verity add -q o.erofs",
        again: "--replace",
        files: &["o.erofs=image.erofs"],
        rule: Rule::SameTree,
    },
    Verb {
        name: "verity add --into",
        arguments: "verity add -q --fec 2 --into o.verity IMAGE",
        ..VERB
    },
    Verb {
        name: "verity repair",
        arguments: "verity repair -q o.erofs ROOT",
        files: &["o.erofs=damaged.erofs"],
        rule: Rule::BlocksOldOrNew,
        ..VERB
    },
    Verb {
        name: "report",
        arguments: "report IMAGE -o o.html",
        ..VERB
    },
];
