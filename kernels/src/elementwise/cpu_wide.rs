//! f64 and integers as they are, and selection of anything.

use bytemuck::Pod;
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, Element};

use super::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic, Where,
    WhereStatic,
};
use crate::Result;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row};
use crate::rates::predicted;
use crate::strided::{Address, Run, Walk};

const EXACT: Arithmetic = Arithmetic::named("elementwise.own-dtype");

/// Shares of the machine's memory rate and arithmetic peak: plain loops, which the compiler may vectorise.
const READS: f64 = 0.5;
const COMPUTES: f64 = 0.02;

pub(super) fn unary_rows() -> Vec<Row<Unary>> {
    vec![Row {
        name: "unary.cpu.wide",
        device: DeviceKind::CPU,
        arithmetic: EXACT,
        admits: |fixed, _| admits(fixed.input),
        cost: |fixed, call, hardware| predicted::by_shares(Unary::work(fixed, call), hardware, READS, COMPUTES),
        workspace: none::<Unary>,
        run: run_unary,
    }]
}

pub(super) fn binary_rows() -> Vec<Row<Binary>> {
    vec![Row {
        name: "binary.cpu.wide",
        device: DeviceKind::CPU,
        arithmetic: EXACT,
        admits: |fixed, _| admits(fixed.a),
        cost: |fixed, call, hardware| predicted::by_shares(Binary::work(fixed, call), hardware, READS, COMPUTES),
        workspace: none::<Binary>,
        run: run_binary,
    }]
}

pub(super) fn where_rows() -> Vec<Row<Where>> {
    vec![Row {
        name: "where.cpu.portable",
        device: DeviceKind::CPU,
        arithmetic: Arithmetic::named("where.exact"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Where::work(fixed, call), hardware, READS, COMPUTES),
        workspace: none::<Where>,
        run: run_where,
    }]
}

fn none<O: Operator>(_: &O::Static, _: &O::Dynamic, _: &Hardware) -> usize {
    0
}

fn admits(dtype: DType) -> Result<(), Refusal> {
    if DType::COMPUTE.contains(&dtype) { Err("for f64 and integers".into()) } else { Ok(()) }
}

/// What is computed in its own type. Integers wrap.
trait Number: Element + PartialOrd {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    /// A function that only floats have.
    fn float(self, function: UnaryFunction) -> Self;
    fn div(self, other: Self) -> Self;
    fn pow(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty: $abs:expr, $sign:expr;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn abs(self) -> Self { #[allow(clippy::redundant_closure_call)] ($abs)(self) }
            #[inline(always)]
            fn sign(self) -> Self { #[allow(clippy::redundant_closure_call)] ($sign)(self) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { self.min(other) }
            // The problem's own check has refused these for integers.
            fn float(self, _: UnaryFunction) -> Self { self }
            fn div(self, _: Self) -> Self { self }
            fn pow(self, _: Self) -> Self { self }
        }
    )*};
}
integers! {
    i64: i64::wrapping_abs, i64::signum;
    i32: i32::wrapping_abs, i32::signum;
    i16: i16::wrapping_abs, i16::signum;
    i8: i8::wrapping_abs, i8::signum;
    u32: |x| x, |x: u32| x.min(1);
    u8: |x| x, |x: u8| x.min(1);
}

impl Number for f64 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn neg(self) -> Self {
        -self
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.abs()
    }
    #[inline(always)]
    fn sign(self) -> Self {
        if self == 0.0 || self.is_nan() { self } else { self.signum() }
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self.is_nan() || self > other { self } else { other }
    }
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self.is_nan() || self < other { self } else { other }
    }
    fn float(self, function: UnaryFunction) -> Self {
        use UnaryFunction as F;
        match function {
            F::Sqrt => self.sqrt(),
            F::Rsqrt => 1.0 / self.sqrt(),
            F::Recip => 1.0 / self,
            F::Exp => self.exp(),
            F::Log => self.ln(),
            F::Sin => self.sin(),
            F::Cos => self.cos(),
            F::Tanh => self.tanh(),
            F::Floor => self.floor(),
            F::Ceil => self.ceil(),
            F::Round => self.round_ties_even(),
            F::Neg | F::Abs | F::Sign | F::Square | F::Not => self,
        }
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self / other
    }
    fn pow(self, other: Self) -> Self {
        self.powf(other)
    }
}

