//! Weights in the packed form that their kernels read.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Mutex;

use sinew_kernels::packed::{Codes, Encoding, Format, Source, UnitRows, Weights};
use sinew_memory::{Buffer, SimdLevel, Team};
use sinew_tensor::{BlockFormat, DType, Layout, Tensor};

use crate::error::refuse;
use crate::{Context, Error, Result};

/// A weight `[n, k]` packed for the kernels of its family; several matrices may be stacked along `n`. Or several
/// weights of one shape, one behind another: the experts of a mixture.
#[derive(Debug)]
pub struct PackedWeight {
    bytes: Tensor,
    shape: PackedShape,
    order: Option<Tensor>,
}

/// Which weight is packed, and into which format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PackedShape {
    /// The packed format.
    pub format: &'static Format,
    /// Weights of this shape; 1 but for those of experts.
    pub groups: usize,
    /// Outputs, stacked matrices together.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Whether gate and up are interleaved, so that one pass gives `act(gate) · up`.
    pub gated: bool,
}

impl PackedWeight {
    /// Outputs, stacked matrices together.
    pub fn n(&self) -> usize {
        self.shape.n
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.shape.k
    }

    /// What was packed.
    pub fn shape(&self) -> &PackedShape {
        &self.shape
    }

    /// How its values are held.
    pub fn encoding(&self) -> Encoding {
        self.shape.format.encoding()
    }

    /// The packed bytes.
    pub fn tensor(&self) -> &Tensor {
        &self.bytes
    }

    /// The order in which it has its inputs, where that is another than that of the values which it is multiplied with:
    /// u32 `[groups, k]`, or `[k]` of one weight. See [`WeightPacker::ordered`].
    pub fn order(&self) -> Option<&Tensor> {
        self.order.as_ref()
    }

    /// Number of packed bytes, and of those of the order.
    pub fn len(&self) -> usize {
        self.bytes.buffer().len() + self.order.as_ref().map_or(0, super::bytes)
    }

    /// Whether there are no packed bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.buffer().is_empty()
    }
}

/// Packs a weight, or several of one shape, unit by unit (panels of outputs, or rows), so that only a slice of it has
/// to be at hand in its unpacked form.
///
/// ```
/// use sinew_ops::Context;
/// use sinew_ops::layers::WeightPacker;
/// use sinew_tensor::DType;
///
/// let ctx = Context::cpu()?;
/// let rows: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let mut packer = WeightPacker::new(&ctx, DType::BF16, &[2], 2, false)?;
/// for slice in packer.slices(16 << 20) {
///     let (_, range) = &slice.rows[0];
///     packer.pack(&ctx, &slice, &[(&rows[range.start * 8..range.end * 8], DType::F32)])?;
/// }
/// assert_eq!(packer.finish()?.n(), 2);
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
}

/// Rows of one matrix, little-endian at any alignment: what a slice is packed from.
#[derive(Debug, Clone)]
pub enum Piece<'a> {
    /// `[rows, k]` of floats in row-major order.
    Rows(Cow<'a, [u8]>, DType),
    /// The same of a matrix that is stored as `[k, columns]`: each row is a column. The bytes begin with the first of
    /// the rows' and reach to the matrix's end; last is the number of columns.
    Columns(&'a [u8], DType, usize),
    /// Rows that are quantized, of the encoding that they are packed into: [`Codes`].
    Codes {
        /// What they are.
        format: BlockFormat,
        /// `[rows, k]`, one in each byte.
        codes: Cow<'a, [u8]>,
        /// `[rows, groups]` of the format's dtype.
        scales: Cow<'a, [u8]>,
        /// `[rows, groups]` where the format has zero points, else none.
        zeros: Cow<'a, [i8]>,
    },
}

impl Piece<'_> {
    fn source(&self, n: usize, k: usize) -> sinew_kernels::Result<Source<'_>> {
        match self {
            Self::Rows(bytes, dtype) => Source::from_bytes(bytes, *dtype, n, k),
            Self::Columns(bytes, dtype, columns) => Source::from_columns(bytes, *dtype, n, k, *columns),
            &Self::Codes { format, ref codes, ref scales, ref zeros } => {
                Source::from_codes(Codes { format, codes, scales, zeros }, n, k)
            }
        }
    }
}

