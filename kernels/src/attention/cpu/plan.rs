//! How a call is divided among tasks, which keys each row sees, and where operands lie.

use std::ops::RangeInclusive;

use sinew_tensor::{DType, PagedLayout, View};

use crate::attention::{
    Attention, AttentionDynamic, AttentionStatic, BLOCK_TABLE, GROUP, K, KV_LEN, KvSource, MASK, O, OLD_BLOCK_TABLE,
    OLD_K, OLD_V, OldKv, Q, QUERY_START, SINKS, TILE, V,
};
use crate::cpu::line::Line;
use crate::cpu::{CACHE_LINE, whole_lines};
use crate::operator::refuse;
use crate::simd::{self, LANES, Reach};
use crate::{Launch, Operands, Operator, Result};

/// An operand of up to four dimensions: base address, and strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Strided {
    base: *const u8,
    pub strides: [usize; 4],
    pub dtype: DType,
}

impl Strided {
    /// The operand of a view of at most four dimensions; missing ones have stride 0.
    ///
    /// # Errors
    /// Fails for memory that the host cannot read.
    pub fn new(view: &View<'_>) -> Result<Self> {
        debug_assert!(view.shape().len() <= 4);
        let mut strides = [0; 4];
        strides.iter_mut().zip(view.strides()).for_each(|(to, from)| *to = *from);
        Ok(Self { base: view.host_ptr()?, strides, dtype: view.dtype() })
    }

    /// The codes of a cache with scales, as `[num_blocks, num_kv_heads, block_size, head_dim]` of `dtype`. The head's
    /// scales, f32, begin where there would be one slot more.
    ///
    /// # Errors
    /// Fails for memory that the host cannot read.
    pub fn codes(view: &View<'_>, head_dim: usize, dtype: DType) -> Result<Self> {
        let [block, head, ..] = Self::new(view)?.strides;
        Ok(Self { base: view.host_ptr()?, strides: [block, head, head_dim, 1], dtype })
    }

    /// Adds a leading dimension of stride 0.
    pub fn broadcast(self) -> Self {
        let [a, b, c, _] = self.strides;
        Self { strides: [0, a, b, c], ..self }
    }

    /// The address of an index.
    ///
    /// # Safety
    /// The index is inside the view's shape.
    #[inline(always)]
    pub unsafe fn at(&self, index: [usize; 4]) -> *const u8 {
        let ([a, b, c, d], [w, x, y, z]) = (index, self.strides);
        let offset = a * w + b * x + c * y + d * z;
        // SAFETY: a view's indices lie inside its buffer.
        unsafe { self.base.add(offset * self.dtype.size()) }
    }

    /// The elements from an index on along a dimension.
    ///
    /// # Safety
    /// The index is inside the view's shape.
    #[inline(always)]
    pub unsafe fn line(&self, index: [usize; 4], dimension: usize) -> Line {
        // SAFETY: passed on.
        Line::new(unsafe { self.at(index) }, self.dtype, self.strides[dimension])
    }
}

/// One sequence of a call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Sequence {
    /// The number of its first unit of work. The entry behind the last sequence counts all units.
    pub first_unit: usize,
    /// Its first query among the tokens.
    pub query_start: usize,
    /// Its queries.
    pub query_len: usize,
    /// Its first key, where keys are dense.
    pub kv_start: usize,
    /// Its keys.
    pub kv_len: usize,
}

/// Query rows of one head of keys: rows count tokens and, within each, the heads that share the keys.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// The sequence's number.
    pub index: usize,
    pub sequence: Sequence,
    pub head: usize,
    pub first_row: usize,
    pub rows: usize,
}

impl Sequence {
    /// The keys that query `token` of this sequence sees, if no mask forbids them. Neither end falls as `token` rises.
    pub fn visible(&self, fixed: &AttentionStatic, token: usize) -> (usize, usize) {
        let (len, far) = (self.kv_len as i64, i64::from(i32::MAX));
        let position = len - self.query_len as i64 + token as i64;
        let window = fixed.window.map(|w| i64::try_from(w).unwrap_or(far).min(far));
        let end = match window {
            _ if fixed.causal => position + 1,
            Some(window) => position + window,
            None => len,
        };
        let end = end.clamp(0, len);
        let start = window.map_or(0, |window| position + 1 - window).clamp(0, end);
        (start as usize, end as usize)
    }

