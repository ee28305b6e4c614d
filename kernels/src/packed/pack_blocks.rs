//! Outputs into panels of blocks: rounded group by group, or codes as a checkpoint has them.

use half::{bf16, f16};
use sinew_tensor::{BlockFormat, DType};

use super::blocks::{self, MAX_GROUP, held_code, per_word};
use super::pack::load_steps;
use super::panel::PANEL;
use super::quantize::{Extent, Floats, Integers};
use super::source::{Codes, Row};
use crate::line::Line;
use crate::simd::{LANES, Simd, Stored};

/// Words of an output in a group.
const WORDS: usize = MAX_GROUP / 4;

/// Packs values `k0..k0 + count` of 32 outputs as a panel. Those that are not there count as zeros. Where floats are
/// rounded `per_channel`, all groups of an output have the scale and the zero point of all those values together.
///
/// # Safety
/// Those of [`Simd`]; rows hold the values, `k0` is a multiple of the format's group, and `to` may be written for the
/// panel's bytes.
#[inline(always)]
pub(super) unsafe fn pack_blocks<S: Simd>(
    rows: &[Option<Row<'_>>; PANEL],
    format: BlockFormat,
    k0: usize,
    count: usize,
    per_channel: bool,
    to: *mut u8,
) {
    for half in 0..2 {
        let rows = &rows[half * LANES..(half + 1) * LANES];
        let mut lines = [None; LANES];
        for (line, row) in lines.iter_mut().zip(rows) {
            *line = row.and_then(Row::line);
        }
        let is_given = rows.iter().flatten().any(|row| row.line().is_none());
        let in_steps = !is_given && format.values().is_integer();
        let (mut integers, mut magnitudes) = (None, None);
        if per_channel {
            // SAFETY: passed on.
            unsafe {
                if in_steps {
                    integers = Some(Integers::<S>::of(extent(&lines, format, k0, count), format));
                } else {
                    magnitudes = Some(largest::<S>(&lines, k0, count));
                }
            }
        }
        for k in (0..count).step_by(format.group()) {
            let n = (count - k).min(format.group());
            // SAFETY: passed on; the group's parts lie one behind another, of which a half panel has half.
            unsafe {
                let group = to.add(blocks::bytes(format, k));
                let into = Half {
                    format,
                    scales: group.add(half * blocks::scales_bytes(format) / 2),
                    zeros: group.add(blocks::scales_bytes(format) + half * LANES).cast(),
                    words: group.add(blocks::header_bytes(format)).cast::<f32>().add(half * LANES),
                };
                if in_steps {
                    into.side_by_side::<S>(&lines, k0 + k, n, integers);
                } else {
                    into.one_by_one::<S>(rows, k0 + k, n, magnitudes);
                }
            }
        }
    }
}

/// The extent of values `k0..k0 + count` of sixteen outputs.
#[inline(always)]
unsafe fn extent<S: Simd>(lines: &[Option<Line>; LANES], format: BlockFormat, k0: usize, count: usize) -> Extent<S> {
    // SAFETY: passed on.
    unsafe {
        let mut extent = Extent::none();
        for k in (0..count).step_by(format.group()) {
            extent = extent.with(group_steps::<S>(lines, k0 + k, (count - k).min(format.group())).as_flattened());
        }
        extent
    }
}

/// The largest magnitude of values `k0..k0 + count` of each of sixteen outputs.
#[inline(always)]
unsafe fn largest<S: Simd>(lines: &[Option<Line>; LANES], k0: usize, count: usize) -> [f32; LANES] {
    let mut magnitudes = [0.0; LANES];
    for (magnitude, line) in magnitudes.iter_mut().zip(lines) {
        let Some(line) = line else { continue };
        for k in (0..count).step_by(MAX_GROUP) {
            let (mut x, n) = ([0.0; MAX_GROUP], (count - k).min(MAX_GROUP));
            // SAFETY: passed on.
            unsafe { line.skip(k0 + k).widen::<S>(n, x.as_mut_ptr()) };
            *magnitude = Floats::magnitude(&x[..n], *magnitude);
        }
    }
    magnitudes
}

/// Steps `k..k + n` of a group of sixteen outputs; zeros behind them.
#[inline(always)]
unsafe fn group_steps<S: Simd>(
    lines: &[Option<Line>; LANES],
    k: usize,
    n: usize,
) -> [[S::F; LANES]; MAX_GROUP / LANES] {
    // SAFETY: passed on.
    unsafe {
        let mut steps = [[S::splat(0.0); LANES]; MAX_GROUP / LANES];
        for (at, steps) in (0..n).step_by(LANES).zip(&mut steps) {
            *steps = load_steps::<S>(lines, k + at, (n - at).min(LANES));
        }
        steps
    }
}

/// Where sixteen outputs of a group go.
struct Half {
    format: BlockFormat,
    scales: *mut u8,
    zeros: *mut i8,
    words: *mut f32,
}

impl Half {
    /// Rounds steps `k..k + n` to integers, a step of all outputs at a time, with the scales of the steps unless others
    /// are given.
    #[inline(always)]
    unsafe fn side_by_side<S: Simd>(
        &self,
        lines: &[Option<Line>; LANES],
        k: usize,
        n: usize,
        integers: Option<Integers<S>>,
    ) {
        let values = self.format.values();
        // SAFETY: passed on.
        unsafe {
            let mut steps = group_steps::<S>(lines, k, n);
            let steps = &mut steps.as_flattened_mut()[..blocks::padded_k(values, n)];
            let integers = match integers {
                Some(integers) => integers,
                None => Integers::<S>::of(Extent::none().with(steps), self.format),
            };
            for step in steps.iter_mut() {
                *step = integers.codes(*step);
            }
            match self.format.scale_dtype() {
                DType::F16 => f16::store::<S>(self.scales.cast(), integers.scales),
                DType::BF16 => bf16::store::<S>(self.scales.cast(), integers.scales),
                _ => S::store(self.scales.cast(), integers.scales),
            }
            if self.format.zero_points() {
                S::store_i8(self.zeros, integers.zeros);
            }
            for (word, steps) in steps.chunks_exact(per_word(values)).enumerate() {
                S::store(self.words.add(word * PANEL), S::pack_words(steps, |i| blocks::shift(values, i)));
            }
        }
    }

    /// Rounds steps `k..k + n` to floats, by the largest of them unless the outputs' are given, or takes codes as they
    /// are, output by output.
    #[inline(always)]
    unsafe fn one_by_one<S: Simd>(
        &self,
        rows: &[Option<Row<'_>>],
        k: usize,
        n: usize,
        magnitudes: Option<[f32; LANES]>,
    ) {
        let Self { format, scales, zeros, words: to } = *self;
        let values = format.values();
        let mut words = [[0u32; WORDS]; LANES];
        // SAFETY: passed on.
        unsafe {
            for (lane, (row, words)) in rows.iter().zip(&mut words).enumerate() {
                let (mut scale, mut zero, mut codes) = (0.0, 0, [0; MAX_GROUP]);
                match row {
                    None => {}
                    Some(Row::Floats(line)) => {
                        let mut x = [0.0; MAX_GROUP];
                        line.skip(k).widen::<S>(n, x.as_mut_ptr());
                        let magnitude = match magnitudes {
                            Some(magnitudes) => magnitudes[lane],
                            None => Floats::magnitude(&x[..n], 0.0),
                        };
                        Floats { scale, codes } = Floats::of(&x, n, magnitude, format);
                    }
                    Some(Row::Codes(Codes { codes: given, scales, zeros, .. })) => {
                        let group = k / format.group();
                        scale = blocks::scale_at(format.scale_dtype(), scales, group);
                        zero = zeros.get(group).copied().unwrap_or(0);
                        codes[..n].copy_from_slice(&given[k..][..n]);
                    }
                }
                match format.scale_dtype() {
                    DType::F16 => scales.cast::<f16>().add(lane).write_unaligned(f16::from_f32(scale)),
                    DType::BF16 => scales.cast::<bf16>().add(lane).write_unaligned(bf16::from_f32(scale)),
                    _ => scales.cast::<f32>().add(lane).write_unaligned(scale),
                }
                if format.zero_points() {
                    zeros.add(lane).write(zero);
                }
                *words = in_words(format, &codes);
            }
            let count = n.div_ceil(per_word(values));
            for first in (0..count).step_by(LANES) {
                let mut rows = [S::splat(0.0); LANES];
                for (row, words) in rows.iter_mut().zip(&words) {
                    *row = S::load(words.as_ptr().add(first).cast());
                }
                for (word, sixteen) in S::transpose(rows).into_iter().enumerate().take(count - first) {
                    S::store(to.add((first + word) * PANEL), sixteen);
                }
            }
        }
    }
}

/// The codes of an output in words, as panels hold them.
#[inline(always)]
fn in_words(format: BlockFormat, codes: &[u8; MAX_GROUP]) -> [u32; WORDS] {
    let values = format.values();
    let held = codes.map(|code| held_code(values, code));
    let mut words = [0; WORDS];
    for (word, codes) in words.iter_mut().zip(held.chunks_exact(per_word(values))) {
        for (k, &code) in codes.iter().enumerate() {
            *word |= (u32::from(code) & blocks::mask(values)) << blocks::shift(values, k);
        }
    }
    words
}
