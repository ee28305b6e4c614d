//! One body in lanes of f32, at three levels.

use sinew_memory::SimdLevel;

use super::{Combine, CombineDynamic, CombineStatic};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::simd::{self, Kernel, LANES, Simd};
use crate::strided::{Address, BLOCK, Indices, Scratch, blocks};

/// Multiply and add round apart.
const MUL_ADD: Arithmetic = Arithmetic::named("combine.mul-add-chain");
/// They are fused.
const FMA: Arithmetic = Arithmetic::named("combine.fma-chain");

/// The rows of [`Combine`].
pub(super) fn rows() -> Vec<Row<Combine>> {
    leveled::rows()
}

impl Leveled for Combine {
    const PORTABLE: AtLevel = AtLevel { name: "combine.cpu.portable", arithmetic: MUL_ADD, reads: 0.4, computes: 0.1 };
    const AVX2: AtLevel = AtLevel { name: "combine.cpu.avx2", arithmetic: FMA, reads: 0.6, computes: 0.2 };
    const AVX512: AtLevel = AtLevel { name: "combine.cpu.avx512", arithmetic: FMA, reads: 0.7, computes: 0.25 };

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &CombineStatic,
        call: &CombineDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.input(Combine::NAME, Combine::Y, "y")?;
        let weights = operands.input(Combine::NAME, Combine::WEIGHTS, "weights")?;
        let place = operands.input(Combine::NAME, Combine::PLACE, "place")?;
        let out = operands.output(Combine::NAME, Combine::OUT, "out")?;
        let kernel = Body {
            fixed: *fixed,
            y: Line::of(y)?,
            y_row: y.strides()[0],
            weights: Address::read(weights.host_ptr()?),
            weight_strides: [weights.strides()[0], weights.strides()[1]],
            places: Indices::checked(Combine::NAME, place, y.shape()[0], "rows")?,
            place_stride: place.strides()[0],
            out: Line::of(out)?,
            out_row: out.strides()[0],
        };
        // SAFETY: the operator's check has seen shapes and dtypes, and places are rows; views lie within their buffers,
        // and the indices of an output share no elements, so that tasks do not meet.
        unsafe { simd::launch(level, launch.team()?, call.tokens, &kernel) };
        Ok(())
    }
}

struct Body {
    fixed: CombineStatic,
    y: Line,
    y_row: usize,
    weights: Address,
    weight_strides: [usize; 2],
    places: Indices,
    place_stride: usize,
    out: Line,
    out_row: usize,
}

impl Kernel for Body {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, token: usize, _: usize) {
        let CombineStatic { width, top_k, accumulate, .. } = self.fixed;
        let (mut sums, mut scratch) = (Scratch::new(), Scratch::new());
        let (sums, scratch) = (sums.ptr(), scratch.ptr());
        let out = self.out.moved(token * self.out_row);
        for (start, len) in blocks(width) {
            debug_assert!(len <= BLOCK);
            let out = out.skip(start);
            // SAFETY: a block and its vectors are inside the rows and the room for them, which holds whole vectors; the
            // token's weights and places are the operands'.
            unsafe {
                for i in (0..len).step_by(LANES) {
                    S::store(sums.add(i), S::splat(0.0));
                }
                for j in 0..top_k {
                    let at = token * self.weight_strides[0] + j * self.weight_strides[1];
                    let weight = S::splat(*self.weights.at(at, size_of::<f32>()).cast::<f32>());
                    let row = self.places.get((token * top_k + j) * self.place_stride);
                    let values = self.y.moved(row * self.y_row).skip(start).block::<S>(len, scratch);
                    for i in (0..len).step_by(LANES) {
                        let value = S::load_n(values.add(i), LANES.min(len - i));
                        S::store(sums.add(i), S::fma(weight, value, S::load(sums.add(i))));
                    }
                }
                if accumulate {
                    let values = out.block::<S>(len, scratch);
                    for i in (0..len).step_by(LANES) {
                        let value = S::load_n(values.add(i), LANES.min(len - i));
                        S::store(sums.add(i), S::add(value, S::load(sums.add(i))));
                    }
                }
                out.store_block::<S>(len, sums);
            }
        }
    }
}
