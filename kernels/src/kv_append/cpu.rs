//! The append on the CPU, keys turned where they are to be: one body at three levels.

use float8::F8E4M3;
use sinew_memory::{Hardware, SimdLevel, Team};
use sinew_tensor::{DType, PagedLayout, View};

use super::{COS, K_CACHE, K_NEW, KvAppend, KvAppendDynamic, KvAppendStatic, POSITIONS, SIN, SLOTS, V_CACHE, V_NEW};
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::refuse;
use crate::rotary::Style;
use crate::rotary::cpu::{Tables, Turn, Values};
use crate::simd::{self, Code, Kernel, LANES, Simd};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// Widening and rounding to nearest are the same bits everywhere; keys are turned as by `rotary.mul-add`.
const UNFUSED: Arithmetic = Arithmetic::named("kv_append.mul-add");
/// The same, with keys turned as by `rotary.fma`.
const FUSED: Arithmetic = Arithmetic::named("kv_append.fma");

/// Elements below which an append is not worth waking other threads.
const INLINE: usize = 8 * 1024;

pub(super) fn rows() -> Vec<Row<KvAppend>> {
    leveled::rows()
}

impl Leveled for KvAppend {
    const PORTABLE: AtLevel =
        AtLevel { name: "kv_append.cpu.portable", arithmetic: UNFUSED, reads: 0.125, computes: 0.01 };
    const AVX2: AtLevel = AtLevel { name: "kv_append.cpu.avx2", arithmetic: FUSED, reads: 0.5, computes: 0.035 };
    const AVX512: AtLevel = AtLevel { name: "kv_append.cpu.avx512", arithmetic: FUSED, reads: 1.0, computes: 0.05 };

    fn scratch(fixed: &KvAppendStatic, _: &KvAppendDynamic, hardware: &Hardware) -> usize {
        hardware.threads.saturating_mul(scratch(fixed))
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &KvAppendStatic,
        call: &KvAppendDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let name = KvAppend::NAME;
        let k_cache = operands.output(name, K_CACHE, "k_cache")?;
        let v_cache = operands.output(name, V_CACHE, "v_cache")?;
        let slots = Slots::new(operands.input(name, SLOTS, "slots")?)?;
        let places = k_cache.shape().first().copied().unwrap_or(0) * fixed.block_size;
        for token in 0..call.tokens {
            // SAFETY: `check` saw as many slots as tokens.
            let slot = unsafe { slots.get(token) };
            if usize::try_from(slot).map_or(true, |slot| slot >= places) {
                return Err(refuse(name, format!("slots[{token}] is {slot}, of {places} places")));
            }
        }
        if call.tokens == 0 {
            return Ok(());
        }
        let turned = match fixed.rotary {
            Some(rotary) => {
                let tables = Tables::new(name, operands, [POSITIONS, COS, SIN])?;
                Some(Turned { tables, rotary_dim: rotary.rotary_dim, style: rotary.style })
            }
            None => None,
        };
        let (tasks, here) = (2 * fixed.num_kv_heads, Team::new(1)?);
        let team = if tasks * fixed.head_dim * call.tokens <= INLINE { &here } else { launch.team()? };
        let per_worker = scratch(fixed);
        let body = Body {
            tokens: call.tokens,
            head_dim: fixed.head_dim,
            heads: fixed.num_kv_heads,
            block_size: fixed.block_size,
            source: fixed.source,
            kv: fixed.kv,
            slots,
            sides: [
                Side::new(operands.input(name, K_NEW, "k_new")?, k_cache)?,
                Side::new(operands.input(name, V_NEW, "v_new")?, v_cache)?,
            ],
            turned,
            scratch: launch.host_workspace(team.threads() * per_worker)?,
            per_worker,
        };
        // SAFETY: the body's addresses are of operands that were checked, with slots inside the caches.
        unsafe { simd::launch(level, team, tasks, &body) };
        Ok(())
    }
}

