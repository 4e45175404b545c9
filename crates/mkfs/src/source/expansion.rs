//! Limit on content that is far larger than the source that states it: holes that are written as zeros, and compressed
//! archives.

use super::error::SourceError;

/// Default of [`ResourceOptions::max_expansion`](crate::ResourceOptions::max_expansion).
pub const EXPANSION_MAX: u64 = 4096;

/// Content that any source may have. Unit: bytes. Tests allow less.
pub(crate) const CONTENT_FREE: u64 = if cfg!(test) { 64 << 20 } else { 1 << 30 };

/// Limit on the content of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expansion(u64);

impl Default for Expansion {
    fn default() -> Self {
        Self(EXPANSION_MAX)
    }
}

impl Expansion {
    /// Returns the given or the default limit.
    pub(crate) fn new(max: Option<u64>) -> Self {
        Self(max.unwrap_or(EXPANSION_MAX))
    }

    /// Fails if `content` bytes are too many for a source of `stored` bytes.
    pub(crate) fn check(self, content: u64, stored: u64) -> Result<(), SourceError> {
        let max = stored.saturating_mul(self.0).max(CONTENT_FREE);
        if content <= max {
            return Ok(());
        }
        Err(SourceError::limit(format!(
            "more than {max} bytes of content in {stored} stored bytes (limit max_expansion: {} times)",
            self.0
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_limited_beyond_a_size_that_is_always_allowed() {
        let limit = Expansion::default();
        assert!(limit.check(CONTENT_FREE, 0).is_ok());
        assert!(limit.check(CONTENT_FREE + 1, CONTENT_FREE >> 12).is_err());
        assert!(limit.check(1 << 40, 1 << 28).is_ok());
        assert!(limit.check((1 << 40) + 1, 1 << 28).is_err());
        assert!(limit.check(u64::MAX, u64::MAX).is_ok());
        assert_eq!(
            limit.check(u64::MAX, 10).unwrap_err().to_string(),
            "more than 67108864 bytes of content in 10 stored bytes (limit max_expansion: 4096 times)"
        );
    }
}
