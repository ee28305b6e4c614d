//! Products with weights that have their inputs in another order than activations do.

use std::collections::BTreeSet;
use std::sync::Arc;

use sinew_kernels::gemm::{self, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::harness::case::{Generator, encode};
use sinew_kernels::packed::{WeightRows, Weights, formats};
use sinew_kernels::{Compute, Error, Launch, Operands, Operator, Row, Table};
use sinew_memory::{Buffer, Cpu, Device, DeviceKind, SimdLevel, Team};
use sinew_tensor::{DType, Layout, Tensor};

const N: usize = 45;
const K: usize = 1300;

fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut generator = Generator::new(seed);
    (0..count).map(|_| generator.normal() as f32).collect()
}

/// Each column once.
fn order() -> Vec<u32> {
    let mut generator = Generator::new(5);
    let mut order: Vec<u32> = (0..K as u32).collect();
    (1..K).rev().for_each(|at| order.swap(at, generator.below(at + 1)));
    order
}

fn run(
    row: &Row<Gemm>,
    threads: usize,
    fixed: &GemmStatic,
    a: &Tensor,
    b: &Tensor,
    order: Option<&Tensor>,
) -> Result<Vec<f32>, Error> {
    let device: Arc<dyn Device> = Cpu::with(threads, SimdLevel::detected())?;
    let call = GemmDynamic { batch: 1, m: a.shape()[1] };
    let mut d = Tensor::zeros(&Cpu::get(), DType::F32, &[1, call.m, fixed.n])?;
    let inputs = [Some(a.view()), Some(b.view()), None, None, None, None, order.map(Tensor::view)];
    let operands = [d.view_mut()?];
    Gemm::check(fixed, &call, Operands { inputs: &inputs, outputs: &operands })?;
    let stream = device.clone().stream()?;
    let mut workspace = Buffer::uninitialised(&device, (row.workspace)(fixed, &call, device.hardware()))?;
    let launch = Launch::new(&stream, Some(&mut workspace))?;
    row.launch(&launch, fixed, &call, Operands { inputs: &inputs, outputs: &operands })?;
    Ok(d.to_vec()?)
}

#[test]
fn gathering_gives_the_bits_of_columns_that_lie_in_the_weights_order() {
    let device = Cpu::get();
    let m = 41;
    let order = order();
    let a = values(1, m * K);
    let sorted: Vec<f32> = a.chunks(K).flat_map(|row| order.iter().map(|&at| row[at as usize])).collect();
    let [a, sorted] = [a, sorted].map(|values| Tensor::from_slice(&device, &values, &[1, m, K]).expect("room"));
    let order = Tensor::from_slice(&device, &order, &[K]).expect("room");
    let bytes = encode(DType::F32, &values(2, N * K).into_iter().map(f64::from).collect::<Vec<_>>());
    let sources = [WeightRows::from_bytes(&bytes, DType::F32, N, K).expect("fits")];
    let table = Table::<Gemm>::new(gemm::rows());
    let (mut ran, mut alone_differs) = (BTreeSet::new(), false);
    for format in formats().filter(|format| !format.is_row_major()) {
        let mut packed = vec![0; format.packed_bytes(N, K, false)];
        let weights = Weights::new(&sources, false);
        format.pack(&Team::new(1).expect("a thread"), SimdLevel::detected(), &weights, &mut packed).expect("it packs");
        let b = Tensor::from_bytes(&device, &packed, DType::U8, &[packed.len()]).expect("room");
        for (compute, dtype) in [(Compute::F32, DType::F32), (Compute::Bf16, DType::BF16), (Compute::Int8, DType::F16)]
        {
            let [a, sorted] = [&a, &sorted].map(|tensor| cast(tensor, dtype));
            let plain = GemmStatic::new(N, K, dtype, Rhs::Packed(format), DType::F32, compute);
            let gathered = plain.clone().gathering();
            let rows = table.candidates(&gathered, device.hardware()).0;
            assert_eq!(
                rows.iter().map(|row| row.name).collect::<Vec<_>>(),
                table.candidates(&plain, device.hardware()).0.iter().map(|row| row.name).collect::<Vec<_>>(),
                "{gathered}"
            );
            for row in rows {
                let expected = run(row, 1, &plain, &sorted, &b, None).expect("it runs");
                for threads in [1, 3] {
                    let found = run(row, threads, &gathered, &a, &b, Some(&order)).expect("it runs");
                    assert!(found == expected, "{} of {gathered} on {threads}", row.name);
                }
                for (i, rows) in [(0, 1), (7, 1), (3, 2), (0, 5), (9, 12), (28, 13)] {
                    let some = Layout::strided(&[1, rows, K], &[m * K, K, 1], i * K).expect("fits");
                    let some = a.with_layout(some).expect("fits");
                    let found = run(row, 2, &gathered, &some, &b, Some(&order)).expect("it runs");
                    assert!(found == expected[i * N..(i + rows) * N], "{} of {gathered}: {rows} from {i}", row.name);
                }
                alone_differs |= run(row, 1, &plain, &a, &b, None).expect("it runs") != expected;
                ran.insert(row.name);
            }
        }
    }
    assert!(alone_differs, "the order makes no difference");
    for name in ["gemm.cpu.portable", "gemm.cpu.portable.blocks", "gemm.cpu.portable.int8"] {
        assert!(ran.contains(name), "{name} is not among {ran:?}");
    }
}

