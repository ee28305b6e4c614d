//! Products of rows that fall into groups, each with a weight of its own: the experts of a mixture.
//!
//! `D[i] = epilogue(A[i] · B[g] + bias[g])` for the rows `i` of group `g`, which are `offsets[g]..offsets[g + 1]`. `A`
//! is `[rows, K]`, `B` holds the groups' weights packed one behind another, each as [`Format::pack`] packs it alone,
//! `bias`, where there is one, is `[groups, N]`, and `D` is `[rows, N]`; or, gated, the epilogue is that of
//! [`gemm`], `act(x[n]) · f(x[n + N/2])`, and `D` is `[rows, N/2]`.
//!
//! The offsets are read where the kernel runs, so that which rows are whose need not be known when it is enqueued
//! (after MegaBlocks, Gale et al. 2022). Offsets that do not begin with 0, decrease, or do not end with the number of
//! rows are an error: on a CPU nothing is written, on a GPU it shows when the stream is synchronised. A group without
//! rows costs nothing.
//!
//! # Arithmetic
//! That of [`gemm`]'s rows of the same way, whose tiles and texts these are: a row has the same bits as in
//! a product with its group's weight and bias alone.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;

use sinew_tensor::DType;

use crate::activation::Activation;
use crate::gemm::{self, Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use crate::operator::{self, count_of, expect, expect_compute};
use crate::packed::Format;
use crate::table::joined;
use crate::{Compute, Factors, Operands, Operator, Result, Row, Work};

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

/// Products of grouped rows. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct GroupedGemm;

impl GroupedGemm {
    /// Input: the rows, `[rows, K]`, group after group.
    pub const A: usize = 0;
    /// Input: the packed weights' bytes (`u8`, one dimension, contiguous).
    pub const B: usize = 1;
    /// Input: where each group's rows begin, and the number of all rows: i32 `[groups + 1]`.
    pub const OFFSETS: usize = 2;
    /// Input: the columns of the rows in the order of each packed weight, u32 `[groups, K]`, contiguous, where the
    /// problem is gathered.
    pub const ORDER: usize = 3;
    /// Input: the bias of each group's outputs, `[groups, N]` in any strides, where the problem has one; where gated, that
    /// of the gates, then that of the ups.
    pub const BIAS: usize = 4;
    /// Output: `[rows, N]`, or `[rows, N/2]` where gated.
    pub const D: usize = 0;
}

/// What is known of the products when a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupedGemmStatic {
    /// Groups.
    pub groups: usize,
    /// Outputs of each weight; where gated, gate and up together.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Type of the rows.
    pub a: DType,
    /// How each weight is packed.
    pub format: &'static Format,
    /// Whether the weights have their inputs in orders of their own: see [`GemmStatic::gathered`].
    pub gathered: bool,
    /// Type of the groups' biases, if they have them.
    pub bias: Option<DType>,
    /// Type of the result.
    pub out: DType,
    /// Rounding of operands.
    pub compute: Compute,
    /// The activation by which the first half of the outputs gates the second.
    pub gated: Option<Activation>,
}

impl GroupedGemmStatic {
    /// The product with one group's weight and bias.
    pub fn product(&self) -> GemmStatic {
        let (bias, activation, gated) = (self.bias, self.gated, self.gated.is_some());
        let epilogue = Epilogue { bias, activation, gated, ..Epilogue::default() };
        let product =
            GemmStatic::new(self.n, self.k, self.a, Rhs::Packed(self.format), self.out, self.compute).with(epilogue);
        GemmStatic { gathered: self.gathered, ..product }
    }

    /// Bytes of one group's weight.
    pub fn weight_bytes(&self) -> usize {
        self.format.packed_bytes(self.n, self.k, self.gated.is_some())
    }
}

impl fmt::Display for GroupedGemmStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", count_of(self.groups, "group"), self.product())
    }
}

