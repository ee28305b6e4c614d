//! Rotary embedding on the CPU: one body for every style, dtype and level.
//!
//! A style is no more than two distances: pair `i` lies at `i·step` and `i·step + partner`. Sixteen pairs are turned at
//! once, and heads are shared out in runs, so that one token of many heads is shared out too.

use std::ops::Range;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{DType, View};

use super::{COS, OUT, POSITIONS, Rotary, RotaryDynamic, RotaryStatic, SIN, Style, X};
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, refuse, takes_lanes};
use crate::simd::{Kernel, LANES, Part, Simd, launch};
use crate::strided::Address;
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

    fn takes(fixed: &RotaryStatic) -> Result<(), Refusal> {
        takes_lanes([fixed.x, fixed.out])
    }

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
        // SAFETY: passed on.
        unsafe { run_at(level, launch, fixed, call, operands) }
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
/// That of [`Row::run`].
unsafe fn run_at(
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
    debug_assert!(x.shape() == out.shape());
    let values = |view: &View<'_>| Values::new(fixed.style, fixed.rotary_dim, view.dtype(), view.strides()[2]);
    let passing = if fixed.in_place { fixed.head_dim..fixed.head_dim } else { fixed.rotary_dim..fixed.head_dim };
    let heads = |ptr, strides: &[usize]| Heads { first: Address::read(ptr), token: strides[0], head: strides[1] };
    let kernel = TurnAll {
        turn: Turn::new(values(x), values(out), &tables, fixed.rotary_dim / 2, passing),
        tables,
        x: heads(x.host_ptr()?, x.strides()),
        out: heads(out.host_ptr()?, out.strides()),
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

/// Where heads lie.
struct Heads {
    first: Address,
    /// From a token and a head to the next.
    token: usize,
    head: usize,
}

impl Heads {
    /// A head of elements of a size.
    #[inline(always)]
    fn at(&self, token: usize, head: usize, size: usize) -> *mut u8 {
        self.first.at(token * self.token + head * self.head, size)
    }
}

/// How the values of a head lie.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    dtype: DType,
    /// From a value to the next.
    value: usize,
    /// From a pair to the next, and from its first value to its second.
    step: usize,
    partner: usize,
}

impl Values {
    /// Values `stride` elements apart, of which the first `rotary_dim` are pairs in a style.
    pub fn new(style: Style, rotary_dim: usize, dtype: DType, stride: usize) -> Self {
        let (step, partner) = match style {
            Style::Half => (1, rotary_dim / 2),
            Style::Interleaved => (2, 1),
        };
        Self { dtype, value: stride, step: step * stride, partner: partner * stride }
    }

    /// Whether the values of pairs lie one after another without gaps.
    #[inline(always)]
    fn interleaved(&self) -> bool {
        self.step == 2 && self.partner == 1
    }

    /// The values of a head from one on, so far apart.
    #[inline(always)]
    fn line(&self, head: *const u8, from: usize, step: usize) -> Line {
        Line::new(head, self.dtype, step).moved(from)
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

/// Turns heads.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    x: Values,
    out: Values,
    /// From a pair's cosine and sine to the next pair's.
    cos: usize,
    sin: usize,
    pairs: usize,
    /// Values that are copied: the first, and the one behind the last.
    passing: [usize; 2],
}

impl Turn {
    /// That of `pairs` pairs, values of `passing` being copied.
    pub fn new(x: Values, out: Values, tables: &Tables, pairs: usize, passing: Range<usize>) -> Self {
        Self { x, out, cos: tables.cos.pair, sin: tables.sin.pair, pairs, passing: [passing.start, passing.end] }
    }

    /// Turns one head.
    ///
    /// # Safety
    /// Those of [`Simd`]; the pointers name its values and its position's angles.
    #[inline(always)]
    pub unsafe fn head<S: Simd>(&self, x: *const u8, out: *mut u8, angles: [*const f32; 2]) {
        // SAFETY: passed on.
        unsafe { S::part(TurnHead { turn: self, x, out, angles }) }
    }
}

/// See [`Turn::head`].
#[derive(Clone, Copy)]
struct TurnHead<'a> {
    turn: &'a Turn,
    x: *const u8,
    out: *mut u8,
    angles: [*const f32; 2],
}

impl Part for TurnHead<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Turn { x, out, cos, sin, pairs, passing } = *self.turn;
        let mut i = 0;
        // SAFETY: every index is below the number of pairs, or of values. In place, both values of a pair are read before
        // either is written.
        unsafe {
            while i < pairs {
                let n = (pairs - i).min(LANES);
                let (from, to) = (i * x.step, i * out.step);
                let (a, b) = if n == LANES && x.interleaved() {
                    let values = x.line(self.x, from, 1);
                    S::unzip(values.load::<S>(LANES), values.moved(LANES).load::<S>(LANES))
                } else {
                    let first = x.line(self.x, from, x.step);
                    (first.load::<S>(n), first.moved(x.partner).load::<S>(n))
                };
                let c = Line::typed(self.angles[0].add(i * cos), cos).load_as::<S, f32>(n);
                let s = Line::typed(self.angles[1].add(i * sin), sin).load_as::<S, f32>(n);
                let first = S::fma(S::mul(s, S::splat(-1.0)), b, S::mul(a, c));
                let second = S::fma(s, a, S::mul(b, c));
                if n == LANES && out.interleaved() {
                    let (low, high) = S::zip(first, second);
                    let values = out.line(self.out, to, 1);
                    values.store::<S>(low, LANES);
                    values.moved(LANES).store::<S>(high, LANES);
                } else {
                    let values = out.line(self.out, to, out.step);
                    values.store::<S>(first, n);
                    values.moved(out.partner).store::<S>(second, n);
                }
                i += LANES;
            }
            let mut i = passing[0];
            while i < passing[1] {
                let n = (passing[1] - i).min(LANES);
                let v = x.line(self.x, i * x.value, x.value).load::<S>(n);
                out.line(self.out, i * out.value, out.value).store::<S>(v, n);
                i += LANES;
            }
        }
    }
}

/// The kernel: turns `rows` heads.
struct TurnAll {
    turn: Turn,
    tables: Tables,
    x: Heads,
    out: Heads,
    heads: usize,
    /// Heads of all tokens.
    rows: usize,
    per_task: usize,
}

// SAFETY: inputs are only read, and each task writes the heads of its own rows: no two indices of the output share an
// element. In place, a task reads but what it writes.
unsafe impl Sync for TurnAll {}

impl Kernel for TurnAll {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        let start = task * self.per_task;
        for row in start..(start + self.per_task).min(self.rows) {
            let (token, head) = (row / self.heads, row % self.heads);
            // SAFETY: token and head are inside the views.
            unsafe {
                let x = self.x.at(token, head, self.turn.x.dtype.size());
                let out = self.out.at(token, head, self.turn.out.dtype.size());
                self.turn.head::<S>(x, out, self.tables.angles(token));
            }
        }
    }
}
