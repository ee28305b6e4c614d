//! Products of quads: four weights of a word with four activations, of one byte or of two, whose bytes are multiplied apart
//! or as whole values; summed as integers.

mod dots;
#[cfg(target_arch = "x86_64")]
mod dots_avx2;
#[cfg(target_arch = "x86_64")]
mod dots_avx512vnni;

use std::marker::PhantomData;

use sinew_tensor::BlockFormat;

use super::groups::{self, Group, Products, Steps, unrolled};
use super::integers::{Header, QuadLayout};
use super::pack;
use super::tile::{Block, Packing};
use crate::packed::blocks::{self, LINE};
use crate::simd::{LANES, Simd};
pub(super) use dots::{Dots, Plain};
#[cfg(target_arch = "x86_64")]
pub(super) use dots_avx2::{EvenAndOdd, EvenOdd, Widened};
#[cfg(target_arch = "x86_64")]
pub(super) use dots_avx512vnni::Vnni;

/// [`groups::multiply`] by such products, with activations of so many bytes.
///
/// # Safety
/// That of a [`Loop`](super::tile::Loop), for panels of integers.
#[inline(always)]
pub(super) unsafe fn multiply<
    D: Dots,
    const BYTES: usize,
    const R: usize,
    const PARTS: usize,
    const H: usize,
    const V: usize,
>(
    block: Block,
) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on; the number of quads is that of the format.
    unsafe {
        match blocks::quads(format.values()).len() {
            1 => {
                let quads = Quads::<D, 1, BYTES>::of(format);
                groups::multiply::<_, R, PARTS, H, V>(quads, format, block);
            }
            _ => {
                let quads = Quads::<D, 2, BYTES>::of(format);
                groups::multiply::<_, R, PARTS, H, V>(quads, format, block);
            }
        }
    }
}

/// Products of the `N` quads of a word with activations of so many bytes: of each byte by itself, or of whole values.
#[derive(Clone, Copy)]
pub(super) struct Quads<D, const N: usize, const BYTES: usize> {
    /// The offset that makes packed weights unsigned: a power of two.
    offset: i32,
    /// [`Header::marks`] of a group.
    marks: usize,
    dots: PhantomData<D>,
}

impl<D, const N: usize, const BYTES: usize> Quads<D, N, BYTES> {
    pub fn of(format: BlockFormat) -> Self {
        let offset = i32::from(blocks::offset(format.values()));
        Self { offset, marks: Header::<BYTES>::marks(format.group()), dots: PhantomData }
    }
}

impl<D: Dots, const N: usize, const BYTES: usize> Quads<D, N, BYTES> {
    /// Whether there is a sum of whole values, the first, instead of one for each of their bytes.
    const WHOLE: bool = matches!(D::LAYOUT, QuadLayout::Whole);

    /// Words of a step.
    const WORDS: usize = D::LAYOUT.count(BYTES);

    /// The sums, and to each the products of its weights with the words of a step.
    #[inline(always)]
    unsafe fn add_step(sums: &mut [D::Sums; BYTES], weights: D::Weights, words: [i32; BYTES]) {
        unrolled!(WORD in 0..BYTES of 2 {
            // SAFETY: passed on.
            unsafe { Self::add_word::<WORD>(sums, weights, words[WORD]) };
        });
    }

    /// The same of one of its words.
    #[inline(always)]
    unsafe fn add_word<const WORD: usize>(sums: &mut [D::Sums; BYTES], weights: D::Weights, a: i32) {
        let sum = &mut sums[if Self::WHOLE { 0 } else { WORD }];
        // SAFETY: passed on.
        unsafe { *sum = D::dot::<WORD>(*sum, weights, a) };
    }

    /// Adds the products of word `WORD` of all rows, whose words lie one behind another.
    #[inline(always)]
    unsafe fn add_rows<const WORD: usize, const R: usize, const H: usize>(
        sums: &mut [[[D::Sums; BYTES]; H]; R],
        weights: [D::Weights; H],
        a: *const i32,
    ) {
        for r in 0..R {
            for h in 0..H {
                // SAFETY: passed on.
                unsafe { Self::add_word::<WORD>(&mut sums[r][h], weights[h], *a.add(r)) };
            }
        }
    }

