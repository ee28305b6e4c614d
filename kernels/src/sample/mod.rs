//! Sampling: a token drawn from each row of logits, so that of a step only tokens need to leave the device.
//!
//! For each row, in this order (Holtzman et al. 2020 for `top_p`; Nguyen et al. 2024 for `min_p`):
//!
//! 1. at temperature 0, the largest logit of the lowest id wins, and nothing is drawn;
//! 2. weights are `w = exp((logit - max) / temperature)`;
//! 3. the `top_k` largest logits are kept, or all where it is 0; of equal ones those of the lowest ids;
//! 4. of these, largest first, each before which less than `top_p` of their total weight was kept;
//! 5. of these, those with `logit - max ≥ ln(min_p) · temperature`;
//! 6. the result is the first token, by id, at which the sum of kept weights exceeds `draw` times their total.
//!
//! A logit of `-inf` is never drawn. NaN, `+inf`, or a row of `-inf` alone is an error.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::DType;

use crate::Result;
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, refuse};
use crate::table::joined;

/// The operator: see the [module](self).
///
/// ```
/// use sinew_kernels::sample::{OPTIONS, Sample, SampleDynamic, SampleStatic};
/// use sinew_kernels::{Launch, Operands, Operator, Registry};
/// use sinew_memory::{Cpu, Device};
/// use sinew_tensor::Tensor;
///
/// let cpu = Cpu::get();
/// let logits = Tensor::from_slice(&cpu, &[0.1f32, 2.0, -1.0], &[1, 3])?;
/// // Temperature, top_p, min_p, draw.
/// let options = Tensor::from_slice(&cpu, &[0f32, 1.0, 0.0, 0.5], &[1, OPTIONS])?;
/// let top_k = Tensor::from_slice(&cpu, &[0u32], &[1])?;
/// let mut tokens = Tensor::from_slice(&cpu, &[0u32], &[1])?;
///
/// let (fixed, call) = (SampleStatic { vocab: 3 }, SampleDynamic { rows: 1 });
/// let registry = Registry::standard();
/// let row = registry.table::<Sample>()?.rows()[0];
/// let mut scratch = sinew_memory::Buffer::uninitialised(&cpu, (row.workspace)(&fixed, &call, cpu.hardware()))?;
/// let inputs = [Some(logits.view()), Some(options.view()), Some(top_k.view())];
/// let stream = cpu.clone().stream()?;
/// let operands = Operands { inputs: &inputs, outputs: &[tokens.view_mut()?] };
/// row.launch(&Launch::new(&stream, Some(&mut scratch))?, &fixed, &call, operands)?;
/// assert_eq!(tokens.to_vec::<u32>()?, [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sample;

/// Input: f32 `[rows, vocab]`.
pub const LOGITS: usize = 0;
/// Input: f32 `[rows, OPTIONS]`: temperature (at least 0), `top_p` (above 0, at most 1), `min_p` (0 to 1), and a draw
/// from `[0, 1)`.
pub const PARAMS: usize = 1;
/// Input: u32 `[rows]`.
pub const TOP_K: usize = 2;
/// Output: u32 `[rows]`.
pub const TOKENS: usize = 0;
/// Numbers in a row of [`PARAMS`].
pub const OPTIONS: usize = 4;

/// The static part of [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleStatic {
    /// Logits of a row.
    pub vocab: usize,
}

impl fmt::Display for SampleStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}", count_of(self.vocab, "token"))
    }
}

/// The dynamic part of [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleDynamic {
    /// Rows.
    pub rows: usize,
}

impl fmt::Display for SampleDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.rows, "row"))
    }
}

/// The rows of [`Sample`].
pub fn rows() -> Vec<Row<Sample>> {
    joined(&mut [
        vec![cpu::ROW],
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

impl Operator for Sample {
    const NAME: &'static str = "sample";
    type Static = SampleStatic;
    type Dynamic = SampleDynamic;

    fn bucket(call: SampleDynamic) -> SampleDynamic {
        SampleDynamic { rows: call.rows.min(1) }
    }

    fn anchor(_: &SampleStatic) -> SampleDynamic {
        SampleDynamic { rows: 1 }
    }

    fn check(fixed: &SampleStatic, call: &SampleDynamic, operands: Operands<'_>) -> Result<()> {
        let rows = call.rows;
        if fixed.vocab == 0 || u32::try_from(fixed.vocab).is_err() {
            return Err(refuse(Self::NAME, format!("{fixed}: ids are u32, and there must be one")));
        }
        let input = |at, name| operands.input(Self::NAME, at, name);
        expect(Self::NAME, "logits", input(LOGITS, "logits")?, DType::F32, &[rows, fixed.vocab])?;
        expect(Self::NAME, "params", input(PARAMS, "params")?, DType::F32, &[rows, OPTIONS])?;
        expect(Self::NAME, "top_k", input(TOP_K, "top_k")?, DType::U32, &[rows])?;
        expect(Self::NAME, "tokens", operands.output(Self::NAME, TOKENS, "tokens")?, DType::U32, &[rows])
    }

    fn work(fixed: &SampleStatic, call: &SampleDynamic) -> Work {
        // About as many operations as exp takes, for each logit.
        let logits = (call.rows * fixed.vocab) as f64;
        Work { flops: 20.0 * logits, bytes: 4.0 * logits }
    }
}
