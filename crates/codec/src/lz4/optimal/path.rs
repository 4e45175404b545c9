//! Cheapest paths to all positions of a cluster, and the block that the best of them results in.

/// Fewest literals at the end of a block. Unit: bytes.
pub(super) const LAST_LITERALS: usize = 5;

/// Fewest bytes from the start of the last match to the end of a block. Unit: bytes.
pub(super) const LAST_MATCH: usize = 12;

/// Longest match without an extension byte, and with one.
pub(super) const NO_EXTENSION_MAX: usize = 18;
pub(super) const ONE_EXTENSION_MAX: usize = 273;

/// Number of cells that are filled at a time.
pub(super) const STRIDE: usize = 4;

/// Number of ends past the frontier of a match that costs as much as the shortest, in whole strides.
pub(super) const NO_EXTENSION_CELLS: usize = (NO_EXTENSION_MAX - 3usize).next_multiple_of(STRIDE);

/// Number of literals that are copied at a time where space permits. Unit: bytes.
const COPY: usize = 16;

/// Cheapest path to a position.
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    /// Output for everything before the position, without the token of the preceding literals. Unit: bytes.
    pub(super) cost: u32,
    /// Last step of the path: the start of a match, or [`LITERAL_RUN`] and the number of literals after the last
    /// match.
    pub(super) link: u32,
}

/// Bit that marks a link as a number of literals.
pub(super) const LITERAL_RUN: u32 = 1 << 31;

/// Link to the start of the committed match, which lies before all cells.
pub(super) const COMMITTED: u32 = LITERAL_RUN - 1;

/// The match that is the best one for positions up to `reach`.
#[derive(Clone, Copy)]
pub(super) struct MatchEvent {
    /// End of the match. Unit: bytes, from the start of the cluster.
    pub(super) reach: u32,
    pub(super) distance: u32,
}

/// Literals followed by a match.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    literals: u32,
    matched: u32,
    distance: u32,
}

/// Returns the size of the offset, token and extension bytes of a match.
#[inline(always)]
pub(super) fn match_cost(len: usize) -> u32 {
    if len <= NO_EXTENSION_MAX {
        3
    } else {
        4 + ((len - NO_EXTENSION_MAX - 1) / 255) as u32
    }
}

/// Cells of one cluster for the positions `base..base + cells.len()`, as far as they are filled. Positions count from
/// the start of the cluster.
#[derive(Clone, Copy)]
pub(super) struct PathTable<'a> {
    pub(super) cells: &'a [Cell],
    pub(super) base: usize,
}

impl PathTable<'_> {
    fn at(&self, position: usize) -> Cell {
        self.cells[position - self.base]
    }

    /// Returns the number of literals right before a position.
    pub(super) fn run(&self, position: usize) -> u32 {
        match self.at(position).link {
            link if link & LITERAL_RUN != 0 => link & !LITERAL_RUN,
            _ => 0,
        }
    }
}

/// Returns the path extended by one literal.
#[inline(always)]
pub(super) fn literal(last: Cell) -> Cell {
    // The first literal after a match starts a run.
    let n = if last.link & LITERAL_RUN == 0 {
        1
    } else {
        (last.link & !LITERAL_RUN) + 1
    };
    // One byte more whenever the length outgrows the token or an extension byte.
    let extra = n >= 15 && (n - 15).is_multiple_of(255);
    Cell {
        cost: last.cost + 1 + u32::from(extra),
        link: LITERAL_RUN | n,
    }
}

/// Returns the cheaper of two paths.
#[inline(always)]
pub(super) fn cheaper(a: Cell, b: Cell) -> Cell {
    if b.cost < a.cost { b } else { a }
}

/// A match whose start lies on every path to later positions.
#[derive(Clone, Copy)]
pub(super) struct CommittedMatch {
    pub(super) start: usize,
    /// Number of literals before it.
    pub(super) literals: u32,
    pub(super) distance: u32,
}

/// Extends the path by `n` literals, as far as the output holds them, and fills their cells. `cells` is longer by a
/// stride. Returns the number of literals that fit.
#[inline(always)]
pub(super) fn literals(last: &mut Cell, cells: &mut [Cell], n: usize, limit: u32) -> usize {
    let run = if last.link & LITERAL_RUN == 0 {
        0
    } else {
        last.link & !LITERAL_RUN
    };
    if run as usize + n < 15 && last.cost + (n as u32) < limit {
        let cell = |i: usize| Cell {
            cost: last.cost + i as u32,
            link: (LITERAL_RUN | run) + i as u32,
        };
        for (i, stride) in cells[..n + STRIDE - 1].chunks_exact_mut(STRIDE).enumerate() {
            for (k, slot) in stride.iter_mut().enumerate() {
                *slot = cell(i * STRIDE + k + 1);
            }
        }
        *last = cell(n);
        return n;
    }
    for (i, slot) in cells[..n].iter_mut().enumerate() {
        let next = literal(*last);
        if next.cost >= limit {
            return i;
        }
        *last = next;
        *slot = next;
    }
    n
}

