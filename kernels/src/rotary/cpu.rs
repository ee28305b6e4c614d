//! Rotary embedding on the CPU: one body for every style, dtype and level.
//!
//! A style is no more than two distances: pair `i` lies at `i·step` and `i·step + partner`. Sixteen pairs are turned at
//! once, and heads are shared out in runs, so that one token of many heads is shared out too.

use std::marker::PhantomData;
use std::ops::Range;

use half::{bf16, f16};
use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{DType, View};

use super::{COS, OUT, POSITIONS, Rotary, RotaryDynamic, RotaryStatic, SIN, Style, X};
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row, refuse};
use crate::simd::{Kernel, LANES, Simd, Stored, launch};
use crate::{Error, Result};

/// Elements that one task turns at least. A task costs about a microsecond to hand out, and this many take longer.
const GRAIN: usize = 8 * 1024;

/// `a·cos` and `b·cos` are rounded, and the product with sin is added in one rounding more.
const FUSED: Arithmetic = Arithmetic::named("rotary.fma");
/// Both products and their sum are rounded.
const UNFUSED: Arithmetic = Arithmetic::named("rotary.mul-add");

/// The CPU rows.
pub(super) fn rows() -> Vec<Row<Rotary>> {
    leveled::rows()
}

impl Leveled for Rotary {
    const PORTABLE: AtLevel = AtLevel { name: "rotary.cpu.portable", arithmetic: UNFUSED, reads: 1.0, computes: 0.01 };
    const AVX2: AtLevel = AtLevel { name: "rotary.cpu.avx2", arithmetic: FUSED, reads: 1.0, computes: 0.035 };
    const AVX512: AtLevel = AtLevel { name: "rotary.cpu.avx512", arithmetic: FUSED, reads: 1.0, computes: 0.05 };

    /// Memory at its rate, and arithmetic at a share of the peak on the threads that get a task.
    fn cost(row: AtLevel, fixed: &RotaryStatic, call: &RotaryDynamic, hardware: &Hardware) -> f64 {
        let work = Rotary::work(fixed, call);
        let threads = tasks(fixed, call).clamp(1, hardware.threads.max(1)) as f64;
        let rates = &hardware.rates;
        let computing = work.flops / (row.computes * rates.f32_flops_per_s * threads);
        rates.launch_s + work.bytes / (rates.read_bytes_per_s * row.reads) + computing
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &RotaryStatic,
        call: &RotaryDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        // SAFETY: passed on; the element types are the dtypes that the operands were checked to have.
        unsafe {
            match fixed.x {
                DType::F32 => run_from::<f32>(level, launch, fixed, call, operands),
                DType::F16 => run_from::<f16>(level, launch, fixed, call, operands),
                DType::BF16 => run_from::<bf16>(level, launch, fixed, call, operands),
                other => Err(refuse(Rotary::NAME, format!("no kernel for {other}"))),
            }
        }
    }
}

/// Heads that one task turns.
fn heads_per_task(fixed: &RotaryStatic) -> usize {
    GRAIN.div_ceil(fixed.head_dim.max(1))
}

fn tasks(fixed: &RotaryStatic, call: &RotaryDynamic) -> usize {
    (call.tokens * call.heads).div_ceil(heads_per_task(fixed))
}

/// # Safety
/// That of [`Row::run`], x having elements `T`.
unsafe fn run_from<T: Stored>(
    level: SimdLevel,
    launch: &Launch<'_>,
    fixed: &RotaryStatic,
    call: &RotaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    // SAFETY: passed on; the element types are the dtypes that the operands were checked to have.
    unsafe {
        match fixed.out {
            DType::F32 => run_typed::<T, f32>(level, launch, fixed, call, operands),
            DType::F16 => run_typed::<T, f16>(level, launch, fixed, call, operands),
            DType::BF16 => run_typed::<T, bf16>(level, launch, fixed, call, operands),
            other => Err(refuse(Rotary::NAME, format!("no kernel for {other}"))),
        }
    }
}

