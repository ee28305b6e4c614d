//! Packed weights, which layers hold, and how they are packed slice by slice from rows as a file has them.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sinew_kernels::packed::{Encoding, Format, PackedShape, WeightRows, Weights};
use sinew_memory::{Buffer, SimdLevel, Team};
use sinew_tensor::{DType, Layout, Tensor};

use crate::error::refuse;
use crate::kept::no_format;
use crate::{Context, Error, Result};

/// A weight `[n, k]` packed for the kernels of its family; several matrices may be stacked along `n`. Or several
/// weights of one shape, one behind another: the experts of a mixture. A [`WeightPacker`] makes it.
#[derive(Debug)]
pub struct PackedWeight {
    packed: Tensor,
    shape: PackedShape,
    order: Option<Tensor>,
}

impl PackedWeight {
    /// What was packed.
    pub fn shape(&self) -> &PackedShape {
        &self.shape
    }

    /// The packed bytes.
    pub fn tensor(&self) -> &Tensor {
        &self.packed
    }

    /// The order in which it has its inputs, where that is another than that of the values which it is multiplied with:
    /// u32 `[groups, k]`, or `[k]` of one weight. See [`WeightPacker::ordered`].
    pub fn order(&self) -> Option<&Tensor> {
        self.order.as_ref()
    }

    /// Number of packed bytes, and of those of the order.
    pub fn bytes(&self) -> usize {
        super::bytes(&self.packed) + self.order.as_ref().map_or(0, super::bytes)
    }
}

/// Packs a weight, or several of one shape, unit by unit (panels of outputs, or rows), so that only a slice of it has
/// to be at hand in its unpacked form.
///
/// ```
/// use sinew_ops::Context;
/// use sinew_ops::layers::{WeightPacker, WeightRows};
/// use sinew_tensor::DType;
///
/// let ctx = Context::cpu()?;
/// let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let mut packer = WeightPacker::new(&ctx, DType::BF16, &[2], 2, false)?;
/// for slice in packer.slices(16 << 20) {
///     let (_, range) = &slice.rows[0];
///     let bytes = &bytes[range.start * 8..range.end * 8];
///     packer.pack(&ctx, &slice, &[WeightRows::from_bytes(bytes, DType::F32, range.len(), 2)?])?;
/// }
/// assert_eq!(packer.finish()?.shape().n, 2);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
#[derive(Debug)]
pub struct WeightPacker {
    buffer: Buffer,
    shape: PackedShape,
    /// Rows of each matrix.
    rows: Vec<usize>,
    /// A packed slice on the host, where the device's memory is not the host's.
    staged: Vec<u8>,
    /// Values packed along K, summed over units.
    packed: AtomicUsize,
    /// Whether rows that are rounded to blocks have one scale each.
    per_channel: bool,
    order: Option<Tensor>,
}

/// A run of units, and the rows that must be at hand to pack them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitSlice {
    units: Range<usize>,
    /// The weight that it is of, where there are several of one shape.
    pub group: usize,
    /// Matrices by number, counted through all groups, each with a range of its rows.
    pub rows: Vec<(usize, Range<usize>)>,
}

/// A run of units that [`WeightPacker::pack_each`] wants packed.
#[derive(Debug)]
pub struct SliceToPack<'a> {
    /// The run.
    pub slice: &'a UnitSlice,
    shape: PackedShape,
    per_channel: bool,
    team: &'a Team,
    level: SimdLevel,
    packed: &'a mut [u8],
    /// Counts what is packed: see [`WeightPacker::check_complete`].
    count: &'a AtomicUsize,
}

impl WeightPacker {
    /// Room for matrices of these numbers of rows, all `k` long, stacked, in the format in which the context's device
    /// keeps weights in `encoding`. With `gated` there are two, gate and up. The room is one to be filled before others
    /// are asked for: see [`Buffer::uninitialised_to_fill`].
    ///
    /// # Errors
    /// An encoding without a format, a gated weight that is not two matrices of one size, or out of memory.
    pub fn new(ctx: &Context, encoding: impl Into<Encoding>, rows: &[usize], k: usize, gated: bool) -> Result<Self> {
        Self::grouped(ctx, encoding, 1, rows, k, gated)
    }