/// What each call brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedGemmDynamic {
    /// Rows of all groups.
    pub rows: usize,
}

impl fmt::Display for GroupedGemmDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.rows, "row"))
    }
}

impl Operator for GroupedGemm {
    const NAME: &'static str = "grouped_gemm";
    type Static = GroupedGemmStatic;
    type Dynamic = GroupedGemmDynamic;

    fn bucket(call: GroupedGemmDynamic) -> GroupedGemmDynamic {
        GroupedGemmDynamic { rows: call.rows.min(1 << 16).next_power_of_two() }
    }

    fn anchor(fixed: &GroupedGemmStatic) -> GroupedGemmDynamic {
        // Each group has what a product's anchor has, so that both choose alike.
        let GemmDynamic { m, .. } = Gemm::anchor(&fixed.product());
        GroupedGemmDynamic { rows: fixed.groups.saturating_mul(m) }
    }

    fn check(fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, operands: Operands<'_>) -> Result<()> {
        expect_compute(Self::NAME, fixed, [fixed.a, fixed.out].into_iter().chain(fixed.bias))?;
        let refuse = |reason| Err(operator::refuse(Self::NAME, reason));
        if fixed.gated.is_some() && !fixed.n.is_multiple_of(2) {
            return refuse(format!("{} outputs cannot be halved into gate and up", fixed.n));
        }
        if i32::try_from(call.rows).is_err() {
            return refuse(format!("{} rows are more than offsets of i32 count", call.rows));
        }
        expect(Self::NAME, "A", operands.input(Self::NAME, Self::A, "A")?, fixed.a, &[call.rows, fixed.k])?;
        let b = operands.input(Self::NAME, Self::B, "B")?;
        let bytes = fixed.weight_bytes().saturating_mul(fixed.groups);
        expect(Self::NAME, "the packed weights", b, DType::U8, &[bytes])?;
        if !b.layout().is_contiguous() {
            return refuse(format!("the packed weights are {:?}, not contiguous", b.layout()));
        }
        let offsets = operands.input(Self::NAME, Self::OFFSETS, "offsets")?;
        expect(Self::NAME, "offsets", offsets, DType::I32, &[fixed.groups + 1])?;
        let order = fixed.gathered.then_some(DType::U32);
        let optional = [(Self::ORDER, "the order", order, fixed.k), (Self::BIAS, "the bias", fixed.bias, fixed.n)];
        for (position, name, dtype, size) in optional {
            match (operands.optional(position), dtype) {
                (Some(view), Some(dtype)) => expect(Self::NAME, name, view, dtype, &[fixed.groups, size])?,
                (None, None) => {}
                (Some(_), None) => return refuse(format!("{name} is given but not part of {fixed}")),
                (None, Some(_)) => return refuse(format!("{name} is missing from {fixed}")),
            }
        }
        if let Some(order) = operands.optional(Self::ORDER).filter(|order| !order.layout().is_contiguous()) {
            return refuse(format!("the order is {:?}, not contiguous", order.layout()));
        }
        let d = operands.output(Self::NAME, Self::D, "D")?;
        expect(Self::NAME, "D", d, fixed.out, &[call.rows, fixed.product().columns()])
    }

    fn work(fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic) -> Work {
        let one = Gemm::work(&fixed.product(), &GemmDynamic { batch: 1, m: call.rows });
        // As many groups are read as may have a row.
        let others = call.rows.min(fixed.groups).saturating_sub(1) as f64;
        Work { bytes: one.bytes + others * fixed.weight_bytes() as f64, ..one }
    }

    fn factors(fixed: &GroupedGemmStatic) -> Factors {
        Gemm::factors(&fixed.product())
    }
}

/// The rows of [`GroupedGemm`], best first.
pub fn rows() -> Vec<Row<GroupedGemm>> {
    joined(&mut [
        gemm::cpu::rows::<GroupedGemm>(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        wgpu::ROWS.to_vec(),
    ])
}
