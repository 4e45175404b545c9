//! Block writer: literals and sequences to bytes, in two steps.
//!
//! [`BlockCoder::plan`] needs only counts: it chooses codes and tables and computes the block's size to within a few
//! bytes. [`BlockCoder::emit`] writes the block. A search for the input that fits plans several times and writes
//! once.
//!
//! Source: RFC 8878, section 3.1.1.3.

use std::sync::LazyLock;

use super::bits::{BIT, BitString, BitWriter, log2, times_log2};
use super::fse::{FseTable, NormalizedCounts, SYMBOLS};
use super::huffman::HuffmanTable;

/// Literals followed by a match.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    /// Number of literals before the match.
    pub(super) literals: u32,
    /// Length of the match, at least 3.
    pub(super) matched: u32,
    /// Distance of the match, not its encoding.
    pub(super) offset: u32,
    /// Encoded offset: 1 to 3 for a repeat offset, otherwise the distance plus three.
    pub(super) value: u32,
    /// Codes of the literal length, the offset and the match length.
    codes: [u8; 3],
}

impl Sequence {
    /// Creates a sequence whose offset [`RepeatOffsets`] still has to encode.
    pub(super) fn new(literals: u32, matched: u32, offset: u32) -> Self {
        Self {
            literals,
            matched,
            offset,
            value: 0,
            codes: [0; 3],
        }
    }

    /// Sets the encoded offset and all codes.
    #[inline(always)]
    fn coded(&mut self, value: u32) {
        self.value = value;
        let literals = match self.literals {
            n @ ..64 => LITERALS_CODE[n as usize],
            n => n.ilog2() as u8 + 19,
        };
        let matched = match self.matched - 3 {
            n @ ..128 => MATCHED_CODE[n as usize],
            n => n.ilog2() as u8 + 36,
        };
        // The offset code is also the number of its extra bits.
        self.codes = [literals, value.ilog2() as u8, matched];
    }
}

/// Number of extra bits of each literal length code.
const LITERALS_BITS: [u8; 36] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11,
    12, 13, 14, 15, 16,
];

/// Number of extra bits of each match length code.
const MATCHED_BITS: [u8; 53] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
];

static LITERALS_CODE: [u8; 64] = small_codes(&LITERALS_BITS);
static MATCHED_CODE: [u8; 128] = small_codes(&MATCHED_BITS);

/// Computes the code of each small value: each code covers 2^bits values.
const fn small_codes<const N: usize, const M: usize>(bits: &[u8; M]) -> [u8; N] {
    let mut table = [0; N];
    let (mut value, mut code) = (0, 0);
    while value < N {
        let mut n = 1 << bits[code];
        while n > 0 && value < N {
            table[value] = code as u8;
            value += 1;
            n -= 1;
        }
        code += 1;
    }
    table
}

/// Kinds of codes of a sequence, in the order in which their tables are written.
const LITERALS: usize = 0;
const OFFSET: usize = 1;
const MATCHED: usize = 2;

/// Largest table of each kind. Unit: log2 of cells.
const LOG_MAX: [u32; 3] = [9, 8, 9];

/// Predefined distributions, which need no description.
static FIXED: [NormalizedCounts; 3] = [
    NormalizedCounts::fixed(
        &[
            4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1,
            1, 1, 1, -1, -1, -1, -1,
        ],
        6,
    ),
    NormalizedCounts::fixed(
        &[
            1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1,
            -1,
        ],
        5,
    ),
    NormalizedCounts::fixed(
        &[
            1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
        ],
        6,
    ),
];

static FIXED_TABLES: LazyLock<[FseTable; 3]> =
    LazyLock::new(|| FIXED.each_ref().map(FseTable::from_counts));

/// Statistics of a block's literals and sequences.
#[derive(Clone)]
pub(super) struct BlockStats {
    literals: [u32; 256],
    literal_count: u32,
    codes: [[u32; SYMBOLS]; 3],
    seqs: u32,
    /// Number of extra bits of all codes.
    extra: u64,
    /// Length of the block's content. Unit: bytes.
    pub(super) content: usize,
}

