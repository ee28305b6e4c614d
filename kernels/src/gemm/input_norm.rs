//! The norm of a product's left operand.

use sinew_tensor::DType;

use super::GemmStatic;
use crate::norm::{NormFormula, NormStatic};

/// The norm of the left operand's rows: its bits are those of [`Norm`](crate::norm::Norm) into a tensor of
/// [`InputNorm::to`] that is then multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputNorm {
    /// What is computed of each row.
    pub formula: NormFormula,
    /// What normed values are rounded to, before the product rounds its operands.
    pub to: DType,
}

impl GemmStatic {
    /// The norm of its left operand as a problem by itself.
    pub fn norm_alone(&self) -> Option<NormStatic> {
        let InputNorm { formula, to } = self.norm?;
        Some(NormStatic { width: self.k, formula, x: self.a, out: to, residual: None, in_place: false })
    }
}
