//! Spans of one dimension of f32, f16 or bf16 on the host: how kernels read them as f32, and round results to them.

use half::{bf16, f16};
use sinew_tensor::{DType, View};

use crate::Result;
use crate::simd::{LANES, Simd, Stored};
use crate::strided::{Address, BLOCK};

/// A span of one dimension of an operand of f32, f16 or bf16. It may begin at any address: a checkpoint's tensors do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    first: Address,
    /// From an element to the next, in elements.
    pub step: usize,
    /// Their type.
    pub dtype: DType,
}

impl Line {
    /// The first line of a view along its last dimension.
    ///
    /// # Errors
    /// Those of [`View::host_ptr`].
    pub(crate) fn of(view: &View<'_>) -> Result<Self> {
        let step = view.strides().last().copied().unwrap_or(0);
        Ok(Self::new(view.host_ptr()?, view.dtype(), step))
    }

    /// Elements from `ptr` on, `step` apart.
    #[inline(always)]
    pub(crate) fn new(ptr: *const u8, dtype: DType, step: usize) -> Self {
        Self { first: Address::read(ptr), step, dtype }
    }

    /// Elements of type `T` from `ptr` on, `step` apart.
    #[inline(always)]
    pub(crate) fn typed<T: Stored>(ptr: *const T, step: usize) -> Self {
        Self::new(ptr.cast(), T::DTYPE, step)
    }

    /// Where the first element is.
    #[inline(always)]
    pub(crate) fn ptr(self) -> *const u8 {
        self.first.0.cast_const()
    }

    /// The line that begins so many elements of memory further on: a neighbour.
    #[inline(always)]
    pub(crate) fn moved(self, elements: usize) -> Self {
        Self { first: Address(self.first.at(elements, self.dtype.size())), ..self }
    }

    /// The rest of the line behind its first `n` elements.
    #[inline(always)]
    pub(crate) fn skip(self, n: usize) -> Self {
        self.moved(n * self.step)
    }

