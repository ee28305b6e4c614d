//! Products and attention on a wgpu device, where the accuracy harness does not reach: weights larger than a binding,
//! and contents that are no indices.

#![cfg(feature = "wgpu")]

use std::sync::Arc;

use sinew_kernels::activation::Activation;
use sinew_kernels::attention::{Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew_kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::packed::BF16_ROWS;
use sinew_kernels::{Compute, F32Bits, Launch, Operands, Operator, Registry, Row};
use sinew_memory::webgpu::{WgpuDevice, WgpuOptions};
use sinew_memory::{Buffer, Device, DeviceKind, Stream};
use sinew_tensor::{DType, Layout, Tensor};

fn stream(options: &WgpuOptions) -> Option<Arc<dyn Stream>> {
    match WgpuDevice::open(0, options) {
        Ok(device) => Some(device.stream().unwrap()),
        Err(error) if std::env::var("SINEW_REQUIRE_WGPU").as_deref() == Ok("1") => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn tensor(stream: &Arc<dyn Stream>, bytes: &[u8], dtype: DType, shape: &[usize]) -> Tensor {
    let mut buffer = Buffer::allocate(stream.device(), bytes.len()).unwrap();
    stream.upload(bytes, &mut buffer, 0).unwrap();
    Tensor::new(buffer, dtype, Layout::contiguous(shape).unwrap()).unwrap()
}

fn rows<O: Operator>() -> Vec<Row<O>> {
    let registry = Registry::standard();
    let table = registry.table::<O>().unwrap();
    table.rows().iter().filter(|row| row.device == DeviceKind::WGPU).copied().collect()
}

/// Runs a row, waits, and gives the output's bytes.
fn run<O: Operator>(
    stream: &Arc<dyn Stream>,
    row: &Row<O>,
    fixed: &O::Static,
    call: &O::Dynamic,
    inputs: &[Option<&Tensor>],
    output: &mut Tensor,
) -> Result<Vec<u8>, String> {
    let needed = (row.workspace)(fixed, call, stream.device().hardware());
    let mut workspace = (needed > 0).then(|| Buffer::allocate(stream.device(), needed).unwrap());
    let inputs: Vec<_> = inputs.iter().map(|tensor| tensor.map(Tensor::view)).collect();
    let launch = Launch::new(stream, workspace.as_mut()).unwrap();
    let outputs = [output.view_mut().unwrap()];
    row.launch(&launch, fixed, call, Operands { inputs: &inputs, outputs: &outputs }).map_err(|e| e.to_string())?;
    stream.synchronize().map_err(|e| e.to_string())?;
    let mut bytes = vec![0; output.buffer().len()];
    stream.download(output.buffer(), 0, &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn a_weight_larger_than_a_binding_gives_the_bits_of_one_that_is_not() {
    let (n, k) = (330, 260);
    let smaller = WgpuOptions { max_binding_bytes: 40 << 10, ..WgpuOptions::default() };
    let (Some(whole), Some(parts)) = (stream(&WgpuOptions::default()), stream(&smaller)) else { return };
    let weight: Vec<u8> =
        (0..n * k).flat_map(|i| half::bf16::from_f32(((i * 37) % 101) as f32 - 50.0).to_le_bytes()).collect();
    let bias: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    for gated in [false, true] {
        let activation = gated.then_some(Activation::Silu);
        let epilogue = Epilogue { bias: Some(DType::F32), activation, gated, ..Epilogue::default() };
        let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Packed(&BF16_ROWS), DType::F32, Compute::F32).with(epilogue);
        for (row, m) in rows::<Gemm>().iter().flat_map(|row| [(row, 1), (row, 11)]) {
            let a: Vec<u8> = (0..m * k).flat_map(|i| (((i * 13) % 17) as f32 * 0.01).to_le_bytes()).collect();
            let given = [&whole, &parts].map(|stream| {
                let a = tensor(stream, &a, DType::F32, &[1, m, k]);
                let b = tensor(stream, &weight, DType::U8, &[weight.len()]);
                let bias = tensor(stream, &bias, DType::F32, &[n]);
                let columns = fixed.columns();
                let mut d = tensor(stream, &vec![0xff; m * columns * 4], DType::F32, &[1, m, columns]);
                let call = GemmDynamic { batch: 1, m };
                run::<Gemm>(stream, row, &fixed, &call, &[Some(&a), Some(&b), Some(&bias)], &mut d).unwrap()
            });
            assert!(given[0] == given[1], "{} with {m} rows, gated {gated}", row.name);
            assert!(given[0].chunks(4).all(|x| f32::from_le_bytes(x.try_into().unwrap()).is_finite()), "{}", row.name);
        }
    }
}

fn attention(causal: bool, kv_source: KvSource) -> AttentionStatic {
    AttentionStatic {
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 4,
        q: DType::F32,
        kv: DType::F32,
        out: DType::F32,
        compute: Compute::F32,
        scale: F32Bits::new(0.5),
        causal,
        window: None,
        softcap: None,
        mask: None,
        kv_source,
    }
}

#[test]
fn contents_that_are_no_indices_are_reported_by_attention() {
    let Some(stream) = stream(&WgpuOptions::default()) else { return };
    let i32s = |values: &[i32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensor(&stream, &bytes, DType::I32, &[values.len()])
    };
    let ones = |shape: &[usize]| {
        let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|_| 1f32.to_le_bytes()).collect();
        tensor(&stream, &bytes, DType::F32, shape)
    };
    let call = AttentionDynamic { sequences: 2, tokens: 3, max_query: 2, max_kv: 600 };
    let q = ones(&[3, 2, 4]);
    let good = ([0, 1, 3], [1, 4], [2u32, 9, 9, 0, 1, 9]);
    let bad = [
        ([1, 1, 3], good.1, good.2, "1 in"),
        ([0, -1, 3], good.1, good.2, "-1 in"),
        ([0, 2, 1], good.1, good.2, "1 in"),
        ([0, 1, 2], good.1, good.2, "2 in"),
        ([0, 0, 3], good.1, good.2, "3 in"),
        (good.0, [1, -1], good.2, "-1 in"),
        (good.0, [1, 601], good.2, "601 in"),
        (good.0, [1, 1], good.2, "1 in"),
        (good.0, good.1, [3, 9, 9, 0, 1, 9], "3 in"),
        (good.0, good.1, [2, 9, 9, 0, u32::MAX, 9], "-1 in"),
        (good.0, [1, 7], good.2, "3 in"),
    ];
    for row in rows::<Attention>() {
        for paged in [true, false] {
            let source = if paged { KvSource::Paged { block_size: 2 } } else { KvSource::Dense };
            let fixed = attention(true, source);
            let cache = if paged { ones(&[3, 1, 2, 4]) } else { ones(&[5, 1, 4]) };
            let answer = |starts: [i32; 3], lengths: [i32; 2], blocks: [u32; 6]| {
                let bytes: Vec<u8> = blocks.iter().flat_map(|x| x.to_le_bytes()).collect();
                let table = paged.then(|| tensor(&stream, &bytes, DType::U32, &[2, 3]));
                let (starts, lengths) = (i32s(&starts), i32s(&lengths));
                let mut o = ones(&[3, 2, 4]);
                let inputs = [Some(&q), Some(&cache), Some(&cache), Some(&starts), Some(&lengths), table.as_ref()];
                run::<Attention>(&stream, &row, &fixed, &call, &inputs, &mut o)
            };
            let bytes = answer(good.0, good.1, good.2).unwrap();
            assert!(bytes.chunks(4).all(|x| x == 1f32.to_le_bytes()), "{} of ones is one", row.name);
            for (starts, lengths, table, found) in bad {
                if table != good.2 && !paged {
                    continue;
                }
                let error = answer(starts, lengths, table).unwrap_err();
                // Eight keys lack a block, or are more than the five that there are, however many.
                let found = if lengths == [1, 7] && !paged { "6 in" } else { found };
                assert!(error.contains("attention.wgpu") && error.contains(found), "{} {found}: {error}", row.name);
                // What was wrong is not so for good.
                answer(good.0, good.1, good.2).unwrap();
            }
        }
    }
}