unsafe fn run_unary(launch: &Launch<'_>, fixed: &UnaryStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Unary::NAME, Unary::Y, "y")?;
    let x = operands.optional(Unary::X).unwrap_or_else(|| y.view());
    let walk = Walk::any_order([y.layout(), x.layout()]);
    let (to, from) = (Address(y.host_ptr()?), Address::read(x.host_ptr()?));
    let team = launch.team()?;
    macro_rules! typed {
        ($($dtype:ident: $t:ty),*) => {
            match fixed.input {
                $(DType::$dtype => team.run(walk.tasks(), |task, _| walk.task(task).for_each(|run| {
                    // SAFETY: shapes and dtypes are checked; the walk stays inside; runs of the output do not meet.
                    unsafe { unary::<$t>(fixed.function, &walk, run, to, from) }
                })),)*
                _ => team.run(walk.tasks(), |task, _| walk.task(task).for_each(|run| {
                    // SAFETY: as above; only `Not` takes bools, as bytes.
                    unsafe { unary::<u8>(fixed.function, &walk, run, to, from) }
                })),
            }
        };
    }
    typed!(F64: f64, I64: i64, I32: i32, I16: i16, I8: i8, U32: u32);
    Ok(())
}

/// # Safety
/// Both addresses hold elements of `T` (the output bools, for `Not`) wherever `run` says, and this task alone writes
/// the output's.
#[inline]
unsafe fn unary<T: Number>(function: UnaryFunction, walk: &Walk<2>, run: Run<2>, y: Address, x: Address) {
    use UnaryFunction as F;
    let [y_step, x_step] = walk.steps;
    // SAFETY: passed on.
    unsafe {
        let x = x.at(run.at[1], size_of::<T>()).cast::<T>();
        if function == F::Not {
            let y = y.at(run.at[0], 1);
            for i in 0..run.len {
                *y.add(i * y_step) = u8::from(*x.add(i * x_step) == T::zeroed());
            }
            return;
        }
        let y = y.at(run.at[0], size_of::<T>()).cast::<T>();
        macro_rules! each {
            ($f:expr) => {
                for i in 0..run.len {
                    *y.add(i * y_step) = ($f)(*x.add(i * x_step));
                }
            };
        }
        match function {
            F::Neg => each!(T::neg),
            F::Abs => each!(T::abs),
            F::Sign => each!(T::sign),
            F::Square => each!(|x: T| x.mul(x)),
            _ => each!(|x: T| x.float(function)),
        }
    }
}

unsafe fn run_binary(
    launch: &Launch<'_>,
    fixed: &BinaryStatic,
    call: &BinaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.output(Binary::NAME, Binary::Y, "y")?;
    let a = operands.optional(Binary::A).unwrap_or_else(|| y.view());
    let b = operands.optional(Binary::B);
    let walk = Walk::any_order([y.layout(), a.layout(), b.unwrap_or(a).layout()]);
    let (to, left) = (Address(y.host_ptr()?), Address::read(a.host_ptr()?));
    let right = b.map(|b| b.host_ptr()).transpose()?.map(Address::read);
    let team = launch.team()?;
    macro_rules! typed {
        ($($dtype:ident: $t:ty),*) => {
            match fixed.a {
                $(DType::$dtype => {
                    let scalar = <$t>::from_f64(call.scalar());
                    team.run(walk.tasks(), |task, _| walk.task(task).for_each(|run| {
                        // SAFETY: shapes and dtypes are checked; the walk stays inside; runs of the output do not meet.
                        unsafe { binary::<$t>(fixed.function, &walk, run, to, left, right, scalar) }
                    }))
                })*
                _ => {}
            }
        };
    }
    typed!(F64: f64, I64: i64, I32: i32, I16: i16, I8: i8, U32: u32, U8: u8);
    Ok(())
}

