//! Times of attention, beside the machine's limits.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin attention-rates [-- [--threads N] [--json | ROW [PROBLEM]]]
//! ```
//! With `--json`: median milliseconds of the row that Sinew chooses, the one predicted fastest, and those that the
//! limits allow (of arithmetic, counting only keys that are seen, and of memory), for `benches/peers/attention.py`.
//! `SINEW_SIMD` caps the level.

use std::sync::Arc;
use std::time::Instant;

use sinew_benches::context;
use sinew_kernels::attention::{self, Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew_kernels::case::{Generator, Lay, Values};
use sinew_kernels::rates::Peaks;
use sinew_kernels::{Compute, F32Bits, Launch, Operands, Operator, Result, Row};
use sinew_memory::{Buffer, Cpu, Device, Stream};
use sinew_tensor::{DType, Tensor};

/// Tokens of a block of the cache.
const BLOCK_SIZE: usize = 16;

/// Bytes of caches that decoding takes turns with, so that keys and values come from memory as over the layers of a
/// model.
const ROTATE: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut json, mut threads, mut names) = (false, 2, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--threads" => threads = arguments.next().ok_or("--threads takes a number")?.parse()?,
            _ => names.push(argument),
        }
    }
    let mut names = names.into_iter();
    let (only, problem) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    if json && !only.is_empty() {
        return Err("--json takes no ROW: it times the row that is chosen".into());
    }
    let device = Cpu::with(threads, sinew_memory::level_from_environment()?)?;
    let (ctx, hardware) = (context(&device)?, device.hardware());
    let peaks = Peaks::measure(&device)?;
    if !json {
        let limit = |compute| peaks.flops_per_s(compute).unwrap_or(f64::NAN) / 1e9;
        println!(
            "{}, {threads} threads, {}: {:.0} GFLOP/s in f32, {:.0} in bf16, {:.0} GB/s",
            hardware.name,
            hardware.simd,
            limit(Compute::F32),
            limit(Compute::Bf16),
            peaks.memory_bytes_per_s / 1e9
        );
        println!("{:42} {:11} {:>9} {:>9} {:>9} {:>7}", "problem", "row", "median ms", "best ms", "GFLOP/s", "GB/s");
    }
    // Heads as in Qwen2.5-0.5B and in Llama-3.2-1B; sequences, new tokens of each, keys of each.
    let problems = [
        ("prefill 512", 14, 2, 64, 1, 512, 512),
        ("prefill 2048", 14, 2, 64, 1, 2048, 2048),
        ("prefill 8192", 14, 2, 64, 1, 8192, 8192),
        ("decode over 4096", 14, 2, 64, 1, 1, 4096),
        ("chunk of 64 behind 2048", 14, 2, 64, 1, 64, 2112),
        ("decode over 512", 14, 2, 64, 1, 1, 512),
        ("8 sequences, decode over 512", 14, 2, 64, 8, 1, 512),
        ("prefill 512, 32/8 heads of 128", 32, 8, 128, 1, 512, 512),
        ("bidirectional 256, 12/12 heads of 32", 12, 12, 32, 1, 256, 256),
    ];
    for (name, num_heads, num_kv_heads, head_dim, sequences, new, keys) in
        problems.into_iter().filter(|p| p.0.contains(&problem))
    {
        for compute in [Compute::Bf16, Compute::F32] {
            let dtype = if compute == Compute::Bf16 { DType::BF16 } else { DType::F32 };
            let fixed = AttentionStatic {
                num_heads,
                num_kv_heads,
                head_dim,
                q: dtype,
                kv: dtype,
                out: dtype,
                compute,
                scale: F32Bits::new(1.0 / (head_dim as f32).sqrt()),
                causal: !name.starts_with("bidirectional"),
                window: None,
                softcap: None,
                mask: None,
                kv_source: KvSource::Paged { block_size: BLOCK_SIZE },
            };
            let call = AttentionDynamic { sequences, tokens: sequences * new, max_query: new, max_kv: keys };
            let run = Problem::new(&device, fixed, call)?;
            if json {
                let (seconds, _) = run.time(&ctx.choose::<Attention>(&run.fixed, &run.call)?)?;
                let work = Attention::work(&run.fixed, &run.call);
                let arithmetic = work.flops / peaks.flops_per_s(compute).unwrap_or(f64::NAN);
                let least = arithmetic.max(work.bytes / peaks.memory_bytes_per_s);
                for (limit, seconds) in [("", seconds), ("limit ", least)] {
                    println!("{{\"what\":\"{limit}{name} {dtype}\",\"value\":{},\"unit\":\"ms\"}}", seconds * 1e3);
                }
                continue;
            }
            let admitted =
                |row: &&Row<Attention>| row.name.contains(&only) && (row.admits)(&run.fixed, hardware).is_ok();
            for row in attention::rows().iter().filter(admitted) {
                let (seconds, best) = run.time(row)?;
                let work = Attention::work(&run.fixed, &run.call);
                println!(
                    "{:42} {:11} {:9.3} {:9.3} {:9.1} {:7.1}",
                    format!("{name} {dtype}"),
                    row.name.trim_start_matches("attention.cpu."),
                    seconds * 1e3,
                    best * 1e3,
                    work.flops / best / 1e9,
                    work.bytes / best / 1e9
                );
            }
        }
    }
    Ok(())
}

