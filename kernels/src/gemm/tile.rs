//! Tiles: the loops over K, all that differs between rows of the table.

use half::f16;
use sinew_memory::SimdLevel;

use crate::packed::{GROUP, PANEL, PanelKind};
use crate::simd::{self, LANES, Portable, Reach, Simd, Stored};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Asks for the line a page ahead of `p`, which need not be valid: a core's own prefetcher stops at each page of 4 KiB.
#[inline(always)]
pub(super) fn prefetch_page_ahead(p: *const u8) {
    const PAGE: usize = 4096;
    simd::prefetch(p.wrapping_add(PAGE), Reach::Near);
}

/// Rows of the largest tile: what everything that holds a tile has room for.
pub(super) const MAX_TILE: usize = 12;
const _: () = assert!(MAX_TILE <= LANES, "a tile's rows are transposed in one block of registers");

/// How a tile of A's rows is packed: steps of K, and in each a value, pair or quad of every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// f32.
    Singles,
    /// Pairs of bf16.
    Pairs,
    /// Groups of [`GROUP`] values: an f32 scale of each row, an i32 that its sums start from, and quads of int8.
    Quads,
}

impl Left {
    /// Values of K in a step.
    pub const fn per_step(self) -> usize {
        match self {
            Self::Singles => 1,
            Self::Pairs => 2,
            Self::Quads => 4,
        }
    }

    /// Bytes that `k` values of a row take, which are all of them or a multiple of what panels are divided at: in a tile
    /// what follows them starts as far behind, times its height.
    pub const fn bytes(self, k: usize) -> usize {
        let groups = if matches!(self, Self::Quads) { k.div_ceil(GROUP) } else { 0 };
        k.div_ceil(self.per_step()) * 4 + groups * 8
    }
}

/// What multiplies a packed tile of rows with a block of a panel: all that differs between rows of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// The level of everything around the loops: packing and epilogue.
    pub level: SimdLevel,
    /// How A is packed.
    pub left: Left,
    /// From the lowest to the full one.
    tiles: &'static [Tile],
}

/// A tile of a height.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Its rows.
    pub height: usize,
    /// Times that the loop reads the panel: each half by itself where a whole one has no room in registers.
    pub passes: usize,
    /// The loop over K.
    pub run: Loop,
}

/// Adds the products of `steps` steps of a tile, and of a panel of some kind, to `sums` `[height][32]`; or, if not
/// `carry`, sets the sums.
///
/// # Safety
/// The machine has the level; `a` holds `[steps][height]`, `b` the steps of the panel.
pub(crate) type Loop =
    unsafe fn(panels: PanelKind, a: *const u8, b: *const u8, steps: usize, sums: *mut f32, carry: bool);

impl Tiles {
    /// Tiles from the lowest to the full one. In a `static`, tiles that do not fit do not compile.
    pub const fn new(level: SimdLevel, left: Left, tiles: &'static [Tile]) -> Self {
        assert!(!tiles.is_empty() && tiles[0].height > 0, "there is a tile for one row");
        let mut i = 1;
        while i < tiles.len() {
            assert!(tiles[i - 1].height < tiles[i].height, "tiles are in order of their heights");
            i += 1;
        }
        assert!(tiles[tiles.len() - 1].height <= MAX_TILE, "no tile is higher than what holds it");
        Self { level, left, tiles }
    }

    /// The full tile.
    #[inline(always)]
    pub fn full(&self) -> &'static Tile {
        &self.tiles[self.tiles.len() - 1]
    }

    /// The lowest tile that holds `rows` rows, which are at most those of a full one.
    #[inline(always)]
    pub fn fit(&self, rows: usize) -> &'static Tile {
        debug_assert!(rows <= self.full().height);
        self.tiles.iter().find(|tile| tile.height >= rows).unwrap_or(self.full())
    }

    /// Rows that the tiles of `rows` rows have.
    pub fn packed_rows(&self, rows: usize) -> usize {
        let full = self.full().height;
        let rest = rows % full;
        rows - rest + if rest == 0 { 0 } else { self.fit(rest).height }
    }
}

/// Tiles of a [`Loop`] that is generic over the height, and over how many of a panel's two halves it takes in a pass.
macro_rules! tiles {
    ($chain:ident: $(<$height:literal, $halves:literal>),+) => {
        &[$(crate::gemm::tile::Tile { height: $height, passes: 2 / $halves, run: $chain::<$height, $halves> }),+]
    };
    ($whole:ident: $(<$height:literal>),+) => {
        &[$(crate::gemm::tile::Tile { height: $height, passes: 1, run: $whole::<$height> }),+]
    };
}
pub(super) use tiles;

