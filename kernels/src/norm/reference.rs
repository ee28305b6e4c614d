//! Norms in f64, and cases.

use sinew_tensor::DType;

use super::{Norm, NormDynamic, NormFormula, NormKind, NormStatic};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, host_operand,
};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, F32Bits, Result};

/// Units in the last place of f32 of the row's largest magnitude that a row may be off by (SPEC's Numerics).
const ULPS: f64 = 4.0;

/// Widths: single, vectors and their neighbours, head sizes, primes, a block and its neighbours, several blocks.
const WIDTHS: [usize; 16] = [64, 1, 17, 128, 513, 2, 80, 1031, 512, 0, 15, 16, 511, 63, 4099, 20];
/// Leading dimensions: per-head norms have two; others few or many rows.
const LEADING: [&[usize]; 9] = [&[5], &[7, 3], &[1], &[], &[2, 3, 2], &[0], &[64], &[5, 14], &[3, 0]];
/// eps of Llama, BERT and GPT-2.
const EPS: [f32; 3] = [1e-6, 1e-12, 1e-5];

impl Reference for Norm {
    fn stored_as(stored: StoredAs) -> Option<(NormStatic, NormDynamic)> {
        let x = stored.plain()?;
        Some((NormStatic { width: 80, x, out: x, ..NormStatic::default() }, NormDynamic { rows: 5 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let rounds = if depth == Depth::Quick { 144 } else { 1440 };
        let dtype = |n: usize| DType::COMPUTE[n % 3];
        let cases = (0..rounds).map(|n| {
            let kind = if n % 2 == 0 { NormKind::Rms } else { NormKind::Layer };
            let form = n / 2 % 4;
            let x = dtype(n / 3);
            // A row whose mean square is lost in f32 needs an eps that is not.
            let values =
                [Values::Normal, Values::Special, Values::Normal, Values::Subnormal, Values::Integers][n / 5 % 5];
            let fixed = NormStatic {
                width: WIDTHS[(n * 5 + n / 16) % WIDTHS.len()],
                formula: NormFormula {
                    kind,
                    eps: F32Bits::new(if values == Values::Subnormal { EPS[0] } else { EPS[n / 7 % 3] }),
                    weight: (n % 7 != 3).then(|| dtype(n / 4)),
                    weight_offset: F32Bits::new(if n % 5 == 2 { 1.0 } else { 0.0 }),
                    bias: (kind == NormKind::Layer && n % 8 != 1 || n % 16 == 6).then(|| dtype(n / 2)),
                },
                x,
                out: if form == 1 { x } else { dtype(n / 9 + n) },
                residual: (form == 2 || form == 3).then(|| if form == 2 { DType::F32 } else { dtype(n / 27) }),
                in_place: form == 1,
            };
            Case {
                fixed,
                call: NormDynamic { rows: leading(n as u64).iter().product() },
                lay: Lay::ALL[(n + n / 5) % 5],
                values,
                seed: n as u64,
            }
        });
        cases.collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let fixed = &case.fixed;
        let mut random = Generator::new(case.seed);
        let mut shape = leading(case.seed).to_vec();
        if shape.iter().product::<usize>() != case.call.rows {
            // A case of someone else's, which names rows alone.
            shape = vec![case.call.rows];
        }
        shape.push(fixed.width);
        let lay = |n: usize| match case.seed % 4 {
            0 => case.lay,
            _ => Lay::ALL[(case.lay as usize + n) % Lay::ALL.len()],
        };
        // Every third row of numbers stands far from 0, where a variance from sums of squares would be lost.
        let far = if case.values == Values::Normal && case.seed.is_multiple_of(3) { 300.0 } else { 0.0 };
        let mut input = |n: usize, shape: &[usize], dtype: DType, writable: bool, far: f64| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| dtype.round(far + random.value(case.values, dtype))).collect();
            host_operand(dtype, shape, lay(n), values, writable)
        };
        let x = if fixed.in_place { None } else { Some(input(0, &shape, fixed.x, false, far)?) };
        let residual = fixed.residual.map(|dtype| input(4, &shape, dtype, true, 0.0)).transpose()?;
        let in_place = if fixed.in_place { Some(input(3, &shape, fixed.out, true, far)?) } else { None };
        // Weights are numbers whatever the rows hold: an infinite one would hide the rest.
        let width = [fixed.width];
        let mut vector = |n: usize, dtype: DType| {
            let values = (0..fixed.width).map(|_| random.value(Values::Normal, dtype)).collect();
            // A vector has no dimension to repeat or exchange.
            let lay = if matches!(lay(n), Lay::Stepped | Lay::Padded) { lay(n) } else { Lay::Contiguous };
            host_operand(dtype, &width, lay, values, false)
        };
        let weight = fixed.formula.weight.map(|dtype| vector(1, dtype)).transpose()?;
        let bias = fixed.formula.bias.map(|dtype| vector(2, dtype)).transpose()?;
        let y = match in_place {
            Some(y) => y,
            None => random.output(fixed.out, &shape, lay(3))?,
        };
        Ok(HostOperands { inputs: vec![x, weight, bias], outputs: [y].into_iter().chain(residual).collect() })
    }

    fn expect(
        case: &Case<Self>,
        host: &HostOperands,
        arithmetic: Arithmetic,
        output: usize,
        index: &[usize],
    ) -> Expected {
        let fixed = &case.fixed;
        let x = host.inputs[Norm::X].as_ref().unwrap_or_else(|| &host.outputs[Norm::Y]);
        let leading = &index[..index.len() - 1];
        let row = |operand: &HostOperand| -> Vec<f64> {
            let mut at = leading.to_vec();
            at.push(0);
            (0..fixed.width)
                .map(|i| {
                    at[leading.len()] = i;
                    operand.at(&at)
                })
                .collect()
        };
        let mut values = row(x);
        if let Some(dtype) = fixed.residual {
            // The sum of two f32 rounds the same from f64; it is stored before it is normed.
            let sums = values.iter().zip(row(&host.outputs[Norm::RESIDUAL]));
            values = sums.map(|(x, r)| dtype.round(DType::F32.round(x + r))).collect();
        }
        let i = index[leading.len()];
        if output == Norm::RESIDUAL {
            return Expected::exact(values[i]);
        }
        let vector = |position: usize| host.inputs[position].as_ref().map(|operand| operand.values.as_slice());
        let row = Normed::new(fixed, &values, vector(Norm::WEIGHT), vector(Norm::BIAS));
        let value = row.value(i);
        let rounding = if fixed.out == DType::F32 { 0.0 } else { 0.5 * fixed.out.ulp(value) };
        // An element, and what it is scaled to, may count as zero.
        let flushed = if arithmetic.flushes_subnormals { 2f64.powi(-126) * (1.0 + row.factor(i).abs()) } else { 0.0 };
        Expected::within(value, row.error(i) + rounding + flushed)
    }
}

/// A row's norm in f64.
pub(crate) struct Normed<'a> {
    fixed: &'a NormStatic,
    values: &'a [f64],
    weight: Option<&'a [f64]>,
    bias: Option<&'a [f64]>,
    mean: f64,
    inverse: f64,
    /// Of product and bias each, since they may cancel.
    largest: f64,
}

