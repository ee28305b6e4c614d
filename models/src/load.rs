//! Loading: from tensors in files to packed weights, one slice at a time.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use sinew_memory::{DeviceKind, Hardware};
use sinew_ops::Context;
use sinew_ops::layers::{
    Compute, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, Norm, NormOptions, NormedLinear, PackedWeight,
    Rotary, WeightPacker,
};
use sinew_tensor::{DType, Tensor};

use crate::checkpoint::{Checkpoint, Load};
use crate::config::{NormKind, RopeConfig};
use crate::scratch::{bytes, sum};
use crate::{Error, Result};

/// How weights get from files into memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightOptions {
    /// Their dtype in memory; that of the checkpoint where it is `None`.
    pub dtype: Option<DType>,
    /// Mapped, or read.
    pub load: Load,
}

impl WeightOptions {
    /// The precision of a model with these weights on a device.
    ///
    /// # Errors
    /// A dtype that weights cannot be kept in, or a checkpoint without floating-point tensors.
    pub fn precision(&self, checkpoint: &Checkpoint, hardware: &Hardware) -> Result<Precision> {
        let stored = main_dtype(checkpoint)?;
        Precision::of(self.dtype.unwrap_or(stored), hardware)
    }
}

/// Dtypes of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Of packed weights and embedding tables.
    pub weights: DType,
    /// Of what products read.
    pub activations: DType,
    /// Of the operands of products; sums are f32 everywhere.
    pub compute: Compute,
    /// Of cached keys and values.
    pub kv: DType,
}

impl Precision {
    /// The usual precision of models stored in `dtype` on a device.
    ///
    /// f16 weights are widened in registers and multiplied in f32, so that activations past f16's range do no harm. So
    /// are bf16 weights where a device has no bf16 to multiply.
    ///
    /// # Errors
    /// A dtype that weights cannot be kept in.
    pub fn of(dtype: DType, hardware: &Hardware) -> Result<Self> {
        let widens = hardware.accelerator.as_ref().is_some_and(|accelerator| !accelerator.bf16_products);
        let (activations, compute, kv) = match dtype {
            DType::BF16 if widens => (DType::F32, Compute::F32, DType::BF16),
            DType::F32 => (DType::F32, Compute::F32, DType::F32),
            DType::F16 => (DType::F32, Compute::F32, DType::F16),
            DType::BF16 => (DType::BF16, Compute::Bf16, DType::BF16),
            other => {
                let supported = "f32, f16, bf16".to_owned();
                return Err(Error::Unsupported { what: format!("weights of dtype {other}"), supported });
            }
        };
        Ok(Self { weights: dtype, activations, compute, kv })
    }
}

/// What a [`Loader`] would make of a checkpoint, for plans: every tensor is checked as loading checks it, and the bytes
/// of what it becomes are counted; the largest number where they are more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes<'a> {
    pub checkpoint: &'a Checkpoint,
    pub precision: Precision,
    pub device: DeviceKind,
}

