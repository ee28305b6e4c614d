//! How fast matrix products are, next to this machine's limits, measured in the same run.
//!
//! ```text
//! cargo run --release -p sinew-kernels --example gemm_rate [-- ROW [PROBLEM]]
//! ```
//! prints, for 1 thread and for all, every row (or those whose name contains ROW) over shapes of Qwen2.5-0.5B and some
//! squares (or those whose description contains PROBLEM): operations per second, bytes of weights per second, and each as a share of the limit.

use std::sync::Arc;
use std::time::Instant;

use sinew_kernels::gemm::{
    self, Compute, Epilogue, Format, Gemm, GemmDynamic, GemmStatic, Residual, Rhs, Source, Weights,
};
use sinew_kernels::peaks::Peaks;
use sinew_kernels::{Launch, Operands, Row};
use sinew_memory::{Buffer, Cpu, Device, SimdLevel};
use sinew_tensor::{DType, Layout, Tensor};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// `[m, n, k]`.
const PREFILL: [[usize; 3]; 5] =
    [[512, 4864, 896], [512, 896, 4864], [512, 896, 896], [1024, 1024, 1024], [2048, 2048, 2048]];
const DECODE: [[usize; 3]; 8] = [
    [1, 151936, 896],
    [1, 4864, 896],
    [1, 896, 4864],
    [2, 4864, 896],
    [4, 4864, 896],
    [8, 4864, 896],
    [12, 4864, 896],
    [16, 4864, 896],
];
/// `[batch, m, n, k]` of products of activations: scores and values of 14 heads.
const BATCHED: [[usize; 4]; 3] = [[14, 512, 512, 64], [14, 512, 64, 512], [14, 1, 4096, 64]];
/// Few rows: weights are rotated over this many bytes, so that they come from memory.
const ROTATE: usize = 512 << 20;
/// Seconds for one measurement.
const SECONDS: f64 = 0.25;

fn main() -> Result<()> {
    let only = std::env::args().nth(1).unwrap_or_default();
    let all = std::thread::available_parallelism()?.get();
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let device = Cpu::with(threads, SimdLevel::detected())?;
        let peaks = Peaks::measure(&device)?;
        println!(
            "\n{threads} threads, {}: read {:.1} GB/s, f32 {:.0} GFLOP/s, bf16 dot products {:.0} GFLOP/s",
            device.hardware().name,
            peaks.read_bytes_per_s / 1e9,
            peaks.f32_flops_per_s / 1e9,
            peaks.bf16_flops_per_s / 1e9
        );
        println!("{:<62} {:<22} {:>9} {:>8} {:>7} {:>7}", "problem", "row", "ms", "GFLOP/s", "GB/s", "of limit");
        for row in gemm::rows().iter().filter(|row| row.name.contains(&only)) {
            for [m, n, k] in PREFILL.into_iter().chain(DECODE) {
                let slow = row.name.ends_with("portable");
                if slow && m * n * k > 1 << 29 || row.arithmetic.foreign && m < 16 {
                    continue;
                }
                let half = GemmStatic::new(n, k, DType::F32, Rhs::Packed(&gemm::BF16), DType::F32, Compute::Bf16);
                report(row, &device, &peaks, &half, GemmDynamic { batch: 1, m })?;
                if m > 1 && m <= 16 {
                    continue;
                }
                let full = GemmStatic { b: Rhs::Packed(&gemm::F32), compute: Compute::F32, ..half.clone() };
                report(row, &device, &peaks, &full, GemmDynamic { batch: 1, m })?;
                let strided = GemmStatic { b: Rhs::Strided(DType::F32), ..full };
                if m > 1 {
                    report(row, &device, &peaks, &strided, GemmDynamic { batch: 1, m })?;
                }
            }
            for [batch, m, n, k] in BATCHED {
                let fixed = GemmStatic::new(n, k, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32);
                report(row, &device, &peaks, &fixed, GemmDynamic { batch, m })?;
                let fixed = GemmStatic { compute: Compute::Bf16, ..fixed };
                report(row, &device, &peaks, &fixed, GemmDynamic { batch, m })?;
            }
            let epilogue = Epilogue { residual: Some(Residual::Output), ..Epilogue::default() };
            let fixed = GemmStatic::new(896, 896, DType::BF16, Rhs::Packed(&gemm::BF16), DType::F32, Compute::Bf16);
            report(row, &device, &peaks, &fixed.with(epilogue), GemmDynamic { batch: 1, m: 512 })?;
            let epilogue = Epilogue {
                activation: Some(sinew_kernels::activation::Activation::Silu),
                gated: true,
                ..Epilogue::default()
            };
            let fixed = GemmStatic::new(9728, 896, DType::BF16, Rhs::Packed(&gemm::BF16), DType::BF16, Compute::Bf16);
            report(row, &device, &peaks, &fixed.with(epilogue), GemmDynamic { batch: 1, m: 512 })?;
        }
        packing(&device)?;
    }
    Ok(())
}

