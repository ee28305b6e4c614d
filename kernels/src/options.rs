//! Options of problems that more than one operator has: f32 values that are compared and hashed, and the rounding of
//! products' operands.

use std::fmt;

/// An f32 that is compared and hashed by its bits, for the static part of problems.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct F32Bits(u32);

impl F32Bits {
    /// The bits of a value.
    pub const fn new(value: f32) -> Self {
        Self(value.to_bits())
    }

    /// The value.
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl From<f32> for F32Bits {
    fn from(value: f32) -> Self {
        Self::new(value)
    }
}

impl fmt::Debug for F32Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl fmt::Display for F32Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As short as it can be: norms' eps is 1e-6, not 0.000001.
        write!(f, "{:?}", self.get())
    }
}

/// How operands are rounded before they are multiplied. Sums are f32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Every operand is widened to f32, exactly.
    F32,
    /// Activations are rounded to bf16: both operands of a product of tensors, queries and softmax weights in
    /// attention. A packed weight and cached keys are taken as they are stored.
    /// Beside integers of a packed weight they may be rounded once more, to 16 bits below the largest of their group: see
    /// `gemm.int16-groups` under [arithmetic](crate::gemm#arithmetic).
    Bf16,
    /// Activations are rounded to int8, with a scale for each group of the weight, and multiplied with its integers; of
    /// products of tensors both operands, in groups of 128 values along K. Matrix products only.
    Int8,
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

/// What a problem multiplies: which of a device's rates of arithmetic is its limit.
///
/// ```
/// use sinew_kernels::rates::{ArithmeticPeaks, Peaks};
/// use sinew_kernels::{Compute, Factors};
///
/// // Where dot products of bf16 are slow, integers are best multiplied with the two bytes of each activation.
/// let arithmetic = ArithmeticPeaks { f32_flops_per_s: 3e11, bf16_flops_per_s: 2e11, int8_ops_per_s: 1e12 };
/// let peaks = Peaks { memory_bytes_per_s: 3e10, arithmetic: Some(arithmetic) };
/// assert_eq!(peaks.flops_per_s(Compute::Bf16), Some(3e11));
/// assert_eq!(peaks.flops_per_s(Factors { compute: Compute::Bf16, integers: true }), Some(5e11));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factors {
    /// How they are rounded.
    pub compute: Compute,
    /// Whether one of them is a packed weight's integers, which may be multiplied as such even where the other is bf16.
    pub integers: bool,
}

/// Without a weight's integers.
impl From<Compute> for Factors {
    fn from(compute: Compute) -> Self {
        Self { compute, integers: false }
    }
}
