//! Problems to try, and their operands.

use sinew_memory::{Cpu, Team};
use sinew_tensor::{BlockFormat, BlockValues, DType, Layout, Tensor};

use super::epilogue::{Epilogue, Residual};
use super::{Compute, Gemm, GemmDynamic, GemmStatic, InputNorm, Rhs, reference};
use crate::activation::Activation;
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, cut, encode, host_operand,
};
use crate::norm::{NormFormula, NormKind};
use crate::packed::{BF16, Codes, Encoding, F16, F32, Format, PANEL, PanelKind, WeightRows, Weights, formats};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, F32Bits, Result};

/// Returns whether [`Values::Cancelling`] multiplies this step of K by a weight of zero.
fn cancels(step: usize) -> bool {
    !step.is_multiple_of(3)
}

/// A packed weight with the values `[N, K]` that it holds.
pub(crate) fn packed(
    generator: &mut Generator,
    format: &'static Format,
    [n, k]: [usize; 2],
    gated: bool,
    values: Values,
) -> Result<HostOperand> {
    // A format of blocks holds what it rounds these to, or codes that are drawn.
    let dtype = format.dtype().unwrap_or(DType::F32);
    let are_zero = values == Values::Cancelling;
    let mut values: Vec<f64> = (0..n * k).map(|_| generator.value(values, dtype)).collect();
    if are_zero {
        (0..n * k).filter(|at| cancels(at % k)).for_each(|at| values[at] = 0.0);
    }
    let bytes = encode(dtype, &values);
    let drawn = match format.encoding() {
        Encoding::Blocks(blocks) if generator.below(2) == 0 => {
            let mut drawn = draw_codes(generator, blocks, n, k);
            if are_zero {
                let (_, codes, _, zeros) = &mut drawn;
                let groups = k.div_ceil(blocks.group());
                for at in (0..n * k).filter(|at| cancels(at % k)) {
                    let zero = zeros.get(at / k * groups + at % k / blocks.group()).copied().unwrap_or(0);
                    codes[at] = blocks.values().code(zero.into());
                }
            }
            Some(drawn)
        }
        _ => None,
    };
    let sources = [match &drawn {
        Some((format, codes, scales, zeros)) => {
            WeightRows::from_codes(Codes { format: *format, codes, scales, zeros }, n, k)?
        }
        None => WeightRows::from_bytes(&bytes, dtype, n, k)?,
    }];
    let weights = Weights::new(&sources, gated);
    let mut packed = vec![0; format.packed_bytes(n, k, gated)];
    let level = sinew_memory::SimdLevel::detected();
    format.pack(&Team::new(1)?, level, &weights, &mut packed)?;
    if format.dtype().is_none() && k > 0 {
        let mut row = vec![0.0; k];
        for (n_, values) in values.chunks_mut(k).enumerate() {
            format.unpack_row(&packed, n, k, gated, n_, &mut row)?;
            values.iter_mut().zip(&row).for_each(|(to, &x)| *to = x.into());
        }
    }
    let buffer = sinew_memory::Buffer::from_slice(&Cpu::get(), &packed)?;
    let tensor = Tensor::new(buffer, DType::U8, Layout::contiguous(&[packed.len()])?)?;
    Ok(HostOperand { tensor, shape: vec![n, k], values })
}

/// Codes, scales and zero points of a weight as a checkpoint may have them: all finite codes, and zero points anywhere
/// between the values.
fn draw_codes(
    generator: &mut Generator,
    format: BlockFormat,
    n: usize,
    k: usize,
) -> (BlockFormat, Vec<u8>, Vec<u8>, Vec<i8>) {
    let values = format.values();
    let mut code = || loop {
        let code = generator.below(1 << values.bits()) as u8;
        if values.value(code).is_finite() {
            return code;
        }
    };
    let codes = (0..n * k).map(|_| code()).collect();
    let groups = n * k.div_ceil(format.group());
    let scales: Vec<f64> =
        (0..groups).map(|_| format.scale_dtype().round(generator.normal() / f64::from(values.extreme()))).collect();
    // The zero point 8 occurs in GPTQ's first version.
    let most = (1 << values.bits()) + usize::from(values.bits() == 4);
    let zero = |generator: &mut Generator| generator.below(most) as f64 + f64::from(values.extreme());
    let zeros = if format.zero_points() { (0..groups).map(|_| zero(generator) as i8).collect() } else { Vec::new() };
    (format, codes, encode(format.scale_dtype(), &scales), zeros)
}

