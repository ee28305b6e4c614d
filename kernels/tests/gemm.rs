//! Packed weights, and the bits of products that must not change.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use sinew_kernels::gemm::{self, Gemm, GemmDynamic, GemmStatic, InputNorm, Rhs};
use sinew_kernels::harness::case::{Generator, Lay, Values, encode, host_operand};
use sinew_kernels::norm::{self, Norm, NormDynamic, NormFormula, NormKind};
use sinew_kernels::packed::{self, Codes, Encoding, Format, GROUP_SIZES, RowCodes, WeightRows, Weights, formats};
use sinew_kernels::{Compute, Launch, Operands, Operator, Row, Table};
use sinew_memory::{Buffer, Cpu, Device, DeviceKind, SimdLevel, Team};
use sinew_tensor::{BlockFormat, BlockValues, DType, Layout, Tensor, View};

/// Values that are exact in no format but f32.
fn values(count: usize) -> Vec<f32> {
    let mut generator = Generator::new(7);
    (0..count).map(|_| generator.normal() as f32).collect()
}

/// The values of a group as a format of blocks rounds them.
fn in_blocks(format: BlockFormat, group: &[f64]) -> Vec<f64> {
    let values = format.values();
    let largest = group.iter().fold(0.0, |a: f32, &x| a.max(x as f32));
    let least = group.iter().fold(0.0, |a: f32, &x| a.min(x as f32));
    let magnitude = largest.max(-least);
    let held = |scale: f32| format.scale_dtype().round(scale.into()) as f32;
    let (lowest, highest) = (values.extreme(), -values.extreme() - 1.0);
    let (scale, zero, [low, high]) = match values {
        _ if format.zero_points() => {
            let scale = held((largest - least) / (highest - lowest));
            (scale, (lowest - least / scale).round_ties_even().clamp(lowest, highest), [lowest, highest])
        }
        BlockValues::Int4 => (held(if largest > -least { largest } else { least } / -8.0), 0.0, [-8.0, 7.0]),
        BlockValues::Int8 => (held(magnitude / 127.0), 0.0, [-127.0, 127.0]),
        _ => (held(magnitude / values.extreme()), 0.0, [0.0; 2]),
    };
    // As tensors are rounded.
    let exact = values == BlockValues::Int8 && format.scale_dtype() == DType::F32 && !format.zero_points();
    let inverse = if exact { 127.0 / magnitude } else { 1.0 / scale };
    let round = |&x: &f64| {
        let q = match values.is_integer() {
            true => ((x as f32 * inverse).round_ties_even() + zero).clamp(low, high),
            false => values.value(values.code(x as f32 / scale)),
        };
        f64::from(scale * (q - zero))
    };
    group.iter().map(round).collect()
}

fn levels() -> impl Iterator<Item = SimdLevel> {
    SimdLevel::ALL.into_iter().filter(|&level| level <= SimdLevel::detected())
}

/// `values` as a checkpoint has them: in their own type, at an odd address.
fn misaligned(dtype: DType, values: &[f32]) -> Vec<u8> {
    let wide: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    [vec![0], encode(dtype, &wide)].concat()
}

#[test]
fn packed_rows_come_back_rounded_once() {
    let team = Team::new(2).unwrap();
    for (n, k) in [(1, 1), (2, 33), (34, 7), (70, 100), (96, 64), (66, 31), (34, 300)] {
        let all = values(n * k);
        for from in DType::COMPUTE {
            // Three pieces, as of queries, keys and values.
            let bytes = misaligned(from, &all);
            let rows = [n / 2, n / 3, n - n / 2 - n / 3];
            let mut start = 1;
            let sources = rows.map(|rows| {
                let end = start + rows * k * from.size();
                let source = WeightRows::from_bytes(&bytes[start..end], from, rows, k).unwrap();
                start = end;
                source
            });
            for format in formats() {
                for gated in [false, true].into_iter().filter(|&gated| !gated || n % 2 == 0) {
                    let weights = Weights::new(&sources, gated);
                    let size = format.packed_bytes(n, k, gated);
                    let mut first: Option<Vec<u8>> = None;
                    for level in levels() {
                        let mut packed = vec![0xff; size];
                        format.pack(&team, level, &weights, &mut packed).unwrap();
                        assert_eq!(&packed, first.get_or_insert(packed.clone()), "{level} packs other bytes");
                    }
                    let mut row = vec![0.0; k];
                    for i in 0..n {
                        format.unpack_row(&first.clone().unwrap(), n, k, gated, i, &mut row).unwrap();
                        let stored: Vec<f64> =
                            all[i * k..(i + 1) * k].iter().map(|&x| from.round(f64::from(x))).collect();
                        let expected: Vec<f64> = match format.encoding() {
                            Encoding::Float(dtype) => stored.iter().map(|&x| dtype.round(x)).collect(),
                            Encoding::Blocks(blocks) => {
                                stored.chunks(blocks.group()).flat_map(|group| in_blocks(blocks, group)).collect()
                            }
                        };
                        let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
                        assert_eq!(row, expected, "{from} in {}, {n}x{k}, gated {gated}", format.name());
                    }
                }
            }
        }
    }
}

