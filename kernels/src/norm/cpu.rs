//! One body in lanes of f32, at three levels.

use sinew_memory::SimdLevel;

use super::lanes::{Formula, Scale};
use super::{Norm, NormDynamic, NormKind, NormStatic};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::cpu::row_walk::RowWalk;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, takes_lanes};
use crate::simd::{self, Kernel, LANES, Simd};
use crate::strided::{BLOCK, Scratch, blocks};

/// Sums of squares in sixteen lanes by four, blocks of 512 in f32, blocks added in f64; multiply and add round apart.
const MUL_ADD: Arithmetic = Arithmetic::named("norm.mul-add16");
/// The same sums with multiply and add fused.
const FMA: Arithmetic = Arithmetic::named("norm.fma16");

/// The rows of [`Norm`].
pub(super) fn rows() -> Vec<Row<Norm>> {
    leveled::rows()
}

impl Leveled for Norm {
    const PORTABLE: AtLevel = AtLevel { name: "norm.cpu.portable", arithmetic: MUL_ADD, reads: 0.6, computes: 0.1 };
    const AVX2: AtLevel = AtLevel { name: "norm.cpu.avx2", arithmetic: FMA, reads: 0.8, computes: 0.15 };
    const AVX512: AtLevel = AtLevel { name: "norm.cpu.avx512", arithmetic: FMA, reads: 0.85, computes: 0.2 };

    fn takes(fixed: &NormStatic) -> Result<(), Refusal> {
        takes_lanes(fixed.dtypes())
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &NormStatic,
        _: &NormDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.output(Norm::NAME, Norm::Y, "y")?;
        let residual = match fixed.residual {
            Some(_) => Some(operands.output(Norm::NAME, Norm::RESIDUAL, "residual")?.view()),
            None => None,
        };
        let x = if fixed.in_place { y.view() } else { operands.input(Norm::NAME, Norm::X, "x")? };
        let vector = |position| operands.optional(position).map(Line::of).transpose();
        let kernel = Body {
            width: fixed.width,
            formula: Formula::of(&fixed.formula),
            rows: RowWalk::new([Some(y.layout()), Some(x.layout()), residual.map(|r| r.layout())]),
            y: Line::of(y)?,
            x: Line::of(x)?,
            residual: residual.map(Line::of).transpose()?,
            weight: vector(Norm::WEIGHT)?,
            bias: vector(Norm::BIAS)?,
        };
        // SAFETY: the operator's check has seen that operands have the named shapes and dtypes; views lie within their
        // buffers, and the indices of an output share no elements, so that tasks do not meet.
        unsafe { simd::launch(level, launch.team()?, kernel.rows.tasks(), &kernel) };
        Ok(())
    }
}

struct Body {
    width: usize,
    formula: Formula,
    /// Of output, input and residual.
    rows: RowWalk<3>,
    y: Line,
    x: Line,
    residual: Option<Line>,
    weight: Option<Line>,
    bias: Option<Line>,
}

impl Kernel for Body {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        // SAFETY: rows stay inside the operands.
        unsafe {
            match self.formula.kind {
                NormKind::Rms => self.norm_rows::<S, false>(task),
                NormKind::Layer => self.norm_rows::<S, true>(task),
            }
        }
    }
}

