//! Virtual time: the times at which each part of the device becomes free.
//!
//! The timing rule is that of NVMeVirt. A read occupies the die first and then the channel; a write
//! occupies the channel first and then the die; an erase occupies the die. Commands otherwise wait
//! only for the link, the firmware and room in the write buffer.

use crate::geometry::Geometry;
use std::collections::VecDeque;
use std::ops::{Add, AddAssign, Sub};

/// A point in virtual time, or a duration. Unit: nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the duration of `us` microseconds.
    pub const fn micros(us: u64) -> Self {
        Nanos(us * 1000)
    }

    /// Returns the duration of `ms` milliseconds.
    pub const fn millis(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }

    /// Returns the time in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time elapsed since `other`; zero if `other` is later.
    pub fn since(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }

    /// Returns the duration multiplied by `n`.
    pub fn times(self, n: u64) -> Nanos {
        Nanos(self.0 * n)
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0 + other.0)
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0 - other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        self.0 += other.0;
    }
}

/// Latencies and service times of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Sensing one slot of a page.
    pub read_slot: Nanos,
    /// Sensing a whole page.
    pub read_page: Nanos,
    /// Programming a page, without the transfer.
    pub program: Nanos,
    /// Erasing a block of the die.
    pub erase: Nanos,
    /// Transfer of one slot over a channel.
    pub channel_slot: Nanos,
    /// Transfer of one slot over the link to the host.
    pub link_slot: Nanos,
    /// Delay between the arrival of a read and its first flash access.
    pub read_latency: Nanos,
    /// Delay between buffer admission of a write and its acknowledgement.
    pub write_latency: Nanos,
    /// Additional delay for each slot of a write.
    pub write_latency_slot: Nanos,
    /// Duration of a flush after all earlier commands are acknowledged.
    pub flush: Nanos,
    /// Time on the single firmware core for each command.
    pub command: Nanos,
    /// Capacity of the write buffer, which survives a power loss. Unit: slots.
    pub buffer_slots: u32,
    /// Firmware time of one map look-up.
    pub map_get: Nanos,
    /// Firmware time of changing or removing one map entry.
    pub map_set: Nanos,
    /// Firmware time of moving or examining one entry during map maintenance.
    pub map_entry: Nanos,
}

/// Busy intervals of a channel, ordered by start. A transfer that waits for its die leaves the time
/// before it free.
#[derive(Clone, Debug, Default)]
struct Channel(VecDeque<(Nanos, Nanos)>);

impl Channel {
    /// Reserves the channel for `time` in the first gap at or after `from` and returns the end. All
    /// later calls use the same or a greater `now`.
    fn take(&mut self, now: Nanos, from: Nanos, time: Nanos) -> Nanos {
        while self.0.front().is_some_and(|(_, end)| *end <= now) {
            self.0.pop_front();
        }
        let mut start = from;
        let mut at = self.0.len();
        for (i, (taken, end)) in self.0.iter().enumerate() {
            if start + time <= *taken {
                at = i;
                break;
            }
            start = start.max(*end);
        }
        self.0.insert(at, (start, start + time));
        start + time
    }
}

/// Times at which the dies, channels, link and firmware become free.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    timing: Timing,
    geometry: Geometry,
    lun_free: Vec<Nanos>,
    channels: Vec<Channel>,
    link_free: Nanos,
    firmware_free: Nanos,
}

impl Clock {
    pub(crate) fn new(geometry: Geometry, timing: Timing) -> Self {
        Self {
            timing,
            geometry,
            lun_free: vec![Nanos(0); geometry.luns() as usize],
            channels: vec![Channel::default(); geometry.channels as usize],
            link_free: Nanos(0),
            firmware_free: Nanos(0),
        }
    }