#[test]
fn groups_of_int8_too_small_for_a_scale_are_zeros() {
    let team = Team::new(1).unwrap();
    // Three groups of 128, of which one is large enough.
    for small in [9e-31f32, 1e-38, 1e-42] {
        let mut all = vec![small; 384];
        all[130] = 1.0;
        let bytes = encode(DType::F32, &all.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let sources = [WeightRows::from_bytes(&bytes, DType::F32, 1, 384).unwrap()];
        let weights = Weights::new(&sources, false);
        for level in levels() {
            let int8 = Format::in_panels(BlockFormat::INT8).unwrap();
            let mut packed = vec![0xff; int8.packed_bytes(1, 384, false)];
            int8.pack(&team, level, &weights, &mut packed).unwrap();
            let mut row = vec![1.0; 384];
            int8.unpack_row(&packed, 1, 384, false, 0, &mut row).unwrap();
            let expected: Vec<f32> = (0..384).map(|i| if i == 130 { 1.0 } else { 0.0 }).collect();
            assert_eq!(row, expected, "{small:e}, {level}");
        }
    }
}

/// The two scales' product is too large for f32; what is multiplied with it is 0.
#[test]
fn int8_of_large_operands_is_finite_where_their_sum_is() {
    let device: Arc<dyn Device> = Cpu::get();
    let a = Tensor::from_slice(&device, &[1.0f32, 1e22], &[1, 1, 2]).unwrap();
    let b = Tensor::from_slice(&device, &[1e22f32, 1.0], &[1, 2, 1]).unwrap();
    let fixed = GemmStatic::new(1, 2, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::Int8);
    let rows = gemm::rows();
    let admitted = rows.iter().filter(|row| row.device == DeviceKind::CPU);
    let admitted: Vec<_> = admitted.filter(|row| (row.admits)(&fixed, device.hardware()).is_ok()).collect();
    assert!(!admitted.is_empty());
    for row in admitted {
        assert_eq!(product(row, device.clone(), &fixed, &a, &b), [0.0], "{}", row.name);
    }
}

/// One element seen everywhere: more of it than any workspace holds.
#[test]
fn a_sum_too_long_for_any_workspace_is_refused() {
    let device: Arc<dyn Device> = Cpu::get();
    let one = Tensor::from_slice(&device, &[1.0f32], &[1, 1, 1]).unwrap();
    let mut d = Tensor::zeros(&device, DType::F32, &[1, 1, 1]).unwrap();
    // 12 rows of this many f32 are 2^64 bytes and a few more.
    for k in [1 << 50, 384_307_168_202_282_326] {
        let fixed = GemmStatic::new(1, k, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32);
        let call = GemmDynamic { batch: 1, m: 1 };
        let own = |row: &&Row<Gemm>| row.device == DeviceKind::CPU && !row.arithmetic.foreign;
        for row in gemm::rows().iter().filter(own).filter(|row| (row.admits)(&fixed, device.hardware()).is_ok()) {
            let needed = (row.workspace)(&fixed, &call, device.hardware());
            assert!(needed > k, "{}: {needed} bytes", row.name);
            let (a, b) = (one.broadcast_to(&[1, 1, k]).unwrap(), one.broadcast_to(&[1, k, 1]).unwrap());
            let mut workspace = Buffer::uninitialised(&device, 1 << 16).unwrap();
            let stream = device.clone().stream().unwrap();
            let (inputs, outputs) = ([Some(a.view()), Some(b.view())], [d.view_mut().unwrap()]);
            let launch = Launch::new(&stream, Some(&mut workspace)).unwrap();
            let operands = Operands { inputs: &inputs, outputs: &outputs };
            assert!(row.launch(&launch, &fixed, &call, operands).is_err(), "{}", row.name);
        }
    }
}

/// A layer reserves the workspace of the most rows that it is planned for, and runs on fewer without another.
#[test]
fn fewer_rows_of_a_packed_weight_need_no_more_workspace() {
    let cpu = Cpu::with(2, SimdLevel::detected()).unwrap();
    let table = Table::<Gemm>::new(gemm::rows());
    let int4 = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, true).unwrap();
    let weights: [(Encoding, Compute); 5] = [
        (DType::BF16.into(), Compute::Bf16),
        (DType::F32.into(), Compute::F32),
        (int4.into(), Compute::Int8),
        (int4.into(), Compute::Bf16),
        (BlockFormat::INT8.into(), Compute::Int8),
    ];
    for ((encoding, compute), k) in weights.into_iter().flat_map(|of| [100, 896, 1024, 4864].map(|k| (of, k))) {
        let format = Format::in_panels(encoding).unwrap();
        let fixed = GemmStatic::new(512, k, DType::BF16, Rhs::Packed(format), DType::F32, compute);
        for row in table.candidates(&fixed, cpu.hardware()).0 {
            let mut least = usize::MAX;
            for m in (1..1100).rev() {
                let bytes = (row.workspace)(&fixed, &GemmDynamic { batch: 1, m }, cpu.hardware());
                assert!(bytes <= least, "{}: {m} rows of {k} need {bytes} bytes, more than {least}", row.name);
                least = bytes;
            }
        }
    }
}

#[test]
fn a_transposed_view_packs_as_its_rows() {
    let (n, k) = (37, 50);
    let device = Cpu::get();
    let team = Team::new(1).unwrap();
    let all = values(n * k);
    let rows = Tensor::from_slice(&device, &all, &[n, k]).unwrap();
    let turned: Vec<f32> = (0..k * n).map(|i| all[i % n * k + i / n]).collect();
    let turned = Tensor::from_slice(&device, &turned, &[k, n]).unwrap();
    let turned = turned.with_layout(turned.layout().transpose(0, 1).unwrap()).unwrap();
    for format in formats() {
        for level in levels() {
            let pack = |tensor: &Tensor| {
                let sources = [WeightRows::from_view(&tensor.view()).unwrap()];
                let mut packed = vec![0; format.packed_bytes(n, k, false)];
                let weights = Weights::new(&sources, false);
                format.pack(&team, level, &weights, &mut packed).unwrap();
                packed
            };
            assert_eq!(pack(&rows), pack(&turned), "{} at {level}", format.name());
        }
    }
}

#[test]
fn a_run_of_units_packs_as_a_weight_of_its_rows_alone() {
    let team = Team::new(2).unwrap();
    let (n, k) = (150, 9);
    let bytes = encode(DType::F32, &values(n * k).into_iter().map(f64::from).collect::<Vec<_>>());
    let rows = |rows: Range<usize>| {
        let size = k * DType::F32.size();
        WeightRows::from_bytes(&bytes[rows.start * size..rows.end * size], DType::F32, rows.len(), k).unwrap()
    };
    for format in formats() {
        for gated in [false, true] {
            let pack = |sources: &[WeightRows<'_>]| {
                let weights = Weights::new(sources, gated);
                let mut packed = vec![0xff; format.packed_bytes(weights.n(), k, gated)];
                format.pack(&team, SimdLevel::detected(), &weights, &mut packed).unwrap();
                packed
            };
            let (whole, panels) = (pack(&[rows(0..n)]), format.units(n, gated));
            for step in [1, 2, panels] {
                let runs = (0..panels).step_by(step).flat_map(|first| {
                    let held = format.unit_rows(first..(first + step).min(panels), n, gated);
                    pack(&held.map(rows).collect::<Vec<_>>())
                });
                assert!(runs.eq(whole.iter().copied()), "{step} units at a time in {}, gated {gated}", format.name());
            }
        }
    }
}

