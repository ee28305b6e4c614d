//! f32, f16 and bf16 in lanes of f32: one body, three levels.

use sinew_memory::SimdLevel;

use super::{Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, takes_lanes};
use crate::simd::{self, Kernel, LANES, Simd, math};
use crate::strided::{self, Address, Scratch, Walk};

/// Multiply and add round apart; only `exp` has any.
const MUL_ADD: Arithmetic = Arithmetic::named("elementwise.mul-add");
/// Multiply and add are fused.
const FMA: Arithmetic = Arithmetic::named("elementwise.fma");

pub(super) fn unary_rows() -> Vec<Row<Unary>> {
    leveled::rows()
}

pub(super) fn binary_rows() -> Vec<Row<Binary>> {
    leveled::rows()
}

/// A function of one vector.
trait UnaryLanes {
    unsafe fn of<S: Simd>(x: S::F) -> S::F;
}

/// A function of two vectors.
trait BinaryLanes {
    unsafe fn of<S: Simd>(a: S::F, b: S::F) -> S::F;
}

macro_rules! unary_lanes {
    ($($name:ident: |$x:ident| $body:expr;)*) => {$(
        struct $name;
        impl UnaryLanes for $name {
            #[inline(always)]
            unsafe fn of<S: Simd>($x: S::F) -> S::F {
                // SAFETY: passed on from the caller.
                unsafe { $body }
            }
        }
    )*};
}

unary_lanes! {
    // Exact for zeros, infinities and NaN; 0 - x would lose the sign of -0.
    Neg: |x| S::mul(x, S::splat(-1.0));
    Abs: |x| S::abs(x);
    Square: |x| S::mul(x, x);
    Sqrt: |x| S::sqrt(x);
    Rsqrt: |x| S::div(S::splat(1.0), S::sqrt(x));
    Recip: |x| S::div(S::splat(1.0), x);
    Exp: |x| math::exp::<S>(x);
}

macro_rules! binary_lanes {
    ($($name:ident: |$a:ident, $b:ident| $body:expr;)*) => {$(
        struct $name;
        impl BinaryLanes for $name {
            #[inline(always)]
            unsafe fn of<S: Simd>($a: S::F, $b: S::F) -> S::F {
                // SAFETY: passed on from the caller.
                unsafe { $body }
            }
        }
    )*};
}

binary_lanes! {
    Add: |a, b| S::add(a, b);
    Sub: |a, b| S::sub(a, b);
    Mul: |a, b| S::mul(a, b);
    Div: |a, b| S::div(a, b);
    // The lanes' own max and min give `b` where either is NaN.
    Max: |a, b| S::select_nan(a, a, S::max(a, b));
    Min: |a, b| S::select_nan(a, a, S::min(a, b));
}

#[inline(always)]
unsafe fn map<S: Simd, F: UnaryLanes>(x: *const f32, y: *mut f32, len: usize) {
    let whole = len - len % LANES;
    // SAFETY: the caller names `len` elements of both; `y` may be `x`.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            S::store(y.add(i), F::of::<S>(S::load(x.add(i))));
        }
        if whole < len {
            S::store_n(y.add(whole), F::of::<S>(S::load_n(x.add(whole), len - whole)), len - whole);
        }
    }
}

#[inline(always)]
unsafe fn zip<S: Simd, F: BinaryLanes>(a: *const f32, b: *const f32, y: *mut f32, len: usize) {
    let whole = len - len % LANES;
    // SAFETY: the caller names `len` elements of all; `y` may be `a`.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            S::store(y.add(i), F::of::<S>(S::load(a.add(i)), S::load(b.add(i))));
        }
        if whole < len {
            let (n, a, b) = (len - whole, a.add(whole), b.add(whole));
            S::store_n(y.add(whole), F::of::<S>(S::load_n(a, n), S::load_n(b, n)), n);
        }
    }
}

#[inline(always)]
unsafe fn each<Y>(len: usize, y: *mut Y, step: usize, f: impl Fn(usize) -> Y) {
    for i in 0..len {
        // SAFETY: the caller names `len` elements, `step` apart.
        unsafe { *y.add(i * step) = f(i) };
    }
}