/// Each of `k` columns once, in an order of chance.
pub(crate) fn shuffled(generator: &mut Generator, k: usize) -> Vec<f64> {
    let mut order: Vec<f64> = (0..k).map(|column| column as f64).collect();
    (1..k).rev().for_each(|at| order.swap(at, generator.below(at + 1)));
    order
}

/// Sizes `[batch, m, n, k]`.
const SHAPES: &[[usize; 4]] = &[
    [1, 1, 1, 1],
    [1, 1, 33, 100],
    [1, 2, 31, 17],
    [1, 2, 40, 75],
    [1, 3, 32, 33],
    [2, 5, 17, 2],
    [1, 12, 64, 31],
    [1, 13, 65, 257],
    [1, 14, 33, 100],
    [3, 1, 100, 5],
    [1, 17, 5, 100],
    [2, 31, 33, 3],
    [1, 4, 257, 64],
    [1, 33, 96, 129],
    [1, 100, 100, 100],
    [4, 3, 2, 64],
    [1, 8, 48, 513],
    [1, 1, 100, 1025],
    [1, 24, 34, 1100],
    [1, 257, 31, 33],
    [1, 6, 16, 3001],
    [2, 7, 1, 1],
    [1, 9, 33, 0],
    [1, 0, 33, 5],
    [1, 5, 0, 5],
    [0, 5, 7, 5],
    [1, 7, 33, 300],
    [1, 9, 40, 300],
    [1, 11, 33, 520],
    [1, 16, 64, 1100],
    [1, 19, 33, 260],
];

/// Larger ones, for which K or M is blocked.
const LARGE: &[[usize; 4]] = &[
    [1, 300, 70, 3500],
    [1, 5, 165, 4099],
    [1, 1200, 40, 520],
    [3, 130, 130, 700],
    [1, 1, 700, 896],
    [15, 70, 64, 80],
];

/// Epilogues, of a number that none of what takes turns with them divides; `n` is even where gated.
fn epilogues() -> Vec<Epilogue> {
    let plain = Epilogue::default();
    let with = |activation| Epilogue { activation: Some(activation), ..plain };
    vec![
        plain,
        Epilogue { bias: Some(DType::F32), ..plain },
        Epilogue { gated: true, ..with(Activation::Silu) },
        Epilogue { residual: Some(Residual::Output), beta: 2.0, ..plain },
        Epilogue { alpha: 0.5, ..plain },
        Epilogue { bias: Some(DType::BF16), ..with(Activation::Gelu) },
        Epilogue { residual: Some(Residual::Input(DType::F32)), beta: -0.5, ..plain },
        with(Activation::Relu),
        Epilogue { alpha: -2.0, bias: Some(DType::F16), residual: Some(Residual::Input(DType::BF16)), ..plain },
        Epilogue { gated: true, residual: Some(Residual::Output), ..with(Activation::GeluTanh) },
        with(Activation::Relu2),
        with(Activation::QuickGelu),
        Epilogue { gated: true, alpha: 0.5, bias: Some(DType::F32), ..with(Activation::Gelu) },
        Epilogue { gated: true, bias: Some(DType::BF16), ..with(Activation::SwigluOai) },
        with(Activation::SwigluOai),
        Epilogue { gated: true, bias: Some(DType::F32), ..with(Activation::Silu) },
        Epilogue {
            gated: true,
            alpha: -0.5,
            bias: Some(DType::F16),
            residual: Some(Residual::Input(DType::F32)),
            ..with(Activation::SwigluOai)
        },
    ]
}