impl BlockStats {
    pub(super) fn new() -> Self {
        Self {
            literals: [0; 256],
            literal_count: 0,
            codes: [[0; SYMBOLS]; 3],
            seqs: 0,
            extra: 0,
            content: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Adds literals to the statistics.
    #[inline]
    pub(super) fn add_literals(&mut self, literals: &[u8]) {
        count(&mut self.literals, literals);
        self.literal_count += literals.len() as u32;
        self.content += literals.len();
    }

    /// Removes the last literal.
    fn drop_literal(&mut self, byte: u8) {
        self.literals[usize::from(byte)] -= 1;
        self.literal_count -= 1;
        self.content -= 1;
    }

    /// Adds a sequence without its literals.
    #[inline]
    pub(super) fn add_match(&mut self, seq: Sequence) {
        let (literals, offset, matched) =
            (seq.codes[LITERALS], seq.codes[OFFSET], seq.codes[MATCHED]);
        self.codes[LITERALS][usize::from(literals)] += 1;
        self.codes[OFFSET][usize::from(offset)] += 1;
        self.codes[MATCHED][usize::from(matched)] += 1;
        self.extra += extra(literals, offset, matched);
        self.seqs += 1;
        self.content += seq.matched as usize;
    }

    fn drop_match(&mut self, seq: Sequence) {
        let (literals, offset, matched) =
            (seq.codes[LITERALS], seq.codes[OFFSET], seq.codes[MATCHED]);
        self.codes[LITERALS][usize::from(literals)] -= 1;
        self.codes[OFFSET][usize::from(offset)] -= 1;
        self.codes[MATCHED][usize::from(matched)] -= 1;
        self.extra -= extra(literals, offset, matched);
        self.seqs -= 1;
        self.content -= seq.matched as usize;
    }

    /// Returns the number of literals.
    pub(super) fn literal_count(&self) -> u32 {
        self.literal_count
    }

    /// Adds the statistics of another block.
    pub(super) fn merge(&mut self, other: &BlockStats) {
        for (a, b) in self.literals.iter_mut().zip(&other.literals) {
            *a += b;
        }
        for (a, b) in self
            .codes
            .as_flattened_mut()
            .iter_mut()
            .zip(other.codes.as_flattened())
        {
            *a += b;
        }
        self.literal_count += other.literal_count;
        self.seqs += other.seqs;
        self.extra += other.extra;
        self.content += other.content;
    }

    /// Estimates the size of a block including its tables, from the entropy and a guess for the tables. Unit: bits.
    pub(super) fn estimate(&self) -> u64 {
        let (bits, used) = entropy(&self.literals, self.literal_count);
        let raw = u64::from(self.literal_count) * 8 * BIT;
        let mut sum = raw.min(bits + bits / 128 + (80 + used * 3) * BIT);
        for codes in &self.codes {
            let (bits, used) = entropy(codes, self.seqs);
            sum += bits + (20 + used * 3) * BIT;
        }
        sum / BIT + self.extra + 64
    }
}

/// Counts bytes in four alternating tables, because equal bytes in a row would wait for each other.
fn count(counts: &mut [u32; 256], bytes: &[u8]) {
    if bytes.len() < 512 {
        for &byte in bytes {
            counts[usize::from(byte)] += 1;
        }
        return;
    }
    let mut tables = [[0u32; 256]; 4];
    let chunks = bytes.chunks_exact(8);
    for &byte in chunks.remainder() {
        counts[usize::from(byte)] += 1;
    }
    for eight in chunks {
        for (i, &byte) in eight.iter().enumerate() {
            tables[i % 4][usize::from(byte)] += 1;
        }
    }
    for (symbol, n) in counts.iter_mut().enumerate() {
        *n += tables[0][symbol] + tables[1][symbol] + tables[2][symbol] + tables[3][symbol];
    }
}

/// Returns the number of extra bits of a sequence.
#[inline(always)]
fn extra(literals: u8, offset: u8, matched: u8) -> u64 {
    u64::from(LITERALS_BITS[usize::from(literals)] + MATCHED_BITS[usize::from(matched)] + offset)
}

/// Returns the entropy of all occurrences together, and the number of distinct symbols. Unit: 1 / BIT.
fn entropy(counts: &[u32], total: u32) -> (u64, u64) {
    if total == 0 {
        return (0, 0);
    }
    let (mut sum, mut used) = (0, 0);
    for &n in counts {
        sum += times_log2(n);
        used += u64::from(n > 0);
    }
    ((u64::from(total) * log2(total)).saturating_sub(sum), used)
}

/// Encoding of a block's literals.
#[allow(clippy::large_enum_variant)] // lives on the stack, one or two at a time
enum Literals {
    Raw,
    Single(u8),
    Coded(HuffmanTable),
    /// Huffman-coded with the table of the previous block.
    Again,
}

/// Encoding of the codes of one kind.
#[derive(Clone)]
enum Mode {
    Fixed,
    Single(u8),
    WithTable(NormalizedCounts),
    /// With the table of the previous block.
    Again,
}

/// All choices for one block.
pub(super) struct BlockPlan {
    literals: Literals,
    modes: [Mode; 3],
    /// Size of the block without its header, to within a few bytes. Unit: bytes.
    pub(super) size: usize,
}

/// Marginal price of each symbol with the codes of a plan. Unit: 1 / BIT.
pub(super) struct BlockPrices {
    literals: [u32; 256],
    codes: [[u32; SYMBOLS]; 3],
}

impl BlockPrices {
    fn price_of_sequence(&self, seq: Sequence) -> u64 {
        let (literals, offset, matched) =
            (seq.codes[LITERALS], seq.codes[OFFSET], seq.codes[MATCHED]);
        u64::from(
            self.codes[LITERALS][usize::from(literals)]
                + self.codes[OFFSET][usize::from(offset)]
                + self.codes[MATCHED][usize::from(matched)],
        ) + extra(literals, offset, matched) * BIT
    }
}

/// Position of a block's end among the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParsePosition {
    /// Number of sequences before it.
    pub(super) seqs: usize,
    /// Number of literals of the next sequence that belong to the block.
    pub(super) tail: usize,
    /// Number of all literals before it.
    pub(super) literals: usize,
}

impl ParsePosition {
    /// Position before the first sequence.
    pub(super) const START: ParsePosition = ParsePosition {
        seqs: 0,
        tail: 0,
        literals: 0,
    };
}

/// Moves the end of a block back until `excess` is saved (1 / BIT), but not before `start`.
pub(super) fn shrink(
    stats: &mut BlockStats,
    cut: &mut ParsePosition,
    start: ParsePosition,
    seqs: &[Sequence],
    literals: &[u8],
    prices: &BlockPrices,
    excess: u64,
) -> u64 {
    let mut sum = 0;
    while sum < excess {
        let saved;
        if cut.tail > 0 {
            cut.tail -= 1;
            cut.literals -= 1;
            let byte = literals[cut.literals];
            stats.drop_literal(byte);
            saved = u64::from(prices.literals[usize::from(byte)]);
        } else if cut.seqs > start.seqs {
            cut.seqs -= 1;
            let seq = seqs[cut.seqs];
            stats.drop_match(seq);
            cut.tail = seq.literals as usize;
            saved = prices.price_of_sequence(seq);
        } else {
            break;
        }
        sum += saved;
    }
    sum
}

/// Moves the end of a block forward while `spare` lasts (1 / BIT) and the block holds at most `most` bytes.
pub(super) fn grow(
    stats: &mut BlockStats,
    cut: &mut ParsePosition,
    seqs: &[Sequence],
    literals: &[u8],
    prices: &BlockPrices,
    mut spare: u64,
    most: usize,
) {
    loop {
        let seq = seqs.get(cut.seqs).copied();
        let cost;
        if seq.is_none_or(|seq| cut.tail < seq.literals as usize) {
            let Some(&byte) = literals.get(cut.literals) else {
                return;
            };
            cost = u64::from(prices.literals[usize::from(byte)]);
            if cost > spare || stats.content == most {
                return;
            }
            stats.add_literals(&[byte]);
            cut.tail += 1;
            cut.literals += 1;
        } else if let Some(seq) = seq {
            cost = prices.price_of_sequence(seq);
            if cost > spare || stats.content + seq.matched as usize > most {
                return;
            }
            stats.add_match(seq);
            cut.tail = 0;
            cut.seqs += 1;
        } else {
            return;
        }
        spare -= cost;
    }
}

/// The three latest distances, which encode offsets.
#[derive(Clone, Copy)]
pub(super) struct RepeatOffsets([u32; 3]);

impl RepeatOffsets {
    pub(super) const START: RepeatOffsets = RepeatOffsets([1, 4, 8]);

