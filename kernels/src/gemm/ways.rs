//! The ways to multiply on CPUs: one list, of which every operator with products makes its rows.

use sinew_memory::DeviceKind;

use super::way::{Listed, Multiplies, cost};
use super::{Gemm, cpu, cpu_blocks, cpu_int8, driver, plan};
#[cfg(target_arch = "x86_64")]
use super::{cpu_avx512bf16, cpu_blocks_avx512bf16, cpu_blocks_avx512vnni};
use crate::Row;

/// The rows of an operator: all ways, best first.
pub(crate) fn rows<O: Multiplies>() -> Vec<Row<O>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_avx512bf16::DotWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks_avx512bf16::DotWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks_avx512vnni::Int16Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_int8::x86::VnniWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_int8::x86::Avx2Way>(),
        O::row::<cpu_int8::PortableWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks::Avx512Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks::Avx2Way>(),
        O::row::<cpu_blocks::PortableWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu::Avx512Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu::Avx2Way>(),
        O::row::<cpu::PortableWay>(),
    ]
}

impl Multiplies for Gemm {
    fn row<W: Listed>() -> Row<Self> {
        Row {
            name: W::WAY.names.gemm,
            device: DeviceKind::CPU,
            arithmetic: W::WAY.arithmetic,
            admits: |fixed, hardware| W::WAY.admit(fixed, hardware),
            cost: |fixed, call, hardware| cost(fixed, call, hardware, W::WAY.rate(hardware)),
            workspace: |fixed, call, hardware| plan::workspace(W::WAY.tiles, fixed, call, hardware),
            // SAFETY: passed on; the row admits machines with the level and the instructions only.
            run: |launch, fixed, call, operands| unsafe { driver::run(W::WAY.tiles, launch, fixed, call, operands) },
        }
    }
}
