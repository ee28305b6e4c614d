//! Times of attention, beside the machine's limits.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin attention-rates [-- [--threads N] [--serve | ROW [PROBLEM]]]
//! ```
//! With `--serve` it is Sinew's side of `benches/peers/attention.py`: the row that Sinew chooses, the one predicted
//! fastest, and what the limits allow, of arithmetic, counting only keys that are seen, and of memory. `SINEW_SIMD`
//! caps the level.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sinew_benches::contender::{self, Item};
use sinew_benches::{beside_limits, command, context, flops_limit, least_seconds};
use sinew_kernels::attention::{self, Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew_kernels::harness::case::{Generator, Lay, Values};
use sinew_kernels::rates::{Meter, Peaks};
use sinew_kernels::{Compute, Launch, Operands, Operator, Result, Row};
use sinew_memory::{Buffer, Cpu, Device, DeviceKind, Stream};
use sinew_tensor::{DType, PagedLayout, Tensor};

/// Tokens of a block of the cache.
const BLOCK_SIZE: usize = 16;

/// Bytes of caches that decoding takes turns with, so that keys and values come from memory as over the layers of a
/// model.
const ROTATE: usize = 64 << 20;

/// Name, heads (as in Qwen2.5-0.5B and in Llama-3.2-1B), heads of keys, their elements; sequences, new tokens of each,
/// keys of each.
const PROBLEMS: [(&str, [usize; 3], [usize; 3]); 10] = [
    ("prefill 512", [14, 2, 64], [1, 512, 512]),
    ("prefill 2048", [14, 2, 64], [1, 2048, 2048]),
    ("prefill 8192", [14, 2, 64], [1, 8192, 8192]),
    ("decode over 4096", [14, 2, 64], [1, 1, 4096]),
    ("chunk of 64 behind 2048", [14, 2, 64], [1, 64, 2112]),
    ("decode over 512", [14, 2, 64], [1, 1, 512]),
    ("8 sequences, decode over 512", [14, 2, 64], [8, 1, 512]),
    ("8 sequences, decode over 512, 32/8 heads of 64", [32, 8, 64], [8, 1, 512]),
    ("prefill 512, 32/8 heads of 128", [32, 8, 128], [1, 512, 512]),
    ("bidirectional 256, 12/12 heads of 32", [12, 12, 32], [1, 256, 256]),
];

/// What products read, and what the cache holds.
const DTYPES: [(Compute, DType); 4] = [
    (Compute::Bf16, DType::BF16),
    (Compute::Bf16, DType::I8),
    (Compute::Bf16, DType::F8E4M3),
    (Compute::F32, DType::F32),
];

fn main() -> ExitCode {
    command(include_str!("attention_rates.rs"), rates)
}

fn rates(arguments: &[String]) -> Result<(), contender::Error> {
    let (mut serve, mut threads, mut names) = (false, 2, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--serve" => serve = true,
            "--threads" => threads = arguments.next().ok_or("--threads takes a number")?.parse()?,
            option if option.starts_with("--") => {
                return Err(format!("no option is called {option}; see --help").into());
            }
            name => names.push(name),
        }
    }
    let mut names = names.into_iter();
    let (only, wanted) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    if serve && !only.is_empty() {
        return Err("--serve takes no ROW: it times the row that is chosen".into());
    }
    let device = Cpu::with(threads, sinew_memory::level_from_environment()?)?;
    let named = PROBLEMS.into_iter().filter(|(name, ..)| name.contains(wanted));
    let problems = named
        .flat_map(|(name, heads, sizes)| DTYPES.map(|(compute, kv)| (name, problem(name, heads, sizes, compute, kv))));
    if serve {
        // Of dtypes that others have too.
        let problems = problems.filter(|(_, (fixed, _))| fixed.kv == fixed.q);
        return contend(&device, problems.map(|(name, (fixed, call))| (format!("{name} {}", fixed.q), fixed, call)));
    }
    let (hardware, peaks) = (device.hardware(), Peaks::measure(&device)?);
    let limit = |compute| flops_limit(&peaks, compute) / 1e9;
    println!(
        "{}, {threads} threads, {}: {:.0} GFLOP/s in f32, {:.0} in bf16, {:.0} GB/s",
        hardware.name,
        hardware.simd,
        limit(Compute::F32),
        limit(Compute::Bf16),
        peaks.memory_bytes_per_s / 1e9
    );
    println!("{:50} {:11} {:>9} {:>9} {:>9} {:>7}", "problem", "row", "median ms", "best ms", "GFLOP/s", "GB/s");
    for (name, (fixed, call)) in problems {
        let mut run = Problem::new(&device, fixed, call)?;
        let work = Attention::work(&run.fixed, &call);
        for row in attention::rows().iter().filter(|row| row.device == DeviceKind::CPU && row.name.contains(only)) {
            if (row.admits)(&run.fixed, hardware).is_err() {
                continue;
            }
            let (seconds, best) = run.times(row)?;
            println!(
                "{:50} {:11} {:9.3} {:9.3} {:9.1} {:7.1}",
                format!("{name} {}/{}", run.fixed.q, run.fixed.kv),
                row.name.trim_start_matches("attention.cpu."),
                seconds * 1e3,
                best * 1e3,
                work.flops / best / 1e9,
                work.bytes / best / 1e9
            );
        }
    }
    Ok(())
}