fn cast(tensor: &Tensor, dtype: DType) -> Tensor {
    let values: Vec<f64> = tensor.to_vec::<f32>().expect("values").into_iter().map(f64::from).collect();
    Tensor::from_bytes(&Cpu::get(), &encode(dtype, &values), dtype, tensor.shape()).expect("room")
}

#[test]
fn an_order_that_names_no_column_or_does_not_fit_is_refused() {
    let device = Cpu::get();
    let format = formats().find(|format| format.dtype().is_none() && !format.is_row_major()).expect("blocks");
    let b = vec![0u8; format.packed_bytes(2, 5, false)];
    let b = Tensor::from_slice(&device, &b, &[b.len()]).expect("room");
    let zeros = |shape: &[usize]| Tensor::zeros(&device, DType::F32, shape).expect("room");
    let a = zeros(&[1, 1, 5]);
    let order = |columns: &[u32]| Tensor::from_slice(&device, columns, &[columns.len()]).expect("room");
    let plain = GemmStatic::new(2, 5, DType::F32, Rhs::Packed(format), DType::F32, Compute::F32);
    let gathered = plain.clone().gathering();
    let strided = GemmStatic { b: Rhs::Strided(DType::F32), ..gathered.clone() };
    let every_second = order(&[4, 9, 3, 9, 2, 9, 1, 9, 0, 9]);
    let every_second = every_second.with_layout(Layout::strided(&[5], &[2], 0).expect("fits")).expect("fits");
    for row in gemm::rows().iter().filter(|row| row.device == DeviceKind::CPU) {
        if (row.admits)(&gathered, device.hardware()).is_err() {
            continue;
        }
        let with = |fixed: &GemmStatic, b: &Tensor, order: Option<&Tensor>| {
            run(row, 1, fixed, &a, b, order).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(with(&gathered, &b, Some(&order(&[4, 3, 2, 1, 0]))), "");
        let wrong = [
            (with(&gathered, &b, Some(&order(&[4, 3, 5, 1, 0]))), "names column 5 of 5"),
            (with(&gathered, &b, Some(&order(&[0, 1, 2, 3, u32::MAX]))), "names column 4294967295 of 5"),
            (with(&gathered, &b, Some(&order(&[0, 1, 2, 3]))), "expected u32 of shape [5]"),
            (with(&gathered, &b, Some(&zeros(&[5]))), "expected u32 of shape [5]"),
            (with(&gathered, &b, Some(&every_second)), "not contiguous"),
            (with(&gathered, &b, None), "the order is missing from"),
            (with(&plain, &b, Some(&order(&[4, 3, 2, 1, 0]))), "the order is given but not part of"),
            (with(&strided, &zeros(&[1, 5, 2]), Some(&order(&[4, 3, 2, 1, 0]))), "packed weights alone"),
        ];
        for (found, words) in wrong {
            assert!(found.contains(words), "{}: {found:?} has no {words:?}", row.name);
        }
    }
}
