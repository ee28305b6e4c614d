//! How fast matrix products are, next to this machine's limits, measured in the same run.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin product-rates [-- [--threads N] [ROW [PROBLEM] | --json M,N,K | --shapes]]
//! ```
//! prints, for 1 thread and for all (or N), every row (or those whose name contains ROW) over shapes of Qwen2.5-0.5B
//! and some squares (or those whose description contains PROBLEM): operations per second, bytes of weights per second,
//! and each as a share of the limit, medians. With `--json`: median seconds of the row that Sinew chooses for that
//! product in each dtype, the one predicted fastest, and the seconds that the limits allow, for
//! `benches/peers/products.py`, which asks for the M,N,K with `--shapes`. `SINEW_SIMD` caps the level.

use std::sync::Arc;
use std::time::Instant;

use sinew_benches::context;
use sinew_kernels::gemm::{
    self, Compute, Epilogue, Format, Gemm, GemmDynamic, GemmStatic, Residual, Rhs, Source, Weights,
};
use sinew_kernels::rates::Peaks;
use sinew_kernels::{Launch, Operands, Row};
use sinew_memory::{Buffer, Cpu, Device, DeviceKind};
use sinew_tensor::{DType, Layout, Tensor};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// `[m, n, k]`.
const PREFILL: [[usize; 3]; 7] = [
    [512, 4864, 896],
    [512, 896, 4864],
    [512, 896, 896],
    [512, 151936, 896],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
];
const DECODE: [[usize; 3]; 8] = [
    [1, 4864, 896],
    [1, 896, 4864],
    [1, 151936, 896],
    [1, 8192, 2048],
    [2, 4864, 896],
    [4, 4864, 896],
    [8, 4864, 896],
    [16, 4864, 896],
];
/// `[batch, m, n, k]` of products of activations: scores and values of 14 heads.
const BATCHED: [[usize; 4]; 3] = [[14, 512, 512, 64], [14, 512, 64, 512], [14, 1, 4096, 64]];
/// Few rows: weights are rotated over this many bytes, so that they come from memory.
const ROTATE: usize = 256 << 20;
/// Seconds for one measurement.
const SECONDS: f64 = 0.25;

#[derive(Default)]
struct Arguments {
    /// `[m, n, k]`.
    json: Option<[usize; 3]>,
    shapes: bool,
    threads: Option<usize>,
    row: String,
    problem: String,
}

impl Arguments {
    fn read() -> Result<Self> {
        let (mut read, mut names) = (Self::default(), Vec::new());
        let mut all = std::env::args().skip(1);
        while let Some(argument) = all.next() {
            match argument.as_str() {
                "--shapes" => read.shapes = true,
                "--json" => {
                    let sizes = all.next().ok_or("--json takes M,N,K")?;
                    let sizes = sizes.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
                    read.json = Some(sizes.try_into().map_err(|_| "--json takes M,N,K")?);
                }
                "--threads" => read.threads = Some(all.next().ok_or("--threads takes a number")?.parse()?),
                _ => names.push(argument),
            }
        }
        let mut names = names.into_iter();
        (read.row, read.problem) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        Ok(read)
    }
}

/// A packed weight in a dtype, multiplied in bf16 where it is bf16, and in int8 where it is that.
fn packed(dtype: DType, n: usize, k: usize) -> Result<GemmStatic> {
    let format = Format::of(dtype, DeviceKind::CPU).ok_or("no format")?;
    Ok(match dtype {
        DType::BF16 => GemmStatic::new(n, k, DType::BF16, Rhs::Packed(format), DType::BF16, Compute::Bf16),
        DType::I8 => GemmStatic::new(n, k, DType::BF16, Rhs::Packed(format), DType::BF16, Compute::Int8),
        _ => GemmStatic::new(n, k, DType::F32, Rhs::Packed(format), DType::F32, Compute::F32),
    })
}

