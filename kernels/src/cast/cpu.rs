//! f32, f16 and bf16 to one another, in lanes of f32. Widening is exact and narrowing rounds once to nearest, so that
//! all levels give the same bits.

use sinew_memory::SimdLevel;
use sinew_tensor::DType;

use super::{Cast, CastStatic};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::elementwise::Elements;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row};
use crate::simd::{self, Kernel, Simd};
use crate::strided::{Address, Scratch, Walk};

const NEAREST: Arithmetic = Arithmetic::named("cast.nearest");

pub(super) fn rows() -> Vec<Row<Cast>> {
    leveled::rows()
}

struct CastKernel {
    fixed: CastStatic,
    walk: Walk<2>,
    y: Address,
    x: Address,
}

impl Kernel for CastKernel {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        let CastStatic { input, output } = self.fixed;
        let [y_step, x_step] = self.walk.steps;
        let mut scratch = Scratch::new();
        let scratch = scratch.ptr();
        for run in self.walk.task(task) {
            let to = Line::new(self.y.at(run.at[0], output.size()), output, y_step);
            let from = Line::new(self.x.at(run.at[1], input.size()), input, x_step);
            // SAFETY: the walk stays inside both operands, which the operator's check has seen; runs of the output do
            // not meet; a block holds `len` values, and `place` is one or the destination.
            unsafe {
                let values = from.block::<S>(run.len, to.place(scratch));
                to.store_block::<S>(run.len, values);
            }
        }
    }
}

impl Leveled for Cast {
    const PORTABLE: AtLevel = AtLevel { name: "cast.cpu.portable", arithmetic: NEAREST, reads: 0.3, computes: 1.0 };
    const AVX2: AtLevel = AtLevel { name: "cast.cpu.avx2", arithmetic: NEAREST, reads: 0.75, computes: 1.0 };
    const AVX512: AtLevel = AtLevel { name: "cast.cpu.avx512", arithmetic: NEAREST, reads: 0.8, computes: 1.0 };

    fn takes(fixed: &CastStatic) -> Result<(), Refusal> {
        // Equal dtypes are copied: here an f32 block that is in place already would never be stored.
        let CastStatic { input, output } = fixed;
        if input == output || !DType::COMPUTE.contains(input) || !DType::COMPUTE.contains(output) {
            return Err("for f32, f16 and bf16 to another of them".into());
        }
        Ok(())
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &CastStatic,
        _: &Elements,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.output(Cast::NAME, Cast::Y, "y")?;
        let x = operands.input(Cast::NAME, Cast::X, "x")?;
        let kernel = CastKernel {
            fixed: *fixed,
            walk: Walk::any_order([y.layout(), x.layout()]),
            y: Address(y.host_ptr()?),
            x: Address::read(x.host_ptr()?),
        };
        // SAFETY: `Operator::check` has seen shapes and dtypes; the addresses are those of the operands.
        unsafe { simd::launch(level, launch.team()?, kernel.walk.tasks(), &kernel) };
        Ok(())
    }
}