    /// The products of the sixteen outputs `h` with one value of these bytes, at the place of byte `byte` of a step.
    #[inline(always)]
    unsafe fn products_of_one(group: Group, step: usize, h: usize, byte: usize, bytes: u16) -> [D::Sums; BYTES] {
        const { assert!(BYTES == 1 || Self::WORDS == BYTES, "of two bytes, which alone have values in bf16, two words") };
        let words = D::LAYOUT.only(byte, bytes);
        // Of one byte it is the lower.
        let words = std::array::from_fn(|i| words[2 - BYTES + i]);
        // SAFETY: passed on.
        unsafe {
            let mut sums = [D::splat(0); BYTES];
            Self::add_step(&mut sums, Self::weights(group, step, h), words);
            sums
        }
    }

    /// What the sums of a row start from: `-offset` times those of its values' bytes, or of whole values in the first.
    #[inline(always)]
    unsafe fn starts(group: Group, row: usize) -> [i32; BYTES] {
        let mut starts = [0; BYTES];
        for word in 0..BYTES {
            // SAFETY: passed on.
            starts[word] =
                unsafe { *group.header.cast::<i32>().add((Header::<BYTES>::STARTS + word) * group.height + row) };
        }
        starts
    }

    /// Whether any row of the tile has values in bf16.
    #[inline(always)]
    unsafe fn has_apart(group: Group) -> bool {
        // SAFETY: passed on.
        BYTES == 2 && unsafe { *group.header.cast::<u32>().add(Header::<BYTES>::HAS_APART * group.height) } != 0
    }

    /// Calls `each` with the step, the byte and the bits of each value of a row that is in bf16.
    #[inline(always)]
    unsafe fn for_each_apart(self, group: Group, row: usize, mut each: impl FnMut(usize, usize, u16)) {
        for mark in 0..self.marks {
            // SAFETY: passed on; marks are of steps that are there.
            unsafe {
                let mut bits = *group.header.cast::<u32>().add((Header::<BYTES>::MARKS + mark) * group.height + row);
                while bits != 0 {
                    let place = 32 * mark + bits.trailing_zeros() as usize;
                    let (step, byte) = (place / 4, place % 4);
                    let words = [0, BYTES - 1]
                        .map(|word| *group.a.cast::<u32>().add((BYTES * step + word) * group.height + row));
                    each(step, byte, D::LAYOUT.bytes(byte, words));
                    bits &= bits - 1;
                }
            }
        }
    }

    /// The weights of a step, of the sixteen outputs `h`.
    #[inline(always)]
    unsafe fn weights(group: Group, step: usize, h: usize) -> D::Weights {
        // SAFETY: passed on.
        unsafe { D::load::<N>(group.words.add(step / N * LINE + h * LINE / 2))[step % N] }
    }

    /// What [`finish`](Products::finish) gives of a tile that has values in bf16: `sums` and `to` are of some rows, and of
    /// so many vectors of outputs of each.
    #[inline(always)]
    pub unsafe fn finish_apart(
        self,
        group: Group,
        vectors: usize,
        sums: &mut [[D::Sums; BYTES]],
        to: &mut [<D::S as Simd>::F],
    ) {
        for i in 0..sums.len() {
            let (r, h) = (i / vectors, i % vectors);
            // SAFETY: passed on.
            unsafe {
                let sums = &mut sums[i];
                // Outliers were multiplied as integers: those products are subtracted before the bf16 ones are added.
                self.for_each_apart(group, r, |step, byte, bits| {
                    let products = Self::products_of_one(group, step, h, byte, bits);
                    for word in 0..BYTES {
                        sums[word] = D::sub(sums[word], products[word]);
                    }
                });
                let zeros = if group.zeros.is_null() { group.zeros } else { group.zeros.add(h * LANES) };
                let of_row = Group { header: group.header.add(r), zeros, ..group };
                let [[mut sum]] = self.scaled::<1, 1>([[*sums]], of_row);
                self.for_each_apart(group, r, |step, byte, bits| {
                    let x = D::S::splat(f32::from_bits(u32::from(bits) << 16));
                    let codes = D::widen(D::joined(Self::products_of_one(group, step, h, byte, 1)));
                    let mut weights = D::S::sub(codes, D::S::splat(self.offset as f32));
                    if !zeros.is_null() {
                        weights = D::S::sub(weights, D::S::load_i8(zeros));
                    }
                    weights = D::S::mul(weights, D::S::splat(D::UNIT));
                    sum = D::S::fma(x, weights, sum);
                });
                to[i] = sum;
            }
        }
    }

