//! The contents of a call that serve as indices: read and checked once, before anything relies on them.

use sinew_tensor::View;

use super::operand::Strided;
use super::plan::Plan;
use super::sequence::Sequence;
use super::{
    Attention, AttentionDynamic, AttentionStatic, BLOCK_TABLE, K, KV_LEN, KvSource, MASK, OLD_BLOCK_TABLE, OLD_K,
    QUERY_START,
};
use crate::operator::refuse;
use crate::{Operands, Operator, Result};

/// The block table, for addressing. Copied into the body of the kernel.
#[derive(Clone, Copy)]
pub(super) struct Table {
    ids: Strided,
    block_size: usize,
}

/// Keys of a sequence that lie one behind another: their block, the first one's slot, and how many.
pub(super) struct Run {
    pub id: usize,
    pub slot: usize,
    pub n: usize,
}

impl Table {
    /// The block of `sequence` that holds key `block · block_size`.
    ///
    /// # Safety
    /// The block was found to be in the table by [`read`].
    #[inline(always)]
    pub unsafe fn block(&self, sequence: usize, block: usize) -> usize {
        // SAFETY: passed on; the table is u32.
        unsafe { self.ids.at([sequence, block, 0, 0]).cast::<u32>().read() as usize }
    }

    /// The keys from `key` on, up to `to`, that lie in its block.
    ///
    /// # Safety
    /// As for [`Table::block`], for the block of the key.
    #[inline(always)]
    pub unsafe fn run(&self, sequence: usize, key: usize, to: usize) -> Run {
        let (block, slot) = (key / self.block_size, key % self.block_size);
        // SAFETY: passed on.
        let id = unsafe { self.block(sequence, block) };
        Run { id, slot, n: (self.block_size - slot).min(to - key) }
    }

    /// Tokens of a block.
    #[inline(always)]
    pub fn block_size(&self) -> usize {
        self.block_size
    }
}

/// Reads a call's sequences into `out` (one more than there are), and checks everything that addresses are made of.
/// Returns the block tables, if keys are paged: of those in the full dtype and of old ones.
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
    plan: &Plan,
    operands: Operands<'_>,
    out: *mut Sequence,
) -> Result<[Option<Table>; 2]> {
    let name = Attention::NAME;
    let (starts, lengths) = (operands.input(name, QUERY_START, "")?, operands.input(name, KV_LEN, "")?);
    let keys = operands.input(name, K, "k")?;
    let dense = matches!(fixed.kv_source, KvSource::Dense);
    let there = keys.shape().first().copied().unwrap_or(0);
    let columns = operands.optional(MASK).and_then(|m| m.shape().last().copied()).unwrap_or(i32::MAX as usize);
    let (starts, lengths) = (Strided::new(starts)?, Strided::new(lengths)?);
    // SAFETY: `check` saw `sequences + 1` i32 starts and `sequences` i32 lengths.
    let read = |view: &Strided, at: usize| i64::from(unsafe { view.at([at, 0, 0, 0]).cast::<i32>().read() });
    let tables = match fixed.kv_source {
        KvSource::Paged { block_size } => {
            let of = |table: (usize, &'static str), keys: (usize, &str)| {
                let blocks = operands.input(name, keys.0, keys.1)?.shape().first().copied().unwrap_or(0);
                Ok::<_, crate::Error>(Blocks {
                    ids: operands.input(name, table.0, table.1)?,
                    name: table.1,
                    block_size,
                    blocks,
                })
            };
            let old = || of((OLD_BLOCK_TABLE, "old_block_table"), (OLD_K, "old_k"));
            [Some(of((BLOCK_TABLE, "block_table"), (K, "k"))?), fixed.old.map(|_| old()).transpose()?]
        }
        KvSource::Dense => [None; 2],
    };
    let (mut units, mut kv_start, mut start) = (0, 0, read(&starts, 0));
    if start != 0 {
        return Err(refuse(Attention::NAME, format!("query_start begins with {start}, not 0")));
    }
    for s in 0..call.sequences {
        let (end, kv_len) = (read(&starts, s + 1), read(&lengths, s));
        let query_len = end - start;
        if query_len < 0 || end > call.tokens as i64 || query_len > call.max_query as i64 {
            return Err(refuse(
                Attention::NAME,
                format!(
                    "query_start of sequence {s} is {start}..{end}, beyond {} tokens or max_query {}",
                    call.tokens, call.max_query
                ),
            ));
        }
        if kv_len < 0 || kv_len > call.max_kv as i64 || kv_len > columns as i64 {
            return Err(refuse(
                Attention::NAME,
                format!("kv_len of sequence {s} is {kv_len}, beyond max_kv {}", call.max_kv),
            ));
        }
        if fixed.causal && query_len > kv_len {
            return Err(refuse(
                Attention::NAME,
                format!("sequence {s} has {query_len} queries over {kv_len} keys, but is causal"),
            ));
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
                return Err(refuse(
                    Attention::NAME,
                    format!("kv_len sums to {kv_start} at sequence {s}, of {there} keys"),
                ));
            }
        }
        for (table, reach) in tables.iter().zip(sequence.reach(fixed)) {
            table.map_or(Ok(()), |table| table.check(s, reach))?;
        }
        units += plan.units(sequence.query_len);
        start = end;
    }
    if start != call.tokens as i64 {
        return Err(refuse(Attention::NAME, format!("query_start ends with {start}, not the {} tokens", call.tokens)));
    }
    // SAFETY: `out` has `sequences + 1` places.
    unsafe {
        out.add(call.sequences).write(Sequence { first_unit: units, query_start: 0, query_len: 0, kv_start, kv_len: 0 })
    };
    let [full, old] = tables.map(|blocks| blocks.map(|blocks| blocks.table()).transpose());
    Ok([full?, old?])
}

/// A block table as it was given, with the blocks that there are.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    ids: &'a View<'a>,
    name: &'static str,
    block_size: usize,
    blocks: usize,
}

impl Blocks<'_> {
    fn table(&self) -> Result<Table> {
        Ok(Table { ids: Strided::new(self.ids)?, block_size: self.block_size })
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
