//! Transport through io_uring, with one queue per processor (Linux 6.14 with the module parameter `enable_uring`).
//!
//! A request enters the queue of the client's processor. A thread that stays on this processor answers it, so no
//! other processor has to wake up. Where one reader keeps a queue busy with readahead, idle threads of other queues
//! take some of its requests:
//!
//! ```text
//!  request ─► thread of its queue ─► reply sent through its ring
//!                  │ several long reads
//!                  └─► shared ─► any thread ─► reply sent through that thread's ring, which then owns the slot
//!  short request ─► thread of another queue that owns the slot ─► reply; the slot returns to its own thread
//! ```
//!
//! INIT, FORGET and notifications use `/dev/fuse`: one thread serves it in addition.
//!
//! A request that waits for a disk must not block its queue. A second thread on the same processor, where a wake-up
//! is cheapest, waits instead and sends the reply.

pub(crate) mod rings;
mod shared;
mod start;
pub(crate) mod worker;