    /// The first key that query `token` sees in the full dtype; 0 where there is no other. It does not fall as `token`
    /// rises.
    pub fn old_before(&self, fixed: &AttentionStatic, token: usize) -> usize {
        let position = (self.kv_len + token).checked_sub(self.query_len);
        fixed.old.zip(position).map_or(0, |(old, position)| old.before(position))
    }

    /// The first query that sees a tile as codes, where there are any; the number of queries if none does.
    pub fn first_query_of_old(&self, old: OldKv, tile: usize) -> usize {
        // The first query with `position + 1 - recent` at the tile's end.
        let behind = (tile + TILE - 1 + self.query_len).saturating_add(old.recent);
        behind.saturating_sub(self.kv_len).min(self.query_len)
    }

    /// The keys that any of its queries sees in the full dtype, and the keys that any sees as codes.
    pub fn reach(&self, fixed: &AttentionStatic) -> [(usize, usize); 2] {
        let Some(last) = self.query_len.checked_sub(1) else { return [(0, 0); 2] };
        let (from, to) = (self.visible(fixed, 0).0, self.visible(fixed, last).1);
        [(from.max(self.old_before(fixed, 0)), to), (from, to.min(self.old_before(fixed, last)))]
    }
}

/// Query rows (tokens times the heads that share keys) of a unit. Packing a tile of keys costs about as much as multiplying
/// it with six rows: a fifteenth of the time of 96 rows.
const UNIT_ROWS: RangeInclusive<usize> = 96..=288;
/// Units for each thread, where rows allow it: fewer leave threads idle at the end.
const UNITS_PER_THREAD: usize = 8;
/// Partial results of groups beyond this many bytes are not worth the threads they would occupy.
const MOST_PARTIALS: usize = 64 << 20;

/// How an arithmetic packs its operands, and how many rows it multiplies in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    /// Elements that are multiplied at once.
    pub pair: usize,
    /// Bytes of a packed element.
    pub element: usize,
    /// Query rows of a block, at most [`LANES`].
    pub block_rows: usize,
}

/// The division of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionPlan {
    /// Query rows of a unit.
    pub rows: usize,
    /// Query heads per head of keys.
    pub group: usize,
    /// Heads of keys.
    pub num_kv_heads: usize,
    /// Groups of keys that are separate tasks, merged afterwards; `None` where a unit does all of them.
    pub split: Option<usize>,
    /// Elements of a packed query or key.
    pub depth: usize,
    /// Elements of an accumulator.
    pub width: usize,
    partial_bytes: usize,
    packing: Packing,
    sequences: usize,
}

/// f32 values of a group's partial result: the maximum in a line of its own, sixteen sums, the accumulator.
const PARTIAL_HEAD: usize = 2 * LANES;

impl AttentionPlan {
    /// Divides a call among `threads` threads. Results do not depend on the division.
    pub fn new(packing: Packing, fixed: &AttentionStatic, call: &AttentionDynamic, threads: usize) -> Self {
        let group = fixed.group();
        let all_rows = call.tokens.saturating_mul(fixed.num_heads);
        let shared_out = all_rows / threads.saturating_mul(UNITS_PER_THREAD).max(1);
        let whole = shared_out / packing.block_rows * packing.block_rows;
        let most = whole.clamp(*UNIT_ROWS.start(), *UNIT_ROWS.end());
        let rows = call.max_query.saturating_mul(group).clamp(1, most);
        let width = fixed.head_dim.checked_next_multiple_of(LANES).unwrap_or(usize::MAX);
        let units = (call.tokens.saturating_mul(group) / rows).saturating_add(call.sequences);
        let units = units.saturating_mul(fixed.num_kv_heads);
        let groups = call.max_kv.div_ceil(GROUP);
        let useful = groups > 1 && threads > 1 && units < 4 * threads;
        let bytes = all_rows
            .checked_mul(groups)
            .and_then(|n| n.checked_mul(PARTIAL_HEAD.saturating_add(width).saturating_mul(size_of::<f32>())));
        let bytes = bytes.filter(|_| useful).map(whole_lines);
        let split = bytes.is_some_and(|bytes| bytes <= MOST_PARTIALS);
        Self {
            rows,
            group,
            num_kv_heads: fixed.num_kv_heads,
            split: split.then_some(groups),
            // Held even where there are too many: the workspace of a call is then enough for any with fewer keys.
            partial_bytes: if useful { bytes.unwrap_or(MOST_PARTIALS).min(MOST_PARTIALS) } else { 0 },
            depth: fixed.head_dim.checked_next_multiple_of(LANES * packing.pair).unwrap_or(usize::MAX),
            width,
            packing,
            sequences: call.sequences,
        }
    }

