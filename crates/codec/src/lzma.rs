//! MicroLZMA: an encoder of our own, liblzma to decode.
//!
//! The first byte is the complement of the properties byte, which is never zero: properties are below 225.
//!
//! ```text
//!  finder: earlier places like this one
//!    └► parser: which symbols                 symbol by symbol, until the next one does not fit
//!         └► model: with which probabilities
//!              └► range coder: bytes
//! ```

mod decode;
mod fast;
mod finder;
mod model;
mod optimal;
mod prices;
mod range;

pub(crate) use decode::Decompressor;

use crate::lz4::piece;
use crate::{EncodeFit, EncoderSpec, Fit, FitEnd, Trim};

use fast::Fast;
use finder::{Chain, Effort, Find, Tree};
use model::{LEN_MAX, Model, Props, Symbol};
use optimal::Optimal;
use range::RangeCoder;

/// Levels from here on are the "extreme" ones.
const EXTREME: i32 = 100;

/// How a level looks for matches.
enum Search {
    /// Few places, and the parse decides at once.
    Chain(Effort),
    /// Many places, and the parse weighs all ways.
    Tree(Effort),
}

impl Search {
    /// As liblzma's presets are, but that 7 to 9, which differ from 6 there by a dictionary that is none of theirs here, take
    /// longer matches.
    fn of(level: i32) -> Self {
        match level {
            ..=3 => {
                let (nice, depth) =
                    [(128, 4), (128, 8), (LEN_MAX, 24), (LEN_MAX, 48)][level.clamp(0, 3) as usize];
                Search::Chain(Effort {
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
                Search::Tree(Effort {
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
                Search::Tree(Effort {
                    nice,
                    depth,
                    margin,
                })
            }
        }
    }
}

/// Decides which symbols to write.
trait Parse: Send {
    /// Starts on an input.
    fn begin(&mut self);

    /// Appends at least one symbol for `data[at..]`, which is not empty. The finder is at `at`, or one further if the
    /// parser has asked for the matches there.
    fn parse(
        &mut self,
        data: &[u8],
        at: usize,
        finder: &mut impl Find,
        model: &Model,
        path: &mut Vec<Symbol>,
    );
}

/// An encoder of `spec`; `None` if its memory cannot be had.
pub(crate) fn encoder(spec: &EncoderSpec) -> Option<Box<dyn EncodeFit>> {
    let dict = spec.history();
    let window = spec.window;
    Some(match Search::of(spec.level) {
        Search::Chain(effort) => Box::new(Lzma {
            finder: Chain::new(dict, effort)?,
            parser: Fast::new(effort),
            model: Model::new(Props::USUAL),
            path: Vec::new(),
            window,
        }),
        Search::Tree(effort) => Box::new(Lzma {
            finder: Tree::new(dict, effort)?,
            parser: Optimal::new(effort),
            model: Model::new(Props::USUAL),
            path: Vec::new(),
            window,
        }),
    })
}

/// The encoder.
struct Lzma<F, P> {
    finder: F,
    parser: P,
    model: Model,
    /// Symbols to be coded.
    path: Vec<Symbol>,
    window: usize,
}

impl<F: Find, P: Parse> EncodeFit for Lzma<F, P> {
    fn reset(&mut self) {}

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        self.run(input, at, dst, None).fit
    }

    fn fit_end(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> FitEnd {
        let trim = Some(trim).filter(|_| input.len() - at <= self.window);
        self.run(input, at, dst, trim)
    }

    fn window(&self) -> usize {
        self.window
    }
}

impl<F: Find, P: Parse> Lzma<F, P> {
    fn run(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: Option<&Trim>) -> FitEnd {
        let data = piece(input, at, self.window);
        let props = Props::of(data, dst.len());
        let end = self.encode(data, props, dst, trim);
        if let (Some(first), true) = (dst.first_mut(), end.fit.consumed > 0) {
            *first = !props.byte();
        }
        end
    }

    /// `trim` is for `data` that is encoded to its end.
    fn encode(&mut self, data: &[u8], props: Props, dst: &mut [u8], trim: Option<&Trim>) -> FitEnd {
        let room = dst.len();
        let mut coder = RangeCoder::new(dst);
        if coder.len() > room {
            return Fit::NOTHING.into();
        }
        // The longest output that is not longer than `mark`, a multiple of a block: where the coder was, and what was coded.
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
        let trimmed = trim.is_some_and(|trim| trim.room(coder.len()).is_some());
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
        FitEnd { fit, trimmed }
    }
}