    /// Room for `groups` such weights, one behind another: the experts of a mixture. The matrices of a slice are
    /// counted through: those of group `g` are `g · rows.len()` and the following. No slice has those of two groups.
    ///
    /// # Errors
    /// As for [`WeightPacker::new`].
    pub fn grouped(
        ctx: &Context,
        encoding: impl Into<Encoding>,
        groups: usize,
        rows: &[usize],
        k: usize,
        gated: bool,
    ) -> Result<Self> {
        if gated && (rows.len() != 2 || rows[0] != rows[1]) {
            let rows = first_few(rows);
            return Err(refuse("pack", format!("a gated weight wants gate and up of equal size, not {rows} rows")));
        }
        let n = rows.iter().try_fold(0usize, |n, &r| n.checked_add(r));
        let n = n.ok_or_else(|| refuse("pack", format!("{} rows are too many", first_few(rows))))?;
        Self::of_shape(ctx, ctx.packed_shape(encoding, groups, [n, k], gated)?, rows)
    }

    /// Room for a table `[rows, width]` as `dtype`, row after row on any device: see [`WeightPacker::finish_table`].
    ///
    /// # Errors
    /// A dtype without a format, or out of memory.
    pub fn table(ctx: &Context, dtype: DType, rows: usize, width: usize) -> Result<Self> {
        let format = Format::row_major(dtype).ok_or_else(|| no_format(ctx, dtype.into()))?;
        Self::of_shape(ctx, PackedShape { format, groups: 1, n: rows, k: width, gated: false }, &[rows])
    }

    fn of_shape(ctx: &Context, shape: PackedShape, rows: &[usize]) -> Result<Self> {
        // Not of a slab: a weight lives as long as its model, and a size class may be a quarter too large.
        let buffer = ctx.pool().uninitialised_apart_to_fill(shape.bytes(), "weights")?;
        let (rows, staged, packed) = (rows.to_vec(), Vec::new(), AtomicUsize::new(0));
        Ok(Self { buffer, shape, rows, staged, packed, per_channel: false, order: None })
    }

    /// The same, but floats that are rounded to blocks have one scale, and one zero point, for each row, which all of its
    /// groups repeat.
    pub fn per_channel(self, per_channel: bool) -> Self {
        Self { per_channel, ..self }
    }

    /// The same of rows whose values are given in another order, `order[i]` being the input that value `i` is multiplied
    /// with; of several weights one order after another. So the values that share a scale can lie side by side, where
    /// they are not those of inputs that do (GPTQ's act-order). Products read their inputs in that order.
    ///
    /// ```
    /// use sinew_ops::Context;
    /// use sinew_ops::layers::{WeightPacker, WeightRows};
    /// use sinew_tensor::DType;
    ///
    /// let ctx = Context::cpu()?;
    /// let bytes: Vec<u8> = [5.0f32, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let mut packer = WeightPacker::new(&ctx, DType::F32, &[1], 3, false)?.ordered(&ctx, &[2, 0, 1])?;
    /// let slices = packer.slices(16 << 20);
    /// packer.pack(&ctx, &slices[0], &[WeightRows::from_bytes(&bytes, DType::F32, 1, 3)?])?;
    /// let x = ctx.tensor(&[1.0f32, 10.0, 100.0], &[1, 3])?;
    /// let y = sinew_ops::linear(&x, &packer.finish()?).run(&ctx)?;
    /// assert_eq!(y.to_vec::<f32>()?, [543.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another number of inputs, one that is not there, or out of memory.
    pub fn ordered(self, ctx: &Context, order: &[u32]) -> Result<Self> {
        let PackedShape { groups, k, .. } = self.shape;
        let wrong = order.iter().find(|&&input| input as usize >= k);
        if Some(order.len()) != groups.checked_mul(k) || wrong.is_some() {
            let (len, named) = (order.len(), wrong.map(|input| format!(", input {input} among them")));
            let named = named.unwrap_or_default();
            return Err(refuse("pack", format!("an order of {len} inputs{named}, for {groups} weights of {k} inputs")));
        }
        let shape: &[usize] = if groups == 1 { &[k] } else { &[groups, k] };
        Ok(Self { order: Some(ctx.tensor_tagged("weights", order, shape)?), ..self })
    }

    /// Whether rows are given in another order.
    pub fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Values along K at whose multiples slices can be packed in strips; the largest number where they cannot: where a
    /// row has one scale, and where slices go to a device as soon as they are packed.
    pub fn strip_granule(&self) -> usize {
        if self.per_channel || self.buffer.host_ptr().is_none() {
            return usize::MAX;
        }
        self.shape.format.strip_granule()
    }

    /// The units in runs that need about `bytes` bytes of f32 rows each, or less.
    pub fn slices(&self, bytes: usize) -> Vec<UnitSlice> {
        self.slices_for(1, bytes)
    }

