//! The ways to multiply on CPUs: one list, of which every operator with products makes its rows.

use sinew_memory::SimdLevel;

use super::cpu::cost;
use super::driver::run;
use super::plan::workspace;
use super::tile::tiled_row;
use super::{Gemm, cpu, cpu_blocks, cpu_int8};
#[cfg(target_arch = "x86_64")]
use super::{cpu_avx512bf16, cpu_blocks_avx512bf16};
use crate::Row;

/// All ways, best first: `$row` makes the row of a module at one of its levels, `$dot` that of a module that has one
/// level. Each is told the end of its name.
macro_rules! ways {
    ($row:ident, $dot:ident) => {
        vec![
            #[cfg(target_arch = "x86_64")]
            $dot!("avx512bf16", cpu_avx512bf16),
            #[cfg(target_arch = "x86_64")]
            $dot!("avx512bf16.blocks", cpu_blocks_avx512bf16),
            #[cfg(target_arch = "x86_64")]
            $row!("avx512vnni.int8", cpu_int8::FUSED, Avx512Vnni, x86::VNNI),
            #[cfg(target_arch = "x86_64")]
            $row!("avx2.int8", cpu_int8::FUSED, Avx2, x86::AVX2),
            $row!("portable.int8", cpu_int8::MUL_ADD, Portable, PORTABLE),
            #[cfg(target_arch = "x86_64")]
            $row!("avx512.blocks", cpu_blocks::FUSED, Avx512, AVX512),
            #[cfg(target_arch = "x86_64")]
            $row!("avx2.blocks", cpu_blocks::FUSED, Avx2, AVX2),
            $row!("portable.blocks", cpu_blocks::MUL_ADD, Portable, PORTABLE),
            #[cfg(target_arch = "x86_64")]
            $row!("avx512", cpu::FUSED, Avx512, AVX512),
            #[cfg(target_arch = "x86_64")]
            $row!("avx2", cpu::FUSED, Avx2, AVX2),
            $row!("portable", cpu::MUL_ADD, Portable, PORTABLE),
        ]
    };
}
pub(crate) use ways;

macro_rules! row {
    ($way:literal, $module:ident::$arithmetic:ident, $level:ident, $($tiles:tt)+) => {
        tiled_row!(
            concat!("gemm.cpu.", $way),
            $module::$arithmetic,
            |fixed, hardware| $module::admit(fixed, hardware, SimdLevel::$level).map(drop),
            |hardware| $module::rate(hardware, SimdLevel::$level),
            &$module::$($tiles)+
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! dot {
    ($way:literal, $module:ident) => {
        tiled_row!(concat!("gemm.cpu.", $way), $module::DOT, $module::admit, $module::rate, &$module::DOTS)
    };
}

/// The rows of [`Gemm`].
pub(super) fn rows() -> Vec<Row<Gemm>> {
    ways!(row, dot)
}