fn main() -> Result<()> {
    let arguments = Arguments::read()?;
    if arguments.shapes {
        PREFILL.iter().chain(&DECODE).for_each(|[m, n, k]| println!("{m},{n},{k}"));
        return Ok(());
    }
    let all = std::thread::available_parallelism()?.get();
    let counts = match arguments.threads {
        Some(threads) => vec![threads],
        None if all > 1 => vec![1, all],
        None => vec![1],
    };
    for threads in counts {
        let device = Cpu::with(threads, sinew_memory::level_from_environment()?)?;
        let peaks = Peaks::measure(&device)?;
        if let Some(sizes) = arguments.json {
            chosen(&device, &peaks, sizes)?;
            continue;
        }
        println!(
            "\n{threads} threads, {}: read {:.1} GB/s, f32 {:.0} GFLOP/s, bf16 {:.0} GFLOP/s, int8 {:.0} GOP/s",
            device.hardware().name,
            peaks.memory_bytes_per_s / 1e9,
            limit(&peaks, Compute::F32) / 1e9,
            limit(&peaks, Compute::Bf16) / 1e9,
            limit(&peaks, Compute::Int8) / 1e9
        );
        println!("{:<62} {:<22} {:>9} {:>8} {:>7} {:>7}", "problem", "row", "ms", "GFLOP/s", "GB/s", "of limit");
        let report = |row: &Row<Gemm>, fixed: &GemmStatic, batch: usize, m: usize| -> Result<()> {
            let call = GemmDynamic { batch, m };
            let admitted = (row.admits)(fixed, device.hardware()).is_ok();
            if admitted && format!("{call} {fixed}").contains(&arguments.problem) {
                report(row, &device, &peaks, fixed, call)?;
            }
            Ok(())
        };
        for row in gemm::rows().iter().filter(|row| row.name.contains(&arguments.row)) {
            for [m, n, k] in PREFILL.into_iter().chain(DECODE) {
                let slow = row.name.ends_with("portable");
                if slow && m * n * k > 1 << 29 || row.arithmetic.foreign && m < 16 {
                    continue;
                }
                for dtype in [DType::BF16, DType::F16, DType::F32, DType::I8] {
                    report(row, &packed(dtype, n, k)?, 1, m)?;
                }
                if m > 16 {
                    let strided = GemmStatic { b: Rhs::Strided(DType::F32), ..packed(DType::F32, n, k)? };
                    report(row, &strided, 1, m)?;
                }
            }
            for [batch, m, n, k] in BATCHED {
                let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32);
                report(row, &fixed, batch, m)?;
                let fixed = GemmStatic { compute: Compute::Bf16, ..fixed };
                report(row, &fixed, batch, m)?;
            }
            let epilogue = Epilogue { residual: Some(Residual::Output), ..Epilogue::default() };
            let fixed = GemmStatic::new(896, 896, DType::BF16, Rhs::Packed(&gemm::BF16), DType::F32, Compute::Bf16);
            report(row, &fixed.with(epilogue), 1, 512)?;
            let epilogue = Epilogue {
                activation: Some(sinew_kernels::activation::Activation::Silu),
                gated: true,
                ..Epilogue::default()
            };
            let fixed = GemmStatic::new(9728, 896, DType::BF16, Rhs::Packed(&gemm::BF16), DType::BF16, Compute::Bf16);
            report(row, &fixed.with(epilogue), 1, 512)?;
        }
        packing(&device)?;
    }
    Ok(())
}

/// The measured limit of arithmetic, which every CPU has.
fn limit(peaks: &Peaks, compute: Compute) -> f64 {
    peaks.flops_per_s(compute).unwrap_or(f64::NAN)
}

/// Seconds of the row that Sinew chooses in every dtype, and their limit, as JSON lines.
fn chosen(device: &Arc<dyn Device>, peaks: &Peaks, [m, n, k]: [usize; 3]) -> Result<()> {
    let ctx = context(device)?;
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let (fixed, call) = (packed(dtype, n, k)?, GemmDynamic { batch: 1, m });
        let row = ctx.choose::<Gemm>(&fixed, &call)?;
        let times = times(&row, device, &fixed, call)?;
        println!("{{\"what\":\"{dtype} {m},{n},{k}\",\"value\":{:e}}}", times[times.len() / 2]);
        println!("{{\"what\":\"limit {dtype} {m},{n},{k}\",\"value\":{:e}}}", least(peaks, &fixed, call));
    }
    Ok(())
}

/// Seconds that the limits allow: of arithmetic, and of reading the weights.
fn least(peaks: &Peaks, fixed: &GemmStatic, call: GemmDynamic) -> f64 {
    (operations(fixed, call) / limit(peaks, fixed.compute))
        .max(weight_bytes(fixed, call) as f64 / peaks.memory_bytes_per_s)
}

fn operations(fixed: &GemmStatic, call: GemmDynamic) -> f64 {
    2.0 * (call.batch * call.m * fixed.n * fixed.k) as f64
}

fn weight_bytes(fixed: &GemmStatic, call: GemmDynamic) -> usize {
    let (dtype, shape) = weight(fixed, call.batch);
    shape.iter().product::<usize>() * dtype.size()
}

