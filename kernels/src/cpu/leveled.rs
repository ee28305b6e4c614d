//! What rows of the CPU share: the level that one needs, and the rows of a body that is written once for all levels.

use sinew_memory::{DeviceKind, Hardware, SimdLevel};

use crate::Result;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row};
use crate::rates::predicted;

/// Refuses a CPU below a level.
pub(crate) fn needs(level: SimdLevel, hardware: &Hardware) -> Result<(), Refusal> {
    if hardware.simd >= level {
        return Ok(());
    }
    let (allowed, machine) = (hardware.simd, SimdLevel::detected());
    Err(Refusal::of_hardware(match machine >= level {
        true => format!("needs {level}, which the CPU offers; the setting simd is {allowed}"),
        false => format!("needs {level}, the CPU offers {machine}"),
    }))
}

/// What the rows of one body differ in. The shares are estimates, of which only the order decides.
#[derive(Clone, Copy)]
pub(crate) struct AtLevel {
    /// The row's name.
    pub name: &'static str,
    /// What decides its bits.
    pub arithmetic: Arithmetic,
    /// The share of the machine's memory rate that it reaches.
    pub reads: f64,
    /// The share of the machine's arithmetic peak that it reaches.
    pub computes: f64,
}

/// An operator with one body, a [`crate::simd::Kernel`], that is a row at each of three levels.
pub(crate) trait Leveled: Operator {
    /// The row that every machine has.
    const PORTABLE: AtLevel;
    /// The row of AVX2.
    const AVX2: AtLevel;
    /// The row of AVX-512.
    const AVX512: AtLevel;

    /// Whether the body takes a problem, whatever the level.
    fn takes(_: &Self::Static) -> Result<(), Refusal> {
        Ok(())
    }

    /// Predicted seconds of a row.
    fn cost(row: AtLevel, fixed: &Self::Static, call: &Self::Dynamic, hardware: &Hardware) -> f64 {
        predicted::by_shares(Self::work(fixed, call), hardware, row.reads, row.computes)
    }

    /// Scratch bytes that every row needs.
    fn scratch(_: &Self::Static, _: &Self::Dynamic, _: &Hardware) -> usize {
        0
    }

    /// Runs the body at a level.
    ///
    /// # Safety
    /// That of [`Row::run`], for the row of this level.
    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &Self::Static,
        call: &Self::Dynamic,
        operands: Operands<'_>,
    ) -> Result<()>;
}

/// The rows of an operator's body, lowest level first.
pub(crate) fn rows<O: Leveled>() -> Vec<Row<O>> {
    vec![
        row::<O, { SimdLevel::Portable as usize }>(),
        row::<O, { SimdLevel::Avx2 as usize }>(),
        row::<O, { SimdLevel::Avx512 as usize }>(),
    ]
}

/// The row of the level with a number: a level itself cannot be a parameter of constants.
fn row<O: Leveled, const LEVEL: usize>() -> Row<O> {
    const fn level<const LEVEL: usize>() -> SimdLevel {
        SimdLevel::ALL[LEVEL]
    }
    const fn at<O: Leveled, const LEVEL: usize>() -> AtLevel {
        match level::<LEVEL>() {
            SimdLevel::Portable => O::PORTABLE,
            SimdLevel::Avx2 => O::AVX2,
            SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => O::AVX512,
        }
    }
    Row {
        name: at::<O, LEVEL>().name,
        device: DeviceKind::CPU,
        arithmetic: at::<O, LEVEL>().arithmetic,
        admits: |fixed, hardware| {
            needs(level::<LEVEL>(), hardware)?;
            O::takes(fixed)
        },
        cost: |fixed, call, hardware| O::cost(at::<O, LEVEL>(), fixed, call, hardware),
        workspace: O::scratch,
        // SAFETY: passed on.
        run: |launch, fixed, call, operands| unsafe { O::run(level::<LEVEL>(), launch, fixed, call, operands) },
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::Cpu;
    use sinew_tensor::DType;

    use super::*;
    use crate::norm::{Norm, NormFormula, NormStatic};

    #[test]
    fn a_row_is_refused_below_its_level_and_for_dtypes_without_lanes() {
        let device = Cpu::with(1, SimdLevel::Portable).unwrap();
        let rows = rows::<Norm>();
        let refusals = |fixed: &NormStatic| -> Vec<Option<String>> {
            rows.iter().map(|row| (row.admits)(fixed, device.hardware()).err().map(|r| r.to_string())).collect()
        };
        // It is the machine that lacks a level, or who opened the device that asked for a lower one.
        let machine = SimdLevel::detected();
        let below = |level| {
            Some(match level <= machine {
                true => format!("needs {level}, which the CPU offers; the setting simd is portable"),
                false => format!("needs {level}, the CPU offers {machine}"),
            })
        };
        let above = [below(SimdLevel::Avx2), below(SimdLevel::Avx512)];
        assert_eq!(refusals(&NormStatic::default()), [&[None], &above[..]].concat());
        let formula = NormFormula { weight: Some(DType::F64), ..NormFormula::default() };
        let wide = NormStatic { formula, ..NormStatic::default() };
        let lanes = Some("takes f32, f16 and bf16, not f64".to_owned());
        assert_eq!(refusals(&wide), [&[lanes], &above[..]].concat());
    }
}
