//! The rows of [`gemm`](crate::gemm) on CPUs, over groups.

use sinew_memory::DeviceKind;

use super::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use crate::Result;
use crate::gemm::cpu::driver::{self, Grouped};
use crate::gemm::cpu::plan;
use crate::gemm::cpu::rows::Order;
use crate::gemm::cpu::tile::Tiles;
use crate::gemm::cpu::way::{Listed, Multiplies};
use crate::operator::{Launch, Operands, Operator, Row, refuse};
use crate::rates::predicted;
use crate::strided::Address;

impl Multiplies for GroupedGemm {
    fn row<W: Listed>() -> Row<Self> {
        Row {
            name: W::WAY.names.grouped_gemm,
            device: DeviceKind::CPU,
            arithmetic: W::WAY.arithmetic,
            admits: |fixed, hardware| W::WAY.admit(&fixed.product(), hardware),
            cost: |fixed, call, hardware| predicted::by_rate(Self::work(fixed, call), hardware, W::WAY.rate(hardware)),
            workspace: |fixed, call, hardware| {
                plan::grouped_workspace(W::WAY.tiles, &fixed.product(), fixed.groups, call.rows, hardware)
            },
            // SAFETY: passed on; the row admits machines with the level and the instructions only.
            run: |launch, fixed, call, operands| unsafe { run(W::WAY.tiles, launch, fixed, call, operands) },
        }
    }
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