/// Returns the cheapest path to `j` by a match that could start at `start`: the earliest start for each number of
/// extension bytes.
#[inline(always)]
pub(super) fn matched(cells: &[Cell], base: usize, start: usize, first: u32, j: usize) -> Cell {
    let length = j - start;
    let mut cell = Cell {
        cost: first + match_cost(length),
        link: start as u32,
    };
    if length > NO_EXTENSION_MAX {
        let from = j - NO_EXTENSION_MAX;
        cell = cheaper(
            cell,
            Cell {
                cost: cells[from - base].cost + 3,
                link: from as u32,
            },
        );
        if length > ONE_EXTENSION_MAX {
            let from = j - ONE_EXTENSION_MAX;
            cell = cheaper(
                cell,
                Cell {
                    cost: cells[from - base].cost + 4,
                    link: from as u32,
                },
            );
        }
    }
    cell
}

/// Fills cells in strides, the last of which may exceed the valid cells: cheaper than computing its length. The slice
/// is longer than the valid cells by a stride less one.
#[inline(always)]
pub(super) fn fill(cells: &mut [Cell], cell: Cell) {
    for stride in cells.chunks_exact_mut(STRIDE) {
        stride.fill(cell);
    }
}

/// Returns at least `len` cells.
pub(super) fn with_length(store: &mut Vec<Cell>, len: usize) -> &mut [Cell] {
    if store.len() < len {
        store.resize(len + len / 2 + 4096, Cell::default());
    }
    store
}

/// Finds the position from which the last literals reach furthest. Usually this is the last position, but too few
/// literals may follow its last match.
///
/// Returns the position, the end of the block and its cost without the last token.
pub(super) fn end_of_block(
    paths: PathTable<'_>,
    committed: Option<CommittedMatch>,
    len: usize,
    limit: u32,
) -> Option<(usize, usize, u32)> {
    let mut best: Option<(usize, usize, u32)> = None;
    for (back, &cell) in paths.cells.iter().enumerate().rev() {
        if best.is_some() && back + 64 < paths.cells.len() {
            break;
        }
        let position = paths.base + back;
        let run = paths.run(position) as usize;
        let matched_at = position - run;
        let needed = if matched_at == 0 {
            0
        } else {
            let start = match (paths.at(matched_at).link, committed) {
                (COMMITTED, Some(committed)) => committed.start,
                (start, _) => start as usize,
            };
            LAST_LITERALS
                .max(LAST_MATCH.saturating_sub(matched_at - start))
                .saturating_sub(run)
        };
        let mut more = 0;
        let mut state = cell;
        while position + more < len {
            let next = literal(state);
            if next.cost >= limit {
                break;
            }
            state = next;
            more += 1;
        }
        let end = position + more;
        let better =
            best.is_none_or(|(_, far, cost)| end > far || (end == far && state.cost < cost));
        if more >= needed && end > 0 && better {
            best = Some((position, end, state.cost));
        }
    }
    best
}

/// Collects the sequences on the path to `position`. Those after `base` are in `seqs` already.
#[inline(never)]
pub(super) fn collect_sequences(
    paths: PathTable<'_>,
    mut position: usize,
    events: &[MatchEvent],
    committed: Option<CommittedMatch>,
    tail: &mut Vec<Sequence>,
    seqs: &mut Vec<Sequence>,
) {
    tail.clear();
    let mut event = events.len();
    loop {
        let cell = paths.at(position);
        if cell.link & LITERAL_RUN != 0 {
            let run = (cell.link & !LITERAL_RUN) as usize;
            if run == 0 || run == position {
                break;
            }
            position -= run;
            continue;
        }
        if cell.link == COMMITTED {
            // present: only a committed match leaves such a link
            if let Some(CommittedMatch {
                start,
                literals,
                distance,
            }) = committed
            {
                tail.push(Sequence {
                    literals,
                    matched: (position - start) as u32,
                    distance,
                });
            }
            break;
        }
        let start = cell.link as usize;
        let literals = paths.run(start);
        // The first event that reaches the position.
        while event > 0 && events[event - 1].reach as usize >= position {
            event -= 1;
        }
        tail.push(Sequence {
            literals,
            matched: (position - start) as u32,
            distance: events[event].distance,
        });
        position = start;
    }
    seqs.extend(tail.drain(..).rev());
}

/// Writes a block that decodes to `src`. Returns its size.
#[inline(never)]
pub(super) fn emit(seqs: &[Sequence], src: &[u8], dst: &mut [u8]) -> usize {
    let (mut read, mut write) = (0, 0);
    for seq in seqs {
        let (literals, extension) = (seq.literals as usize, seq.matched as usize - 4);
        dst[write] = ((literals.min(15) << 4) | extension.min(15)) as u8;
        write = extend(literals, dst, write + 1);
        if literals <= COPY && read + COPY <= src.len() && write + COPY <= dst.len() {
            dst[write..write + COPY].copy_from_slice(&src[read..read + COPY]);
        } else {
            dst[write..write + literals].copy_from_slice(&src[read..read + literals]);
        }
        write += literals;
        read += literals + seq.matched as usize;
        dst[write..write + 2].copy_from_slice(&(seq.distance as u16).to_le_bytes());
        write = extend(extension, dst, write + 2);
    }
    let rest = &src[read..];
    dst[write] = (rest.len().min(15) << 4) as u8;
    write = extend(rest.len(), dst, write + 1);
    dst[write..write + rest.len()].copy_from_slice(rest);
    write + rest.len()
}

/// Writes the extension bytes of a length.
#[inline(always)]
fn extend(len: usize, dst: &mut [u8], mut write: usize) -> usize {
    if len >= 15 {
        let mut rest = len - 15;
        while rest >= 255 {
            dst[write] = 255;
            write += 1;
            rest -= 255;
        }
        dst[write] = rest as u8;
        write += 1;
    }
    write
}
