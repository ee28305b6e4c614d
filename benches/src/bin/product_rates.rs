//! How fast matrix products are, next to this machine's limits, measured in the same run.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin product-rates [-- [--threads N] [--seconds S] [ROW [PROBLEM]]]
//! product-rates [--threads N] --serve M,N,K
//! product-rates --shapes
//! ```
//! prints, for 1 thread and for all (or N), every row (or those whose name contains ROW) over shapes of Qwen2.5-0.5B
//! and some squares (or those whose description contains PROBLEM): operations per second, bytes of weights per second,
//! and each as a share of the limit, medians. With `--serve` it is Sinew's side of `benches/peers/products.py`, which
//! asks for the M,N,K with `--shapes`: that product in each dtype by the row that Sinew chooses, the one predicted
//! fastest. `SINEW_SIMD` caps the level.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sinew_benches::contender::{FEW_ROWS, Product, serve};
use sinew_benches::{beside_limits, command, context, flops_limit, least_seconds};
use sinew_kernels::gemm::{self, Epilogue, Gemm, GemmDynamic, GemmStatic, Residual, Rhs};
use sinew_kernels::packed::{self, Encoding, Format, WeightRows, Weights};
use sinew_kernels::rates::{Meter, Peaks};
use sinew_kernels::{Compute, Launch, Operands, Operator, Row};
use sinew_memory::{Buffer, Cpu, Device, Stream};
use sinew_tensor::{BlockFormat, BlockValues, DType, Layout, Tensor};

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
/// Seconds for one measurement, unless it is told.
const SECONDS: f64 = 0.25;

struct Arguments {
    serve: Option<Product>,
    shapes: bool,
    threads: Option<usize>,
    seconds: f64,
    row: String,
    problem: String,
}

impl Arguments {
    fn read(all: &[String]) -> Result<Self> {
        let mut read = Self {
            serve: None,
            shapes: false,
            threads: None,
            seconds: SECONDS,
            row: String::new(),
            problem: String::new(),
        };
        let mut names = Vec::new();
        let mut all = all.iter();
        while let Some(argument) = all.next() {
            match argument.as_str() {
                "--shapes" => read.shapes = true,
                "--serve" => read.serve = Some(Product::parse(all.next().ok_or("--serve takes M,N,K")?)?),
                "--threads" => read.threads = Some(all.next().ok_or("--threads takes a number")?.parse()?),
                "--seconds" => read.seconds = all.next().ok_or("--seconds takes a number")?.parse()?,
                option if option.starts_with("--") => {
                    return Err(format!("no option is called {option}; see --help").into());
                }
                name => names.push(name.to_owned()),
            }
        }
        let mut names = names.into_iter();
        if read.serve.is_some() && names.len() > 0 {
            return Err("--serve takes no ROW: it times the row that is chosen".into());
        }
        (read.row, read.problem) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        Ok(read)
    }
}

/// A packed weight in a dtype, with operands and results of that too, multiplied in bf16 where it is bf16.
fn packed(dtype: DType, n: usize, k: usize) -> Result<GemmStatic> {
    let compute = if dtype == DType::BF16 { Compute::Bf16 } else { Compute::F32 };
    encoded(dtype.into(), dtype, compute, n, k)
}

/// A packed weight with operands and results of a dtype.
fn encoded(encoding: Encoding, dtype: DType, compute: Compute, n: usize, k: usize) -> Result<GemmStatic> {
    let format = Format::in_panels(encoding).ok_or("no format")?;
    Ok(GemmStatic::new(n, k, dtype, Rhs::Packed(format), dtype, compute))
}

/// Block-quantized weights with operands and results of bf16, multiplied in bf16 and, of integers, in int8.
fn quantized(n: usize, k: usize) -> Result<Vec<GemmStatic>> {
    let (bf16, f16, f32) = (DType::BF16, DType::F16, DType::F32);
    let formats = [
        BlockFormat::new(BlockValues::Int4, 32, bf16, false)?,
        BlockFormat::new(BlockValues::Int4, 128, f16, true)?,
        BlockFormat::new(BlockValues::Int8, 32, bf16, false)?,
        BlockFormat::INT8,
        BlockFormat::new(BlockValues::F8E4M3, 128, f32, false)?,
        BlockFormat::new(BlockValues::F4E2M1, 32, bf16, false)?,
    ];
    let mut all = Vec::new();
    for format in formats {
        for compute in [Compute::Bf16, Compute::Int8] {
            if compute == Compute::Bf16 || format.values().is_integer() {
                all.push(encoded(format.into(), bf16, compute, n, k)?);
            }
        }
    }
    Ok(all)
}

