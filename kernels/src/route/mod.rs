//! Routing: which experts each token goes to, with what weights, and the tokens sorted by expert.
//!
//! Of the router's logits `l[t]` of a token the `top_k` largest are taken, largest first, and of equal ones the lowest
//! expert first. Their weights are `p = softmax(l[t])`, over all experts, at the chosen ones, or, renormalised,
//! `p[e] / Σ p` over the chosen (Mixtral, Jiang et al. 2024; Qwen3-MoE has either). NaN counts as larger than all; a
//! token with NaN or infinity has NaN for weights, or where all its logits are minus infinity, as in PyTorch.
//!
//! A token and one of its experts are a slot, `t · top_k + j`. Slots are sorted by expert, those of one expert in
//! order, so that each expert's rows lie together: what [`grouped_gemm`](crate::grouped_gemm) multiplies.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;

use sinew_tensor::DType;

use crate::Result;
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, refuse};
use crate::table::joined;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

/// Routing of tokens to experts. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Route;

impl Route {
    /// Input: the router's logits, f32 `[tokens, experts]`.
    pub const LOGITS: usize = 0;
    /// Output: each token's experts, u32 `[tokens, top_k]`.
    pub const EXPERTS: usize = 0;
    /// Output: their weights, f32 `[tokens, top_k]`.
    pub const WEIGHTS: usize = 1;
    /// Output: where each expert's rows begin among the sorted ones, and how many those are: i32 `[experts + 1]`.
    pub const OFFSETS: usize = 2;
    /// Output: where each slot stands among the sorted rows, u32 `[tokens · top_k]`.
    pub const PLACE: usize = 3;
    /// Output: the token of each sorted row, u32 `[tokens · top_k]`.
    pub const SOURCE: usize = 4;
}

/// The static part of [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteStatic {
    /// Experts.
    pub experts: usize,
    /// Experts that a token goes to.
    pub top_k: usize,
    /// Whether the weights of a token add up to 1.
    pub renormalize: bool,
}

impl fmt::Display for RouteStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "top {} of {}", self.top_k, count_of(self.experts, "expert"))?;
        if self.renormalize { f.write_str(" renormalized") } else { Ok(()) }
    }
}

/// The dynamic part of [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteDynamic {
    /// Tokens.
    pub tokens: usize,
}

impl fmt::Display for RouteDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.tokens, "token"))
    }
}

impl Operator for Route {
    const NAME: &'static str = "route";
    type Static = RouteStatic;
    type Dynamic = RouteDynamic;

    fn bucket(_: RouteDynamic) -> RouteDynamic {
        RouteDynamic { tokens: 1 }
    }

    fn anchor(_: &RouteStatic) -> RouteDynamic {
        RouteDynamic { tokens: 1 }
    }

    fn check(fixed: &RouteStatic, call: &RouteDynamic, operands: Operands<'_>) -> Result<()> {
        let RouteStatic { experts, top_k, .. } = *fixed;
        let tokens = call.tokens;
        if top_k == 0 || top_k > experts {
            return Err(refuse(
                Self::NAME,
                format!("{fixed}: a token goes to at least one expert, and to no more than all"),
            ));
        }
        // Offsets are i32.
        let Some(slots) = tokens.checked_mul(top_k).filter(|&slots| i32::try_from(slots).is_ok()) else {
            return Err(refuse(
                Self::NAME,
                format!("{tokens} tokens with {top_k} experts each are more than 2^31 - 1 rows"),
            ));
        };
        let logits = operands.input(Self::NAME, Self::LOGITS, "logits")?;
        expect(Self::NAME, "logits", logits, DType::F32, &[tokens, experts])?;
        let outputs: [(&str, usize, DType, &[usize]); 5] = [
            ("experts", Self::EXPERTS, DType::U32, &[tokens, top_k]),
            ("weights", Self::WEIGHTS, DType::F32, &[tokens, top_k]),
            ("offsets", Self::OFFSETS, DType::I32, &[experts + 1]),
            ("place", Self::PLACE, DType::U32, &[slots]),
            ("source", Self::SOURCE, DType::U32, &[slots]),
        ];
        outputs.into_iter().try_for_each(|(name, position, dtype, shape)| {
            expect(Self::NAME, name, operands.output(Self::NAME, position, name)?, dtype, shape)
        })
    }

    fn work(fixed: &RouteStatic, call: &RouteDynamic) -> Work {
        let (tokens, experts, top_k) = (call.tokens as f64, fixed.experts as f64, fixed.top_k as f64);
        // A softmax takes some ten operations an expert, and choosing a comparison for each of the best.
        let flops = tokens * experts * (10.0 + top_k);
        Work { flops, bytes: 4.0 * (tokens * experts + 4.0 * tokens * top_k + experts) }
    }
}

/// The rows of [`Route`].
pub fn rows() -> Vec<Row<Route>> {
    joined(&mut [
        vec![cpu::ROW],
        #[cfg(feature = "cuda")]
        vec![cuda::ROW],
        #[cfg(feature = "wgpu")]
        vec![wgpu::ROW],
    ])
}