    /// Units of one head of keys in a sequence of `query_len` queries.
    pub fn units_per_head(&self, query_len: usize) -> usize {
        (query_len * self.group).div_ceil(self.rows)
    }

    /// Units of a sequence of `query_len` queries.
    pub fn units(&self, query_len: usize) -> usize {
        self.units_per_head(query_len) * self.num_kv_heads
    }

    /// Bytes of one worker's scratch.
    fn scratch(&self) -> usize {
        self.scratch_parts().into_iter().fold(0, usize::saturating_add)
    }

    /// Bytes of each field of [`Scratch`].
    fn scratch_parts(&self) -> [usize; 11] {
        let part =
            |[rows, width]: [usize; 2], size: usize| whole_lines(rows.saturating_mul(width).saturating_mul(size));
        let (f32s, elements) = (|shape| part(shape, size_of::<f32>()), |shape| part(shape, self.packing.element));
        let state = [f32s([self.rows, 1]), f32s([self.rows, LANES]), f32s([self.rows, self.width])];
        [
            elements([TILE, self.depth]),
            elements([TILE, self.width]),
            elements([self.rows, self.depth]),
            elements([self.packing.block_rows, TILE]),
            f32s([self.packing.block_rows, TILE]),
            state[0],
            state[1],
            state[2],
            state[0],
            state[1],
            state[2],
        ]
    }

    fn sequence_bytes(&self) -> usize {
        whole_lines(self.sequences.saturating_add(1).saturating_mul(size_of::<Sequence>()))
    }

    /// f32 values of a partial result.
    pub fn partial_len(&self) -> usize {
        PARTIAL_HEAD + self.width
    }

    /// Bytes of workspace for `threads` threads.
    pub fn bytes(&self, threads: usize) -> usize {
        let workers = threads.saturating_mul(self.scratch());
        (CACHE_LINE + self.partial_bytes).saturating_add(self.sequence_bytes()).saturating_add(workers)
    }

    /// The workspace of a launch, divided.
    ///
    /// # Errors
    /// A workspace that is missing or too small.
    pub fn workspace(&self, launch: &Launch<'_>, threads: usize) -> Result<Workspace> {
        let base = launch.host_workspace(self.bytes(threads))?;
        let start = base.wrapping_add(base.align_offset(CACHE_LINE));
        Ok(Workspace {
            sequences: start.cast(),
            partials: start.wrapping_add(self.sequence_bytes()).cast(),
            scratch: start.wrapping_add(self.sequence_bytes() + self.partial_bytes),
        })
    }
}

/// A launch's workspace.
#[derive(Clone, Copy)]
pub(super) struct Workspace {
    /// `sequences + 1` values.
    pub sequences: *mut Sequence,
    /// Partial results `[token · num_heads + head, group, partial_len]`.
    pub partials: *mut f32,
    scratch: *mut u8,
}

/// One worker's scratch.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// A packed tile of keys.
    pub keys: *mut u8,
    /// A packed tile of values.
    pub values: *mut u8,
    /// Packed queries `[rows, depth]`.
    pub queries: *mut u8,
    /// Packed weights of a block of rows, `[block_rows, TILE]`.
    pub weights: *mut u8,
    /// Scores of a block of rows, `[block_rows, TILE]`.
    pub scores: *mut f32,
    /// State of the current group.
    pub group: SoftmaxState,
    /// State of all groups before it.
    pub total: SoftmaxState,
}

/// The online softmax of each row: maximum `[rows]`, sixteen partial sums `[rows, LANES]`, accumulator `[rows, width]`.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxState {
    pub max: *mut f32,
    pub sum: *mut f32,
    pub acc: *mut f32,
}

impl SoftmaxState {
    /// The state of one row.
    ///
    /// # Safety
    /// The state has the row, and accumulators of `width` values.
    #[inline(always)]
    pub unsafe fn row(&self, row: usize, width: usize) -> Self {
        // SAFETY: passed on.
        unsafe { Self { max: self.max.add(row), sum: self.sum.add(row * LANES), acc: self.acc.add(row * width) } }
    }
}

impl Workspace {
    /// The scratch of a worker below the number of threads that the workspace was made for.
    pub fn scratch(&self, plan: &AttentionPlan, worker: usize) -> Scratch {
        let mut at = self.scratch.wrapping_add(worker * plan.scratch());
        let [a, b, c, d, e, f, g, h, i, j, k] = plan.scratch_parts().map(|bytes| {
            let part = at;
            at = at.wrapping_add(bytes);
            part
        });
        Scratch {
            keys: a,
            values: b,
            queries: c,
            weights: d,
            scores: e.cast(),
            group: SoftmaxState { max: f.cast(), sum: g.cast(), acc: h.cast() },
            total: SoftmaxState { max: i.cast(), sum: j.cast(), acc: k.cast() },
        }
    }
}

