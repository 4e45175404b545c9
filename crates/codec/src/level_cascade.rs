//! Level cascade: faster levels first, and the requested level only if it can save an allocation unit.
//!
//! An image is counted in blocks. If one cluster holds all remaining input of a file and is block-aligned at both
//! ends, only the number of blocks counts: an output of 9000 bytes is as good as one of 8200. Faster levels of the
//! same method therefore come first, and the requested level is tried only if it may save a unit:
//!
//! ```text
//!  faster output    |=========|=========|====      |    3 units
//!  at best                           <--|              still 3: it is kept
//!
//!  faster output    |=========|=========|=         |    3 units
//!  at best                         <----|              perhaps 2: the next level is tried
//! ```
//!
//! "At best" is a fraction of the faster output, measured for each pair of levels over the files of two trees.
//! Guarantees:
//!
//! * An output that does not hold all remaining input is the one of the requested level, byte by byte.
//! * An output that does is the one of some level. It takes no more units than any other level that was tried. Among
//!   equals the last one tried is kept.
//! * A faster output is kept only if the requested level would have to exceed the measured gain to save a unit. That
//!   happens: an output may take more units than the one of the requested level.
//! * Outputs depend only on what [`Encoder`] permits. The levels to try follow from the length of the remaining input
//!   and from the outputs since the last reset.

use crate::{Encoder, EncoderSpec, Fit, Method, SpecError, TailFit, Trim};

/// A faster level that is tried before the requested one.
#[derive(Clone, Copy, Debug)]
struct FasterLevel {
    level: i32,
    /// Largest reduction of its output by the requested level, apart from a few outliers. Unit: thousandths.
    gain: usize,
    /// Largest reduction for text. Unit: thousandths.
    text_gain: usize,
    /// Largest expected output for which the level is tried; with more units, almost any reduction saves one. Unit:
    /// units of output.
    most: usize,
}

impl FasterLevel {
    /// Sets the largest reduction for text.
    const fn text(self, gain: usize) -> Self {
        Self {
            text_gain: gain,
            ..self
        }
    }
}

const fn faster_level(level: i32, gain: usize, most: usize) -> FasterLevel {
    FasterLevel {
        level,
        gain,
        text_gain: gain,
        most,
    }
}

/// Returns the faster levels that pay, fastest first. LZ4HC has none: blocks of LZ4 decode more slowly, and its own
/// levels are too similar.
fn faster_levels(method: Method, level: i32) -> &'static [FasterLevel] {
    match (method, level) {
        (Method::Deflate, 10..) => const { &[faster_level(1, 180, 3), faster_level(6, 80, 16)] },
        (Method::Deflate, 8..) => const { &[faster_level(1, 180, 4), faster_level(6, 20, 16)] },
        (Method::Deflate, 5..) => const { &[faster_level(1, 100, 5)] },
        (Method::Lzma, 4..) => const { &[faster_level(1, 120, 8)] },
        (Method::Zstd, 18..) => const { &[faster_level(3, 200, 5), faster_level(9, 120, 16)] },
        (Method::Zstd, 13..) => {
            const { &[faster_level(3, 180, 5), faster_level(9, 80, 16).text(45)] }
        }
        (Method::Zstd, 12..) => const { &[faster_level(3, 120, 8), faster_level(9, 40, 16)] },
        (Method::Zstd, 6..) => const { &[faster_level(3, 100, 5)] },
        _ => &[],
    }
}

/// Input per output before any output of the input is known.
const FIRST_RATIO: usize = 3;

/// A faster level with its encoder.
struct CascadeStep {
    encoder: Box<dyn Encoder>,
    /// Largest reduction for other input, and for text. Unit: thousandths.
    gains: [usize; 2],
    /// Largest expected output for which the level is tried. Unit: bytes.
    most: usize,
}

/// Encoder that tries faster levels before the requested one.
pub(crate) struct LevelCascade {
    steps: Vec<CascadeStep>,
    requested: Box<dyn Encoder>,
    /// Allocation unit of outputs. Unit: bytes.
    unit: usize,
    /// Input and output of the latest output since the reset that did not hold all remaining input.
    full: Option<(usize, usize)>,
    /// Best output so far, while another level is tried.
    kept: Vec<u8>,
}

