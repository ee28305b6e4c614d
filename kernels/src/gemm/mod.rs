//! Matrix products: `D = epilogue(alpha · A·B)`.
//!
//! `A` is `[batch, M, K]`, `B` is `[batch, K, N]` (any strides; a batch stride of 0 shares it) or a weight packed once
//! into a [`Format`], and `D` is `[batch, M, N]`. The epilogue is applied to f32 sums, which are rounded once, to `D`:
//!
//! ```text
//! x = alpha · Σ_k A[b, m, k] · B[b, k, n]
//! x = x + bias[n]
//! x = act(x)                                  or, gated, x = act(x[n]) · f(x[n + N/2]), and D is [batch, M, N/2]
//! D[b, m, n] = x + beta · residual[b, m, n]   the residual may be D itself
//! ```
//!
//! What a gate is multiplied with is the up itself, `f(up) = up`, unless its [`Activation`](crate::activation::Activation)
//! says another.
//!
//! Where the problem has an [`InputNorm`], what is multiplied in place of `A` is the norm of its rows, rounded to a
//! type of its own as if it were stored:
//!
//! ```text
//! A'[b, m, k] = (A[b, m, k] - mean) · inverse · (weight[k] + offset) + bias[k]       mean is 0 of an RMS norm
//! inverse = 1 / √(mean over k of (A[b, m, k] - mean)² + eps)
//! ```
//!
//! Where the problem is [gathered](GemmStatic::gathered) its packed weight has inputs in an order of its own, as groups
//! of them are to lie side by side: what is multiplied with its values `k` are those `order[k]` of a row.
//!
//! # Arithmetic
//! The order of a sum over K does not depend on the number of rows, batches and threads, nor on how operands are
//! packed. So a sequence has the same bits alone and in any batch. On CPUs it is one f32 sum per output over all of K,
//! in order: blocks over K spill and reload the sums.
//! - `gemm.mul-add-chain`: `s = s + a·b` with two roundings (portable).
//! - `gemm.fma-chain`: `s = fma(a, b, s)` (AVX2 and AVX-512).
//! - `gemm.int8-groups`: products of int8 with the integers of a group of a block-quantized weight (of 128 steps, of
//!   tensors) summed exactly, and these sums, scaled, in one chain of fused multiply-adds (`gemm.int8-groups.mul-add`
//!   where they round twice).
//! - `gemm.fma-groups`: of each group of a block-quantized weight a chain `t = fma(a, q - zero, t)`, and these, scaled,
//!   in a chain of fused multiply-adds (`gemm.mul-add-groups` where they round twice); `gemm.dpbf16-groups` with chains
//!   of `vdpbf16ps`. The difference of a code and its zero point is exact.
//! - `gemm.int16-groups`: as `gemm.int8-groups`, of activations in bf16. Those of a group are held in block floating
//!   point, `x ≈ 2^n · q` with integers `q = round(x / 2^n)` of 16 bits and the smallest `n` from -126 on for which none is
//!   above 32,639. They err by at most `2^(n-1)`, a 32,639th of the largest; what is above a 64th of the largest by
//!   nothing, unless that is below 2^-112. What is not held so is multiplied as it is, in a chain in f32 that starts from
//!   the scaled sum of the others: what is not finite; of groups most of whose values that are not zero lie below a 128th
//!   of the largest, those above that, and so on until at least half are above it; and then those below a 4096th of the
//!   largest, or below 2^-123, where they are more than an eighth. Sums of a group are exact as integers, and rounded
//!   once to f32, with zero points once more for what is taken off. `gemm.int16-groups.doubled`: the same of
//!   fp4 (e2m1), as integers of twice its weights, by half the scale.
//! - `gemm.dpbf16-chain`: `vdpbf16ps`, two products at a time, flushing subnormals (AVX512-BF16).
//! - `gemm.cuda.fma-chain`: the same chain on NVIDIA GPUs, with their exponential in activations.
//! - `gemm.cuda.mma-chain`: tensor cores, sixteen products at a time in K's order, whatever the tile.
//! - `gemm.cuda.lanes`: 32 chains that take K in turns, added by halves.
//! - `gemm.wgpu`: chains of 32 steps of K, added in order.
//! - `gemm.foreign`, `gemm.cublaslt`: the `gemm` crate and NVIDIA's library.
//!
//! How operands are rounded before is the problem's own: see [`Compute`].
//!
//! # How it runs
//! On CPUs one driver serves all rows of tiles: see `cpu/`.

