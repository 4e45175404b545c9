//! Buffer that a request fills, with its access hints.

/// The caller's buffer, or a part of it, and the options of the request.
pub(crate) struct OutputBuffer<'a> {
    pub(crate) buf: &'a mut [u8],
    /// Number of requested bytes. Bytes of `buf` after them may be overwritten.
    pub(crate) len: usize,
    /// Position of `buf` in the reply.
    pub(crate) base: usize,
    /// Ranges of cached clusters may be returned by reference.
    pub(crate) by_reference: bool,
    /// Clusters may be pushed to a cache above the server.
    pub(crate) push: bool,
    /// Distance between the starts of successive requests of a strided reader. Unit: bytes.
    pub(crate) stride: Option<u64>,
    /// The access is sequential or long: the rest of each cluster is likely to be requested soon.
    pub(crate) clustered: bool,
}
