//! Integer operands whose contents are indices.

use sinew_tensor::{DType, View};

use super::{Address, Walk};
use crate::Result;
use crate::operator::refuse;

/// Indices of one of [`Indices::DTYPES`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices {
    ptr: Address,
    dtype: DType,
}

impl Indices {
    /// The dtypes that indices may have.
    pub(crate) const DTYPES: [DType; 3] = [DType::U32, DType::I32, DType::I64];

    /// Checks the dtype.
    pub(crate) fn check_dtype(operator: &'static str, name: &str, dtype: DType) -> Result<()> {
        if Self::DTYPES.contains(&dtype) {
            return Ok(());
        }
        Err(refuse(operator, format!("{name} are {dtype}; expected u32, i32 or i64")))
    }

    /// The indices of a view, all of which are below `limit`.
    ///
    /// # Errors
    /// The first index that is negative or too large; the message says `what` they count.
    pub(crate) fn checked(operator: &'static str, view: &View<'_>, limit: usize, what: &str) -> Result<Self> {
        debug_assert!(Self::DTYPES.contains(&view.dtype()));
        let indices = Self { ptr: Address::read(view.host_ptr()?), dtype: view.dtype() };
        // Repeated elements are read once.
        let mut shape = [1; sinew_tensor::MAX_RANK];
        for (d, (&size, &stride)) in view.shape().iter().zip(view.strides()).enumerate() {
            shape[d] = if stride == 0 { size.min(1) } else { size };
        }
        let walk = Walk::of(&shape[..view.shape().len()], |d| [view.strides()[d]]);
        for run in walk.all() {
            for i in 0..run.len {
                // SAFETY: the walk stays inside the view, which stays inside its buffer.
                let index = unsafe { indices.raw(run.at[0] + i * walk.steps[0]) };
                if usize::try_from(index).is_ok_and(|index| index < limit) {
                    continue;
                }
                let reason = format!("index {index} at position {} is outside the {limit} {what}", run.first + i);
                return Err(refuse(operator, reason));
            }
        }
        Ok(indices)
    }

    /// # Safety
    /// `at` is an element of the view.
    #[inline(always)]
    unsafe fn raw(&self, at: usize) -> i64 {
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::U32 => i64::from(*self.ptr.at(at, 4).cast::<u32>()),
                DType::I32 => i64::from(*self.ptr.at(at, 4).cast::<i32>()),
                _ => *self.ptr.at(at, 8).cast::<i64>(),
            }
        }
    }

    /// The index at an element, counted from the element of index 0.
    ///
    /// # Safety
    /// `at` is an element of the view that [`Indices::checked`] saw, and nothing has written it since.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, at: usize) -> usize {
        // SAFETY: passed on.
        unsafe { self.raw(at) as usize }
    }
}

/// Writes an index as one of [`Indices::DTYPES`].
///
/// # Safety
/// `at` is an element of that dtype which this task alone writes.
#[inline(always)]
pub(crate) unsafe fn store_index(dtype: DType, at: *mut u8, index: usize) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::U32 => *at.cast::<u32>() = index as u32,
            DType::I32 => *at.cast::<i32>() = index as i32,
            _ => *at.cast::<i64>() = index as i64,
        }
    }
}

/// The largest index that a dtype holds.
pub(crate) fn largest_index(dtype: DType) -> usize {
    match dtype {
        DType::U32 => u32::MAX as usize,
        DType::I32 => i32::MAX as usize,
        _ => i64::MAX as usize,
    }
}