    /// Reads `slots` slots of one page; returns when they have left the die.
    pub(crate) fn read(&mut self, lun: u32, now: Nanos, slots: u32) -> Nanos {
        let sense = if slots == 1 {
            self.timing.read_slot
        } else {
            self.timing.read_page
        };
        let sensed = now.max(self.lun_free[lun as usize]) + sense;
        let time = self.timing.channel_slot.times(slots.into());
        let channel = &mut self.channels[self.geometry.channel_of(lun) as usize];
        let end = channel.take(now, sensed, time);
        self.lun_free[lun as usize] = end;
        end
    }

    /// Sends a page to its die and programs it; returns when it is done.
    pub(crate) fn program(&mut self, lun: u32, now: Nanos) -> Nanos {
        let slots = self.geometry.slots_per_page;
        let time = self.timing.channel_slot.times(slots.into());
        let channel = &mut self.channels[self.geometry.channel_of(lun) as usize];
        // The die's page register accepts no data during an operation.
        let sent = channel.take(now, now.max(self.lun_free[lun as usize]), time);
        self.lun_free[lun as usize] = sent + self.timing.program;
        self.lun_free[lun as usize]
    }

    pub(crate) fn erase(&mut self, lun: u32, now: Nanos) -> Nanos {
        let free = &mut self.lun_free[lun as usize];
        *free = now.max(*free) + self.timing.erase;
        *free
    }

    /// Transfers slots over the link to the host and returns the end of the transfer.
    pub(crate) fn link(&mut self, now: Nanos, slots: u64) -> Nanos {
        self.link_free = now.max(self.link_free) + self.timing.link_slot.times(slots);
        self.link_free
    }

    /// Occupies the firmware for `work` and returns the end.
    pub(crate) fn firmware(&mut self, now: Nanos, work: Nanos) -> Nanos {
        self.firmware_free = now.max(self.firmware_free) + work;
        self.firmware_free
    }

    /// Time at which the die becomes idle.
    pub(crate) fn lun_free(&self, lun: u32) -> Nanos {
        self.lun_free[lun as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    fn clock() -> Clock {
        let config = Preset::Nvme.config(1024);
        Clock::new(config.geometry, config.timing)
    }

    #[test]
    fn a_read_occupies_the_die_before_the_channel() {
        let mut c = clock();
        assert_eq!(c.read(0, Nanos(0), 8), Nanos(42_000 + 8 * 5120));
        // The second read of the same die waits for the transfer of the first.
        assert_eq!(c.read(0, Nanos(0), 8), Nanos(2 * (42_000 + 8 * 5120)));
        // Another die of the same channel senses in parallel and only waits for the channel.
        let mut c = clock();
        c.read(0, Nanos(0), 8);
        assert_eq!(c.read(8, Nanos(0), 8), Nanos(42_000 + 2 * 8 * 5120));
    }

    #[test]
    fn a_write_occupies_the_channel_before_the_die() {
        let mut c = clock();
        assert_eq!(c.program(0, Nanos(0)), Nanos(8 * 5120 + 185_000));
        assert_eq!(c.program(8, Nanos(0)), Nanos(2 * 8 * 5120 + 185_000));
        assert_eq!(c.program(1, Nanos(0)), Nanos(8 * 5120 + 185_000));
    }

    #[test]
    fn a_transfer_waiting_for_its_die_leaves_the_channel_free() {
        let mut c = clock();
        c.timing.erase = Nanos::millis(3);
        c.erase(0, Nanos(0));
        assert_eq!(
            c.program(0, Nanos(0)),
            Nanos(3_000_000 + 8 * 5120 + 185_000)
        );
        assert_eq!(c.program(8, Nanos(0)), Nanos(8 * 5120 + 185_000));
    }

    #[test]
    fn an_erase_occupies_only_its_die() {
        let mut c = clock();
        c.timing.erase = Nanos::micros(3500);
        assert_eq!(c.erase(0, Nanos(5)), Nanos(3_500_005));
        assert_eq!(c.lun_free(1), Nanos(0));
    }
}