/// Bytes in which a worker puts a head before it is rounded to codes, in whole cache lines.
fn scratch(fixed: &KvAppendStatic) -> usize {
    const LINE: usize = 64;
    let bytes = fixed.head_dim.saturating_mul(size_of::<f32>());
    if PagedLayout::has_scales(fixed.kv) { bytes.checked_next_multiple_of(LINE).unwrap_or(usize::MAX) } else { 0 }
}

/// The slots in memory.
#[derive(Clone, Copy)]
struct Slots {
    ptr: *const u8,
    stride: usize,
    dtype: DType,
}

impl Slots {
    fn new(view: &View<'_>) -> Result<Self> {
        let (ptr, dtype) = (view.host_ptr()?, view.dtype());
        Ok(Self { ptr, stride: view.strides().first().map_or(0, |s| s * dtype.size()), dtype })
    }

    /// # Safety
    /// There is such a token.
    #[inline(always)]
    unsafe fn get(&self, token: usize) -> i64 {
        // SAFETY: passed on; the dtype is i64 or u32.
        unsafe {
            let at = self.ptr.add(token * self.stride);
            if self.dtype == DType::I64 { at.cast::<i64>().read() } else { i64::from(at.cast::<u32>().read()) }
        }
    }
}

/// Keys or values: new rows and cache, with strides in elements.
#[derive(Clone, Copy)]
struct Side {
    from: *const u8,
    /// Of token, head, element.
    from_strides: [usize; 3],
    to: *mut u8,
    /// Of block, head, slot, element.
    to_strides: [usize; 4],
}

impl Side {
    fn new(from: &View<'_>, to: &sinew_tensor::ViewMut<'_>) -> Result<Self> {
        let (f, ptr) = (from.strides(), to.host_ptr()?);
        let to_strides = match *to.strides() {
            [block, head, slot, element] => [block, head, slot, element],
            // Codes, which follow one another.
            [block, head, ..] => [block, head, from.shape()[2], 1],
            _ => [0; 4],
        };
        Ok(Self { from: from.host_ptr()?, from_strides: [f[0], f[1], f[2]], to: ptr, to_strides })
    }
}

struct Body {
    tokens: usize,
    head_dim: usize,
    heads: usize,
    block_size: usize,
    source: DType,
    kv: DType,
    slots: Slots,
    /// Keys and values.
    sides: [Side; 2],
    turned: Option<Turned>,
    /// Room for a head of each worker, where caches have scales.
    scratch: *mut u8,
    per_worker: usize,
}

/// How keys are turned.
#[derive(Clone, Copy)]
struct Turned {
    tables: Tables,
    rotary_dim: usize,
    style: Style,
}

impl Turned {
    /// The turn of a head from elements of a dtype so far apart to others.
    fn turn(&self, from: (DType, usize), to: (DType, usize), head_dim: usize) -> Turn {
        let &Self { ref tables, rotary_dim, style } = self;
        let values = |(dtype, stride)| Values::new(style, rotary_dim, dtype, stride);
        Turn::new(values(from), values(to), tables, rotary_dim / 2, rotary_dim..head_dim)
    }
}

// SAFETY: tasks read inputs, and each writes one head of one cache, which is its own, and its worker's scratch.
unsafe impl Sync for Body {}