#[test]
fn right_operands_that_no_panel_holds_are_taken_by_no_row() {
    let device = Cpu::get();
    for dtype in DType::ALL.into_iter().filter(|dtype| !DType::COMPUTE.contains(dtype)) {
        assert!(Format::in_panels(dtype).is_none(), "{dtype}");
        for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
            for a in [DType::F32, dtype] {
                let fixed = GemmStatic::new(8, 8, a, Rhs::Strided(dtype), a, compute);
                for row in gemm::rows() {
                    assert!((row.admits)(&fixed, device.hardware()).is_err(), "{} takes {fixed}", row.name);
                }
            }
        }
    }
}

#[test]
fn wrong_sources_are_refused() {
    assert!(WeightRows::from_bytes(&[0; 11], DType::F32, 1, 3).is_err());
    assert!(WeightRows::from_bytes(&[0; 24], DType::F64, 1, 3).is_err());
    assert!(WeightRows::from_bytes(&[], DType::F32, usize::MAX, usize::MAX).is_err());
    let sources = [WeightRows::from_bytes(&[0; 12], DType::F32, 1, 3).unwrap()];
    let format = Format::in_panels(DType::BF16).unwrap();
    let mut packed = vec![0; format.packed_bytes(1, 4, false)];
    let team = Team::new(1).unwrap();
    let longer = [sources[0].clone(), WeightRows::from_bytes(&[0; 16], DType::F32, 1, 4).unwrap()];
    let mut of_both = vec![0; format.packed_bytes(2, 3, false)];
    let refused = format.pack(&team, SimdLevel::Portable, &Weights::new(&longer, false), &mut of_both);
    assert!(refused.is_err_and(|error| error.to_string().contains("1 rows of 4 of f32 with rows of 3")));
    let odd = Weights::new(&sources, true);
    assert!(format.pack(&team, SimdLevel::Portable, &odd, &mut packed).is_err());
    let short = Weights::new(&sources, false);
    assert!(format.pack(&team, SimdLevel::Portable, &short, &mut packed[1..]).is_err());
    let endless = [0; 2].map(|_| WeightRows::from_bytes(&[], DType::F32, usize::MAX, 0).unwrap());
    let endless = Weights::new(&endless, false);
    assert!(format.pack(&team, SimdLevel::Portable, &endless, &mut []).is_ok());
    assert!(format.unpack_row(&packed, 1, 4, false, 1, &mut [0.0; 4]).is_err());
}