/// The rows that Sinew chooses, in turn with other libraries.
fn contend(
    device: &Arc<dyn Device>,
    problems: impl Iterator<Item = (String, AttentionStatic, AttentionDynamic)>,
) -> Result<(), contender::Error> {
    let (ctx, meter) = (context(device)?, Meter::new(device)?);
    let mut all = Vec::new();
    for (what, fixed, call) in problems {
        all.push((Item::new(what, "ms"), Problem::new(device, fixed, call)?));
    }
    let items: Vec<_> = all.iter().map(|(item, _)| item.clone()).collect();
    contender::serve(&items, &mut |item| {
        let (_, run) = all.iter_mut().find(|(of, _)| of.what == item.what).ok_or("no such item")?;
        let row = ctx.choose::<Attention>(&run.fixed, &run.call)?;
        let (compute, work) = (run.fixed.compute, Attention::work(&run.fixed, &run.call));
        let least = |peaks: &Peaks| least_seconds(peaks, compute, work.flops, work.bytes);
        beside_limits(&meter, || Ok(run.mean(&row)?), least, |seconds| seconds * 1e3)
    })
}

/// A layer's attention, in the dtype that `compute` says, over a cache of another.
fn problem(
    name: &str,
    [num_heads, num_kv_heads, head_dim]: [usize; 3],
    [sequences, new, keys]: [usize; 3],
    compute: Compute,
    kv: DType,
) -> (AttentionStatic, AttentionDynamic) {
    let dtype = if compute == Compute::Bf16 { DType::BF16 } else { DType::F32 };
    let fixed = AttentionStatic {
        causal: !name.starts_with("bidirectional"),
        kv_source: KvSource::Paged { block_size: BLOCK_SIZE },
        ..AttentionStatic::new(num_heads, num_kv_heads, head_dim, [dtype, kv, dtype], compute)
    };
    (fixed, AttentionDynamic { sequences, tokens: sequences * new, max_query: new, max_kv: keys })
}

/// A cache of random codes, none of them NaN, and scales of a power of 2.
fn codes(device: &Arc<dyn Device>, cache: &PagedLayout, pick: &mut Generator) -> Result<Tensor> {
    let mut bytes: Vec<u8> = (0..cache.bytes()).map(|_| pick.bits() as u8 & 0xbf).collect();
    for i in 0..cache.num_blocks() * cache.num_kv_heads() * BLOCK_SIZE {
        let (block, head) = (i / BLOCK_SIZE / cache.num_kv_heads(), i / BLOCK_SIZE % cache.num_kv_heads());
        if let Some(at) = cache.scale_index(block, head, i % BLOCK_SIZE) {
            bytes[at..at + PagedLayout::SCALE_BYTES].copy_from_slice(&(1.0f32 / 64.0).to_le_bytes());
        }
    }
    Ok(Tensor::from_bytes(device, &bytes, cache.stored(), cache.layout().shape())?)
}