/// Products of what is normed first: every shape, with norms that take turns.
fn normed_cases(depth: Depth, epilogues: &[Epilogue]) -> Vec<Case<Gemm>> {
    let right = [Rhs::Packed(&BF16), Rhs::Packed(&F32), Rhs::Strided(DType::BF16), Rhs::Packed(&F16)];
    let values = [Values::Normal, Values::Normal, Values::Special, Values::Subnormal, Values::Integers];
    let rounds = if depth == Depth::Quick { 2 } else { 16 };
    let (blocks, integers) = (block_formats(|_| true), block_formats(|values| values.is_integer()));
    let mut cases = Vec::new();
    for t in 0..rounds * SHAPES.len() {
        let [batch, m, n, k] = SHAPES[t % SHAPES.len()];
        let dtype = |turn: usize| DType::COMPUTE[turn % 3];
        let formula = NormFormula {
            kind: if (t + t / 4) % 2 == 0 { NormKind::Rms } else { NormKind::Layer },
            eps: F32Bits::new(1e-6),
            weight: (t % 7 != 3).then(|| dtype(t / 4)),
            weight_offset: F32Bits::new(if t % 5 == 2 { 1.0 } else { 0.0 }),
            bias: (t / 3 % 4 == 1 || t % 8 == 6).then(|| dtype(t / 5)),
        };
        let norm = InputNorm { formula, to: dtype(t / 2 + t / 9) };
        let mut epilogue = epilogues[t % epilogues.len()];
        let values = values[(t / 3) % values.len()];
        if values == Values::Subnormal {
            (epilogue.activation, epilogue.gated) = (None, false);
        }
        let n = if epilogue.gated { n.next_multiple_of(2) } else { n };
        let compute = if t / 3 % 2 == 0 { Compute::Bf16 } else { Compute::F32 };
        let fixed = GemmStatic::new(n, k, dtype(t), right[(t + t / 5) % right.len()], dtype(t / 7), compute);
        let fixed = fixed.with(epilogue).of_norm(norm);
        let (call, lay, seed) = (GemmDynamic { batch, m }, Lay::ALL[(t / 2) % Lay::ALL.len()], 2000 + t as u64);
        // Subnormal sums are below a step of int8.
        if values != Values::Subnormal {
            let (b, compute) = match t % 4 {
                0 => (Rhs::Strided(dtype(t / 3)), Compute::Int8),
                1 => (integers[t / 4 % integers.len()], Compute::Int8),
                _ => (blocks[t % blocks.len()], compute),
            };
            let fixed = GemmStatic { b, compute, ..fixed.clone() };
            let gathered = matches!(b, Rhs::Packed(_)) && (t / 2 + t / 8) % 2 == 0;
            let fixed = GemmStatic { gathered, ..fixed };
            cases.push(Case { fixed, call, lay, values, seed });
        }
        let gathered = matches!(fixed.b, Rhs::Packed(_)) && t % 3 == 1;
        let fixed = GemmStatic { gathered, ..fixed };
        cases.push(Case { fixed, call, lay, values, seed });
    }
    cases
}

/// How many of `n` rows take about `bytes` of all bytes: whole panels, of both halves where they are gated.
pub(crate) fn share(n: usize, all: usize, bytes: usize) -> usize {
    const PANELS: usize = 8 * PANEL;
    if all <= bytes { n } else { (n as u128 * bytes as u128 / all as u128) as usize / PANELS * PANELS + PANELS }.min(n)
}

/// The packed formats of blocks of some values.
fn block_formats(of: impl Fn(BlockValues) -> bool) -> Vec<Rhs> {
    let is_one = |format: &&Format| format.panel_kind().and_then(PanelKind::blocks).is_some_and(|f| of(f.values()));
    formats().filter(is_one).map(Rhs::Packed).collect()
}

