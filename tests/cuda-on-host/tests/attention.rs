//! Attention on CUDA: the bits that must not change, and contents that must not lead a kernel astray.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use sinew_kernels::attention::{self, Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew_kernels::harness::case::{Generator, encode};
use sinew_kernels::{Compute, F32Bits, Launch, Operands, Result, Row};
use sinew_memory::{Buffer, Device, DeviceKind, Stream};
use sinew_tensor::{DType, Layout, Tensor};

fn device() -> Option<Arc<dyn Device>> {
    sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn rows() -> Vec<Row<Attention>> {
    attention::rows().into_iter().filter(|row| row.device == DeviceKind::CUDA).collect()
}

fn tensor(stream: &Arc<dyn Stream>, dtype: DType, shape: &[usize], values: &[f64]) -> Result<Tensor> {
    let bytes = encode(dtype, values);
    let mut buffer = Buffer::uninitialised(stream.device(), bytes.len())?;
    stream.upload(&bytes, &mut buffer, 0)?;
    Ok(Tensor::new(buffer, dtype, Layout::contiguous(shape)?)?)
}

/// Runs a row, waits, and gives the result.
fn run(
    stream: &Arc<dyn Stream>,
    row: &Row<Attention>,
    fixed: &AttentionStatic,
    call: AttentionDynamic,
    inputs: &[Option<&Tensor>],
) -> Result<Vec<f32>> {
    let bytes = (row.workspace)(fixed, &call, stream.device().hardware());
    let mut workspace = (bytes > 0).then(|| Buffer::uninitialised(stream.device(), bytes)).transpose()?;
    let shape = [call.tokens, fixed.num_heads, fixed.head_dim];
    let mut o = tensor(stream, DType::F32, &shape, &vec![f64::NAN; shape.iter().product()])?;
    let inputs: Vec<_> = inputs.iter().map(|tensor| tensor.map(Tensor::view)).collect();
    let outputs = [o.view_mut()?];
    let launch = Launch::new(stream, workspace.as_mut())?;
    row.launch(&launch, fixed, &call, Operands { inputs: &inputs, outputs: &outputs })?;
    stream.synchronize()?;
    let mut bytes = vec![0; o.buffer().len()];
    stream.download(o.buffer(), 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|c| f32::from_ne_bytes([c[0], c[1], c[2], c[3]])).collect())
}

fn problem(kv_source: KvSource) -> AttentionStatic {
    let dtypes = [DType::F32, DType::BF16, DType::F32];
    let scale = F32Bits::new(0.2);
    AttentionStatic { scale, causal: true, kv_source, ..AttentionStatic::new(4, 2, 24, dtypes, Compute::Bf16) }
}

/// Queries of the last tokens of a dense sequence.
fn last_tokens(
    stream: &Arc<dyn Stream>,
    row: &Row<Attention>,
    fixed: &AttentionStatic,
    [q, k, v]: [&[f64]; 3],
    queries: std::ops::Range<usize>,
) -> Result<Vec<f32>> {
    let (queries_width, width) = (fixed.num_heads * fixed.head_dim, fixed.num_kv_heads * fixed.head_dim);
    let (new, keys) = (queries.len(), queries.end);
    let q = &q[queries.start * queries_width..queries.end * queries_width];
    let kv =
        |values: &[f64]| tensor(stream, fixed.kv, &[keys, fixed.num_kv_heads, fixed.head_dim], &values[..keys * width]);
    let q = tensor(stream, fixed.q, &[new, fixed.num_heads, fixed.head_dim], q)?;
    let starts = tensor(stream, DType::I32, &[2], &[0.0, new as f64])?;
    let lens = tensor(stream, DType::I32, &[1], &[keys as f64])?;
    let sinks = tensor(stream, DType::F32, &[4], &[0.5, -1.0, 2.0, f64::NEG_INFINITY])?;
    let call = AttentionDynamic { sequences: 1, tokens: new, max_query: new, max_kv: keys };
    let (k, v) = (kv(k)?, kv(v)?);
    let operands = [&q, &k, &v, &starts, &lens].map(Some).into_iter().chain([None; 5]);
    run(stream, row, fixed, call, &operands.chain([fixed.sinks.then_some(&sinks)]).collect::<Vec<_>>())
}

