//! Extended attributes of overlayfs.

use super::Pairs;

/// Name of an overlayfs attribute without the common prefix.
pub(super) fn overlay_name(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"trusted.overlay.")
        .or_else(|| name.strip_prefix(b"user.overlay."))
}

/// Value of an overlayfs attribute.
pub(super) fn overlay<'a>(xattrs: &'a Pairs, name: &[u8]) -> Option<&'a [u8]> {
    let mut found = xattrs.iter().filter(|(n, _)| overlay_name(n) == Some(name));
    found.next().map(|(_, value)| &value[..])
}

/// True for an opaque directory. The value `x` instead marks a directory with whiteouts that are
/// files.
pub(super) fn is_opaque(xattrs: &Pairs) -> bool {
    overlay(xattrs, b"opaque") == Some(b"y")
}
