//! The f64 reference of one element, and the cases.

use sinew_memory::{Buffer, Cpu};
use sinew_tensor::{DType, Layout, Tensor};

use super::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use crate::activation::Activation;
use crate::gemm::cases::{packed, share, shuffled};
use crate::gemm::reference::{gathered, packed_sum};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, cut, elements, host_operand,
};
use crate::packed::{BF16, Encoding, F16, F32, Format, formats};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Compute, Result};

/// Groups, rows, N and K: fewer rows than groups and many more, one group and many, sizes that are no multiples of
/// anything, and nothing at all.
const SHAPES: [[usize; 4]; 16] = [
    [1, 1, 1, 1],
    [8, 8, 64, 64],
    [4, 2, 33, 100],
    [3, 40, 31, 17],
    [8, 16, 96, 129],
    [5, 200, 66, 70],
    [1, 100, 100, 33],
    [16, 3, 34, 1030],
    [2, 0, 33, 5],
    [3, 7, 0, 5],
    [3, 7, 32, 0],
    [40, 90, 20, 48],
    [2, 260, 48, 600],
    [7, 31, 130, 8],
    [2, 10, 33, 300],
    [3, 420, 33, 5500],
];

/// Numbers of rows that add up to `rows`: some groups get none, and one as many as the others together.
fn shared_out(groups: usize, rows: usize, generator: &mut Generator) -> Vec<usize> {
    let mut counts = vec![0; groups];
    let favourite = generator.below(groups);
    for _ in 0..rows {
        let group = if generator.below(2) == 0 { favourite } else { generator.below(groups) };
        counts[if groups > 2 && group % 3 == 1 { favourite } else { group }] += 1;
    }
    counts
}

/// All groups' weights, packed one behind another; values are `[groups, N, K]`.
fn weights(generator: &mut Generator, fixed: &GroupedGemmStatic, values: Values) -> Result<HostOperand> {
    elements(&[fixed.groups, fixed.n, fixed.k])?;
    // Small ones are padded to whole tiles.
    let packed_bytes = fixed.format.packed_bytes(fixed.n, fixed.k, fixed.gated.is_some());
    elements(&[fixed.groups, packed_bytes / size_of::<f64>()])?;
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    for _ in 0..fixed.groups {
        let one = packed(generator, fixed.format, [fixed.n, fixed.k], fixed.gated.is_some(), values)?;
        bytes.extend_from_slice(one.tensor.buffer().as_slice::<u8>()?);
        all.extend(one.values);
    }
    let buffer = Buffer::from_slice(&Cpu::get(), &bytes)?;
    let tensor = Tensor::new(buffer, DType::U8, Layout::contiguous(&[bytes.len()])?)?;
    Ok(HostOperand { tensor, shape: vec![fixed.groups, fixed.n, fixed.k], values: all })
}

impl Reference for GroupedGemm {
    const COLD: &'static [usize] = &[GroupedGemm::B];

    fn part(fixed: &GroupedGemmStatic, bytes: usize) -> GroupedGemmStatic {
        let all = fixed.groups * fixed.format.packed_bytes(fixed.n, fixed.k, fixed.gated.is_some());
        GroupedGemmStatic { n: share(fixed.n, all, bytes), ..fixed.clone() }
    }

    fn smaller(fixed: &GroupedGemmStatic, call: GroupedGemmDynamic) -> Option<(GroupedGemmStatic, GroupedGemmDynamic)> {
        let groups = fixed.groups.min(4);
        let fixed = GroupedGemmStatic { groups, n: cut(fixed.n, 512), k: cut(fixed.k, 512), ..fixed.clone() };
        Some((fixed, GroupedGemmDynamic { rows: cut(call.rows, 256) }))
    }

    fn stored_as(_: StoredAs) -> Option<(GroupedGemmStatic, GroupedGemmDynamic)> {
        None
    }