#[test]
fn chunks_rows_of_one_arithmetic_and_values_of_later_tokens_do_not_change_a_bit() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let stream = device.stream()?;
    const KEYS: usize = 580;
    let without = problem(KvSource::Dense);
    let fixed = AttentionStatic { sinks: true, ..without.clone() };
    let mut pick = Generator::new(5);
    let mut values =
        |width: usize| -> Vec<f64> { (0..KEYS * width).map(|_| DType::BF16.round(pick.normal())).collect() };
    let (width, kv_width) = (4 * 24, 2 * 24);
    let (q, k, v) = (values(width), values(kv_width), values(kv_width));
    let (mut wild_k, mut wild_v) = (k.clone(), v.clone());
    // Key 540 and value 560 are seen by later tokens only.
    wild_k[540 * kv_width..541 * kv_width].fill(f64::NAN);
    wild_v[560 * kv_width..561 * kv_width].fill(f64::INFINITY);
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for arithmetic in ["attention.cuda.tiles-mma", "attention.cuda.tiles-fma"] {
        let mut first: Option<Vec<u32>> = None;
        for row in rows().into_iter().filter(|row| row.arithmetic.name == arithmetic) {
            for ends in [&[KEYS][..], &[503, 504, 539, KEYS]] {
                let mut all = Vec::new();
                let mut from = 500;
                for &end in ends {
                    all.extend(last_tokens(&stream, &row, &fixed, [&q, &k, &v], from..end)?);
                    from = end;
                }
                let all = bits(&all);
                assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{} up to {ends:?}", row.name);
            }
            let clean = first.clone().unwrap_or_default();
            // Of four heads the last has a sink that is as none.
            let without = bits(&last_tokens(&stream, &row, &without, [&q, &k, &v], 500..KEYS)?);
            let heads = clean.chunks(24).zip(without.chunks(24)).enumerate();
            heads.for_each(|(i, (with, without))| assert_eq!(with == without, i % 4 == 3, "{}", row.name));
            let wild = last_tokens(&stream, &row, &fixed, [&q, &k, &wild_v], 500..KEYS)?;
            assert_eq!(bits(&wild[..60 * width]), clean[..60 * width], "{}", row.name);
            assert!(wild[60 * width..].iter().all(|x| *x == f32::INFINITY), "{}", row.name);
            let wild = last_tokens(&stream, &row, &fixed, [&q, &wild_k, &v], 500..KEYS)?;
            assert_eq!(bits(&wild[..40 * width]), clean[..40 * width], "{}", row.name);
            assert!(wild[40 * width..].iter().all(|x| x.is_nan()), "{}", row.name);
        }
    }
    Ok(())
}

#[test]
fn contents_that_would_reach_outside_are_reported_and_reach_nothing() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let fixed = problem(KvSource::Paged { block_size: 4 });
    const FREE: f64 = u32::MAX as f64;
    let good = ([0.0, 3.0, 5.0], [9.0, 4.0], [0.0, 5.0, 2.0, 1.0, FREE, FREE]);
    let (starts, lens, table) = good;
    // With more keys than a group holds, rows that divide them do.
    for max_kv in [9, 1100] {
        const MAX: f64 = i32::MAX as f64;
        const MIN: f64 = i32::MIN as f64;
        let long = max_kv as f64 + 1.0;
        // With what is told of it: where two sequences are wrong, of either.
        let bad = [
            (([1.0, 3.0, 5.0], lens, table), [1.0; 2]),
            (([0.0, 2.0, 4.0], lens, table), [4.0; 2]),
            (([0.0, 4.0, 5.0], lens, table), [4.0; 2]),
            (([0.0, 6.0, 5.0], lens, table), [6.0, 5.0]),
            (([0.0, -1.0, 5.0], lens, table), [-1.0; 2]),
            (([0.0, 3.0, MAX], lens, table), [MAX; 2]),
            (([0.0, 3.0, MIN], lens, table), [MIN; 2]),
            ((starts, [long, 4.0], table), [long; 2]),
            ((starts, [-1.0, 4.0], table), [-1.0; 2]),
            ((starts, [9.0, MIN], table), [MIN; 2]),
            ((starts, [9.0, 1.0], table), [1.0; 2]),
            ((starts, [9.0, 5.0], table), [FREE; 2]),
            ((starts, lens, [0.0, 6.0, 2.0, 1.0, 0.0, 0.0]), [6.0; 2]),
            ((starts, lens, [0.0, 5.0, FREE, 1.0, 0.0, 0.0]), [FREE; 2]),
        ];
        for (case, ((starts, lens, table), told)) in std::iter::once((good, [0.0; 2])).chain(bad).enumerate() {
            for row in rows() {
                // A stream that has failed is given up.
                let stream = device.clone().stream()?;
                let call = AttentionDynamic { sequences: 2, tokens: 5, max_query: 3, max_kv };
                let q = tensor(&stream, DType::F32, &[5, 4, 24], &[0.5; 5 * 4 * 24])?;
                let cache = tensor(&stream, DType::BF16, &[6, 2, 4, 24], &[1.0; 6 * 2 * 4 * 24])?;
                let starts = tensor(&stream, DType::I32, &[3], &starts)?;
                let lens = tensor(&stream, DType::I32, &[2], &lens)?;
                let table = tensor(&stream, DType::U32, &[2, 3], &table)?;
                let inputs = [&q, &cache, &cache, &starts, &lens, &table].map(Some);
                match run(&stream, &row, &fixed, call, &inputs) {
                    Ok(o) => assert!(case == 0 && o.iter().all(|x| *x == 1.0), "{} passes case {case}", row.name),
                    Err(error) => {
                        let error = error.to_string();
                        let told =
                            told.map(|value| format!("{value} in query_start, kv_len or block_table is out of bounds"));
                        let says = |words: &String| error.ends_with(&format!(" failed on cuda:0: {words}"));
                        assert!(
                            case > 0 && error.starts_with("attention_") && told.iter().any(says),
                            "{} case {case}: {error}",
                            row.name
                        );
                    }
                }
            }
        }
    }
    Ok(())
}
