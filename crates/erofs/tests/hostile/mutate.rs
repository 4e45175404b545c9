//! Cases: a base image and its damage. A number identifies each case, so that it can be repeated.

#![allow(unreachable_pub, reason = "module of a test")]

use crate::every::{devices, every};
use std::ops::Range;
use std::sync::Arc;
use tuff_erofs::dump::{Area, Regions};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::{Rng, shapes};

/// Valid image, its devices and its structures.
pub struct Base {
    pub name: &'static str,
    pub good: Vec<u8>,
    pub devices: Vec<Arc<dyn ReadAt>>,
    /// Ranges of all structures (not file data), ascending.
    structures: Vec<Range<usize>>,
}

/// Base images: those with every feature, the samples, holes in every layout, and trees that are
/// deep or list the same names in many directories.
pub fn bases() -> Vec<Base> {
    let by_hand = [("every", every(false)), ("every-boxed", every(true))];
    let samples = tuff_testkit::sample::all().iter();
    let mut out: Vec<_> = by_hand
        .into_iter()
        .map(|(name, bytes)| Base::new(name, bytes, devices()))
        .collect();
    out.extend(samples.map(|(name, bytes)| Base::new(name, bytes.clone(), Vec::new())));
    let claims = [
        ("claims-holes", shapes::holes(1 << 40)),
        ("claims-deep", shapes::deep(100, 3)),
        ("claims-shared", shapes::shared(4, 30)),
    ];
    out.extend(claims.map(|(name, bytes)| Base::new(name, bytes, Vec::new())));
    out
}

impl Base {
    fn new(name: &'static str, good: Vec<u8>, devices: Vec<Arc<dyn ReadAt>>) -> Self {
        let options = OpenOptions {
            devices: devices.clone(),
            ..OpenOptions::default()
        };
        let image = Image::open(MemStore::new(&good[..]), options).unwrap();
        let regions = Regions::collect(&image);
        assert!(regions.errors.is_empty(), "{name}: {:?}", regions.errors);
        let mut structures: Vec<Range<usize>> = Vec::new();
        for r in regions.list {
            if r.area != Area::Store(0) || r.kind.is_data() {
                continue;
            }
            let (start, end) = (r.start as usize, (r.end as usize).min(good.len()));
            match structures.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => structures.push(start..end),
            }
        }
        // The boot area is not part of the format.
        if let Some(first) = structures.first_mut() {
            first.start = first.start.max(1024);
        }
        Self {
            name,
            good,
            devices,
            structures,
        }
    }

    /// Returns the number of bytes in structures.
    pub fn structure_len(&self) -> usize {
        self.structures.iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns the position of the n-th byte in structures.
    fn structure_byte(&self, mut n: usize) -> usize {
        for run in &self.structures {
            if n < run.len() {
                return run.start + n;
            }
            n -= run.len();
        }
        unreachable!("below structure_len");
    }
}

/// Damage of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Flips a bit of the structures, by its number among their bits.
    Bit(usize),
    /// Flips a bit of the image.
    AnyBit(usize),
    /// Truncates the image to this length.
    Cut(usize),
    /// Applies one to eight random changes with this seed, and rarely a truncation.
    Mutation(u64),
}

impl Damage {
    /// Selects the operations of [`use_all`](crate::probe::use_all) for simple damage: each case
    /// runs some, and neighbouring cases run the rest. `None` for mutations, which run all.
    pub fn turn(self) -> Option<u64> {
        match self {
            Self::Bit(n) | Self::AnyBit(n) | Self::Cut(n) => Some((n ^ n >> 3) as u64),
            Self::Mutation(_) => None,
        }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bit(n) => write!(f, "bit:{n}"),
            Self::AnyBit(n) => write!(f, "any-bit:{n}"),
            Self::Cut(n) => write!(f, "cut:{n}"),
            Self::Mutation(n) => write!(f, "mutation:{n}"),
        }
    }
}

