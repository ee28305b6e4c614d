//! Elementwise arithmetic, comparison and selection.
//!
//! Every operand has the shape of the result; broadcasting is a view with strides of 0, made by the caller. Floats of
//! 16 bits are computed in f32 and rounded once; f64 and integers are computed as they are (integers wrap).

mod binary;
mod cpu;
mod cpu_wide;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
mod unary;
#[cfg(feature = "wgpu")]
mod wgpu;
mod r#where;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

pub use binary::{Binary, BinaryDynamic, BinaryFunction, BinaryStatic};
pub use unary::{Unary, UnaryFunction, UnaryStatic};
pub use r#where::{Where, WhereStatic};

use std::fmt;

use sinew_tensor::{DType, View};

use crate::Result;
use crate::operator::{Row, count_of, refuse};
use crate::table::joined;

/// The rows of [`Unary`].
pub fn unary_rows() -> Vec<Row<Unary>> {
    joined(&mut [
        cpu::unary_rows(),
        cpu_wide::unary_rows(),
        #[cfg(feature = "cuda")]
        vec![cuda::unary_row()],
        #[cfg(feature = "wgpu")]
        vec![wgpu::unary_row()],
    ])
}

/// The rows of [`Binary`].
pub fn binary_rows() -> Vec<Row<Binary>> {
    joined(&mut [
        cpu::binary_rows(),
        cpu_wide::binary_rows(),
        #[cfg(feature = "cuda")]
        vec![cuda::binary_row()],
        #[cfg(feature = "wgpu")]
        vec![wgpu::binary_row()],
    ])
}

/// The rows of [`Where`].
pub fn where_rows() -> Vec<Row<Where>> {
    joined(&mut [
        cpu_wide::where_rows(),
        #[cfg(feature = "cuda")]
        vec![cuda::where_row()],
        #[cfg(feature = "wgpu")]
        vec![wgpu::where_row()],
    ])
}

/// The dynamic part of an elementwise problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elements(pub usize);

impl Elements {
    /// What all calls are chosen by: rows differ in speed by a factor, whatever the number of elements.
    pub(crate) const TYPICAL: Self = Self(1 << 16);
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.0, "element"))
    }
}

/// Integers that elementwise kernels compute on.
pub(crate) const INTEGERS: [DType; 6] = [DType::I64, DType::I32, DType::I16, DType::I8, DType::U32, DType::U8];

/// Checks the number of elements that a call names.
pub(crate) fn expect_elements(operator: &'static str, view: &View<'_>, elements: usize) -> Result<()> {
    if view.layout().elements() == elements {
        return Ok(());
    }
    let reason = format!("the output has {:?}, the call names {elements} elements", view.layout());
    Err(refuse(operator, reason))
}