mod block_float;
pub(crate) mod cases;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(all(feature = "cuda", not(target_os = "macos")))]
mod cuda_cublaslt;
mod epilogue;
mod foreign;
mod held;
pub(crate) mod reference;
#[cfg(feature = "wgpu")]
pub(crate) mod wgpu;

use std::fmt;

use sinew_tensor::{BlockFormat, DType};

use crate::Compute;
use crate::norm::{Norm, NormDynamic, NormFormula, NormStatic};
use crate::operator::{self, expect, expect_compute};
use crate::packed::{Format, Outputs, PanelKind};
use crate::table::joined;
use crate::{Error, Factors, Operands, Operator, Refusal, Result, Row, Work};

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;
pub use epilogue::{Epilogue, Residual};

/// Matrix products. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Gemm;

/// Input: the left operand, `[batch, M, K]`.
pub const A: usize = 0;
/// Input: the right operand, `[batch, K, N]`, or a packed weight's bytes (`u8`, one dimension, contiguous).
pub const B: usize = 1;
/// Input: the bias, `[N]`, where the epilogue has one.
pub const BIAS: usize = 2;
/// Input: the residual, shaped as the result, where the epilogue reads one that is not the output.
pub const RESIDUAL: usize = 3;
/// Input: the weight of the left operand's norm, `[K]`, where it has one.
pub const NORM_WEIGHT: usize = 4;
/// Input: the bias of the left operand's norm, `[K]`, where it has one.
pub const NORM_BIAS: usize = 5;
/// Input: the columns of the left operand in the packed weight's order, u32 `[K]`, contiguous, where the problem is
/// gathered.
pub const ORDER: usize = 6;
/// Output: the result, `[batch, M, N]`, or `[batch, M, N/2]` where gated.
pub const D: usize = 0;

/// What is known of a product when a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GemmStatic {
    /// Outputs; where gated, gate and up together.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Type of the left operand.
    pub a: DType,
    /// The norm of the left operand's rows, where that is what is multiplied.
    pub norm: Option<InputNorm>,
    /// Whether the right operand is a packed weight that has its inputs in another order, which is an operand.
    pub gathered: bool,
    /// The right operand.
    pub b: Rhs,
    /// Type of the result.
    pub out: DType,
    /// Rounding of operands.
    pub compute: Compute,
    /// What follows the sum.
    pub epilogue: Epilogue,
}

/// The right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rhs {
    /// A tensor `[batch, K, N]` in any strides: activations, batched products.
    Strided(DType),
    /// A weight that [`Format::pack`] packed, shared by the whole batch.
    Packed(&'static Format),
}

/// What each call brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmDynamic {
    /// Products.
    pub batch: usize,
    /// Rows of each.
    pub m: usize,
}

/// The norm of the left operand's rows: its bits are those of [`Norm`] into a tensor of
/// [`InputNorm::to`] that is then multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputNorm {
    /// What is computed of each row.
    pub formula: NormFormula,
    /// What normed values are rounded to, before the product rounds its operands.
    pub to: DType,
}

impl GemmStatic {
    /// A product with nothing after the sum.
    pub fn new(n: usize, k: usize, a: DType, b: Rhs, out: DType, compute: Compute) -> Self {
        Self { n, k, a, norm: None, gathered: false, b, out, compute, epilogue: Epilogue::default() }
    }