    /// Sets the encoded offset of a sequence. Without branches, because repeats are hard to predict.
    #[inline(always)]
    pub(super) fn code(&mut self, seq: &mut Sequence) {
        let [a, b, c] = self.0;
        let offset = seq.offset;
        // Without literals the latest distance cannot repeat, and the third value stands for it minus one.
        let shifted = seq.literals == 0;
        let (first, second, third) = if shifted { (b, c, a - 1) } else { (a, b, c) };
        let mut value = offset + 3;
        value = if offset == third { 3 } else { value };
        value = if offset == second { 2 } else { value };
        value = if offset == first { 1 } else { value };
        let same = !shifted & (offset == a);
        self.0 = [
            offset,
            if same { b } else { a },
            if same | (offset == b) { c } else { b },
        ];
        seq.coded(value);
    }
}

/// Writer of blocks, which holds the tables of previous blocks.
pub(super) struct BlockCoder {
    code: Option<HuffmanTable>,
    shares: [Option<NormalizedCounts>; 3],
    tables: [Box<FseTable>; 3],
}

impl BlockCoder {
    pub(super) fn new() -> Self {
        Self {
            code: None,
            shares: [const { None }; 3],
            tables: std::array::from_fn(|_| Box::new(FseTable::new())),
        }
    }