impl Kernel for Body {
    /// One head of keys or of values, all tokens in order, so that of two tokens with one slot the later one stays.
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        let (side, head) = (self.sides[task / self.heads], task % self.heads);
        let turned = if task < self.heads { self.turned.as_ref() } else { None };
        let (source, [_, _, to_slot, to_step]) = ((self.source, side.from_strides[2]), side.to_strides);
        let scaled = PagedLayout::has_scales(self.kv);
        let to = if scaled { (DType::F32, 1) } else { (self.kv, to_step) };
        let turned = turned.map(|turned| (turned, turned.turn(source, to, self.head_dim)));
        for token in 0..self.tokens {
            // SAFETY: workers are below the threads that scratch was made for; token and head are inside the views, and the
            // slot was found to be in the cache.
            unsafe {
                let (from, to) = self.places(side, head, token);
                // What is rounded to codes is first put in f32.
                let scratch: *mut u8 = self.scratch.add(worker * self.per_worker);
                let line = Line::new(from, self.source, source.1);
                match &turned {
                    Some((turned, turn)) => {
                        turn.head::<S>(from, if scaled { scratch } else { to }, turned.tables.angles(token));
                    }
                    None if scaled => line.widen::<S>(self.head_dim, scratch.cast()),
                    None => self.copy::<S>(line, Line::new(to, self.kv, to_step)),
                }
                if scaled {
                    // Scales begin behind the codes of a head's block.
                    let place = self.slots.get(token) as usize % self.block_size;
                    let scale = to.add((self.block_size - place) * to_slot + place * PagedLayout::SCALE_BYTES);
                    match self.kv {
                        DType::I8 => quantize_head::<S, i8>(scratch.cast(), self.head_dim, to.cast(), scale),
                        _ => quantize_head::<S, F8E4M3>(scratch.cast(), self.head_dim, to.cast(), scale),
                    }
                }
            }
        }
    }
}

impl Body {
    /// Where the values of a token's head come from, and where they go.
    ///
    /// # Safety
    /// There are such a token and head.
    #[inline(always)]
    unsafe fn places(&self, side: Side, head: usize, token: usize) -> (*const u8, *mut u8) {
        // SAFETY: passed on.
        unsafe {
            let slot = self.slots.get(token) as usize;
            let (block, place) = (slot / self.block_size, slot % self.block_size);
            let [b, h, s, _] = side.to_strides;
            let from = token * side.from_strides[0] + head * side.from_strides[1];
            let to = block * b + head * h + place * s;
            (side.from.add(from * self.source.size()), side.to.add(to * self.kv.size()))
        }
    }

    /// Copies a head.
    ///
    /// # Safety
    /// Those of [`Simd`]; both lines have its elements.
    #[inline(always)]
    unsafe fn copy<S: Simd>(&self, from: Line, to: Line) {
        // SAFETY: passed on.
        unsafe {
            if self.source == self.kv && from.step == 1 && to.step == 1 {
                let bytes = self.head_dim * self.kv.size();
                return std::ptr::copy_nonoverlapping(from.ptr(), to.ptr().cast_mut(), bytes);
            }
            let mut d = 0;
            while d < self.head_dim {
                let n = (self.head_dim - d).min(LANES);
                to.skip(d).store::<S>(from.skip(d).load::<S>(n), n);
                d += LANES;
            }
        }
    }
}

/// Rounds `n` values to as many codes, and writes their scale: see the [module above](super).
///
/// # Safety
/// Those of [`Simd`]; `x` is readable for `n` values, `codes` writable for as many, and `scale` for an f32 at any address.
#[inline(always)]
unsafe fn quantize_head<S: Simd, C: Code>(x: *const f32, n: usize, codes: *mut C, scale: *mut u8) {
    // SAFETY: passed on; every part ends with the values.
    unsafe {
        let zeros = S::splat(0.0);
        let (mut largest, mut finite) = (zeros, zeros);
        let mut at = 0;
        while at < n {
            let part = S::load_n(x.add(at), (n - at).min(LANES));
            largest = S::max(S::abs(part), largest);
            // A product with 0 is NaN for NaN and infinities, and 0 for all else.
            finite = S::add(finite, S::mul(part, zeros));
            at += LANES;
        }
        let is_finite = !S::reduce_add(finite).is_nan();
        // No less than f32's least normal number: below it a scale has few bits left, or none.
        let divisor = (S::reduce_max(largest) / C::LARGEST).max(f32::MIN_POSITIVE);
        let mut at = 0;
        while at < n {
            let left = (n - at).min(LANES);
            let part = if is_finite { S::div(S::load_n(x.add(at), left), S::splat(divisor)) } else { zeros };
            C::store_n::<S>(codes.add(at), part, left);
            at += LANES;
        }
        scale.cast::<f32>().write_unaligned(if is_finite { divisor } else { f32::NAN });
    }
}