impl LevelCascade {
    /// Puts faster levels before `requested`, which has the settings `spec`, if any of them pay. `build` creates
    /// their encoders.
    pub(crate) fn wrap(
        spec: &EncoderSpec,
        requested: Box<dyn Encoder>,
        build: impl Fn(&EncoderSpec) -> Result<Box<dyn Encoder>, SpecError>,
    ) -> Result<Box<dyn Encoder>, SpecError> {
        let faster_levels = faster_levels(spec.method, spec.level);
        if spec.unit == 1 || faster_levels.is_empty() {
            return Ok(requested);
        }
        let step = |faster_level: &FasterLevel| {
            let of_it = EncoderSpec {
                level: faster_level.level,
                unit: 1,
                ..*spec
            };
            Ok(CascadeStep {
                encoder: build(&of_it)?,
                gains: [faster_level.gain, faster_level.text_gain],
                most: faster_level.most * spec.unit,
            })
        };
        Ok(Box::new(Self {
            steps: faster_levels.iter().map(step).collect::<Result<_, _>>()?,
            requested,
            unit: spec.unit,
            full: None,
            kept: Vec::new(),
        }))
    }

    /// Estimates the output for `left` bytes of input.
    fn expected(&self, left: usize) -> usize {
        let (consumed, written) = self.full.unwrap_or((FIRST_RATIO, 1));
        // fits: input of at most a few GiB, output of at most 1 MiB
        (left as u64 * written as u64 / consumed.max(1) as u64) as usize
    }

    /// Tries the faster levels on the last `left` bytes. `Ok`: the output to keep, in `dst`. `Err`: the best output
    /// found, in `kept`.
    fn try_faster_levels(
        &mut self,
        input: &[u8],
        at: usize,
        dst: &mut [u8],
    ) -> Result<Fit, Option<Fit>> {
        let (unit, left) = (self.unit, input.len() - at);
        let units = |fit: Fit| fit.written.div_ceil(unit);
        let mut best = None;
        let expected = self.expected(left);
        // An attempt that does not hold all input is wasted.
        if expected > dst.len() {
            return Err(best);
        }
        let text = usize::from(is_text(&input[at..]));
        let steps = self.steps.iter_mut();
        for step in steps.filter(|step| expected <= step.most) {
            let fit = step.encoder.fit(input, at, dst);
            if fit.consumed < left {
                continue;
            }
            if best.is_some_and(|before| units(before) < units(fit)) {
                // A faster level can have the smaller output by chance. The requested level may still improve on it.
                continue;
            }
            // One unit less has to hold the smallest output expected of the requested level.
            let fewer = units(fit).saturating_sub(1) * unit;
            if fewer == 0 || fit.written - fit.written * step.gains[text] / 1000 > fewer {
                return Ok(fit);
            }
            self.kept.clear();
            self.kept.extend_from_slice(&dst[..fit.written]);
            best = Some(fit);
        }
        Err(best)
    }
}

/// Returns true if the first bytes occur in text only.
fn is_text(input: &[u8]) -> bool {
    const LOOKED_AT: usize = 512;
    let head = &input[..input.len().min(LOOKED_AT)];
    head.iter()
        .all(|byte| *byte >= b' ' || (b'\t'..=b'\r').contains(byte))
}

impl Encoder for LevelCascade {
    fn reset(&mut self) {
        for step in &mut self.steps {
            step.encoder.reset();
        }
        self.requested.reset();
        self.full = None;
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let best = match self.try_faster_levels(input, at, dst) {
            Ok(fit) => return fit,
            Err(best) => best,
        };
        let fit = self.requested.fit(input, at, dst);
        let all = fit.consumed == input.len() - at;
        let units = |fit: Fit| fit.written.div_ceil(self.unit);
        if let Some(best) = best
            && (!all || units(best) < units(fit))
        {
            dst[..best.written].copy_from_slice(&self.kept);
            return best;
        }
        if !all {
            self.full = Some((fit.consumed, fit.written));
        }
        fit
    }