    /// Starts a frame, without tables of previous blocks.
    pub(super) fn reset(&mut self) {
        self.code = None;
        self.shares = [const { None }; 3];
    }

    /// Chooses codes and tables.
    pub(super) fn plan(&self, stats: &BlockStats) -> BlockPlan {
        let (literals, mut size) = self.plan_literals(stats);
        size += match stats.seqs {
            0 => 1,
            1..128 => 2,
            128..0x7f00 => 3,
            _ => 4,
        };
        let mut modes = [const { Mode::Fixed }; 3];
        if stats.seqs > 0 {
            let mut bits = stats.extra * BIT;
            for (kind, slot) in modes.iter_mut().enumerate() {
                let (mode, price) = self.plan_codes(kind, &stats.codes[kind], stats.seqs);
                *slot = mode;
                bits += price;
            }
            size += (bits / BIT / 8) as usize + 1;
        }
        BlockPlan {
            literals,
            modes,
            size,
        }
    }

    /// Chooses the encoding of the literals and returns its size. Unit: bytes.
    fn plan_literals(&self, stats: &BlockStats) -> (Literals, usize) {
        let n = stats.literal_count as usize;
        let header = match n {
            ..32 => 1,
            32..4096 => 2,
            _ => 3,
        };
        let raw = header + n;
        if n < 8 {
            return (Literals::Raw, raw);
        }
        if let Some(byte) = stats.literals.iter().position(|&count| count as usize == n) {
            return (Literals::Single(byte as u8), header + 1);
        }
        let header = match n {
            ..1024 => 3,
            1024..16384 => 4,
            _ => 5,
        };
        // Four streams have three lengths, and each wastes half a byte and its end mark.
        let streams = if n < SINGLE_STREAM { 1 } else { 6 + 3 };
        let total = |bits: u64| header + streams + bits.div_ceil(8) as usize;
        let again = self
            .code
            .as_ref()
            .and_then(|code| code.price(&stats.literals))
            .map(total);
        let code = HuffmanTable::new(&stats.literals, stats.literal_count);
        let coded = code.and_then(|code| {
            code.price(&stats.literals)
                .map(|bits| (total(bits) + code.description().len(), code))
        });
        match (again, coded) {
            (Some(again), coded)
                if again < raw && coded.as_ref().is_none_or(|(coded, _)| again <= *coded) =>
            {
                (Literals::Again, again)
            }
            (_, Some((coded, code))) if coded < raw => (Literals::Coded(code), coded),
            _ => (Literals::Raw, raw),
        }
    }

