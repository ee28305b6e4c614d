//! What rows for NVIDIA GPUs share: modules, launches, and how operands are told to a kernel.
//!
//! Each operator has one `cuda.cu`, which stands on `prelude.cuh` and includes nothing. A kernel takes one struct by
//! value, declared there and in Rust as `#[repr(C)]`, with every gap named.

#[cfg(not(target_os = "macos"))]
pub(crate) mod cublaslt;
mod strided;

pub(crate) use strided::{Strided1, Strided2, Strided3, Strided4};

use bytemuck::{Pod, Zeroable};
use sinew_memory::cuda::{CudaModule, CudaStorage, CudaStream};
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, MAX_RANK, View};

use crate::operator::{Launch, Operands, Refusal, Work, refuse};
use crate::{Error, Result};

/// What stands before the source of every module: `prelude.cuh`.
pub const PRELUDE: &str = include_str!("prelude.cuh");

/// A module on the prelude, of files beside the one that says so, with the PTX that `xtask ptx` made of it.
macro_rules! module {
    ($name:literal, $($source:literal),+) => {
        sinew_memory::cuda::CudaModule {
            name: $name,
            prelude: $crate::cuda::PRELUDE,
            source: concat!($(include_str!($source)),+),
            ptx: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/ptx/", $name, ".gz")),
        }
    };
}
pub(crate) use module;

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Where its source is.
    pub module: &'static CudaModule,
    /// Its name there; no two kernels share one.
    pub name: &'static str,
}

/// Threads of a block, where there is no reason for another number.
pub(crate) const THREADS: u32 = 256;
/// The most blocks in the second and third dimension of a grid.
pub(crate) const MAX_GRID_YZ: usize = 65_535;
/// The most blocks in the first.
const MAX_GRID_X: usize = i32::MAX as usize;

/// Blocks of `threads` threads for `items` items, one thread each; a grid that strides takes fewer for very many.
pub(crate) fn blocks(items: usize, threads: u32) -> u32 {
    items.div_ceil(threads as usize).min(MAX_GRID_X) as u32
}

/// Threads of a block that has a row of `width` elements to itself. They decide the order of sums.
pub(crate) fn row_threads(width: usize) -> u32 {
    if width <= 512 { 32 } else { THREADS }
}

/// Enqueues a kernel that uses these operands. A grid without blocks is no work.
///
/// # Errors
/// A stream of another device, a kernel that cannot be compiled, or what the driver refuses.
///
/// # Safety
/// `P` is laid out as the kernel's own struct, and the kernel stays inside the operands, the workspace and the stream's
/// status words, with whatever they hold.
pub(crate) unsafe fn launch<P: Pod>(
    launch: &Launch<'_>,
    kernel: &'static Kernel,
    grid: [u32; 3],
    block: u32,
    shared_bytes: u32,
    params: &P,
    operands: Operands<'_>,
) -> Result<()> {
    let stream = uses(launch, kernel.name, operands)?;
    // SAFETY: the caller's promise; the buffers were just recorded as used.
    Ok(unsafe { stream.launch(kernel.module, kernel.name, grid, block, shared_bytes, bytemuck::bytes_of(params)) }?)
}

/// The stream, which these operands are recorded as used by.
///
/// # Errors
/// A stream of another device.
pub(crate) fn uses<'a>(launch: &Launch<'a>, kernel: &'static str, operands: Operands<'_>) -> Result<&'a CudaStream> {
    let stream = stream(launch, kernel)?;
    let views = operands.inputs.iter().flatten().chain(operands.outputs.iter().map(|output| output.view()));
    for view in views {
        view.buffer().record_use(launch.stream());
    }
    Ok(stream)
}

fn stream<'a>(launch: &Launch<'a>, kernel: &'static str) -> Result<&'a CudaStream> {
    CudaStream::of(launch.stream()).ok_or_else(|| Error::WrongDevice {
        kernel,
        expected: DeviceKind::CUDA.0,
        found: launch.stream().device().id().to_string(),
    })
}

/// What is wrong with a value that a kernel reports, where it is an index.
pub(crate) const OUTSIDE: &str = "index {} is outside its range";