/// Bytes of B as the kernel reads it.
fn weight(fixed: &GemmStatic, batch: usize) -> (DType, Vec<usize>) {
    match fixed.b {
        Rhs::Packed(format) => (DType::U8, vec![format.packed_bytes(fixed.n, fixed.k, fixed.epilogue.gated)]),
        Rhs::Strided(dtype) => (dtype, vec![batch, fixed.k, fixed.n]),
    }
}

/// Seconds of each run, ascending.
fn times(row: &Row<Gemm>, device: &Arc<dyn Device>, fixed: &GemmStatic, call: GemmDynamic) -> Result<Vec<f64>> {
    let (b_dtype, shape) = weight(fixed, call.batch);
    let copies = if call.m <= 16 && call.batch == 1 { ROTATE.div_ceil(weight_bytes(fixed, call)) } else { 1 };
    let weights = (0..copies).map(|_| filled(device, b_dtype, &shape)).collect::<Result<Vec<_>>>()?;
    let a = filled(device, fixed.a, &[call.batch, call.m, fixed.k])?;
    let mut d = Tensor::zeros(device, fixed.out, &[call.batch, call.m, fixed.columns()])?;
    let needed = (row.workspace)(fixed, &call, device.hardware());
    let mut workspace = Buffer::allocate(device, needed)?;
    let stream = device.clone().stream()?;
    let (mut times, start, mut turn) = (Vec::new(), Instant::now(), 0);
    while times.len() < 5 || start.elapsed().as_secs_f64() < SECONDS {
        let inputs = [Some(a.view()), Some(weights[turn % copies].view())];
        let outputs = [d.view_mut()?];
        let once = Instant::now();
        let launch = Launch::new(&stream, Some(&mut workspace))?;
        row.launch(&launch, fixed, &call, Operands { inputs: &inputs, outputs: &outputs })?;
        times.push(once.elapsed().as_secs_f64());
        turn += 1;
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn report(
    row: &Row<Gemm>,
    device: &Arc<dyn Device>,
    peaks: &Peaks,
    fixed: &GemmStatic,
    call: GemmDynamic,
) -> Result<()> {
    let times = times(row, device, fixed, call)?;
    let median = times[times.len() / 2];
    println!(
        "{:<62} {:<22} {:>9.3} {:>8.1} {:>7.1} {:>6.0}%",
        format!("{call} {fixed}"),
        row.name,
        median * 1e3,
        operations(fixed, call) / median / 1e9,
        weight_bytes(fixed, call) as f64 / median / 1e9,
        least(peaks, fixed, call) / median * 100.0
    );
    Ok(())
}

/// A tensor of numbers around 1, of many bits: bytes of packed weights as well, whatever their format is.
fn filled(device: &Arc<dyn Device>, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let elements: usize = shape.iter().product();
    let mut buffer = Buffer::allocate(device, elements * dtype.size())?;
    let mut state = 1u32;
    for bits in buffer.as_mut_slice::<u8>()?.chunks_mut(2) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Of bf16 and of f32's upper half 2^-7 to 2, of f16 1 to 2, of either sign.
        let value = (0x3c00 | (state >> 16) & 0x83ff) as u16;
        bits.copy_from_slice(&value.to_le_bytes()[..bits.len()]);
    }
    Ok(Tensor::new(buffer, dtype, Layout::contiguous(shape)?)?)
}

/// How fast a weight is packed.
fn packing(device: &Arc<dyn Device>) -> Result<()> {
    let any: &dyn std::any::Any = &**device;
    let Some(cpu) = any.downcast_ref::<Cpu>() else { return Ok(()) };
    let (n, k) = (4864, 896);
    for (from, format) in
        [(DType::BF16, &gemm::BF16), (DType::F32, &gemm::BF16), (DType::F32, &gemm::F32), (DType::F16, &gemm::F16)]
    {
        let format: &Format = format;
        let bytes = vec![0x3c; n * k * from.size()];
        let sources = [Source::from_bytes(&bytes, from, n, k)?];
        let weights = Weights { sources: &sources, k, gated: false };
        let mut packed = vec![0; format.packed_bytes(n, k, false)];
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            let start = Instant::now();
            format.pack(cpu.team(), device.hardware().simd, &weights, &mut packed)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("packing {from} as {}: {:.1} GB/s read", format.name(), bytes.len() as f64 / best / 1e9);
    }
    Ok(())
}