/// # Safety
/// `len` values of both operands, and `len` bytes `step` apart to write.
#[inline(always)]
unsafe fn compare(function: BinaryFunction, a: *const f32, b: *const f32, len: usize, y: *mut u8, step: usize) {
    use BinaryFunction as F;
    // SAFETY: passed on.
    unsafe {
        match function {
            F::Eq => each(len, y, step, |i| u8::from(*a.add(i) == *b.add(i))),
            F::Ne => each(len, y, step, |i| u8::from(*a.add(i) != *b.add(i))),
            F::Lt => each(len, y, step, |i| u8::from(*a.add(i) < *b.add(i))),
            F::Le => each(len, y, step, |i| u8::from(*a.add(i) <= *b.add(i))),
            F::Gt => each(len, y, step, |i| u8::from(*a.add(i) > *b.add(i))),
            _ => each(len, y, step, |i| u8::from(*a.add(i) >= *b.add(i))),
        }
    }
}

struct UnaryKernel {
    fixed: UnaryStatic,
    walk: Walk<2>,
    y: Address,
    x: Address,
}

impl Kernel for UnaryKernel {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        use UnaryFunction as F;
        let UnaryStatic { function, input, output } = self.fixed;
        let [y_step, x_step] = self.walk.steps;
        let (mut x_scratch, mut y_scratch) = (Scratch::new(), Scratch::new());
        let (x_scratch, y_scratch) = (x_scratch.ptr(), y_scratch.ptr());
        for run in self.walk.task(task) {
            let len = run.len;
            let to = self.y.at(run.at[0], output.size());
            // SAFETY: the walk stays inside both operands, which the operator's check has seen; runs of the output do
            // not meet; blocks hold `len` values.
            unsafe {
                let from = Line::new(self.x.at(run.at[1], input.size()), input, x_step);
                let x = from.block::<S>(len, x_scratch);
                if function == F::Not {
                    each(len, to, y_step, |i| u8::from(*x.add(i) == 0.0));
                    continue;
                }
                let to = Line::new(to, output, y_step);
                let y = to.place(y_scratch);
                match function {
                    F::Neg => map::<S, Neg>(x, y, len),
                    F::Abs => map::<S, Abs>(x, y, len),
                    F::Square => map::<S, Square>(x, y, len),
                    F::Sqrt => map::<S, Sqrt>(x, y, len),
                    F::Rsqrt => map::<S, Rsqrt>(x, y, len),
                    F::Recip => map::<S, Recip>(x, y, len),
                    F::Exp => map::<S, Exp>(x, y, len),
                    F::Log => each(len, y, 1, |i| (*x.add(i)).ln()),
                    F::Sin => each(len, y, 1, |i| (*x.add(i)).sin()),
                    F::Cos => each(len, y, 1, |i| (*x.add(i)).cos()),
                    F::Tanh => each(len, y, 1, |i| (*x.add(i)).tanh()),
                    F::Floor => each(len, y, 1, |i| (*x.add(i)).floor()),
                    F::Ceil => each(len, y, 1, |i| (*x.add(i)).ceil()),
                    F::Round => each(len, y, 1, |i| (*x.add(i)).round_ties_even()),
                    F::Sign | F::Not => each(len, y, 1, |i| sign(*x.add(i))),
                }
                to.store_block::<S>(len, y);
            }
        }
    }
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

impl Leveled for Unary {
    const PORTABLE: AtLevel = AtLevel { name: "unary.cpu.portable", arithmetic: MUL_ADD, reads: 0.6, computes: 0.02 };
    const AVX2: AtLevel = AtLevel { name: "unary.cpu.avx2", arithmetic: FMA, reads: 0.8, computes: 0.03 };
    const AVX512: AtLevel = AtLevel { name: "unary.cpu.avx512", arithmetic: FMA, reads: 0.85, computes: 0.04 };

    fn takes(fixed: &UnaryStatic) -> Result<(), Refusal> {
        takes_lanes([fixed.input])
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &UnaryStatic,
        _: &Elements,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.output(Unary::NAME, Unary::Y, "y")?;
        let x = operands.optional(Unary::X).unwrap_or_else(|| y.view());
        let kernel = UnaryKernel {
            fixed: *fixed,
            walk: Walk::any_order([y.layout(), x.layout()]),
            y: Address(y.host_ptr()?),
            x: Address::read(x.host_ptr()?),
        };
        // SAFETY: `Operator::check` has seen shapes and dtypes; the addresses are those of the operands.
        unsafe { simd::launch(level, launch.team()?, kernel.walk.tasks(), &kernel) };
        Ok(())
    }
}

