//! The loop over the groups of a panel of blocks, which rows of all arithmetics share: `s = fma(Σ a·(q - zero), scale, s)`.

use half::f16;
use sinew_memory::SimdLevel;
use sinew_tensor::{BlockFormat, DType};

use super::tile::{Block, Packing, Reads, prefetch_ahead};
use crate::packed::PANEL;
use crate::packed::blocks::{self, LINE};
use crate::rates::cores;
use crate::simd::{self, LANES, Reach, Simd};

/// Bytes of a packed row that are asked for ahead.
const ROW_AHEAD: usize = 512;

/// Steps of K: of the activations, and of the lines of words that they are multiplied with.
pub(super) trait Steps: Copy {
    /// What a step of the activations is.
    const PACKING: Packing;
    /// Steps in a line of words.
    const STEPS: usize;
}

/// The products of `R` rows with `V` vectors of sixteen outputs: what differs between arithmetics.
///
/// # Safety
/// Those of [`Simd`]; `a` are steps of words of 32 bits, [`Packing::words`] times one of each of a tile's `height` rows, of
/// which the first `R` are multiplied; `header` is what comes before a group of them (see [`Packing::header`]), its first
/// row being that of `a`; `words` are `V` times sixteen words, and a group's scales and zero points as many.
#[allow(clippy::missing_safety_doc, reason = "the trait's section on safety holds for every function")]
pub(super) trait Products<const R: usize, const V: usize>: Steps {
    type S: Simd;
    /// The sums of a group.
    type Sums: Copy;
    /// Words of each row in the steps of a line.
    const WORDS: usize = Self::STEPS * Self::PACKING.words;
    /// Vectors that a line's weights take, and what looks them up.
    const LOADED: usize;
    /// Vectors that a row's sums of a group take, of sixteen outputs.
    const SUMS: usize = 1;
    /// Whether words are multiplied as they are: then some cores' own prefetchers are best left to themselves.
    const LIGHT: bool;
    /// Starts the sums of a group, and loads the zero points that its lines need.
    unsafe fn start(self, group: Group) -> Self::Sums;
    /// Adds the products of a line of words.
    unsafe fn add_line(self, sums: Self::Sums, a: *const f32, height: usize, words: *const u8) -> Self::Sums;
    /// The sums of a group, of codes less their zero points.
    unsafe fn finish(self, sums: Self::Sums, group: Group) -> [[<Self::S as Simd>::F; V]; R];
}

