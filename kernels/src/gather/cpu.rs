//! Gathers of elements of one, two, four or eight bytes, moved as they are.

use bytemuck::Pod;
use sinew_memory::DeviceKind;

use super::{Gather, GatherDynamic, GatherStatic};
use crate::Result;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::{Address, Indices, Walk};

/// Share of the memory rate.
const READS: f64 = 0.3;

pub(super) fn row() -> Row<Gather> {
    Row {
        name: "gather.cpu.portable",
        device: DeviceKind::CPU,
        arithmetic: Arithmetic::named("gather.exact"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Gather::work(fixed, call), hardware, READS, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &GatherStatic, call: &GatherDynamic, operands: Operands<'_>) -> Result<()> {
    let x = operands.input(Gather::NAME, Gather::X, "x")?;
    let index = operands.input(Gather::NAME, Gather::INDEX, "index")?;
    let y = operands.output(Gather::NAME, Gather::Y, "y")?;
    // Along the dimension the input does not step with the output: the index says where.
    let step_of = |d: usize| if d == fixed.dim { 0 } else { x.strides()[d] };
    let walk = Walk::of(y.shape(), |d| [y.strides()[d], index.strides()[d], step_of(d)]);
    let stride = x.strides()[fixed.dim];
    let (to, from) = (Address(y.host_ptr()?), Address::read(x.host_ptr()?));
    let indices = Indices::checked(Gather::NAME, index, call.size, "elements of the dimension")?;
    let team = launch.team()?;
    macro_rules! sized {
        ($($size:literal: $t:ty),*) => {
            match fixed.dtype.size() {
                $($size => team.run(walk.tasks(), |task, _| {
                    // SAFETY: shapes, dtypes and indices are checked; the walk stays inside the output and its runs
                    // do not meet.
                    unsafe { gather::<$t>(&walk, task, to, &indices, from, stride) }
                }),)*
                _ => {}
            }
        };
    }
    sized!(1: u8, 2: u16, 4: u32, 8: u64);
    Ok(())
}

/// # Safety
/// The walk stays inside elements of the size of `T` at `to` and, with every index times `stride`, at `from`; this task
/// alone writes its runs.
unsafe fn gather<T: Pod>(walk: &Walk<3>, task: usize, to: Address, indices: &Indices, from: Address, stride: usize) {
    let [y_step, i_step, x_step] = walk.steps;
    for run in walk.task(task) {
        let y = to.at(run.at[0], size_of::<T>()).cast::<T>();
        let x = from.at(run.at[2], size_of::<T>()).cast::<T>().cast_const();
        // SAFETY: passed on.
        unsafe {
            if i_step == 0 {
                let x = x.add(indices.get(run.at[1]) * stride);
                if y_step == 1 && x_step == 1 {
                    std::ptr::copy_nonoverlapping(x, y, run.len);
                } else {
                    (0..run.len).for_each(|i| *y.add(i * y_step) = *x.add(i * x_step));
                }
            } else {
                for i in 0..run.len {
                    *y.add(i * y_step) = *x.add(i * x_step + indices.get(run.at[1] + i * i_step) * stride);
                }
            }
        }
    }
}
