//! The loop over the groups of a panel of blocks, which rows of all arithmetics share: `s = fma(Σ a·(q - zero), scale, s)`.

use sinew_tensor::{BlockFormat, DType};

use super::tile::{Left, Reads, prefetch_ahead};
use crate::packed::blocks::{self, LINE};
use crate::packed::{PANEL, PanelKind};
use crate::rates::cores;
use crate::simd::{self, LANES, Reach, Simd};

/// Bytes of a packed row that are asked for ahead.
const ROW_AHEAD: usize = 512;

/// Steps of K: of the activations, and of the lines of words that they are multiplied with.
pub(super) trait Steps: Copy {
    /// What a step of the activations is.
    const LEFT: Left;
    /// Steps in a line of words.
    const STEPS: usize;
}

/// The products of `R` rows with `V` vectors of sixteen outputs: what differs between arithmetics.
///
/// # Safety
/// Those of [`Simd`]; `a` are steps of words of 32 bits, [`Left::words`](super::tile::Left::words) times one of each of a
/// tile's `height` rows, of which the first `R` are multiplied; `header` is what comes before a group of them (see
/// [`Left::header`](super::tile::Left::header)), its first row being that of `a`; `words` are `V` times sixteen words.
#[allow(clippy::missing_safety_doc, reason = "the trait's section on safety holds for every function")]
pub(super) trait Products<const R: usize, const V: usize>: Steps {
    type S: Simd;
    /// The sums of a group.
    type Sums: Copy;
    /// Words of each row in the steps of a line.
    const WORDS: usize = Self::STEPS * Self::LEFT.words();
    /// Vectors that a line's weights take, and what looks them up.
    const LOADED: usize;
    /// Vectors that a row's sums of a group take, of sixteen outputs.
    const SUMS: usize = 1;
    /// Whether words are multiplied as they are: then some cores' own prefetchers are best left to themselves.
    const LIGHT: bool;
    /// Whether two groups are multiplied at once, so that products do not wait for those before them.
    const IN_TWOS: bool = false;
    /// What sums start from.
    unsafe fn start(self, header: *const f32, height: usize) -> Self::Sums;
    /// Adds the products of a line of words.
    unsafe fn add_line(self, sums: Self::Sums, a: *const f32, height: usize, words: *const u8) -> Self::Sums;
    /// The sums of a group, less the zero points' where there are any.
    unsafe fn finish<const ZEROS: bool>(
        self,
        sums: Self::Sums,
        group: Group,
        zeros: [<Self::S as Simd>::F; V],
    ) -> [[<Self::S as Simd>::F; V]; R];
}

/// The body for each `I` below a count of no more than four, without a loop: what the compiler deems too long to unroll would
/// index its vectors, and have them in memory.
macro_rules! unrolled {
    ($i:ident in 0..$count:ident $body:block) => {{
        const { assert!($count <= 4) };
        unrolled!(@each 0 1 2 3, $i, $count, $body)
    }};
    (@each $($at:literal)*, $i:ident, $count:ident, $body:block) => {{
        $(if $count > $at {
            const $i: usize = $at;
            $body
        })*
    }};
}
pub(super) use unrolled;

/// Where a group is: of [`Products`] the `header` and the steps `a` behind it, of a tile of a height, and its words.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub header: *const f32,
    pub height: usize,
    pub a: *const f32,
    pub words: *const u8,
}

/// Whether a tile of `R` rows takes `H` vectors of a panel one by one within each group, where cores are the faster for it:
/// see [`cores::Known::halves_panels`].
#[inline(always)]
pub(super) fn halves<const R: usize, const H: usize>() -> bool {
    // One and two rows wait for memory.
    R > 2 && H == 2 && cores::known().halves_panels
}

