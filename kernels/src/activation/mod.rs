//! Activations, plain `y = act(x)` and gated `y = act(gate) · up` (Shazeer 2020), or what an [`Activation`] makes of
//! the up.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod problem;
pub mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

pub use problem::{Activate, ActivationDynamic, ActivationStatic, Gate};

use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::operator::{Operator, Row, refuse};
use crate::simd::{Simd, math};
use crate::table::joined;

/// The rows of [`Activate`].
pub fn rows() -> Vec<Row<Activate>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// An activation function of one element.
///
/// ```
/// use sinew_kernels::activation::Activation;
/// assert_eq!("gelu_pytorch_tanh".parse::<Activation>()?, Activation::GeluTanh);
/// assert!((Activation::Silu.reference(1.0) - 0.731_058_578_630_004_9).abs() < 1e-15);
/// # Ok::<(), sinew_kernels::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · σ(x)`, also called swish (Elfwing et al. 2018; Ramachandran et al. 2017).
    Silu,
    /// `x · Φ(x)` with the normal distribution's `Φ` (Hendrycks and Gimpel 2016), exact.
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`: the same paper's approximation.
    GeluTanh,
    /// `x · σ(1.702·x)`: the same paper's other approximation.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al. 2021).
    Relu2,
    /// `x' · σ(1.702·x')` with `x' = min(x, 7)`. Of a gate and its up it is `gate' · σ(1.702·gate') · (up' + 1)` with `up'`
    /// between -7 and 7: the experts of gpt-oss (OpenAI 2025), as vLLM calls it.
    SwigluOai,
}

/// The largest gate of [`Activation::SwigluOai`], and the largest magnitude of an up.
const SWIGLU_LIMIT: f32 = 7.0;

impl Activation {
    /// Every activation.
    pub const ALL: [Self; 7] =
        [Self::Silu, Self::Gelu, Self::GeluTanh, Self::QuickGelu, Self::Relu, Self::Relu2, Self::SwigluOai];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::QuickGelu => "quick_gelu",
            Self::Relu => "relu",
            Self::Relu2 => "relu2",
            Self::SwigluOai => "swigluoai",
        }
    }

    /// The function in f64. As in PyTorch, minus infinity gives NaN where infinity is multiplied by 0.
    pub fn reference(self, x: f64) -> f64 {
        reference::activation(self, x)
    }

    /// What the activation of a gate is multiplied with, in f64: `up`, but of [`Activation::SwigluOai`] `up' + 1`.
    pub fn factor_reference(self, up: f64) -> f64 {
        reference::factor(self, up)
    }

    /// The function on lanes, within 4 ulp or 1e-7 of [`Activation::reference`], whichever is more.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn apply<S: Simd>(self, x: S::F) -> S::F {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::Silu => times_sigmoid::<S>(x, S::sub(S::splat(0.0), x)),
                Self::Gelu => S::mul(x, math::normal_cdf::<S>(x)),
                Self::GeluTanh => {
                    // (1 + tanh u) / 2 = σ(2u), which does not cancel where u is negative.
                    const SCALE: f32 = 2.0 * 0.797_884_6;
                    let inner = S::fma(S::mul(x, x), S::splat(-SCALE * 0.044_715), S::splat(-SCALE));
                    times_sigmoid::<S>(x, S::mul(x, inner))
                }
                Self::QuickGelu => quick_gelu::<S>(x),
                // The operand's order is what lets NaN through.
                Self::Relu => S::max(S::splat(0.0), x),
                Self::Relu2 => {
                    let positive = S::max(S::splat(0.0), x);
                    S::mul(positive, positive)
                }
                // Not by `apply`: what calls itself becomes a function, outside of where its instructions are enabled.
                Self::SwigluOai => quick_gelu::<S>(S::min(S::splat(SWIGLU_LIMIT), x)),
            }
        }
    }

    /// [`Activation::factor_reference`] on lanes, rounded once.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn factor<S: Simd>(self, up: S::F) -> S::F {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::SwigluOai => {
                    // The operands' order lets NaN through here too.
                    let within = S::max(S::splat(-SWIGLU_LIMIT), S::min(S::splat(SWIGLU_LIMIT), up));
                    S::add(within, S::splat(1.0))
                }
                _ => up,
            }
        }
    }
}

/// `x · σ(1.702 x)`.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn quick_gelu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe { times_sigmoid::<S>(x, S::mul(x, S::splat(-1.702))) }
}

/// `x / (1 + e^minus)`.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn times_sigmoid<S: Simd>(x: S::F, minus: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe { S::div(x, S::add(S::splat(1.0), math::exp::<S>(minus))) }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Reads the names that Hugging Face's `config.json` uses, and vLLM's `swigluoai`.
    fn from_str(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "silu" | "swish" => Self::Silu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" | "gelu_tanh" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "relu" => Self::Relu,
            "relu2" | "relu_squared" => Self::Relu2,
            "swigluoai" => Self::SwigluOai,
            _ => {
                let reason = format!(
                    "no activation `{name}`; there are silu, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, quick_gelu, \
                     relu, relu2 and swigluoai"
                );
                return Err(refuse(Activate::NAME, reason));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_read_by_the_names_of_configuration_files() {
        let names = [
            ("silu", Activation::Silu),
            ("swish", Activation::Silu),
            ("gelu", Activation::Gelu),
            ("gelu_new", Activation::GeluTanh),
            ("gelu_pytorch_tanh", Activation::GeluTanh),
            ("gelu_fast", Activation::GeluTanh),
            ("quick_gelu", Activation::QuickGelu),
            ("relu", Activation::Relu),
            ("relu2", Activation::Relu2),
            ("swigluoai", Activation::SwigluOai),
        ];
        for (name, activation) in names {
            assert_eq!(name.parse::<Activation>().ok(), Some(activation));
        }
        for activation in Activation::ALL {
            assert_eq!(activation.name().parse::<Activation>().ok(), Some(activation));
        }
        let error = "tanhshrink".parse::<Activation>().expect_err("unknown").to_string();
        assert!(error.contains("tanhshrink") && error.contains("quick_gelu"), "{error}");
    }
}
