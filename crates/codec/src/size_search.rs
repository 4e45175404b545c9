//! Fixed output size from an encoder that only supports fixed input: a search for the longest input whose output
//! fits.
//!
//! The first attempt uses the estimate of an [`InputEstimator`]. Two attempts define a line, from which the next
//! length follows (a secant step). Sizes are only roughly monotone, so some steps bisect the bracket instead. The
//! search ends when the output is at least 99.5 % full or the bracket is closed.

use crate::Fit;
use crate::input_estimate::InputEstimator;

/// After this many attempts every second one bisects the bracket, so that the search terminates.
const INTERPOLATED_ATTEMPTS: u32 = 5;

/// State of a search: the factor learned from previous outputs, and two buffers.
pub(crate) struct SizeSearch {
    probe: InputEstimator,
    best: Vec<u8>,
    trial: Vec<u8>,
}

/// Input and output length of an attempt.
#[derive(Clone, Copy)]
struct Attempt {
    len: usize,
    size: usize,
}

impl SizeSearch {
    /// Creates a search for outputs of up to `cluster` bytes. `worth` is passed to [`InputEstimator::new`].
    pub(crate) fn new(cluster: usize, worth: f64) -> Self {
        let room = roomy(cluster);
        Self {
            probe: InputEstimator::new(worth),
            best: vec![0; room],
            trial: vec![0; room],
        }
    }

    pub(crate) fn reset(&mut self) {
        self.probe.reset();
    }

    /// Finds how much of `src` fits into `dst`.
    ///
    /// `attempt` compresses that many bytes into a buffer and returns the output's size, or `None` if it does not fit
    /// there.
    pub(crate) fn run(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        mut attempt: impl FnMut(usize, &mut [u8]) -> Option<usize>,
    ) -> Fit {
        let (room, max) = (dst.len(), src.len());
        if max == 0 || room == 0 {
            return Fit::NOTHING;
        }
        let enough = room - room / 200;
        let goal = room - room / 500;
        // An attempt that overshoots a little still returns its size, which improves the next step.
        let tall = roomy(room);
        if self.trial.len() < tall {
            self.trial.resize(tall, 0);
            self.best.resize(tall, 0);
        }

        let mut low = Attempt { len: 0, size: 0 };
        let mut high: Option<(usize, Option<usize>)> = None;
        let mut guess = reach(self.probe.guess(src, goal) as f64, max);
        if max - guess < guess / 8 {
            guess = max;
        }
        let mut tries = 0;
        loop {
            tries += 1;
            match attempt(guess, &mut self.trial[..tall]) {
                Some(size) if size <= room => {
                    low = Attempt { len: guess, size };
                    std::mem::swap(&mut self.best, &mut self.trial);
                }
                size => high = Some((guess, size)),
            }
            let end = high.map_or(max + 1, |(len, _)| len);
            if low.size >= enough || end - low.len <= 1.max(low.len >> 12) {
                break;
            }
            let halve = tries > INTERPOLATED_ATTEMPTS && tries % 2 == 0;
            guess = match (low, high) {
                (Attempt { len, size: 0 }, None) => reach(len as f64 * 2.0, max),
                (Attempt { len, size }, None) => {
                    let next = reach(len as f64 * goal as f64 / size as f64, max);
                    if max - next < next / 8 {
                        max
                    } else {
                        next.max(len + len / 64)
                    }
                }
                (Attempt { len, .. }, Some((end, _))) if halve => len + (end - len) / 2,
                (Attempt { len: 0, .. }, Some((end, size))) => reach(
                    end as f64 * goal as f64 / size.unwrap_or(2 * tall) as f64,
                    max,
                ),
                (Attempt { len, size }, Some((_, None))) => {
                    reach(len as f64 * goal as f64 / size as f64, max)
                }
                (Attempt { len, size }, Some((end, Some(above)))) => {
                    len + reach(
                        (goal - size.min(goal)) as f64 * (end - len) as f64 / (above - size) as f64,
                        max,
                    )
                }
            };
            guess = guess.clamp(low.len + 1, end - 1);
        }

        if low.len == 0 {
            return Fit::NOTHING;
        }
        if low.size * 8 >= room * 7 {
            self.probe.learn(low.len);
        }
        dst[..low.size].copy_from_slice(&self.best[..low.size]);
        Fit {
            consumed: low.len,
            written: low.size,
        }
    }
}

/// Returns the buffer size of an attempt for an output of `room` bytes.
fn roomy(room: usize) -> usize {
    room + room / 4 + 256
}

/// Converts an estimate to a length from 1 to `max`.
fn reach(len: f64, max: usize) -> usize {
    // `as` saturates, so that an infinite estimate becomes `max`.
    (len as usize).clamp(1, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the attempts of a search over an encoder with these output sizes.
    fn tries(max: usize, room: usize, size: impl Fn(usize) -> usize) -> (Fit, u32) {
        let mut count = 0;
        let mut dst = vec![0; room];
        let fit = SizeSearch::new(room, 1.5).run(&vec![0; max], &mut dst, |len, out| {
            count += 1;
            Some(size(len)).filter(|&n| n <= out.len())
        });
        (fit, count)
    }

    #[test]
    fn the_search_finds_nearly_the_largest_length_that_fits() {
        for ratio in [1, 2, 3, 50, 3000] {
            let (fit, count) = tries(1 << 24, 4096, |len| 20 + len.div_ceil(ratio));
            assert!(fit.written >= 4096 - 20, "ratio {ratio}: {fit:?}");
            assert!(count <= 12, "ratio {ratio}: {count} tries");
        }
    }

    #[test]
    fn the_search_converges_on_a_step() {
        let (fit, count) = tries(1 << 24, 4096, |len| if len < 77_777 { 1000 } else { 5000 });
        assert!(
            (77_777 - 77_777 / 4000..77_777).contains(&fit.consumed),
            "{fit:?}"
        );
        assert!(count <= 40, "{count} tries");
    }

    #[test]
    fn input_that_fits_entirely_is_consumed() {
        let (fit, _) = tries(1000, 4096, |len| 9 + len / 2);
        assert_eq!(
            fit,
            Fit {
                consumed: 1000,
                written: 509
            }
        );
    }

    #[test]
    fn an_output_too_small_for_any_input_is_reported() {
        let (fit, _) = tries(1 << 20, 64, |_| 65);
        assert_eq!(fit, Fit::NOTHING);
    }
}
