//! Outputs into panels of blocks: rounded group by group, or codes as a checkpoint has them.

use std::ops::Range;

use half::{bf16, f16};
use sinew_tensor::{BlockFormat, DType};

use super::blocks::{self, MAX_GROUP, held_code, per_word};
use super::panel::PANEL;
use super::quantize::{Extent, Floats, Integers, Rounding};
use super::rows::{Codes, WeightRow};
use super::sixteen::Sixteen;
use crate::simd::{LANES, Part, Simd, Stored};

/// Words of an output in a group.
const WORDS: usize = MAX_GROUP / 4;

/// Room for the values of a group of sixteen outputs, thirty-two steps in each.
type Steps<S> = [[<S as Simd>::F; 2 * LANES]; MAX_GROUP / (2 * LANES)];

/// Packs values `k0..k0 + count` of 32 outputs as a panel. Those that are not there count as zeros. Where floats are
/// rounded `per_channel`, all groups of an output have the scale and the zero point of all those values together.
///
/// Rows hold the values, `k0` is a multiple of the format's group, and `to` may be written for the panel's bytes.
#[derive(Clone, Copy)]
pub(super) struct PackBlocks<'a> {
    pub rows: &'a [Option<WeightRow<'a>>; PANEL],
    pub format: BlockFormat,
    pub k0: usize,
    pub count: usize,
    pub per_channel: bool,
    pub to: *mut u8,
}

impl Part for PackBlocks<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, format, k0, count, per_channel, to } = self;
        for half in 0..2 {
            let rows = &rows[half * LANES..(half + 1) * LANES];
            let (mut lines, mut codes) = ([None; LANES], [None; LANES]);
            for ((line, codes), row) in lines.iter_mut().zip(&mut codes).zip(rows) {
                match *row {
                    None => {}
                    Some(WeightRow::Floats(of_row)) => *line = Some(of_row),
                    Some(WeightRow::Codes(of_row)) => *codes = Some(of_row),
                }
            }
            let is_given = codes.iter().any(Option::is_some);
            // Once for all groups: to clear so much for each would take as long as to read it.
            // SAFETY: passed on.
            let mut steps: Steps<S> = unsafe { [[S::splat(0.0); 2 * LANES]; MAX_GROUP / (2 * LANES)] };
            let sixteen = Sixteen::of(&lines, k0 + count);
            let mut of_channels = None;
            if per_channel && !is_given {
                // SAFETY: passed on.
                of_channels = Some(unsafe { extent::<S>(&sixteen, format, k0..k0 + count, &mut steps) });
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
                    if is_given {
                        into.given::<S>(&codes, k0 + k, n);
                    } else {
                        let steps = group_steps::<S>(&sixteen, k0 + k, n, &mut steps);
                        into.rounded::<S>(&steps[..blocks::padded_k(format.values(), n)], of_channels);
                    }
                }
            }
        }
    }
}

/// The extent of values `k` of sixteen outputs.
#[inline(always)]
unsafe fn extent<S: Simd>(
    sixteen: &Sixteen<'_>,
    format: BlockFormat,
    k: Range<usize>,
    steps: &mut Steps<S>,
) -> Extent<S> {
    // SAFETY: passed on.
    unsafe {
        let mut extent = Extent::none();
        for first in k.clone().step_by(format.group()) {
            extent = extent.with(group_steps::<S>(sixteen, first, (k.end - first).min(format.group()), steps));
        }
        extent
    }
}

/// Steps `k..k + n` of a group of sixteen outputs, and zeros behind them up to thirty-two.
#[inline(always)]
unsafe fn group_steps<'s, S: Simd>(sixteen: &Sixteen<'_>, k: usize, n: usize, steps: &'s mut Steps<S>) -> &'s [S::F] {
    // SAFETY: passed on.
    unsafe {
        for (at, steps) in (0..n).step_by(2 * LANES).zip(&mut *steps) {
            sixteen.load_steps::<S>(k + at, (n - at).min(2 * LANES), steps);
        }
    }
    &steps.as_flattened()[..n.next_multiple_of(2 * LANES)]
}

/// Where sixteen outputs of a group go.
struct Half {
    format: BlockFormat,
    scales: *mut u8,
    zeros: *mut i8,
    words: *mut f32,
}

