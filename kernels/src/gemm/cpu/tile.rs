//! Tiles of A: their heights, packing and microkernels.

use sinew_memory::SimdLevel;
use sinew_tensor::BlockFormat;

use super::pack::PackRows;
use crate::cpu::CACHE_LINE;
use crate::packed::{PanelKind, blocks};
use crate::simd::{self, LANES, Reach};

/// How often a panel's block is read, as far as who asks for it ahead is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Again for other rows, or it is not known that anything is gained by telling.
    Again,
    /// Once, or a second time at once, out of the first cache; and then not before all other weights were.
    Once,
}

/// Prefetches the `bytes` bytes a page and a half ahead of `p`, which need not be valid: hardware prefetchers stop at each
/// page of 4 KiB. `light` loops of one row, which look nothing up, prefetch one of each two lines: the adjacent-line
/// prefetcher fetches the other.
///
/// Data that are reused go into L2: a prefetch into L1 that misses occupies a line-fill buffer until its data arrive (5 to
/// 20 % slower on Zen 4). A distance of whole pages was as slow, as its lines fall into the same sets of the cache; a light
/// loop that prefetched every line was up to a third slower.
///
/// Data that are read once are prefetched past L2 and L3, which then keep rows, keys and values, and part of the weights
/// (for the gain see `passes_caches` of `rates::cores`).
#[inline(always)]
pub(super) fn prefetch_ahead(p: *const u8, bytes: usize, reads: Reads, light: bool) {
    const AHEAD: usize = 4096 + 2048;
    let (reach, stride) = match reads {
        Reads::Once => (Reach::Once, CACHE_LINE),
        Reads::Again if light => (Reach::Far, 2 * CACHE_LINE),
        Reads::Again => (Reach::Far, CACHE_LINE),
    };
    for line in (0..bytes).step_by(stride) {
        simd::prefetch(p.wrapping_add(AHEAD + line), reach);
    }
}

/// Rows of the largest tile: what everything that holds a tile has room for.
pub(super) const MAX_TILE: usize = 12;
const _: () = assert!(MAX_TILE <= LANES, "a tile's rows are transposed in one block of registers");

/// How a tile of A's rows is packed: steps of K, and in each so many words of every row. With panels of blocks, what rows
/// need to know of a group comes before its steps: its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// Values of K in a step.
    pub per_step: usize,
    /// Words of 32 bits of each row in a step.
    pub words: usize,
    /// Whether they are integers, in groups that do not depend on each other.
    pub integers: bool,
    /// Words of 32 bits of each row before the steps of a group.
    pub header: fn(BlockFormat) -> usize,
    /// Packs a part of a tile, at the level of the tiles.
    pub pack: unsafe fn(rows: &PackRows<'_>, task: usize),
}

impl Packing {
    /// Bytes that `k` values of a row take, which are all of them or a multiple of what panels are divided at: in a
    /// tile what follows them starts as far behind, times its height.
    pub fn bytes(&self, panels: PanelKind, k: usize) -> usize {
        let headers =
            panels.blocks().map_or(0, |format| k.div_ceil(format.group()).saturating_mul((self.header)(format)));
        let steps = panels.padded_k(k).div_ceil(self.per_step);
        steps.saturating_mul(self.words).saturating_add(headers).saturating_mul(4)
    }
}

/// How a kernel packs rows, and its loops over K for tiles of different heights. These are constants: a static would compile
/// all of its functions into every unit test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// The level of everything around the loops: packing and epilogue.
    pub level: SimdLevel,
    /// How A is packed.
    pub packing: Packing,
    /// From the lowest to the highest, of panels as they are.
    tiles: &'static [Tile],
    /// What more rows than the highest tile's are cut into: its own height, or a lower one that is faster.
    many: usize,
    /// How panels of blocks are looked up once for many tiles, where that is faster than in each.
    pub expansion: Option<Expansion>,
}

/// Panels of blocks as a loop reads them that looks nothing up: groups of the same scales and zero points, and steps of
/// what codes stand for, a line each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expansion {
    /// Expands `steps` steps of a block of a panel.
    pub expand: Expand,
    /// Tiles that read it: of the heights of those that look codes up, and above them of more rows, for which there are
    /// registers where nothing is looked up.
    pub tiles: &'static [Tile],
}

/// # Safety
/// The machine has the level; `b` holds the steps of the panel, and `to` has room for them as they are expanded.
pub(crate) type Expand = unsafe fn(panels: PanelKind, b: *const u8, steps: usize, to: *mut u8);

impl Expansion {
    /// Bytes of `k` values along K of an expanded panel.
    pub fn bytes(&self, panels: PanelKind, packing: &Packing, k: usize) -> usize {
        let Some(format) = panels.blocks() else { return 0 };
        let steps = (panels.padded_k(k) / packing.per_step).saturating_mul(blocks::LINE);
        k.div_ceil(format.group()).saturating_mul(blocks::header_bytes(format)).saturating_add(steps)
    }
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

/// What a microkernel multiplies: a block of K of a tile and of a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// The kind of the panel.
    pub panels: PanelKind,
    /// How often it is read.
    pub reads: Reads,
    /// The packed tile, `[steps][words][height]` with the headers of its groups.
    pub a: *const u8,
    /// The panel.
    pub b: *const u8,
    /// Steps of K.
    pub steps: usize,
    /// The sums, `[height][32]`.
    pub sums: *mut f32,
    /// Whether products are added to the sums, or set them.
    pub carry: bool,
}

