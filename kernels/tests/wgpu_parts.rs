//! Operands larger than what a wgpu device binds at once: every row gives the bits that it gives where they are not.
//! And contents of attention and of grouped products that are no indices.

#[path = "../../tests/common/harness.rs"]
mod harness;

use std::sync::Arc;

use sinew_kernels::activation::{Activate, Activation};
use sinew_kernels::attention::{Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew_kernels::cast::Cast;
use sinew_kernels::combine::Combine;
use sinew_kernels::elementwise::{Binary, Unary, Where};
use sinew_kernels::embedding::Embedding;
use sinew_kernels::gather::Gather;
use sinew_kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::grouped_gemm::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use sinew_kernels::harness::case::{Case, Depth, HostOperands, decode};
use sinew_kernels::kv_append::{KvAppend, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::norm::Norm;
use sinew_kernels::packed::BF16_ROWS;
use sinew_kernels::reduce::Reduce;
use sinew_kernels::rotary::Rotary;
use sinew_kernels::route::Route;
use sinew_kernels::sample::Sample;
use sinew_kernels::softmax::Softmax;
use sinew_kernels::topk::TopK;
use sinew_kernels::{Compute, Launch, Operands, Operator, Reference, Registry, Row};
use sinew_memory::webgpu::{WgpuDevice, WgpuOptions};
use sinew_memory::{Buffer, Device, DeviceKind, Stream};
use sinew_tensor::{DType, Layout, Tensor};

fn stream(options: &WgpuOptions) -> Arc<dyn Stream> {
    WgpuDevice::open(0, options).unwrap().stream().unwrap()
}

fn tensor(stream: &Arc<dyn Stream>, bytes: &[u8], dtype: DType, shape: &[usize]) -> Tensor {
    let mut buffer = Buffer::uninitialised(stream.device(), bytes.len()).unwrap();
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
    let mut workspace = (needed > 0).then(|| Buffer::uninitialised(stream.device(), needed).unwrap());
    let inputs: Vec<_> = inputs.iter().map(|tensor| tensor.map(Tensor::view)).collect();
    let launch = Launch::new(stream, workspace.as_mut()).unwrap();
    let outputs = [output.view_mut().unwrap()];
    row.launch(&launch, fixed, call, Operands { inputs: &inputs, outputs: &outputs }).map_err(|e| e.to_string())?;
    stream.synchronize().map_err(|e| e.to_string())?;
    let mut bytes = vec![0; output.buffer().len()];
    stream.download(output.buffer(), 0, &mut bytes).unwrap();
    Ok(bytes)
}

/// Every output of a case, all bytes of its buffer.
fn outputs<O: Operator>(
    stream: &Arc<dyn Stream>,
    row: &Row<O>,
    case: &Case<O>,
    host: &HostOperands,
) -> Result<Vec<Vec<u8>>, String> {
    let place = |of: &Tensor| {
        let bytes = of.buffer().as_slice::<u8>().unwrap();
        let mut buffer = Buffer::uninitialised(stream.device(), bytes.len()).unwrap();
        stream.upload(bytes, &mut buffer, 0).unwrap();
        Tensor::new(buffer, of.dtype(), *of.layout()).unwrap()
    };
    let inputs: Vec<_> = host.inputs.iter().map(|input| input.as_ref().map(|input| place(&input.tensor))).collect();
    let mut outputs: Vec<_> = host.outputs.iter().map(|output| place(&output.tensor)).collect();
    let needed = (row.workspace)(&case.fixed, &case.call, stream.device().hardware());
    let mut workspace = (needed > 0).then(|| Buffer::uninitialised(stream.device(), needed).unwrap());
    let launch = Launch::new(stream, workspace.as_mut()).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|input| input.as_ref().map(Tensor::view)).collect();
    let views: Vec<_> = outputs.iter_mut().map(|output| output.view_mut().unwrap()).collect();
    let operands = Operands { inputs: &inputs, outputs: &views };
    row.launch(&launch, &case.fixed, &case.call, operands).map_err(|error| error.to_string())?;
    stream.synchronize().map_err(|error| error.to_string())?;
    drop(views);
    let bytes = |output: &Tensor| {
        let mut bytes = vec![0; output.buffer().len()];
        stream.download(output.buffer(), 0, &mut bytes).unwrap();
        bytes
    };
    Ok(outputs.iter().map(bytes).collect())
}

/// Bytes that a view reaches over.
fn reach(tensor: &Tensor) -> usize {
    (tensor.layout().end() - tensor.layout().offset()) * tensor.dtype().size()
}

/// Cases of an operator that each row is given, from all kinds of them: every row runs all in one binding elsewhere.
const CASES: usize = 60;

fn every_row_gives_the_same_bits<O: Reference>([whole, parts]: [&Arc<dyn Stream>; 2], failures: &mut Vec<String>) {
    let limit = parts.device().hardware().accelerator.as_ref().unwrap().max_binding_bytes;
    for (number, row) in rows::<O>().into_iter().enumerate() {
        let (mut large, mut refused) = (0, 0);
        let cases = O::cases(Depth::Quick);
        let step = cases.len().div_ceil(CASES);
        for case in cases.into_iter().skip(number % step).step_by(step) {
            if (row.admits)(&case.fixed, whole.device().hardware()).is_err() {
                continue;
            }
            let host = O::operands(&case).unwrap();
            if !host.inputs.iter().flatten().chain(&host.outputs).any(|operand| reach(&operand.tensor) > limit) {
                continue;
            }
            let want = outputs(whole, &row, &case, &host).unwrap();
            match outputs(parts, &row, &case, &host) {
                Ok(found) => {
                    let values = |bytes: &[Vec<u8>]| -> Vec<Vec<f64>> {
                        let dtypes = host.outputs.iter().map(|output| output.tensor.dtype());
                        dtypes.zip(bytes).map(|(dtype, bytes)| decode(dtype, bytes)).collect()
                    };
                    let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    let are_same = |(a, b): (&Vec<f64>, &Vec<f64>)| a.len() == b.len() && a.iter().zip(b).all(same);
                    large += 1;
                    if found != want && !values(&found).iter().zip(&values(&want)).all(are_same) {
                        failures.push(format!("{}: {case}: other bits", row.name));
                    }
                }
                Err(error) if error.contains("bytes of") && error.contains("needed at once") => {
                    harness::show(error);
                    refused += 1;
                }
                Err(error) => failures.push(format!("{}: {case}: {error}", row.name)),
            }
        }
        harness::show(format_args!(
            "{:<28} {large:>5} cases larger than a binding, {refused:>5} larger than all bindings",
            row.name
        ));
        if large == 0 || large < 2 * refused {
            failures.push(format!("{}: {large} cases larger than a binding, {refused} refused", row.name));
        }
    }
}

macro_rules! each {
    ($max_binding_bytes:expr, $max_storage_buffers:expr, $($operator:ty)*) => {
        let (max_binding_bytes, max_storage_buffers) = ($max_binding_bytes, $max_storage_buffers);
        let whole = stream(&WgpuOptions::default());
        let parts = stream(&WgpuOptions { max_binding_bytes, max_storage_buffers, ..WgpuOptions::default() });
        let mut failures = Vec::new();
        $(every_row_gives_the_same_bits::<$operator>([&whole, &parts], &mut failures);)*
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    };
}

fn rows_give_the_same_bits_where_operands_are_larger_than_a_binding() {
    each!(16 << 10, 12, Cast Unary Binary Where Gather Reduce TopK Softmax Norm Activate Rotary Embedding KvAppend Combine Route);
}

/// Rows and caches of their cases are larger than a few of the smallest bindings.
fn products_give_the_same_bits_where_operands_are_larger_than_a_binding() {
    each!(64 << 10, 24, Sample Gemm GroupedGemm Attention);
}

fn a_weight_and_outputs_larger_than_a_binding_give_the_bits_of_those_that_are_not() {
    let (n, k) = (330, 260);
    let smaller = WgpuOptions { max_binding_bytes: 40 << 10, ..WgpuOptions::default() };
    let (whole, parts) = (stream(&WgpuOptions::default()), stream(&smaller));
    let weight: Vec<u8> =
        (0..n * k).flat_map(|i| half::bf16::from_f32(((i * 37) % 101) as f32 - 50.0).to_le_bytes()).collect();
    let bias: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    for gated in [false, true] {
        let activation = gated.then_some(Activation::Silu);
        let epilogue = Epilogue { bias: Some(DType::F32), activation, gated, ..Epilogue::default() };
        let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Packed(&BF16_ROWS), DType::F32, Compute::F32).with(epilogue);
        for (row, m) in rows::<Gemm>().iter().flat_map(|row| [(row, 1), (row, 11), (row, 150)]) {
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

fn experts(gated: Option<Activation>, bias: Option<DType>, [groups, n, k]: [usize; 3]) -> GroupedGemmStatic {
    let (a, format, out) = (DType::F32, &BF16_ROWS, DType::F32);
    GroupedGemmStatic { groups, n, k, a, format, gathered: false, bias, out, compute: Compute::F32, gated }
}

fn offsets(stream: &Arc<dyn Stream>, offsets: &[i32]) -> Tensor {
    let bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    tensor(stream, &bytes, DType::I32, &[offsets.len()])
}

fn weights_of_experts_larger_than_a_binding_give_the_bits_of_those_that_are_not() {
    let smaller = WgpuOptions { max_binding_bytes: 40 << 10, ..WgpuOptions::default() };
    let (whole, parts) = (stream(&WgpuOptions::default()), stream(&smaller));
    // Several experts of those fit beside one another; then not one alone.
    // Of the last a bias is larger than a binding as well.
    let bf16 = Some(DType::BF16);
    for (shape, gated, bias) in [
        ([9, 64, 100], None, None),
        ([9, 64, 100], Some(Activation::Silu), bf16),
        ([3, 170, 260], None, bf16),
        ([40, 600, 8], Some(Activation::SwigluOai), bf16),
    ] {
        let (fixed, [groups, n, k]) = (experts(gated, bias, shape), shape);
        let columns = fixed.product().columns();
        let weights = numbers(groups * n * k, 7);
        assert!(weights.len() as u64 > smaller.max_binding_bytes);
        // An expert without rows, one of many, and where rows and results are larger than a binding too.
        for (row, m) in rows::<GroupedGemm>().iter().flat_map(|row| [(row, 2), (row, 23), (row, 180)]) {
            let first = m - m / 3;
            let mut begins = vec![0, first, first];
            begins.resize(groups, first.max(m - 1));
            begins.push(m);
            let begins: Vec<i32> = begins.into_iter().map(|at| at as i32).collect();
            let a: Vec<u8> = (0..m * k).flat_map(|i| (((i * 13) % 17) as f32 * 0.01).to_le_bytes()).collect();
            let given = [&whole, &parts].map(|stream| {
                let a = tensor(stream, &a, DType::F32, &[m, k]);
                let b = tensor(stream, &weights, DType::U8, &[weights.len()]);
                let begins = offsets(stream, &begins);
                let mut d = tensor(stream, &vec![0xff; m * columns * 4], DType::F32, &[m, columns]);
                let bias = bias.map(|bias| tensor(stream, &numbers(groups * n, 3), bias, &[groups, n]));
                let inputs = [Some(&a), Some(&b), Some(&begins), None, bias.as_ref()];
                run::<GroupedGemm>(stream, row, &fixed, &GroupedGemmDynamic { rows: m }, &inputs, &mut d).unwrap()
            });
            assert!(given[0] == given[1], "{} with {m} rows of {fixed}", row.name);
            assert!(given[0].chunks(4).all(|x| f32::from_le_bytes(x.try_into().unwrap()).is_finite()), "{}", row.name);
        }
    }
}

fn offsets_that_do_not_share_out_the_rows_are_reported_by_grouped_products() {
    let (groups, m, k) = (3, 40, 8);
    let fixed = experts(None, None, [groups, 4, k]);
    // Where bindings are small, each of several dispatches sees a few of the rows.
    let smaller = WgpuOptions { max_binding_bytes: 512, ..WgpuOptions::default() };
    for stream in [stream(&WgpuOptions::default()), stream(&smaller)] {
        let a = tensor(&stream, &1f32.to_le_bytes().repeat(m * k), DType::F32, &[m, k]);
        let weights = numbers(groups * 4 * k, 0);
        let b = tensor(&stream, &weights, DType::U8, &[weights.len()]);
        for row in rows::<GroupedGemm>() {
            let answer = |begins: [i32; 4]| {
                let begins = offsets(&stream, &begins);
                let mut d = tensor(&stream, &vec![0xff; m * 4 * 4], DType::F32, &[m, 4]);
                let inputs = [Some(&a), Some(&b), Some(&begins)];
                run::<GroupedGemm>(&stream, &row, &fixed, &GroupedGemmDynamic { rows: m }, &inputs, &mut d)
            };
            let good = answer([0, 1, 2, 40]).unwrap();
            for bad in [[1, 2, 3, 40], [0, 30, 20, 40], [0, 1, 2, 39], [0, 1, 2, 41], [0, -1, 2, 40], [0, 41, 41, 40]] {
                let error = answer(bad).unwrap_err();
                assert!(error.contains(row.name) && error.contains("out of order"), "{bad:?}: {error}");
                // What was wrong is not so for good.
                assert!(answer([0, 1, 2, 40]).unwrap() == good, "{}", row.name);
            }
        }
    }
}

fn attention(causal: bool, kv_source: KvSource) -> AttentionStatic {
    AttentionStatic { causal, kv_source, ..AttentionStatic::new(2, 1, 4, [DType::F32; 3], Compute::F32) }
}

/// bf16 numbers that differ from one another.
fn numbers(count: usize, seed: usize) -> Vec<u8> {
    let number = |i: usize| half::bf16::from_f32(((i * 37 + seed) % 211) as f32 * 0.02 - 2.0);
    (0..count).flat_map(|i| number(i).to_le_bytes()).collect()
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn a_cache_larger_than_a_binding_gives_the_bits_of_one_that_is_not() {
    let smaller = WgpuOptions { max_binding_bytes: 32 << 10, ..WgpuOptions::default() };
    let (whole, parts) = (stream(&WgpuOptions::default()), stream(&smaller));
    let (kv_heads, head_dim, block_size, blocks) = (2, 32, 16, 96);
    // Blocks of a sequence lie all over the cache.
    let table = words((0..2 * 48).map(|i| (i * 41 + 7) % blocks as u32));
    let (starts, lengths) = (words([0, 37, 38]), words([700, 620]));
    let shared = AttentionStatic { num_heads: 4, num_kv_heads: kv_heads, head_dim, ..attention(true, KvSource::Dense) };
    let shared = AttentionStatic { q: DType::BF16, kv: DType::BF16, out: DType::BF16, ..shared };
    let call = AttentionDynamic { sequences: 2, tokens: 38, max_query: 37, max_kv: 700 };
    for (paged, causal, window) in
        [(true, true, None), (true, true, Some(300)), (true, false, None), (false, true, None)]
    {
        let kv_source = if paged { KvSource::Paged { block_size } } else { KvSource::Dense };
        let fixed = AttentionStatic { kv_source, causal, window, ..shared.clone() };
        let shape = if paged { vec![blocks, kv_heads, block_size, head_dim] } else { vec![1320, kv_heads, head_dim] };
        let count = shape.iter().product();
        let query = numbers(38 * 4 * head_dim, 3);
        for row in rows::<Attention>() {
            let given = |stream| {
                let q = tensor(stream, &query, DType::BF16, &[38, 4, head_dim]);
                let [k, v] = [5, 11].map(|seed| tensor(stream, &numbers(count, seed), DType::BF16, &shape));
                let table = paged.then(|| tensor(stream, &table, DType::U32, &[2, 48]));
                let starts = tensor(stream, &starts, DType::I32, &[3]);
                let lengths = tensor(stream, &lengths, DType::I32, &[2]);
                let mut o = tensor(stream, &vec![0xff; query.len()], DType::BF16, &[38, 4, head_dim]);
                let inputs = [Some(&q), Some(&k), Some(&v), Some(&starts), Some(&lengths), table.as_ref()];
                run::<Attention>(stream, &row, &fixed, &call, &inputs, &mut o)
            };
            let want = given(&whole).unwrap();
            assert!(decode(DType::BF16, &want).iter().all(|x| x.is_finite()), "{fixed}");
            assert!(given(&parts).unwrap() == want, "{} of {fixed}", row.name);
            // Each of K and V is six bindings, and there are eight for all.
            let few = WgpuOptions { max_storage_buffers: 8, ..smaller.clone() };
            let error = given(&stream(&few)).unwrap_err();
            let bytes = format!("attention.wgpu.tiles: {} bytes of v are needed at once", 2 * count);
            assert!(error.starts_with(&bytes) && error.contains("32768 at a time, and 8 times"), "{error}");
        }
    }
}

fn tokens_are_appended_to_every_part_of_a_cache_larger_than_a_binding() {
    let smaller = WgpuOptions { max_binding_bytes: 16 << 10, max_storage_buffers: 8, ..WgpuOptions::default() };
    let (whole, parts) = (stream(&WgpuOptions::default()), stream(&smaller));
    let (num_kv_heads, head_dim, block_size, blocks, tokens) = (2, 24, 8, 50, 150);
    let fixed =
        KvAppendStatic { num_kv_heads, head_dim, block_size, source: DType::F32, kv: DType::BF16, rotary: None };
    let row = rows::<KvAppend>()[0];
    let new: Vec<u8> = (0..tokens * num_kv_heads * head_dim).flat_map(|i| (i as f32).to_le_bytes()).collect();
    // All over the cache, and two of them twice: the later token stays.
    let slots = words((0..tokens as u32).map(|i| (i % 148 * 67 + 3) % 400));
    let empty = vec![0xff; blocks * num_kv_heads * block_size * head_dim * 2];
    let given = [&whole, &parts].map(|stream| {
        let new = tensor(stream, &new, DType::F32, &[tokens, num_kv_heads, head_dim]);
        let slots = tensor(stream, &slots, DType::U32, &[tokens]);
        let mut caches =
            [0, 1].map(|_| tensor(stream, &empty, DType::BF16, &[blocks, num_kv_heads, block_size, head_dim]));
        let outputs: Vec<_> = caches.iter_mut().map(|cache| cache.view_mut().unwrap()).collect();
        let inputs = [Some(new.view()), Some(new.view()), Some(slots.view())];
        let launch = Launch::new(stream, None).unwrap();
        let operands = Operands { inputs: &inputs, outputs: &outputs };
        row.launch(&launch, &fixed, &KvAppendDynamic { tokens }, operands).unwrap();
        drop(outputs);
        caches.map(|cache| {
            let mut bytes = vec![0; empty.len()];
            stream.download(cache.buffer(), 0, &mut bytes).unwrap();
            bytes
        })
    });
    assert!(given[0] == given[1] && given[0][0] == given[0][1]);
    let written = given[0][0].chunks(2).filter(|x| *x != [0xff; 2]).count();
    assert_eq!(written, 148 * num_kv_heads * head_dim);
}

fn contents_that_are_no_indices_are_reported_by_attention() {
    let stream = stream(&WgpuOptions::default());
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

fn main() -> std::process::ExitCode {
    harness::run(
        Vec::new(),
        harness::trials![
            products_give_the_same_bits_where_operands_are_larger_than_a_binding,
            rows_give_the_same_bits_where_operands_are_larger_than_a_binding,
            a_weight_and_outputs_larger_than_a_binding_give_the_bits_of_those_that_are_not,
            a_cache_larger_than_a_binding_gives_the_bits_of_one_that_is_not,
            tokens_are_appended_to_every_part_of_a_cache_larger_than_a_binding,
            contents_that_are_no_indices_are_reported_by_attention,
            weights_of_experts_larger_than_a_binding_give_the_bits_of_those_that_are_not,
            offsets_that_do_not_share_out_the_rows_are_reported_by_grouped_products,
        ],
    )
}