/// The block table, for addressing.
#[derive(Clone, Copy)]
pub(super) struct BlockTable {
    ids: Strided,
    block_size: usize,
}

/// Contiguous keys of a sequence: their block, the slot of the first, and their number.
pub(super) struct BlockRun {
    pub id: usize,
    pub slot: usize,
    pub n: usize,
}

impl BlockTable {
    /// The block of `sequence` that holds key `block · block_size`.
    ///
    /// # Safety
    /// [`read`] found the block in the table.
    #[inline(always)]
    pub unsafe fn block(&self, sequence: usize, block: usize) -> usize {
        // SAFETY: passed on; the table is u32.
        unsafe { self.ids.at([sequence, block, 0, 0]).cast::<u32>().read() as usize }
    }

    /// The keys from `key` on, up to `to`, that lie in its block.
    ///
    /// # Safety
    /// [`read`] found the block of the key in the table.
    pub unsafe fn run(&self, sequence: usize, key: usize, to: usize) -> BlockRun {
        let (block, slot) = (key / self.block_size, key % self.block_size);
        // SAFETY: passed on.
        let id = unsafe { self.block(sequence, block) };
        BlockRun { id, slot, n: (self.block_size - slot).min(to - key) }
    }

    /// Tokens of a block.
    #[inline(always)]
    pub fn block_size(&self) -> usize {
        self.block_size
    }
}

/// Reads a call's sequences into `out` (one more than there are), and checks everything that addresses are made of.
/// Returns the block tables of keys in the full dtype and of old keys, if keys are paged.
///
/// # Errors
/// Query starts that do not rise from 0 to the number of tokens, lengths beyond the bounds of the call or the keys
/// that there are, a causal sequence with more queries than keys, a block that is not in the cache.
///
/// # Safety
/// The operands have passed `check` for this call; `out` is writable for `sequences + 1` values.
pub(super) unsafe fn read(
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    plan: &AttentionPlan,
    operands: Operands<'_>,
    out: *mut Sequence,
) -> Result<[Option<BlockTable>; 2]> {
    let name = Attention::NAME;
    let refused = |reason| Err(refuse(name, reason));
    let (starts, lengths) = (operands.input(name, QUERY_START, "")?, operands.input(name, KV_LEN, "")?);
    let keys = operands.input(name, K, "k")?;
    let dense = matches!(fixed.kv_source, KvSource::Dense);
    let there = keys.shape().first().copied().unwrap_or(0);
    let columns = operands.optional(MASK).and_then(|m| m.shape().last().copied()).unwrap_or(i32::MAX as usize);
    let (starts, lengths) = (Strided::new(starts)?, Strided::new(lengths)?);
    // SAFETY: `check` saw `sequences + 1` i32 starts and `sequences` i32 lengths.
    let read = |view: &Strided, at: usize| i64::from(unsafe { view.at([at, 0, 0, 0]).cast::<i32>().read() });
    let tables = Blocks::of(fixed, &operands)?;
    let (mut units, mut kv_start, mut start) = (0, 0, read(&starts, 0));
    if start != 0 {
        return refused(format!("query_start begins with {start}, not 0"));
    }
    for s in 0..call.sequences {
        let (end, kv_len) = (read(&starts, s + 1), read(&lengths, s));
        let query_len = end - start;
        if query_len < 0 || end > call.tokens as i64 || query_len > call.max_query as i64 {
            return refused(format!(
                "query_start of sequence {s} is {start}..{end}, beyond {} tokens or max_query {}",
                call.tokens, call.max_query
            ));
        }
        if kv_len < 0 || kv_len > call.max_kv as i64 || kv_len > columns as i64 {
            return refused(format!("kv_len of sequence {s} is {kv_len}, beyond max_kv {}", call.max_kv));
        }
        if fixed.causal && query_len > kv_len {
            return refused(format!("sequence {s} has {query_len} queries over {kv_len} keys, but is causal"));
        }
        let sequence = Sequence {
            first_unit: units,
            query_start: start as usize,
            query_len: query_len as usize,
            kv_start,
            kv_len: kv_len as usize,
        };
        // SAFETY: `out` has `sequences + 1` places.
        unsafe { out.add(s).write(sequence) };
        if dense {
            kv_start += sequence.kv_len;
            if kv_start > there {
                return refused(format!("kv_len sums to {kv_start} at sequence {s}, of {there} keys"));
            }
        }
        for (table, reach) in tables.iter().zip(sequence.reach(fixed)) {
            table.map_or(Ok(()), |table| table.check(s, reach))?;
        }
        units += plan.units(sequence.query_len);
        start = end;
    }
    if start != call.tokens as i64 {
        return refused(format!("query_start ends with {start}, not the {} tokens", call.tokens));
    }
    // SAFETY: `out` has `sequences + 1` places.
    unsafe {
        out.add(call.sequences).write(Sequence { first_unit: units, query_start: 0, query_len: 0, kv_start, kv_len: 0 })
    };
    let [full, old] = tables.map(|blocks| blocks.map(|blocks| blocks.table()).transpose());
    Ok([full?, old?])
}