impl std::str::FromStr for Damage {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (kind, n) = s.split_once(':').ok_or("kind:number")?;
        let n: u64 = n.parse().map_err(|_| "not a number")?;
        Ok(match kind {
            "bit" => Self::Bit(n as usize),
            "any-bit" => Self::AnyBit(n as usize),
            "cut" => Self::Cut(n as usize),
            "mutation" => Self::Mutation(n),
            _ => return Err(format!("unknown kind of damage: {kind}")),
        })
    }
}

/// Returns the damaged image.
pub fn damage(base: &Base, damage: Damage) -> Vec<u8> {
    let mut bytes = base.good.clone();
    match damage {
        Damage::Bit(n) => bytes[base.structure_byte(n / 8)] ^= 1 << (n % 8),
        Damage::AnyBit(n) => bytes[n / 8] ^= 1 << (n % 8),
        Damage::Cut(n) => bytes.truncate(n),
        Damage::Mutation(n) => mutate(base, &mut bytes, &mut Rng::new(n)),
    }
    bytes
}

fn mutate(base: &Base, bytes: &mut Vec<u8>, random: &mut Rng) {
    let times = match random.below_u64(3) {
        0 => 2 + random.below_u64(7),
        _ => 1,
    };
    for _ in 0..times {
        change(base, bytes, random);
    }
    if random.below_u64(40) == 0 {
        let left = random.below_u64(bytes.len() as u64) as usize;
        bytes.truncate(left);
    }
}

/// Returns the position of a field of `len` bytes: usually in a structure, and naturally aligned.
fn field(base: &Base, bytes: &[u8], random: &mut Rng, len: usize) -> usize {
    let at = if random.below_u64(8) == 0 {
        random.below_u64(bytes.len() as u64) as usize
    } else {
        base.structure_byte(random.below_u64(base.structure_len() as u64) as usize)
    };
    at.min(bytes.len() - len) & !(len.min(8) - 1)
}

/// Returns a boundary value.
fn edge(random: &mut Rng, old: u64, len: u64) -> u64 {
    match random.below_u64(9) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX >> 1,
        3 => 1 << random.below_u64(64),
        4 => (1u64 << random.below_u64(64)).wrapping_sub(1),
        5 => old.wrapping_add(1),
        6 => old.wrapping_sub(1),
        7 => len.wrapping_add(random.below_u64(3)).wrapping_sub(1),
        _ => random.below_u64(4096),
    }
}

/// Applies a random change to a bit, bytes, one or two fields, an inode slot or a block.
fn change(base: &Base, bytes: &mut [u8], random: &mut Rng) {
    let len = 1usize << random.below_u64(4);
    let at = field(base, bytes, random, len);
    match random.below_u64(10) {
        0 => bytes[at] ^= 1 << random.below_u64(8),
        1 => {
            for byte in &mut bytes[at..at + len] {
                *byte = random.draw() as u8;
            }
        }
        2..=4 => {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[at..at + len]);
            let value = edge(random, u64::from_le_bytes(word), base.good.len() as u64);
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
        5 | 6 => {
            // Copy a field of the same width from elsewhere: a plausible value.
            let from = field(base, bytes, random, len);
            bytes.copy_within(from..from + len, at);
        }
        7 => {
            let other = field(base, bytes, random, len);
            for i in 0..len {
                bytes.swap(at + i, other + i);
            }
        }
        8 => {
            // Copy slots of 32 bytes: an inode, or a part of one, over another.
            let len = 32 << random.below_u64(2);
            let (to, from) = (
                field(base, bytes, random, len),
                field(base, bytes, random, len),
            );
            bytes.copy_within(from & !31..(from & !31) + len, to & !31);
        }
        _ => {
            // Copy, swap or fill blocks.
            let block = 512 << random.below_u64(4);
            let blocks = (bytes.len() / block) as u64;
            let mut pick = || random.below_u64(blocks) as usize * block;
            let (a, b) = (pick(), pick());
            match random.below_u64(3) {
                0 => bytes.copy_within(a..a + block, b),
                1 => {
                    for i in 0..block {
                        bytes.swap(a + i, b + i);
                    }
                }
                _ => bytes[a..a + block].fill(random.draw() as u8),
            }
        }
    }
}
