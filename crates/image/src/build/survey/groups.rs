//! Which small files lie next to which: those that are much alike together, so that one cluster holds what they share;
//! all others where the tree has them, so that a directory is read from one place.

use super::chunk::Sketch;
use hashbrown::HashMap;

/// Of its four numbers a file must share so many with another to lie next to it.
const ALIKE: usize = 2;

/// The order of files whose sketches these are: each position of the old order once. A file goes behind the files that it
/// is alike; a group lies where its first file was.
pub(crate) fn order(sketches: &[Option<Sketch>]) -> Vec<u32> {
    let again: [Vec<u32>; 4] = std::array::from_fn(|k| repeated(sketches, k));
    // The group that last had a number, for each of the four. Numbers that come once only need no place.
    let mut seen: [HashMap<u32, u32>; 4] = Default::default();
    // Fits: inodes are counted in 32 bits.
    let mut group_of: Vec<u32> = (0..sketches.len() as u32).collect();
    for (i, sketch) in sketches.iter().enumerate() {
        let Some(sketch) = sketch else { continue };
        let candidates = seen
            .iter()
            .zip(sketch)
            .filter_map(|(seen, number)| seen.get(number).copied());
        let mut candidates: Vec<u32> = candidates.collect();
        candidates.sort_unstable();
        // The earliest of the groups that share most.
        let best = candidates
            .chunk_by(|a, b| a == b)
            .max_by_key(|same| (same.len(), std::cmp::Reverse(same[0])))
            .filter(|same| same.len() >= ALIKE);
        if let Some(same) = best {
            group_of[i] = same[0];
        }
        for ((seen, again), number) in seen.iter_mut().zip(&again).zip(sketch) {
            if again.binary_search(number).is_ok() {
                seen.insert(*number, group_of[i]);
            }
        }
    }
    let mut order: Vec<u32> = (0..sketches.len() as u32).collect();
    order.sort_by_key(|i| (group_of[*i as usize], *i));
    order
}

/// The `k`-th numbers that several files have, ascending.
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

    #[test]
    fn alike_files_follow_the_first_of_them_and_others_stay() {
        let a = |n| Some([1, 2, 3, n]);
        let sketches = [
            Some([9, 9, 9, 9]),
            a(4),
            Some([7, 2, 8, 8]),
            a(5),
            None,
            Some([1, 2, 6, 5]),
        ];
        assert_eq!(order(&sketches), [0, 1, 3, 5, 2, 4]);
    }

    #[test]
    fn every_file_stays_in_the_order() {
        let sketches: Vec<_> = (0..1000u32)
            .map(|i| Some([i % 7, i % 11, i % 13, i % 17]))
            .collect();
        let mut all = order(&sketches);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1000));
    }
}
