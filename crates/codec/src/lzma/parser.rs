//! Interface of the parsers, which choose the symbols that the model encodes.

use super::match_finder::MatchFinder;
use super::model::{Model, Symbol};

/// Chooses the symbols to encode.
pub(super) trait Parser: Send {
    /// Starts an input and discards all price tables.
    fn begin(&mut self);

    /// Appends at least one symbol for `data[at..]`, which is not empty. The finder is at `at`, or one position
    /// further if the parser has requested the matches there.
    fn parse(
        &mut self,
        data: &[u8],
        at: usize,
        finder: &mut impl MatchFinder,
        model: &Model,
        path: &mut Vec<Symbol>,
    );
}
