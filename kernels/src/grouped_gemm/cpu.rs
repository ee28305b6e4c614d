//! The rows of [`gemm`](crate::gemm) on CPUs, over groups.

use sinew_memory::{Hardware, SimdLevel};

use super::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use crate::Result;
use crate::gemm::driver::{self, Grouped};
use crate::gemm::order::Order;
use crate::gemm::tile::{Tiles, tiled_row};
use crate::gemm::ways::ways;
use crate::gemm::{cpu, cpu_blocks, cpu_int8, plan};
#[cfg(target_arch = "x86_64")]
use crate::gemm::{cpu_avx512bf16, cpu_blocks_avx512bf16};
use crate::operator::{Launch, Operands, Operator, Row, refuse};
use crate::rates::predicted;
use crate::strided::Address;

macro_rules! row {
    ($way:literal, $module:ident::$arithmetic:ident, $level:ident, $($tiles:tt)+) => {
        tiled_row!(
            concat!("grouped_gemm.cpu.", $way),
            $module::$arithmetic,
            |fixed, hardware| $module::admit(&fixed.product(), hardware, SimdLevel::$level).map(drop),
            |hardware| $module::rate(hardware, SimdLevel::$level),
            &$module::$($tiles)+
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! dot {
    ($way:literal, $module:ident) => {
        tiled_row!(
            concat!("grouped_gemm.cpu.", $way),
            $module::DOT,
            |fixed, hardware| $module::admit(&fixed.product(), hardware),
            $module::rate,
            &$module::DOTS
        )
    };
}

/// The rows of [`GroupedGemm`].
pub(super) fn rows() -> Vec<Row<GroupedGemm>> {
    ways!(row, dot)
}

fn cost(fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, hardware: &Hardware, rate: f64) -> f64 {
    predicted::by_rate(GroupedGemm::work(fixed, call), hardware, rate)
}

fn workspace(tiles: &Tiles, fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, hardware: &Hardware) -> usize {
    plan::grouped_workspace(tiles, &fixed.product(), fixed.groups, call.rows, hardware)
}

/// # Safety
/// That of [`Row::run`]; the machine has the level of the tiles, and what their loop needs besides.
unsafe fn run(
    tiles: &'static Tiles,
    launch: &Launch<'_>,
    fixed: &GroupedGemmStatic,
    call: &GroupedGemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let a = operands.input(GroupedGemm::NAME, GroupedGemm::A, "A")?;
    let b = operands.input(GroupedGemm::NAME, GroupedGemm::B, "B")?;
    let d = operands.output(GroupedGemm::NAME, GroupedGemm::D, "D")?.view();
    let offsets = operands.input(GroupedGemm::NAME, GroupedGemm::OFFSETS, "offsets")?;
    let (ptr, step) = (Address::read(offsets.host_ptr()?), offsets.strides()[0]);
    // SAFETY: the operator's check has seen that there are so many offsets of i32.
    let offset = |group: usize| unsafe { *ptr.at(group * step, size_of::<i32>()).cast::<i32>() };
    let ordered = offset(0) == 0 && (0..fixed.groups).all(|group| offset(group) <= offset(group + 1));
    if !ordered || offset(fixed.groups) as usize != call.rows {
        let reason =
            format!("offsets of {} groups must begin with 0, never decrease, and end with {call}", fixed.groups);
        return Err(refuse(GroupedGemm::NAME, reason));
    }
    let order = Order::new(&fixed.product(), operands.optional(GroupedGemm::ORDER))?;
    let (a, d) = (a.with_layout(a.layout().unsqueeze(0)?)?, d.with_layout(d.layout().unsqueeze(0)?)?);
    let bias = operands.optional(GroupedGemm::BIAS);
    let operands = Grouped { groups: fixed.groups, a: &a, b, bias, order, out: &d };
    // SAFETY: passed on; the operator's check has seen the operands' shapes and dtypes, and offsets were checked above.
    unsafe { driver::run_grouped(tiles, launch, &fixed.product(), operands, |group| offset(group) as usize) }
}