/// A block table as the caller gave it, and the number of blocks in the cache.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    ids: &'a View<'a>,
    name: &'static str,
    block_size: usize,
    blocks: usize,
}

impl<'a> Blocks<'a> {
    /// The table of the cache, and of old tokens where they have a cache of their own; none of dense keys.
    fn of(fixed: &AttentionStatic, operands: &'a Operands<'a>) -> Result<[Option<Self>; 2]> {
        let KvSource::Paged { block_size } = fixed.kv_source else { return Ok([None; 2]) };
        let of = |table: (usize, &'static str), keys: (usize, &str)| {
            let blocks = operands.input(Attention::NAME, keys.0, keys.1)?.shape().first().copied().unwrap_or(0);
            let ids = operands.input(Attention::NAME, table.0, table.1)?;
            Ok::<_, crate::Error>(Self { ids, name: table.1, block_size, blocks })
        };
        let old = || of((OLD_BLOCK_TABLE, "old_block_table"), (OLD_K, "old_k"));
        Ok([Some(of((BLOCK_TABLE, "block_table"), (K, "k"))?), fixed.old.map(|_| old()).transpose()?])
    }

    fn table(&self) -> Result<BlockTable> {
        Ok(BlockTable { ids: Strided::new(self.ids)?, block_size: self.block_size })
    }

    /// Checks the blocks that hold the keys `reach` of a sequence.
    fn check(&self, s: usize, reach: (usize, usize)) -> Result<()> {
        if reach.0 >= reach.1 {
            return Ok(());
        }
        let &Self { name, block_size, blocks, .. } = self;
        let (first, last) = (reach.0 / block_size, (reach.1 - 1) / block_size);
        let columns = self.ids.shape().get(1).copied().unwrap_or(0);
        if last >= columns {
            let keys = reach.1;
            return Err(refuse(
                Attention::NAME,
                format!("sequence {s} has {keys} keys in {columns} blocks of {block_size} of {name}"),
            ));
        }
        let ids = Strided::new(self.ids)?;
        for b in first..=last {
            // SAFETY: `s` and `b` are inside the table's shape, and it holds u32.
            let id = unsafe { ids.at([s, b, 0, 0]).cast::<u32>().read() };
            if id as usize >= blocks {
                return Err(refuse(Attention::NAME, format!("{name}[{s}, {b}] is {id}, of {blocks} blocks")));
            }
        }
        Ok(())
    }
}

/// Keys and values of one dtype, with the block table and scales that they have.
#[derive(Clone, Copy)]
pub(super) struct KvOperands {
    k: Strided,
    v: Strided,
    /// The block table, where they are paged.
    table: Option<BlockTable>,
    scaled: bool,
    head_dim: usize,
}

/// The keys of one tile that some rows of a unit see in one dtype.
#[derive(Clone, Copy)]
pub(super) struct TilePart<'a> {
    /// The tile's first key.
    pub tile: usize,
    /// The rows, from the first to the one behind the last.
    pub rows: (usize, usize),
    /// The keys of the tile that any of them sees.
    pub keys: (usize, usize),
    pub source: &'a KvOperands,
}

/// The scales of a tile's keys and values, where they have any.
pub(super) struct Scales {
    pub keys: [f32; TILE],
    pub values: [f32; TILE],
}

impl Scales {
    /// Returns true if all scales of values are finite.
    pub fn has_finite_values(&self) -> bool {
        self.values.iter().all(|x| x.is_finite())
    }
}