impl<'a> Normed<'a> {
    pub fn new(fixed: &'a NormStatic, values: &'a [f64], weight: Option<&'a [f64]>, bias: Option<&'a [f64]>) -> Self {
        let count = fixed.width as f64;
        let mean = if fixed.formula.kind == NormKind::Layer { values.iter().sum::<f64>() / count } else { 0.0 };
        let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        let inverse = 1.0 / (variance + f64::from(fixed.formula.eps.get())).sqrt();
        let mut row = Self { fixed, values, weight, bias, mean, inverse, largest: 0.0 };
        row.largest = (0..values.len()).map(|i| row.scaled(i).abs() + row.bias(i).abs()).fold(0.0, f64::max);
        row
    }

    /// What a value's distance from the mean is multiplied with.
    fn factor(&self, i: usize) -> f64 {
        self.inverse * (self.weight.map_or(1.0, |weight| weight[i]) + f64::from(self.fixed.formula.weight_offset.get()))
    }

    fn bias(&self, i: usize) -> f64 {
        self.bias.map_or(0.0, |bias| bias[i])
    }

    fn scaled(&self, i: usize) -> f64 {
        (self.values[i] - self.mean) * self.factor(i)
    }

    /// The norm of a value, not rounded.
    pub fn value(&self, i: usize) -> f64 {
        self.scaled(i) + self.bias(i)
    }

    /// The error of computing it in f32.
    pub fn error(&self, i: usize) -> f64 {
        // f32 has no differences finer than its smallest subnormal, and they are multiplied afterwards.
        let coarse = if self.fixed.formula.kind == NormKind::Layer {
            2f64.powi(-149) * (self.scaled(i) / (self.values[i] - self.mean)).abs()
        } else {
            0.0
        };
        ULPS * DType::F32.ulp(self.largest) + coarse.max(0.0)
    }
}

fn leading(seed: u64) -> &'static [usize] {
    LEADING[(seed as usize + seed as usize / 9) % LEADING.len()]
}
