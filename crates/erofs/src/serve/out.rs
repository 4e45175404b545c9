//! Buffer that a request fills.

/// The caller's buffer, or a part of it, and how it may be filled.
pub(crate) struct Out<'a> {
    pub(crate) buf: &'a mut [u8],
    /// How many bytes are asked for; what follows in `buf` may be scribbled on.
    pub(crate) len: usize,
    /// Where `buf` starts in the answer.
    pub(crate) base: usize,
    /// Runs may be lent instead of copied.
    pub(crate) lend: bool,
    /// Clusters may be handed on.
    pub(crate) hand_on: bool,
    /// The reader goes ahead in even steps. Unit: bytes.
    pub(crate) stride: Option<u64>,
    /// What is not needed now will probably be soon.
    pub(crate) clustered: bool,
}