/// Runs a row on a device.
fn launch<O: Operator>(
    row: &Row<O>,
    device: Arc<dyn Device>,
    (fixed, call): (&O::Static, &O::Dynamic),
    inputs: &[Option<View<'_>>],
    output: &mut Tensor,
) {
    let stream = device.clone().stream().unwrap();
    let bytes = (row.workspace)(fixed, call, device.hardware());
    let mut workspace = Buffer::uninitialised(&device, bytes).unwrap();
    let launch = Launch::new(&stream, Some(&mut workspace)).unwrap();
    let outputs = [output.view_mut().unwrap()];
    row.launch(&launch, fixed, call, Operands { inputs, outputs: &outputs }).unwrap();
}

/// Runs a row over `[batch, m, k]` and gives the result.
fn product(row: &Row<Gemm>, device: Arc<dyn Device>, fixed: &GemmStatic, a: &Tensor, b: &Tensor) -> Vec<f32> {
    let call = GemmDynamic { batch: a.shape()[0], m: a.shape()[1] };
    let mut d = Tensor::zeros(&Cpu::get(), DType::F32, &[call.batch, call.m, fixed.n]).unwrap();
    launch(row, device, (fixed, &call), &[Some(a.view()), Some(b.view())], &mut d);
    d.to_vec().unwrap()
}

#[test]
fn a_row_has_the_same_bits_alone_in_any_batch_on_any_threads_packed_or_not() {
    let device = Cpu::get();
    let on = |threads| -> Arc<dyn Device> { Cpu::with(threads, SimdLevel::detected()).unwrap() };
    // Long enough that K is blocked when there are many rows, and not when there is one.
    let (batch, m, n, k) = (3, 41, 45, 8501);
    let a = Tensor::from_slice(&device, &values(batch * m * k), &[batch, m, k]).unwrap();
    let weight = values(n * k);
    let weight: Vec<half::bf16> = weight.into_iter().map(half::bf16::from_f32).collect();
    let rows = Tensor::from_slice(&device, &weight, &[n, k]).unwrap();
    let columns = Layout::strided(&[batch, k, n], &[0, 1, k], 0).unwrap();
    let strided = rows.with_layout(columns).unwrap();
    // Two products that differ, so that each is a group of its own.
    let repeated: Vec<half::bf16> = (0..batch * n * k).map(|i| weight[i % (n * k)]).collect();
    let repeated = Tensor::from_slice(&device, &repeated, &[batch, n, k]).unwrap();
    let repeated = repeated.with_layout(repeated.layout().transpose(1, 2).unwrap()).unwrap();
    let sources = [WeightRows::from_view(&rows.view()).unwrap()];
    let weights = Weights::new(&sources, false);
    let int8 = Format::in_panels(BlockFormat::INT8).unwrap();
    let computes = [(Compute::F32, &packed::BF16), (Compute::Bf16, &packed::BF16), (Compute::Int8, int8)];
    for (compute, format) in computes {
        let mut bytes = vec![0; format.packed_bytes(n, k, false)];
        format.pack(&Team::new(1).unwrap(), SimdLevel::detected(), &weights, &mut bytes).unwrap();
        let packed = Tensor::from_bytes(&device, &bytes, DType::U8, &[bytes.len()]).unwrap();
        let of = |b| GemmStatic::new(n, k, DType::F32, b, DType::F32, compute);
        let (packed_problem, strided_problem) = (of(Rhs::Packed(format)), of(Rhs::Strided(DType::BF16)));
        let table = Table::<Gemm>::new(gemm::rows());
        let (rows, _) = table.candidates(&packed_problem, device.hardware());
        for row in rows.into_iter().filter(|row| !row.arithmetic.foreign) {
            let all = product(row, on(1), &packed_problem, &a, &packed);
            for threads in [2, 5] {
                assert_eq!(all, product(row, on(threads), &packed_problem, &a, &packed), "{} on {threads}", row.name);
            }
            assert_eq!(all, product(row, on(2), &strided_problem, &a, &strided), "{} with one B", row.name);
            assert_eq!(all, product(row, on(2), &strided_problem, &a, &repeated), "{} with a B each", row.name);
            for (b, i, rows) in [(0, 0, 1), (1, 7, 1), (2, 40, 1), (0, 3, 2), (1, 0, 5), (2, 9, 12), (2, 28, 13)] {
                let some = Layout::strided(&[1, rows, k], &[m * k, k, 1], (b * m + i) * k).unwrap();
                let alone = product(row, on(2), &packed_problem, &a.with_layout(some).unwrap(), &packed);
                let at = (b * m + i) * n;
                assert_eq!(alone, all[at..at + rows * n], "{}: {rows} rows from {i} of {b}", row.name);
            }
        }
    }
}

/// Norms of one kind: dtypes of weight and bias, and what is added to the weight.
const NORMS: [(Option<DType>, Option<DType>, f32); 4] = [
    (None, None, 0.0),
    (Some(DType::F32), None, 1.0),
    (Some(DType::BF16), Some(DType::F32), 0.0),
    (Some(DType::F16), Some(DType::F16), -0.5),
];

#[test]
fn a_product_of_normed_rows_has_the_bits_of_a_norm_and_a_product() {
    let device: Arc<dyn Device> = Cpu::with(2, SimdLevel::detected()).unwrap();
    let n = 35;
    let table = Table::<Gemm>::new(gemm::rows());
    let norms = Table::<Norm>::new(norm::rows());
    let mut compared = std::collections::BTreeSet::new();
    let mut turn = 0;
    for (m, k) in [(1, 1), (3, 17), (13, 100), (12, 512), (5, 530), (26, 1301)] {
        for (kind, x) in [NormKind::Rms, NormKind::Layer].into_iter().flat_map(|k| DType::COMPUTE.map(|x| (k, x))) {
            for (to, (weight, bias, offset)) in DType::COMPUTE.into_iter().flat_map(|to| NORMS.map(|norm| (to, norm))) {
                let lay = Lay::ALL[turn % Lay::ALL.len()];
                let values = if turn % 7 == 3 { Values::Special } else { Values::Normal };
                let b = DType::COMPUTE[turn % 3];
                turn += 1;
                let mut generator = Generator::new(turn as u64);
                let mut operand = |dtype, shape: &[usize], lay| generator.operand(dtype, shape, lay, values).unwrap();
                let a = match turn % 5 {
                    // Equal values: what a norm makes of zeros behind them is beyond f16.
                    4 => host_operand(x, &[2, m, k], lay, vec![3072.0; 2 * m * k], false).unwrap().tensor,
                    _ => operand(x, &[2, m, k], lay).tensor,
                };
                let right = operand(b, &[2, k, n], Lay::Contiguous).tensor;
                let mut vector = |dtype: Option<DType>, lay| dtype.map(|dtype| operand(dtype, &[k], lay).tensor);
                let [weight_values, bias_values] = [vector(weight, Lay::Contiguous), vector(bias, Lay::Stepped)];
                let [weight_view, bias_view] = [&weight_values, &bias_values].map(|v| v.as_ref().map(Tensor::view));
                for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
                    let (eps, weight_offset) = (1e-5.into(), offset.into());
                    let plain = GemmStatic::new(n, k, to, Rhs::Strided(b), DType::F32, compute);
                    let folded = GemmStatic { a: x, ..plain.clone() };
                    let folded = folded
                        .of_norm(InputNorm { formula: NormFormula { kind, eps, weight, weight_offset, bias }, to });
                    let alone = folded.norm_alone().unwrap();
                    let (rows, _) = table.candidates(&folded, device.hardware());
                    for row in rows {
                        let call = GemmDynamic { batch: 2, m };
                        let mut d = Tensor::zeros(&device, DType::F32, &[2, m, n]).unwrap();
                        let inputs = [Some(a.view()), Some(right.view()), None, None, weight_view, bias_view];
                        launch(row, device.clone(), (&folded, &call), &inputs, &mut d);
                        let found = d.to_vec::<f32>().unwrap();
                        let fused = !row.name.starts_with("gemm.cpu.portable");
                        for norm in norms.candidates(&alone, device.hardware()).0 {
                            if (norm.arithmetic.name == "norm.fma16") != fused {
                                continue;
                            }
                            let mut normed = Tensor::zeros(&device, to, &[2, m, k]).unwrap();
                            let inputs = [Some(a.view()), weight_view, bias_view];
                            launch(norm, device.clone(), (&alone, &NormDynamic { rows: 2 * m }), &inputs, &mut normed);
                            let expected = product(row, device.clone(), &plain, &normed, &right);
                            let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                            let equal = found.iter().zip(&expected).all(|(a, b)| same(a, b));
                            assert!(equal, "{} and {}: {folded}, m={m}, {lay:?}", row.name, norm.name);
                            compared.insert((row.name, norm.name));
                        }
                    }
                }
            }
        }
    }
    // Every row of the machine took part: each of its own arithmetic with the norm's rows of one like it.
    assert!(compared.contains(&("gemm.cpu.portable", "norm.cpu.portable")), "{compared:?}");
    for row in gemm::rows().iter().filter(|row| row.device == DeviceKind::CPU && !row.arithmetic.foreign) {
        let admitted = [Compute::Bf16, Compute::Int8].into_iter().any(|compute| {
            let fixed = GemmStatic::new(1, 1, DType::F32, Rhs::Strided(DType::BF16), DType::F32, compute);
            (row.admits)(&fixed, device.hardware()).is_ok()
        });
        assert_eq!(admitted, compared.iter().any(|(name, _)| *name == row.name), "{}", row.name);
    }
}