    /// Chooses the encoding of one kind of code, and returns the price of table and codes.
    fn plan_codes(&self, kind: usize, counts: &[u32; SYMBOLS], total: u32) -> (Mode, u64) {
        if let Some(symbol) = counts.iter().position(|&n| n == total) {
            // The predefined table needs no byte for the symbol; for very few sequences it is cheaper.
            return match FIXED[kind].price(counts) {
                Some(fixed) if fixed < 8 * BIT => (Mode::Fixed, fixed),
                _ => (Mode::Single(symbol as u8), 8 * BIT),
            };
        }
        // The last state is written completely, and the first symbol is free.
        let ends = |counts: &NormalizedCounts| u64::from(counts.log) * BIT / 2;
        let mut best = (
            Mode::Fixed,
            FIXED[kind]
                .price(counts)
                .map_or(u64::MAX, |price| price + ends(&FIXED[kind])),
        );
        if let Some(shares) = &self.shares[kind]
            && let Some(price) = shares.price(counts)
            && price + ends(shares) < best.1
        {
            best = (Mode::Again, price + ends(shares));
        }
        if total > 8 || best.1 == u64::MAX {
            let shares = NormalizedCounts::normalise(counts, total, LOG_MAX[kind]);
            let mut buffer = [0; 128];
            let table_price = shares.describe(&mut buffer, 0) as u64 * 8 * BIT;
            // present: every symbol that occurs has a share
            let price = shares.price(counts).unwrap_or(u64::MAX / 2) + table_price + ends(&shares);
            if price < best.1 {
                best = (Mode::WithTable(shares), price);
            }
        }
        best
    }

    /// Returns the price of each symbol in a plan. A symbol that does not occur in it costs slightly more than any
    /// other.
    pub(super) fn prices(&self, plan: &BlockPlan) -> BlockPrices {
        let bit = BIT as u32;
        let literals = match &plan.literals {
            Literals::Coded(code) => code
                .lengths()
                .map(|length| if length == 0 { 11 } else { length } * bit),
            // present: the plan states that there is a code
            Literals::Again => self.code.as_ref().map_or([8 * bit; 256], |code| {
                code.lengths()
                    .map(|length| if length == 0 { 11 } else { length } * bit)
            }),
            Literals::Raw => [8 * bit; 256],
            Literals::Single(_) => [bit; 256],
        };
        let mut codes = [[10 * bit; SYMBOLS]; 3];
        for (kind, codes) in codes.iter_mut().enumerate() {
            let shares = match &plan.modes[kind] {
                Mode::Fixed => &FIXED[kind],
                Mode::Single(symbol) => {
                    codes[usize::from(*symbol)] = 0;
                    continue;
                }
                Mode::WithTable(shares) => shares,
                Mode::Again => match &self.shares[kind] {
                    Some(shares) => shares,
                    None => continue,
                },
            };
            for (price, &share) in codes.iter_mut().zip(&shares.norm) {
                if share != 0 {
                    *price = shares.log * bit - log2(u32::from(share.unsigned_abs())) as u32;
                }
            }
        }
        BlockPrices { literals, codes }
    }

    /// Writes a block's content, which must be what was counted for the plan. Returns the position after it.
    ///
    /// `out` has to hold the planned size plus an eighth and 64 bytes.
    pub(super) fn emit(
        &mut self,
        plan: &BlockPlan,
        seqs: &[Sequence],
        literals: &[u8],
        out: &mut [u8],
        pos: usize,
    ) -> usize {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("bmi2") {
            // SAFETY: the feature was detected a line above.
            return unsafe { self.emit_bmi2(plan, seqs, literals, out, pos) };
        }
        self.emit_any(plan, seqs, literals, out, pos)
    }

    /// Runs [`Self::emit_any`] compiled for BMI2, whose shifts take the count from any register: shifts dominate the
    /// time.
    ///
    /// # Safety
    /// The machine has the feature.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    unsafe fn emit_bmi2(
        &mut self,
        plan: &BlockPlan,
        seqs: &[Sequence],
        literals: &[u8],
        out: &mut [u8],
        pos: usize,
    ) -> usize {
        self.emit_any(plan, seqs, literals, out, pos)
    }

    #[inline(always)]
    fn emit_any(
        &mut self,
        plan: &BlockPlan,
        seqs: &[Sequence],
        literals: &[u8],
        out: &mut [u8],
        pos: usize,
    ) -> usize {
        let pos = self.emit_literals(&plan.literals, literals, out, pos);
        self.emit_seqs(&plan.modes, seqs, out, pos)
    }

