//! Dtypes: those that a checkpoint has, and those of a model that is loaded from it.

use std::fmt;

use sinew_memory::Hardware;
use sinew_ops::Context;
use sinew_ops::layers::{Compute, Encoding, Factors, OldKv};
use sinew_tensor::{BlockFormat, DType, PagedLayout};

use crate::checkpoint::Checkpoint;
use crate::quantized;
use crate::tensors::floats::{float, packed_as};
use crate::tensors::{Load, Tensors};
use crate::{Error, Result};

/// How weights get from files into memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightOptions {
    /// Their dtype in memory; that of the checkpoint where it is `None`, or bf16 where they are quantized.
    pub dtype: Option<DType>,
    /// What the weights of products are rounded to as they are loaded.
    pub quantize: Option<Quantize>,
    /// What products with quantized weights read; what others read where it is `None`.
    pub activations: Option<Activations>,
    /// Read, or mapped.
    pub load: Load,
}

/// How weights are quantized as they are loaded. Embedding tables, norms, biases and the routers of experts are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantize {
    /// What the weights of products become.
    pub format: BlockFormat,
    /// Whether a row has one scale, and one zero point, which all of its groups repeat.
    pub per_channel: bool,
    /// Whether that of the head does too, and with it an embedding that is tied to it.
    pub head: bool,
}

/// What products with quantized weights read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// bf16, multiplied with what the weights' codes stand for.
    Bf16,
    /// int8, with a scale for each group of the weights: faster with many rows, and less exact. Products with weights
    /// whose codes are not integers stay as they are.
    Int8,
}

impl Activations {
    /// Whether they decide what products with a weight read: those in int8 with codes that are integers alone.
    pub fn are_taken(self, weight: Encoding) -> bool {
        match weight {
            Encoding::Blocks(format) => self == Self::Bf16 || format.values().is_integer(),
            Encoding::Float(_) => false,
        }
    }

