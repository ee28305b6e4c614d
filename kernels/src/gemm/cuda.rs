//! Rows for NVIDIA GPUs: any operands in f32, 16-bit operands on tensor cores, and few rows read at the memory's rate.

use bytemuck::{Pod, Zeroable};
use sinew_memory::cuda::CudaModule;
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, View};

use super::{A, B, BIAS, Compute, D, Gemm, GemmDynamic, GemmStatic, RESIDUAL, Residual, Rhs, refuse, takes_rows};
use crate::Result;
use crate::cuda::{self, Kernel, MAX_GRID_YZ};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row};

/// The modules of kernels.
pub static CUDA: [CudaModule; 3] = [
    cuda::module!("gemm_simt", "../activation/cuda_function.cuh", "cuda.cuh", "cuda_simt.cuh", "cuda_simt.cu"),
    cuda::module!("gemm_gemv", "../activation/cuda_function.cuh", "cuda.cuh", "cuda_gemv.cuh", "cuda_gemv.cu"),
    cuda::module!("gemm_mma", "../activation/cuda_function.cuh", "cuda.cuh", "cuda_mma.cuh", "cuda_mma.cu"),
];

/// A kernel with the rows and columns that one of its blocks computes.
pub(crate) struct Tile {
    pub kernel: Kernel,
    pub rows: usize,
    pub columns: usize,
    pub threads: u32,
    pub shared_bytes: u32,
}

pub(crate) const fn simt(module: &'static CudaModule, name: &'static str) -> Tile {
    Tile { kernel: Kernel { module, name }, rows: 64, columns: 64, threads: 256, shared_bytes: 0 }
}

pub(crate) const fn gemv(module: &'static CudaModule, name: &'static str, rows: usize) -> Tile {
    Tile { kernel: Kernel { module, name }, rows, columns: 8, threads: 128, shared_bytes: 0 }
}

/// Stages are 32 values deep, of 2 bytes each.
pub(crate) const fn mma(
    module: &'static CudaModule,
    name: &'static str,
    [rows, columns]: [usize; 2],
    threads: u32,
    stages: usize,
) -> Tile {
    let shared_bytes = (stages * (rows + columns) * 64) as u32;
    Tile { kernel: Kernel { module, name }, rows, columns, threads, shared_bytes }
}

static SIMT: Tile = simt(&CUDA[0], "gemm_simt");
static GEMV_32: [Tile; 3] =
    [gemv(&CUDA[1], "gemv_32_1", 1), gemv(&CUDA[1], "gemv_32_4", 4), gemv(&CUDA[1], "gemv_32_8", 8)];
static GEMV_16: [Tile; 3] =
    [gemv(&CUDA[1], "gemv_16_1", 1), gemv(&CUDA[1], "gemv_16_4", 4), gemv(&CUDA[1], "gemv_16_8", 8)];
static MMA_BF16: [Tile; 3] = [
    mma(&CUDA[2], "gemm_bf16_16", [16, 64], 128, 4),
    mma(&CUDA[2], "gemm_bf16_64", [64, 64], 128, 4),
    mma(&CUDA[2], "gemm_bf16_128", [128, 128], 256, 3),
];
static MMA_F16: [Tile; 3] = [
    mma(&CUDA[2], "gemm_f16_16", [16, 64], 128, 4),
    mma(&CUDA[2], "gemm_f16_64", [64, 64], 128, 4),
    mma(&CUDA[2], "gemm_f16_128", [128, 128], 256, 3),
];

/// Tensor cores of this kind came with it, and copies to shared memory that no register passes.
pub(crate) const MMA_CAPABILITY: (u32, u32) = (8, 0);

/// The rows of [`Gemm`] on NVIDIA GPUs that are Sinew's own, best first.
pub(super) fn rows() -> Vec<Row<Gemm>> {
    let row = |name, arithmetic| Row {
        name,
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named(arithmetic),
        admits: |fixed, _| takes_rows(fixed),
        cost: |fixed, call, hardware| cuda::cost(Gemm::work(fixed, call), hardware, 0.5, 0.4),
        workspace: |_, _, _| 0,
        run: run_simt,
    };
    vec![
        mma_row::<2>("gemm.cuda.mma-128"),
        mma_row::<1>("gemm.cuda.mma-64"),
        mma_row::<0>("gemm.cuda.mma-16"),
        Row { cost: gemv_cost, run: run_gemv, ..row("gemm.cuda.gemv", "gemm.cuda.lanes") },
        row("gemm.cuda.simt", "gemm.cuda.fma-chain"),
    ]
}

