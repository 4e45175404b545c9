//! FUSE_INIT: the protocol version and the features that the kernel and a server agree on.

use crate::log::Log;
use crate::protocol::{self, InitIn, InitOut, RING_MAX_PAGES, init};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Smallest `max_write` that the kernel accepts, for servers that serve no WRITE.
const MIN_MAX_WRITE: u32 = 4096;

/// Properties of a server that decide the reply to FUSE_INIT.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Bits of [`init`] that the server implements, without [`init::OVER_IO_URING`].
    pub features: u64,
    /// True if the server serves WRITE.
    pub writable: bool,
    /// Maximum number of background requests, such as readahead and write-back.
    pub max_background: u16,
    /// Maximum length of a request, at most `MAX_PAGES`. Unit: pages of 4 KiB.
    pub max_pages: u16,
}

/// State of the negotiation, shared by all threads of a session.
#[derive(Debug, Default)]
pub struct Negotiation {
    offers_io_uring: AtomicBool,
    features: AtomicU64,
    minor: AtomicU32,
    threads: AtomicUsize,
}

impl Negotiation {
    /// Sets the number of serving threads, and whether io_uring is offered. Takes effect for the next FUSE_INIT.
    pub fn begin(&self, threads: usize, offers_io_uring: bool) {
        self.threads.store(threads, Relaxed);
        self.offers_io_uring.store(offers_io_uring, Relaxed);
    }

    /// Returns the number of serving threads.
    pub fn threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    /// Returns the negotiated bits of [`init`], or 0 before FUSE_INIT.
    pub fn features(&self) -> u64 {
        self.features.load(Relaxed)
    }

    /// Returns the negotiated minor version, or 0 before FUSE_INIT.
    pub fn minor(&self) -> u32 {
        self.minor.load(Relaxed)
    }

    /// Computes the reply to FUSE_INIT, from the kernel's request and its features, and stores the result.
    ///
    /// A kernel with a later major version gets a reply with this server's version and sends FUSE_INIT again.
    ///
    /// # Errors
    /// EPROTO for a version that is too old.
    pub fn negotiate(
        &self,
        (kernel, supported): (InitIn, u64),
        offer: &Offer,
        log: &Log,
    ) -> Result<InitOut, Errno> {
        if (kernel.major, kernel.minor) < (protocol::MAJOR, protocol::MINOR_MIN) {
            log.line(format_args!(
                "the kernel speaks FUSE {}.{}, too old: expected at least {}.{}",
                kernel.major,
                kernel.minor,
                protocol::MAJOR,
                protocol::MINOR_MIN
            ));
            return Err(Errno::PROTO);
        }
        if kernel.major > protocol::MAJOR {
            return Ok(InitOut {
                major: protocol::MAJOR,
                minor: protocol::MINOR,
                ..Default::default()
            });
        }
        let io_uring = match self.offers_io_uring.load(Relaxed) {
            true => init::OVER_IO_URING,
            false => 0,
        };
        let features = supported & (offer.features | io_uring);
        let minor = kernel.minor.min(protocol::MINOR);
        self.features.store(features, Relaxed);
        self.minor.store(minor, Relaxed);
        let max_pages = match features & init::OVER_IO_URING {
            0 => offer.max_pages,
            _ => offer.max_pages.min(RING_MAX_PAGES),
        };
        Ok(InitOut {
            major: protocol::MAJOR,
            minor,
            max_readahead: kernel.max_readahead,
            flags: features as u32, // the low half
            flags2: (features >> 32) as u32,
            max_background: offer.max_background,
            congestion_threshold: offer.max_background - offer.max_background / 4,
            max_write: match offer.writable {
                true => u32::from(max_pages) * 4096,
                false => MIN_MAX_WRITE,
            },
            time_gran: 1,
            max_pages,
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::MAX_PAGES;

    #[test]
    fn io_uring_and_long_writes_are_negotiated_only_where_offered() {
        let offer = Offer {
            features: init::MAX_PAGES | init::INIT_EXT,
            writable: true,
            max_background: 10,
            max_pages: MAX_PAGES,
        };
        let negotiation = Negotiation::default();
        let negotiate = |offer: &Offer| {
            let kernel = InitIn {
                major: 7,
                minor: 99,
                ..InitIn::default()
            };
            let reply = negotiation.negotiate((kernel, !0), offer, &Log::none());
            let reply = reply.unwrap();
            assert_eq!(reply.minor, negotiation.minor());
            (reply.max_pages, reply.max_write)
        };
        assert_eq!(negotiate(&offer), (256, 1 << 20));
        assert_eq!(negotiation.features(), offer.features);
        negotiation.begin(2, true);
        assert_eq!(negotiate(&offer), (128, 512 << 10));
        assert_eq!(negotiation.features(), offer.features | init::OVER_IO_URING);
        let read_only = Offer {
            writable: false,
            ..offer
        };
        assert_eq!(negotiate(&read_only), (128, 4096));
    }
}