impl Sizes<'_> {
    /// Of [`Loader::weight`].
    pub(crate) fn weight(&self, part: &Part, k: usize) -> Result<usize> {
        self.linear(std::slice::from_ref(part), k, false, false)
    }

    /// Of [`Loader::linear`].
    pub(crate) fn linear(&self, parts: &[Part], k: usize, bias: bool, gated: bool) -> Result<usize> {
        let n = sum(parts.iter().map(Part::len));
        let mut bytes = WeightPacker::bytes(self.device, self.precision.weights, 1, n, k, gated);
        if bias {
            parts.iter().try_for_each(|part| check(self.checkpoint, &part.bias(), &[part.of]).map(drop))?;
            bytes = bytes.saturating_add(vector_bytes(n));
        }
        parts.iter().try_for_each(|part| check(self.checkpoint, &part.weight(), &part.shape(k)).map(drop))?;
        Ok(bytes)
    }

    /// Of [`Loader::grouped`]. There may be as many parts as a file claims to have: none is made after one that is not
    /// there.
    pub(crate) fn grouped(
        &self,
        parts: impl Iterator<Item = Part>,
        experts: usize,
        k: usize,
        gated: bool,
    ) -> Result<usize> {
        let mut rows = 0usize;
        for part in parts {
            check(self.checkpoint, &part.weight(), &part.shape(k))?;
            rows = rows.saturating_add(part.len());
        }
        Ok(WeightPacker::bytes(self.device, self.precision.weights, experts, rows / experts.max(1), k, gated))
    }

    /// Of [`Loader::table`].
    pub(crate) fn table(&self, part: &Part, width: usize) -> Result<usize> {
        check(self.checkpoint, &part.weight(), &part.shape(width))?;
        Ok(WeightPacker::table_bytes(self.precision.weights, part.len(), width))
    }

    /// Of [`Loader::norm`].
    pub(crate) fn norm(&self, kind: NormKind, name: &str, n: usize) -> Result<usize> {
        match kind {
            NormKind::Rms | NormKind::RmsOffset => self.vector(&format!("{name}.weight"), n),
            NormKind::Layer => self.layer_norm(name, n),
        }
    }

    /// Of [`Loader::layer_norm`].
    pub(crate) fn layer_norm(&self, name: &str, n: usize) -> Result<usize> {
        let [weight, bias] = layer_norm_names(self.checkpoint, name);
        Ok(self.vector(&weight, n)?.saturating_add(self.vector(&bias, n)?))
    }

    /// Of the tables of [`Loader::ropes`].
    pub(crate) fn ropes(&self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> usize {
        sum(ropes.iter().map(|rope| Rotary::bytes(rope.rotary_dim(head_dim).div_ceil(2), context)))
    }

    /// Of [`Loader::vector`].
    pub(crate) fn vector(&self, name: &str, n: usize) -> Result<usize> {
        check(self.checkpoint, name, &[n])?;
        Ok(vector_bytes(n))
    }
}

fn vector_bytes(n: usize) -> usize {
    bytes(DType::F32, &[n])
}

/// The dtype of a tensor, which must have this shape.
fn check(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<DType> {
    let info = checkpoint.info(name)?;
    if info.shape != shape {
        let found = info.shape;
        return Err(Error::Config {
            file: checkpoint.name().to_owned(),
            problem: format!("tensor {name} has shape {found:?}, the config asks for {shape:?}"),
        });
    }
    float_dtype(name, info.dtype)
}

/// What the two vectors of a layer norm are called: checkpoints converted from TensorFlow have gamma and beta.
fn layer_norm_names(checkpoint: &Checkpoint, name: &str) -> [String; 2] {
    [("weight", "gamma"), ("bias", "beta")].map(|(new, old)| {
        let new = format!("{name}.{new}");
        if checkpoint.contains(&new) { new } else { format!("{name}.{old}") }
    })
}

/// How far loading has come, in bytes of the checkpoint: `(done, total)`.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Bytes of one slice of a weight: its pages are dropped before the next is read, so that a weight is never in memory
/// twice.
const SLICE_BYTES: usize = 16 << 20;

/// A matrix `[n, k]` in a checkpoint: all rows of a tensor, or some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What the tensors are called, less `.weight` and `.bias`.
    name: String,
    rows: Range<usize>,
    /// Rows of the tensor.
    of: usize,
    /// Whether the tensor is `[k, n]`.
    transposed: bool,
}

impl Part {
    /// A tensor of `n` rows.
    pub fn whole(name: impl Into<String>, n: usize) -> Self {
        Self { name: name.into(), rows: 0..n, of: n, transposed: false }
    }

    /// The parts of so many rows of which a tensor is stacked.
    pub fn split(name: &str, sizes: &[usize]) -> Vec<Self> {
        let of = sizes.iter().sum();
        let mut start = 0;
        let part = |&n: &usize| {
            let rows = start..start + n;
            start = rows.end;
            Self { name: name.to_owned(), rows, of, transposed: false }
        };
        sizes.iter().map(part).collect()
    }

