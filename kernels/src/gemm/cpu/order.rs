//! The order in which a packed weight has its inputs, where that is not the left operand's.

use sinew_tensor::View;

use crate::Result;
use crate::gemm::{GemmStatic, refuse};

/// For each step of a weight's sums the column of the left operand that is multiplied, for one weight after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    ptr: *const u32,
}

impl Order {
    /// That of a problem, if it has one.
    ///
    /// # Errors
    /// A column that is not there, or device memory.
    pub fn new(fixed: &GemmStatic, order: Option<&View<'_>>) -> Result<Option<Self>> {
        let Some(order) = order.filter(|_| fixed.gathered) else { return Ok(None) };
        let ptr: *const u32 = order.host_ptr()?.cast();
        // SAFETY: the operator's check has seen that they are contiguous u32.
        let column = |at: usize| unsafe { ptr.add(at).read_unaligned() } as usize;
        // All are looked at, so that it can be done in vectors: their number is that of one row.
        let columns = order.layout().elements();
        if !(0..columns).fold(true, |there, at| there & (column(at) < fixed.k)) {
            let at = (0..columns).find(|&at| column(at) >= fixed.k).unwrap_or(0);
            return Err(refuse(format!("the order names column {} of {}", column(at), fixed.k)));
        }
        Ok(Some(Self { ptr }))
    }

    /// That of the weight with some number, of which each has `k` inputs.
    #[inline(always)]
    pub fn of(self, right: usize, k: usize) -> *const u32 {
        self.ptr.wrapping_add(right * k)
    }
}