/// # Safety
/// That of [`Row::run`], x having elements `T` and out elements `U`.
unsafe fn run_typed<T: Stored, U: Stored>(
    level: SimdLevel,
    context: &Launch<'_>,
    fixed: &RotaryStatic,
    call: &RotaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let team = context.team()?;
    if call.tokens * call.heads * fixed.head_dim == 0 {
        return Ok(());
    }
    let out = operands.output(Rotary::NAME, OUT, "out")?;
    let x = if fixed.in_place { out.view() } else { operands.input(Rotary::NAME, X, "x")? };
    let tables = Tables::new(Rotary::NAME, operands, [POSITIONS, COS, SIN])?;
    debug_assert!(x.dtype() == T::DTYPE && out.dtype() == U::DTYPE && x.shape() == out.shape());
    let steps = |view: &View<'_>| Steps::new(fixed.style, fixed.rotary_dim, view.strides()[2]);
    let passing = if fixed.in_place { fixed.head_dim..fixed.head_dim } else { fixed.rotary_dim..fixed.head_dim };
    let turn = Turn::new(steps(x), steps(out), &tables, fixed.rotary_dim / 2, passing);
    let kernel = TurnAll::<T, U> {
        turn,
        tables,
        x: Heads { first: x.host_ptr()?.cast(), token: x.strides()[0], head: x.strides()[1] },
        out: Heads { first: out.host_ptr()?.cast(), token: out.strides()[0], head: out.strides()[1] },
        heads: call.heads,
        rows: call.tokens * call.heads,
        per_task: heads_per_task(fixed),
    };
    // SAFETY: the addresses are those of views whose shapes and dtypes have been checked, every position is in the
    // tables, and no two indices of the output share an element.
    unsafe { launch(level, team, tasks(fixed, call), &kernel) };
    Ok(())
}

/// Positions, and the angles of each.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    positions: *const i32,
    position_stride: usize,
    cos: Angles,
    sin: Angles,
}

impl Tables {
    /// Those at the places of positions, cosines and sines among an operator's inputs.
    ///
    /// # Errors
    /// A position outside the tables.
    pub fn new(operator: &'static str, operands: Operands<'_>, [positions, cos, sin]: [usize; 3]) -> Result<Self> {
        let positions = operands.input(operator, positions, "positions")?;
        let (cos, sin) = (operands.input(operator, cos, "cos")?, operands.input(operator, sin, "sin")?);
        // SAFETY: the positions are i32, and nothing writes them while they are borrowed.
        unsafe { check_positions(operator, positions, cos.shape()[0])? };
        Ok(Self {
            positions: positions.host_ptr()?.cast(),
            position_stride: positions.strides()[0],
            cos: Angles::new(cos)?,
            sin: Angles::new(sin)?,
        })
    }

    /// Cosines and sines of a token.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    pub unsafe fn angles(&self, token: usize) -> [*const f32; 2] {
        // SAFETY: the caller names a token, and its position was found to be in the tables.
        unsafe {
            let position = self.positions.add(token * self.position_stride).read() as usize;
            [self.cos.first.add(position * self.cos.position), self.sin.first.add(position * self.sin.position)]
        }
    }
}

/// Refuses positions outside tables of `length` positions, before anything is written.
///
/// # Safety
/// The view holds i32 on the host, which nothing writes meanwhile.
unsafe fn check_positions(operator: &'static str, positions: &View<'_>, length: usize) -> Result<()> {
    let (first, stride) = (positions.host_ptr()?.cast::<i32>(), positions.strides()[0]);
    for token in 0..positions.shape()[0] {
        // SAFETY: the token is inside the view.
        let position = unsafe { first.add(token * stride).read() };
        if !usize::try_from(position).is_ok_and(|p| p < length) {
            return Err(outside(operator, token, position, length));
        }
    }
    Ok(())
}

#[cold]
fn outside(operator: &'static str, token: usize, position: i32, length: usize) -> Error {
    refuse(operator, format!("token {token} is at position {position}, and the tables hold {length} positions from 0"))
}

/// Where heads lie, `P` being a pointer to their elements.
struct Heads<P> {
    first: P,
    /// From a token and a head to the next.
    token: usize,
    head: usize,
}

/// How the values of a head lie.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    /// From a value to the next.
    value: usize,
    /// From a pair to the next, and from its first value to its second.
    step: usize,
    partner: usize,
}

impl Steps {
    /// Values `stride` elements apart, of which the first `rotary_dim` are pairs in a style.
    pub fn new(style: Style, rotary_dim: usize, stride: usize) -> Self {
        let (step, partner) = match style {
            Style::Half => (1, rotary_dim / 2),
            Style::Interleaved => (2, 1),
        };
        Self { value: stride, step: step * stride, partner: partner * stride }
    }

    /// Whether the values of pairs lie one after another without gaps.
    #[inline(always)]
    fn interleaved(&self) -> bool {
        self.step == 2 && self.partner == 1
    }
}

/// A table of cosines or sines.
#[derive(Clone, Copy)]
struct Angles {
    first: *const f32,
    position: usize,
    pair: usize,
}