    /// The same with an epilogue.
    pub fn with(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// The same of the left operand's norm.
    pub fn of_norm(self, norm: InputNorm) -> Self {
        Self { norm: Some(norm), ..self }
    }

    /// The same with a weight that has its inputs in another order.
    pub fn gathering(self) -> Self {
        Self { gathered: true, ..self }
    }

    /// Columns of the result.
    pub fn columns(&self) -> usize {
        self.outputs().columns()
    }

    /// The norm of its left operand as a problem by itself.
    pub fn norm_alone(&self) -> Option<NormStatic> {
        let InputNorm { formula, to } = self.norm?;
        Some(NormStatic { width: self.k, formula, x: self.a, out: to, residual: None, in_place: false })
    }

    /// Types of the norm's weight and bias, and what it rounds to.
    fn norm_dtypes(&self) -> [Option<DType>; 3] {
        self.norm.map_or([None; 3], |InputNorm { formula, to }| [formula.weight, formula.bias, Some(to)])
    }

    /// The right operand's outputs, as panels share them out.
    fn outputs(&self) -> Outputs {
        Outputs { n: self.n, gated: self.epilogue.gated }
    }

    /// How panels hold the right operand while they are multiplied; none where no panel can.
    fn panel_kind(&self) -> Option<PanelKind> {
        match self.b {
            Rhs::Packed(format) => format.panel_kind(),
            Rhs::Strided(dtype) => PanelKind::of(dtype).map(|kind| match self.compute {
                Compute::F32 => kind,
                Compute::Bf16 => PanelKind::Bf16,
                Compute::Int8 => PanelKind::Blocks(BlockFormat::INT8),
            }),
        }
    }
}

impl fmt::Display for GemmStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n={} k={} ", self.n, self.k)?;
        match self.norm_alone() {
            Some(norm) => write!(f, "({norm})")?,
            None => write!(f, "{}", self.a)?,
        }
        f.write_str(if self.gathered { " gathered·" } else { "·" })?;
        match self.b {
            Rhs::Strided(dtype) => write!(f, "{dtype}")?,
            Rhs::Packed(format) => write!(f, "packed({})", format.name())?,
        }
        write!(f, "→{} in {}{}", self.out, self.compute, self.epilogue)
    }
}

impl fmt::Display for GemmDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.batch != 1 {
            write!(f, "batch={} ", self.batch)?;
        }
        write!(f, "m={}", self.m)
    }
}

fn refuse(reason: String) -> Error {
    operator::refuse(Gemm::NAME, reason)
}

impl Operator for Gemm {
    const NAME: &'static str = "gemm";
    type Static = GemmStatic;
    type Dynamic = GemmDynamic;

    fn bucket(call: GemmDynamic) -> GemmDynamic {
        let up = |n: usize| match n {
            0..=2 => n,
            3..=4 => 4,
            5..=8 => 8,
            9..=16 => 16,
            17..=64 => 64,
            65..=256 => 256,
            257..=1024 => 1024,
            _ => 4096,
        };
        GemmDynamic { batch: up(call.batch), m: up(call.m) }
    }

    fn anchor(_fixed: &GemmStatic) -> GemmDynamic {
        // Prefill: with few rows every row of the table is bound by memory, and there is nothing to choose by.
        GemmDynamic { batch: 1, m: 256 }
    }

    fn check(fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
        let (batch, m, n, k) = (call.batch, call.m, fixed.n, fixed.k);
        let epilogue = &fixed.epilogue;
        let strided = match fixed.b {
            Rhs::Strided(dtype) => Some(dtype),
            Rhs::Packed(_) => None,
        };
        let residual = epilogue.residual_input();
        let [norm_weight, norm_bias, to] = fixed.norm_dtypes();
        let dtypes = [Some(fixed.a), strided, Some(fixed.out), epilogue.bias, residual, norm_weight, norm_bias, to];
        expect_compute(Self::NAME, fixed, dtypes.into_iter().flatten())?;
        if epilogue.gated && !n.is_multiple_of(2) {
            return Err(refuse(format!("{n} outputs cannot be halved into gate and up")));
        }
        expect(Self::NAME, "A", operands.input(Self::NAME, A, "A")?, fixed.a, &[batch, m, k])?;
        let b = operands.input(Self::NAME, B, "B")?;
        match fixed.b {
            Rhs::Strided(dtype) => expect(Self::NAME, "B", b, dtype, &[batch, k, n])?,
            Rhs::Packed(format) => {
                expect(Self::NAME, "the packed weight", b, DType::U8, &[format.packed_bytes(n, k, epilogue.gated)])?;
                if !b.layout().is_contiguous() {
                    return Err(refuse(format!("the packed weight is {:?}, not contiguous", b.layout())));
                }
            }
        }
        let result = [batch, m, fixed.columns()];
        if fixed.gathered && strided.is_some() {
            return Err(refuse(format!("{fixed}: packed weights alone have their inputs in another order")));
        }
        let order = fixed.gathered.then_some(DType::U32);
        let optional: [(usize, &str, Option<DType>, &[usize]); 5] = [
            (BIAS, "the bias", epilogue.bias, &[n]),
            (RESIDUAL, "the residual", residual, &result),
            (NORM_WEIGHT, "the norm's weight", norm_weight, &[k]),
            (NORM_BIAS, "the norm's bias", norm_bias, &[k]),
            (ORDER, "the order", order, &[k]),
        ];
        for (position, name, dtype, shape) in optional {
            match (operands.optional(position), dtype) {
                (Some(view), Some(dtype)) => expect(Self::NAME, name, view, dtype, shape)?,
                (None, None) => {}
                (given, _) => {
                    let words = if given.is_some() { "given but not part of" } else { "missing from" };
                    return Err(refuse(format!("{name} is {words} {fixed}")));
                }
            }
        }
        if let Some(order) = operands.optional(ORDER).filter(|order| !order.layout().is_contiguous()) {
            return Err(refuse(format!("the order is {:?}, not contiguous", order.layout())));
        }
        expect(Self::NAME, "D", operands.output(Self::NAME, D, "D")?, fixed.out, &result)
    }