#[test]
fn a_norm_of_the_left_operand_is_refused_where_its_operands_do_not_fit_it() {
    let device = Cpu::get();
    let tensor = |shape: &[usize]| Tensor::zeros(&device, DType::F32, shape).unwrap();
    let (a, b, d, short, whole) =
        (tensor(&[1, 2, 5]), tensor(&[1, 5, 3]), tensor(&[1, 2, 3]), tensor(&[4]), tensor(&[5]));
    let plain = GemmStatic::new(3, 5, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32);
    let formula = NormFormula {
        kind: NormKind::Layer,
        eps: 1e-5.into(),
        weight: Some(DType::F32),
        weight_offset: 0.0.into(),
        bias: None,
    };
    let norm = InputNorm { formula, to: DType::F32 };
    let normed = plain.clone().of_norm(norm);
    let mut d = d;
    let mut check = |fixed: &GemmStatic, weight: Option<&Tensor>, bias: Option<&Tensor>| {
        let [weight, bias] = [weight, bias].map(|tensor| tensor.map(Tensor::view));
        let inputs = [Some(a.view()), Some(b.view()), None, None, weight, bias];
        let outputs = [d.view_mut().unwrap()];
        let call = GemmDynamic { batch: 1, m: 2 };
        Gemm::check(fixed, &call, Operands { inputs: &inputs, outputs: &outputs }).map_err(|error| error.to_string())
    };
    assert_eq!(check(&normed, Some(&whole), None), Ok(()));
    let wrong = [
        (check(&normed, Some(&short), None), "expected f32 of shape [5]"),
        (check(&normed, None, None), "the norm's weight is missing from"),
        (check(&normed, Some(&whole), Some(&whole)), "the norm's bias is given but not part of"),
        (check(&plain, Some(&whole), None), "the norm's weight is given but not part of"),
        (check(&plain.of_norm(InputNorm { to: DType::I32, ..norm }), Some(&whole), None), "i32 is none of"),
    ];
    for (found, words) in wrong {
        assert!(found.as_ref().is_err_and(|error| error.contains(words)), "{found:?} has no {words:?}");
    }
}

/// The row predicted fastest for one row and for many, of integers whose activations are bf16, and of fp8.
#[test]
fn integers_take_activations_as_int16_where_that_is_fastest() {
    let table = Table::<Gemm>::new(gemm::rows());
    let integers = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false).unwrap();
    let floats = BlockFormat::new(BlockValues::F8E4M3, 128, DType::F32, false).unwrap();
    for (level, of_integers, of_floats) in [
        (SimdLevel::Portable, "gemm.cpu.portable.blocks", "gemm.cpu.portable.blocks"),
        (SimdLevel::Avx2, "gemm.cpu.avx2.int16", "gemm.cpu.avx2.blocks"),
        (SimdLevel::Avx512Vnni, "gemm.cpu.avx512vnni.int16", "gemm.cpu.avx512.blocks"),
    ] {
        if level > SimdLevel::detected() {
            continue;
        }
        let device = Cpu::with(1, level).unwrap();
        for (format, expected) in [(integers, of_integers), (floats, of_floats)] {
            let format = Format::of(format).next().unwrap();
            let fixed = GemmStatic::new(640, 256, DType::BF16, Rhs::Packed(format), DType::BF16, Compute::Bf16);
            for m in [1, 8, 512] {
                let cost = |row: &&Row<Gemm>| (row.cost)(&fixed, &GemmDynamic { batch: 1, m }, device.hardware());
                let rows = table.candidates(&fixed, device.hardware()).0;
                let best = rows.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap();
                assert_eq!(best.name, expected, "{m} rows of {fixed} by {level:?}");
            }
        }
    }
}

/// Rows of block-quantized weights: the same bits whatever rows are multiplied with them, on any threads.
#[test]
fn a_row_has_the_same_bits_with_any_others_in_every_block_format() {
    let device = Cpu::get();
    let on = |threads| -> Arc<dyn Device> { Cpu::with(threads, SimdLevel::detected()).unwrap() };
    // So long that threads share the packing of four rows.
    let (m, n, k) = (41, 45, 2100);
    let mut left = values(m * k);
    // Outliers of some rows, and of some groups of them.
    for row in (0..m).step_by(3) {
        left[row * k + 40 + row * 30] = 1e5;
    }
    let a = Tensor::from_slice(&device, &left, &[1, m, k]).unwrap();
    let bytes = encode(DType::F32, &values(n * k).into_iter().map(f64::from).collect::<Vec<_>>());
    let sources = [WeightRows::from_bytes(&bytes, DType::F32, n, k).unwrap()];
    let table = Table::<Gemm>::new(gemm::rows());
    let mut ran = std::collections::BTreeSet::new();
    for format in formats().filter(|format| format.dtype().is_none()) {
        let mut packed = vec![0; format.packed_bytes(n, k, false)];
        let weights = Weights::new(&sources, false);
        format.pack(&Team::new(1).unwrap(), SimdLevel::detected(), &weights, &mut packed).unwrap();
        let packed = Tensor::from_bytes(&device, &packed, DType::U8, &[packed.len()]).unwrap();
        for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
            let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Packed(format), DType::F32, compute);
            for row in table.candidates(&fixed, device.hardware()).0 {
                let all = product(row, on(1), &fixed, &a, &packed);
                assert_eq!(all, product(row, on(3), &fixed, &a, &packed), "{} on 3 threads", row.name);
                for (i, rows) in [(0, 1), (7, 1), (3, 2), (33, 4), (0, 5), (20, 8), (9, 12), (28, 13)] {
                    let some = Layout::strided(&[1, rows, k], &[m * k, k, 1], i * k).unwrap();
                    let alone = product(row, on(2), &fixed, &a.with_layout(some).unwrap(), &packed);
                    assert_eq!(alone, all[i * n..(i + rows) * n], "{} of {fixed}: {rows} from {i}", row.name);
                }
                ran.insert(row.name);
            }
        }
    }
    assert!(ran.contains("gemm.cpu.portable.blocks") && ran.contains("gemm.cpu.portable.int8"), "{ran:?}");
}