    /// The same of a tensor that is `[k, n]` if that is so.
    pub fn transposed(self, transposed: bool) -> Self {
        Self { transposed, ..self }
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    /// That of the tensor.
    fn shape(&self, k: usize) -> [usize; 2] {
        if self.transposed { [k, self.of] } else { [self.of, k] }
    }

    fn weight(&self) -> String {
        format!("{}.weight", self.name)
    }

    fn bias(&self) -> String {
        format!("{}.bias", self.name)
    }
}

/// Packs the tensors of a checkpoint for a context.
pub struct Loader<'a> {
    ctx: Arc<Context>,
    checkpoint: &'a Checkpoint,
    precision: Precision,
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl<'a> Loader<'a> {
    /// A loader of `checkpoint`.
    pub fn new(ctx: Arc<Context>, checkpoint: &'a Checkpoint, precision: Precision, progress: Progress<'a>) -> Self {
        let total = checkpoint.num_bytes();
        Self { ctx, checkpoint, precision, progress, done: 0, total }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The precision.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The first of `prefixes` under which the checkpoint has `name`; checkpoints saved from a bare model lack the
    /// wrapper's prefix.
    ///
    /// # Errors
    /// The tensor is there under none of them.
    pub fn prefix(&self, name: &str, prefixes: &[&'static str]) -> Result<&'static str> {
        self.checkpoint.prefix_of(name, prefixes)
    }

    /// Whether the checkpoint has a tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(name)
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.total);
    }

    /// A linear layer for up to `max_rows` rows, whose parts are stacked: tensors `{name}.weight` and, with `bias`,
    /// `{name}.bias`. Where `options` are gated the parts are gate and up, interleaved so that the gated activation
    /// needs one pass.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn linear(
        &mut self,
        parts: &[Part],
        k: usize,
        bias: bool,
        options: LinearOptions,
        max_rows: usize,
    ) -> Result<Linear> {
        let bias = if bias { Some(self.biases(parts)?) } else { None };
        let weight = self.pack(parts, k, options.gated.is_some())?;
        Ok(Linear::new(&self.ctx, weight, LinearOptions { bias, ..options }, max_rows)?)
    }

    /// The same of what may be normed first.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn normed_linear(
        &mut self,
        norm: Option<NormOptions>,
        parts: &[Part],
        k: usize,
        bias: bool,
        options: LinearOptions,
        max_rows: usize,
    ) -> Result<NormedLinear> {
        let bias = if bias { Some(self.biases(parts)?) } else { None };
        let weight = self.pack(parts, k, options.gated.is_some())?;
        Ok(NormedLinear::new(&self.ctx, norm, weight, LinearOptions { bias, ..options }, max_rows)?)
    }

    fn biases(&mut self, parts: &[Part]) -> Result<Tensor> {
        let mut values = Vec::new();
        for part in parts {
            values.extend_from_slice(&self.values(&part.bias(), part.of)?[part.rows.clone()]);
        }
        Ok(self.ctx.tensor(&values, &[values.len()])?)
    }

