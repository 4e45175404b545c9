//! Connection to the kernel, shared by all threads of a session.

use super::replies::ReplySender;
use super::uring::rings::Rings;
use crate::mountpoint::Mountpoint;
use crate::schedule::cpu_latency::CpuLatency;
use rustix::fd::AsFd;
use std::sync::Arc;

/// Device, rings and CPU latency limit of a session.
pub(crate) struct Connection {
    pub(crate) mountpoint: Mountpoint,
    /// Rings. None if all requests use the device.
    pub(crate) rings: Option<Rings>,
    /// CPU latency limit, which notes each request.
    pub(crate) cpu_latency: Option<Arc<CpuLatency>>,
}

impl Connection {
    /// Creates a sender of replies for the calling thread.
    pub(crate) fn replies(&self) -> ReplySender<'_> {
        ReplySender::new(self.mountpoint.as_fd(), self.rings.as_ref())
    }
}