impl Angles {
    fn new(view: &View<'_>) -> Result<Self> {
        Ok(Self { first: view.host_ptr()?.cast(), position: view.strides()[0], pair: view.strides()[1] })
    }
}

/// Turns a head of `T`s into one of `U`s.
pub(crate) struct Turn<T, U> {
    x: Steps,
    out: Steps,
    /// From a pair's cosine and sine to the next pair's.
    cos: usize,
    sin: usize,
    pairs: usize,
    /// Values that are copied.
    passing: Range<usize>,
    types: PhantomData<(T, U)>,
}

impl<T: Stored, U: Stored> Turn<T, U> {
    /// That of `pairs` pairs, values of `passing` being copied.
    pub fn new(x: Steps, out: Steps, tables: &Tables, pairs: usize, passing: Range<usize>) -> Self {
        Self { x, out, cos: tables.cos.pair, sin: tables.sin.pair, pairs, passing, types: PhantomData }
    }

    /// Turns `n` pairs.
    ///
    /// # Safety
    /// The pointers name that many pairs and angles.
    #[inline(always)]
    unsafe fn pairs<S: Simd>(&self, x: *const T, out: *mut U, cos: *const f32, sin: *const f32, n: usize) {
        // SAFETY: passed on. In place, both values of a pair are read before either is written.
        unsafe {
            let (a, b) = if n == LANES && self.x.interleaved() {
                S::unzip(T::load::<S>(x), T::load::<S>(x.add(LANES)))
            } else {
                let second = Line::typed(x.add(self.x.partner), self.x.step);
                (Line::typed(x, self.x.step).load_as::<S, T>(n), second.load_as::<S, T>(n))
            };
            let c = Line::typed(cos, self.cos).load_as::<S, f32>(n);
            let s = Line::typed(sin, self.sin).load_as::<S, f32>(n);
            let first = S::fma(S::mul(s, S::splat(-1.0)), b, S::mul(a, c));
            let second = S::fma(s, a, S::mul(b, c));
            if n == LANES && self.out.interleaved() {
                let (low, high) = S::zip(first, second);
                U::store::<S>(out, low);
                U::store::<S>(out.add(LANES), high);
            } else {
                Line::typed(out, self.out.step).store_as::<S, U>(first, n);
                Line::typed(out.add(self.out.partner), self.out.step).store_as::<S, U>(second, n);
            }
        }
    }

    /// Turns one head.
    ///
    /// # Safety
    /// The pointers name its values and its position's angles.
    #[inline(always)]
    pub unsafe fn head<S: Simd>(&self, x: *const T, out: *mut U, [cos, sin]: [*const f32; 2]) {
        // SAFETY: every index is below the number of pairs, or of values.
        unsafe {
            // No closure here: it would be compiled without the level's instructions, at a tenth of the speed.
            let mut i = 0;
            while i < self.pairs {
                let (x, out) = (x.add(i * self.x.step), out.add(i * self.out.step));
                let (cos, sin) = (cos.add(i * self.cos), sin.add(i * self.sin));
                if self.pairs - i >= LANES {
                    self.pairs::<S>(x, out, cos, sin, LANES);
                } else {
                    self.pairs::<S>(x, out, cos, sin, self.pairs - i);
                }
                i += LANES;
            }
            for i in self.passing.clone().step_by(LANES) {
                let n = (self.passing.end - i).min(LANES);
                let v = Line::typed(x, self.x.value).skip(i).load_as::<S, T>(n);
                Line::typed(out, self.out.value).skip(i).store_as::<S, U>(v, n);
            }
        }
    }
}

/// The kernel: turns `rows` heads.
struct TurnAll<T, U> {
    turn: Turn<T, U>,
    tables: Tables,
    x: Heads<*const T>,
    out: Heads<*mut U>,
    heads: usize,
    /// Heads of all tokens.
    rows: usize,
    per_task: usize,
}

// SAFETY: inputs are only read, and each task writes the heads of its own rows: no two indices of the output share an
// element. In place, a task reads but what it writes.
unsafe impl<T: Stored, U: Stored> Sync for TurnAll<T, U> {}

impl<T: Stored, U: Stored> Kernel for TurnAll<T, U> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        let start = task * self.per_task;
        for row in start..(start + self.per_task).min(self.rows) {
            let (token, head) = (row / self.heads, row % self.heads);
            // SAFETY: token and head are inside the views.
            unsafe {
                let x = self.x.first.add(token * self.x.token + head * self.x.head);
                let out = self.out.first.add(token * self.out.token + head * self.out.head);
                self.turn.head::<S>(x, out, self.tables.angles(token));
            }
        }
    }
}
