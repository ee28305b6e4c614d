//! One row: a block for each row of logits.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{LOGITS, PARAMS, Sample, SampleDynamic, SampleStatic, TOKENS, TOP_K};
use crate::Result;
use crate::cuda::{self, Kernel};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("sample", "cuda.cu");
static SAMPLE: Kernel = Kernel { module: &CUDA, name: "sample" };

const THREADS: u32 = 512;
/// The most rows that have a block of their own.
const MOST_BLOCKS: usize = 65_535;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    logits: u64,
    options: u64,
    top_k: u64,
    tokens: u64,
    status: u64,
    logits_row: i64,
    logits_step: i64,
    options_row: i64,
    options_step: i64,
    top_k_step: i64,
    tokens_step: i64,
    rows: u64,
    vocab: u64,
}

pub(super) fn rows() -> Vec<Row<Sample>> {
    vec![Row {
        name: "sample.cuda",
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("sample.cuda"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| {
            // One multiprocessor has a row, and reads it some seventy times.
            let alone = hardware.threads as f64 / call.rows.clamp(1, hardware.threads.max(1)) as f64;
            cuda::cost(Sample::work(fixed, call), hardware, 0.02 / alone, 0.02 / alone)
        },
        workspace: |_, _, _| 0,
        run,
    }]
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &SampleStatic, call: &SampleDynamic, operands: Operands<'_>) -> Result<()> {
    let logits = operands.input(Sample::NAME, LOGITS, "logits")?;
    let options = operands.input(Sample::NAME, PARAMS, "params")?;
    let top_k = operands.input(Sample::NAME, TOP_K, "top_k")?;
    let tokens = operands.output(Sample::NAME, TOKENS, "tokens")?.view();
    let params = Params {
        logits: cuda::pointer(logits)?,
        options: cuda::pointer(options)?,
        top_k: cuda::pointer(top_k)?,
        tokens: cuda::pointer(tokens)?,
        status: cuda::status_pointer(launch, &SAMPLE, "row {} has no finite logit, or has NaN or infinity")?,
        logits_row: logits.strides()[0] as i64,
        logits_step: logits.strides()[1] as i64,
        options_row: options.strides()[0] as i64,
        options_step: options.strides()[1] as i64,
        top_k_step: top_k.strides()[0] as i64,
        tokens_step: tokens.strides()[0] as i64,
        rows: call.rows as u64,
        vocab: fixed.vocab as u64,
    };
    let blocks = call.rows.min(MOST_BLOCKS) as u32;
    // SAFETY: the operator's check has seen shapes and dtypes; a block writes the tokens of its own rows alone.
    unsafe { cuda::launch(launch, &SAMPLE, [blocks, 1, 1], THREADS, 0, &params, operands) }
}
