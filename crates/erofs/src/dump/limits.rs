//! Limits on the memory of views that keep every name or every reference of an image.

/// Maximum number of names in a tree.
pub(super) const NAMES_MAX: usize = 1 << 22;
/// Maximum length of all names together, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 256 << 20;
/// Maximum number of references from files to data.
pub(super) const REFERENCES_MAX: usize = 1 << 23;