impl Half {
    /// Rounds steps, each of all outputs, with the scales of these, or of an extent that is given.
    #[inline(always)]
    unsafe fn rounded<S: Simd>(&self, steps: &[S::F], given: Option<Extent<S>>) {
        // SAFETY: passed on.
        unsafe {
            let extent = match given {
                Some(extent) => extent,
                None => Extent::none().with(steps),
            };
            let scales = if self.format.values().is_integer() {
                let integers = Integers::<S>::of(extent, self.format);
                self.round::<S>(steps, &integers);
                if self.format.zero_points() {
                    S::store_i8(self.zeros, integers.zeros);
                }
                integers.scales
            } else {
                let floats = Floats::<S>::of(extent, self.format);
                self.round::<S>(steps, &floats);
                floats.scales
            };
            match self.format.scale_dtype() {
                DType::F16 => f16::store::<S>(self.scales.cast(), scales),
                DType::BF16 => bf16::store::<S>(self.scales.cast(), scales),
                _ => S::store(self.scales.cast(), scales),
            }
        }
    }

    /// The words of steps.
    #[inline(always)]
    unsafe fn round<S: Simd>(&self, steps: &[S::F], rounding: &impl Rounding<S>) {
        // SAFETY: passed on.
        unsafe {
            match per_word(self.format.values()) {
                8 => self.round_words::<S, 8>(steps, rounding),
                _ => self.round_words::<S, 4>(steps, rounding),
            }
        }
    }

    /// The same where a word has so many codes.
    #[inline(always)]
    unsafe fn round_words<S: Simd, const PER_WORD: usize>(&self, steps: &[S::F], rounding: &impl Rounding<S>) {
        for (word, steps) in steps.as_chunks::<PER_WORD>().0.iter().enumerate() {
            // SAFETY: passed on.
            unsafe {
                let mut codes = *steps;
                for code in &mut codes {
                    *code = rounding.codes(*code);
                }
                S::store(self.words.add(word * PANEL), S::pack_words(&codes, |i| blocks::shift_of(PER_WORD, i)));
            }
        }
    }

    /// Takes steps `k..k + n` as they are, output by output.
    #[inline(always)]
    unsafe fn given<S: Simd>(&self, rows: &[Option<Codes<'_>>; LANES], k: usize, n: usize) {
        let Self { format, scales, zeros, words: to } = *self;
        let (values, group, size) = (format.values(), k / format.group(), format.scale_dtype().size());
        let mut words = [[0u32; WORDS]; LANES];
        // SAFETY: passed on; the scales and the zero points of the half panel are sixteen each.
        unsafe {
            scales.write_bytes(0, LANES * size);
            if format.zero_points() {
                zeros.write_bytes(0, LANES);
            }
            let count = n.div_ceil(per_word(values));
            for (lane, (row, words)) in rows.iter().zip(&mut words).enumerate() {
                let mut codes = [0; MAX_GROUP];
                if let Some(row) = row {
                    codes[..n].copy_from_slice(&row.codes[k..][..n]);
                    let scale = &row.scales[group * size..][..size];
                    scales.add(lane * size).copy_from_nonoverlapping(scale.as_ptr(), size);
                    if let Some(&zero) = row.zeros.get(group) {
                        zeros.add(lane).write(zero);
                    }
                }
                *words = in_words(format, &codes, count);
            }
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

/// The codes of an output in words, as panels hold them: so many of these.
#[inline(always)]
fn in_words(format: BlockFormat, codes: &[u8; MAX_GROUP], count: usize) -> [u32; WORDS] {
    let values = format.values();
    let mut words = [0; WORDS];
    match values.bits() {
        4 => {
            let offsets = u64::from_le_bytes([held_code(values, 0); 8]);
            for (word, codes) in words.iter_mut().zip(codes.as_chunks::<8>().0).take(count) {
                *word = blocks::word_of_nibbles(u64::from_le_bytes(*codes) ^ offsets);
            }
        }
        _ => {
            for (word, codes) in words.iter_mut().zip(codes.as_chunks::<4>().0).take(count) {
                *word = blocks::word_of_bytes(codes.map(|code| held_code(values, code)));
            }
        }
    }
    words
}
