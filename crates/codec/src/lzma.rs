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
use crate::{EncodeFit, EncoderSpec, Fit};

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
        let data = piece(input, at, self.window);
        let props = Props::of(data, dst.len());
        let fit = self.encode(data, props, dst);
        if let (Some(first), true) = (dst.first_mut(), fit.consumed > 0) {
            *first = !props.byte();
        }
        fit
    }

    fn window(&self) -> usize {
        self.window
    }
}

impl<F: Find, P: Parse> Lzma<F, P> {
    fn encode(&mut self, data: &[u8], props: Props, dst: &mut [u8]) -> Fit {
        let room = dst.len();
        let mut coder = RangeCoder::new(dst);
        if coder.len() > room {
            return Fit::NOTHING;
        }
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
                at += symbol.len as usize;
            }
        }
        if at == 0 {
            return Fit::NOTHING;
        }
        Fit {
            consumed: at,
            written: coder.finish(),
        }
    }
}