/// A microkernel: multiplies a block.
///
/// # Safety
/// The machine has the level; the tile and the panel hold the steps, and `sums` has the rows of the tile.
pub(crate) type Loop = unsafe fn(Block);

impl Tiles {
    /// Tiles from the lowest to the highest. In a constant, tiles that do not fit do not compile.
    pub const fn new(level: SimdLevel, packing: Packing, tiles: &'static [Tile]) -> Self {
        Self { level, packing, tiles, many: in_order(tiles), expansion: None }
    }

    /// The same with panels that may be expanded, all of which are of packed weights.
    pub const fn expanding(self, expansion: Expansion) -> Self {
        assert!(in_order(expansion.tiles) <= self.looked_up_rows(), "sums have room for a tile of expanded panels");
        assert!(self.tiles.len() <= expansion.tiles.len(), "expanded panels have tiles of the same heights, or more");
        let mut i = 0;
        while i < self.tiles.len() {
            assert!(
                self.tiles[i].height == expansion.tiles[i].height,
                "tiles of expanded panels are of the same heights, or higher"
            );
            i += 1;
        }
        Self { expansion: Some(expansion), ..self }
    }

    /// The same, with more rows than the highest tile's cut into tiles of `height`.
    pub const fn cutting_many_into(self, height: usize) -> Self {
        let mut i = 0;
        while self.tiles[i].height != height {
            i += 1;
            assert!(i < self.tiles.len(), "there is a tile of that height");
        }
        Self { many: height, ..self }
    }

    /// Rows of the highest tile of panels as they are.
    #[inline(always)]
    pub const fn highest(&self) -> usize {
        self.tiles[self.tiles.len() - 1].height
    }

    /// The most rows in each of whose tiles a panel's codes are looked up, where it may be expanded: those of two.
    #[inline(always)]
    pub const fn looked_up_rows(&self) -> usize {
        2 * self.highest()
    }

    /// Rows of the tiles that `rows` rows are cut into, the last of which may have fewer.
    #[inline(always)]
    pub fn height(&self, rows: usize) -> usize {
        match self.expansion_for(rows) {
            Some(Expansion { tiles, .. }) => tiles[tiles.len() - 1].height,
            None if rows <= self.highest() => self.highest(),
            None => self.many,
        }
    }

    /// The lowest tile that holds `rows` rows, which are at most those of the highest: that of panels as they are, or as
    /// they are expanded.
    #[inline(always)]
    pub fn fit(&self, rows: usize, expansion: Option<&Expansion>) -> &'static Tile {
        let tiles = expansion.map_or(self.tiles, |expansion| expansion.tiles);
        let highest = &tiles[tiles.len() - 1];
        debug_assert!(rows <= highest.height);
        tiles.iter().find(|tile| tile.height >= rows).unwrap_or(highest)
    }

    /// The expansion of panels for a slab of so many rows, if it is worth it.
    #[inline(always)]
    pub fn expansion_for(&self, rows: usize) -> Option<&Expansion> {
        self.expansion.as_ref().filter(|_| rows > self.looked_up_rows())
    }

    /// Rows that a tile of `rows` rows is packed with, whatever reads it.
    #[inline(always)]
    pub fn packed_height(&self, rows: usize) -> usize {
        self.fit(rows, self.expansion.as_ref()).height
    }

    /// Rows that the tiles of `rows` rows have.
    pub fn packed_rows(&self, rows: usize) -> usize {
        let full = self.height(rows);
        let rest = rows % full;
        rows - rest + if rest == 0 { 0 } else { self.packed_height(rest) }
    }
}

/// The height of the last of `tiles`, which are in order and fit what holds them.
const fn in_order(tiles: &[Tile]) -> usize {
    assert!(!tiles.is_empty() && tiles[0].height > 0, "there is a tile for one row");
    let mut i = 1;
    while i < tiles.len() {
        assert!(tiles[i - 1].height < tiles[i].height, "tiles are in order of their heights");
        i += 1;
    }
    let highest = tiles[tiles.len() - 1].height;
    assert!(highest <= MAX_TILE, "no tile is higher than what holds it");
    highest
}

/// Tiles of a [`Loop`] that is generic over the height, and over how many of a panel's two halves it takes in a pass. The
/// highest may have a loop of its own.
macro_rules! tiles {
    ($chain:ident: $(<$height:literal, $halves:literal>),+) => {
        &[$(crate::gemm::cpu::tile::Tile { height: $height, passes: 2 / $halves, run: $chain::<$height, $halves> }),+]
    };
    ($chain:ident: $(<$height:literal, $halves:literal>),+; $last:ident of $highest:literal) => {
        &[
            $(crate::gemm::cpu::tile::Tile { height: $height, passes: 2 / $halves, run: $chain::<$height, $halves> },)+
            crate::gemm::cpu::tile::Tile { height: $highest, passes: 1, run: $last },
        ]
    };
    ($($whole:ident: $(<$height:literal>),+);+) => {
        &[$($(crate::gemm::cpu::tile::Tile { height: $height, passes: 1, run: $whole::<$height> }),+),+]
    };
}
pub(super) use tiles;

/// [`Loop`]s, each a call of a function that is inlined where the instructions of its level are enabled.
macro_rules! loops {
    ($($(#[$of:meta])* $name:ident $(<$($size:ident),+>)? => $inlined:expr;)+) => {$(
        $(#[$of])*
        unsafe fn $name $(<$(const $size: usize),+>)? (block: crate::gemm::cpu::tile::Block) {
            // SAFETY: passed on.
            unsafe { $inlined(block) }
        }
    )+};
}
pub(super) use loops;
