//! Truncation of a DEFLATE stream at any symbol, to fill an output from a stream that is slightly too long.
//!
//! Each of a block's Huffman codes has an end-of-block symbol. Written after any symbol of a block that is marked as
//! the last, it completes the stream. One compression of slightly too much input is therefore enough; its symbols are
//! walked, without the data, to find the position.
//!
//! ```text
//!  | block | ... | last? type | codes | symbol symbol symbol | symbol symbol ... end |
//!                  ^ set                                    ^ end of block goes here
//! ```
//!
//! Source: RFC 1951.

/// Longest code that the lookup table resolves in one step. Unit: bits.
const LOOKUP_BITS: u32 = 10;

/// Longest code of the format. Unit: bits.
const LENGTH_MAX: usize = 15;

/// Symbol that ends a block.
const END_OF_BLOCK: u16 = 256;

/// Result of a truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truncated {
    /// Length of the content of the truncated stream. Unit: bytes.
    pub(super) content: usize,
    /// Size of the truncated stream. Unit: bytes.
    pub(super) size: usize,
}

/// Reads bits, lowest first. Past the end it returns zeros.
struct BitReader<'a> {
    data: &'a [u8],
    pos: usize,
}

impl BitReader<'_> {
    /// Returns at least the next 56 bits, without advancing.
    #[inline(always)]
    fn peek(&self) -> u64 {
        let byte = self.pos / 8;
        let word = match self.data.get(byte..byte + 8) {
            Some(eight) => u64::from_le_bytes(eight.try_into().expect("eight bytes")),
            None => {
                let mut eight = [0; 8];
                let rest = self.data.get(byte..).unwrap_or(&[]);
                eight[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(eight)
            }
        };
        word >> (self.pos % 8)
    }

    fn take(&mut self, n: u32) -> u32 {
        let value = self.peek() as u32 & ((1 << n) - 1);
        self.pos += n as usize;
        value
    }
}

/// Decoding table of a Huffman code.
pub(super) struct HuffmanTable {
    /// Symbol and length by the next bits; 0 for a longer code.
    lookup: [u16; 1 << LOOKUP_BITS],
    lengths: [u8; 288],
    /// Number of codes of each length, and the symbols in the order of their codes.
    counts: [u16; LENGTH_MAX + 1],
    symbols: [u16; 288],
}

impl HuffmanTable {
    pub(super) fn new() -> Self {
        Self {
            lookup: [0; 1 << LOOKUP_BITS],
            lengths: [0; 288],
            counts: [0; LENGTH_MAX + 1],
            symbols: [0; 288],
        }
    }

    fn build(&mut self, lengths: &[u8]) {
        self.counts = [0; LENGTH_MAX + 1];
        self.lengths = [0; 288];
        self.lengths[..lengths.len()].copy_from_slice(lengths);
        for &length in lengths {
            self.counts[usize::from(length)] += 1;
        }
        self.counts[0] = 0;
        let mut first = [0u16; LENGTH_MAX + 2];
        let mut code = [0u32; LENGTH_MAX + 2];
        for length in 1..=LENGTH_MAX {
            first[length + 1] = first[length] + self.counts[length];
            code[length + 1] = (code[length] + u32::from(self.counts[length])) << 1;
        }
        self.lookup.fill(0);
        for (symbol, &length) in lengths.iter().enumerate() {
            if length == 0 {
                continue;
            }
            let n = usize::from(length);
            self.symbols[usize::from(first[n])] = symbol as u16;
            first[n] += 1;
            let reversed = reverse(code[n], u32::from(length));
            code[n] += 1;
            if u32::from(length) <= LOOKUP_BITS {
                // fits: symbols are below 2^9, lengths below 2^4
                let entry = (symbol as u16) << 4 | u16::from(length);
                for slot in self.lookup[reversed as usize..]
                    .iter_mut()
                    .step_by(1 << length)
                {
                    *slot = entry;
                }
            }
        }
    }

    /// Returns the next symbol and the length of its code. `None` if no code matches.
    #[inline(always)]
    fn read(&self, bits: u64) -> Option<(u16, u32)> {
        let entry = self.lookup[bits as usize & ((1 << LOOKUP_BITS) - 1)];
        if entry != 0 {
            return Some((entry >> 4, u32::from(entry & 15)));
        }
        self.read_long(bits)
    }