    /// Uses the requested level alone: in a tail every byte counts.
    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        self.requested.fit_tail(input, at, dst, trim)
    }

    fn input_max(&self) -> usize {
        self.requested.input_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Encoder that writes its name, with a fixed ratio, and counts its calls.
    struct Scripted {
        name: u8,
        thousandths: usize,
        fits: Arc<AtomicUsize>,
        resets: Arc<AtomicUsize>,
    }

    impl Encoder for Scripted {
        fn reset(&mut self) {
            self.resets.fetch_add(1, Relaxed);
        }

        fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
            self.fits.fetch_add(1, Relaxed);
            let consumed = (input.len() - at).min(dst.len() * 1000 / self.thousandths);
            let written = consumed * self.thousandths / 1000;
            dst[..written].fill(self.name);
            Fit { consumed, written }
        }

        fn input_max(&self) -> usize {
            usize::MAX
        }
    }

    struct Fixture {
        cascade: LevelCascade,
        fits: [Arc<AtomicUsize>; 2],
        resets: [Arc<AtomicUsize>; 2],
    }

    const FASTER: u8 = 1;
    const REQUESTED: u8 = 2;

    /// A cascade with units of 4096 bytes. The requested level may gain a tenth; both levels are tried for up to four
    /// units.
    fn fixture(faster_level: usize, requested: usize) -> Fixture {
        let (fits, resets) = (
            [Arc::default(), Arc::default()],
            [Arc::default(), Arc::default()],
        );
        let encoder = |name: u8, thousandths| {
            let i = usize::from(name - 1);
            let fits: &[Arc<AtomicUsize>; 2] = &fits;
            let resets: &[Arc<AtomicUsize>; 2] = &resets;
            Box::new(Scripted {
                name,
                thousandths,
                fits: Arc::clone(&fits[i]),
                resets: Arc::clone(&resets[i]),
            })
        };
        let cascade = LevelCascade {
            steps: vec![CascadeStep {
                encoder: encoder(FASTER, faster_level),
                gains: [100; 2],
                most: 4 * 4096,
            }],
            requested: encoder(REQUESTED, requested),
            unit: 4096,
            full: None,
            kept: Vec::new(),
        };
        Fixture {
            cascade,
            fits,
            resets,
        }
    }

    impl Fixture {
        /// Returns the level that wrote the output, its length, and the number of calls of each level.
        fn fit(&mut self, len: usize, at: usize) -> (u8, usize, [usize; 2]) {
            let mut dst = vec![0; 65536];
            let fit = self.cascade.fit(&vec![0; len], at, &mut dst);
            assert!(dst[..fit.written].iter().all(|b| *b == dst[0]));
            let requested = self.fits.each_ref().map(|n| n.swap(0, Relaxed));
            (dst[0], fit.written, requested)
        }
    }

    #[test]
    fn the_requested_level_is_tried_if_it_can_save_a_unit() {
        // 8192 is nine tenths of 9102.
        assert_eq!(
            fixture(500, 460).fit(2 * 9102, 0),
            (REQUESTED, 8373, [1, 1])
        );
        assert_eq!(
            fixture(500, 450).fit(2 * 9102, 0),
            (REQUESTED, 8191, [1, 1])
        );
        assert_eq!(fixture(500, 450).fit(2 * 9104, 0), (FASTER, 9104, [1, 0]));
    }

    #[test]
    fn the_expected_gain_is_smaller_for_text() {
        // 8704 bytes: a tenth exceeds the part past two units, a twentieth does not.
        for (input, who) in [(b'a', FASTER), (0, REQUESTED)] {
            let mut fixture = fixture(500, 450);
            fixture.cascade.steps[0].gains[1] = 50;
            let mut dst = vec![0; 65536];
            fixture.cascade.fit(&vec![input; 17_408], 0, &mut dst);
            assert_eq!(dst[0], who, "{input}");
        }
    }

    #[test]
    fn an_output_of_one_unit_is_not_retried() {
        assert_eq!(fixture(500, 100).fit(8192, 0), (FASTER, 4096, [1, 0]));
        assert_eq!(fixture(500, 100).fit(2, 0), (FASTER, 1, [1, 0]));
    }

    #[test]
    fn the_output_with_the_fewest_units_is_kept() {
        assert_eq!(fixture(500, 800).fit(2 * 8200, 0), (FASTER, 8200, [1, 1]));
        // The requested level needs more than the whole output.
        let mut fixture = fixture(300, 60_000);
        assert_eq!(fixture.fit(14_000, 0), (FASTER, 4200, [1, 1]));
    }

    #[test]
    fn outputs_that_do_not_hold_the_rest_use_the_requested_level() {
        // 100,000 bytes are expected to take 33,333, more than the four units up to which the faster level is tried.
        let mut noise = fixture(1000, 999);
        let (who, _, requested) = noise.fit(100_000, 0);
        assert_eq!((who, requested), (REQUESTED, [0, 1]));
        // 65,600 bytes were consumed. The rest is expected to have the same ratio.
        assert_eq!(noise.fit(100_000, 65_600), (REQUESTED, 34_365, [0, 1]));
        assert_eq!(noise.fit(80_000, 65_600), (FASTER, 14_400, [1, 0]));
    }

    #[test]
    fn a_reset_discards_the_measured_ratio() {
        let mut noise = fixture(1000, 1000);
        assert_eq!(noise.fit(100_000, 0).2, [0, 1]);
        assert_eq!(noise.fit(100_000, 80_000).2, [0, 1]);
        noise.cascade.reset();
        assert_eq!(noise.resets.each_ref().map(|n| n.load(Relaxed)), [1, 1]);
        assert_eq!(noise.fit(20_000, 0).2, [1, 0]);
    }

    #[test]
    fn faster_levels_exist_and_are_ascending() {
        for method in Method::ALL {
            for level in method.levels().filter(|level| method.has_level(*level)) {
                let mut before = 0;
                for faster_level in faster_levels(method, level) {
                    assert!(method.has_level(faster_level.level));
                    assert!((before + 1..level).contains(&faster_level.level));
                    before = faster_level.level;
                }
            }
        }
    }
}
