//! The rows of [`gemm`](crate::gemm) on CPUs, over groups.

use sinew_memory::{DeviceKind, Hardware, SimdLevel};

use super::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use crate::Result;
#[cfg(target_arch = "x86_64")]
use crate::gemm::cpu_avx512bf16;
use crate::gemm::tile::{self, Tiles};
use crate::gemm::{cpu, driver};
use crate::operator::{Launch, Operands, Operator, Row, refuse};
use crate::strided::Address;

/// The row of one multiply-add chain per output at a level, which reaches a share of its peak.
macro_rules! chain {
    ($name:literal, $arithmetic:expr, $level:expr, $share:literal, $tiles:expr) => {
        Row {
            name: $name,
            device: DeviceKind::CPU,
            arithmetic: $arithmetic,
            admits: |fixed, hardware| cpu::admit(&fixed.product(), hardware, $level).map(drop),
            cost: |fixed, call, hardware| cost(fixed, call, hardware, cpu::f32_rate(hardware, $level) * $share),
            workspace: |fixed, call, hardware| workspace($tiles, fixed, call, hardware),
            // SAFETY: the row admits machines with the level only.
            run: |launch, fixed, call, operands| unsafe { run($tiles, launch, fixed, call, operands) },
        }
    };
}

/// Best first.
pub(super) fn rows() -> Vec<Row<GroupedGemm>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        Row {
            name: "grouped_gemm.cpu.avx512bf16",
            device: DeviceKind::CPU,
            arithmetic: cpu_avx512bf16::DOT,
            admits: |fixed, hardware| cpu_avx512bf16::admit(&fixed.product(), hardware),
            cost: |fixed, call, hardware| cost(fixed, call, hardware, cpu_avx512bf16::rate(hardware)),
            workspace: |fixed, call, hardware| workspace(&cpu_avx512bf16::DOTS, fixed, call, hardware),
            // SAFETY: the row admits machines with the instructions only.
            run: |launch, fixed, call, operands| unsafe { run(&cpu_avx512bf16::DOTS, launch, fixed, call, operands) },
        },
        #[cfg(target_arch = "x86_64")]
        chain!("grouped_gemm.cpu.avx512", cpu::FUSED, SimdLevel::Avx512, 0.85, &tile::AVX512),
        #[cfg(target_arch = "x86_64")]
        chain!("grouped_gemm.cpu.avx2", cpu::FUSED, SimdLevel::Avx2, 0.8, &tile::AVX2),
        chain!("grouped_gemm.cpu.portable", cpu::PORTABLE, SimdLevel::Portable, 0.4, &tile::PORTABLE),
    ]
}

fn cost(fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, hardware: &Hardware, rate: f64) -> f64 {
    cpu::seconds(GroupedGemm::work(fixed, call), hardware, rate)
}

fn workspace(tiles: &Tiles, fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, hardware: &Hardware) -> usize {
    driver::grouped_workspace(tiles, &fixed.product(), fixed.groups, call.rows, hardware)
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
    let (a, d) = (a.with_layout(a.layout().unsqueeze(0)?)?, d.with_layout(d.layout().unsqueeze(0)?)?);
    // SAFETY: passed on; the operator's check has seen the operands' shapes and dtypes, and offsets were checked above.
    unsafe {
        driver::run_grouped(tiles, launch, &fixed.product(), fixed.groups, [&a, b, &d], |group| offset(group) as usize)
    }
}
