//! Extended attributes of overlayfs.

use super::Pairs;

/// The name of an attribute of overlayfs, without what all of them begin with.
pub(super) fn overlay_name(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"trusted.overlay.")
        .or_else(|| name.strip_prefix(b"user.overlay."))
}

/// What an attribute of overlayfs says.
pub(super) fn overlay<'a>(xattrs: &'a Pairs, name: &[u8]) -> Option<&'a [u8]> {
    let mut found = xattrs.iter().filter(|(n, _)| overlay_name(n) == Some(name));
    found.next().map(|(_, value)| &value[..])
}

/// A value of `x` only says that there are whiteouts that are files.
pub(super) fn is_opaque(xattrs: &Pairs) -> bool {
    overlay(xattrs, b"opaque") == Some(b"y")
}
