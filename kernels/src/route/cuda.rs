//! One row of two kernels: a warp for each token, and then a block for each expert.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Route, RouteDynamic, RouteStatic};
use crate::Result;
use crate::cuda::{self, Kernel, THREADS};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};

/// The kernels' source.
pub static CUDA: CudaModule = cuda::module!("route", "cuda.cu");
static CHOOSE: Kernel = Kernel { module: &CUDA, name: "route_choose" };
static SORT: Kernel = Kernel { module: &CUDA, name: "route_sort" };

/// Threads of a warp, which has a token.
const WARP: usize = 32;
/// Threads of a block that chooses: few tokens are to be spread over many multiprocessors.
const CHOOSING: u32 = 64;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    logits: u64,
    experts: u64,
    weights: u64,
    offsets: u64,
    place: u64,
    source: u64,
    logits_strides: [i64; 2],
    experts_strides: [i64; 2],
    weights_strides: [i64; 2],
    offsets_step: i64,
    place_step: i64,
    source_step: i64,
    tokens: u64,
    num_experts: u32,
    top_k: u32,
    renormalize: u32,
    padding: u32,
}

pub(super) const ROW: Row<Route> = Row {
    name: "route.cuda",
    device: DeviceKind::CUDA,
    arithmetic: Arithmetic::named("route.cuda"),
    admits: |_, _| Ok(()),
    cost: |fixed, call, hardware| cuda::cost(Route::work(fixed, call), hardware, 0.3, 0.1),
    workspace: |_, _, _| 0,
    run,
};

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &RouteStatic, call: &RouteDynamic, operands: Operands<'_>) -> Result<()> {
    let logits = operands.input(Route::NAME, Route::LOGITS, "logits")?;
    let experts = operands.output(Route::NAME, Route::EXPERTS, "experts")?.view();
    let weights = operands.output(Route::NAME, Route::WEIGHTS, "weights")?.view();
    let offsets = operands.output(Route::NAME, Route::OFFSETS, "offsets")?.view();
    let place = operands.output(Route::NAME, Route::PLACE, "place")?.view();
    let source = operands.output(Route::NAME, Route::SOURCE, "source")?.view();
    let plane = |strides: &[usize]| [strides[0] as i64, strides[1] as i64];
    let count = |count: usize| {
        u32::try_from(count).map_err(|_| crate::operator::refuse(Route::NAME, format!("no kernel counts to {count}")))
    };
    let params = Params {
        logits: cuda::pointer(logits)?,
        experts: cuda::pointer(experts)?,
        weights: cuda::pointer(weights)?,
        offsets: cuda::pointer(offsets)?,
        place: cuda::pointer(place)?,
        source: cuda::pointer(source)?,
        logits_strides: plane(logits.strides()),
        experts_strides: plane(experts.strides()),
        weights_strides: plane(weights.strides()),
        offsets_step: offsets.strides()[0] as i64,
        place_step: place.strides()[0] as i64,
        source_step: source.strides()[0] as i64,
        tokens: call.tokens as u64,
        num_experts: count(fixed.experts)?,
        top_k: count(fixed.top_k)?,
        renormalize: u32::from(fixed.renormalize),
        padding: 0,
    };
    let choosing = cuda::blocks(call.tokens.saturating_mul(WARP), CHOOSING);
    let sorting = cuda::blocks(fixed.experts + 1, 1);
    // SAFETY: the operator's check has seen shapes and dtypes; views lie within their buffers, and the indices of an
    // output share no elements, so that blocks do not meet. The second kernel reads experts that the first one wrote.
    unsafe {
        cuda::launch(launch, &CHOOSE, [choosing, 1, 1], CHOOSING, 0, &params, operands)?;
        cuda::launch(launch, &SORT, [sorting, 1, 1], THREADS, 0, &params, operands)
    }
}