#[test]
fn codes_are_packed_as_they_are_and_into_no_other_format() {
    let team = Team::new(1).unwrap();
    let (n, k) = (35, 70);
    for values in BlockValues::ALL {
        let format = BlockFormat::new(values, 32, DType::F16, values.is_integer()).unwrap();
        let codes: Vec<u8> = (0..n * k).map(|i| (i * 37 % (1 << values.bits())) as u8).collect();
        let scales: Vec<f64> = (0..n * 3).map(|i| 0.25 + i as f64 / 64.0).collect();
        let zeros: Vec<i8> = (0..n * 3).map(|i| (i % 16) as i8 - 8).collect();
        let scale_bytes = encode(DType::F16, &scales);
        let given = Codes {
            format,
            codes: &codes,
            scales: &scale_bytes,
            zeros: if format.zero_points() { &zeros } else { &[] },
        };
        let sources = [WeightRows::from_codes(given, n, k).unwrap()];
        let weights = Weights::new(&sources, false);
        for level in levels() {
            let packed_as = Format::in_panels(format).unwrap();
            let mut packed = vec![0; packed_as.packed_bytes(n, k, false)];
            packed_as.pack(&team, level, &weights, &mut packed).unwrap();
            let mut row = vec![0.0; k];
            for i in 0..n {
                packed_as.unpack_row(&packed, n, k, false, i, &mut row).unwrap();
                for (j, &x) in row.iter().enumerate() {
                    let group = i * 3 + j / 32;
                    let zero = if format.zero_points() { f32::from(zeros[group]) } else { 0.0 };
                    let expected = scales[group] as f32 * (values.value(codes[i * k + j]) - zero);
                    assert!(x == expected || x.is_nan() && expected.is_nan(), "{values:?} [{i}, {j}]: {x}, {expected}");
                }
            }
        }
        // Beside floats, other numbers of anything, and other formats.
        let floats = vec![0; n * k * 4];
        let mixed = [sources[0].clone(), WeightRows::from_bytes(&floats, DType::F32, n, k).unwrap()];
        let packed_as = Format::in_panels(format).unwrap();
        let mut packed = vec![0; packed_as.packed_bytes(2 * n, k, false)];
        let mixed = Weights::new(&mixed, false);
        let refused = packed_as.pack(&team, SimdLevel::Portable, &mixed, &mut packed).unwrap_err().to_string();
        assert!(refused.contains("all or none"), "{refused}");
        assert!(WeightRows::from_codes(Codes { codes: &codes[1..], ..given }, n, k).is_err());
        assert!(WeightRows::from_codes(Codes { scales: &scale_bytes[2..], ..given }, n, k).is_err());
        assert!(WeightRows::from_codes(Codes { zeros: &zeros[1..], ..given }, n, k).is_err());
        if format.zero_points() {
            let with = |zero| {
                let mut zeros = zeros.clone();
                zeros[7] = zero;
                WeightRows::from_codes(Codes { zeros: &zeros, ..given }, n, k).map(drop)
            };
            let refused = [9, -9, i8::MIN].map(|zero| with(zero).is_err());
            assert_eq!(refused, [values == BlockValues::Int4; 3], "{values:?}");
            assert!([8, -8].into_iter().all(|zero| with(zero).is_ok()), "{values:?}");
        }
        for other in formats().filter(|other| other.encoding() != Encoding::Blocks(format)) {
            let mut packed = vec![0; other.packed_bytes(n, k, false)];
            assert!(other.pack(&team, SimdLevel::Portable, &weights, &mut packed).is_err(), "{}", other.name());
        }
    }
}

/// All codes, scales and zero points of a packed weight.
fn codes_of(packed_as: &Format, packed: &[u8], n: usize, k: usize, gated: bool) -> (Vec<u8>, Vec<u8>, Vec<i8>) {
    let Encoding::Blocks(format) = packed_as.encoding() else { panic!("{} is not in blocks", packed_as.name()) };
    let groups = k.div_ceil(format.group());
    let (line, zero_points) = (groups * format.scale_dtype().size(), if format.zero_points() { groups } else { 0 });
    let (mut codes, mut scales, mut zeros) = (vec![0; n * k], vec![0; n * line], vec![0; n * zero_points]);
    for row in 0..n {
        let into = RowCodes {
            codes: &mut codes[row * k..][..k],
            scales: &mut scales[row * line..][..line],
            zeros: &mut zeros[row * zero_points..][..zero_points],
        };
        packed_as.unpack_codes(packed, n, k, gated, row, into).unwrap();
    }
    (codes, scales, zeros)
}