/// One multiply-add per product, for every kind of panel.
pub(crate) static PORTABLE: Tiles =
    Tiles::new(SimdLevel::Portable, Left::Singles, tiles!(chain_portable: <1, 1>, <2, 1>, <4, 1>));

/// One fused multiply-add per product. AVX2 has 16 registers, of which 6 rows of half a panel take 12.
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, Left::Singles, tiles!(chain_avx2: <1, 2>, <2, 2>, <4, 1>, <6, 1>));

/// The same. 12 rows of two registers of sums, two of weights and one broadcast are 27 of AVX-512's 32.
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: Tiles =
    Tiles::new(SimdLevel::Avx512, Left::Singles, tiles!(chain_avx512: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>, <12, 2>));

/// [`chain`] at a level, for every kind of panel.
macro_rules! chain_at {
    ($name:ident, $simd:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name<const R: usize, const H: usize>(
            panels: PanelKind,
            a: *const u8,
            b: *const u8,
            steps: usize,
            sums: *mut f32,
            carry: bool,
        ) {
            let a = a.cast();
            // SAFETY: passed on; the kind is the panels'.
            unsafe {
                match panels {
                    PanelKind::F32 => chain::<$simd, Singles, R, H>(a, b, steps, sums, carry),
                    PanelKind::F16 => chain::<$simd, Halves, R, H>(a, b, steps, sums, carry),
                    PanelKind::Bf16 => chain::<$simd, Pairs, R, H>(a, b, steps, sums, carry),
                    PanelKind::I8 => debug_assert!(false, "the rows admit no int8"),
                }
            }
        }
    };
}

chain_at!(chain_portable, Portable);
#[cfg(target_arch = "x86_64")]
chain_at!(chain_avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
chain_at!(chain_avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");

/// How a panel's steps are read as f32.
trait Panel {
    /// Steps that are read together.
    const DEPTH: usize;
    /// Bytes of `DEPTH` steps of 32 outputs.
    const BYTES: usize;
    /// Step `depth` of sixteen outputs, `p` being where the `DEPTH` steps of these outputs start.
    unsafe fn load<S: Simd>(p: *const u8, depth: usize) -> S::F;
}

struct Singles;
struct Halves;
struct Pairs;

impl Panel for Singles {
    const DEPTH: usize = 1;
    const BYTES: usize = 4 * PANEL;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _depth: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p.cast()) }
    }
}

impl Panel for Halves {
    const DEPTH: usize = 1;
    const BYTES: usize = 2 * PANEL;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _depth: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { <f16 as Stored>::load::<S>(p.cast()) }
    }
}

impl Panel for Pairs {
    const DEPTH: usize = 2;
    const BYTES: usize = 4 * PANEL;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, depth: usize) -> S::F {
        // SAFETY: passed on.
        let (even, odd) = unsafe { S::load_bf16_pairs(p.cast()) };
        if depth == 0 { even } else { odd }
    }
}

/// `R` rows of `H` vectors of sums, kept in registers over all steps.
#[inline(always)]
unsafe fn chain<S: Simd, P: Panel, const R: usize, const H: usize>(
    a: *const f32,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    debug_assert!(steps.is_multiple_of(P::DEPTH));
    // SAFETY: passed on: `a` is [steps][R], `b` is [steps][32], `sums` is [R][32].
    unsafe {
        for first in (0..2).step_by(H) {
            let mut s = [[S::splat(0.0); H]; R];
            if carry {
                for (r, row) in s.iter_mut().enumerate() {
                    for (h, s) in row.iter_mut().enumerate() {
                        *s = S::load(sums.add(r * PANEL + (first + h) * LANES));
                    }
                }
            }
            let (mut a, mut b) = (a, b.add(first * P::BYTES / 2));
            for _ in 0..steps / P::DEPTH {
                for h in 0..H {
                    prefetch_page_ahead(b.wrapping_add(h * P::BYTES / 2));
                }
                for depth in 0..P::DEPTH {
                    let mut w = [S::splat(0.0); H];
                    for (h, w) in w.iter_mut().enumerate() {
                        *w = P::load::<S>(b.add(h * P::BYTES / 2), depth);
                    }
                    for (r, row) in s.iter_mut().enumerate() {
                        let x = S::splat(*a.add(depth * R + r));
                        for (s, w) in row.iter_mut().zip(w) {
                            *s = S::fma(x, w, *s);
                        }
                    }
                }
                a = a.add(P::DEPTH * R);
                b = b.add(P::BYTES);
            }
            for (r, row) in s.iter().enumerate() {
                for (h, s) in row.iter().enumerate() {
                    S::store(sums.add(r * PANEL + (first + h) * LANES), *s);
                }
            }
        }
    }
}