struct Problem {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    fixed: AttentionStatic,
    call: AttentionDynamic,
    inputs: Vec<Tensor>,
    /// Keys and values, which take turns.
    caches: Vec<[Tensor; 2]>,
    turn: usize,
    out: Tensor,
    workspace: Buffer,
}

impl Problem {
    /// Equal sequences over caches with blocks in no simple order.
    fn new(device: &Arc<dyn Device>, fixed: AttentionStatic, call: AttentionDynamic) -> Result<Self> {
        let mut pick = Generator::new(1);
        let per_sequence = call.max_kv.div_ceil(BLOCK_SIZE);
        let blocks = per_sequence * call.sequences;
        let mut ids: Vec<u32> = (0..blocks as u32).collect();
        (1..blocks).rev().for_each(|i| ids.swap(i, pick.below(i + 1)));
        let cache = PagedLayout::new(blocks, fixed.num_kv_heads, BLOCK_SIZE, fixed.head_dim, fixed.kv)?;
        let starts: Vec<i32> = (0..=call.sequences).map(|s| (s * call.max_query) as i32).collect();
        let lens = vec![call.max_kv as i32; call.sequences];
        let copies = if call.max_query == 1 { ROTATE.div_ceil(2 * cache.bytes()) } else { 1 };
        let mut random = |dtype, shape: &[usize]| -> Result<Tensor> {
            Ok(pick.operand(dtype, shape, Lay::Contiguous, Values::Normal)?.tensor)
        };
        let q = random(fixed.q, &[call.tokens, fixed.num_heads, fixed.head_dim])?;
        let mut half = || -> Result<Tensor> {
            match PagedLayout::has_scales(fixed.kv) {
                true => codes(device, &cache, &mut pick),
                false => Ok(pick.operand(fixed.kv, cache.layout().shape(), Lay::Contiguous, Values::Normal)?.tensor),
            }
        };
        let caches = (0..copies).map(|_| Ok([half()?, half()?]));
        let caches = caches.collect::<Result<Vec<_>>>()?;
        let inputs = vec![
            q,
            Tensor::from_slice(device, &starts, &[call.sequences + 1])?,
            Tensor::from_slice(device, &lens, &[call.sequences])?,
            Tensor::from_slice(device, &ids, &[call.sequences, per_sequence])?,
        ];
        let (out, workspace) =
            (Tensor::zeros(device, fixed.out, inputs[0].shape())?, Buffer::uninitialised(device, 0)?);
        let (device, stream) = (device.clone(), device.clone().stream()?);
        Ok(Self { device, stream, fixed, call, inputs, caches, turn: 0, out, workspace })
    }

    /// The median and the best of a row's times.
    fn times(&mut self, row: &Row<Attention>) -> Result<(f64, f64)> {
        let (mut times, begun) = (Vec::new(), Instant::now());
        while times.len() < 5 || (begun.elapsed().as_secs_f64() < 0.3 && times.len() < 1000) {
            let start = Instant::now();
            self.run(row)?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok((times[times.len() / 2], times[0]))
    }

    /// Mean seconds of a row: of all caches, or of a few runs where there is one.
    fn mean(&mut self, row: &Row<Attention>) -> Result<f64> {
        let runs = if self.caches.len() > 1 { self.caches.len() } else { 2 };
        contender::mean_seconds(runs, &mut |_| self.run(row))
    }

    fn run(&mut self, row: &Row<Attention>) -> Result<()> {
        let bytes = (row.workspace)(&self.fixed, &self.call, self.device.hardware());
        if self.workspace.len() < bytes {
            self.workspace = Buffer::uninitialised(&self.device, bytes)?;
        }
        let [q, starts, lens, table] = &self.inputs[..] else { unreachable!("four inputs beside the caches") };
        self.turn = (self.turn + 1) % self.caches.len();
        let [k, v] = &self.caches[self.turn];
        let inputs = [q, k, v, starts, lens, table].map(|t| Some(t.view()));
        let outputs = [self.out.view_mut()?];
        let launch = Launch::new(&self.stream, Some(&mut self.workspace))?;
        row.launch(&launch, &self.fixed, &self.call, Operands { inputs: &inputs, outputs: &outputs })
    }
}