struct Problem {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    fixed: AttentionStatic,
    call: AttentionDynamic,
    inputs: Vec<Tensor>,
    /// Keys and values.
    caches: Vec<[Tensor; 2]>,
}

impl Problem {
    /// Equal sequences over caches with blocks in no simple order.
    fn new(device: &Arc<dyn Device>, fixed: AttentionStatic, call: AttentionDynamic) -> Result<Self> {
        let mut pick = Generator::new(1);
        let per_sequence = call.max_kv.div_ceil(BLOCK_SIZE);
        let blocks = per_sequence * call.sequences;
        let mut ids: Vec<u32> = (0..blocks as u32).collect();
        (1..blocks).rev().for_each(|i| ids.swap(i, pick.below(i + 1)));
        let mut random = |dtype, shape: &[usize]| -> Result<Tensor> {
            Ok(pick.operand(dtype, shape, Lay::Contiguous, Values::Normal)?.tensor)
        };
        let cache = [blocks, fixed.num_kv_heads, BLOCK_SIZE, fixed.head_dim];
        let starts: Vec<i32> = (0..=call.sequences).map(|s| (s * call.max_query) as i32).collect();
        let lens = vec![call.max_kv as i32; call.sequences];
        let bytes = 2 * cache.iter().product::<usize>() * fixed.kv.size();
        let copies = if call.max_query == 1 { ROTATE.div_ceil(bytes) } else { 1 };
        let caches = (0..copies).map(|_| Ok([random(fixed.kv, &cache)?, random(fixed.kv, &cache)?]));
        let caches = caches.collect::<Result<Vec<_>>>()?;
        let inputs = vec![
            random(fixed.q, &[call.tokens, fixed.num_heads, fixed.head_dim])?,
            Tensor::from_slice(device, &starts, &[call.sequences + 1])?,
            Tensor::from_slice(device, &lens, &[call.sequences])?,
            Tensor::from_slice(device, &ids, &[call.sequences, per_sequence])?,
        ];
        Ok(Self { device: device.clone(), stream: device.clone().stream()?, fixed, call, inputs, caches })
    }

    /// The median and the best of a row's times.
    fn time(&self, row: &Row<Attention>) -> Result<(f64, f64)> {
        let bytes = (row.workspace)(&self.fixed, &self.call, self.device.hardware());
        let mut workspace = Buffer::allocate(&self.device, bytes)?;
        let mut o = Tensor::zeros(&self.device, self.fixed.out, self.inputs[0].shape())?;
        let [q, starts, lens, table] = &self.inputs[..] else { unreachable!("four inputs beside the caches") };
        let outputs = [o.view_mut()?];
        let launch = Launch::new(&self.stream, Some(&mut workspace))?;
        let mut times = Vec::new();
        let begun = Instant::now();
        while times.len() < 5 || (begun.elapsed().as_secs_f64() < 0.3 && times.len() < 1000) {
            let [k, v] = &self.caches[times.len() % self.caches.len()];
            let inputs = [q, k, v, starts, lens, table].map(|t| Some(t.view()));
            let start = Instant::now();
            let operands = Operands { inputs: &inputs, outputs: &outputs };
            row.launch(&launch, &self.fixed, &self.call, operands)?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok((times[times.len() / 2], times[0]))
    }
}