/// Multiplies a tile of `PARTS` times `R` rows with a panel of blocks, `H` of its vectors in a pass. Of each group `R` rows
/// are multiplied with `V` vectors at a time, one part behind the other: what has more registers for its sums reads rows or
/// words again.
///
/// # Safety
/// That of a [`Loop`](super::tile::Loop): `a` is groups of headers and steps of the tile's rows, `b` groups of the format,
/// `sums` is `[rows][32]`.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "a loop's own; bundled, 8 rows of fp8 spill registers and take a third longer"
)]
pub(super) unsafe fn multiply<P: Products<R, V>, const R: usize, const PARTS: usize, const H: usize, const V: usize>(
    products: P,
    format: BlockFormat,
    reads: Reads,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    // SAFETY: passed on.
    unsafe {
        if format.zero_points() {
            all_groups::<P, true, R, PARTS, H, V>(products, format, reads, a, b, steps, sums, carry);
        } else {
            all_groups::<P, false, R, PARTS, H, V>(products, format, reads, a, b, steps, sums, carry);
        }
    }
}

#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "a loop's own; bundled, 8 rows of fp8 spill registers and take a third longer"
)]
unsafe fn all_groups<
    P: Products<R, V>,
    const ZEROS: bool,
    const R: usize,
    const PARTS: usize,
    const H: usize,
    const V: usize,
>(
    products: P,
    format: BlockFormat,
    reads: Reads,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    const { assert!(!P::IN_TWOS || PARTS == 1 && V == H, "what is multiplied in twos is one part") };
    const { assert!(!(P::IN_TWOS && P::LIGHT), "what is multiplied in twos asks ahead") };
    let group = format.group() / P::LEFT.per_step();
    let asks = R > 1 || !P::LIGHT || cores::known().asks_ahead;
    for first in (0..2).step_by(H) {
        // SAFETY: passed on; what is read and written is inside what the contract names.
        unsafe {
            let sums = Sums::<P, R, PARTS, H, V>::new(sums.add(first * LANES), carry);
            let mut groups =
                Groups::<P, ZEROS, R, PARTS, H, V> { products, format, reads, asks, first, a: a.cast(), b, sums };
            let mut done = 0;
            while P::IN_TWOS && steps - done >= 2 * group {
                groups.next_two(group);
                done += 2 * group;
            }
            for done in (done..steps).step_by(group) {
                groups.next((steps - done).min(group));
            }
            groups.sums.write();
        }
    }
}

/// Groups that are left, and the sums of those before.
struct Groups<P: Products<R, V>, const ZEROS: bool, const R: usize, const PARTS: usize, const H: usize, const V: usize>
{
    products: P,
    format: BlockFormat,
    reads: Reads,
    /// Whether words are asked for ahead.
    asks: bool,
    /// The first of the panel's vectors.
    first: usize,
    a: *const f32,
    b: *const u8,
    sums: Sums<P, R, PARTS, H, V>,
}

