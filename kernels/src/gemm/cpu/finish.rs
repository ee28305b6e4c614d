//! What follows the sum of a tile, and where its results are written.

use half::{bf16, f16};
use sinew_tensor::DType;

use super::rows::OperandRows;
use crate::cpu::line::Line;
use crate::gemm::Epilogue;
use crate::packed::{Outputs, PANEL};
use crate::simd::{self, LANES, Part, Reach, Simd, Stored};

/// An epilogue with its operands' addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    pub epilogue: Epilogue,
    /// The problem's outputs, as panels share them out.
    pub outputs: Outputs,
    /// All `N` of the bias, or of the first where right operands have one each.
    pub bias: Option<Line>,
    /// Elements from a right operand's bias to the next one's: 0 where all share it.
    pub bias_step: usize,
    /// The result.
    pub out: OperandRows,
    /// The residual, which may be the result.
    pub residual: Option<OperandRows>,
}

/// Rows of the result that a tile and a panel give: `rows` from `row` of a batch on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub batch: usize,
    pub row: usize,
    pub rows: usize,
    pub panel: usize,
}

impl Finish {
    /// The bias of the outputs of a right operand's panel, in the panel's order; zeros where there is none.
    ///
    /// # Safety
    /// Those of [`Simd`]; the right operand and the panel are the problem's.
    #[inline(always)]
    pub unsafe fn panel_bias<S: Simd>(&self, right: usize, panel: usize) -> [f32; PANEL] {
        let mut values = [0.0; PANEL];
        if let Some(bias) = self.bias.map(|bias| bias.moved(right * self.bias_step)) {
            for half in 0..2 {
                let held = self.outputs.half_panel(panel, half);
                let to = values[half * LANES..].as_mut_ptr();
                // SAFETY: the bias has an element for each output.
                unsafe { bias.skip(held.start).widen::<S>(held.len(), to) };
            }
        }
        values
    }

    /// Asks for the residual of a tile, while its products are summed.
    #[inline(always)]
    pub fn prefetch_residual(&self, place: Place) {
        let Some(residual) = self.residual else { return };
        let first = place.panel * self.outputs.columns_per_panel();
        let bytes = self.outputs.columns_per_panel() * residual.dtype.size();
        for row in place.row..place.row + place.rows {
            let line = residual.line(place.batch, row).skip(first);
            for at in (0..bytes).step_by(64) {
                simd::prefetch(line.ptr().wrapping_add(at), Reach::Near);
            }
        }
    }

    /// Turns the sums `[rows][32]` of a tile and a panel into results, in place, and writes them.
    ///
    /// # Safety
    /// Those of [`Simd`]; the rows and the panel are the result's, `sums` has them, and `bias` is the panel's.
    #[inline(always)]
    pub unsafe fn write_tile<S: Simd>(&self, place: Place, sums: *mut f32, bias: &[f32; PANEL]) {
        // SAFETY: passed on.
        unsafe { S::part(WriteTile { finish: self, place, sums, bias }) }
    }

    /// `alpha · sum + bias` of half a panel.
    #[inline(always)]
    unsafe fn scaled<S: Simd>(&self, sums: *const f32, bias: &[f32; PANEL], half: usize) -> S::F {
        // SAFETY: the caller names 32 sums.
        unsafe {
            let x = S::mul(S::load(sums.add(half * LANES)), S::splat(self.epilogue.alpha));
            match self.bias {
                Some(_) => S::add(x, S::load(bias.as_ptr().add(half * LANES))),
                None => x,
            }
        }
    }