fn report(
    row: &Row<Gemm>,
    device: &Arc<dyn Device>,
    peaks: &Peaks,
    fixed: &GemmStatic,
    call: GemmDynamic,
) -> Result<()> {
    let hardware = device.hardware();
    let only = std::env::args().nth(2).unwrap_or_default();
    if (row.admits)(fixed, hardware).is_err() || !format!("{call} {fixed}").contains(&only) {
        return Ok(());
    }
    let (batch, m) = (call.batch, call.m);
    let weight = match fixed.b {
        Rhs::Packed(format) => vec![format.packed_bytes(fixed.n, fixed.k, fixed.epilogue.gated)],
        Rhs::Strided(_) => vec![batch, fixed.k, fixed.n],
    };
    let b_dtype = match fixed.b {
        Rhs::Packed(_) => DType::U8,
        Rhs::Strided(dtype) => dtype,
    };
    let weight_bytes = weight.iter().product::<usize>() * b_dtype.size();
    let copies = if m <= 16 && batch == 1 { ROTATE.div_ceil(weight_bytes) } else { 1 };
    let weights = (0..copies).map(|_| filled(device, b_dtype, &weight)).collect::<Result<Vec<_>>>()?;
    let a = filled(device, fixed.a, &[batch, m, fixed.k])?;
    let mut d = Tensor::zeros(device, fixed.out, &[batch, m, fixed.columns()])?;
    let needed = (row.workspace)(fixed, &call, hardware);
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
    // The least, as for the limits: on a shared machine a median says more of the neighbours than of the kernel.
    let best = times.into_iter().fold(f64::INFINITY, f64::min);
    let flops = 2.0 * (batch * m * fixed.n * fixed.k) as f64;
    // bf16 operands may be multiplied in f32 as well: the limit is the faster of the two.
    let peak = match fixed.compute {
        Compute::Bf16 => peaks.bf16_flops_per_s.max(peaks.f32_flops_per_s),
        _ => peaks.f32_flops_per_s,
    };
    let least = (flops / peak).max(weight_bytes as f64 / peaks.read_bytes_per_s);
    println!(
        "{:<62} {:<22} {:>9.3} {:>8.1} {:>7.1} {:>6.0}%",
        format!("{call} {fixed}"),
        row.name,
        best * 1e3,
        flops / best / 1e9,
        weight_bytes as f64 / best / 1e9,
        least / best * 100.0
    );
    Ok(())
}

/// A tensor of small values (bytes: whatever they mean as bf16 or f32, they are small numbers too).
fn filled(device: &Arc<dyn Device>, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let elements: usize = shape.iter().product();
    let mut buffer = Buffer::allocate(device, elements * dtype.size())?;
    match dtype {
        DType::F32 => {
            let values = buffer.as_mut_slice::<f32>()?;
            values.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 17) as f32 / 16.0 - 0.5);
        }
        _ => buffer.as_mut_slice::<u8>()?.fill(0x3c),
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
            format.pack(cpu.team(), device.hardware().simd, &weights, 0..format.panels(n, false), &mut packed)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("packing {from} as {}: {:.1} GB/s read", format.name, bytes.len() as f64 / best / 1e9);
    }
    Ok(())
}