    fn packed_as(format: &'static Format) -> Option<(GroupedGemmStatic, GroupedGemmDynamic)> {
        let (a, out, compute) = (DType::F32, DType::F32, Compute::F32);
        let (gathered, bias, gated) = (false, None, None);
        let fixed = GroupedGemmStatic { groups: 3, n: 70, k: 128, a, format, gathered, bias, out, compute, gated };
        Some((fixed, GroupedGemmDynamic { rows: 5 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let values = [Values::Normal, Values::Integers, Values::Special, Values::Normal, Values::Subnormal];
        let gates = [
            None,
            Some(Activation::Silu),
            Some(Activation::SwigluOai),
            Some(Activation::Relu),
            None,
            Some(Activation::GeluTanh),
            Some(Activation::SwigluOai),
        ];
        let biases = [None, Some(DType::F32), Some(DType::BF16), None, Some(DType::F16)];
        let floats = [&BF16, &F32, &F16, &BF16];
        let blocks: Vec<&'static Format> = formats().filter(|format| format.dtype().is_none()).collect();
        let mut cases = Vec::new();
        for t in 0..SHAPES.len() * if depth == Depth::Quick { 4 } else { 30 } {
            let [groups, rows, n, k] = SHAPES[t % SHAPES.len()];
            let values = values[t / 2 % values.len()];
            // Activations flush what is subnormal; the sum itself must not.
            let gated = gates[(t + t / SHAPES.len()) % gates.len()].filter(|_| values != Values::Subnormal);
            let format = floats[(t + t / SHAPES.len()) % floats.len()];
            let fixed = GroupedGemmStatic {
                groups,
                n: n + n % 2 * usize::from(gated.is_some()),
                k,
                a: DType::COMPUTE[t / 3 % 3],
                format,
                gathered: false,
                bias: biases[(t + t / SHAPES.len()) % biases.len()],
                out: DType::COMPUTE[t / 5 % 3],
                compute: if t / 4 % 2 == 0 { Compute::Bf16 } else { Compute::F32 },
                gated,
            };
            let (lay, call) = (Lay::ALL[t / 2 % Lay::ALL.len()], GroupedGemmDynamic { rows });
            // For devices that read rows, the same cases with the same weights in rows.
            let in_rows =
                format.dtype().and_then(Format::row_major).map(|format| GroupedGemmStatic { format, ..fixed.clone() });
            let format = blocks[t * 7 % blocks.len()];
            let in_blocks = GroupedGemmStatic { format, gathered: t % 2 == 1, ..fixed.clone() };
            let integers = matches!(format.encoding(), Encoding::Blocks(blocks) if blocks.values().is_integer());
            // Subnormal sums are below a step of int8.
            let in_int8 = (integers && values != Values::Subnormal)
                .then(|| GroupedGemmStatic { compute: Compute::Int8, ..in_blocks.clone() });
            cases.extend([Some(fixed), in_rows, Some(in_blocks), in_int8].into_iter().flatten().map(|fixed| Case {
                call,
                lay,
                values,
                seed: t as u64,
                fixed,
            }));
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let (fixed, rows) = (&case.fixed, case.call.rows);
        let mut generator = Generator::new(case.seed);
        // One subnormal operand is enough for subnormal products; of two, every product would be 0.
        let others = if case.values == Values::Subnormal { Values::Normal } else { case.values };
        let lay = |shift: usize| Lay::ALL[(case.lay as usize + shift) % Lay::ALL.len()];
        let mut offsets = vec![0.0];
        for count in shared_out(fixed.groups, rows, &mut generator) {
            offsets.push(offsets[offsets.len() - 1] + count as f64);
        }
        let a = generator.operand(fixed.a, &[rows, fixed.k], case.lay, case.values)?;
        let b = weights(&mut generator, fixed, others)?;
        // A repeated offset would not begin with 0 and end with the rows.
        let offsets_lay = if lay(1) == Lay::Broadcast { Lay::Stepped } else { lay(1) };
        let offsets = host_operand(DType::I32, &[fixed.groups + 1], offsets_lay, offsets, false)?;
        let d = generator.output(fixed.out, &[rows, fixed.product().columns()], lay(2))?;
        let bias = |dtype| generator.operand(dtype, &[fixed.groups, fixed.n], lay(3), others);
        let bias = fixed.bias.map(bias).transpose()?;
        let order = match fixed.gathered {
            true => {
                let order = (0..fixed.groups).flat_map(|_| shuffled(&mut generator, fixed.k)).collect();
                Some(host_operand(DType::U32, &[fixed.groups, fixed.k], Lay::Contiguous, order, false)?)
            }
            false => None,
        };
        Ok(HostOperands { inputs: vec![Some(a), Some(b), Some(offsets), order, bias], outputs: vec![d] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let (fixed, k) = (&case.fixed, case.fixed.k);
        let &[row, column] = index else { return Expected::exact(f64::NAN) };
        let offsets = &host.input(Self::OFFSETS).values;
        let group = offsets.iter().filter(|&&offset| offset as usize <= row).count() - 1;
        let left = &host.input(Self::A).values[row * k..][..k];
        let order = host.inputs[Self::ORDER].as_ref().map(|order| &order.values[group * k..][..k]);
        let left = gathered(left, order);
        let weights = host.input(Self::B);
        let output = |n: usize| {
            let right = &weights.values[(group * fixed.n + n) * k..][..k];
            let sum = packed_sum(&fixed.product(), &left, right, arithmetic);
            host.inputs[Self::BIAS].as_ref().map_or(sum, |bias| sum.biased(bias.values[group * fixed.n + n]))
        };
        let x = output(column);
        match fixed.gated {
            Some(activation) => {
                x.activated(activation).gating(fixed.gated, output(column + fixed.n / 2)).rounded_to(fixed.out)
            }
            None if case.values == Values::Integers && fixed.format.dtype().is_some() => {
                Expected::exact(fixed.out.round(x.value))
            }
            None => x.rounded_to(fixed.out),
        }
    }
}
