//! How a call is divided into units of work, and its workspace into scratch.

use super::products::{Products, block_rows};
use super::sequence::Sequence;
use super::{AttentionDynamic, AttentionStatic, GROUP, TILE};
use crate::simd::LANES;
use crate::{Launch, Result};

/// Query rows (tokens times the heads that share keys) of a unit. Packing a tile of keys costs about as much as six rows'
/// products with it: of 96 rows it is a fifteenth, of three times as many little.
const UNIT_ROWS: std::ops::RangeInclusive<usize> = 96..=288;
/// Units for each thread, where rows allow it: fewer leave threads idle at the end.
const UNITS_PER_THREAD: usize = 8;
/// Partial results of groups beyond this many bytes are not worth the threads they would occupy.
const MOST_PARTIALS: usize = 64 << 20;
/// Alignment of every part of the workspace: a cache line.
const LINE: usize = 64;

/// The division of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
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
    element: usize,
    block_rows: usize,
    sequences: usize,
}

/// f32 values of a group's partial result: the maximum in a line of its own, sixteen sums, the accumulator.
const PARTIAL_HEAD: usize = 2 * LANES;

/// Whole cache lines; the most there is where they are too many, which nothing has room for.
fn lines(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(LINE).unwrap_or(usize::MAX)
}

impl Plan {
    /// The division of a call among `threads` threads. What is computed does not depend on it.
    pub fn new<P: Products>(fixed: &AttentionStatic, call: &AttentionDynamic, threads: usize) -> Self {
        let group = fixed.group();
        let all_rows = call.tokens.saturating_mul(fixed.num_heads);
        let shared_out = all_rows / threads.saturating_mul(UNITS_PER_THREAD).max(1);
        let whole = shared_out / block_rows::<P>() * block_rows::<P>();
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
        let bytes = bytes.filter(|_| useful).map(lines);
        let split = bytes.is_some_and(|bytes| bytes <= MOST_PARTIALS);
        Self {
            rows,
            group,
            num_kv_heads: fixed.num_kv_heads,
            split: split.then_some(groups),
            // Held even where there are too many: the workspace of a call is then enough for any with fewer keys.
            partial_bytes: if useful { bytes.unwrap_or(MOST_PARTIALS).min(MOST_PARTIALS) } else { 0 },
            depth: fixed.head_dim.checked_next_multiple_of(LANES * P::PAIR).unwrap_or(usize::MAX),
            width,
            element: size_of::<P::E>(),
            block_rows: block_rows::<P>(),
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
        Scratch::<u8>::parts(self).into_iter().fold(0, usize::saturating_add)
    }

    fn sequence_bytes(&self) -> usize {
        lines(self.sequences.saturating_add(1).saturating_mul(size_of::<Sequence>()))
    }

    /// f32 values of a partial result.
    pub fn partial_len(&self) -> usize {
        PARTIAL_HEAD + self.width
    }

    /// Bytes of workspace for `threads` threads.
    pub fn bytes(&self, threads: usize) -> usize {
        let workers = threads.saturating_mul(self.scratch());
        (LINE + self.partial_bytes).saturating_add(self.sequence_bytes()).saturating_add(workers)
    }

    /// The workspace of a launch, divided.
    ///
    /// # Errors
    /// A workspace that is missing or too small.
    pub fn workspace(&self, launch: &Launch<'_>, threads: usize) -> Result<Workspace> {
        let base = launch.host_workspace(self.bytes(threads))?;
        let start = base.wrapping_add(base.align_offset(LINE));
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
pub(super) struct Scratch<E> {
    /// A tile of keys, packed for [`Products::scores`].
    pub keys: *mut E,
    /// A tile of values, packed for [`Products::weigh`].
    pub values: *mut E,
    /// Queries `[rows, depth]`.
    pub queries: *mut E,
    /// Weights of a block of rows, `[block_rows, TILE]`.
    pub weights: *mut E,
    /// Scores of a block of rows, `[block_rows, TILE]`.
    pub scores: *mut f32,
    /// State of the current group.
    pub group: State,
    /// State of all groups before it.
    pub total: State,
}

/// The online softmax of each row: maximum `[rows]`, sixteen partial sums `[rows, LANES]`, accumulator `[rows, width]`.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub max: *mut f32,
    pub sum: *mut f32,
    pub acc: *mut f32,
}

impl<E> Scratch<E> {
    fn parts(plan: &Plan) -> [usize; 11] {
        let part = |[rows, width]: [usize; 2], size: usize| lines(rows.saturating_mul(width).saturating_mul(size));
        let (f32s, elements) = (|shape| part(shape, size_of::<f32>()), |shape| part(shape, plan.element));
        let state = [f32s([plan.rows, 1]), f32s([plan.rows, LANES]), f32s([plan.rows, plan.width])];
        [
            elements([TILE, plan.depth]),
            elements([TILE, plan.width]),
            elements([plan.rows, plan.depth]),
            elements([plan.block_rows, TILE]),
            f32s([plan.block_rows, TILE]),
            state[0],
            state[1],
            state[2],
            state[0],
            state[1],
            state[2],
        ]
    }
}

impl Workspace {
    /// The scratch of a worker below the number of threads that the workspace was made for.
    pub fn scratch<E>(&self, plan: &Plan, worker: usize) -> Scratch<E> {
        debug_assert_eq!(size_of::<E>(), plan.element);
        let mut at = self.scratch.wrapping_add(worker * plan.scratch());
        let [a, b, c, d, e, f, g, h, i, j, k] = Scratch::<E>::parts(plan).map(|bytes| {
            let part = at;
            at = at.wrapping_add(bytes);
            part
        });
        Scratch {
            keys: a.cast(),
            values: b.cast(),
            queries: c.cast(),
            weights: d.cast(),
            scores: e.cast(),
            group: State { max: f.cast(), sum: g.cast(), acc: h.cast() },
            total: State { max: i.cast(), sum: j.cast(), acc: k.cast() },
        }
    }
}