    /// Makes the tables of a plan available to the next block.
    pub(super) fn commit(&mut self, plan: BlockPlan, any_seqs: bool) {
        if let Literals::Coded(code) = plan.literals {
            self.code = Some(code);
        }
        if any_seqs {
            for (shares, mode) in self.shares.iter_mut().zip(plan.modes) {
                match mode {
                    Mode::WithTable(made) => *shares = Some(made),
                    Mode::Again => {}
                    Mode::Fixed | Mode::Single(_) => *shares = None,
                }
            }
        }
    }

    #[inline(always)]
    fn emit_literals(
        &self,
        choice: &Literals,
        literals: &[u8],
        out: &mut [u8],
        mut pos: usize,
    ) -> usize {
        let n = literals.len();
        let (kind, code) = match choice {
            Literals::Raw => {
                pos = put_plain_header(0, n, out, pos);
                out[pos..pos + n].copy_from_slice(literals);
                return pos + n;
            }
            Literals::Single(byte) => {
                pos = put_plain_header(1, n, out, pos);
                out[pos] = *byte;
                return pos + 1;
            }
            Literals::Coded(code) => (2, code),
            // present: the plan states that there is a code
            Literals::Again => (3, self.code.as_ref().expect("a code is used again")),
        };
        // The header's size depends on the number of literals alone.
        let (format, bits, header) = match n {
            ..SINGLE_STREAM => (0, 10, 3),
            SINGLE_STREAM..1024 => (1, 10, 3),
            1024..16384 => (2, 14, 4),
            _ => (3, 18, 5),
        };
        let start = pos + header;
        let mut end = start;
        if kind == 2 {
            let description = code.description();
            out[end..end + description.len()].copy_from_slice(description);
            end += description.len();
        }
        if format == 0 {
            end = code.stream(literals, out, end);
        } else {
            let lengths = end;
            end += 6;
            let quarter = n.div_ceil(4);
            for (i, part) in literals.chunks(quarter).enumerate() {
                let from = end;
                end = code.stream(part, out, end);
                if i < 3 {
                    // fits: a block has at most 128 KiB, a quarter's codes at most 11/8 of 32 KiB
                    let len = (end - from) as u16;
                    out[lengths + 2 * i..lengths + 2 * i + 2].copy_from_slice(&len.to_le_bytes());
                }
            }
        }
        let value = kind | format << 2 | (n as u64) << 4 | ((end - start) as u64) << (4 + bits);
        out[pos..start].copy_from_slice(&value.to_le_bytes()[..header]);
        end
    }

    #[inline(always)]
    fn emit_seqs(
        &mut self,
        modes: &[Mode; 3],
        seqs: &[Sequence],
        out: &mut [u8],
        mut pos: usize,
    ) -> usize {
        let n = seqs.len();
        match n {
            ..128 => {
                out[pos] = n as u8;
                pos += 1;
            }
            128..0x7f00 => {
                out[pos] = (n >> 8) as u8 | 0x80;
                out[pos + 1] = n as u8;
                pos += 2;
            }
            _ => {
                // fits: a block of 128 KiB has at most 43691 sequences
                let n = (n - 0x7f00) as u16;
                out[pos] = 0xff;
                out[pos + 1..pos + 3].copy_from_slice(&n.to_le_bytes());
                pos += 3;
            }
        }
        let Some((&last, before)) = seqs.split_last() else {
            return pos;
        };
        let field = |mode: &Mode| match mode {
            Mode::Fixed => 0,
            Mode::Single(_) => 1,
            Mode::WithTable(_) => 2,
            Mode::Again => 3,
        };
        out[pos] =
            field(&modes[LITERALS]) << 6 | field(&modes[OFFSET]) << 4 | field(&modes[MATCHED]) << 2;
        pos += 1;
        for (kind, mode) in modes.iter().enumerate() {
            let table = &mut self.tables[kind];
            match mode {
                Mode::Fixed => {}
                Mode::Single(symbol) => {
                    out[pos] = *symbol;
                    pos += 1;
                    table.build_single(*symbol);
                }
                Mode::WithTable(shares) => {
                    pos = shares.describe(out, pos);
                    table.build(shares);
                }
                // present: the plan states that there are shares
                Mode::Again => {
                    table.build(self.shares[kind].as_ref().expect("a table is used again"))
                }
            }
        }
        let table = |kind: usize| match &modes[kind] {
            Mode::Fixed => &FIXED_TABLES[kind],
            _ => &*self.tables[kind],
        };
        let [literals, offset, matched] = [LITERALS, OFFSET, MATCHED].map(table);
        let mut bits = BitWriter::new(out, pos);
        let mut matched_state = matched.start(last.codes[MATCHED]);
        let mut offset_state = offset.start(last.codes[OFFSET]);
        let mut literals_state = literals.start(last.codes[LITERALS]);
        put_with_extra(BitString::clean(0, 0), last, &mut bits);
        for &seq in before.iter().rev() {
            let codes = offset
                .code(&mut offset_state, seq.codes[OFFSET])
                .then(matched.code(&mut matched_state, seq.codes[MATCHED]))
                .then(literals.code(&mut literals_state, seq.codes[LITERALS]));
            put_with_extra(codes, seq, &mut bits);
        }
        matched.end(matched_state, &mut bits);
        offset.end(offset_state, &mut bits);
        literals.end(literals_state, &mut bits);
        bits.flush();
        bits.close()
    }
}