    /// The same for so many threads to share: of each group as many as each of them gets alike, and of like sizes.
    pub fn slices_for(&self, threads: usize, bytes: usize) -> Vec<UnitSlice> {
        let PackedShape { format, groups, n, k, gated } = self.shape;
        if self.buffer.is_empty() {
            return Vec::new();
        }
        let each = format.units(n, gated);
        let unit_bytes = format.outputs_per_unit(gated).saturating_mul(k).saturating_mul(DType::F32.size());
        let runs = each.div_ceil((bytes / unit_bytes.max(1)).max(1));
        let runs = runs.checked_next_multiple_of(threads.max(1)).map_or(each, |runs| runs.min(each));
        let slice = |group: usize, run: usize| {
            let units = run * each / runs..(run + 1) * each / runs;
            let mut rows = Vec::new();
            for stacked in format.unit_rows(units.clone(), n, gated) {
                self.split(stacked, group * self.rows.len(), &mut rows);
            }
            UnitSlice { units: group * each + units.start..group * each + units.end, group, rows }
        };
        (0..groups).flat_map(|group| (0..runs).map(move |run| slice(group, run))).collect()
    }

    /// Adds a range of a group's stacked rows as ranges of its matrices, the first of which has this number.
    fn split(&self, range: Range<usize>, first: usize, parts: &mut Vec<(usize, Range<usize>)>) {
        let mut before = 0;
        for (matrix, &rows) in self.rows.iter().enumerate() {
            let (start, end) = (range.start.max(before), range.end.min(before + rows));
            if start < end {
                parts.push((first + matrix, start - before..end - before));
            }
            before += rows;
        }
    }

