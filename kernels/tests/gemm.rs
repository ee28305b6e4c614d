//! Packed weights, and the bits of products that must not change.

use std::ops::Range;

use sinew_kernels::case::{Generator, encode};
use sinew_kernels::gemm::{self, Compute, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::packed::{FORMATS, Format, Source, UnitRows, Weights};
use sinew_kernels::{Launch, Operands, Row, Table};
use sinew_memory::{Buffer, Cpu, DeviceKind, SimdLevel, Team};
use sinew_tensor::{DType, Layout, Tensor};

/// Values that are exact in no format but f32.
fn values(count: usize) -> Vec<f32> {
    let mut generator = Generator::new(7);
    (0..count).map(|_| generator.normal() as f32).collect()
}

/// Value `at` of a group, rounded to a multiple of the 127th of its largest.
fn in_int8(values: &[f64], at: usize) -> f64 {
    let group = &values[..values.len().min(128)];
    let largest = group.iter().fold(0.0, |a: f32, &x| a.max(x.abs() as f32));
    f64::from((largest / 127.0) * (values[at] as f32 * (127.0 / largest)).round_ties_even())
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
                let source = Source::from_bytes(&bytes[start..end], from, rows, k).unwrap();
                start = end;
                source
            });
            for format in FORMATS {
                for gated in [false, true].into_iter().filter(|&gated| !gated || n % 2 == 0) {
                    let weights = Weights { sources: &sources, k, gated };
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
                        for (j, &x) in row.iter().enumerate() {
                            let expected = match format.dtype() {
                                DType::I8 => in_int8(&stored[j / 128 * 128..], j % 128),
                                dtype => dtype.round(stored[j]),
                            };
                            assert_eq!(f64::from(x), expected, "{from} in {}, {n}x{k}, gated {gated}", format.name());
                        }
                    }
                }
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
    for format in FORMATS {
        for level in levels() {
            let pack = |tensor: &Tensor| {
                let sources = [Source::from_view(&tensor.view()).unwrap()];
                let mut packed = vec![0; format.packed_bytes(n, k, false)];
                let weights = Weights { sources: &sources, k, gated: false };
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
        Source::from_bytes(&bytes[rows.start * size..rows.end * size], DType::F32, rows.len(), k).unwrap()
    };
    for format in FORMATS {
        for gated in [false, true] {
            let pack = |sources: &[Source<'_>]| {
                let weights = Weights { sources, k, gated };
                let mut packed = vec![0xff; format.packed_bytes(weights.n(), k, gated)];
                format.pack(&team, SimdLevel::detected(), &weights, &mut packed).unwrap();
                packed
            };
            let (whole, panels) = (pack(&[rows(0..n)]), format.units(n, gated));
            for step in [1, 2, panels] {
                let runs = (0..panels).step_by(step).flat_map(|first| {
                    match format.unit_rows(first..(first + step).min(panels), n, gated) {
                        UnitRows::Plain(held) => pack(&[rows(held)]),
                        UnitRows::Gated(held) => {
                            let ups = held.start + n / 2..held.end + n / 2;
                            pack(&[rows(held), rows(ups)])
                        }
                    }
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
        assert!(Format::of(dtype, DeviceKind::CPU).is_none_or(|format| format == &gemm::I8), "{dtype}");
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
    assert!(Source::from_bytes(&[0; 11], DType::F32, 1, 3).is_err());
    assert!(Source::from_bytes(&[0; 24], DType::F64, 1, 3).is_err());
    assert!(Source::from_bytes(&[], DType::F32, usize::MAX, usize::MAX).is_err());
    let sources = [Source::from_bytes(&[0; 12], DType::F32, 1, 3).unwrap()];
    let format = Format::of(DType::BF16, DeviceKind::CPU).unwrap();
    let mut packed = vec![0; format.packed_bytes(1, 4, false)];
    let team = Team::new(1).unwrap();
    let longer = Weights { sources: &sources, k: 4, gated: false };
    assert!(format.pack(&team, SimdLevel::Portable, &longer, &mut packed).is_err());
    let odd = Weights { sources: &sources, k: 3, gated: true };
    assert!(format.pack(&team, SimdLevel::Portable, &odd, &mut packed).is_err());
    let short = Weights { sources: &sources, k: 3, gated: false };
    assert!(format.pack(&team, SimdLevel::Portable, &short, &mut packed[1..]).is_err());
    let endless = [Source::from_bytes(&[], DType::F32, usize::MAX, 0).unwrap(); 2];
    let endless = Weights { sources: &endless, k: 0, gated: false };
    assert!(format.pack(&team, SimdLevel::Portable, &endless, &mut []).is_ok());
    assert!(format.unpack_row(&packed, 1, 4, false, 1, &mut [0.0; 4]).is_err());
}

/// Runs a row over `[batch, m, k]` and gives the result.
fn product(row: &Row<Gemm>, threads: usize, fixed: &GemmStatic, a: &Tensor, b: &Tensor) -> Vec<f32> {
    let device = Cpu::with(threads, SimdLevel::detected()).unwrap();
    let stream = device.clone().stream().unwrap();
    let call = GemmDynamic { batch: a.shape()[0], m: a.shape()[1] };
    let mut d = Tensor::zeros(&device, DType::F32, &[call.batch, call.m, fixed.n]).unwrap();
    let bytes = (row.workspace)(fixed, &call, device.hardware());
    let mut workspace = Buffer::allocate(&device, bytes).unwrap();
    let launch = Launch::new(&stream, Some(&mut workspace)).unwrap();
    let (inputs, outputs) = ([Some(a.view()), Some(b.view())], [d.view_mut().unwrap()]);
    row.launch(&launch, fixed, &call, Operands { inputs: &inputs, outputs: &outputs }).unwrap();
    d.to_vec().unwrap()
}

#[test]
fn a_row_has_the_same_bits_alone_in_any_batch_on_any_threads_packed_or_not() {
    let device = Cpu::get();
    // Long enough that K is blocked when there are many rows, and not when there is one.
    let (batch, m, n, k) = (3, 41, 45, 1301);
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
    let format = Format::of(DType::BF16, DeviceKind::CPU).unwrap();
    let sources = [Source::from_view(&rows.view()).unwrap()];
    let mut bytes = vec![0; format.packed_bytes(n, k, false)];
    let weights = Weights { sources: &sources, k, gated: false };
    format.pack(&Team::new(1).unwrap(), SimdLevel::detected(), &weights, &mut bytes).unwrap();
    let packed = Tensor::from_bytes(&device, &bytes, DType::U8, &[bytes.len()]).unwrap();
    for compute in [Compute::F32, Compute::Bf16] {
        let of = |b| GemmStatic::new(n, k, DType::F32, b, DType::F32, compute);
        let (packed_problem, strided_problem) = (of(Rhs::Packed(format)), of(Rhs::Strided(DType::BF16)));
        let table = Table::<Gemm>::new(gemm::rows());
        let (rows, _) = table.candidates(&packed_problem, device.hardware());
        for row in rows.into_iter().filter(|row| !row.arithmetic.foreign) {
            let all = product(row, 1, &packed_problem, &a, &packed);
            for threads in [2, 5] {
                assert_eq!(all, product(row, threads, &packed_problem, &a, &packed), "{} on {threads}", row.name);
            }
            assert_eq!(all, product(row, 2, &strided_problem, &a, &strided), "{} with one B", row.name);
            assert_eq!(all, product(row, 2, &strided_problem, &a, &repeated), "{} with a B each", row.name);
            for (b, i, rows) in [(0, 0, 1), (1, 7, 1), (2, 40, 1), (0, 3, 2), (1, 0, 5), (2, 9, 12), (2, 28, 13)] {
                let some = Layout::strided(&[1, rows, k], &[m * k, k, 1], (b * m + i) * k).unwrap();
                let alone = product(row, 2, &packed_problem, &a.with_layout(some).unwrap(), &packed);
                let at = (b * m + i) * n;
                assert_eq!(alone, all[at..at + rows * n], "{}: {rows} rows from {i} of {b}", row.name);
            }
        }
    }
}