    fn read_long(&self, bits: u64) -> Option<(u16, u32)> {
        let (mut code, mut first, mut index) = (0i32, 0i32, 0i32);
        for length in 1..=LENGTH_MAX {
            code |= (bits >> (length - 1)) as i32 & 1;
            let count = i32::from(self.counts[length]);
            if code - count < first {
                return Some((self.symbols[(index + code - first) as usize], length as u32));
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }

    /// Returns a symbol's code as stored in a stream, and its length.
    fn code_of(&self, symbol: u16) -> (u32, u32) {
        let length = usize::from(self.lengths[usize::from(symbol)]);
        let mut code = 0u32;
        for n in 1..length {
            code = (code + u32::from(self.counts[n])) << 1;
        }
        let before = self.lengths[..usize::from(symbol)]
            .iter()
            .filter(|&&n| usize::from(n) == length)
            .count();
        (reverse(code + before as u32, length as u32), length as u32)
    }
}

fn reverse(code: u32, length: u32) -> u32 {
    code.reverse_bits() >> (32 - length)
}

/// Base and number of extra bits of each match length code.
const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const LENGTH_BITS: [u8; 29] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];

/// Order in which the lengths of the code length code are stored.
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Truncates the valid `stream` to at most `room` bytes. `None` if nothing fits.
pub(super) fn truncate(
    stream: &mut [u8],
    room: usize,
    literals: &mut HuffmanTable,
    distances: &mut HuffmanTable,
) -> Option<Truncated> {
    let room = room * 8;
    let mut bits = BitReader {
        data: stream,
        pos: 0,
    };
    let mut content = 0;
    // Header of the previous block, its end, and the length of the content there.
    let mut before: Option<(usize, usize, usize)> = None;
    loop {
        let header = bits.pos;
        let last = bits.take(1) == 1;
        let start = content;
        match bits.take(2) {
            0 => {
                bits.pos = bits.pos.next_multiple_of(8);
                let len = bits.take(16) as usize;
                let data = bits.pos + 16;
                if data + len * 8 > room {
                    let fits = room.saturating_sub(data) / 8;
                    if fits == 0 {
                        break;
                    }
                    // A stored block may end after any byte.
                    let at = data / 8 - 4;
                    // fits: less than the length was
                    let len = fits as u16;
                    stream[at..at + 2].copy_from_slice(&len.to_le_bytes());
                    stream[at + 2..at + 4].copy_from_slice(&(!len).to_le_bytes());
                    stream[header / 8] |= 1 << (header % 8);
                    return Some(Truncated {
                        content: content + fits,
                        size: data / 8 + fits,
                    });
                }
                bits.pos = data + len * 8;
                content += len;
            }
            kind => {
                if kind == 1 {
                    let mut lengths = [8; 288];
                    lengths[144..256].fill(9);
                    lengths[256..280].fill(7);
                    literals.build(&lengths);
                    distances.build(&[5; 30]);
                } else {
                    read_codes(&mut bits, literals, distances)?;
                }
                let (end_code, end_length) = literals.code_of(END_OF_BLOCK);
                // The end-of-block symbol has to fit after the last symbol.
                let limit = room.checked_sub(end_length as usize);
                let mut fits = (bits.pos, content);
                let mut ended = false;
                while limit.is_some_and(|limit| bits.pos <= limit) {
                    fits = (bits.pos, content);
                    let word = bits.peek();
                    let (symbol, length) = literals.read(word)?;
                    if symbol < END_OF_BLOCK {
                        bits.pos += length as usize;
                        content += 1;
                        // Literals come in runs.
                        continue;
                    }
                    if symbol == END_OF_BLOCK {
                        bits.pos += length as usize;
                        ended = true;
                        break;
                    }
                    let index = usize::from(symbol - 257);
                    let extra = u32::from(*LENGTH_BITS.get(index)?);
                    let word = word >> length;
                    content +=
                        usize::from(LENGTH_BASE[index]) + (word as usize & ((1 << extra) - 1));
                    let (distance, distance_length) = distances.read(word >> extra)?;
                    let distance_extra = (u32::from(distance) / 2).saturating_sub(1);
                    bits.pos += (length + extra + distance_length + distance_extra) as usize;
                }
                if !ended {
                    let (pos, content) = fits;
                    if content == start {
                        break;
                    }
                    stream[header / 8] |= 1 << (header % 8);
                    put_code(stream, pos, end_code, end_length);
                    return Some(Truncated {
                        content,
                        size: (pos + end_length as usize).div_ceil(8),
                    });
                }
            }
        }
        if last {
            return Some(Truncated {
                content,
                size: bits.pos.div_ceil(8),
            });
        }
        before = Some((header, bits.pos, content));
    }
    // Not even one symbol of this block fits: the previous block becomes the last.
    let (header, pos, content) = before?;
    stream[header / 8] |= 1 << (header % 8);
    put_code(stream, pos, 0, 0);
    Some(Truncated {
        content,
        size: pos.div_ceil(8),
    })
}

/// Reads the Huffman codes of a block.
fn read_codes(
    bits: &mut BitReader<'_>,
    literals: &mut HuffmanTable,
    distances: &mut HuffmanTable,
) -> Option<()> {
    let literal_count = bits.take(5) as usize + 257;
    let distance_count = bits.take(5) as usize + 1;
    let length_count = bits.take(4) as usize + 4;
    let mut lengths = [0; 19];
    for &symbol in &ORDER[..length_count] {
        lengths[symbol] = bits.take(3) as u8;
    }
    // The table of the literals first decodes the code lengths.
    literals.build(&lengths);
    let mut all = [0u8; 288 + 32];
    let mut n = 0;
    while n < literal_count + distance_count {
        let (symbol, length) = literals.read(bits.peek())?;
        bits.pos += length as usize;
        let (value, repeat) = match symbol {
            16 => (all[n.checked_sub(1)?], 3 + bits.take(2)),
            17 => (0, 3 + bits.take(3)),
            18 => (0, 11 + bits.take(7)),
            length => (length as u8, 1),
        };
        all.get_mut(n..n + repeat as usize)?.fill(value);
        n += repeat as usize;
    }
    literals.build(&all[..literal_count.min(288)]);
    distances.build(&all[literal_count..literal_count + distance_count]);
    Some(())
}

/// Writes a code at a bit position, and zeros after it up to the end of its last byte.
fn put_code(stream: &mut [u8], pos: usize, code: u32, length: u32) {
    let byte = pos / 8;
    let keep = pos % 8;
    let mut value = code << keep;
    if keep > 0 {
        value |= u32::from(stream[byte]) & ((1 << keep) - 1);
    }
    let bytes = (keep + length as usize).div_ceil(8);
    stream[byte..byte + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
}