struct BinaryKernel {
    fixed: BinaryStatic,
    walk: Walk<3>,
    y: Address,
    a: Address,
    /// The scalar stands here where there is no operand.
    b: Result<Address, f32>,
}

impl Kernel for BinaryKernel {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        use BinaryFunction as F;
        let BinaryStatic { function, a: a_dtype, b: b_dtype, output } = self.fixed;
        let [y_step, a_step, b_step] = self.walk.steps;
        let (mut a_scratch, mut b_scratch, mut y_scratch) = (Scratch::new(), Scratch::new(), Scratch::new());
        let (a_scratch, b_scratch, y_scratch) = (a_scratch.ptr(), b_scratch.ptr(), y_scratch.ptr());
        if let Err(scalar) = self.b {
            // SAFETY: a block holds so many values.
            unsafe { each(strided::BLOCK, b_scratch, 1, |_| scalar) };
        }
        for run in self.walk.task(task) {
            let len = run.len;
            let to = self.y.at(run.at[0], output.size());
            // SAFETY: the walk stays inside the operands, which the operator's check has seen; runs of the output do
            // not meet; blocks hold `len` values.
            unsafe {
                let a = Line::new(self.a.at(run.at[1], a_dtype.size()), a_dtype, a_step).block::<S>(len, a_scratch);
                let b = match self.b {
                    Ok(b) => Line::new(b.at(run.at[2], b_dtype.size()), b_dtype, b_step).block::<S>(len, b_scratch),
                    Err(_) => b_scratch.cast_const(),
                };
                if function.compares() {
                    compare(function, a, b, len, to, y_step);
                    continue;
                }
                let to = Line::new(to, output, y_step);
                let y = to.place(y_scratch);
                match function {
                    F::Add => zip::<S, Add>(a, b, y, len),
                    F::Sub => zip::<S, Sub>(a, b, y, len),
                    F::Mul => zip::<S, Mul>(a, b, y, len),
                    F::Div => zip::<S, Div>(a, b, y, len),
                    F::Max => zip::<S, Max>(a, b, y, len),
                    F::Min => zip::<S, Min>(a, b, y, len),
                    _ => each(len, y, 1, |i| (*a.add(i)).powf(*b.add(i))),
                }
                to.store_block::<S>(len, y);
            }
        }
    }
}

impl Leveled for Binary {
    const PORTABLE: AtLevel = AtLevel { name: "binary.cpu.portable", arithmetic: MUL_ADD, reads: 0.6, computes: 0.02 };
    const AVX2: AtLevel = AtLevel { name: "binary.cpu.avx2", arithmetic: FMA, reads: 0.8, computes: 0.03 };
    const AVX512: AtLevel = AtLevel { name: "binary.cpu.avx512", arithmetic: FMA, reads: 0.85, computes: 0.04 };

    fn takes(fixed: &BinaryStatic) -> Result<(), Refusal> {
        takes_lanes([fixed.a, fixed.b])
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &BinaryStatic,
        call: &BinaryDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.output(Binary::NAME, Binary::Y, "y")?;
        let a = operands.optional(Binary::A).unwrap_or_else(|| y.view());
        let b = operands.optional(Binary::B);
        let kernel = BinaryKernel {
            fixed: *fixed,
            // The scalar takes no part in the walk: `a` stands in for it.
            walk: Walk::any_order([y.layout(), a.layout(), b.unwrap_or(a).layout()]),
            y: Address(y.host_ptr()?),
            a: Address::read(a.host_ptr()?),
            b: match b {
                Some(b) => Ok(Address::read(b.host_ptr()?)),
                None => Err(fixed.b.round(call.scalar()) as f32),
            },
        };
        // SAFETY: `Operator::check` has seen shapes and dtypes; the addresses are those of the operands.
        unsafe { simd::launch(level, launch.team()?, kernel.walk.tasks(), &kernel) };
        Ok(())
    }
}
