//! What rows of the CPU share: their SIMD levels, and how they walk operands of any strides.

pub(crate) mod leveled;
pub(crate) mod line;
pub(crate) mod row_walk;
pub(crate) mod strided;
