//! What one thread needs to ask.

use super::answer::Lent;

/// The codec contexts and buffers of one thread that asks a [`Server`](super::Server). They grow to what the largest
/// request needs and are used again.
#[derive(Default)]
pub struct Session {
    /// What the last answer was lent.
    pub(crate) lent: Vec<Lent>,
}
