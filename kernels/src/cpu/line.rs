//! Spans of one dimension of f32, f16 or bf16 on the host: how kernels read them as f32, and round results to them.

use float8::F8E4M3;
use half::{bf16, f16};
use sinew_tensor::{DType, View};

use crate::Result;
use crate::simd::{LANES, Part, Simd, Stored};
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
        debug_assert!(DType::COMPUTE.contains(&self.dtype) && n <= LANES);
        // SAFETY: passed on.
        unsafe {
            if self.step == 1 && n == LANES {
                match self.dtype {
                    DType::F16 => f16::load::<S>(self.ptr().cast()),
                    DType::BF16 => bf16::load::<S>(self.ptr().cast()),
                    _ => S::load(self.ptr().cast()),
                }
            } else {
                self.gather::<S>(None, n)
            }
        }
    }

    /// Sixteen elements one by one, the first `n` of the line or those that an order names; of any type, codes too.
    ///
    /// # Safety
    /// The contract of [`Line::load`] holds, and an order has `n` numbers.
    #[inline(always)]
    pub(crate) unsafe fn gather<S: Simd>(self, order: Option<*const u32>, n: usize) -> S::F {
        debug_assert!(n <= LANES);
        let mut values = [0.0; LANES];
        // SAFETY: passed on; the array holds sixteen.
        unsafe {
            S::part(Widen { line: self, order, len: n, out: values.as_mut_ptr() });
            S::load(values.as_ptr())
        }
    }

    /// [`Line::load`] where the type is known, which may be that of codes.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn load_as<S: Simd, T: Stored>(self, n: usize) -> S::F {
        debug_assert!(self.dtype == T::DTYPE);
        // SAFETY: passed on.
        unsafe {
            if self.step == 1 && n == LANES { T::load::<S>(self.ptr().cast()) } else { self.gather::<S>(None, n) }
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
        unsafe { self.gather::<S>(Some(order), n) }
    }

    /// Its first `n` elements, at most 16, as they are; zeros behind them.
    ///
    /// # Safety
    /// The line has `n` elements of `T`.
    #[inline(always)]
    pub(crate) unsafe fn as_they_are<T: Stored>(self, n: usize) -> [T; LANES] {
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
        debug_assert!(DType::COMPUTE.contains(&self.dtype) && n <= LANES);
        // SAFETY: passed on.
        unsafe {
            if self.step == 1 && n == LANES {
                match self.dtype {
                    DType::F16 => f16::store::<S>(self.first.0.cast(), v),
                    DType::BF16 => bf16::store::<S>(self.first.0.cast(), v),
                    _ => S::store(self.first.0.cast(), v),
                }
            } else {
                let mut values = [0.0; LANES];
                S::store(values.as_mut_ptr(), v);
                S::part(Narrow { line: self, len: n, values: values.as_ptr() });
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

    /// Widens its first `len` elements to `out`, codes too.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `len` elements of its type; `out` has room for them.
    #[inline(always)]
    pub(crate) unsafe fn widen<S: Simd>(self, len: usize, out: *mut f32) {
        // SAFETY: passed on.
        unsafe { S::part(Widen { line: self, order: None, len, out }) }
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
        if self.dtype == DType::F32 && std::ptr::eq(self.ptr().cast(), values) {
            return;
        }
        // SAFETY: passed on.
        unsafe { S::part(Narrow { line: self, len, values }) }
    }
}

/// Widens the first `len` elements of a line to `out`, or those that an order names.
#[derive(Clone, Copy)]
struct Widen {
    line: Line,
    order: Option<*const u32>,
    len: usize,
    out: *mut f32,
}

impl Part for Widen {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: passed on.
        unsafe {
            match self.line.dtype {
                DType::F16 => self.of::<S, f16>(),
                DType::BF16 => self.of::<S, bf16>(),
                DType::I8 => self.of::<S, i8>(),
                DType::F8E4M3 => self.of::<S, F8E4M3>(),
                _ => self.of::<S, f32>(),
            }
        }
    }
}

impl Widen {
    #[inline(always)]
    unsafe fn of<S: Simd, T: Stored>(self) {
        let Self { line, order, len, out } = self;
        let p = line.ptr().cast::<T>();
        // SAFETY: passed on.
        unsafe {
            let mut i = 0;
            if order.is_none() && line.step == 1 {
                while i + LANES <= len {
                    S::store(out.add(i), T::load::<S>(p.add(i)));
                    i += LANES;
                }
            } else if order.is_none() && line.step == 0 && len > 0 {
                let x = p.read_unaligned().widen();
                while i < len {
                    *out.add(i) = x;
                    i += 1;
                }
            }
            // Sixteen at a time, so that the conversion at least is done in lanes.
            while i < len {
                let n = (len - i).min(LANES);
                let mut values = [T::zeroed(); LANES];
                let mut j = 0;
                while j < n {
                    let at = order.map_or(i + j, |order| order.add(i + j).read_unaligned() as usize);
                    values[j] = p.add(at * line.step).read_unaligned();
                    j += 1;
                }
                S::store_n(out.add(i), T::load::<S>(values.as_ptr()), n);
                i += n;
            }
        }
    }
}

/// Rounds `len` values to the first elements of a line.
#[derive(Clone, Copy)]
struct Narrow {
    line: Line,
    len: usize,
    values: *const f32,
}

impl Part for Narrow {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: passed on.
        unsafe {
            match self.line.dtype {
                DType::F16 => self.of::<S, f16>(),
                DType::BF16 => self.of::<S, bf16>(),
                _ => self.of::<S, f32>(),
            }
        }
    }
}

impl Narrow {
    #[inline(always)]
    unsafe fn of<S: Simd, T: Stored>(self) {
        let Self { line, len, values } = self;
        let p = line.first.0.cast::<T>();
        let mut i = 0;
        // SAFETY: passed on.
        unsafe {
            while line.step == 1 && i + LANES <= len {
                T::store::<S>(p.add(i), S::load(values.add(i)));
                i += LANES;
            }
            while i < len {
                let n = (len - i).min(LANES);
                let mut rounded = [T::zeroed(); LANES];
                T::store::<S>(rounded.as_mut_ptr(), S::load_n(values.add(i), n));
                let mut j = 0;
                while j < n {
                    p.add((i + j) * line.step).write_unaligned(rounded[j]);
                    j += 1;
                }
                i += n;
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
                    other.skip(i).store::<S>(v, n);
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
