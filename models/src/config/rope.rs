//! Rotary position embedding: which frequencies, and how they are stretched to a longer context.

use std::f64::consts::PI;

use crate::error::{Error, Result};
use crate::files::{Fields, brief};

use super::MAX_SIZE;

/// The base that transformers assumes when a config names none.
const DEFAULT_THETA: f64 = 10_000.0;
/// YaRN's bounds between extrapolation and interpolation, in rotations over the original context
/// (section 3.2 of the paper).
const YARN_BETA_FAST: f64 = 32.0;
const YARN_BETA_SLOW: f64 = 1.0;

const SUPPORTED: &str = "default, linear, llama3, yarn";

/// The rotary embedding of a decoder.
///
/// ```
/// use sinew_models::config::{RopeConfig, RopeScaling};
///
/// let rope = RopeConfig { theta: 10_000.0, partial_rotary_factor: 1.0, scaling: RopeScaling::None };
/// let (inv_freq, attention_scale) = rope.frequencies(4);
/// assert_eq!(inv_freq, [1.0, 0.01]);
/// assert_eq!(attention_scale, 1.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// The share of each head that is rotated, from its front; 1 for the architectures that are read so far.
    pub partial_rotary_factor: f64,
    /// How the frequencies are changed for contexts longer than the one in training.
    pub scaling: RopeScaling,
}

/// A change to the frequencies for longer contexts, with the field names of `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// The frequencies as they are.
    None,
    /// Position interpolation: every frequency is divided by `factor`.
    Linear {
        /// How many times longer the context becomes.
        factor: f64,
    },
    /// Llama 3.1's scheme: long wavelengths are divided by `factor`, short ones kept, those between blended.
    Llama3 {
        /// The divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The context in training.
        original_max_position_embeddings: usize,
    },
    /// YaRN, <https://arxiv.org/abs/2309.00071>.
    Yarn {
        /// How many times longer the context becomes.
        factor: f64,
        /// Dimensions that turn more often than this within the original context are extrapolated.
        beta_fast: f64,
        /// Dimensions that turn less often than this are interpolated.
        beta_slow: f64,
        /// The factor on cos and sin, where the config spells it out.
        attention_factor: Option<f64>,
        /// DeepSeek's weight of `ln(factor)` in the numerator of the attention factor.
        mscale: Option<f64>,
        /// The same in the denominator.
        mscale_all_dim: Option<f64>,
        /// The context in training.
        original_max_position_embeddings: usize,
        /// Whether the blend starts and ends on whole dimensions.
        truncate: bool,
    },
}

impl RopeConfig {
    /// The inverse frequencies, and the factor on cos and sin, for heads of `head_dim`.
    ///
    /// With `d = head_dim * partial_rotary_factor`, pair `i` of a head turns by `position * inv_freq[i]`, where
    /// before scaling `inv_freq[i] = theta^(-2i/d)`, for `i` in `0..d/2`. The scalings are those of
    /// `modeling_rope_utils.py` in transformers, which computes them in f32; here everything is f64.
    pub fn frequencies(&self, head_dim: usize) -> (Vec<f64>, f64) {
        let dim = self.rotary_dim(head_dim);
        let d = dim as f64;
        let plain = (0..dim).step_by(2).map(|i| self.theta.powf(i as f64 / d).recip());
        match self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let context = original_max_position_embeddings as f64;
                let scaled = plain.map(|f| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength > context / low_freq_factor {
                        f / factor
                    } else if wavelength < context / high_freq_factor {
                        f
                    } else {
                        let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                });
                (scaled.collect(), 1.0)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position_embeddings, truncate, .. } => {
                // The dimension that turns `rotations` times within the original context.
                let dimension = |rotations: f64| {
                    let context = original_max_position_embeddings as f64;
                    d * (context / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let mut high = high.min(d - 1.0);
                if low == high {
                    // As transformers: a ramp of no width would divide by zero.
                    high += 0.001;
                }
                let scaled = plain.enumerate().map(|(i, extrapolated)| {
                    let interpolated = extrapolated / factor;
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    interpolated * ramp + extrapolated * (1.0 - ramp)
                });
                (scaled.collect(), self.scaling.attention_scale())
            }
        }
    }

    /// How many of the `head_dim` elements are rotated.
    pub fn rotary_dim(&self, head_dim: usize) -> usize {
        // Truncated as Python's int(); a float cast saturates, so that no factor gets past the head.
        ((head_dim as f64 * self.partial_rotary_factor) as usize).min(head_dim)
    }

