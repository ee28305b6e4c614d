//! Panels of blocks whose codes are looked up once, for many tiles.

use sinew_tensor::BlockFormat;

use super::groups::Steps;
use super::tile::{Reads, prefetch_ahead};
use crate::packed::blocks::{self, LINE};
use crate::simd::LANES;

/// What products of an arithmetic have in place of codes.
///
/// # Safety
/// The machine has the level; `words` are sixteen, as are the `zeros` of their group where the format has any, and `to` has
/// room for a line of each of their steps.
#[allow(clippy::missing_safety_doc, reason = "the trait's section on safety holds for every function")]
pub(super) trait Expands: Steps {
    /// Writes what the codes of sixteen words stand for, less their zero points, to the first half of a line of each step.
    unsafe fn expand_words(self, zeros: *const i8, words: *const u8, to: *mut u8);
}

/// Writes `steps` steps of a block of a panel with what its codes stand for in their place.
///
/// # Safety
/// That of [`Expand`](super::tile::Expand).
#[inline(always)]
pub(super) unsafe fn expand<E: Expands>(codes: E, format: BlockFormat, b: *const u8, steps: usize, to: *mut u8) {
    let (header, group) = (blocks::header_bytes(format), format.group() / E::PACKING.per_step);
    let (mut b, mut to) = (b, to);
    // SAFETY: passed on.
    unsafe {
        for done in (0..steps).step_by(group) {
            to.copy_from_nonoverlapping(b, header);
            let zeros: *const i8 = b.wrapping_add(blocks::scales_bytes(format)).cast();
            (b, to) = (b.add(header), to.add(header));
            for _ in 0..(steps - done).min(group) / E::STEPS {
                for (half, zeros) in [(0, zeros), (LINE / 2, zeros.wrapping_add(LANES))] {
                    prefetch_ahead(b.wrapping_add(half), LINE / 2, Reads::Again, false);
                    codes.expand_words(zeros, b.add(half), to.add(half));
                }
                (b, to) = (b.add(LINE), to.add(E::STEPS * LINE));
            }
        }
    }
}