    /// Whether its elements are f32 side by side.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.dtype == DType::F32 && self.step == 1
    }

    /// Its first `n` elements, at most 16, widened; zeros behind them.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `n` elements of its type.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd>(self, n: usize) -> S::F {
        debug_assert!(DType::COMPUTE.contains(&self.dtype));
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::F16 => self.load_as::<S, f16>(n),
                DType::BF16 => self.load_as::<S, bf16>(n),
                _ => self.load_as::<S, f32>(n),
            }
        }
    }

    /// [`Line::load`] where the type is known.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn load_as<S: Simd, T: Stored>(self, n: usize) -> S::F {
        debug_assert!(n <= LANES && self.dtype == T::DTYPE);
        let p = self.ptr().cast::<T>();
        // SAFETY: passed on; what is gathered is sixteen elements.
        unsafe {
            match (self.step, n) {
                (1, LANES) => T::load::<S>(p),
                (1, _) => T::load_n::<S>(p, n),
                _ => T::load::<S>(self.gather::<T>(n).as_ptr()),
            }
        }
    }

    /// The elements that `order` names, `n` of them and at most 16, widened; zeros behind them.
    ///
    /// # Safety
    /// Those of [`Simd`]; there are `n` numbers at `order`, and the line has these elements.
    #[inline(always)]
    pub(crate) unsafe fn load_at<S: Simd>(self, order: *const u32, n: usize) -> S::F {
        debug_assert!(DType::COMPUTE.contains(&self.dtype));
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::F16 => self.load_at_as::<S, f16>(order, n),
                DType::BF16 => self.load_at_as::<S, bf16>(order, n),
                _ => self.load_at_as::<S, f32>(order, n),
            }
        }
    }

    /// [`Line::load_at`] where the type is known.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn load_at_as<S: Simd, T: Stored>(self, order: *const u32, n: usize) -> S::F {
        debug_assert!(n <= LANES && self.dtype == T::DTYPE);
        let p = self.ptr().cast::<T>();
        let mut values = [T::zeroed(); LANES];
        // SAFETY: passed on; the array holds sixteen elements.
        unsafe {
            for (i, value) in values.iter_mut().enumerate().take(n) {
                *value = p.add(order.add(i).read_unaligned() as usize * self.step).read_unaligned();
            }
            T::load::<S>(values.as_ptr())
        }
    }

    /// Its first `n` elements, at most 16, as they are; zeros behind them.
    ///
    /// # Safety
    /// The line has `n` elements of `T`.
    #[inline(always)]
    pub(crate) unsafe fn gather<T: Stored>(self, n: usize) -> [T; LANES] {
        debug_assert!(n <= LANES && self.dtype == T::DTYPE);
        let p = self.ptr().cast::<T>();
        let mut values = [T::zeroed(); LANES];
        for (i, value) in values.iter_mut().enumerate().take(n) {
            // SAFETY: passed on.
            *value = unsafe { p.add(i * self.step).read_unaligned() };
        }
        values
    }

    /// Rounds the first `n` lanes, at most 16, to its first elements.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `n` elements of its type, which this task alone may write.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(self, v: S::F, n: usize) {
        debug_assert!(DType::COMPUTE.contains(&self.dtype));
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::F16 => self.store_as::<S, f16>(v, n),
                DType::BF16 => self.store_as::<S, bf16>(v, n),
                _ => self.store_as::<S, f32>(v, n),
            }
        }
    }

    /// [`Line::store`] where the type is known.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn store_as<S: Simd, T: Stored>(self, v: S::F, n: usize) {
        debug_assert!(n <= LANES && self.dtype == T::DTYPE);
        let p = self.first.0.cast::<T>();
        // SAFETY: passed on; the array holds sixteen elements.
        unsafe {
            match (self.step, n) {
                (1, LANES) => T::store::<S>(p, v),
                (1, _) => T::store_n::<S>(p, v, n),
                _ => {
                    let mut values = [T::zeroed(); LANES];
                    T::store::<S>(values.as_mut_ptr(), v);
                    for (i, value) in values.iter().enumerate().take(n) {
                        p.add(i * self.step).write_unaligned(*value);
                    }
                }
            }
        }
    }

    /// Its first `len` elements, at most a block, as f32: where they lie if the line is plain, else widened into
    /// `scratch`.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `len` elements of its type; `scratch` holds a block.
    #[inline(always)]
    pub(crate) unsafe fn block<S: Simd>(self, len: usize, scratch: *mut f32) -> *const f32 {
        debug_assert!(len <= BLOCK);
        if self.is_plain() {
            return self.ptr().cast();
        }
        // SAFETY: passed on.
        unsafe { self.widen::<S>(len, scratch) };
        scratch
    }

    /// Widens its first `len` elements, of which there is one at least, to `out`.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `len` elements of its type; `out` has room for them.
    #[inline(always)]
    pub(crate) unsafe fn widen<S: Simd>(self, len: usize, out: *mut f32) {
        debug_assert!(DType::COMPUTE.contains(&self.dtype));
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::F16 => self.widen_as::<S, f16>(len, out),
                DType::BF16 => self.widen_as::<S, bf16>(len, out),
                _ => self.widen_as::<S, f32>(len, out),
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_as<S: Simd, T: Stored>(self, len: usize, out: *mut f32) {
        let p = self.ptr().cast::<T>();
        // SAFETY: passed on.
        unsafe {
            if self.step == 1 {
                let whole = len - len % LANES;
                for i in (0..whole).step_by(LANES) {
                    S::store(out.add(i), T::load::<S>(p.add(i)));
                }
                if whole < len {
                    S::store_n(out.add(whole), T::load_n::<S>(p.add(whole), len - whole), len - whole);
                }
            } else if self.step == 0 {
                let x = p.read_unaligned().widen();
                (0..len).for_each(|i| *out.add(i) = x);
            } else {
                // Sixteen at a time, so that the conversion at least is done in lanes.
                for i in (0..len).step_by(LANES) {
                    let n = (len - i).min(LANES);
                    S::store_n(out.add(i), T::load::<S>(self.skip(i).gather::<T>(n).as_ptr()), n);
                }
            }
        }
    }

    /// Where a block of results is put before [`Line::store_block`]: in the line itself if it is plain, else in
    /// `scratch`.
    #[inline(always)]
    pub(crate) fn place(self, scratch: *mut f32) -> *mut f32 {
        if self.is_plain() { self.first.0.cast() } else { scratch }
    }

    /// Rounds `len` values to its first elements, unless they lie there already.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `len` elements of its type, which this task alone may write; there are as many
    /// values.
    #[inline(always)]
    pub(crate) unsafe fn store_block<S: Simd>(self, len: usize, values: *const f32) {
        debug_assert!(DType::COMPUTE.contains(&self.dtype));
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::F16 => self.narrow_as::<S, f16>(len, values),
                DType::BF16 => self.narrow_as::<S, bf16>(len, values),
                _ if std::ptr::eq(self.ptr().cast(), values) => {}
                _ => self.narrow_as::<S, f32>(len, values),
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_as<S: Simd, T: Stored>(self, len: usize, values: *const f32) {
        let p = self.first.0.cast::<T>();
        // SAFETY: passed on.
        unsafe {
            if self.step == 1 {
                let whole = len - len % LANES;
                for i in (0..whole).step_by(LANES) {
                    T::store::<S>(p.add(i), S::load(values.add(i)));
                }
                if whole < len {
                    T::store_n::<S>(p.add(whole), S::load_n(values.add(whole), len - whole), len - whole);
                }
            } else {
                for i in (0..len).step_by(LANES) {
                    let n = (len - i).min(LANES);
                    self.skip(i).store_as::<S, T>(S::load_n(values.add(i), n), n);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{SimdLevel, Team};

    use super::*;
    use crate::simd::{Kernel, launch};

    /// Writes values to a line and reads them back by sixteen and by block, at an odd address.
    struct There<T> {
        step: usize,
        len: usize,
        narrow: fn(f32) -> T,
    }

    impl<T: Stored> Kernel for There<T> {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            let Self { step, len, narrow } = *self;
            let values: Vec<f32> = (0..len).map(|i| 0.37 * i as f32 - 5.0).collect();
            let want: Vec<f32> = values.iter().map(|&x| narrow(x).widen()).collect();
            let size = (len * step + 1) * size_of::<T>();
            let mut by_block = vec![0xff_u8; size + 1];
            let mut by_sixteen = by_block.clone();
            // SAFETY: the bytes hold the line, and each room a block; the machine has the level.
            unsafe {
                let line = Line::new(by_block.as_mut_ptr().add(1), T::DTYPE, step);
                line.store_block::<S>(len, values.as_ptr());
                let other = Line::new(by_sixteen.as_mut_ptr().add(1), T::DTYPE, step);
                for i in (0..len).step_by(LANES) {
                    let n = (len - i).min(LANES);
                    let v = S::load_n(values.as_ptr().add(i), n);
                    if i == 0 { other.store::<S>(v, n) } else { other.skip(i).store_as::<S, T>(v, n) }
                }
                let mut back = [7.0; BLOCK];
                line.widen::<S>(len, back.as_mut_ptr());
                assert_eq!((&back[..len], back[len]), (&want[..], 7.0), "{} {} {step}", S::LEVEL, T::DTYPE);
                for i in (0..len).step_by(LANES) {
                    let n = (len - i).min(LANES);
                    let mut sixteen = [7.0; LANES];
                    let v = if i == 0 { line.load::<S>(n) } else { line.skip(i).load_as::<S, T>(n) };
                    S::store(sixteen.as_mut_ptr(), v);
                    assert_eq!(sixteen[..n], want[i..i + n], "{} {} {step}", S::LEVEL, T::DTYPE);
                    assert!(sixteen[n..].iter().all(|&x| x == 0.0), "{} {} {step}", S::LEVEL, T::DTYPE);
                }
            }
            // What lies between elements and behind them is left as it was.
            assert_eq!(by_block, by_sixteen, "{} {} {step}", S::LEVEL, T::DTYPE);
            let between = |i: &usize| *i > 0 && !((i - 1) / size_of::<T>()).is_multiple_of(step);
            let untouched = (0..size).filter(between).chain(1 + len * step * size_of::<T>()..=size);
            assert!(untouched.map(|i| by_block[i]).all(|byte| byte == 0xff), "{} {} {step}", S::LEVEL, T::DTYPE);
        }
    }

    #[test]
    fn lines_of_any_type_step_and_address_are_written_and_read_back_at_every_level() {
        let team = Team::new(1).unwrap();
        for level in SimdLevel::ALL {
            for step in [1, 3] {
                for len in [1, 15, 16, 40] {
                    // SAFETY: the kernels rely on nothing.
                    unsafe {
                        launch(level, &team, 1, &There::<f32> { step, len, narrow: f32::narrow });
                        launch(level, &team, 1, &There::<f16> { step, len, narrow: f16::narrow });
                        launch(level, &team, 1, &There::<bf16> { step, len, narrow: bf16::narrow });
                    }
                }
            }
        }
    }
}