#[test]
fn codes_of_a_packed_weight_pack_to_the_same_bytes() {
    let team = Team::new(1).unwrap();
    // Words are full: what fills them is no part of the weight.
    let (n, k) = (70, 296);
    let bytes = encode(DType::F32, &values(n * k).into_iter().map(f64::from).collect::<Vec<_>>());
    for packed_as in formats() {
        let Encoding::Blocks(format) = packed_as.encoding() else {
            let packed = vec![0; packed_as.packed_bytes(1, 1, false)];
            let into = RowCodes { codes: &mut [0], scales: &mut [], zeros: &mut [] };
            let refused = packed_as.unpack_codes(&packed, 1, 1, false, 0, into).unwrap_err().to_string();
            assert!(refused.contains("not in blocks"), "{refused}");
            continue;
        };
        for (gated, per_channel) in [(false, false), (true, false), (false, true), (true, true)] {
            let sources = [WeightRows::from_bytes(&bytes, DType::F32, n, k).unwrap()];
            let mut packed = vec![0; packed_as.packed_bytes(n, k, gated)];
            let mut again = packed.clone();
            let weights = Weights::new(&sources, gated).per_channel(per_channel);
            packed_as.pack(&team, SimdLevel::detected(), &weights, &mut packed).unwrap();
            let (codes, scales, zeros) = codes_of(packed_as, &packed, n, k, gated);
            let codes = Codes { format, codes: &codes, scales: &scales, zeros: &zeros };
            let sources = [WeightRows::from_codes(codes, n, k).unwrap()];
            let weights = Weights::new(&sources, gated);
            packed_as.pack(&team, SimdLevel::detected(), &weights, &mut again).unwrap();
            assert!(packed == again, "{}", packed_as.name());
            let (mut codes, mut scales, mut zeros) = (codes.codes.to_vec(), scales.clone(), zeros.clone());
            let lengths = [k, k.div_ceil(format.group()) * format.scale_dtype().size()];
            let groups = if format.zero_points() { k.div_ceil(format.group()) } else { 0 };
            for (less, row) in [([1, 0, 0], 0), ([0, 1, 0], 0), ([0, 0, 1], 0), ([0, 0, 0], n)] {
                let into = RowCodes {
                    codes: &mut codes[..lengths[0] - less[0]],
                    scales: &mut scales[..lengths[1] - less[1]],
                    zeros: if less[2] <= groups { &mut zeros[..groups - less[2]] } else { &mut [1] },
                };
                assert!(packed_as.unpack_codes(&packed, n, k, gated, row, into).is_err(), "{less:?}, row {row}");
            }
        }
    }
}

#[test]
fn per_channel_a_row_has_one_scale() {
    let team = Team::new(1).unwrap();
    let (n, k) = (35, 300);
    // Of each group of 32 the values are larger than in the one before, or in every third row smaller.
    let grown: Vec<f32> = values(n * k)
        .into_iter()
        .enumerate()
        .map(|(i, x)| x * if i / k % 3 == 0 { 2.0 / (1 + i % k / 32) as f32 } else { (1 + i % k / 32) as f32 })
        .collect();
    let bytes = encode(DType::F32, &grown.iter().copied().map(f64::from).collect::<Vec<_>>());
    let turned: Vec<f64> =
        (0..k).flat_map(|j| (0..n).map(move |i| (i, j))).map(|(i, j)| grown[i * k + j].into()).collect();
    let turned = encode(DType::F32, &turned);
    let sources = [
        WeightRows::from_bytes(&bytes, DType::F32, n, k).unwrap(),
        WeightRows::from_columns(&turned, DType::F32, n, k, n).unwrap(),
    ];
    for packed_as in formats() {
        let Encoding::Blocks(format) = packed_as.encoding() else { continue };
        for (level, source) in levels().flat_map(|level| sources.chunks(1).map(move |source| (level, source))) {
            let mut packed = vec![0; packed_as.packed_bytes(n, k, false)];
            let weights = Weights::new(source, false).per_channel(true);
            packed_as.pack(&team, level, &weights, &mut packed).unwrap();
            let (_, scales, zeros) = codes_of(packed_as, &packed, n, k, false);
            let groups = k.div_ceil(format.group());
            let mut row = vec![0.0; k];
            for i in 0..n {
                let exact: Vec<f64> = grown[i * k..][..k].iter().copied().map(f64::from).collect();
                packed_as.unpack_row(&packed, n, k, false, i, &mut row).unwrap();
                let wide: Vec<f64> = row.iter().copied().map(f64::from).collect();
                assert!(wide == in_blocks(format, &exact), "{} row {i} {level:?}", packed_as.name());
                let scales = scales[i * groups * format.scale_dtype().size()..].chunks(format.scale_dtype().size());
                assert_eq!(scales.take(groups).collect::<std::collections::BTreeSet<_>>().len(), 1);
                assert!(
                    zeros.is_empty() || zeros[i * groups..][..groups].iter().all(|&zero| zero == zeros[i * groups])
                );
            }
        }
    }
}

/// Where what they are multiplied with is zero.
#[test]
fn outliers_cost_the_other_activations_of_their_group_nothing() {
    let device: Arc<dyn Device> = Cpu::get();
    let (m, n, k) = (8, 33, 256);
    let mut generator = Generator::new(3);
    let mut normal = |count: usize| (0..count).map(|_| generator.normal()).collect::<Vec<f64>>();
    let (left, right) = (normal(m * k), normal(n * k));
    let mut ran = std::collections::BTreeSet::new();
    for (largest, outliers) in [(1e3, 1), (1e4, 3), (1e5, 1), (3e38, 1), (1e5, 8), (400.0, 2), (1e5, 128)] {
        // Those of a row, at other places in each, and what they are multiplied with: nothing.
        let places = |row: usize| (0..outliers).map(move |i| (row + 32 * i + i) % k);
        let (mut a, mut b) = (left.clone(), right.clone());
        for row in 0..m {
            for place in places(row) {
                a[row * k + place] = if place % 2 == 0 { largest } else { -0.7 * largest };
                (0..n).for_each(|output| b[output * k + place] = 0.0);
            }
        }
        let bytes = encode(DType::BF16, &a);
        let a = Tensor::from_bytes(&device, &bytes, DType::BF16, &[1, m, k]).unwrap();
        let bytes = encode(DType::F32, &b);
        let sources = [WeightRows::from_bytes(&bytes, DType::F32, n, k).unwrap()];
        let is_integer =
            |format: &&Format| matches!(format.encoding(), Encoding::Blocks(of) if of.values().is_integer());
        for format in formats().filter(is_integer) {
            let mut packed = vec![0; format.packed_bytes(n, k, false)];
            format
                .pack(&Team::new(1).unwrap(), SimdLevel::detected(), &Weights::new(&sources, false), &mut packed)
                .unwrap();
            let weights: Vec<Vec<f32>> = (0..n)
                .map(|output| {
                    let mut row = vec![0.0; k];
                    format.unpack_row(&packed, n, k, false, output, &mut row).unwrap();
                    row
                })
                .collect();
            let packed = Tensor::from_bytes(&device, &packed, DType::U8, &[packed.len()]).unwrap();
            let fixed = GemmStatic::new(n, k, DType::BF16, Rhs::Packed(format), DType::F32, Compute::Bf16);
            for row in gemm::rows().iter().filter(|row| row.device == DeviceKind::CPU) {
                if (row.admits)(&fixed, device.hardware()).is_err() {
                    continue;
                }
                let d = product(row, device.clone(), &fixed, &a, &packed);
                let activations: Vec<f64> = a.to_vec::<bf16>().unwrap().into_iter().map(f64::from).collect();
                for (i, d) in d.into_iter().enumerate() {
                    let (x, y) = (&activations[i / n * k..][..k], &weights[i % n]);
                    let exact: f64 = x.iter().zip(y).map(|(x, y)| x * f64::from(*y)).sum();
                    let of = format!("{largest:e} beside {} in {}: {d} for {exact}", row.name, format.name());
                    assert!((f64::from(d) - exact).abs() < 2e-3, "{of}");
                }
                ran.insert(row.name);
            }
        }
    }
    assert!(ran.contains("gemm.cpu.portable.blocks"), "{ran:?}");
}

