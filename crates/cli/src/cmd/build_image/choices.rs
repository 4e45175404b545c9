//! Names of the library's choices on the command line.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tuff_mkfs::{Auto, Dedupe, Fragments, InodeForm, Metadata, SparsePolicy, Whiteouts};

/// Value with its name, an alias and a line of help; either of the latter may be empty.
pub(super) type Choice<T> = (&'static str, T, &'static str, &'static str);

pub(super) const AUTO: &[Choice<Auto>] = &[
    ("size", Auto::Size, "", ""),
    ("balanced", Auto::Balanced, "", ""),
    ("speed", Auto::Speed, "", ""),
];
pub(super) const SWITCH: &[Choice<bool>] = &[("on", true, "", ""), ("off", false, "", "")];
pub(super) const FRAGMENTS: &[Choice<Fragments>] = &[
    ("off", Fragments::Off, "", ""),
    ("tails", Fragments::Tails, "on", ""),
    ("small", Fragments::Small, "", ""),
    ("all", Fragments::All, "", ""),
];
pub(super) const DEDUPE: &[Choice<Dedupe>] = &[
    ("off", Dedupe::Off, "", ""),
    ("files", Dedupe::Files, "on", ""),
    ("content", Dedupe::Content, "", ""),
];
/// Value: the index is compact.
pub(super) const INDEX: &[Choice<bool>] = &[("compact", true, "", ""), ("full", false, "", "")];
pub(super) const INODES: &[Choice<InodeForm>] = &[
    ("auto", InodeForm::Auto, "", ""),
    ("extended", InodeForm::Extended, "", ""),
];
pub(super) const METADATA: &[Choice<Metadata>] = &[
    ("plain", Metadata::Plain, "", ""),
    ("short", Metadata::Short, "", ""),
    ("compressed", Metadata::Compressed, "", ""),
];
pub(super) const SPARSE: &[Choice<SparsePolicy>] = &[
    ("auto", SparsePolicy::Auto, "", ""),
    ("keep", SparsePolicy::Keep, "", ""),
    ("fill", SparsePolicy::Fill, "", ""),
];
pub(super) const WHITEOUTS: &[Choice<Whiteouts>] = &[
    (
        "overlay",
        Whiteouts::Overlay,
        "",
        "Overlayfs whiteouts (device 0:0, opaque directories) delete entries of earlier sources",
    ),
    (
        "aufs",
        Whiteouts::Aufs,
        "",
        "AUFS and OCI whiteouts (.wh.NAME, .wh..wh..opq) delete entries of earlier sources",
    ),
    (
        "both",
        Whiteouts::Both,
        "",
        "Both forms delete entries of earlier sources",
    ),
    (
        "convert",
        Whiteouts::Convert,
        "",
        "Both forms delete, and are stored as overlayfs whiteouts: for a layer of an overlay",
    ),
    (
        "keep",
        Whiteouts::Keep,
        "",
        "Whiteouts are ordinary entries",
    ),
];

/// Parser of the names of `list`.
pub(super) fn choices<T: Copy + Send + Sync>(
    list: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let value = |(name, _, alias, help): &Choice<T>| {
        let value = PossibleValue::new(*name);
        let value = match *alias {
            "" => value,
            alias => value.alias(alias),
        };
        match *help {
            "" => value,
            help => value.help(help),
        }
    };
    PossibleValuesParser::new(list.iter().map(value)).map(|text| {
        let named = |(name, _, alias, _): &&Choice<T>| text == *name || text == *alias;
        let found = list.iter().find(named);
        found.expect("clap accepts only names of the list").1
    })
}
