//! What rows of the CPU share: their SIMD levels, and how they walk rows and spans of operands.

pub(crate) mod leveled;
pub(crate) mod line;
pub(crate) mod row_walk;