    fn work(fixed: &GemmStatic, call: &GemmDynamic) -> Work {
        let (batch, m, n, k) = (call.batch as f64, call.m as f64, fixed.n as f64, fixed.k as f64);
        let b = match fixed.b {
            Rhs::Strided(dtype) => batch * k * n * dtype.size() as f64,
            Rhs::Packed(format) => format.packed_bytes(fixed.n, fixed.k, fixed.epilogue.gated) as f64,
        };
        let result = batch * m * fixed.columns() as f64;
        let residual = match fixed.epilogue.residual {
            Some(Residual::Input(dtype)) => dtype.size(),
            Some(Residual::Output) => fixed.out.size(),
            None => 0,
        };
        // A norm is as much work as by itself, but that nothing is written between.
        let normed = fixed.norm_alone().map(|norm| Norm::work(&norm, &NormDynamic { rows: call.batch * call.m }));
        let order = fixed.gathered.then_some(DType::U32);
        let norm = fixed.norm_dtypes();
        let vectors = norm[..2].iter().flatten().chain(&order);
        let vectors: usize = vectors.map(|dtype| fixed.k * dtype.size()).sum();
        let bytes =
            batch * m * k * fixed.a.size() as f64 + b + vectors as f64 + result * (fixed.out.size() + residual) as f64;
        let flops = 2.0 * batch * m * n * k + normed.map_or(0.0, |work| work.flops);
        Work { flops, bytes: if result == 0.0 { 0.0 } else { bytes } }
    }

    fn factors(fixed: &GemmStatic) -> Factors {
        let format = fixed.panel_kind().and_then(PanelKind::blocks);
        Factors { compute: fixed.compute, integers: format.is_some_and(|format| format.values().is_integer()) }
    }
}

/// Refuses what kernels on GPUs do not multiply: norms, gathered columns, packed panels, and dtypes without lanes.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn takes_rows(fixed: &GemmStatic) -> Result<(), Refusal> {
    takes_left_as_it_is(fixed)?;
    let b = match fixed.b {
        Rhs::Packed(format) => match format.dtype() {
            Some(dtype) if format.is_row_major() => dtype,
            _ => return Err(format!("reads packed weights in rows, not {}", format.name()).into()),
        },
        Rhs::Strided(dtype) => dtype,
    };
    if fixed.compute == Compute::Int8 {
        return Err("does not compute in int8".into());
    }
    let epilogue = &fixed.epilogue;
    let dtypes = [Some(fixed.a), Some(b), Some(fixed.out), epilogue.bias, epilogue.residual_input()];
    crate::operator::takes_lanes(dtypes.into_iter().flatten())
}

/// Refuses a left operand that is to be normed or gathered first.
fn takes_left_as_it_is(fixed: &GemmStatic) -> Result<(), Refusal> {
    match fixed.norm {
        Some(_) => Err("norms no left operand".into()),
        None if fixed.gathered => Err("gathers no columns of a left operand".into()),
        None => Ok(()),
    }
}

/// The rows of [`Gemm`], best first.
pub fn rows() -> Vec<Row<Gemm>> {
    joined(&mut [
        cpu::rows::<Gemm>(),
        vec![foreign::ROW],
        #[cfg(all(feature = "cuda", not(target_os = "macos")))]
        vec![cuda_cublaslt::ROW],
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        wgpu::ROWS.to_vec(),
    ])
}