/// # Safety
/// As for [`unary`].
#[inline]
unsafe fn binary<T: Number>(
    function: BinaryFunction,
    walk: &Walk<3>,
    run: Run<3>,
    y: Address,
    a: Address,
    b: Option<Address>,
    scalar: T,
) {
    use BinaryFunction as F;
    let [y_step, a_step, b_step] = walk.steps;
    // SAFETY: passed on; the scalar is a live element, and with a step of 0 only it is read.
    unsafe {
        let a = a.at(run.at[1], size_of::<T>()).cast::<T>();
        let (b, b_step) = match b {
            Some(b) => (b.at(run.at[2], size_of::<T>()).cast::<T>().cast_const(), b_step),
            None => (&raw const scalar, 0),
        };
        macro_rules! each {
            ($y:ty, $f:expr) => {{
                let y = y.at(run.at[0], size_of::<$y>()).cast::<$y>();
                for i in 0..run.len {
                    *y.add(i * y_step) = ($f)(*a.add(i * a_step), *b.add(i * b_step));
                }
            }};
        }
        match function {
            F::Add => each!(T, T::add),
            F::Sub => each!(T, T::sub),
            F::Mul => each!(T, T::mul),
            F::Div => each!(T, T::div),
            F::Max => each!(T, T::larger),
            F::Min => each!(T, T::smaller),
            F::Pow => each!(T, T::pow),
            F::Eq => each!(u8, |a: T, b: T| u8::from(a == b)),
            F::Ne => each!(u8, |a: T, b: T| u8::from(a != b)),
            F::Lt => each!(u8, |a: T, b: T| u8::from(a < b)),
            F::Le => each!(u8, |a: T, b: T| u8::from(a <= b)),
            F::Gt => each!(u8, |a: T, b: T| u8::from(a > b)),
            F::Ge => each!(u8, |a: T, b: T| u8::from(a >= b)),
        }
    }
}

unsafe fn run_where(launch: &Launch<'_>, fixed: &WhereStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Where::NAME, Where::Y, "y")?;
    let condition = operands.input(Where::NAME, Where::CONDITION, "condition")?;
    let (a, b) = (operands.input(Where::NAME, Where::A, "a")?, operands.input(Where::NAME, Where::B, "b")?);
    let walk = Walk::any_order([y.layout(), condition.layout(), a.layout(), b.layout()]);
    let to = Address(y.host_ptr()?);
    let from = [condition.host_ptr()?, a.host_ptr()?, b.host_ptr()?].map(Address::read);
    let team = launch.team()?;
    macro_rules! sized {
        ($($size:literal: $t:ty),*) => {
            match fixed.dtype.size() {
                $($size => team.run(walk.tasks(), |task, _| walk.task(task).for_each(|run| {
                    // SAFETY: shapes and dtypes are checked; the walk stays inside; runs of the output do not meet.
                    unsafe { select::<$t>(&walk, run, to, from) }
                })),)*
                _ => {}
            }
        };
    }
    sized!(1: u8, 2: u16, 4: u32, 8: u64);
    Ok(())
}

/// # Safety
/// As for [`unary`], with elements of the size of `T` and conditions of one byte.
#[inline]
unsafe fn select<T: Pod>(walk: &Walk<4>, run: Run<4>, y: Address, from: [Address; 3]) {
    let [y_step, c_step, a_step, b_step] = walk.steps;
    // SAFETY: passed on.
    unsafe {
        let y = y.at(run.at[0], size_of::<T>()).cast::<T>();
        let c = from[0].at(run.at[1], 1);
        let a = from[1].at(run.at[2], size_of::<T>()).cast::<T>();
        let b = from[2].at(run.at[3], size_of::<T>()).cast::<T>();
        for i in 0..run.len {
            let (yes, no) = (*a.add(i * a_step), *b.add(i * b_step));
            *y.add(i * y_step) = if *c.add(i * c_step) != 0 { yes } else { no };
        }
    }
}
