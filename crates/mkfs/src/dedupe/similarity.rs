//! Which small files, and ends of larger ones, lie next to which: those that are much alike together, so that one cluster
//! holds what they share; all others where the tree has them, so that a directory is read from one place.

use super::chunking::Sketch;
use hashbrown::HashMap;

/// Of its four numbers a file must share so many with another to lie next to it; one of them less if it has the other's name
/// and about its size.
const SIMILAR: usize = 2;
/// Most that two files can have in common: four numbers, and name and size.
const SIMILAR_MAX: usize = 5;

/// A place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Position in the old order.
    pub(super) i: u32,
    /// It lies next to one that it is alike.
    pub(super) similar: bool,
}

/// The order of files whose sketches these are, and of which `look` says what stands for the name, and the size: each position of the old order once. A file goes behind the earlier file
/// that it is most alike, the latest of several, and all of a tree of such files lie where its first one was: versions of
/// a file follow each other, and do not mix with those of another that is a little like it.
pub(super) fn order(
    sketches: &[Option<Sketch>],
    look: &dyn Fn(usize) -> (u16, u64),
) -> Vec<Placed> {
    let models = models(sketches, look);
    // Fits: inodes are counted in 32 bits.
    let count = sketches.len() as u32;
    // Files behind the same one, as lists: the first of them, and the next beside each.
    let mut first = vec![NONE; sketches.len()];
    let mut next = vec![NONE; sketches.len()];
    // The most alike is the first.
    for shared in SIMILAR..=SIMILAR_MAX {
        for i in (0..count).rev() {
            if let Some((model, n)) = models[i as usize]
                && usize::from(n) == shared
            {
                next[i as usize] = std::mem::replace(&mut first[model as usize], i);
            }
        }
    }
    let mut order = Vec::with_capacity(sketches.len());
    let mut later = Vec::new();
    for root in (0..count).filter(|i| models[*i as usize].is_none()) {
        let mut at = root;
        loop {
            let (behind, beside) = (first[at as usize], next[at as usize]);
            order.push(Placed {
                i: at,
                similar: at != root || behind != NONE,
            });
            // A root has nothing beside it.
            later.extend((beside != NONE).then_some(beside));
            at = if behind != NONE {
                behind
            } else if let Some(beside) = later.pop() {
                beside
            } else {
                break;
            };
        }
    }
    order
}

/// No file.
const NONE: u32 = u32::MAX;

/// The earlier file that each is most alike, if it is alike any, and how much they have in common.
fn models(
    sketches: &[Option<Sketch>],
    look: &dyn Fn(usize) -> (u16, u64),
) -> Vec<Option<(u32, u8)>> {
    let again: [Vec<u32>; 4] = std::array::from_fn(|k| repeated(sketches, k));
    // The file that last had a number, for each of the four. Numbers that come once only need no place.
    let mut seen: [HashMap<u32, u32>; 4] = Default::default();
    // The file that last had a name.
    let mut named: HashMap<u16, u32> = HashMap::new();
    let mut models = vec![None; sketches.len()];
    for (i, sketch) in sketches.iter().enumerate() {
        let Some(sketch) = sketch else { continue };
        let (name, size) = look(i);
        let shared = |other: u32| {
            let numbers = sketches[other as usize].iter().flatten();
            let equal = numbers.zip(sketch).filter(|(a, b)| a == b).count();
            let (other_name, other_size) = look(other as usize);
            let close = size.abs_diff(other_size) <= size / 4;
            equal + usize::from(equal > 0 && name == other_name && close)
        };
        // The latest of those that share most.
        let candidates = seen.iter().zip(sketch).filter_map(|(s, n)| s.get(n));
        let candidates = candidates.chain(named.get(&name));
        let best = candidates.map(|c| (shared(*c), *c)).max();
        if let Some((shared, model)) = best.filter(|(n, _)| *n >= SIMILAR) {
            // Fits: five at most.
            models[i] = Some((model, shared as u8));
        }
        named.insert(name, i as u32);
        for ((seen, again), number) in seen.iter_mut().zip(&again).zip(sketch) {
            if again.binary_search(number).is_ok() {
                seen.insert(*number, i as u32);
            }
        }
    }
    models
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

    /// No two have the same name.
    fn unlike(i: usize) -> (u16, u64) {
        (i as u16, 100)
    }

    fn positions(sketches: &[Option<Sketch>]) -> Vec<u32> {
        order(sketches, &unlike).iter().map(|p| p.i).collect()
    }

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
        assert_eq!(positions(&sketches), [0, 1, 3, 5, 2, 4]);
        let similar: Vec<u32> = order(&sketches, &unlike)
            .iter()
            .filter(|p| p.similar)
            .map(|p| p.i)
            .collect();
        assert_eq!(similar, [1, 3, 5]);
    }

    /// Two files in three versions each that share half of their numbers: each version follows its own file's.
    #[test]
    fn versions_of_a_file_do_not_mix_with_those_of_another_like_it() {
        let one = |n| Some([1, 2, 3, n]);
        let other = |n| Some([1, 2, 40, n]);
        let sketches = [one(5), other(6), one(5), other(6), one(5), other(6)];
        assert_eq!(positions(&sketches), [0, 2, 4, 1, 3, 5]);
    }

    /// One number is enough for a file with the same name, if it is not much larger or smaller.
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