    /// A linear layer of `experts` experts for up to `max_rows` rows: `parts` are those of the first expert, then those
    /// of the next, as [`linear`](Self::linear) has them.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn grouped(
        &mut self,
        parts: &[Part],
        experts: usize,
        k: usize,
        options: GroupedLinearOptions,
        max_rows: usize,
    ) -> Result<GroupedLinear> {
        let each = parts.len() / experts.max(1);
        let rows: Vec<usize> = parts.iter().take(each).map(Part::len).collect();
        let gated = options.gated.is_some();
        let packer = WeightPacker::grouped(&self.ctx, self.precision.weights, experts, &rows, k, gated)?;
        let weight = Arc::new(self.fill(packer, parts, k)?.finish()?);
        Ok(GroupedLinear::new(&self.ctx, weight, options, max_rows)?)
    }

    /// A norm of `kind` with the vectors `[n]` called `{name}.weight` and, for a layer norm, `{name}.bias`, from the
    /// first dtype to the second.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn norm(
        &mut self,
        name: &str,
        n: usize,
        kind: NormKind,
        eps: f64,
        dtypes: [DType; 2],
        max_rows: usize,
    ) -> Result<Norm> {
        let options = self.norm_options(name, n, kind, eps, dtypes)?;
        Ok(Norm::new(&self.ctx, options, max_rows)?)
    }

    /// What such a norm is made of.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn norm_options(
        &mut self,
        name: &str,
        n: usize,
        kind: NormKind,
        eps: f64,
        [input, output]: [DType; 2],
    ) -> Result<NormOptions> {
        let offset = match kind {
            NormKind::Rms => 0.0,
            NormKind::RmsOffset => 1.0,
            NormKind::Layer => {
                let [weight, bias] = layer_norm_names(self.checkpoint, name);
                let (weight, bias) = (self.vector(&weight, n)?, self.vector(&bias, n)?);
                return Ok(NormOptions::layer(eps, weight, bias, input, output));
            }
        };
        let weight: Vec<f32> = self.values(&format!("{name}.weight"), n)?.iter().map(|w| w + offset).collect();
        let weight = self.ctx.tensor(&weight, &[n])?;
        Ok(NormOptions::rms(eps, weight, input, output))
    }

    /// The rotations of f32 heads in sequences of up to `context` tokens.
    ///
    /// # Errors
    /// Out of memory for their tables, or no kernel.
    pub fn ropes(&self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> Result<Vec<Rotary>> {
        let rotary = |rope: &RopeConfig| {
            let (inv_freq, scale) = rope.frequencies(head_dim, context);
            Ok(Rotary::new(&self.ctx, &inv_freq, scale, context, head_dim, DType::F32)?)
        };
        ropes.iter().map(rotary).collect()
    }

    /// A packed weight from matrices `[n, k]` that are stacked along `n`.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or dtype, or out of memory.
    pub fn weight(&mut self, parts: &[Part], k: usize) -> Result<Arc<PackedWeight>> {
        self.pack(parts, k, false)
    }

    fn pack(&mut self, parts: &[Part], k: usize, gated: bool) -> Result<Arc<PackedWeight>> {
        let rows: Vec<usize> = parts.iter().map(Part::len).collect();
        let packer = WeightPacker::new(&self.ctx, self.precision.weights, &rows, k, gated)?;
        Ok(Arc::new(self.fill(packer, parts, k)?.finish()?))
    }

    /// An embedding table `[rows, width]` in the dtype of the weights.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn table(&mut self, part: Part, width: usize) -> Result<Tensor> {
        let packer = WeightPacker::table(&self.ctx, self.precision.weights, part.len(), width)?;
        Ok(self.fill(packer, &[part], width)?.finish_table()?)
    }

    /// Packs matrices `[n, k]` slice by slice, and drops the pages of each slice before the next.
    fn fill(&mut self, mut packer: WeightPacker, parts: &[Part], k: usize) -> Result<WeightPacker> {
        let names: Vec<String> = parts.iter().map(Part::weight).collect();
        let stored = names
            .iter()
            .zip(parts)
            .map(|(name, part)| check(self.checkpoint, name, &part.shape(k)))
            .collect::<Result<Vec<_>>>()?;
        if parts.iter().any(|part| part.transposed) {
            return self.fill_columns(packer, parts, k);
        }
        for slice in packer.slices(SLICE_BYTES) {
            let ranges: Vec<(usize, Range<usize>)> = slice
                .rows
                .iter()
                .map(|&(part, ref rows)| {
                    let (start, row_bytes) = (parts[part].rows.start, k * stored[part].size());
                    (part, (start + rows.start) * row_bytes..(start + rows.end) * row_bytes)
                })
                .collect();
            let sources = ranges
                .iter()
                .map(|(part, range)| {
                    Ok(packable(self.checkpoint.tensor_slice(&names[*part], range.clone())?.bytes, stored[*part]))
                })
                .collect::<Result<Vec<_>>>()?;
            let rows: Vec<(&[u8], DType)> = sources.iter().map(|(bytes, dtype)| (&**bytes, *dtype)).collect();
            packer.pack(&self.ctx, &slice, &rows)?;
            drop(sources);
            for (part, range) in ranges {
                self.checkpoint.release_slice(&names[part], range.clone());
                self.advance(range.len());
            }
        }
        Ok(packer)
    }

    /// [`Loader::fill`] from tensors `[k, n]`. A slice has values in all of their pages, so that a whole tensor is at
    /// hand until it is packed.
    fn fill_columns(&mut self, mut packer: WeightPacker, parts: &[Part], k: usize) -> Result<WeightPacker> {
        let checkpoint = self.checkpoint;
        let tensors = parts
            .iter()
            .map(|part| {
                let name = part.weight();
                let dtype = float_dtype(&name, checkpoint.info(&name)?.dtype)?;
                Ok(packable(checkpoint.tensor(&name)?.bytes, dtype))
            })
            .collect::<Result<Vec<_>>>()?;
        for slice in packer.slices(SLICE_BYTES) {
            let columns: Vec<(&[u8], DType, usize)> = slice
                .rows
                .iter()
                .map(|(part, rows)| {
                    let ((bytes, dtype), part) = (&tensors[*part], &parts[*part]);
                    (&bytes[(part.rows.start + rows.start) * dtype.size()..], *dtype, part.of)
                })
                .collect();
            packer.pack_columns(&self.ctx, &slice, &columns)?;
            let packed: usize = slice.rows.iter().map(|(part, rows)| rows.len() * k * tensors[*part].1.size()).sum();
            self.advance(packed);
        }
        drop(tensors);
        for part in parts {
            checkpoint.release_slice(&part.weight(), 0..usize::MAX);
        }
        Ok(packer)
    }

    /// A vector `[n]` as f32: norm weights and biases, which are small and read by every row.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn vector(&mut self, name: &str, n: usize) -> Result<Tensor> {
        let values = self.values(name, n)?;
        Ok(self.ctx.tensor(&values, &[n])?)
    }

    fn values(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let dtype = check(self.checkpoint, name, &[n])?;
        let tensor = self.checkpoint.tensor(name)?;
        let bytes: &[u8] = &tensor.bytes;
        let values = match dtype {
            DType::F64 => widen::<8>(bytes, |b| f64::from_le_bytes(b) as f32),
            DType::F32 => widen::<4>(bytes, f32::from_le_bytes),
            DType::F16 => widen::<2>(bytes, |b| f16::from_le_bytes(b).to_f32()),
            _ => widen::<2>(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        };
        self.advance(values.len() * dtype.size());
        Ok(values)
    }

    /// Ends loading: tensors that nothing asked for are reported, but those whose names end with one of `spare`.
    pub fn finish(&mut self, spare: &[&str]) {
        self.checkpoint.report_unused(spare);
        (self.progress)(self.total, self.total);
    }
}