impl KvOperands {
    /// The operands `k` and `v` of `dtype`.
    ///
    /// # Errors
    /// Fails for memory that the host cannot read.
    pub fn new([k, v]: [&View<'_>; 2], table: Option<BlockTable>, head_dim: usize, dtype: DType) -> Result<Self> {
        let scaled = PagedLayout::has_scales(dtype);
        let operand = |view: &View<'_>| match scaled {
            true => Strided::codes(view, head_dim, dtype),
            false => Strided::new(view),
        };
        Ok(Self { k: operand(k)?, v: operand(v)?, table, scaled, head_dim })
    }

    /// Finds where the keys and values of a part of a tile lie.
    ///
    /// # Safety
    /// The part is of these operands and of the unit, whose sequence was read by [`read`].
    pub unsafe fn locate(&self, unit: &Unit, part: &TilePart<'_>, at: &mut Located) {
        at.bytes = self.head_dim * self.k.dtype.size();
        let [keys, values] = &mut at.rows;
        let (tile, (from, to)) = (part.tile, part.keys);
        for rows in [&mut *keys, &mut *values] {
            rows[..from - tile].fill(std::ptr::null());
            rows[to - tile..].fill(std::ptr::null());
        }
        debug_assert!(tile <= from && from <= to && to <= tile + TILE);
        let Some(table) = self.table else {
            for key in from..to {
                let token = unit.sequence.kv_start + key;
                // SAFETY: `read` has seen that all sequences' keys are inside the operand.
                unsafe {
                    keys[key - tile] = self.k.at([token, unit.head, 0, 0]);
                    values[key - tile] = self.v.at([token, unit.head, 0, 0]);
                }
            }
            return;
        };
        let mut key = from;
        while key < to {
            // SAFETY: `read` has checked the blocks of all visible keys.
            unsafe {
                let BlockRun { id, slot, n } = table.run(unit.index, key, to);
                for (operand, rows) in [(&self.k, &mut *keys), (&self.v, &mut *values)] {
                    let step = operand.strides[2] * operand.dtype.size();
                    let mut row = operand.at([id, unit.head, slot, 0]);
                    for to in &mut rows[key - tile..][..n] {
                        *to = row;
                        row = row.wrapping_add(step);
                    }
                    if self.scaled {
                        simd::prefetch(scales_of_run(operand, unit, table, slot, id), Reach::Near);
                    }
                }
                key += n;
            }
        }
    }

    /// The rows of keys that were located.
    #[inline(always)]
    pub fn keys<'r>(&self, at: &'r Located) -> TileRows<'r> {
        self.rows(&at.rows[0], &self.k)
    }

    /// The rows of values that were located.
    #[inline(always)]
    pub fn values<'r>(&self, at: &'r Located) -> TileRows<'r> {
        self.rows(&at.rows[1], &self.v)
    }

    fn rows<'r>(&self, ptrs: &'r [*const u8; TILE], operand: &Strided) -> TileRows<'r> {
        let last = if self.table.is_some() { 3 } else { 2 };
        TileRows { ptrs, dtype: operand.dtype, step: operand.strides[last], n: self.head_dim }
    }

    /// Reads the scales of the part's keys and values. Keys outside the part get zeros, like their weights.
    ///
    /// # Safety
    /// The part is one of these operands and of the unit, whose sequence was read by [`read`].
    pub unsafe fn scales(&self, unit: &Unit, part: &TilePart<'_>) -> Option<Scales> {
        let table = self.table.filter(|_| self.scaled)?;
        let mut scales = Scales { keys: [0.0; TILE], values: [0.0; TILE] };
        let (mut key, to) = part.keys;
        while key < to {
            // SAFETY: `read` has checked the blocks of all visible keys, and each has as many scales as slots.
            unsafe {
                let BlockRun { id, slot, n } = table.run(unit.index, key, to);
                for (operand, scales) in [(&self.k, &mut scales.keys), (&self.v, &mut scales.values)] {
                    let from = scales_of_run(operand, unit, table, slot, id);
                    let to = scales.as_mut_ptr().add(key - part.tile);
                    std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), n * PagedLayout::SCALE_BYTES);
                }
                key += n;
            }
        }
        Some(scales)
    }
}

/// The address of the scales of a block's slots from `slot` on.
///
/// # Safety
/// The block is in the cache and has the slot.
unsafe fn scales_of_run(of: &Strided, unit: &Unit, table: BlockTable, slot: usize, id: usize) -> *const u8 {
    // SAFETY: behind the codes of a head of a block lie their scales.
    unsafe { of.at([id, unit.head, table.block_size(), 0]).add(slot * PagedLayout::SCALE_BYTES) }
}

