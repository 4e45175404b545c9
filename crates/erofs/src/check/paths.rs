//! Paths of the inodes that findings name by their number only.

use super::Finding;
use crate::read::{Image, Nid};
use crate::walk::{Walk, shown};
use std::collections::HashMap;

/// Puts the first path of each inode before the places that begin with its number. Reads the metadata again, up to the last of
/// them. Inodes that no path leads to keep their number.
pub(super) fn add(image: &Image, findings: &mut [Finding]) {
    let mut requested: HashMap<Nid, Vec<usize>> = HashMap::new();
    for (index, finding) in findings.iter().enumerate() {
        if let Some(nid) = nid_of(&finding.place) {
            requested.entry(nid).or_default().push(index);
        }
    }
    let Ok(walk) = Walk::root(image) else {
        return;
    };
    let mut entries = walk.flatten();
    while !requested.is_empty()
        && let Some(entry) = entries.next()
    {
        for index in requested.remove(&entry.inode.nid()).unwrap_or_default() {
            let place = &mut findings[index].place;
            *place = format!("{}: {place}", shown(&entry.path));
        }
    }
}

/// Returns the number of the inode that a place begins with: `nid 205: byte 0x1000`.
fn nid_of(place: &str) -> Option<Nid> {
    let rest = place.strip_prefix("nid ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().ok().map(Nid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_inode_is_found_at_the_start_of_a_place() {
        for (place, nid) in [
            ("nid 205: byte 0x1000", Some(205)),
            ("nid 7", Some(7)),
            ("nid 7 (byte 0x40)", Some(7)),
            ("/etc: nid 7", None),
            ("nid x", None),
            ("", None),
        ] {
            assert_eq!(nid_of(place), nid.map(Nid), "{place}");
        }
    }
}