impl Body {
    /// Norms the rows of a task, after subtracting the mean where `CENTRED`.
    ///
    /// # Safety
    /// Those of [`Simd`]; the rows are inside the operands.
    #[inline(always)]
    unsafe fn norm_rows<S: Simd, const CENTRED: bool>(&self, task: usize) {
        let (mut x_room, mut y_room) = (Scratch::new(), Scratch::new());
        let (mut weight_room, mut bias_room) = (Scratch::new(), Scratch::new());
        let (x_room, y_room) = (x_room.ptr(), y_room.ptr());
        let (weight_room, bias_room) = (weight_room.ptr(), bias_room.ptr());
        let width = self.width;
        // A row of one block is widened once, and so are its weights for all rows of the task.
        let single = width <= BLOCK;
        // SAFETY: rows and blocks stay inside the operands, and rooms hold a block.
        unsafe {
            // Without a weight it is 1 everywhere, without a bias 0.
            let mut weight = fill(weight_room, 1.0, width);
            let mut bias = fill(bias_room, 0.0, width);
            if single {
                weight = self.weight.map_or(weight, |line| line.block::<S>(width, weight_room));
                bias = self.bias.map_or(bias, |line| line.block::<S>(width, bias_room));
            }
            for [y_at, x_at, residual_at] in self.rows.task(task) {
                let (y, mut x) = (self.y.moved(y_at), self.x.moved(x_at));
                if let Some(residual) = self.residual {
                    let residual = residual.moved(residual_at);
                    accumulate::<S>(x, residual, width, x_room, y_room);
                    x = residual;
                }
                let kept = if single { x.block::<S>(width, x_room) } else { std::ptr::null() };
                let scale = self.formula.scale::<S, CENTRED>(x, width, kept, x_room);
                for (start, len) in blocks(width) {
                    let mut from = kept;
                    if !single {
                        from = x.skip(start).block::<S>(len, x_room);
                        weight = self.weight.map_or(weight, |line| line.skip(start).block::<S>(len, weight_room));
                        bias = self.bias.map_or(bias, |line| line.skip(start).block::<S>(len, bias_room));
                    }
                    let y = y.skip(start);
                    let to = y.place(y_room);
                    apply::<S, CENTRED>(scale, self.formula.offset, [from, weight, bias], to, len);
                    y.store_block::<S>(len, to);
                }
            }
        }
    }
}

/// The first `len` places of a room, filled; at most a block of them.
///
/// # Safety
/// `room` holds a block.
#[inline(always)]
unsafe fn fill(room: *mut f32, value: f32, len: usize) -> *const f32 {
    // SAFETY: passed on.
    (0..len.min(BLOCK)).for_each(|i| unsafe { *room.add(i) = value });
    room
}

/// `residual += x` for one row, rounded to the residual's dtype.
///
/// # Safety
/// Those of [`Simd`]; the row is inside both; both rooms hold a block.
#[inline(always)]
unsafe fn accumulate<S: Simd>(x: Line, residual: Line, width: usize, x_room: *mut f32, room: *mut f32) {
    for (start, len) in blocks(width) {
        // SAFETY: passed on.
        unsafe {
            let from = x.skip(start).block::<S>(len, x_room);
            let residual = residual.skip(start);
            // Where the residual is not contiguous f32, it is widened into the room and summed up there.
            let sum = residual.block::<S>(len, room).cast_mut();
            let whole = len - len % LANES;
            for i in (0..whole).step_by(LANES) {
                S::store(sum.add(i), S::add(S::load(sum.add(i)), S::load(from.add(i))));
            }
            if whole < len {
                let n = len - whole;
                S::store_n(sum.add(whole), S::add(S::load_n(sum.add(whole), n), S::load_n(from.add(whole), n)), n);
            }
            residual.store_block::<S>(len, sum);
        }
    }
}

/// `y = (x - mean) · inverse · (weight + offset) + bias` for a block; operands are x, weight and bias.
///
/// # Safety
/// Those of [`Simd`]; each holds `len` values; `y` may be `x`.
#[inline(always)]
unsafe fn apply<S: Simd, const CENTRED: bool>(
    scale: Scale,
    offset: f32,
    [x, weight, bias]: [*const f32; 3],
    y: *mut f32,
    len: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let scale = scale.lanes::<S>();
        let offset = S::splat(offset);
        let whole = len - len % LANES;
        for i in (0..whole).step_by(LANES) {
            let w = S::add(S::load(weight.add(i)), offset);
            S::store(y.add(i), scale.apply::<CENTRED>(S::load(x.add(i)), w, S::load(bias.add(i))));
        }
        if whole < len {
            let n = len - whole;
            let w = S::add(S::load_n(weight.add(whole), n), offset);
            let v = scale.apply::<CENTRED>(S::load_n(x.add(whole), n), w, S::load_n(bias.add(whole), n));
            S::store_n(y.add(whole), v, n);
        }
    }
}