/// A call's state: what all its tasks share.
pub(super) struct AttentionCall<'a> {
    pub fixed: &'a AttentionStatic,
    pub plan: AttentionPlan,
    pub workspace: Workspace,
    sequences: usize,
    pub q: Strided,
    /// Keys and values in the full dtype.
    full: KvOperands,
    /// The old keys and values as codes, if the problem has them.
    old: Option<KvOperands>,
    pub o: Strided,
    /// Strides of head, token and key.
    pub mask: Option<Strided>,
    /// f32 by head of queries.
    sinks: Option<Strided>,
    pub kind: TaskKind,
}

/// The work of one task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// A unit over all its keys.
    Whole,
    /// A unit over one group of keys, to a partial result.
    Group,
    /// The merge of a unit's partial results.
    Merge,
}

// SAFETY: the addresses are of operands that live as long as the launch. Tasks read inputs, write rows of the output
// (or partial results) that are theirs alone, and scratch that is their worker's alone.
unsafe impl Sync for AttentionCall<'_> {}

impl<'a> AttentionCall<'a> {
    /// The state of a call of `sequences` sequences, whose contents were read into the workspace.
    ///
    /// # Errors
    /// Operands that are missing or not on the host.
    pub(super) fn new(
        fixed: &'a AttentionStatic,
        plan: AttentionPlan,
        workspace: Workspace,
        sequences: usize,
        [table, old_table]: [Option<BlockTable>; 2],
        operands: Operands<'_>,
    ) -> Result<Self> {
        let input = |at, name| operands.input(Attention::NAME, at, name);
        let old = match fixed.old {
            Some(old) => Some(KvOperands::new(
                [input(OLD_K, "old_k")?, input(OLD_V, "old_v")?],
                old_table,
                fixed.head_dim,
                old.dtype,
            )?),
            None => None,
        };
        let mask = operands.optional(MASK).filter(|_| fixed.mask.is_some());
        let heads = mask.is_some_and(|m| m.shape().len() == 3);
        let mask = mask.map(Strided::new).transpose()?;
        Ok(Self {
            fixed,
            plan,
            workspace,
            sequences,
            q: Strided::new(input(Q, "q")?)?,
            full: KvOperands::new([input(K, "k")?, input(V, "v")?], table, fixed.head_dim, fixed.kv)?,
            old,
            o: Strided::new(operands.output(Attention::NAME, O, "o")?)?,
            mask: mask.map(|m| if heads { m } else { m.broadcast() }),
            sinks: operands.optional(SINKS).filter(|_| fixed.sinks).map(Strided::new).transpose()?,
            kind: TaskKind::Whole,
        })
    }

    /// Units of work.
    pub(super) unsafe fn units(&self) -> usize {
        // SAFETY: `read` has written one sequence more than there are.
        unsafe { (*self.workspace.sequences.add(self.sequences)).first_unit }
    }

    /// The unit of a number. Later rows come first: in causal problems they have the most keys, and long tasks at the end
    /// would leave threads idle.
    pub(super) unsafe fn unit(&self, number: usize) -> Unit {
        // SAFETY: `read` has written `sequences + 1` sequences with rising first units.
        unsafe {
            let all = std::slice::from_raw_parts(self.workspace.sequences, self.sequences);
            let s = all.partition_point(|s| s.first_unit <= number) - 1;
            let sequence = all[s];
            let per_head = self.plan.units_per_head(sequence.query_len);
            let local = number - sequence.first_unit;
            let first_row = (per_head - 1 - local % per_head) * self.plan.rows;
            let rows = (sequence.query_len * self.plan.group - first_row).min(self.plan.rows);
            Unit { index: s, sequence, head: local / per_head, first_row, rows }
        }
    }

    /// The keys that a row of the unit sees, masks aside.
    pub(super) fn keys_of_row(&self, unit: &Unit, row: usize) -> (usize, usize) {
        unit.sequence.visible(self.fixed, (unit.first_row + row) / self.plan.group)
    }

    /// The keys that any row of the unit sees.
    pub(super) fn keys_of(&self, unit: &Unit) -> (usize, usize) {
        (self.keys_of_row(unit, 0).0, self.keys_of_row(unit, unit.rows - 1).1)
    }

    /// The parts of tiles that hold a unit's keys `from..to`, in order.
    pub(super) fn tile_parts<'u>(&'u self, unit: &'u Unit, from: usize, to: usize) -> TileParts<'u> {
        TileParts { call: self, unit, keys: (from, to), tile: from / TILE * TILE, old_next: false }
    }

