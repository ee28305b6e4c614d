//! Strided copies: elements of one, two, four or eight bytes, moved as they are.

use bytemuck::Pod;
use sinew_memory::DeviceKind;
use sinew_tensor::{Layout, MAX_RANK};

use super::{Cast, CastStatic};
use crate::Result;
use crate::elementwise::Elements;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::{Address, Walk};

/// Share of the memory rate.
const READS: f64 = 0.9;

/// Side of a square tile of a transposed copy, in elements: 32 rows of 8 bytes touch 32 cache lines on either side, 4
/// KiB in all, half of what the smallest first-level caches hold.
const TILE: usize = 32;
/// Tiles that one task copies.
const TILES_PER_TASK: usize = 16;

pub(super) fn row() -> Row<Cast> {
    Row {
        name: "cast.cpu.copy",
        device: DeviceKind::CPU,
        arithmetic: Arithmetic::named("cast.copy"),
        admits: |fixed, _| {
            if fixed.input == fixed.output { Ok(()) } else { Err("copies one dtype to the same".into()) }
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
    let team = launch.team()?;
    macro_rules! sized {
        ($($size:literal: $t:ty),*) => {
            match fixed.output.size() {
                $($size => match Transposed::of(y.layout(), x.layout()) {
                    Some(plane) => team.run(plane.tasks(), |task, _| {
                        // SAFETY: shapes and dtypes are checked; tiles of the output do not meet.
                        unsafe { plane.copy::<$t>(task, to, from) }
                    }),
                    None => {
                        let walk = Walk::any_order([y.layout(), x.layout()]);
                        team.run(walk.tasks(), |task, _| {
                            // SAFETY: as above, for runs.
                            unsafe { copy::<$t>(&walk, task, to, from) }
                        });
                    }
                },)*
                _ => {}
            }
        };
    }
    sized!(1: u8, 2: u16, 4: u32, 8: u64);
    Ok(())
}

/// # Safety
/// The walk stays inside elements of the size of `T` at both addresses, and this task alone writes its runs.
unsafe fn copy<T: Pod>(walk: &Walk<2>, task: usize, to: Address, from: Address) {
    let [y_step, x_step] = walk.steps;
    for run in walk.task(task) {
        let y = to.at(run.at[0], size_of::<T>()).cast::<T>();
        let x = from.at(run.at[1], size_of::<T>()).cast::<T>();
        // SAFETY: passed on; input and output are different buffers.
        unsafe {
            match (y_step, x_step) {
                (1, 1) => std::ptr::copy_nonoverlapping(x, y, run.len),
                (1, 0) => std::slice::from_raw_parts_mut(y, run.len).fill(*x),
                _ => (0..run.len).for_each(|i| *y.add(i * y_step) = *x.add(i * x_step)),
            }
        }
    }
}

/// A copy whose operands step by one along different dimensions: done in square tiles, so that each cache line that
/// is fetched on either side is used whole.
struct Transposed {
    /// The other dimensions.
    planes: Walk<2>,
    rows: usize,
    columns: usize,
    /// The output's step from row to row; the input's is 1.
    y_row: usize,
    /// The input's step from column to column; the output's is 1.
    x_column: usize,
    tiles: usize,
}

impl Transposed {
    fn of(y: &Layout, x: &Layout) -> Option<Self> {
        let along =
            |layout: &Layout| (0..layout.rank()).find(|&d| layout.strides()[d] == 1 && layout.shape()[d] >= TILE / 2);
        let (column, row) = (along(y)?, along(x)?);
        if column == row {
            return None;
        }
        let (rows, columns) = (y.shape()[row], y.shape()[column]);
        let mut shape = [1; MAX_RANK];
        shape[..y.rank()].copy_from_slice(y.shape());
        (shape[column], shape[row]) = (1, 1);
        let count = shape.iter().product::<usize>();
        Some(Self {
            planes: Walk::of(&shape[..y.rank()], |d| [y.strides()[d], x.strides()[d]]),
            rows,
            columns,
            y_row: y.strides()[row],
            x_column: x.strides()[column],
            tiles: count * rows.div_ceil(TILE) * columns.div_ceil(TILE),
        })
    }

    fn tasks(&self) -> usize {
        self.tiles.div_ceil(TILES_PER_TASK)
    }

    /// # Safety
    /// As for [`copy`].
    unsafe fn copy<T: Pod>(&self, task: usize, to: Address, from: Address) {
        let (down, across) = (self.rows.div_ceil(TILE), self.columns.div_ceil(TILE));
        let start = task * TILES_PER_TASK;
        for tile in start..(start + TILES_PER_TASK).min(self.tiles) {
            let [y, x] = self.planes.nth(tile / (down * across));
            let (row, column) = (tile / across % down * TILE, tile % across * TILE);
            let (height, width) = ((self.rows - row).min(TILE), (self.columns - column).min(TILE));
            let y = to.at(y + row * self.y_row + column, size_of::<T>()).cast::<T>();
            let x = from.at(x + row + column * self.x_column, size_of::<T>()).cast::<T>();
            for r in 0..height {
                for c in 0..width {
                    // SAFETY: row and column are inside the plane, and the plane inside both operands.
                    unsafe { *y.add(r * self.y_row + c) = *x.add(r + c * self.x_column) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::Cpu;
    use sinew_tensor::{DType, Tensor};

    use super::*;

    #[test]
    fn large_transposed_copies_are_exact_in_every_size_of_element() {
        let device = Cpu::get();
        let stream = device.clone().stream().unwrap();
        for dtype in [DType::U8, DType::BF16, DType::F32, DType::I64] {
            let shape = [3, 67, 131];
            let bytes: Vec<u8> = (0..3 * 67 * 131 * dtype.size()).map(|i| (i * 7 % 251) as u8).collect();
            let x = Tensor::from_bytes(&device, &bytes, dtype, &shape).unwrap();
            let turned = x.with_layout(x.layout().transpose(1, 2).unwrap()).unwrap();
            let mut y = Tensor::zeros(&device, dtype, turned.shape()).unwrap();
            let fixed = CastStatic { input: dtype, output: dtype };
            let launch = Launch::new(&stream, None).unwrap();
            let (inputs, outputs) = ([Some(turned.view())], [y.view_mut().unwrap()]);
            let operands = Operands { inputs: &inputs, outputs: &outputs };
            row().launch(&launch, &fixed, &Elements(3 * 67 * 131), operands).unwrap();
            let got = y.buffer().as_slice::<u8>().unwrap();
            let size = dtype.size();
            for (i, at) in turned.layout().indices().enumerate() {
                assert_eq!(got[i * size..(i + 1) * size], bytes[at * size..(at + 1) * size], "{dtype} element {i}");
            }
        }
    }
}
