//! The ways to multiply on CPUs: one list, of which every operator with products makes its rows.
//!
//! # Three parts
//! - The *plan* (`plan/`) divides a problem into blocks, each by a cache or by the number of registers.
//! - The *loop nest* (`driver.rs`, `finish.rs`) packs blocks of A's rows for the second-level cache, shares panels of 32
//!   outputs among threads, and writes results with their epilogue. It is the same for every kernel.
//! - A *microkernel* is a file with the weights that it decodes, its loop over K, the [packing](tile::Packing) of A that it
//!   reads, and the [description](way::Way) of its kernel, of which there is a line in [`rows()`]: see `fp4_avx2.rs` for a
//!   short one.
//!
//! After BLIS (Van Zee and van de Geijn 2015), with the difference that weights were packed when they were loaded, and that
//! a right-hand side that was not is packed panel by panel by the task that multiplies with it.

mod blocks;
#[cfg(target_arch = "x86_64")]
mod blocks_avx512bf16;
mod codes;
#[cfg(target_arch = "x86_64")]
mod codes_bf16;
pub(crate) mod driver;
mod finish;
mod floats;
#[cfg(target_arch = "x86_64")]
mod floats_avx512bf16;
#[cfg(target_arch = "x86_64")]
mod fp4_avx2;
mod groups;
#[cfg(target_arch = "x86_64")]
mod int16;
mod int8;
mod integers;
mod normed_rows;
mod pack;
pub(crate) mod plan;
mod quads;
pub(crate) mod rows;
pub(crate) mod tile;
pub(crate) mod way;

use sinew_memory::DeviceKind;

use crate::Row;
use crate::gemm::Gemm;
use way::{Listed, Multiplies, cost};

/// The rows of an operator: all ways, best first.
pub(crate) fn rows<O: Multiplies>() -> Vec<Row<O>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        O::row::<floats_avx512bf16::DotWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<blocks_avx512bf16::DotWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<int16::VnniWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<int16::Avx2Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<fp4_avx2::DoubledWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<int8::VnniWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<int8::Avx2Way>(),
        O::row::<int8::PortableWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<blocks::Avx512Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<blocks::Avx2Way>(),
        O::row::<blocks::PortableWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<floats::Avx512Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<floats::Avx2Way>(),
        O::row::<floats::PortableWay>(),
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