    /// The unit's keys `from..to` that a tile holds in the full dtype, or as codes.
    fn tile_part(&self, unit: &Unit, (from, to): (usize, usize), tile: usize, old: bool) -> Option<TilePart<'_>> {
        let (from, to) = (from.max(tile), to.min(tile + TILE));
        let (Some(codes), Some(form)) = (&self.old, self.fixed.old) else {
            return (!old).then_some(TilePart { tile, rows: (0, unit.rows), keys: (from, to), source: &self.full });
        };
        let query = unit.sequence.first_query_of_old(form, tile);
        let row = (query * self.plan.group).saturating_sub(unit.first_row).min(unit.rows);
        let (rows, source) = if old { ((row, unit.rows), codes) } else { ((0, row), &self.full) };
        if rows.0 >= rows.1 {
            return None;
        }
        let (first, behind) = (self.keys_of_row(unit, rows.0).0, self.keys_of_row(unit, rows.1 - 1).1);
        let keys = (from.max(first), to.min(behind));
        (keys.0 < keys.1).then_some(TilePart { tile, rows, keys, source })
    }

    /// Token (among all) and head (of queries) of a row.
    pub(super) fn token_and_head(&self, unit: &Unit, row: usize) -> (usize, usize) {
        let row = unit.first_row + row;
        let (token, in_group) = (row / self.plan.group, row % self.plan.group);
        (unit.sequence.query_start + token, unit.head * self.plan.group + in_group)
    }

    /// The sink's logit of a head of queries.
    pub(super) fn sink(&self, head: usize) -> Option<f32> {
        // SAFETY: `check` saw an f32 for each head.
        self.sinks.map(|sinks| unsafe { sinks.at([head, 0, 0, 0]).cast::<f32>().read_unaligned() })
    }

    pub(super) unsafe fn reset(&self, state: &SoftmaxState, rows: usize) {
        // SAFETY: the state has room for the rows.
        unsafe {
            for r in 0..rows {
                *state.max.add(r) = f32::NEG_INFINITY;
            }
            state.sum.write_bytes(0, rows * LANES);
            state.acc.write_bytes(0, rows * self.plan.width);
        }
    }
}

/// The parts of tiles that hold some keys of a unit: in each tile keys in the full dtype first, then keys as codes.
pub(super) struct TileParts<'u> {
    call: &'u AttentionCall<'u>,
    unit: &'u Unit,
    keys: (usize, usize),
    /// The tile of the next part.
    tile: usize,
    /// True if the next part holds codes.
    old_next: bool,
}

impl<'u> Iterator for TileParts<'u> {
    type Item = TilePart<'u>;

    #[inline(never)]
    fn next(&mut self) -> Option<TilePart<'u>> {
        while self.tile < self.keys.1 {
            let (tile, old) = (self.tile, self.old_next);
            self.tile += if old { TILE } else { 0 };
            self.old_next = !old;
            let part = self.call.tile_part(self.unit, self.keys, tile, old);
            if part.is_some() {
                return part;
            }
        }
        None
    }
}

/// Addresses of a tile's rows; null where there is none.
pub(super) struct Located {
    /// Addresses of the keys, and of the values.
    pub rows: [[*const u8; TILE]; 2],
    /// Bytes of a row.
    pub bytes: usize,
}

impl Located {
    /// No addresses.
    pub const NONE: Self = Self { rows: [[std::ptr::null(); TILE]; 2], bytes: 0 };
}

/// Rows of keys or values of a tile: an address for each, null if it is absent, and their common dtype and strides.
#[derive(Clone, Copy)]
pub(super) struct TileRows<'a> {
    pub ptrs: &'a [*const u8; TILE],
    pub dtype: DType,
    /// Elements from one element of a row to the next, and the number of elements of a row.
    pub step: usize,
    pub n: usize,
}

impl TileRows<'_> {
    /// Row `i`; `None` where there is none.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<Line> {
        let ptr = self.ptrs[i];
        (!ptr.is_null()).then_some(Line::new(ptr, self.dtype, self.step))
    }

    /// Elements, a multiple of `of`, that follow one another in each of the `rows` rows from `first` on; 0 if a row is
    /// absent.
    pub fn whole(&self, first: usize, rows: usize, of: usize) -> usize {
        if self.step == 1 && self.ptrs[first..first + rows].iter().all(|p| !p.is_null()) { self.n / of * of } else { 0 }
    }

    /// Elements of a row behind the first `at`.
    #[inline(always)]
    pub fn left(&self, at: usize) -> usize {
        self.n.saturating_sub(at)
    }
}
