//! Slices of a checkpoint's tensors into packed weights.

use std::borrow::Cow;
use std::ops::Range;

use sinew_ops::layers::{SliceToPack, UnitSlice, WeightPacker};
use sinew_tensor::DType;

use super::sizes::check;
use super::{Loader, Part, widen};
use crate::Result;

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
    pub(super) fn fill(&mut self, mut packer: WeightPacker, parts: &[Part], k: usize) -> Result<WeightPacker> {
        let names: Vec<String> = parts.iter().map(Part::weight).collect();
        let stored = names
            .iter()
            .zip(parts)
            .map(|(name, part)| check(self.checkpoint, name, &part.shape(k)))
            .collect::<Result<Vec<_>>>()?;
        if parts.iter().any(|part| part.transposed) {
            return self.fill_columns(packer, parts, &names, &stored, k);
        }
        let checkpoint = self.checkpoint;
        self.pack_in_turns(&mut packer, &stored, k, |slice| {
            let ranges = slice.slice.rows.iter().map(|(part, rows)| {
                let (start, row_bytes) = (parts[*part].rows.start, k * stored[*part].size());
                (*part, (start + rows.start) * row_bytes..(start + rows.end) * row_bytes)
            });
            let ranges: Vec<(usize, Range<usize>)> = ranges.collect();
            let sources = ranges
                .iter()
                .map(|(part, range)| {
                    Ok(packable(checkpoint.tensor_slice(&names[*part], range.clone())?.bytes, stored[*part]))
                })
                .collect::<Result<Vec<_>>>()?;
            let rows: Vec<(&[u8], DType)> = sources.iter().map(|(bytes, dtype)| (&**bytes, *dtype)).collect();
            slice.pack(&rows)?;
            drop(sources);
            for (part, range) in ranges {
                checkpoint.release_slice(&names[part], range);
            }
            Ok(())
        })?;
        // A page that is touched maps those around it, of slices that were let go of before.
        for ((name, part), dtype) in names.iter().zip(parts).zip(&stored) {
            let row_bytes = k * dtype.size();
            checkpoint.release_slice(name, part.rows.start * row_bytes..part.rows.end * row_bytes);
        }
        Ok(packer)
    }

    /// [`Loader::fill`] from tensors `[k, n]`. A slice has values in all of their pages, so that a whole tensor is at
    /// hand until it is packed.
    fn fill_columns(
        &mut self,
        mut packer: WeightPacker,
        parts: &[Part],
        names: &[String],
        stored: &[DType],
        k: usize,
    ) -> Result<WeightPacker> {
        let checkpoint = self.checkpoint;
        let tensors = names
            .iter()
            .zip(stored)
            .map(|(name, &dtype)| Ok(packable(checkpoint.tensor(name)?.bytes, dtype)))
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
        for name in names {
            checkpoint.release_slice(name, 0..usize::MAX);
        }
        Ok(packer)
    }

    /// Has all slices packed by `pack`, which is given one at a time in each thread, and reports progress.
    fn pack_in_turns(
        &mut self,
        packer: &mut WeightPacker,
        stored: &[DType],
        k: usize,
        pack: impl Fn(SliceToPack<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let threads = self.ctx.host_threads();
        for slices in slices(packer, threads).chunks(SLICES_A_TURN * threads) {
            packer.pack_each(&self.ctx, slices, &pack)?;
            self.advance(bytes_of(slices, stored, k));
        }
        Ok(())
    }
}

/// A weight in slices for so many threads.
pub(super) fn slices(packer: &WeightPacker, threads: usize) -> Vec<UnitSlice> {
    packer.slices_for(threads, (AT_HAND_BYTES / threads).clamp(LEAST_SLICE, LARGEST_SLICE))
}

/// Bytes that a checkpoint has of slices of a weight, of whose parts it stores each in a dtype.
fn bytes_of(slices: &[UnitSlice], stored: &[DType], k: usize) -> usize {
    slices.iter().flat_map(|slice| &slice.rows).map(|(part, rows)| rows.len() * k * stored[*part].size()).sum()
}

/// Values in a dtype that can be packed: those of f64 as f32.
fn packable(bytes: Cow<'_, [u8]>, dtype: DType) -> (Cow<'_, [u8]>, DType) {
    if dtype != DType::F64 {
        return (bytes, dtype);
    }
    let values = widen::<8>(&bytes, |b| f64::from_le_bytes(b) as f32);
    (Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect()), DType::F32)
}