/// Number of literals from which on four streams are worth their lengths.
const SINGLE_STREAM: usize = 256;

/// Writes a sequence's codes, of at most 26 bits, and their extra bits.
#[inline(always)]
fn put_with_extra(codes: BitString, seq: Sequence, bits: &mut BitWriter<'_>) {
    // Codes with extra bits begin at multiples of their range, except for match lengths, which count from 3.
    let literals = u32::from(LITERALS_BITS[usize::from(seq.codes[LITERALS])]);
    let matched = u32::from(MATCHED_BITS[usize::from(seq.codes[MATCHED])]);
    let offset = u32::from(seq.codes[OFFSET]);
    let lengths = BitString::low(seq.literals.into(), literals)
        .then(BitString::low((seq.matched - 3).into(), matched));
    let offset = BitString::low(seq.value.into(), offset);
    // At most 7 bits may be pending.
    if lengths.len() + offset.len() > 30 {
        bits.put(codes);
        bits.flush();
        bits.put(lengths);
        bits.flush();
        bits.put(offset);
    } else {
        bits.put(codes.then(lengths).then(offset));
    }
    bits.flush();
}

/// Writes the header of literals that are stored or repeated.
fn put_plain_header(kind: u32, n: usize, out: &mut [u8], pos: usize) -> usize {
    let (value, len) = match n {
        ..32 => (kind | (n as u32) << 3, 1),
        32..4096 => (kind | 1 << 2 | (n as u32) << 4, 2),
        _ => (kind | 3 << 2 | (n as u32) << 4, 3),
    };
    out[pos..pos + len].copy_from_slice(&value.to_le_bytes()[..len]);
    pos + len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_set_extensions_do_not_change_the_block() {
        let mut seed = 9u64;
        let mut next = move |n: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u32 % n
        };
        for round in 0..20 {
            let (mut stats, mut repeats) = (BlockStats::new(), RepeatOffsets::START);
            let (mut seqs, mut literals) = (Vec::new(), Vec::new());
            for _ in 0..50 * round {
                // Values of all magnitudes, so that all numbers of extra bits occur.
                let (a, b, c) = (next(12), next(14), next(20));
                let mut seq = Sequence::new(next(1 << a), 3 + next(1 << b), 1 + next(1 << c));
                repeats.code(&mut seq);
                stats.add_match(seq);
                for _ in 0..seq.literals {
                    let most = 1 + next(90);
                    literals.push(next(most) as u8);
                }
                seqs.push(seq);
            }
            stats.add_literals(&literals);
            let mut coder = BlockCoder::new();
            let plan = coder.plan(&stats);
            let mut with = vec![0; plan.size + plan.size / 8 + 64];
            let mut without = with.clone();
            let stop = coder.emit(&plan, &seqs, &literals, &mut with, 0);
            assert!(
                stop.abs_diff(plan.size) < 100,
                "the plan's size is about right"
            );
            assert_eq!(
                coder.emit_any(&plan, &seqs, &literals, &mut without, 0),
                stop
            );
            assert!(with == without, "round {round}");
        }
    }
}