    /// Sums of integers, `(Σ a·b - zero · Σ a) · scale of a`. In brackets there are integers of 32 bits, which fit: of two
    /// bytes 128 times 255 times 32,768. What is left of them is rounded once.
    #[inline(always)]
    unsafe fn scaled<const R: usize, const H: usize>(
        self,
        sums: [[[D::Sums; BYTES]; H]; R],
        group: Group,
    ) -> [[<D::S as Simd>::F; H]; R] {
        // SAFETY: passed on.
        unsafe {
            let mut joined = [[D::splat(0); H]; R];
            for r in 0..R {
                for h in 0..H {
                    joined[r][h] = D::joined(sums[r][h]);
                }
            }
            if !group.zeros.is_null() {
                // The compiler must not know that these are what sums started from: it would broadcast sums from general
                // registers instead of memory.
                let again = Group { header: std::hint::black_box(group.header), ..group };
                for r in 0..R {
                    let starts = Self::starts(again, r);
                    let start = if BYTES == 1 || Self::WHOLE { starts[0] } else { 256 * starts[0] + starts[BYTES - 1] };
                    // `start` is `-offset · Σ a`, and the offset a power of two: `less` is `-Σ a`.
                    let less = start >> self.offset.trailing_zeros();
                    for h in 0..H {
                        joined[r][h] = D::add_zeros(joined[r][h], group.zeros.add(h * LANES), less);
                    }
                }
            }
            let mut scaled = [[D::S::splat(0.0); H]; R];
            for r in 0..R {
                // The row's scale first: the two scales' product may be too large where the sum is not.
                let scale = D::S::splat(D::UNIT * *group.header.add(Header::<BYTES>::SCALE * group.height + r));
                for h in 0..H {
                    scaled[r][h] = D::S::mul(D::widen(joined[r][h]), scale);
                }
            }
            scaled
        }
    }
}

impl<D: Dots, const N: usize, const BYTES: usize> Steps for Quads<D, N, BYTES> {
    const PACKING: Packing = match (BYTES, D::LAYOUT) {
        (1, QuadLayout::Bytes) => pack::int8::<D::S>(),
        (1, QuadLayout::Whole) => pack::int8_whole::<D::S>(),
        (_, QuadLayout::Bytes) => pack::int16_in_bytes::<D::S>(),
        (_, QuadLayout::Whole) => pack::int16_whole::<D::S>(),
    };
    const STEPS: usize = N;
}