    /// The error where none of the weights takes them.
    pub(crate) fn refused(self, weights: &str) -> Error {
        Error::Unsupported {
            what: format!("activations in {self} with {weights}"),
            supported:
                "bf16 for quantized weights, int8 for those whose codes are integers; weights can be quantized again \
                        as they are loaded"
                    .to_owned(),
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

impl WeightOptions {
    /// The precision of a model with these weights on a context's device.
    ///
    /// # Errors
    /// A dtype that weights cannot be kept in, or a checkpoint without floating-point tensors.
    pub fn precision(&self, checkpoint: &Checkpoint, ctx: &Context) -> Result<Precision> {
        // Where a device keeps none, what modules are in need not be read.
        let keeps_blocks = self.dtype.is_none()
            && self.quantize.is_none()
            && checkpoint.quantization().is_some()
            && ctx.kept_blocks().next().is_some();
        let dtype = match (self.dtype, self.quantize) {
            (Some(dtype), _) => dtype,
            (None, Some(_)) => DType::BF16,
            (None, None) => main_dtype(checkpoint)?,
        };
        if let Some(quantize) = self.quantize {
            quantize.check_device(ctx)?;
        }
        let precision = Precision::of(dtype, ctx.device().hardware())?;
        Ok(Precision { quantize: self.quantize, keeps_blocks, activations_of_quantized: self.activations, ..precision })
    }
}

impl Quantize {
    /// Refuses a device that keeps no such weights.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check_device(&self, ctx: &Context) -> Result<()> {
        if ctx.format(self.format).is_some() {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("weights as {} on {}", Encoding::Blocks(self.format), ctx.device().id()),
            supported: format!("{} there", ctx.kept_weights()),
        })
    }
}

/// Dtypes of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Of packed weights that are not quantized, and of embedding tables.
    pub weights: DType,
    /// How weights are quantized as they are loaded.
    pub quantize: Option<Quantize>,
    /// Whether weights that the checkpoint has quantized stay so, where they can.
    pub keeps_blocks: bool,
    /// What most weights are in that the checkpoint has quantized and that stay so, once that is known: of a model that was
    /// planned or loaded.
    pub kept: Option<Encoding>,
    /// What products with quantized weights read, if not what others do.
    pub activations_of_quantized: Option<Activations>,
    /// Of what products read.
    pub activations: DType,
    /// Of the operands of products; sums are f32 everywhere.
    pub compute: Compute,
    /// Of cached keys and values: int8 and fp8 (e4m3) have a scale for each token and head.
    pub kv: DType,
    /// Of old ones among them, where that is another.
    pub old_kv: Option<OldKv>,
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
        Ok(Self {
            weights: dtype,
            quantize: None,
            keeps_blocks: false,
            kept: None,
            activations_of_quantized: None,
            activations,
            compute,
            kv,
            old_kv: None,
        })
    }

    /// The same with a KV cache of this dtype, where one is given.
    ///
    /// # Errors
    /// A dtype that a cache cannot have, or not on the device.
    pub fn with_kv(self, kv: Option<DType>, ctx: &Context) -> Result<Self> {
        let Some(kv) = kv else { return Ok(self) };
        if !PagedLayout::has_scales(kv) && !DType::COMPUTE.contains(&kv) {
            let supported = "f32, f16, bf16, int8, fp8".to_owned();
            return Err(Error::Unsupported { what: format!("a KV cache of dtype {kv}"), supported });
        }
        if !ctx.keeps_kv(kv, None) {
            let kept: Vec<&str> =
                DType::COMPUTE.into_iter().filter(|kv| ctx.keeps_kv(*kv, None)).map(DType::name).collect();
            return Err(Error::Unsupported {
                what: format!("a KV cache of dtype {kv} on {}", ctx.device().id()),
                supported: format!("{} there, int8 and fp8 on CPUs", kept.join(", ")),
            });
        }
        Ok(Self { kv, ..self })
    }

    /// The same with old keys and values in a dtype of their own, where one is given.
    ///
    /// # Errors
    /// A dtype without scales, no recent token, a cache that has scales already, or a device that has no such caches.
    pub fn with_old_kv(self, old: Option<OldKv>, ctx: &Context) -> Result<Self> {
        let Some(OldKv { dtype, recent }) = old else { return Ok(self) };
        let what = || format!("a KV cache in {} with old tokens in {dtype}", self.kv);
        if !PagedLayout::has_scales(dtype) || PagedLayout::has_scales(self.kv) {
            let supported = "old tokens in int8 and fp8, recent ones in f32, f16 and bf16".to_owned();
            return Err(Error::Unsupported { what: what(), supported });
        }
        if !ctx.keeps_kv(self.kv, Some(OldKv { dtype, recent })) {
            let supported = "one dtype for all tokens there, another for old ones on CPUs".to_owned();
            return Err(Error::Unsupported { what: format!("{} on {}", what(), ctx.device().id()), supported });
        }
        if recent == 0 {
            return Err(Error::Input(format!("{}: at least one token is recent, its own", what())));
        }
        Ok(Self { old_kv: old, ..self })
    }

    /// How a layer with such a window keeps old keys and values, where it has any that it still sees and keeps them
    /// otherwise than recent ones.
    pub fn old_kv_of(&self, window: Option<usize>) -> Option<OldKv> {
        self.old_kv.filter(|old| window.is_none_or(|window| window > old.recent))
    }

    /// Bytes of the keys and values that a token reads in a layer with such a window, of `length` tokens up to itself, at most.
    pub(crate) fn kv_bytes_read(&self, window: Option<usize>, length: f64, heads: usize, head_dim: usize) -> f64 {
        let seen = window.map_or(length, |window| length.min(window as f64));
        let bytes = |dtype| (2 * heads * PagedLayout::head_bytes(dtype, head_dim)) as f64;
        let Some(old) = self.old_kv_of(window) else { return seen * bytes(self.kv) };
        let full = seen.min(old.most_recent() as f64);
        full * bytes(self.kv) + (seen - full) * bytes(old.dtype)
    }

    /// What a weight becomes that is made of floats, if it may be quantized or not.
    pub(crate) fn encoding(&self, may_be_quantized: bool) -> Encoding {
        match self.quantize {
            Some(Quantize { format, .. }) if may_be_quantized => Encoding::Blocks(format),
            _ => Encoding::Float(self.weights),
        }
    }

    /// Whether rows that are quantized as they are loaded have one scale each.
    pub(crate) fn per_channel(&self) -> bool {
        self.quantize.is_some_and(|quantize| quantize.per_channel)
    }

    /// What most weights become.
    pub fn main_encoding(&self) -> Encoding {
        self.kept.unwrap_or_else(|| self.encoding(true))
    }

    /// How the operands of most products are rounded.
    pub fn main_compute(&self) -> Compute {
        self.compute_with(self.main_encoding())
    }

    /// What most products multiply: which of a device's rates of arithmetic is their limit.
    pub fn main_factors(&self) -> Factors {
        let is_integer = |encoding| matches!(encoding, Encoding::Blocks(format) if format.values().is_integer());
        Factors { compute: self.main_compute(), integers: is_integer(self.main_encoding()) }
    }

    /// How the operands of a product with a weight are rounded.
    pub fn compute_with(&self, weight: Encoding) -> Compute {
        match self.activations_of_quantized.filter(|activations| activations.are_taken(weight)) {
            Some(Activations::Int8) => Compute::Int8,
            Some(Activations::Bf16) => Compute::Bf16,
            None => self.compute,
        }
    }
}

/// The dtype of a tensor that must be floating point.
pub(crate) fn float_dtype(name: &str, dtype: safetensors::Dtype) -> Result<DType> {
    float(dtype).ok_or_else(|| {
        let what = format!("tensor {name} of dtype {dtype:?}");
        Error::Unsupported { what, supported: FLOATS.to_owned() }
    })
}

/// What [`float`] takes, for messages.
const FLOATS: &str = "F32, F16, BF16, F64";

/// The dtype that most of a checkpoint's bytes have that are not of quantized weights: that in which it is kept unless
/// another is asked for. f64 is kept as f32.
///
/// # Errors
/// A checkpoint without floating-point tensors.
pub fn main_dtype(tensors: &Tensors) -> Result<DType> {
    let mut counts = [(DType::BF16, 0), (DType::F16, 0), (DType::F32, 0)];
    for (_, info) in tensors.infos().filter(|(name, _)| !quantized::is_of_codes(tensors, name)) {
        // Position ids and the like are none.
        let Some(dtype) = float(info.dtype).map(packed_as) else { continue };
        counts.iter_mut().filter(|(d, _)| *d == dtype).for_each(|(_, n)| *n += info.num_bytes);
    }
    let (dtype, most) = counts.into_iter().max_by_key(|&(_, n)| n).unwrap_or((DType::F32, 0));
    if most == 0 {
        let what = format!("{}, which has no floating-point tensor,", tensors.name());
        return Err(Error::Unsupported { what, supported: FLOATS.to_owned() });
    }
    Ok(dtype)
}