impl<P: Products<R, V>, const ZEROS: bool, const R: usize, const PARTS: usize, const H: usize, const V: usize>
    Groups<P, ZEROS, R, PARTS, H, V>
{
    /// Adds the next group, of `here` steps.
    #[inline(always)]
    unsafe fn next(&mut self, here: usize) {
        let lines = here / P::STEPS;
        // SAFETY: passed on.
        unsafe {
            if !self.asks {
                // The panel's words pass through the first cache all the same, and push a long row out of it.
                simd::prefetch(self.a.cast::<u8>().wrapping_add(ROW_AHEAD), Reach::Near);
            }
            // No loop: the sums of each part are registers.
            self.part::<0, 0>(lines);
            if V < H {
                self.part::<0, 1>(lines);
            }
            if PARTS > 1 {
                self.part::<1, 0>(lines);
            }
            self.skip(lines);
        }
    }

    /// Adds the next two groups, each of `steps`, line by line: as one after the other, to the bit.
    #[inline(always)]
    unsafe fn next_two(&mut self, steps: usize) {
        let lines = steps / P::STEPS;
        // SAFETY: passed on.
        unsafe {
            let header_bytes = blocks::header_bytes(self.format);
            let (first, b) = (self.group::<0, 0>(), self.b);
            self.skip(lines);
            let (second, second_b) = (self.group::<0, 0>(), self.b);
            self.skip(lines);
            let mut sums = [first, second].map(|group| self.products.start(group.header, group.height));
            // Of both in the order in which they lie.
            for line in 0..lines {
                prefetch_ahead(b.add(2 * line * LINE), 2 * LINE, self.reads, false);
                for (sums, group) in sums.iter_mut().zip([first, second]) {
                    let a = group.a.add(line * P::WORDS * group.height);
                    *sums = self.products.add_line(*sums, a, group.height, group.words.add(line * LINE));
                }
            }
            prefetch_ahead(b.add(2 * lines * LINE), 2 * header_bytes, self.reads, false);
            self.finish::<0, 0>(first, b, sums[0]);
            self.finish::<0, 0>(second, second_b, sums[1]);
        }
    }

    /// Goes past a group of so many lines.
    #[inline(always)]
    unsafe fn skip(&mut self, lines: usize) {
        let (header, format) = (P::LEFT.header(PanelKind::Blocks(self.format)), self.format);
        // SAFETY: passed on.
        unsafe {
            self.a = self.a.add((header + lines * P::WORDS) * R * PARTS);
            self.b = self.b.add(blocks::header_bytes(format) + lines * LINE);
        }
    }

    /// The group that is next, for a part of the rows and from the vector `FROM` of the pass on.
    #[inline(always)]
    unsafe fn group<const PART: usize, const FROM: usize>(&self) -> Group {
        let height = R * PARTS;
        // SAFETY: passed on.
        unsafe {
            let header = self.a.add(PART * R);
            Group {
                header,
                height,
                a: header.add(P::LEFT.header(PanelKind::Blocks(self.format)) * height),
                words: self.b.add(blocks::header_bytes(self.format) + (self.first + FROM) * LINE / 2),
            }
        }
    }

    /// Adds a group at `b` whose products have these sums.
    #[inline(always)]
    unsafe fn finish<const PART: usize, const FROM: usize>(&mut self, group: Group, b: *const u8, sums: P::Sums) {
        // SAFETY: passed on.
        unsafe {
            let (scales, zeros) = vectors::<P::S, ZEROS, V>(self.format, b, self.first + FROM);
            self.sums.add::<PART, FROM>(self.products.finish::<ZEROS>(sums, group, zeros), scales);
        }
    }

    /// Adds the next group of a part of the rows, from the vector `FROM` of the pass on.
    #[inline(always)]
    unsafe fn part<const PART: usize, const FROM: usize>(&mut self, lines: usize) {
        const { assert!(PARTS <= 2 && (V == H || (V == 1 && H == 2 && PARTS == 1)), "each part is called") };
        let Self { products, reads, asks, b, .. } = *self;
        // SAFETY: passed on.
        unsafe {
            let group = self.group::<PART, FROM>();
            let mut s = products.start(group.header, group.height);
            let Group { mut a, mut words, height, .. } = group;
            for _ in 0..lines {
                if asks && PART == 0 {
                    prefetch_ahead(words, V * LINE / 2, reads, false);
                }
                s = products.add_line(s, a, height, words);
                (a, words) = (a.add(P::WORDS * height), words.add(LINE));
            }
            prefetch_ahead(b, 1, reads, false);
            self.finish::<PART, FROM>(group, b, s);
        }
    }
}

/// The scales and zero points of a group's outputs, from the vector `first` on.
#[inline(always)]
unsafe fn vectors<S: Simd, const ZEROS: bool, const V: usize>(
    format: BlockFormat,
    b: *const u8,
    first: usize,
) -> ([S::F; V], [S::F; V]) {
    // SAFETY: passed on.
    unsafe {
        let (mut scales, mut zeros) = ([S::splat(0.0); V], [S::splat(0.0); V]);
        for (h, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
            let lane = (first + h) * LANES;
            let p = b.add(lane * format.scale_dtype().size());
            *scale = match format.scale_dtype() {
                DType::F16 => S::load_f16(p.cast()),
                DType::BF16 => S::load_bf16(p.cast()),
                _ => S::load(p.cast()),
            };
            if ZEROS {
                *zero = S::load_i8(b.add(blocks::scales_bytes(format) + lane).cast());
            }
        }
        (scales, zeros)
    }
}

/// Sums of all groups: of few rows in registers, else in memory, so that those of a group have the registers.
struct Sums<P: Products<R, V>, const R: usize, const PARTS: usize, const H: usize, const V: usize> {
    at: *mut f32,
    kept: [[[<P::S as Simd>::F; H]; R]; PARTS],
}