impl<D: Dots, const N: usize, const BYTES: usize, const R: usize, const H: usize> Products<R, H>
    for Quads<D, N, BYTES>
{
    type S = D::S;
    /// Of each row and vector the sums of the products of its bytes, or of whole values.
    type Sums = [[[D::Sums; BYTES]; H]; R];
    const LOADED: usize = N * H * D::VECTORS + 1;
    const SUMS: usize = if Self::WHOLE { 1 } else { BYTES };
    const LIGHT: bool = N == 1;

    #[inline(always)]
    unsafe fn start(self, group: Group) -> Self::Sums {
        // SAFETY: passed on.
        unsafe {
            let mut sums = [[[D::splat(0); BYTES]; H]; R];
            for r in 0..R {
                let starts = Self::starts(group, r);
                for word in 0..BYTES {
                    sums[r][0][word] = D::splat(starts[word]);
                }
                sums[r] = [sums[r][0]; H];
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn add_line(self, mut sums: Self::Sums, a: *const f32, height: usize, words: *const u8) -> Self::Sums {
        // SAFETY: passed on.
        unsafe {
            let mut w = [D::load::<N>(words); H];
            for h in 1..H {
                w[h] = D::load::<N>(words.add(h * LINE / 2));
            }
            unrolled!(QUAD in 0..N of 2 {
                let mut weights = [w[0][QUAD]; H];
                for h in 1..H {
                    weights[h] = w[h][QUAD];
                }
                let a = a.cast::<i32>().add(QUAD * Self::WORDS * height);
                Self::add_rows::<0, R, H>(&mut sums, weights, a);
                if Self::WORDS == 2 {
                    Self::add_rows::<1, R, H>(&mut sums, weights, a.add(height));
                }
            });
        }
        sums
    }

    /// What is multiplied with weights' scales: sums of integers, and then the products of values in bf16.
    #[inline(always)]
    unsafe fn finish(self, sums: Self::Sums, group: Group) -> [[<D::S as Simd>::F; H]; R] {
        // SAFETY: passed on.
        unsafe {
            if Self::has_apart(group) {
                // Copies: what has an address is in memory everywhere.
                let (mut sums, mut to) = (sums, [[D::S::splat(0.0); H]; R]);
                D::finish_apart(self, group, H, sums.as_flattened_mut(), to.as_flattened_mut());
                return to;
            }
            self.scaled::<R, H>(sums, group)
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_tensor::{BlockValues, DType};

    use super::*;
    use crate::gemm::cpu::groups::multiply;
    use crate::gemm::cpu::groups::tests::{numbers, panel};
    use crate::gemm::cpu::tile::Reads;
    use crate::packed::{PANEL, PanelKind};

    /// Sums of eight rows and of two and a half groups of a panel with zero points, `V` vectors at a time.
    fn sums<const N: usize, const BYTES: usize, const V: usize>(format: BlockFormat) -> Vec<u32> {
        const ROWS: usize = 8;
        let k = format.group() * 5 / 2;
        let mut next = numbers();
        let panel = panel(format, k, &mut next);
        // Of each group the rows' scales and what their sums start from, which values are in bf16, and quads.
        let mut a: Vec<u32> = Vec::new();
        for first in (0..k).step_by(format.group()) {
            let steps = (k - first).min(format.group()) / 4;
            a.extend((0..ROWS).map(|_| (next() as f32 / 1e4).to_bits()));
            a.extend((0..BYTES * ROWS).map(|_| next() & 0xfff));
            if BYTES == 2 {
                // In every second group.
                let some = !(first / format.group()).is_multiple_of(2);
                a.extend([some as u32; ROWS]);
                for mark in 0..Header::<BYTES>::marks(format.group()) {
                    let here = (4 * steps).saturating_sub(32 * mark).min(32);
                    let all = (1u64 << here) as u32;
                    a.extend((0..ROWS).map(|_| if some { next() & all.wrapping_sub(1) } else { 0 }));
                }
            }
            // In bf16 they are below 2.
            a.extend((0..steps * BYTES * ROWS).map(|_| (next() << 16 | next()) & 0xbfbf_bfbf));
        }
        let mut sums: Vec<f32> = (0..ROWS * PANEL).map(|_| next() as f32).collect();
        let (to, a) = (sums.as_mut_ptr(), a.as_ptr().cast());
        let quads = Quads::<Plain, N, BYTES>::of(format);
        let (panels, b) = (PanelKind::Blocks(format), panel.as_ptr());
        let block = Block { panels, reads: Reads::Again, a, b, steps: k / 4, sums: to, carry: true };
        // SAFETY: rows and panel hold the steps.
        unsafe { multiply::<_, ROWS, 1, 2, V>(quads, format, block) };
        sums.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn half_a_panel_at_a_time_gives_the_bits_of_a_whole_one() {
        let of = |values, group| BlockFormat::new(values, group, DType::F32, true).expect("a format");
        for group in [32, 128] {
            let (int4, int8) = (of(BlockValues::Int4, group), of(BlockValues::Int8, group));
            assert_eq!(sums::<2, 1, 1>(int4), sums::<2, 1, 2>(int4), "int4, {group}");
            assert_eq!(sums::<1, 1, 1>(int8), sums::<1, 1, 2>(int8), "int8, {group}");
            assert_eq!(sums::<2, 2, 1>(int4), sums::<2, 2, 2>(int4), "int4 with int16, {group}");
            assert_eq!(sums::<1, 2, 1>(int8), sums::<1, 2, 2>(int8), "int8 with int16, {group}");
        }
    }
}
