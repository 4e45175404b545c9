//! System call of the thread that sent a request, from `/proc`.
//!
//! Before a buffered write the kernel requests attributes, without the length of the write. While the reply is under
//! way, `/proc/TID/syscall` states the call:
//!
//! ```text
//!  number, then six arguments in hexadecimal        write(descriptor, buffer, length)
//! ```

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Longest `write` of Linux. Unit: bytes.
const LEN_MAX: u64 = 0x7fff_f000;
/// Length of a call that `/proc` does not tell: the longest step of splice and sendfile. Unit: bytes.
const LEN_UNKNOWN: u64 = 1 << 20;
/// Maximum number of buffers of a vectored write.
const BUFFERS_MAX: u64 = 1024;
/// Time in which a thread that sent a request falls asleep.
const SLEEP_TIME: Duration = Duration::from_millis(2);

/// Numbers of write, pwrite64, writev, pwritev and pwritev2.
#[cfg(target_arch = "x86_64")]
const WRITES: [i64; 5] = [1, 18, 20, 296, 328];
/// Numbers of write, pwrite64, writev, pwritev and pwritev2, as on all newer architectures.
#[cfg(not(target_arch = "x86_64"))]
const WRITES: [i64; 5] = [64, 68, 66, 70, 287];

/// Numbers of copy_file_range, splice, sendfile, io_uring_enter and io_submit, which may write, too.
#[cfg(target_arch = "x86_64")]
const COPIES: [i64; 5] = [326, 275, 40, 426, 209];
/// Numbers of copy_file_range, splice, sendfile, io_uring_enter and io_submit, as on all newer architectures.
#[cfg(not(target_arch = "x86_64"))]
const COPIES: [i64; 5] = [285, 76, 71, 426, 2];

/// Call of a thread that is about to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteCall {
    /// Maximum number of bytes that the call writes at once.
    pub(super) len: u64,
    /// Offset in the file. None if it is unknown, or the end of the file.
    pub(super) offset: Option<u64>,
}

impl WriteCall {
    /// Returns the write of a thread that waits for a reply. None if it is in another call, such as `read`.
    pub(super) fn of_thread(tid: u32) -> Option<Self> {
        let unknown = Self {
            len: LEN_UNKNOWN,
            offset: None,
        };
        let Some((number, arguments)) = system_call(tid) else {
            return Some(unknown);
        };
        let Some(kind) = WRITES.iter().position(|n| *n == number) else {
            return COPIES.contains(&number).then_some(unknown);
        };
        let [descriptor, buffers, count, position, ..] = arguments;
        let len = match kind {
            0 | 1 => Some(count),
            _ => length_of_buffers(tid, buffers, count),
        };
        let position = match kind {
            0 | 2 => None,
            _ => Some(position).filter(|position| i64::try_from(*position).is_ok()),
        };
        Some(Self {
            len: len.unwrap_or(LEN_UNKNOWN).min(LEN_MAX),
            offset: match position {
                Some(position) => Some(position),
                None => position_of(tid, descriptor),
            },
        })
    }

    /// Returns true if a thread may be inside a write.
    pub(super) fn is_under_way(tid: u32) -> bool {
        match state_of(tid) {
            // It runs, and may be copying.
            Some(state) if state.starts_with("running") => true,
            Some(state) => parse(&state).is_some_and(|(number, _)| may_write(number)),
            None => false,
        }
    }
}

fn may_write(number: i64) -> bool {
    WRITES.contains(&number) || COPIES.contains(&number)
}

fn state_of(tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{tid}/syscall")).ok()
}

/// Returns the number and the arguments of the call that a thread waits in.
fn system_call(tid: u32) -> Option<(i64, [u64; 6])> {
    let began = Instant::now();
    loop {
        let state = state_of(tid)?;
        // The request arrived before the thread fell asleep.
        if !state.starts_with("running") || began.elapsed() > SLEEP_TIME {
            return parse(&state);
        }
        std::thread::yield_now();
    }
}

fn parse(state: &str) -> Option<(i64, [u64; 6])> {
    let mut fields = state.split_whitespace();
    let number = fields.next()?.parse().ok()?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        let digits = fields.next()?.strip_prefix("0x")?;
        *argument = u64::from_str_radix(digits, 16).ok()?;
    }
    Some((number, arguments))
}

/// Returns the length of all buffers of a vectored write.
fn length_of_buffers(tid: u32, buffers: u64, count: u64) -> Option<u64> {
    let mut bytes = vec![0; 16 * count.min(BUFFERS_MAX) as usize];
    let memory = fs::File::open(format!("/proc/{tid}/mem")).ok()?;
    memory.read_exact_at(&mut bytes, buffers).ok()?;
    let lengths = bytes.chunks_exact(16).map(|buffer| {
        let (_, len) = buffer.split_at(8);
        len.try_into().map_or(0, u64::from_ne_bytes)
    });
    Some(lengths.fold(0, u64::saturating_add))
}

/// Returns the position of an open file. None if it appends.
fn position_of(tid: u32, descriptor: u64) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/{tid}/fdinfo/{descriptor}")).ok()?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim())
    };
    let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
    let appends = rustix::fs::OFlags::APPEND.bits();
    (flags & appends == 0).then(|| field("pos:")?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, PipeReader, Write};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    /// Runs a write to a full pipe, and returns what another thread sees of it.
    fn seen(
        write: impl FnOnce(&mut std::io::PipeWriter) + Send + 'static,
    ) -> Option<(WriteCall, u32)> {
        let (reader, mut writer): (PipeReader, _) = std::io::pipe().unwrap();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            sender.send((tid, writer.as_raw_fd())).unwrap();
            write(&mut writer);
        });
        let (tid, _) = receiver.recv().unwrap();
        let began = Instant::now();
        let found = loop {
            let is_writing = system_call(tid).is_some_and(|(n, _)| WRITES.contains(&n));
            if is_writing && !state_of(tid).unwrap().starts_with("running") {
                break WriteCall::of_thread(tid).map(|call| (call, tid));
            }
            if began.elapsed() > Duration::from_secs(20) || state_of(tid).is_none() {
                tuff_testkit::skipped("/proc does not tell system calls");
                break None;
            }
            std::thread::yield_now();
        };
        if let Some((_, tid)) = found {
            assert!(WriteCall::is_under_way(tid));
        }
        drop(reader);
        thread.join().unwrap();
        found
    }

    #[test]
    fn the_length_of_a_write_is_seen_while_it_waits() {
        let one = seen(|pipe| _ = pipe.write(&vec![0; 3 << 20]));
        if let Some((call, tid)) = one {
            assert_eq!(call.len, 3 << 20);
            assert!(!WriteCall::is_under_way(tid));
        }
        let many = seen(|pipe| {
            let (small, large) = (vec![0; 1000], vec![0; 1 << 20]);
            _ = pipe.write_vectored(&[IoSlice::new(&small), IoSlice::new(&large)]);
        });
        if let Some((call, _)) = many {
            assert_eq!(call.len, (1 << 20) + 1000);
        }
    }

    #[test]
    fn states_are_parsed() {
        let state = "18 0x3 0x7f00 0x1000 0x2000 0x0 0x0 0x7ffe 0x7f01\n";
        assert_eq!(parse(state), Some((18, [3, 0x7f00, 0x1000, 0x2000, 0, 0])));
        for other in ["running\n", "-1 0x7ffe 0x7f01\n", "", "18 0x3\n"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }
}
