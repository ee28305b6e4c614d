//! Short blocks of any strided operand as contiguous f32, and back.

use half::{bf16, f16};
use sinew_tensor::DType;

use crate::simd::{LANES, Simd, Stored};

/// Elements of a block. As f32 it is 2 KiB, so that a kernel's few blocks stay in the first-level cache and the
/// conversion costs no traffic to memory.
pub(crate) const BLOCK: usize = 512;

/// Room for a block on the stack.
#[repr(align(64))]
pub(crate) struct Scratch(std::mem::MaybeUninit<[f32; BLOCK]>);

impl Scratch {
    /// Room whose contents are unspecified.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(std::mem::MaybeUninit::uninit())
    }

    /// The first value.
    #[inline(always)]
    pub(crate) fn ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// `len` elements from `ptr` on, `step` apart, as f32: in place where they lie so already, else widened into
/// `scratch`.
///
/// # Safety
/// Those of [`Simd`]; `dtype` is f32, f16 or bf16; the elements are readable; `len` is at most [`BLOCK`] and `scratch`
/// holds as many.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd>(
    dtype: DType,
    ptr: *const u8,
    step: usize,
    len: usize,
    scratch: *mut f32,
) -> *const f32 {
    debug_assert!(len <= BLOCK && DType::COMPUTE.contains(&dtype));
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F32 if step == 1 => return ptr.cast(),
            DType::F32 => widen::<S, f32>(ptr.cast(), step, len, scratch),
            DType::F16 => widen::<S, f16>(ptr.cast(), step, len, scratch),
            _ => widen::<S, bf16>(ptr.cast(), step, len, scratch),
        }
    }
    scratch
}

/// Where a kernel puts `len` f32 results so that [`store`] has least to do: the destination itself where it takes
/// them as they are, else `scratch`.
#[inline(always)]
pub(crate) fn target(dtype: DType, ptr: *mut u8, step: usize, scratch: *mut f32) -> *mut f32 {
    if dtype == DType::F32 && step == 1 { ptr.cast() } else { scratch }
}

/// Rounds `len` f32 values to `dtype` at `ptr`, `step` elements apart. Nothing is done where `values` came from
/// [`target`] and is the destination.
///
/// # Safety
/// As for [`load`], with elements at `ptr` that this task alone may write.
#[inline(always)]
pub(crate) unsafe fn store<S: Simd>(dtype: DType, ptr: *mut u8, step: usize, len: usize, values: *const f32) {
    debug_assert!(DType::COMPUTE.contains(&dtype));
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F32 if std::ptr::eq(ptr.cast(), values) => {}
            DType::F32 => narrow::<S, f32>(ptr.cast(), step, len, values),
            DType::F16 => narrow::<S, f16>(ptr.cast(), step, len, values),
            _ => narrow::<S, bf16>(ptr.cast(), step, len, values),
        }
    }
}

#[inline(always)]
unsafe fn widen<S: Simd, T: Stored>(ptr: *const T, step: usize, len: usize, out: *mut f32) {
    // SAFETY: the caller names `len` elements `step` apart and as much room.
    unsafe {
        if step == 1 {
            let whole = len - len % LANES;
            for i in (0..whole).step_by(LANES) {
                S::store(out.add(i), T::load::<S>(ptr.add(i)));
            }
            if whole < len {
                S::store_n(out.add(whole), T::load_n::<S>(ptr.add(whole), len - whole), len - whole);
            }
        } else if step == 0 {
            let x = (*ptr).widen();
            (0..len).for_each(|i| *out.add(i) = x);
        } else {
            // Sixteen at a time, so that the conversion at least is done in lanes.
            let mut few = [T::zeroed(); LANES];
            let mut i = 0;
            while i < len {
                let n = (len - i).min(LANES);
                (0..n).for_each(|j| few[j] = *ptr.add((i + j) * step));
                S::store_n(out.add(i), T::load::<S>(few.as_ptr()), n);
                i += n;
            }
        }
    }
}

#[inline(always)]
unsafe fn narrow<S: Simd, T: Stored>(ptr: *mut T, step: usize, len: usize, values: *const f32) {
    // SAFETY: the caller names `len` elements `step` apart and as many values.
    unsafe {
        if step == 1 {
            let whole = len - len % LANES;
            for i in (0..whole).step_by(LANES) {
                T::store::<S>(ptr.add(i), S::load(values.add(i)));
            }
            if whole < len {
                T::store_n::<S>(ptr.add(whole), S::load_n(values.add(whole), len - whole), len - whole);
            }
        } else {
            let mut few = [T::zeroed(); LANES];
            let mut i = 0;
            while i < len {
                let n = (len - i).min(LANES);
                T::store::<S>(few.as_mut_ptr(), S::load_n(values.add(i), n));
                (0..n).for_each(|j| *ptr.add((i + j) * step) = few[j]);
                i += n;
            }
        }
    }
}