/// The body for each `I` below a count of no more than two or four, without a loop: what the compiler deems too long to unroll
/// would index its vectors, and have them in memory.
macro_rules! unrolled {
    ($i:ident in 0..$count:ident of 2 $body:block) => {{
        const { assert!($count <= 2) };
        unrolled!(@each 0 1, $i, $count, $body)
    }};
    ($i:ident in 0..$count:ident of 4 $body:block) => {{
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

/// Where a group is: of [`Products`] the `header` and the steps `a` behind it, of a tile of a height, and the words of some
/// outputs.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub header: *const f32,
    pub height: usize,
    pub a: *const f32,
    pub words: *const u8,
    /// Scales and zero points of the outputs. `zeros` is null if the format has none.
    pub scales: *const u8,
    pub zeros: *const i8,
}

/// Whether more than two rows, which do not wait for memory, take vectors of a panel one by one within each group, where
/// cores are the faster for it: see [`cores::Known::halves_panels`].
#[inline(always)]
pub(super) fn halves() -> bool {
    cores::known().halves_panels
}

/// Multiplies a tile of `PARTS` times `R` rows with a panel of blocks, `H` of its vectors in a pass. Of each group `R` rows
/// are multiplied with `V` vectors at a time, one part behind the other: what has more registers for its sums reads rows or
/// words again.
///
/// # Safety
/// That of a [`Loop`](super::tile::Loop): `a` is groups of headers and steps of the tile's rows, `b` groups of the format,
/// `sums` is `[rows][32]`.
#[inline(always)]
pub(super) unsafe fn multiply<P: Products<R, V>, const R: usize, const PARTS: usize, const H: usize, const V: usize>(
    products: P,
    format: BlockFormat,
    block: Block,
) {
    let Block { reads, a, b, steps, sums, carry, .. } = block;
    const { assert!(PARTS <= 2 && (V == H || (V == 1 && H == 2 && PARTS == 1)), "each part is called") };
    // Of few rows, or where registers hold a part's sums of a group, a line's weights and a broadcast besides.
    let kept = R * PARTS <= H || R * (PARTS * H + V * P::SUMS) + P::LOADED < P::S::VECTORS;
    let group = format.group() / P::PACKING.per_step;
    let asks = R > 1 || !P::LIGHT || cores::known().asks_ahead;
    for first in (0..2).step_by(H) {
        // SAFETY: passed on; what is read and written is inside what the contract names.
        unsafe {
            let mut sums = Sums::<P::S, R, PARTS, H>::new(sums.add(first * LANES), carry, kept);
            let mut groups = Groups::new(&P::PACKING, format, reads, R * PARTS, first, a, b);
            let mut done = 0;
            while done < steps {
                let here = (steps - done).min(group);
                let lines = here / P::STEPS;
                if !asks {
                    // The panel's words pass through the first cache all the same, and push a long row out of it.
                    simd::prefetch(groups.a.cast::<u8>().wrapping_add(ROW_AHEAD), Reach::Near);
                }
                // No loop: the sums of each part are registers.
                let of = group_sums::<P, R, V>(products, &groups, groups.at(0, 0), lines, asks);
                sums.add(0, 0, of.0, of.1);
                if V < H {
                    let of = group_sums::<P, R, V>(products, &groups, groups.at(0, 1), lines, asks);
                    sums.add(0, 1, of.0, of.1);
                }
                if PARTS > 1 {
                    let of = group_sums::<P, R, V>(products, &groups, groups.at(R, 0), lines, false);
                    sums.add(1, 0, of.0, of.1);
                }
                groups.skip(lines, lines * P::WORDS);
                done += here;
            }
            sums.write();
        }
    }
}

/// Like [`multiply`] for one part and whole panels, with two groups interleaved, so that products do not wait for those
/// before them. The bits are the same.
///
/// # Safety
/// That of [`multiply`].
#[inline(always)]
pub(super) unsafe fn multiply_in_twos<P: Products<R, 2>, const R: usize>(
    products: P,
    format: BlockFormat,
    block: Block,
) {
    let Block { reads, a, b, steps, sums, carry, .. } = block;
    const { assert!(R <= 2 && !P::LIGHT, "few rows, which ask ahead") };
    let lines = format.group() / P::PACKING.per_step / P::STEPS;
    let mut done = 0;
    // SAFETY: passed on; what is read and written is inside what the contract names.
    unsafe {
        let mut groups = Groups::new(&P::PACKING, format, reads, R, 0, a, b);
        let two = 2 * lines * P::STEPS;
        if steps >= two {
            let mut all = Sums::<P::S, R, 1, 2>::new(sums, carry, true);
            while steps - done >= two {
                let (first, b) = (groups.at(0, 0), groups.b);
                groups.skip(lines, lines * P::WORDS);
                let second = groups.at(0, 0);
                groups.skip(lines, lines * P::WORDS);
                let mut of_first = products.start(first);
                let mut of_second = products.start(second);
                // Of both in the order in which they lie.
                for line in 0..lines {
                    prefetch_ahead(b.add(2 * line * LINE), 2 * LINE, reads, false);
                    let (row, word) = (line * P::WORDS * R, line * LINE);
                    of_first = products.add_line(of_first, first.a.add(row), R, first.words.add(word));
                    of_second = products.add_line(of_second, second.a.add(row), R, second.words.add(word));
                }
                prefetch_ahead(b.add(2 * lines * LINE), 2 * groups.header_bytes, reads, false);
                let (scales, sums) = (load_scales::<P::S, 2>(format, first.scales), products.finish(of_first, first));
                all.add(0, 0, sums, scales);
                let (scales, sums) =
                    (load_scales::<P::S, 2>(format, second.scales), products.finish(of_second, second));
                all.add(0, 0, sums, scales);
                done += two;
            }
            all.write();
        }
        // Zero steps still set the sums.
        if done < steps || steps == 0 {
            let (a, steps, carry) = (groups.a.cast(), steps - done, carry || done > 0);
            multiply::<P, R, 1, 2, 2>(products, format, Block { a, b: groups.b, steps, carry, ..block });
        }
    }
}

/// Groups that are left of a tile and a panel.
#[derive(Clone, Copy)]
struct Groups {
    format: BlockFormat,
    reads: Reads,
    /// Rows of the tile, and words of each before a group.
    height: usize,
    header: usize,
    /// Bytes before a group of the panel.
    header_bytes: usize,
    /// The first of the panel's vectors.
    first: usize,
    a: *const f32,
    b: *const u8,
}

impl Groups {
    #[inline(always)]
    fn new(
        packing: &Packing,
        format: BlockFormat,
        reads: Reads,
        height: usize,
        first: usize,
        a: *const u8,
        b: *const u8,
    ) -> Self {
        let (header, header_bytes) = ((packing.header)(format), blocks::header_bytes(format));
        Self { format, reads, height, header, header_bytes, first, a: a.cast(), b }
    }

    /// The group that is next, from a row of the tile and a vector of the pass on.
    #[inline(always)]
    unsafe fn at(&self, row: usize, vector: usize) -> Group {
        let (format, height, lane) = (self.format, self.height, (self.first + vector) * LANES);
        // SAFETY: passed on.
        unsafe {
            let header = self.a.add(row);
            Group {
                header,
                height,
                a: header.add(self.header * height),
                words: self.b.add(self.header_bytes + lane * size_of::<f32>()),
                scales: self.b.add(lane * format.scale_dtype().size()),
                zeros: match format.zero_points() {
                    true => self.b.add(blocks::scales_bytes(format) + lane).cast(),
                    false => std::ptr::null(),
                },
            }
        }
    }

    /// Goes past a group of so many lines, and words of a row.
    #[inline(always)]
    unsafe fn skip(&mut self, lines: usize, words: usize) {
        // SAFETY: passed on.
        unsafe {
            self.a = self.a.add((self.header + words) * self.height);
            self.b = self.b.add(self.header_bytes + lines * LINE);
        }
    }
}

/// The sums of a group of so many lines, of `R` rows with `V` vectors, and the vectors' scales.
#[inline(always)]
#[expect(clippy::type_complexity, reason = "vectors that stay registers")]
unsafe fn group_sums<P: Products<R, V>, const R: usize, const V: usize>(
    products: P,
    groups: &Groups,
    group: Group,
    lines: usize,
    asks: bool,
) -> ([[<P::S as Simd>::F; V]; R], [<P::S as Simd>::F; V]) {
    // SAFETY: passed on.
    unsafe {
        let mut s = products.start(group);
        let Group { mut a, mut words, height, .. } = group;
        for _ in 0..lines {
            if asks {
                prefetch_ahead(words, V * LINE / 2, groups.reads, false);
            }
            s = products.add_line(s, a, height, words);
            (a, words) = (a.add(P::WORDS * height), words.add(LINE));
        }
        prefetch_ahead(groups.b, 1, groups.reads, false);
        (products.finish(s, group), load_scales::<P::S, V>(groups.format, group.scales))
    }
}

/// The scales at `p` of vectors of outputs.
#[inline(always)]
unsafe fn load_scales<S: Simd, const V: usize>(format: BlockFormat, p: *const u8) -> [S::F; V] {
    let dtype = format.scale_dtype();
    // SAFETY: passed on.
    unsafe {
        let mut scales = [S::splat(0.0); V];
        for v in 0..V {
            let p = p.add(v * LANES * dtype.size());
            scales[v] = match dtype {
                // The conversion is long in plain Rust, and would leave the loop around it no registers.
                DType::F16 if S::LEVEL == SimdLevel::Portable => S::load(scales_of_f16(p).as_ptr()),
                DType::F16 => S::load_f16(p.cast()),
                DType::BF16 => S::load_bf16(p.cast()),
                _ => S::load(p.cast()),
            };
        }
        scales
    }
}

/// Sixteen f16.
#[inline(never)]
unsafe fn scales_of_f16(p: *const u8) -> [f32; LANES] {
    // SAFETY: the caller names them.
    unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|bits| f16::from_bits(bits).to_f32())
}

/// Writes a panel's codes as the numbers they stand for, which products then read in their place.
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

/// Sums of all groups: `kept` in registers, else in memory, so that those of a group have the registers.
struct Sums<S: Simd, const R: usize, const PARTS: usize, const H: usize> {
    at: *mut f32,
    kept: Option<[[[S::F; H]; R]; PARTS]>,
}

// Whether sums are kept, parts and vectors are arguments that each call names: inlined they are constants, and one function is
// compiled for all of them.
impl<S: Simd, const R: usize, const PARTS: usize, const H: usize> Sums<S, R, PARTS, H> {
    #[inline(always)]
    unsafe fn new(at: *mut f32, carry: bool, kept: bool) -> Self {
        // SAFETY: passed on.
        unsafe {
            let zero = S::splat(0.0);
            let mut sums = [[[zero; H]; R]; PARTS];
            if kept == carry {
                for part in 0..PARTS {
                    for r in 0..R {
                        for h in 0..H {
                            let at = at.add((part * R + r) * PANEL + h * LANES);
                            if kept { sums[part][r][h] = S::load(at) } else { S::store(at, zero) }
                        }
                    }
                }
            }
            Self { at, kept: kept.then_some(sums) }
        }
    }

    /// Adds a group's sums of a part of the rows, from the vector `from` of the pass on.
    #[inline(always)]
    unsafe fn add<const V: usize>(&mut self, part: usize, from: usize, group: [[S::F; V]; R], scales: [S::F; V]) {
        // Else the compiler keeps them in registers all the same.
        let at = if self.kept.is_some() { self.at } else { std::hint::black_box(self.at) };
        for r in 0..R {
            for v in 0..V {
                // SAFETY: passed on.
                unsafe {
                    if let Some(kept) = &mut self.kept {
                        kept[part][r][from + v] = S::fma(group[r][v], scales[v], kept[part][r][from + v]);
                    } else {
                        let at = at.add((part * R + r) * PANEL + (from + v) * LANES);
                        S::store(at, S::fma(group[r][v], scales[v], S::load(at)));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write(&self) {
        let Some(kept) = &self.kept else { return };
        for part in 0..PARTS {
            for r in 0..R {
                for h in 0..H {
                    let at = self.at.wrapping_add((part * R + r) * PANEL + h * LANES);
                    // SAFETY: passed on.
                    unsafe { S::store(at, kept[part][r][h]) };
                }
            }
        }
    }
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