/// The row of a tile of [`MMA_BF16`] and [`MMA_F16`].
fn mma_row<const TILE: usize>(name: &'static str) -> Row<Gemm> {
    Row {
        name,
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("gemm.cuda.mma-chain"),
        admits: |fixed, hardware| {
            cuda::needs(MMA_CAPABILITY, hardware)?;
            takes_rows(fixed)?;
            multiplied_as(fixed).map(drop)
        },
        cost: |fixed, call, hardware| {
            // What a tile reads of shared memory for a multiply-add falls with its edges.
            const SHARES: [f64; 3] = [0.25, 0.4, 0.55];
            let Tile { rows, columns, .. } = MMA_BF16[TILE];
            let peak = hardware.rates.bf16_flops_per_s;
            tile_cost(fixed, call, hardware, [rows, columns], SHARES[TILE] * peak, 0.6)
        },
        workspace: |_, _, _| 0,
        run: run_mma::<TILE>,
    }
}

/// The type that tensor cores multiply in without another rounding than the problem's own.
pub(crate) fn multiplied_as(fixed: &GemmStatic) -> Result<DType, Refusal> {
    match (fixed.compute, fixed.b) {
        (Compute::Int8, _) => Err("does not compute in int8".into()),
        (Compute::Bf16, Rhs::Strided(_)) => Ok(DType::BF16),
        (Compute::Bf16, Rhs::Packed(format)) if format.dtype() == Some(DType::BF16) => Ok(DType::BF16),
        (Compute::Bf16, Rhs::Packed(format)) => {
            Err(format!("multiplies bf16 with bf16, and {} weights are taken as they are", format.encoding()).into())
        }
        (Compute::F32, b) => {
            let b = match b {
                Rhs::Packed(format) => format.row_dtype().map_err(|error| error.to_string())?,
                Rhs::Strided(dtype) => dtype,
            };
            if fixed.a == b && matches!(b, DType::BF16 | DType::F16) {
                return Ok(b);
            }
            Err(format!("multiplies two operands of bf16 or of f16, not {} with {b}", fixed.a).into())
        }
    }
}

/// Predicted seconds of a row that computes tiles of `[rows, columns]`, whole ones and one after another on each
/// multiprocessor, at `flops_per_s`, and that reads memory at the share `reads` of the GPU's rate.
pub(crate) fn tile_cost(
    fixed: &GemmStatic,
    call: &GemmDynamic,
    hardware: &Hardware,
    [rows, columns]: [usize; 2],
    flops_per_s: f64,
    reads: f64,
) -> f64 {
    let tiles = (call.batch * call.m).div_ceil(rows) * fixed.n.div_ceil(columns);
    let flops = 2.0 * (rows * columns * fixed.k) as f64;
    tiles_cost(hardware, tiles, flops / flops_per_s, Gemm::work(fixed, call).bytes / reads)
}

/// Predicted seconds of so many tiles of some seconds each, where so many bytes are read at the GPU's rate.
pub(crate) fn tiles_cost(hardware: &Hardware, tiles: usize, seconds: f64, bytes: f64) -> f64 {
    let (rates, units) = (&hardware.rates, hardware.threads);
    let computing = tiles.div_ceil(units) as f64 * seconds;
    rates.launch_s + (bytes / rates.read_bytes_per_s).max(computing)
}

/// The right operand is read again for every eight rows.
fn gemv_cost(fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware) -> f64 {
    let times = (call.batch * call.m).div_ceil(GEMV_16[2].rows).max(1) as f64;
    let mut work = Gemm::work(fixed, call);
    work.bytes *= times;
    cuda::cost(work, hardware, 0.8, 0.2)
}