/// An infinite activation gives infinities where floats are multiplied, of the sign of what it meets; of int8 no numbers.
/// Other rows stay finite.
#[test]
fn an_infinite_activation_leaves_no_number_behind_where_there_are_zero_points() {
    let device: Arc<dyn Device> = Cpu::get();
    let (n, k) = (33, 70);
    let format = BlockFormat::new(BlockValues::Int4, 32, DType::F16, true).unwrap();
    let codes: Vec<u8> = (0..n * k).map(|i| (i * 5 % 16) as u8).collect();
    let scales = encode(DType::F16, &vec![0.5; n * 3]);
    let zeros = vec![-8i8; n * 3];
    let sources =
        [WeightRows::from_codes(Codes { format, codes: &codes, scales: &scales, zeros: &zeros }, n, k).unwrap()];
    let packed_as = Format::in_panels(format).unwrap();
    let mut packed = vec![0; packed_as.packed_bytes(n, k, false)];
    let weights = Weights::new(&sources, false);
    packed_as.pack(&Team::new(1).unwrap(), SimdLevel::detected(), &weights, &mut packed).unwrap();
    let packed = Tensor::from_bytes(&device, &packed, DType::U8, &[packed.len()]).unwrap();
    let mut values = values(2 * k);
    values[3] = f32::INFINITY;
    let a = Tensor::from_slice(&device, &values, &[1, 2, k]).unwrap();
    for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
        let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Packed(packed_as), DType::F32, compute);
        let table = Table::<Gemm>::new(gemm::rows());
        for row in table.candidates(&fixed, device.hardware()).0 {
            let d = product(row, device.clone(), &fixed, &a, &packed);
            // Codes are in two's complement: from 8 on they are negative, but no less than the zero points.
            let is_right = |(i, x): (usize, &f32)| match codes[i * k + 3] {
                8 => x.is_nan(),
                _ if compute == Compute::Int8 => x.is_nan(),
                _ => *x == f32::INFINITY,
            };
            assert!(d[..n].iter().enumerate().all(is_right), "{}: {:?}", row.name, &d[..n]);
            assert!(d[n..].iter().all(|x| x.is_finite()), "{}", row.name);
        }
    }
}

/// Codes and zero points as far apart as they may be, and activations of one sign: what integer sums have to hold.
#[test]
fn sums_of_whole_groups_hold_the_largest_differences_of_codes_and_zero_points() {
    let device: Arc<dyn Device> = Cpu::get();
    let (m, n) = (3, 33);
    let mut ran = std::collections::BTreeSet::new();
    for (values, group) in [BlockValues::Int4, BlockValues::Int8].into_iter().flat_map(|v| GROUP_SIZES.map(|g| (v, g)))
    {
        let format = BlockFormat::new(values, group, DType::F32, true).unwrap();
        let k = 2 * group;
        let (least, most) = (-1i32 << (values.bits() - 1), (1i32 << (values.bits() - 1)) - 1);
        // Of even outputs the largest code and the least zero point, of odd ones the other way round.
        let of = |output: usize| if output.is_multiple_of(2) { [most, least] } else { [least, most] };
        let codes: Vec<u8> = (0..n * k).map(|at| of(at / k)[0] as u8 & ((1u32 << values.bits()) - 1) as u8).collect();
        let zeros: Vec<i8> = (0..n * 2).map(|at| of(at / 2)[1] as i8).collect();
        let scales = encode(DType::F32, &vec![1.0; n * 2]);
        let given = Codes { format, codes: &codes, scales: &scales, zeros: &zeros };
        let sources = [WeightRows::from_codes(given, n, k).unwrap()];
        let packed_as = Format::in_panels(format).unwrap();
        let mut packed = vec![0; packed_as.packed_bytes(n, k, false)];
        let weights = Weights::new(&sources, false);
        packed_as.pack(&Team::new(1).unwrap(), SimdLevel::detected(), &weights, &mut packed).unwrap();
        let packed = Tensor::from_bytes(&device, &packed, DType::U8, &[packed.len()]).unwrap();
        let activations = [3.0f32, -3.0, 1.9921875];
        let a: Vec<f32> = (0..m * k).map(|at| activations[at / k]).collect();
        let a = Tensor::from_slice(&device, &a, &[1, m, k]).unwrap();
        for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
            let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Packed(packed_as), DType::F32, compute);
            for row in Table::<Gemm>::new(gemm::rows()).candidates(&fixed, device.hardware()).0 {
                for (at, d) in product(row, device.clone(), &fixed, &a, &packed).into_iter().enumerate() {
                    let [code, zero] = of(at % n);
                    let exact = f64::from(activations[at / n]) * f64::from(code - zero) * k as f64;
                    let error = (f64::from(d) - exact).abs();
                    assert!(error <= 1e-6 * exact.abs(), "{} of {}: {d} for {exact}", row.name, packed_as.name());
                }
                ran.insert(row.name);
            }
        }
    }
    assert!(ran.contains("gemm.cpu.portable.blocks") && ran.contains("gemm.cpu.portable.int8"), "{ran:?}");
}
