//! Order of small files and tails in the packed inode. Similar files are neighbours, so that one
//! cluster holds their common data. All others keep the order of the tree, so that a directory is
//! read from one place.

use super::chunking::Sketch;
use hashbrown::HashMap;

/// Sketch values that two files must share to become neighbours. One less is enough with the same
/// name and a similar size.
const SIMILAR: usize = 2;
/// Highest similarity: four sketch values, and one point for name and size.
const SIMILAR_MAX: usize = 5;

/// File in the new order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderedFile {
    /// Position in the old order.
    pub(super) i: u32,
    /// A neighbour is similar.
    pub(super) similar: bool,
    /// Similar to the file before it.
    pub(super) follows: bool,
}

/// Returns the new order of the files with these sketches. `name_and_size` returns the hash of
/// a file's name and its size.
///
/// A file follows the most similar earlier file, or the latest of several. Each tree of such files
/// is placed where its root was. Versions of a file therefore follow each other and do not mix with
/// those of a less similar file.
pub(super) fn order(
    sketches: &[Option<Sketch>],
    name_and_size: &dyn Fn(usize) -> (u16, u64),
) -> Vec<OrderedFile> {
    let nearest_earlier = nearest_earlier(sketches, name_and_size);
    // Fits: inodes are counted in 32 bits.
    let count = sketches.len() as u32;
    // Children of each file as linked lists: first child and next sibling.
    let mut first_child = vec![NONE; sketches.len()];
    let mut next_sibling = vec![NONE; sketches.len()];
    // The most similar child comes first.
    for shared in SIMILAR..=SIMILAR_MAX {
        for i in (0..count).rev() {
            if let Some((nearest, n)) = nearest_earlier[i as usize]
                && usize::from(n) == shared
            {
                next_sibling[i as usize] = std::mem::replace(&mut first_child[nearest as usize], i);
            }
        }
    }
    let mut order = Vec::with_capacity(sketches.len());
    let mut later = Vec::new();
    for root in (0..count).filter(|i| nearest_earlier[*i as usize].is_none()) {
        let mut at = root;
        loop {
            let (child, sibling) = (first_child[at as usize], next_sibling[at as usize]);
            order.push(OrderedFile {
                i: at,
                similar: at != root || child != NONE,
                follows: at != root,
            });
            // A root has no sibling.
            later.extend((sibling != NONE).then_some(sibling));
            at = if child != NONE {
                child
            } else if let Some(sibling) = later.pop() {
                sibling
            } else {
                break;
            };
        }
    }
    order
}

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// Finds the most similar earlier file of each file, if any, and their similarity.
fn nearest_earlier(
    sketches: &[Option<Sketch>],
    name_and_size: &dyn Fn(usize) -> (u16, u64),
) -> Vec<Option<(u32, u8)>> {
    let again: [Vec<u32>; 4] = std::array::from_fn(|k| repeated(sketches, k));
    // Last file with each value, for each of the four. Values that occur only once are not entered.
    let mut seen: [HashMap<u32, u32>; 4] = Default::default();
    // Last file with each name.
    let mut named: HashMap<u16, u32> = HashMap::new();
    let mut nearest_earlier = vec![None; sketches.len()];
    for (i, sketch) in sketches.iter().enumerate() {
        let Some(sketch) = sketch else { continue };
        let (name, size) = name_and_size(i);
        let shared = |other: u32| {
            let numbers = sketches[other as usize].iter().flatten();
            let equal = numbers.zip(sketch).filter(|(a, b)| a == b).count();
            let (other_name, other_size) = name_and_size(other as usize);
            let close = size.abs_diff(other_size) <= size / 4;
            equal + usize::from(equal > 0 && name == other_name && close)
        };
        // Among the most similar candidates, take the latest.
        let candidates = seen.iter().zip(sketch).filter_map(|(s, n)| s.get(n));
        let candidates = candidates.chain(named.get(&name));
        let best = candidates.map(|c| (shared(*c), *c)).max();
        if let Some((shared, nearest)) = best.filter(|(n, _)| *n >= SIMILAR) {
            // Fits: at most five.
            nearest_earlier[i] = Some((nearest, shared as u8));
        }
        named.insert(name, i as u32);
        for ((seen, again), number) in seen.iter_mut().zip(&again).zip(sketch) {
            if again.binary_search(number).is_ok() {
                seen.insert(*number, i as u32);
            }
        }
    }
    nearest_earlier
}

/// Values of the `k`-th sketch function that several files have, ascending.
fn repeated(sketches: &[Option<Sketch>], k: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = sketches.iter().flatten().map(|s| s[k]).collect();
    numbers.sort_unstable();
    let several = numbers
        .chunk_by(|a, b| a == b)
        .filter(|same| same.len() > 1);
    several.map(|same| same[0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All files have different names.
    fn distinct_names(i: usize) -> (u16, u64) {
        (i as u16, 100)
    }

    fn positions(sketches: &[Option<Sketch>]) -> Vec<u32> {
        order(sketches, &distinct_names)
            .iter()
            .map(|p| p.i)
            .collect()
    }

    #[test]
    fn similar_files_follow_the_first_and_others_keep_their_order() {
        let a = |n| Some([1, 2, 3, n]);
        let sketches = [
            Some([9, 9, 9, 9]),
            a(4),
            Some([7, 2, 8, 8]),
            a(5),
            None,
            Some([1, 2, 6, 5]),
        ];
        assert_eq!(positions(&sketches), [0, 1, 3, 5, 2, 4]);
        let similar: Vec<u32> = order(&sketches, &distinct_names)
            .iter()
            .filter(|p| p.similar)
            .map(|p| p.i)
            .collect();
        assert_eq!(similar, [1, 3, 5]);
    }

    /// Two files in three versions each share half of their sketch values. Each version must follow
    /// its own file.
    #[test]
    fn versions_of_a_file_do_not_mix_with_those_of_a_similar_file() {
        let one = |n| Some([1, 2, 3, n]);
        let other = |n| Some([1, 2, 40, n]);
        let sketches = [one(5), other(6), one(5), other(6), one(5), other(6)];
        assert_eq!(positions(&sketches), [0, 2, 4, 1, 3, 5]);
    }

    /// One common value is enough for files with the same name and a similar size.
    #[test]
    fn versions_have_the_same_name_and_about_the_same_size() {
        let a = |n| Some([1, n, n, n]);
        let sketches = [a(10), a(20), a(30), a(40), a(50)];
        let named = [(7, 100), (8, 100), (7, 110), (7, 90), (7, 300)];
        let order = order(&sketches, &|i| named[i]);
        assert!(order.iter().map(|p| p.i).eq([0, 2, 3, 1, 4]));
    }

    #[test]
    fn every_file_stays_in_the_order() {
        let sketches: Vec<_> = (0..1000u32)
            .map(|i| Some([i % 7, i % 11, i % 13, i % 17]))
            .collect();
        let mut all = positions(&sketches);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1000));
    }
}
