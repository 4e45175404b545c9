//! MicroLZMA encoder: symbol by symbol, until the next one does not fit.
//!
//! The first byte is the complement of the properties byte. It is never zero, because properties are below 225.

use super::lazy::LazyParser;
use super::match_finder::{BinaryTree, HashChain, MatchFinder, SearchLimits};
use super::model::{LEN_MAX, Model, Props, Symbol};
use super::optimal::OptimalParser;
use super::parser::Parser;
use super::range_coder::RangeCoder;
use crate::encode::bounded_input;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};

/// First of the "extreme" levels.
const EXTREME: i32 = 100;

/// Match finder and parser of a level.
enum MatchSearch {
    /// Hash chain with few positions, and the lazy parser.
    HashChain(SearchLimits),
    /// Binary tree with many positions, and the optimal parser.
    BinaryTree(SearchLimits),
}

impl MatchSearch {
    /// Returns the settings of liblzma's presets. Levels 7 to 9, which differ from 6 there only by the dictionary
    /// size, take longer matches here.
    fn for_level(level: i32) -> Self {
        match level {
            ..=3 => {
                let (nice, depth) =
                    [(128, 4), (128, 8), (LEN_MAX, 24), (LEN_MAX, 48)][level.clamp(0, 3) as usize];
                MatchSearch::HashChain(SearchLimits {
                    nice,
                    depth,
                    margin: 0,
                })
            }
            EXTREME.. => {
                let nice = if matches!(level - EXTREME, 3 | 5) {
                    192
                } else {
                    LEN_MAX
                };
                MatchSearch::BinaryTree(SearchLimits {
                    nice,
                    depth: 512,
                    margin: 0,
                })
            }
            _ => {
                let (nice, depth, margin) = match level {
                    4 => (16, 24, 16),
                    5 => (32, 32, 16),
                    6 => (64, 48, 0),
                    7 => (128, 48, 0),
                    _ => (LEN_MAX, 152, 0),
                };
                MatchSearch::BinaryTree(SearchLimits {
                    nice,
                    depth,
                    margin,
                })
            }
        }
    }
}

/// Creates an encoder for `spec`; `None` if its memory cannot be allocated.
pub(crate) fn encoder(spec: &EncoderSpec) -> Option<Box<dyn Encoder>> {
    let dict = spec.match_distance_max();
    let input_max = spec.input_max;
    Some(match MatchSearch::for_level(spec.level) {
        MatchSearch::HashChain(limits) => Box::new(LzmaEncoder {
            finder: HashChain::new(dict, limits)?,
            parser: LazyParser::new(limits),
            model: Model::new(Props::USUAL),
            path: Vec::new(),
            input_max,
        }),
        MatchSearch::BinaryTree(limits) => Box::new(LzmaEncoder {
            finder: BinaryTree::new(dict, limits)?,
            parser: OptimalParser::new(limits),
            model: Model::new(Props::USUAL),
            path: Vec::new(),
            input_max,
        }),
    })
}

/// Encoder with its match finder, parser and model.
struct LzmaEncoder<F, P> {
    finder: F,
    parser: P,
    model: Model,
    /// Symbols to be encoded.
    path: Vec<Symbol>,
    input_max: usize,
}

impl<F: MatchFinder, P: Parser> Encoder for LzmaEncoder<F, P> {
    fn reset(&mut self) {}

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        self.run(input, at, dst, None).fit
    }

    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let trim = Some(trim).filter(|_| input.len() - at <= self.input_max);
        self.run(input, at, dst, trim)
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

impl<F: MatchFinder, P: Parser> LzmaEncoder<F, P> {
    fn run(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: Option<&Trim>) -> TailFit {
        let data = bounded_input(input, at, self.input_max);
        let props = Props::choose(data, dst.len());
        let end = self.encode(data, props, dst, trim);
        if let (Some(first), true) = (dst.first_mut(), end.fit.consumed > 0) {
            *first = !props.byte();
        }
        end
    }

    /// Encodes as much of `data` as fits. `trim` applies if `data` is encoded to its end.
    fn encode(
        &mut self,
        data: &[u8],
        props: Props,
        dst: &mut [u8],
        trim: Option<&Trim>,
    ) -> TailFit {
        let room = dst.len();
        let mut coder = RangeCoder::new(dst);
        if coder.len() > room {
            return Fit::NOTHING.into();
        }
        // State of the longest output of at most `mark` bytes, a multiple of a block: the coder and the input
        // encoded.
        let block = trim.map_or(usize::MAX, |trim| trim.block);
        let (mut mark, mut marked) = (block, (coder.state(), 0));
        self.finder.begin(data.len());
        self.parser.begin();
        self.model.reset(props);
        let mut at = 0;
        'all: while at < data.len() {
            self.path.clear();
            self.parser
                .parse(data, at, &mut self.finder, &self.model, &mut self.path);
            for symbol in &self.path {
                let state = coder.state();
                self.model.code(&mut coder, data, at, *symbol);
                if coder.len() > room {
                    coder.restore(state);
                    break 'all;
                }
                if coder.len() > mark {
                    mark = coder.len().next_multiple_of(block);
                    marked = (state, at);
                }
                at += symbol.len as usize;
            }
        }
        let trim = trim.filter(|_| at == data.len());
        let trimmed = trim.is_some_and(|trim| trim.target(coder.len()).is_some());
        if trimmed {
            coder.restore(marked.0);
            at = marked.1;
        }
        if at == 0 {
            return Fit::NOTHING.into();
        }
        let fit = Fit {
            consumed: at,
            written: coder.finish(),
        };
        TailFit { fit, trimmed }
    }
}