const GATED: u32 = 1;
const ROUND_A: u32 = 2;
const ROUND_B: u32 = 4;
const HAS_BIAS: u32 = 8;
const HAS_RESIDUAL: u32 = 16;
const INTERLEAVED: u32 = 32;
const WHOLE_A: u32 = 64;
const WHOLE_B: u32 = 128;

const NO_ACTIVATION: u32 = u32::MAX;

/// `struct GemmParams`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    a: u64,
    b: u64,
    bias: u64,
    residual: u64,
    d: u64,
    a_strides: [i64; 3],
    /// Of batch, N and K.
    pub b_strides: [i64; 3],
    /// Of right operands, of which all share one where that is 0, and N.
    pub bias_strides: [i64; 2],
    residual_strides: [i64; 3],
    d_strides: [i64; 3],
    groups: u32,
    rows: u32,
    m: u32,
    n: u32,
    k: u32,
    a_type: u32,
    b_type: u32,
    bias_type: u32,
    residual_type: u32,
    d_type: u32,
    activation: u32,
    flags: u32,
    alpha: f32,
    beta: f32,
}

/// The strides of a view of three dimensions. That of a single element is anything, and told as 0.
fn strides(view: &View<'_>) -> [i64; 3] {
    std::array::from_fn(|d| if view.shape()[d] > 1 { view.strides()[d] as i64 } else { 0 })
}

/// Whether runs along K are whole multiples of 16 bytes that start at such.
fn is_whole(address: u64, lines: [i64; 2], k_stride: i64, k: usize, dtype: DType) -> bool {
    let size = dtype.size() as u64;
    let aligned = |elements: u64| (elements * size).is_multiple_of(16);
    k_stride == 1 && address.is_multiple_of(16) && aligned(k as u64) && lines.iter().all(|s| aligned(s.unsigned_abs()))
}