fn main() -> ExitCode {
    command(include_str!("product_rates.rs"), rates)
}

fn rates(arguments: &[String]) -> Result<()> {
    let arguments = Arguments::read(arguments)?;
    if arguments.shapes {
        PREFILL.iter().chain(&DECODE).for_each(|[m, n, k]| println!("{m},{n},{k}"));
        return Ok(());
    }
    let all = std::thread::available_parallelism()?.get();
    let counts = match arguments.threads {
        Some(threads) => vec![threads],
        None if all > 1 && arguments.serve.is_none() => vec![1, all],
        None => vec![all],
    };
    for threads in counts {
        let device = Cpu::with(threads, sinew_memory::level_from_environment()?)?;
        if let Some(product) = arguments.serve {
            contend(&device, product)?;
            continue;
        }
        let peaks = Peaks::measure(&device)?;
        println!(
            "\n{threads} threads, {}: read {:.1} GB/s, f32 {:.0} GFLOP/s, bf16 {:.0} GFLOP/s, int8 {:.0} GOP/s",
            device.hardware().name,
            peaks.memory_bytes_per_s / 1e9,
            flops_limit(&peaks, Compute::F32) / 1e9,
            flops_limit(&peaks, Compute::Bf16) / 1e9,
            flops_limit(&peaks, Compute::Int8) / 1e9
        );
        println!("{:<62} {:<22} {:>9} {:>8} {:>7} {:>7}", "problem", "row", "ms", "GFLOP/s", "GB/s", "of limit");
        let report = |row: &Row<Gemm>, fixed: &GemmStatic, batch: usize, m: usize| -> Result<()> {
            let call = GemmDynamic { batch, m };
            let admitted = (row.admits)(fixed, device.hardware()).is_ok();
            if admitted && format!("{call} {fixed}").contains(&arguments.problem) {
                report(row, &device, &peaks, fixed, call, arguments.seconds)?;
            }
            Ok(())
        };
        for row in gemm::rows().iter().filter(|row| row.name.contains(&arguments.row)) {
            for [m, n, k] in PREFILL.into_iter().chain(DECODE) {
                let slow = row.name.ends_with("portable");
                if slow && m * n * k > 1 << 29 || row.arithmetic.foreign && m < FEW_ROWS {
                    continue;
                }
                for dtype in [DType::BF16, DType::F16, DType::F32] {
                    report(row, &packed(dtype, n, k)?, 1, m)?;
                }
                for fixed in quantized(n, k)? {
                    report(row, &fixed, 1, m)?;
                }
                if m > FEW_ROWS {
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
            let fixed = GemmStatic::new(896, 896, DType::BF16, Rhs::Packed(&packed::BF16), DType::F32, Compute::Bf16);
            report(row, &fixed.with(epilogue), 1, 512)?;
            let epilogue = Epilogue {
                activation: Some(sinew_kernels::activation::Activation::Silu),
                gated: true,
                ..Epilogue::default()
            };
            let fixed = GemmStatic::new(9728, 896, DType::BF16, Rhs::Packed(&packed::BF16), DType::BF16, Compute::Bf16);
            report(row, &fixed.with(epilogue), 1, 512)?;
        }
        packing(&device)?;
    }
    Ok(())
}

/// The rows that Sinew chooses in every dtype, in turn with other libraries.
fn contend(device: &Arc<dyn Device>, product: Product) -> Result<()> {
    let (ctx, meter) = (context(device)?, Meter::new(device)?);
    let mut all = Vec::new();
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let (fixed, call) = (packed(dtype, product.n, product.k)?, GemmDynamic { batch: 1, m: product.m });
        let problem = Problem::new(&ctx.choose::<Gemm>(&fixed, &call)?, device, &fixed, call)?;
        all.push((product.item("", dtype.name()), problem));
    }
    let items: Vec<_> = all.iter().map(|(item, _)| item.clone()).collect();
    serve(&items, &mut |item| {
        let (_, problem) = all.iter_mut().find(|(of, _)| of.what == item.what).ok_or("no such item")?;
        let (fixed, call) = (problem.fixed.clone(), problem.call);
        let seconds = || product.seconds(problem.weights.len(), &mut |i| problem.run(i));
        beside_limits(&meter, seconds, |peaks| least(peaks, &fixed, call), |seconds| seconds)
    })
}

/// Seconds that the limits allow: of arithmetic, and of reading the weights.
fn least(peaks: &Peaks, fixed: &GemmStatic, call: GemmDynamic) -> f64 {
    least_seconds(peaks, Gemm::factors(fixed), operations(fixed, call), weight_bytes(fixed, call) as f64)
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

/// A row with the operands of a problem.
struct Problem {
    row: Row<Gemm>,
    fixed: GemmStatic,
    call: GemmDynamic,
    stream: Arc<dyn Stream>,
    a: Tensor,
    /// Copies of B, which take turns.
    weights: Vec<Tensor>,
    d: Tensor,
    workspace: Buffer,
}

impl Problem {
    fn new(row: &Row<Gemm>, device: &Arc<dyn Device>, fixed: &GemmStatic, call: GemmDynamic) -> Result<Self> {
        let (b_dtype, shape) = weight(fixed, call.batch);
        let product = Product { m: call.m, n: fixed.n, k: fixed.k };
        let copies = if call.batch == 1 { product.copies(weight_bytes(fixed, call)) } else { 1 };
        let needed = (row.workspace)(fixed, &call, device.hardware());
        Ok(Self {
            row: *row,
            fixed: fixed.clone(),
            call,
            stream: device.clone().stream()?,
            a: filled(device, fixed.a, &[call.batch, call.m, fixed.k])?,
            weights: (0..copies).map(|_| filled(device, b_dtype, &shape)).collect::<Result<_>>()?,
            d: Tensor::zeros(device, fixed.out, &[call.batch, call.m, fixed.columns()])?,
            workspace: Buffer::uninitialised(device, needed)?,
        })
    }

    fn run(&mut self, copy: usize) -> Result<()> {
        let inputs = [Some(self.a.view()), Some(self.weights[copy].view())];
        let outputs = [self.d.view_mut()?];
        let launch = Launch::new(&self.stream, Some(&mut self.workspace))?;
        Ok(self.row.launch(&launch, &self.fixed, &self.call, Operands { inputs: &inputs, outputs: &outputs })?)
    }

    /// Seconds of a run, the median of so many seconds' runs.
    fn median(&mut self, seconds: f64) -> Result<f64> {
        let (mut times, start) = (Vec::new(), Instant::now());
        while times.len() < 5 || start.elapsed().as_secs_f64() < seconds {
            let once = Instant::now();
            self.run(times.len() % self.weights.len())?;
            times.push(once.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

fn report(
    row: &Row<Gemm>,
    device: &Arc<dyn Device>,
    peaks: &Peaks,
    fixed: &GemmStatic,
    call: GemmDynamic,
    seconds: f64,
) -> Result<()> {
    let median = Problem::new(row, device, fixed, call)?.median(seconds)?;
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
    let mut buffer = Buffer::uninitialised(device, elements * dtype.size())?;
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
    let blocks = |values| -> Result<Encoding> { Ok(BlockFormat::new(values, 32, DType::BF16, false)?.into()) };
    for (from, encoding) in [
        (DType::BF16, DType::BF16.into()),
        (DType::F32, DType::BF16.into()),
        (DType::F32, DType::F32.into()),
        (DType::F16, DType::F16.into()),
        (DType::BF16, blocks(BlockValues::Int8)?),
        (DType::BF16, blocks(BlockValues::Int4)?),
        (DType::BF16, blocks(BlockValues::F8E4M3)?),
    ] {
        let format = Format::in_panels(encoding).ok_or("no format")?;
        let bytes = vec![0x3c; n * k * from.size()];
        let sources = [WeightRows::from_bytes(&bytes, from, n, k)?];
        let weights = Weights::new(&sources, false);
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
