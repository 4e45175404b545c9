//! Faults of hosts that tests inject: writes that are lost, a wrong clock, files that change while they are read.
//!
//! Outside of tests nothing fails. The end of a run at a [`step`](crate::files::step) is in [`files`](crate::files).

#[cfg(not(test))]
mod none {
    /// True if the store acknowledges the next write and loses it.
    pub(crate) const fn is_lost() -> bool {
        false
    }

    /// Time of the host.
    pub(crate) fn now() -> std::time::SystemTime {
        std::time::SystemTime::now()
    }

    /// Comes before each read of a file of the host.
    pub(crate) const fn before_read() {}
}

#[cfg(not(test))]
pub(crate) use none::{before_read, is_lost, now};

#[cfg(test)]
pub(crate) use injected::{
    before_read, change_at_reads, is_lost, lose_writes, lost_writes, now, set_clock,
};

#[cfg(test)]
mod injected {
    use std::cell::{Cell, RefCell};
    use std::time::{Duration, SystemTime};
    use tuff_testkit::Rng;

    /// Number of writes of which one is lost.
    const LOST_OF: u64 = 40;

    /// Change of a source. It gets the number of the read.
    type Change = Box<dyn FnMut(u32)>;

    thread_local! {
        static LOSSES: RefCell<Option<(Rng, u64, u64)>> = const { RefCell::new(None) };
        static LOST: Cell<u32> = const { Cell::new(0) };
        static CLOCK: Cell<i64> = const { Cell::new(0) };
        static CHANGE: RefCell<Option<(u32, Change)>> = const { RefCell::new(None) };
    }

    /// Loses some of the writes of this thread from here on. `None`: none.
    pub(crate) fn lose_writes(seed: Option<u64>) {
        LOST.set(0);
        LOSSES.replace(seed.map(|seed| {
            let mut random = Rng::new(seed);
            // Runs of a few writes lose one, too.
            let first = random.below_u64(LOST_OF / 2);
            (random, 0, first)
        }));
    }

    /// Number of writes that were lost since [`lose_writes`].
    pub(crate) fn lost_writes() -> u32 {
        LOST.get()
    }

    pub(crate) fn is_lost() -> bool {
        LOSSES.with_borrow_mut(|losses| {
            let Some((random, count, at)) = losses else {
                return false;
            };
            let is_lost = count == at;
            *count += 1;
            if *count == LOST_OF {
                (*count, *at) = (0, random.below_u64(LOST_OF));
            }
            LOST.set(LOST.get() + u32::from(is_lost));
            is_lost
        })
    }

    /// Sets the clock of this thread forward. Unit: seconds.
    pub(crate) fn set_clock(seconds: i64) {
        CLOCK.set(seconds);
    }

    pub(crate) fn now() -> SystemTime {
        let (now, offset) = (SystemTime::now(), CLOCK.get());
        let by = Duration::from_secs(offset.unsigned_abs());
        match offset < 0 {
            true => now - by,
            false => now + by,
        }
    }

    /// Calls `change` before each read of a file of the host. `None`: no more.
    pub(crate) fn change_at_reads(change: Option<Change>) {
        CHANGE.replace(change.map(|change| (0, change)));
    }

    pub(crate) fn before_read() {
        CHANGE.with_borrow_mut(|change| {
            if let Some((count, change)) = change {
                change(*count);
                *count += 1;
            }
        });
    }
}