impl Params {
    fn new(fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<Self> {
        let views = [operands.input(Gemm::NAME, A, "A")?, operands.input(Gemm::NAME, B, "B")?];
        let d = operands.output(Gemm::NAME, D, "D")?.view();
        Self::of(fixed, call, views, d, operands.optional(BIAS), operands.optional(RESIDUAL))
    }

    /// The parameters of a product: of operands, result, and where the epilogue has them bias and residual.
    pub(crate) fn of(
        fixed: &GemmStatic,
        call: &GemmDynamic,
        [a, b]: [&View<'_>; 2],
        d: &View<'_>,
        bias: Option<&View<'_>>,
        residual: Option<&View<'_>>,
    ) -> Result<Self> {
        let epilogue = &fixed.epilogue;
        let residual = if epilogue.residual == Some(Residual::Output) { Some(d) } else { residual };
        let (b_type, b_strides, packed) = match fixed.b {
            Rhs::Packed(format) => (format.row_dtype()?, [0, fixed.k as i64, 1], true),
            Rhs::Strided(dtype) => {
                let [batch, k, n] = strides(b);
                (dtype, [batch, n, k], false)
            }
        };
        let shared = b_strides[0] == 0;
        let (groups, rows) = if shared { (1, call.batch.saturating_mul(call.m)) } else { (call.batch, call.m) };
        // Half of what counts in 32 bits, so that no tile that begins below passes the end.
        let count = |count: usize| match i32::try_from(count) {
            Ok(count) => Ok(count as u32),
            Err(_) => Err(refuse(format!("{fixed} {call}: no kernel counts to {count}"))),
        };
        let (a_strides, d_strides) = (strides(a), strides(d));
        let bf16 = fixed.compute == Compute::Bf16;
        let flags = [
            (GATED, epilogue.gated),
            (ROUND_A, bf16 && fixed.a != DType::BF16),
            (ROUND_B, bf16 && !packed && b_type != DType::BF16),
            (HAS_BIAS, bias.is_some()),
            (HAS_RESIDUAL, residual.is_some()),
            (INTERLEAVED, packed),
            (WHOLE_A, is_whole(cuda::pointer(a)?, [a_strides[0], a_strides[1]], a_strides[2], fixed.k, fixed.a)),
            (WHOLE_B, is_whole(cuda::pointer(b)?, [b_strides[0], b_strides[1]], b_strides[2], fixed.k, b_type)),
        ];
        Ok(Self {
            a: cuda::pointer(a)?,
            b: cuda::pointer(b)?,
            bias: cuda::optional_pointer(bias)?,
            residual: cuda::optional_pointer(residual)?,
            d: cuda::pointer(d)?,
            a_strides,
            b_strides,
            bias_strides: [0, bias.and_then(|bias| bias.strides().last()).map_or(0, |&step| step as i64)],
            residual_strides: residual.map_or([0; 3], strides),
            d_strides,
            groups: count(groups)?,
            rows: count(rows)?,
            m: count(call.m)?,
            n: count(fixed.n)?,
            k: count(fixed.k)?,
            a_type: cuda::code(fixed.a),
            b_type: cuda::code(b_type),
            bias_type: epilogue.bias.map_or(0, cuda::code),
            residual_type: residual.map_or(0, |residual| cuda::code(residual.dtype())),
            d_type: cuda::code(fixed.out),
            activation: epilogue.activation.map_or(NO_ACTIVATION, |activation| activation as u32),
            flags: flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag).sum(),
            alpha: epilogue.alpha,
            beta: epilogue.beta,
        })
    }

    /// For a kernel that multiplies `dtype`: what is stored otherwise is converted on its way to shared memory.
    pub(crate) fn converted(mut self, dtype: DType) -> Self {
        for (flag, stored) in [(WHOLE_A, self.a_type), (WHOLE_B, self.b_type)] {
            if stored != cuda::code(dtype) {
                self.flags &= !flag;
            }
        }
        self
    }

    fn blocks(&self, tile: &Tile) -> usize {
        (self.rows as usize).div_ceil(tile.rows).saturating_mul((self.n as usize).div_ceil(tile.columns))
    }
}

/// # Safety
/// That of [`Row::run`]; the params are of these operands.
unsafe fn run(launch: &Launch<'_>, tile: &'static Tile, params: &Params, operands: Operands<'_>) -> Result<()> {
    let blocks = params.blocks(tile);
    let blocks = i32::try_from(blocks).map_err(|_| refuse(format!("{blocks} blocks are more than a grid has")))?;
    let grid = [blocks as u32, 1, params.groups.min(MAX_GRID_YZ as u32)];
    // SAFETY: the operator's check has seen that operands have the shapes and dtypes that the params say, and views lie
    // within their buffers; each element of D is one thread's.
    unsafe { cuda::launch(launch, &tile.kernel, grid, tile.threads, tile.shared_bytes, params, operands) }
}

unsafe fn run_simt(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let params = Params::new(fixed, call, operands)?;
    // SAFETY: passed on.
    unsafe { run(launch, &SIMT, &params, operands) }
}

unsafe fn run_gemv(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let params = Params::new(fixed, call, operands)?;
    let tiles = if params.b_type == cuda::code(DType::F32) { &GEMV_32 } else { &GEMV_16 };
    let tile = tiles.iter().find(|tile| params.rows as usize <= tile.rows).unwrap_or(&tiles[2]);
    // SAFETY: passed on.
    unsafe { run(launch, tile, &params, operands) }
}

unsafe fn run_mma<const TILE: usize>(
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    call: &GemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let dtype = multiplied_as(fixed).map_err(|reason| refuse(reason.to_string()))?;
    let params = Params::new(fixed, call, operands)?.converted(dtype);
    let tiles = if dtype == DType::BF16 { &MMA_BF16 } else { &MMA_F16 };
    // SAFETY: passed on; the kernel of that dtype reads operands of it where they are whole.
    unsafe { run(launch, &tiles[TILE], &params, operands) }
}

/// Runs a product on the tensor cores where they multiply its types, and else without.
///
/// # Safety
/// That of [`Row::run`].
#[cfg(not(target_os = "macos"))]
pub(super) unsafe fn run_any(
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    call: &GemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let hardware = launch.stream().device().hardware();
    let tensor_cores = cuda::needs(MMA_CAPABILITY, hardware).is_ok() && multiplied_as(fixed).is_ok();
    // SAFETY: passed on.
    unsafe {
        match tensor_cores {
            true => run_mma::<1>(launch, fixed, call, operands),
            false => run_simt(launch, fixed, call, operands),
        }
    }
}