/// Products with block-quantized weights in every arithmetic that there is, and of tensors in int8. Shapes and formats
/// take turns; there are more formats than shapes.
fn block_cases(depth: Depth, epilogues: &[Epilogue]) -> Vec<Case<Gemm>> {
    let (blocks, integers) = (block_formats(|_| true), block_formats(|values| values.is_integer()));
    let rounds = if depth == Depth::Quick { 3 } else { 20 };
    let mut cases = Vec::new();
    for round in 0..rounds {
        for (i, &[batch, m, n, k]) in SHAPES.iter().chain(LARGE).enumerate() {
            let t = round * (SHAPES.len() + LARGE.len() + 1) + i;
            let strided = Rhs::Strided(DType::COMPUTE[t % 3]);
            let problems = [
                (integers[t % integers.len()], Compute::Int8),
                (blocks[t * 7 % blocks.len()], Compute::Bf16),
                (blocks[t * 11 % blocks.len()], Compute::F32),
                (strided, Compute::Int8),
            ];
            for (j, (b, compute)) in problems.into_iter().enumerate() {
                let mut epilogue = epilogues[(t + j) % epilogues.len()];
                let values = [Values::Normal, Values::Normal, Values::Special, Values::Integers, Values::Subnormal];
                let values = values[t % 5];
                if values == Values::Subnormal {
                    (epilogue.activation, epilogue.gated) = (None, false);
                }
                let n = if epilogue.gated { n + n % 2 } else { n };
                let dtypes = [DType::COMPUTE[t / 3 % 3], DType::COMPUTE[t / 2 % 3]];
                let fixed = GemmStatic::new(n, k, dtypes[0], b, dtypes[1], compute).with(epilogue);
                let gathered = matches!(b, Rhs::Packed(_)) && (t + j) % 2 == 1;
                let fixed = GemmStatic { gathered, ..fixed };
                let (call, seed) = (GemmDynamic { batch, m }, 2000 + t as u64);
                cases.push(Case { fixed, call, lay: Lay::ALL[t % Lay::ALL.len()], values, seed });
            }
        }
    }
    cases
}

/// Products of which most activations are huge and meet weights of zero, in every format that has zero points.
fn cancelling_cases() -> impl Iterator<Item = Case<Gemm>> {
    const ROWS: [usize; 6] = [1, 2, 4, 7, 13, 40];
    let with_zeros =
        formats().filter(|format| matches!(format.encoding(), Encoding::Blocks(blocks) if blocks.zero_points()));
    with_zeros.flat_map(|format| [Compute::F32, Compute::Bf16].map(|compute| (format, compute))).enumerate().map(
        |(i, (format, compute))| {
            let a = DType::COMPUTE[i / 4 % 3];
            let fixed = GemmStatic::new(70, 600, a, Rhs::Packed(format), DType::F32, compute);
            let call = GemmDynamic { batch: 1, m: ROWS[i / 2 % ROWS.len()] };
            Case { fixed, call, lay: Lay::Contiguous, values: Values::Cancelling, seed: 3000 + i as u64 }
        },
    )
}

/// A small product.
fn small(b: Rhs) -> (GemmStatic, GemmDynamic) {
    (GemmStatic::new(70, 128, DType::F32, b, DType::F32, Compute::F32), GemmDynamic { batch: 1, m: 3 })
}

impl Reference for Gemm {
    const COLD: &'static [usize] = &[super::B];

    fn part(fixed: &GemmStatic, bytes: usize) -> GemmStatic {
        match fixed.b {
            Rhs::Packed(format) => {
                let all = format.packed_bytes(fixed.n, fixed.k, fixed.epilogue.gated);
                GemmStatic { n: share(fixed.n, all, bytes), ..fixed.clone() }
            }
            Rhs::Strided(_) => fixed.clone(),
        }
    }

    fn smaller(fixed: &GemmStatic, call: GemmDynamic) -> Option<(GemmStatic, GemmDynamic)> {
        let fixed = GemmStatic { n: cut(fixed.n, 1024), k: cut(fixed.k, 1024), ..fixed.clone() };
        Some((fixed, GemmDynamic { batch: call.batch.min(2), m: cut(call.m, 256) }))
    }

