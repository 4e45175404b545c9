//! Interface of the encoders: compression into an output of a fixed size.

/// Input consumed and output written by [`Encoder::fit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Input bytes that the output decodes to, counted from the start position. 0 if not even one byte fits.
    pub consumed: usize,
    /// Output bytes written, from the start of `dst`.
    pub written: usize,
}

impl Fit {
    /// Result of a call in which not even one byte of input fits.
    pub(crate) const NOTHING: Fit = Fit {
        consumed: 0,
        written: 0,
    };
}

/// Condition for ending an output early, at a multiple of a block, because only a few bytes lie past that multiple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Outputs up to this length are not trimmed. Unit: bytes.
    pub untrimmed_max: usize,
    /// Block size, a power of two of at least 512. Unit: bytes.
    pub block: usize,
    /// Largest number of bytes past the last multiple of a block, less than a block. Unit: bytes.
    pub excess_max: usize,
}

impl Trim {
    /// Returns the length to trim an output of `size` bytes to. `None` if it is not to be trimmed.
    pub(crate) fn target(&self, size: usize) -> Option<usize> {
        let excess = size % self.block;
        let trims = size > self.untrimmed_max
            && size > self.block
            && (1..=self.excess_max).contains(&excess);
        trims.then(|| size - excess)
    }
}

/// Result of a call of [`Encoder::fit_tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailFit {
    /// Bytes consumed and written.
    pub fit: Fit,
    /// True if the output was ended early.
    pub trimmed: bool,
}

impl From<Fit> for TailFit {
    fn from(fit: Fit) -> Self {
        Self {
            fit,
            trimmed: false,
        }
    }
}

/// An encoder that fills an output of a fixed size with as much input as fits.
pub trait Encoder: Send {
    /// Starts a new input and discards all state of earlier ones. Must be called before the first
    /// [`fit`](Self::fit) on each `input`.
    fn reset(&mut self);

    /// Compresses the longest prefix of `input[at..]` that fits into `dst`.
    ///
    /// Between two calls of [`reset`](Self::reset), `input` is the same (it may have grown at its end) and `at` never
    /// decreases, so that an encoder may index the input once. At most [`input_max`](Self::input_max) bytes are consumed.
    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit;

    /// Compresses like [`fit`](Self::fit), but trims the output if all of `input[at..]` fits and `trim` applies.
    ///
    /// A trimmed output holds as much input as fits into the shorter length. Encoders for which this is expensive do not trim.
    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let _ = trim;
        self.fit(input, at, dst).into()
    }

    /// Returns the largest number of input bytes that one call consumes.
    fn input_max(&self) -> usize;
}

/// Returns the part of `input[at..]` that one call may consume.
pub(crate) fn bounded_input(input: &[u8], at: usize, input_max: usize) -> &[u8] {
    let rest = &input[at..];
    &rest[..rest.len().min(input_max)]
}