/// Values in a dtype that can be packed: those of f64 as f32.
fn packable(bytes: Cow<'_, [u8]>, dtype: DType) -> (Cow<'_, [u8]>, DType) {
    if dtype != DType::F64 {
        return (bytes, dtype);
    }
    let values = widen::<8>(&bytes, |b| f64::from_le_bytes(b) as f32);
    (Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect()), DType::F32)
}

fn widen<const SIZE: usize>(bytes: &[u8], value: impl Fn([u8; SIZE]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<SIZE>().0.iter().map(|&chunk| value(chunk)).collect()
}

/// The dtype of floating-point elements.
fn float(dtype: safetensors::Dtype) -> Option<DType> {
    Some(match dtype {
        safetensors::Dtype::F64 => DType::F64,
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::BF16,
        _ => return None,
    })
}

/// The dtype of a tensor that must be floating point.
fn float_dtype(name: &str, dtype: safetensors::Dtype) -> Result<DType> {
    float(dtype).ok_or_else(|| {
        let what = format!("tensor {name} of dtype {dtype:?}");
        Error::Unsupported { what, supported: FLOATS.to_owned() }
    })
}

/// What [`float`] takes, for messages.
const FLOATS: &str = "F32, F16, BF16, F64";

/// The dtype that most of a checkpoint's bytes have: that in which it is kept unless another is asked for. f64 is kept
/// as f32.
///
/// # Errors
/// A checkpoint without floating-point tensors.
pub fn main_dtype(checkpoint: &Checkpoint) -> Result<DType> {
    let mut counts = [(DType::BF16, 0), (DType::F16, 0), (DType::F32, 0)];
    for (_, info) in checkpoint.infos() {
        let dtype = match float(info.dtype) {
            Some(DType::F64) => DType::F32,
            Some(dtype) => dtype,
            // Position ids and the like.
            None => continue,
        };
        counts.iter_mut().filter(|(d, _)| *d == dtype).for_each(|(_, n)| *n += info.num_bytes);
    }
    let (dtype, most) = counts.into_iter().max_by_key(|&(_, n)| n).unwrap_or((DType::F32, 0));
    if most == 0 {
        let what = format!("{}, which has no floating-point tensor,", checkpoint.name());
        return Err(Error::Unsupported { what, supported: FLOATS.to_owned() });
    }
    Ok(dtype)
}

#[cfg(test)]
mod tests;