impl SliceToPack<'_> {
    /// Packs it from its rows, a piece of each of its matrices.
    ///
    /// # Errors
    /// Other rows than those of the slice, or codes of another encoding.
    pub fn pack(self, pieces: &[Piece<'_>]) -> Result<()> {
        let k = self.shape.k;
        self.pack_strip(0..k, pieces)
    }

    /// Packs values `strip` of each of its rows, which is all that the pieces hold of them. A slice is packed when all
    /// of its strips are.
    ///
    /// # Errors
    /// Those of [`pack`](Self::pack), and a strip between other values than multiples of
    /// [`WeightPacker::strip_granule`].
    pub fn pack_strip(self, strip: Range<usize>, pieces: &[Piece<'_>]) -> Result<()> {
        let (rows, PackedShape { format, k, gated, .. }) = (&self.slice.rows, self.shape);
        if pieces.len() != rows.len() {
            return Err(refuse("pack", format!("{} pieces for {} ranges of rows", pieces.len(), rows.len())));
        }
        let sources = rows
            .iter()
            .zip(pieces)
            .map(|((_, range), piece)| Ok(piece.source(range.len(), strip.len())?.per_channel(self.per_channel)))
            .collect::<Result<Vec<_>>>()?;
        let weights = Weights { sources: &sources, k: strip.len(), gated };
        Ok(format.pack_strip(self.team, self.level, &weights, strip, k, self.packed)?)
    }
}

/// [`WeightPacker::pack_each`] into host memory whose first byte is byte `first` of the packed weight.
fn pack_slices<E: From<Error> + Send>(
    ctx: &Context,
    (shape, per_channel): (PackedShape, bool),
    slices: &[UnitSlice],
    first: usize,
    packed: &mut [u8],
    pack: &(impl Fn(SliceToPack<'_>) -> std::result::Result<(), E> + Sync),
) -> std::result::Result<(), E> {
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
            return Err(
                refuse("pack", format!("units {units:?} are not behind those before, or not the weight's")).into()
            );
        };
        spans.push(Mutex::new(span));
        (rest, at) = (behind, end);
    }
    let (team, level) = ctx.host_team();
    let failed = Mutex::new(None);
    team.run(slices.len(), |i, _| {
        // Each is locked once, by the task that packs it.
        let (Ok(mut packed), Ok(None)) = (spans[i].lock(), failed.lock().as_deref()) else { return };
        let slice = SliceToPack { slice: &slices[i], shape, per_channel, team: &team, level, packed: &mut packed };
        if let Err(error) = pack(slice)
            && let Ok(mut failed) = failed.lock()
        {
            failed.get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_default().map_or(Ok(()), Err)
}

/// The format in which a context's device keeps weights.
pub(super) fn format_of(ctx: &Context, encoding: Encoding) -> Result<&'static Format> {
    ctx.format(encoding).ok_or_else(|| no_format(ctx, encoding))
}

fn no_format(ctx: &Context, encoding: Encoding) -> Error {
    let (device, kept) = (ctx.device().id(), ctx.kept_weights());
    refuse("pack", format!("no packed format keeps {encoding} on {device}; kept are {kept}"))
}

impl WeightPacker {
    /// Room for matrices of these numbers of rows, all `k` long, stacked, in the format in which the context's device
    /// keeps weights in `encoding`. With `gated` there are two, gate and up. The room is one to be filled before others
    /// are asked for: see [`Buffer::allocate_to_fill`].
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
        let encoding = encoding.into();
        Self::with_format(ctx, ctx.format(encoding), encoding, groups, rows, k, gated)
    }

    /// Room for a table `[rows, width]` as `dtype`, row after row on any device: see [`WeightPacker::finish_table`].
    ///
    /// # Errors
    /// A dtype without a format, or out of memory.
    pub fn table(ctx: &Context, dtype: DType, rows: usize, width: usize) -> Result<Self> {
        Self::with_format(ctx, Format::row_major(dtype), dtype.into(), 1, &[rows], width, false)
    }

    /// Bytes of what [`grouped`](Self::grouped) makes room for, `n` outputs in each group; the largest number where they
    /// are more, or where there is no format.
    pub fn bytes(
        ctx: &Context,
        encoding: impl Into<Encoding>,
        groups: usize,
        n: usize,
        k: usize,
        gated: bool,
    ) -> usize {
        ctx.format(encoding).map_or(usize::MAX, |format| format.packed_bytes(n, k, gated).saturating_mul(groups))
    }

    /// Bytes of a [`table`](Self::table); the largest number where they are more, or where there is no format.
    pub fn table_bytes(dtype: DType, rows: usize, width: usize) -> usize {
        Format::row_major(dtype).map_or(usize::MAX, |format| format.packed_bytes(rows, width, false))
    }

    fn with_format(
        ctx: &Context,
        format: Option<&'static Format>,
        encoding: Encoding,
        groups: usize,
        rows: &[usize],
        k: usize,
        gated: bool,
    ) -> Result<Self> {
        let format = format.ok_or_else(|| no_format(ctx, encoding))?;
        if gated && (rows.len() != 2 || rows[0] != rows[1]) {
            return Err(refuse("pack", format!("a gated weight wants gate and up of equal size, not {rows:?} rows")));
        }
        let n = rows.iter().try_fold(0usize, |n, &r| n.checked_add(r));
        let n = n.ok_or_else(|| refuse("pack", format!("{rows:?} rows are too many")))?;
        let bytes = format.packed_bytes(n, k, gated).checked_mul(groups);
        let bytes = bytes.ok_or_else(|| refuse("pack", format!("{groups} weights of {n} rows of {k} are too many")))?;
        let shape = PackedShape { format, groups, n, k, gated };
        // Not of a slab: a weight lives as long as its model, and a size class may be a quarter too large.
        let buffer = ctx.pool().allocate_apart_to_fill(bytes, "weights")?;
        Ok(Self { buffer, shape, rows: rows.to_vec(), staged: Vec::new(), per_channel: false, order: None })
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
    /// use sinew_ops::layers::WeightPacker;
    /// use sinew_tensor::DType;
    ///
    /// let ctx = Context::cpu()?;
    /// let rows: Vec<u8> = [5.0f32, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let mut packer = WeightPacker::new(&ctx, DType::F32, &[1], 3, false)?.ordered(&ctx, &[2, 0, 1])?;
    /// let slices = packer.slices(16 << 20);
    /// packer.pack(&ctx, &slices[0], &[(&rows, DType::F32)])?;
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

    /// How values are held.
    pub fn encoding(&self) -> Encoding {
        self.shape.format.encoding()
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
        let of_group = |group: usize| {
            (0..runs).map(move |run| {
                let units = run * each / runs..(run + 1) * each / runs;
                let mut rows = match format.unit_rows(units.clone(), n, gated) {
                    UnitRows::Plain(rows) => self.split(rows),
                    UnitRows::Gated(rows) => vec![(0, rows.clone()), (1, rows)],
                };
                rows.iter_mut().for_each(|(matrix, _)| *matrix += group * self.rows.len());
                UnitSlice { units: group * each + units.start..group * each + units.end, group, rows }
            })
        };
        (0..groups).flat_map(of_group).collect()
    }

    /// A range of stacked rows as ranges of the matrices.
    fn split(&self, range: Range<usize>) -> Vec<(usize, Range<usize>)> {
        let mut before = 0;
        let mut parts = Vec::new();
        for (matrix, &rows) in self.rows.iter().enumerate() {
            let (start, end) = (range.start.max(before), range.end.min(before + rows));
            if start < end {
                parts.push((matrix, start - before..end - before));
            }
            before += rows;
        }
        parts
    }

    /// Packs one run of units from the bytes of its rows, row-major and at any alignment, with all threads.
    ///
    /// # Errors
    /// Other rows than those of the slice, or a failed device.
    pub fn pack(&mut self, ctx: &Context, slice: &UnitSlice, rows: &[(&[u8], DType)]) -> Result<()> {
        let pieces: Vec<Piece<'_>> = rows.iter().map(|&(bytes, dtype)| Piece::Rows(bytes.into(), dtype)).collect();
        self.pack_each(ctx, std::slice::from_ref(slice), |slice| slice.pack(&pieces))
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
        if self.buffer.host_ptr().is_some() {
            let packed = self.buffer.as_mut_slice::<u8>().map_err(Error::from)?;
            return pack_slices(ctx, (self.shape, self.per_channel), slices, 0, packed, &pack);
        }
        for slices in slices.chunks(ctx.host_team().0.threads()) {
            let first = slices.first().map_or(0, |slice| slice.units.start * unit);
            let end = slices.last().map_or(first, |slice| slice.units.end * unit);
            self.staged.resize(end.saturating_sub(first), 0);
            pack_slices(ctx, (self.shape, self.per_channel), slices, first, &mut self.staged, &pack)?;
            ctx.stream().upload(&self.staged, &mut self.buffer, first).map_err(Error::from)?;
        }
        Ok(())
    }

    /// The packed weight.
    ///
    /// # Errors
    /// A size that overflows a layout.
    pub fn finish(self) -> Result<PackedWeight> {
        let layout = Layout::contiguous(&[self.buffer.len()])?;
        Ok(PackedWeight { bytes: Tensor::new(self.buffer, DType::U8, layout)?, shape: self.shape, order: self.order })
    }

    /// The rows of [`WeightPacker::table`] as a tensor `[rows, width]`.
    ///
    /// # Errors
    /// A weight that is not in rows, or in rows of another order.
    pub fn finish_table(self) -> Result<Tensor> {
        let PackedShape { format, n, k, gated, .. } = self.shape;
        match format.dtype() {
            Some(dtype) if format.is_row_major() && !gated && self.order.is_none() => {
                Ok(Tensor::new(self.buffer, dtype, Layout::contiguous(&[n, k])?)?)
            }
            _ => Err(refuse("pack", format!("a weight in {} is no table", format.name()))),
        }
    }
}