    /// Reads `rope_scaling` (until transformers 4) or `rope_parameters` (from 5 on), whichever is there.
    pub(super) fn read(config: &Fields<'_>, max_position_embeddings: usize) -> Result<Self> {
        // transformers lets `rope_scaling` win when a file has both.
        let old = config.section("rope_scaling")?.filter(|s| !s.is_empty());
        let new = config.section("rope_parameters")?.filter(|s| !s.is_empty());
        let rope = old.or(new);
        let nested = rope.and_then(|rope| rope.keys().find(|key| key.ends_with("_attention")));
        if let Some(key) = nested {
            return Err(Error::Unsupported {
                what: format!("rope_parameters per layer type (`{key}`)"),
                supported: "one set of rope parameters for all layers".to_owned(),
            });
        }

        // Inside the section first, then beside it.
        let inside_or_beside = |name: &str| -> Result<Option<f64>> {
            match rope.map(|rope| rope.positive(name)).transpose()?.flatten() {
                Some(value) => Ok(Some(value)),
                None => config.positive(name),
            }
        };
        let theta = inside_or_beside("rope_theta")?.unwrap_or(DEFAULT_THETA);
        let partial_rotary_factor = inside_or_beside("partial_rotary_factor")?.unwrap_or(1.0);
        if partial_rotary_factor != 1.0 {
            return Err(Error::Unsupported {
                what: format!("partial_rotary_factor {partial_rotary_factor}"),
                supported: "1 (whole heads are rotated)".to_owned(),
            });
        }
        let scaling = match rope {
            Some(rope) => RopeScaling::read(config, &rope, theta, max_position_embeddings)?,
            None => RopeScaling::None,
        };
        Ok(Self { theta, partial_rotary_factor, scaling })
    }
}

impl RopeScaling {
    /// The factor on cos and sin: 1 but for YaRN, where it is `0.1 ln(factor) + 1` unless the config says else.
    pub fn attention_scale(&self) -> f64 {
        let RopeScaling::Yarn { factor, attention_factor, mscale, mscale_all_dim, .. } = *self else {
            return 1.0;
        };
        let scale = |weight: f64| match factor <= 1.0 {
            true => 1.0,
            false => 0.1 * weight * factor.ln() + 1.0,
        };
        match (attention_factor, mscale, mscale_all_dim) {
            (Some(given), ..) => given,
            // As in Python, a weight of zero counts as not given.
            (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
            _ => scale(1.0),
        }
    }

    fn read(config: &Fields<'_>, rope: &Fields<'_>, theta: f64, max_position_embeddings: usize) -> Result<Self> {
        // "type" is the older spelling.
        let kind = match rope.text("rope_type")? {
            Some(kind) => kind,
            None => rope.text("type")?.unwrap_or("default"),
        };
        let original_max_position_embeddings = || -> Result<usize> {
            Ok(match config.size("original_max_position_embeddings", MAX_SIZE)? {
                Some(original) => original,
                None => rope.size("original_max_position_embeddings", MAX_SIZE)?.unwrap_or(max_position_embeddings),
            })
        };
        let required = |name: &str| rope.required(name, rope.positive(name)?);
        match kind {
            "default" => {
                if let Some(section) = rope.get("mrope_section") {
                    return Err(Error::Unsupported {
                        what: format!("mrope_section {}", brief(section)),
                        supported: SUPPORTED.to_owned(),
                    });
                }
                Ok(RopeScaling::None)
            }
            "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
            "llama3" => {
                let low_freq_factor = required("low_freq_factor")?;
                let high_freq_factor = required("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    return Err(rope.problem(
                        "high_freq_factor",
                        &format!("is {high_freq_factor}, and must be greater than low_freq_factor, {low_freq_factor}"),
                    ));
                }
                Ok(RopeScaling::Llama3 {
                    factor: required("factor")?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: original_max_position_embeddings()?,
                })
            }
            "yarn" => {
                if theta <= 1.0 {
                    return Err(rope.problem("rope_theta", "must be greater than 1 for yarn"));
                }
                let original = original_max_position_embeddings()?;
                // As in Python, a bound of zero counts as not given.
                let bound = |name: &str, default: f64| -> Result<f64> {
                    Ok(match rope.number(name)? {
                        None | Some(0.0) => default,
                        Some(given) if given > 0.0 => given,
                        Some(given) => {
                            return Err(rope.problem(name, &format!("is {given}, and must be positive")));
                        }
                    })
                };
                let beta_fast = bound("beta_fast", YARN_BETA_FAST)?;
                let beta_slow = bound("beta_slow", YARN_BETA_SLOW)?;
                if beta_fast < beta_slow {
                    return Err(rope.problem(
                        "beta_fast",
                        &format!("is {beta_fast}, and must not be less than beta_slow, {beta_slow}"),
                    ));
                }
                let scaling = RopeScaling::Yarn {
                    factor: rope.positive("factor")?.unwrap_or(max_position_embeddings as f64 / original as f64),
                    beta_fast,
                    beta_slow,
                    attention_factor: rope.number("attention_factor")?,
                    mscale: rope.number("mscale")?,
                    mscale_all_dim: rope.number("mscale_all_dim")?,
                    original_max_position_embeddings: original,
                    truncate: rope.flag("truncate")?.unwrap_or(true),
                };
                let scale = scaling.attention_scale();
                if !(scale.is_finite() && scale > 0.0) {
                    return Err(
                        rope.problem("attention_factor", &format!("comes out as {scale}, and must be positive"))
                    );
                }
                Ok(scaling)
            }
            other => Err(Error::Unsupported {
                what: format!("rope type `{}`", other.escape_debug()),
                supported: SUPPORTED.to_owned(),
            }),
        }
    }
}