    /// Turns `rows` rows of 32 sums into results, in place, but for the residual: of a gated panel the first 16.
    ///
    /// # Safety
    /// Those of [`Simd`]; `sums` has the rows.
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, sums: *mut f32, rows: usize, bias: &[f32; PANEL]) {
        let Epilogue { alpha, activation, gated, .. } = self.epilogue;
        if alpha == 1.0 && self.bias.is_none() && activation.is_none() && !gated {
            return;
        }
        for r in 0..rows {
            for half in 0..if gated { 1 } else { 2 } {
                // SAFETY: passed on.
                unsafe {
                    let sums = sums.add(r * PANEL);
                    let mut x = self.scaled::<S>(sums, bias, half);
                    if let Some(activation) = activation {
                        x = activation.apply::<S>(x);
                    }
                    if gated {
                        let mut up = self.scaled::<S>(sums, bias, 1);
                        if let Some(activation) = activation {
                            up = activation.factor::<S>(up);
                        }
                        x = S::mul(x, up);
                    }
                    S::store(sums.add(half * LANES), x);
                }
            }
        }
    }

    /// `result + beta · residual`.
    #[inline(always)]
    unsafe fn added<S: Simd>(&self, result: S::F, residual: S::F) -> S::F {
        // SAFETY: passed on.
        unsafe { S::fma(residual, S::splat(self.epilogue.beta), result) }
    }

    /// Adds the residual to results of a row of a panel and rounds them into `out`; both begin at its first column.
    ///
    /// # Safety
    /// Those of [`Simd`]; `results` has 32 values, `out` and `residual` have `columns` elements, at most 32.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, results: *const f32, out: Line, residual: Option<Line>, columns: usize) {
        for first in (0..columns).step_by(LANES) {
            let count = (columns - first).min(LANES);
            // SAFETY: passed on; lanes are below `columns`.
            unsafe {
                let mut x = S::load(results.add(first));
                if let Some(residual) = residual {
                    x = self.added::<S>(x, residual.skip(first).load::<S>(count));
                }
                out.skip(first).store::<S>(x, count);
            }
        }
    }

    /// Adds a residual of `T`s to results and rounds them to rows of `T`s: a number of columns that is a multiple of
    /// 16, side by side in the output and the residual.
    ///
    /// # Safety
    /// Those of [`Simd`]; `results` has the place's rows of 32 values, and the result has its columns.
    #[inline(always)]
    unsafe fn store_whole<S: Simd, T: Stored>(&self, place: Place, first: usize, columns: usize, results: *const f32) {
        for r in 0..place.rows {
            let address = |rows: &OperandRows| rows.address(place.batch, place.row + r).cast::<T>().wrapping_add(first);
            let (out, residual) = (address(&self.out).cast_mut(), self.residual.as_ref().map(address));
            for column in (0..columns).step_by(LANES) {
                // SAFETY: passed on.
                unsafe {
                    let mut x = S::load(results.add(r * PANEL + column));
                    if let Some(residual) = residual {
                        x = self.added::<S>(x, T::load::<S>(residual.add(column)));
                    }
                    T::store::<S>(out.add(column), x);
                }
            }
        }
    }
}

/// See [`Finish::write_tile`].
#[derive(Clone, Copy)]
struct WriteTile<'a> {
    finish: &'a Finish,
    place: Place,
    sums: *mut f32,
    bias: &'a [f32; PANEL],
}

impl Part for WriteTile<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { finish, place, sums, bias } = self;
        let Finish { outputs, out, residual, .. } = finish;
        let first = place.panel * outputs.columns_per_panel();
        let columns = (outputs.columns() - first).min(outputs.columns_per_panel());
        let side_by_side = |rows: &OperandRows| rows.k_stride == 1 && rows.dtype == out.dtype;
        let whole = columns.is_multiple_of(LANES) && side_by_side(out) && residual.iter().all(side_by_side);
        // SAFETY: passed on: rows and columns are inside the result.
        unsafe {
            finish.apply::<S>(sums, place.rows, bias);
            match out.dtype {
                DType::F32 if whole => finish.store_whole::<S, f32>(place, first, columns, sums),
                DType::F16 if whole => finish.store_whole::<S, f16>(place, first, columns, sums),
                DType::BF16 if whole => finish.store_whole::<S, bf16>(place, first, columns, sums),
                _ => {
                    for r in 0..place.rows {
                        let line = |rows: &OperandRows| rows.line(place.batch, place.row + r).skip(first);
                        finish.store::<S>(sums.add(r * PANEL), line(out), residual.as_ref().map(line), columns);
                    }
                }
            }
        }
    }
}