/// Where a kernel reports, with `report`, a value that it finds wrong in the contents of its operands. `words` say what
/// is wrong with it, which stands for `{}`.
pub(crate) fn status_pointer(launch: &Launch<'_>, kernel: &Kernel, words: &'static str) -> Result<u64> {
    Ok(stream(launch, kernel.name)?.status(kernel.name, words)?)
}

/// The address of a view's first element.
pub(crate) fn pointer(view: &View<'_>) -> Result<u64> {
    let span = view.buffer().span();
    let storage = CudaStorage::of(&span.storage)
        .ok_or_else(|| refuse("cuda", format!("{:?} is no memory that a GPU reaches", view.buffer())))?;
    Ok(storage.address() + (span.offset + view.layout().offset() * view.dtype().size()) as u64)
}

/// The address of an optional view's first element; 0 where there is none.
pub(crate) fn optional_pointer(view: Option<&View<'_>>) -> Result<u64> {
    view.map_or(Ok(0), pointer)
}

/// The address of a workspace of `bytes` bytes, which is recorded as used; 0 where none are asked for.
pub(crate) fn workspace_pointer(launch: &Launch<'_>, bytes: usize) -> Result<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let workspace = launch.workspace(bytes)?;
    let span = workspace.span();
    let storage = CudaStorage::of(&span.storage)
        .ok_or_else(|| refuse("cuda", format!("{workspace:?} is no memory that a GPU reaches")))?;
    workspace.record_use(launch.stream());
    Ok(storage.address() + span.offset as u64)
}

/// The number of a dtype in kernels: `enum DType` of the prelude.
pub(crate) const fn code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::F64 => 3,
        DType::I64 => 4,
        DType::I32 => 5,
        DType::I16 => 6,
        DType::I8 => 7,
        DType::U32 => 8,
        DType::U8 => 9,
        DType::Bool => 10,
        DType::F8E4M3 => 11,
        DType::F8E5M2 => 12,
        // A dtype that the prelude does not know: rows admit none.
        _ => u32::MAX,
    }
}

/// A layout as kernels read it: `struct Layout` of the prelude. It starts at the element that the pointer names.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LayoutParam {
    pub rank: u32,
    pub sizes: [u32; MAX_RANK],
    pub padding: u32,
    pub strides: [i64; MAX_RANK],
    pub offset: i64,
}

/// The layout of a view's rows, and the stride of their elements: all dimensions but the last, and the last.
pub(crate) fn rows(view: &View<'_>) -> Result<(LayoutParam, i64)> {
    let layout = view.layout();
    let rank = layout.rank().saturating_sub(1);
    let mut param = LayoutParam { rank: rank as u32, ..Zeroable::zeroed() };
    for d in 0..rank {
        let large = |_| refuse("cuda", format!("a dimension of {layout:?} is too large for a kernel"));
        param.sizes[d] = u32::try_from(layout.shape()[d]).map_err(large)?;
        param.strides[d] = layout.strides()[d] as i64;
    }
    Ok((param, layout.strides().last().map_or(0, |&stride| stride as i64)))
}

/// Refuses GPUs below a compute capability.
pub(crate) fn needs(capability: (u32, u32), hardware: &Hardware) -> Result<(), Refusal> {
    let (major, minor) = capability;
    match hardware.accelerator.as_ref().and_then(|accelerator| accelerator.compute_capability) {
        Some(found) if found >= capability => Ok(()),
        Some((has, has_minor)) => {
            let reason = format!("needs compute capability {major}.{minor}, the GPU has {has}.{has_minor}");
            Err(Refusal::of_hardware(reason))
        }
        None => Err(Refusal::of_hardware("the device does not say what its compute capability is")),
    }
}

/// Predicted seconds of a row that reads memory at the share `reads` of the GPU's rate, and computes at the share
/// `computes` of its f32 rate.
pub(crate) fn cost(work: Work, hardware: &Hardware, reads: f64, computes: f64) -> f64 {
    let rates = &hardware.rates;
    let flops_per_s = rates.f32_flops_per_s * hardware.threads as f64 * computes;
    rates.launch_s + (work.bytes / (rates.read_bytes_per_s * reads)).max(work.flops / flops_per_s)
}
