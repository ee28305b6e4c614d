//! Slices of a checkpoint's tensors into packed weights.

use std::ops::Range;

use sinew_ops::layers::{SliceToPack, UnitSlice, WeightPacker};
use sinew_tensor::DType;

use super::stored::{Stored, check, common_blocks, packable};
use super::{Loader, Part};
use crate::Result;
use crate::quantized::BlockRows;

/// Bytes of the slices of a weight that are at hand together, a thread packing each, counted in f32: those of a bf16
/// file are half as large. Their pages are dropped before others are read, so that a weight is never in memory twice.
const AT_HAND_BYTES: usize = 16 << 20;
/// The largest slice.
const LARGEST_SLICE: usize = 4 << 20;
/// The least, where there are more threads than leave room for it: dropping the pages of smaller ones would take as long
/// as packing them.
const LEAST_SLICE: usize = 1 << 20;
/// Slices that a thread packs between two reports of progress, in which other work has its turn.
pub(super) const SLICES_A_TURN: usize = 4;

impl Loader<'_> {
    /// Packs matrices `[n, k]` slice by slice, and drops the pages of each.
    pub(super) fn fill(
        &mut self,
        mut packer: WeightPacker,
        parts: &[Part],
        stored: &[Stored],
        k: usize,
    ) -> Result<WeightPacker> {
        if parts.iter().any(|part| part.transposed) {
            return self.fill_columns(packer, parts, stored, k);
        }
        let checkpoint = self.checkpoint;
        let in_blocks = common_blocks(stored) == Some(packer.encoding());
        self.pack_in_turns(&mut packer, stored, k, |slice| {
            let rows = slice.slice.rows.iter().map(|(part, rows)| {
                let start = parts[*part].rows.start;
                (*part, start + rows.start..start + rows.end)
            });
            let rows: Vec<(usize, Range<usize>)> = rows.collect();
            if in_blocks {
                let blocks = rows.iter().map(|(part, rows)| stored[*part].blocks(checkpoint, rows.clone()));
                let blocks = blocks.collect::<Result<Vec<_>>>()?;
                slice.pack_codes(&blocks.iter().map(BlockRows::codes).collect::<Vec<_>>())?;
            } else {
                let floats =
                    rows.iter().map(|(part, rows)| stored[*part].floats(checkpoint, &parts[*part], rows.clone(), k));
                let floats = floats.collect::<Result<Vec<_>>>()?;
                let sources: Vec<(&[u8], DType)> = floats.iter().map(|(bytes, dtype)| (&**bytes, *dtype)).collect();
                slice.pack(&sources)?;
            }
            for (part, rows) in rows {
                stored[part].release(checkpoint, &parts[part], Some(rows), k);
            }
            Ok(())
        })?;
        // A page that is touched maps those around it, of slices that were let go of before.
        for (part, stored) in parts.iter().zip(stored) {
            stored.release(checkpoint, part, None, k);
        }
        Ok(packer)
    }

    /// [`Loader::fill`] from tensors `[k, n]`. A slice has values in all of their pages, so that a whole tensor is at
    /// hand until it is packed.
    fn fill_columns(
        &mut self,
        mut packer: WeightPacker,
        parts: &[Part],
        stored: &[Stored],
        k: usize,
    ) -> Result<WeightPacker> {
        let checkpoint = self.checkpoint;
        let tensors = parts
            .iter()
            .map(|part| {
                let dtype = check(checkpoint, &part.weight(), &part.shape(k))?;
                Ok(packable(checkpoint.tensor(&part.weight())?.bytes, dtype))
            })
            .collect::<Result<Vec<_>>>()?;
        self.pack_in_turns(&mut packer, stored, k, |slice| {
            let columns = slice.slice.rows.iter().map(|(part, rows)| {
                let ((bytes, dtype), part) = (&tensors[*part], &parts[*part]);
                let before = (part.rows.start + rows.start) * dtype.size();
                (bytes.get(before..).unwrap_or_default(), *dtype, part.of)
            });
            Ok(slice.pack_columns(&columns.collect::<Vec<_>>())?)
        })?;
        drop(tensors);
        for part in parts {
            checkpoint.release_slice(&part.weight(), 0..usize::MAX);
        }
        Ok(packer)
    }

    /// Has all slices packed by `pack`, which is given one at a time in each thread, and reports progress.
    fn pack_in_turns(
        &mut self,
        packer: &mut WeightPacker,
        stored: &[Stored],
        k: usize,
        pack: impl Fn(SliceToPack<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let row_bytes: Vec<usize> = stored.iter().map(|stored| stored.row_bytes(self.checkpoint, k)).collect();
        let threads = self.ctx.host_threads();
        for slices in slices(packer, threads).chunks(SLICES_A_TURN * threads) {
            packer.pack_each(&self.ctx, slices, &pack)?;
            self.advance(bytes_of(slices, &row_bytes));
        }
        Ok(())
    }
}

/// A weight in slices for so many threads.
pub(super) fn slices(packer: &WeightPacker, threads: usize) -> Vec<UnitSlice> {
    packer.slices_for(threads, (AT_HAND_BYTES / threads).clamp(LEAST_SLICE, LARGEST_SLICE))
}

/// Bytes that a checkpoint has of slices of a weight, of whose parts it has so many in each row.
fn bytes_of(slices: &[UnitSlice], row_bytes: &[usize]) -> usize {
    slices.iter().flat_map(|slice| &slice.rows).map(|(part, rows)| rows.len() * row_bytes[*part]).sum()
}