    fn stored_as(stored: StoredAs) -> Option<(GemmStatic, GemmDynamic)> {
        stored.plain().map(|dtype| small(Rhs::Strided(dtype)))
    }

    fn packed_as(format: &'static Format) -> Option<(GemmStatic, GemmDynamic)> {
        Some(small(Rhs::Packed(format)))
    }

    /// Every shape with right operands, types, epilogues, lays and values that take turns at periods of their own, so
    /// that pairs of them meet.
    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let epilogues = epilogues();
        let right = [
            Rhs::Packed(&BF16),
            Rhs::Strided(DType::F32),
            Rhs::Packed(&F32),
            Rhs::Strided(DType::BF16),
            Rhs::Packed(&F16),
            Rhs::Strided(DType::F16),
            Rhs::Packed(&BF16),
        ];
        // For devices that read rows, the same cases with the same weights in rows.
        let in_rows = |b: Rhs| match b {
            Rhs::Packed(format) => format.dtype().and_then(Format::row_major),
            Rhs::Strided(_) => None,
        };
        let values =
            [Values::Normal, Values::Integers, Values::Normal, Values::Special, Values::Integers, Values::Subnormal];
        let mut cases = Vec::new();
        let mut turn = 0;
        let mut add = |[batch, m, n, k]: [usize; 4]| {
            let t = turn;
            turn += 1;
            let mut epilogue = epilogues[t % epilogues.len()];
            let values = values[(t / 2) % values.len()];
            let mut n = n;
            if epilogue.gated {
                n += n % 2;
            }
            if values == Values::Subnormal {
                // Activations flush what is subnormal; the sum itself must not.
                epilogue.activation = None;
                epilogue.gated = false;
            }
            let fixed = GemmStatic {
                n,
                k,
                a: DType::COMPUTE[(t / 3) % 3],
                norm: None,
                gathered: false,
                b: right[t % right.len()],
                out: DType::COMPUTE[(t / 5) % 3],
                compute: if (t / 4) % 2 == 0 { Compute::Bf16 } else { Compute::F32 },
                epilogue,
            };
            let lay = Lay::ALL[(t / 2) % Lay::ALL.len()];
            let (call, seed) = (GemmDynamic { batch, m }, t as u64);
            if let Some(format) = in_rows(fixed.b) {
                let fixed = GemmStatic { b: Rhs::Packed(format), ..fixed.clone() };
                cases.push(Case { fixed, call, lay, values, seed });
            }
            let gathered = matches!(fixed.b, Rhs::Packed(_)) && t % 4 == 2;
            let fixed = GemmStatic { gathered, ..fixed };
            cases.push(Case { fixed, call, lay, values, seed });
        };
        let rounds = match depth {
            Depth::Quick => 5,
            Depth::Full => 40,
        };
        for round in 0..rounds {
            SHAPES.iter().for_each(|&shape| add(shape));
            if round % 4 == 0 {
                LARGE.iter().for_each(|&shape| add(shape));
            }
        }
        // Operands whose rows are whole runs of 16 bytes and end within a step of tensor cores along K, with more
        // products than one.
        for (i, k) in [8, 40, 72].into_iter().enumerate() {
            for dtype in [DType::BF16, DType::F16] {
                for b in [Some(Rhs::Strided(dtype)), Format::row_major(dtype).map(Rhs::Packed)].into_iter().flatten() {
                    let fixed = GemmStatic::new(70, k, dtype, b, DType::F32, Compute::F32);
                    // With such a seed a strided right operand is laid by columns.
                    let (call, seed) = (GemmDynamic { batch: 3, m: 33 }, 3 * i as u64 + 1);
                    cases.push(Case { fixed, call, lay: Lay::Contiguous, values: Values::Integers, seed });
                }
            }
        }
        cases.extend(block_cases(depth, &epilogues));
        cases.extend(cancelling_cases());
        cases.extend(normed_cases(depth, &epilogues));
        // What the crate that serves as a foreign row takes.
        for (i, &[batch, m, n, k]) in SHAPES.iter().enumerate() {
            let dtype = [DType::F32, DType::F16][i % 2];
            let epilogue = match dtype {
                DType::F32 => epilogues[[0, 3, 4][i / 2 % 3]],
                _ => Epilogue::default(),
            };
            let fixed = GemmStatic::new(n, k, dtype, Rhs::Strided(dtype), dtype, Compute::F32).with(epilogue);
            let call = GemmDynamic { batch, m };
            cases.push(Case {
                fixed,
                call,
                lay: Lay::ALL[i % Lay::ALL.len()],
                values: values[i % values.len()],
                seed: 1000 + i as u64,
            });
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let (fixed, GemmDynamic { batch, m }) = (&case.fixed, case.call);
        let (n, k, epilogue) = (fixed.n, fixed.k, &fixed.epilogue);
        let mut generator = Generator::new(case.seed);
        // One subnormal operand is enough for subnormal products; of two, every product would be 0.
        let others = if case.values == Values::Subnormal { Values::Normal } else { case.values };
        // Operands lie differently from each other.
        let lay = |shift: usize| {
            let at = Lay::ALL.iter().position(|&lay| lay == case.lay).unwrap_or(0);
            Lay::ALL[(at + shift * (case.seed as usize % 3)) % Lay::ALL.len()]
        };
        let a = match case.values {
            Values::Cancelling => {
                let huge = if fixed.a == DType::F16 { 2f64.powi(12) } else { 2f64.powi(100) };
                let value = |at: usize| {
                    let x = generator.value(case.values, fixed.a);
                    if cancels(at % k) { fixed.a.round(huge * x) } else { x }
                };
                let values = (0..batch * m * k).map(value).collect();
                host_operand(fixed.a, &[batch, m, k], case.lay, values, false)?
            }
            values => generator.operand(fixed.a, &[batch, m, k], case.lay, values)?,
        };
        let b = match fixed.b {
            Rhs::Strided(dtype) => generator.operand(dtype, &[batch, k, n], lay(1), others)?,
            Rhs::Packed(format) => packed(&mut generator, format, [n, k], epilogue.gated, others)?,
        };
        let bias = epilogue.bias.map(|dtype| generator.operand(dtype, &[n], lay(2), others)).transpose()?;
        let result = [batch, m, fixed.columns()];
        let residual =
            epilogue.residual_input().map(|dtype| generator.operand(dtype, &result, lay(3), others)).transpose()?;
        let out_lay = lay(4);
        let out = if epilogue.residual == Some(Residual::Output) {
            let values = (0..result.iter().product()).map(|_| generator.value(others, fixed.out)).collect();
            host_operand(fixed.out, &result, out_lay, values, true)?
        } else {
            generator.output(fixed.out, &result, out_lay)?
        };
        // Numbers whatever the rows hold: an infinite weight would hide the rest.
        let vector_lay = if case.seed.is_multiple_of(2) { lay(5) } else { Lay::Stepped };
        let mut vector = |dtype| generator.operand(dtype, &[k], vector_lay, Values::Normal);
        let [weight, norm_bias, _] = fixed.norm_dtypes();
        let (weight, norm_bias) = (weight.map(&mut vector).transpose()?, norm_bias.map(&mut vector).transpose()?);
        let order = match fixed.gathered {
            true => {
                let order = shuffled(&mut generator, k);
                Some(host_operand(DType::U32, &[k], Lay::Contiguous, order, false)?)
            }
            false => None,
        };
        Ok(HostOperands {
            inputs: vec![Some(a), Some(b), bias, residual, weight, norm_bias, order],
            outputs: vec![out],
        })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        match *index {
            [b, m, n] => reference::expected(case, host, arithmetic, [b, m, n]),
            _ => Expected::exact(f64::NAN),
        }
    }
}
