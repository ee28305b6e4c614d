//! Tiles of keys and values in f32: keys with lanes over keys, values with lanes over `head_dim`.

use float8::F8E4M3;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use sinew_memory::SimdLevel;
use sinew_tensor::DType;

use super::TILE;
use crate::cpu::line::Line;
use crate::simd::{LANES, Portable, Simd, Stored};

/// Rows of keys or values of a tile: an address each, null where there is none, and what all have in common.
#[derive(Clone, Copy)]
pub(super) struct TileRows<'a> {
    pub ptrs: &'a [*const u8; TILE],
    pub dtype: DType,
    /// From an element of a row to the next, in elements, and how many there are.
    pub step: usize,
    pub n: usize,
}

impl TileRows<'_> {
    /// Row `i`; `None` where there is none.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<Line> {
        let ptr = self.ptrs[i];
        (!ptr.is_null()).then_some(Line::new(ptr, self.dtype, self.step))
    }

    /// How many elements, a multiple of `of`, some of the rows all have, one behind another.
    #[inline(always)]
    pub fn whole(&self, ptrs: &[*const u8], of: usize) -> usize {
        if self.step == 1 && ptrs.iter().all(|p| !p.is_null()) { self.n / of * of } else { 0 }
    }

    /// Elements of a row behind the first `at`.
    #[inline(always)]
    pub fn left(&self, at: usize) -> usize {
        self.n.saturating_sub(at)
    }

    /// Elements `at..at + 16` of a row, widened; zeros behind its end.
    ///
    /// # Safety
    /// Those of [`Simd`]; the row is one of these, and of `T`.
    #[inline(always)]
    unsafe fn part<S: Simd, T: Stored>(&self, row: Line, at: usize) -> S::F {
        // SAFETY: so many elements are of the row.
        unsafe { row.skip(at).load_as::<S, T>(self.left(at).min(LANES)) }
    }
}

/// Defines an entry that is compiled once for each level, out of line: dtypes are matched inside, and there would be
/// a copy of all of it wherever it is called.
macro_rules! by_level {
    ($(#[$doc:meta])* $name:ident, $at:ident -> $result:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Those of [`Simd`]; the rows are readable, and `dst` is writable for the tile.
        #[inline(always)]
        pub(super) unsafe fn $name<S: Simd>(rows: TileRows<'_>, dst: *mut f32, width: usize) -> $result {
            #[inline(never)]
            unsafe fn portable(rows: TileRows<'_>, dst: *mut f32, width: usize) -> $result {
                // SAFETY: passed on from the caller.
                unsafe { $at::<Portable>(rows, dst, width) }
            }
            #[cfg(target_arch = "x86_64")]
            #[inline(never)]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2(rows: TileRows<'_>, dst: *mut f32, width: usize) -> $result {
                // SAFETY: passed on from the caller.
                unsafe { $at::<crate::simd::Avx2>(rows, dst, width) }
            }
            #[cfg(target_arch = "x86_64")]
            #[inline(never)]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512(rows: TileRows<'_>, dst: *mut f32, width: usize) -> $result {
                // SAFETY: passed on from the caller.
                unsafe { $at::<crate::simd::Avx512>(rows, dst, width) }
            }
            // SAFETY: passed on.
            unsafe {
                match S::LEVEL {
                    #[cfg(target_arch = "x86_64")]
                    SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => avx512(rows, dst, width),
                    #[cfg(target_arch = "x86_64")]
                    SimdLevel::Avx2 => avx2(rows, dst, width),
                    _ => portable(rows, dst, width),
                }
            }
        }
    };
}

by_level! {
    /// Packs a tile of keys as `[depth, TILE]`; absent rows and what is behind a row's end are zeros.
    keys, keys_at -> ()
}
by_level! {
    /// Packs a tile of values as `[TILE, width]`, with zeros likewise. Returns whether all of them are finite.
    values, values_at -> bool
}

#[inline(always)]
unsafe fn keys_at<S: Simd>(rows: TileRows<'_>, dst: *mut f32, depth: usize) {
    // SAFETY: passed on.
    unsafe {
        match rows.dtype {
            DType::F16 => keys_from::<S, f16>(rows, dst, depth),
            DType::BF16 => keys_from::<S, bf16>(rows, dst, depth),
            DType::I8 => keys_from::<S, i8>(rows, dst, depth),
            DType::F8E4M3 => keys_from::<S, F8E4M3>(rows, dst, depth),
            _ => keys_from::<S, f32>(rows, dst, depth),
        }
    }
}

#[inline(always)]
unsafe fn keys_from<S: Simd, T: Stored>(rows: TileRows<'_>, dst: *mut f32, depth: usize) {
    for key in (0..TILE).step_by(LANES) {
        let ptrs = &rows.ptrs[key..key + LANES];
        let whole = rows.whole(ptrs, LANES);
        for d in (0..depth).step_by(LANES) {
            // SAFETY: the block lies inside the tile, and parts of rows end with them.
            unsafe {
                let mut block = [S::splat(0.0); LANES];
                if d < whole {
                    for (part, ptr) in block.iter_mut().zip(ptrs) {
                        *part = T::load::<S>(ptr.cast::<T>().add(d));
                    }
                } else {
                    for (i, part) in block.iter_mut().enumerate() {
                        if let Some(line) = rows.get(key + i) {
                            *part = rows.part::<S, T>(line, d);
                        }
                    }
                }
                for (i, column) in S::transpose(block).into_iter().enumerate() {
                    S::store(dst.add((d + i) * TILE + key), column);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn values_at<S: Simd>(rows: TileRows<'_>, dst: *mut f32, width: usize) -> bool {
    // SAFETY: passed on.
    unsafe {
        match rows.dtype {
            DType::F16 => values_from::<S, f16>(rows, dst, width),
            DType::BF16 => values_from::<S, bf16>(rows, dst, width),
            DType::I8 => values_from::<S, i8>(rows, dst, width),
            DType::F8E4M3 => values_from::<S, F8E4M3>(rows, dst, width),
            _ => values_from::<S, f32>(rows, dst, width),
        }
    }
}

#[inline(always)]
unsafe fn values_from<S: Simd, T: Stored>(rows: TileRows<'_>, dst: *mut f32, width: usize) -> bool {
    /// Independent sums, so that rows do not wait for one another.
    const PROBES: usize = 4;
    let whole = if rows.step == 1 { rows.n / LANES * LANES } else { 0 };
    // SAFETY: rows and parts are inside the tile, and elements below `whole` follow one another in their row.
    unsafe {
        let mut probes = [S::splat(0.0); PROBES];
        for i in 0..TILE {
            let to = dst.add(i * width);
            let Some(line) = rows.get(i) else {
                to.write_bytes(0, width);
                continue;
            };
            // A product with 0 is NaN for NaN and infinities, and 0 for all else.
            let mut probe = probes[i % PROBES];
            for at in (0..whole).step_by(LANES) {
                let v = T::load::<S>(line.ptr().cast::<T>().add(at));
                S::store(to.add(at), v);
                probe = S::fma(v, S::splat(0.0), probe);
            }
            for at in (whole..width).step_by(LANES) {
                let v = rows.part::<S, T>(line, at);
                S::store(to.add(at), v);
                probe = S::fma(v, S::splat(0.0), probe);
            }
            probes[i % PROBES] = probe;
        }
        let [a, b, c, d] = probes;
        !S::reduce_add(S::add(S::add(a, b), S::add(c, d))).is_nan()
    }
}