    /// Packs one run of units from the rows of each of its matrices, with all threads.
    ///
    /// # Errors
    /// Other rows than those of the slice, or a failed device.
    pub fn pack(&mut self, ctx: &Context, slice: &UnitSlice, pieces: &[WeightRows<'_>]) -> Result<()> {
        self.pack_each(ctx, std::slice::from_ref(slice), |slice| slice.pack(pieces))
    }

    /// Packs runs of units, each by a thread of its own where there are several of both: `pack` is given each, and may
    /// fetch its rows, have them packed and let go of them. Runs are given in the order of their units. Until it
    /// returns, nobody else's kernels run on the team.
    ///
    /// # Errors
    /// The first of `pack`, runs that are out of order, or a failed device.
    pub fn pack_each<E: From<Error> + Send>(
        &mut self,
        ctx: &Context,
        slices: &[UnitSlice],
        pack: impl Fn(SliceToPack<'_>) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<(), E> {
        let PackedShape { format, k, gated, .. } = self.shape;
        let unit = format.unit_bytes(k, gated);
        let packing = Packing { shape: self.shape, per_channel: self.per_channel, count: &self.packed };
        if self.buffer.host_ptr().is_some() {
            let packed = self.buffer.as_mut_slice::<u8>().map_err(Error::from)?;
            return packing.pack(ctx, slices, 0, packed, &pack);
        }
        let threads = ctx.host_team().0.threads();
        // Only neighbours are uploaded together: bytes between other slices are not theirs to write.
        for slices in slices.chunk_by(|a, b| a.units.end == b.units.start).flat_map(|run| run.chunks(threads)) {
            let first = slices.first().map_or(0, |slice| slice.units.start * unit);
            let end = slices.last().map_or(first, |slice| slice.units.end * unit);
            self.staged.resize(end.saturating_sub(first), 0);
            packing.pack(ctx, slices, first, &mut self.staged, &pack)?;
            ctx.stream().upload(&self.staged, &mut self.buffer, first).map_err(Error::from)?;
        }
        Ok(())
    }

    /// Refuses a weight of which fewer values were packed than it has: the others would be whatever the memory held.
    fn check_complete(&self) -> Result<()> {
        let PackedShape { format, groups, n, k, gated } = self.shape;
        let units = format.units(n, gated).saturating_mul(groups);
        let packed = self.packed.load(Ordering::Relaxed);
        if packed >= units.saturating_mul(k) {
            return Ok(());
        }
        let missing = units - packed / k.max(1);
        Err(refuse("pack", format!("{missing} of {units} units were never packed; pack every slice before the end")))
    }

    /// The packed weight.
    ///
    /// # Errors
    /// A weight with slices that were never packed, or a size that overflows a layout.
    pub fn finish(self) -> Result<PackedWeight> {
        self.check_complete()?;
        let layout = Layout::contiguous(&[self.buffer.len()])?;
        Ok(PackedWeight { packed: Tensor::new(self.buffer, DType::U8, layout)?, shape: self.shape, order: self.order })
    }

    /// The rows of [`WeightPacker::table`] as a tensor `[rows, width]`.
    ///
    /// # Errors
    /// A weight that is not in rows, or in rows of another order, or with slices that were never packed.
    pub fn finish_table(self) -> Result<Tensor> {
        self.check_complete()?;
        let PackedShape { format, n, k, gated, .. } = self.shape;
        match format.dtype() {
            Some(dtype) if format.is_row_major() && !gated && self.order.is_none() => {
                Ok(Tensor::new(self.buffer, dtype, Layout::contiguous(&[n, k])?)?)
            }
            _ => Err(refuse("pack", format!("a weight in {} is no table", format.name()))),
        }
    }
}

impl SliceToPack<'_> {
    /// Packs it from the rows of each of its matrices.
    ///
    /// # Errors
    /// Other rows than those of the slice, or codes of another encoding.
    pub fn pack(self, pieces: &[WeightRows<'_>]) -> Result<()> {
        let k = self.shape.k;
        self.pack_strip(0..k, pieces)
    }

    /// Packs values `strip` of each of its rows, which is all that the pieces hold of them. A slice is packed when all
    /// of its strips are.
    ///
    /// # Errors
    /// Those of [`pack`](Self::pack), and a strip between other values than multiples of
    /// [`WeightPacker::strip_granule`].
    pub fn pack_strip(self, strip: Range<usize>, pieces: &[WeightRows<'_>]) -> Result<()> {
        let (rows, PackedShape { format, k, gated, .. }) = (&self.slice.rows, self.shape);
        if pieces.len() != rows.len() {
            return Err(refuse("pack", format!("{} pieces for {} ranges of rows", pieces.len(), rows.len())));
        }
        if let Some(((_, rows), piece)) = rows.iter().zip(pieces).find(|((_, rows), piece)| rows.len() != piece.rows())
        {
            return Err(refuse("pack", format!("{piece} for rows {rows:?}")));
        }
        let weights = Weights::new(pieces, gated).per_channel(self.per_channel);
        let values = self.slice.units.len() * strip.len();
        format.pack_strip(self.team, self.level, &weights, strip, k, self.packed)?;
        self.count.fetch_add(values, Ordering::Relaxed);
        Ok(())
    }
}

/// The first few numbers of rows, and how many there are.
fn first_few(rows: &[usize]) -> String {
    match rows.get(..4) {
        Some(first) if rows.len() > 4 => format!("{first:?} and {} more", rows.len() - 4),
        _ => format!("{rows:?}"),
    }
}

/// The part of a [`WeightPacker`] that threads share while they pack.
struct Packing<'a> {
    shape: PackedShape,
    per_channel: bool,
    count: &'a AtomicUsize,
}

impl Packing<'_> {
    /// [`WeightPacker::pack_each`] into host memory whose first byte is byte `first` of the packed weight.
    fn pack<E: From<Error> + Send>(
        &self,
        ctx: &Context,
        slices: &[UnitSlice],
        first: usize,
        packed: &mut [u8],
        pack: &(impl Fn(SliceToPack<'_>) -> std::result::Result<(), E> + Sync),
    ) -> std::result::Result<(), E> {
        let &Self { shape, per_channel, count } = self;
        let unit = shape.format.unit_bytes(shape.k, shape.gated);
        let (mut rest, mut at) = (packed, first);
        let mut spans = Vec::with_capacity(slices.len());
        for UnitSlice { units, .. } in slices {
            let (start, end) = (units.start * unit, units.end * unit);
            let span = start
                .checked_sub(at)
                .and_then(|gap| rest.split_at_mut_checked(gap))
                .and_then(|(_, behind)| behind.split_at_mut_checked(end.checked_sub(start)?));
            let Some((span, behind)) = span else {
                return Err(refuse(
                    "pack",
                    format!("units {units:?} are not behind those before, or not the weight's"),
                )
                .into());
            };
            spans.push(Mutex::new(span));
            (rest, at) = (behind, end);
        }
        let (team, level) = ctx.host_team();
        let failed = Mutex::new(None);
        team.run(slices.len(), |i, _| {
            // Each is locked once, by the task that packs it.
            let (Ok(mut packed), Ok(None)) = (spans[i].lock(), failed.lock().as_deref()) else { return };
            let (slice, team) = (&slices[i], &team);
            let slice = SliceToPack { slice, shape, per_channel, team, level, packed: &mut packed, count };
            if let Err(error) = pack(slice)
                && let Ok(mut failed) = failed.lock()
            {
                failed.get_or_insert(error);
            }
        });
        failed.into_inner().unwrap_or_default().map_or(Ok(()), Err)
    }
}