impl<P: Products<R, V>, const R: usize, const PARTS: usize, const H: usize, const V: usize> Sums<P, R, PARTS, H, V> {
    /// Of few rows, or where registers hold a part's sums of a group, a line's weights and a broadcast besides.
    const KEPT: bool = R * PARTS <= H || R * (PARTS * H + V * P::SUMS) + P::LOADED < P::S::VECTORS;

    #[inline(always)]
    unsafe fn new(at: *mut f32, carry: bool) -> Self {
        // SAFETY: passed on.
        unsafe {
            let mut kept = [[[P::S::splat(0.0); H]; R]; PARTS];
            for (r, kept) in kept.as_flattened_mut().iter_mut().enumerate() {
                for (h, kept) in kept.iter_mut().enumerate() {
                    match (carry, Self::KEPT) {
                        (true, true) => *kept = P::S::load(at.add(r * PANEL + h * LANES)),
                        (false, false) => P::S::store(at.add(r * PANEL + h * LANES), *kept),
                        _ => {}
                    }
                }
            }
            Self { at, kept }
        }
    }

    /// Adds a group's sums of a part of the rows, from the vector `FROM` of the pass on.
    #[inline(always)]
    unsafe fn add<const PART: usize, const FROM: usize>(
        &mut self,
        group: [[<P::S as Simd>::F; V]; R],
        scales: [<P::S as Simd>::F; V],
    ) {
        // Else the compiler keeps them in registers all the same.
        let at = if Self::KEPT { self.at } else { std::hint::black_box(self.at) };
        for (r, x) in group.into_iter().enumerate() {
            for (h, x) in x.into_iter().enumerate() {
                // SAFETY: passed on.
                unsafe {
                    if Self::KEPT {
                        let kept = &mut self.kept[PART][r][FROM + h];
                        *kept = P::S::fma(x, scales[h], *kept);
                    } else {
                        let at = at.add((PART * R + r) * PANEL + (FROM + h) * LANES);
                        P::S::store(at, P::S::fma(x, scales[h], P::S::load(at)));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write(&self) {
        for (r, kept) in self.kept.as_flattened().iter().enumerate().filter(|_| Self::KEPT) {
            for (h, &kept) in kept.iter().enumerate() {
                // SAFETY: passed on.
                unsafe { P::S::store(self.at.add(r * PANEL + h * LANES), kept) };
            }
        }
    }
}

/// `Σ a·q - zero · Σ a` of groups before which the sums of `a` stand.
///
/// # Safety
/// That of [`Products::finish`].
#[inline(always)]
pub(super) unsafe fn less_zeros<S: Simd, const ZEROS: bool, const R: usize, const H: usize>(
    mut sums: [[S::F; H]; R],
    row_sums: *const f32,
    zeros: [S::F; H],
) -> [[S::F; H]; R] {
    if ZEROS {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (s, zero) in sums.iter_mut().zip(zeros) {
                // SAFETY: passed on.
                unsafe { *s = S::fma(S::sub(S::splat(0.0), zero), S::splat(*row_sums.add(r)), *s) };
            }
        }
    }
    sums
}

#[cfg(test)]
pub(super) mod tests {
    use half::bf16;

    use super::*;

    /// Numbers below 2^16, one after another.
    pub fn numbers() -> impl FnMut() -> u32 {
        let mut bits = 1u32;
        move || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bits >> 16
        }
    }

    /// `k` values of a panel: any codes and zero points, and scales of both signs in f32 or bf16.
    pub fn panel(format: BlockFormat, k: usize, mut next: impl FnMut() -> u32) -> Vec<u8> {
        let mut panel: Vec<u8> = (0..blocks::bytes(format, k)).map(|_| next() as u8).collect();
        for first in (0..k).step_by(format.group()) {
            let scales = &mut panel[blocks::bytes(format, first)..][..blocks::scales_bytes(format)];
            for (i, scale) in scales.chunks_exact_mut(format.scale_dtype().size()).enumerate() {
                let value = (i + first) as f32 / 64.0 - 0.3;
                match format.scale_dtype() {
                    DType::F32 => scale.copy_from_slice(&value.to_le_bytes()),
                    _ => scale.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                }
            }
        }
        panel
    }
}
