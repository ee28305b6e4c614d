//! Every other pair of dtypes: by way of i64 for integers and f64 for floats, a block at a time.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use sinew_memory::DeviceKind;
use sinew_tensor::{DType, Element};

use super::{Cast, CastStatic};
use crate::Result;
use crate::elementwise::Elements;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::{Address, BLOCK, Walk};

/// Shares of the memory rate and the arithmetic peak: two plain loops over a block.
const READS: f64 = 0.2;

pub(super) fn row() -> Row<Cast> {
    Row {
        name: "cast.cpu.wide",
        device: DeviceKind::CPU,
        arithmetic: Arithmetic::named("cast.wide"),
        admits: |fixed, _| {
            let CastStatic { input, output } = fixed;
            if input == output {
                Err("equal dtypes are copied".into())
            } else if DType::COMPUTE.contains(input) && DType::COMPUTE.contains(output) {
                Err("f32, f16 and bf16 have rows of their own".into())
            } else {
                Ok(())
            }
        },
        cost: |fixed, call, hardware| predicted::by_shares(Cast::work(fixed, call), hardware, READS, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &CastStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Cast::NAME, Cast::Y, "y")?;
    let x = operands.input(Cast::NAME, Cast::X, "x")?;
    let (to, from) = (Address(y.host_ptr()?), Address::read(x.host_ptr()?));
    let walk = Walk::any_order([y.layout(), x.layout()]);
    let CastStatic { input, output } = *fixed;
    launch.team()?.run(walk.tasks(), |task, _| {
        let [y_step, x_step] = walk.steps;
        for run in walk.task(task) {
            let y = to.at(run.at[0], output.size());
            let x = from.at(run.at[1], input.size());
            // SAFETY: shapes and dtypes are checked; the walk stays inside; runs of the output do not meet.
            unsafe {
                if input.is_float() {
                    let mut block = [0.0f64; BLOCK];
                    read_floats(input, x, x_step, &mut block[..run.len]);
                    write_floats(output, y, y_step, &block[..run.len]);
                } else {
                    let mut block = [0i64; BLOCK];
                    read_integers(input, x, x_step, &mut block[..run.len]);
                    write_integers(output, y, y_step, &block[..run.len]);
                }
            }
        }
    });
    Ok(())
}

/// # Safety
/// As many elements of `T` as `values` can be read from `x` on, `step` apart; so for the other functions here.
unsafe fn read<T: Element, V>(x: *const u8, step: usize, values: &mut [V], f: impl Fn(T) -> V) {
    let x = x.cast::<T>();
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: passed on.
        *value = f(unsafe { *x.add(i * step) });
    }
}

unsafe fn write<T: Element, V: Copy>(y: *mut u8, step: usize, values: &[V], f: impl Fn(V) -> T) {
    let y = y.cast::<T>();
    for (i, &value) in values.iter().enumerate() {
        // SAFETY: passed on.
        unsafe { *y.add(i * step) = f(value) };
    }
}

unsafe fn read_floats(dtype: DType, x: *const u8, step: usize, values: &mut [f64]) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F64 => read(x, step, values, f64::to_f64),
            DType::F32 => read(x, step, values, f32::to_f64),
            DType::F16 => read(x, step, values, <f16 as Element>::to_f64),
            DType::BF16 => read(x, step, values, <bf16 as Element>::to_f64),
            DType::F8E4M3 => read(x, step, values, <F8E4M3 as Element>::to_f64),
            _ => read(x, step, values, <F8E5M2 as Element>::to_f64),
        }
    }
}

unsafe fn read_integers(dtype: DType, x: *const u8, step: usize, values: &mut [i64]) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::I64 => read(x, step, values, |x: i64| x),
            DType::I32 => read(x, step, values, |x: i32| x.into()),
            DType::I16 => read(x, step, values, |x: i16| x.into()),
            DType::I8 => read(x, step, values, |x: i8| x.into()),
            DType::U32 => read(x, step, values, |x: u32| x.into()),
            DType::U8 => read(x, step, values, |x: u8| x.into()),
            _ => read(x, step, values, |x: u8| i64::from(x != 0)),
        }
    }
}

unsafe fn write_floats(dtype: DType, y: *mut u8, step: usize, values: &[f64]) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F64 => write(y, step, values, <f64 as Element>::from_f64),
            DType::F32 => write(y, step, values, <f32 as Element>::from_f64),
            DType::F16 => write(y, step, values, <f16 as Element>::from_f64),
            DType::BF16 => write(y, step, values, <bf16 as Element>::from_f64),
            DType::F8E4M3 => write(y, step, values, <F8E4M3 as Element>::from_f64),
            DType::F8E5M2 => write(y, step, values, <F8E5M2 as Element>::from_f64),
            DType::I64 => write(y, step, values, |x| x as i64),
            DType::I32 => write(y, step, values, |x| x as i32),
            DType::I16 => write(y, step, values, |x| x as i16),
            DType::I8 => write(y, step, values, |x| x as i8),
            DType::U32 => write(y, step, values, |x| x as u32),
            DType::U8 => write(y, step, values, |x| x as u8),
            _ => write(y, step, values, |x| u8::from(x != 0.0)),
        }
    }
}

unsafe fn write_integers(dtype: DType, y: *mut u8, step: usize, values: &[i64]) {
    // SAFETY: passed on. What f64 rounds in an i64 past 2^53 is rounded again by the narrower floats.
    unsafe {
        match dtype {
            DType::F64 => write(y, step, values, |x| x as f64),
            DType::F32 => write(y, step, values, |x| x as f32),
            DType::F16 => write(y, step, values, |x| <f16 as Element>::from_f64(x as f64)),
            DType::BF16 => write(y, step, values, |x| <bf16 as Element>::from_f64(x as f64)),
            DType::F8E4M3 => write(y, step, values, |x| <F8E4M3 as Element>::from_f64(x as f64)),
            DType::F8E5M2 => write(y, step, values, |x| <F8E5M2 as Element>::from_f64(x as f64)),
            DType::I64 => write(y, step, values, |x| x),
            DType::I32 => write(y, step, values, |x| x as i32),
            DType::I16 => write(y, step, values, |x| x as i16),
            DType::I8 => write(y, step, values, |x| x as i8),
            DType::U32 => write(y, step, values, |x| x as u32),
            DType::U8 => write(y, step, values, |x| x as u8),
            _ => write(y, step, values, |x| u8::from(x != 0)),
        }
    }
}
