//! Rotary position embedding: which frequencies, and how they are stretched to a longer context.

use std::f64::consts::PI;

use crate::error::{Error, Result};
use crate::json::Fields;

use super::fields::MAX_SIZE;

/// YaRN's bounds between extrapolation and interpolation, in rotations over the original context
/// (section 3.2 of the paper).
const YARN_BETA_FAST: f64 = 32.0;
const YARN_BETA_SLOW: f64 = 1.0;

const SUPPORTED: &str = "default, linear, dynamic, llama3, yarn, longrope";

/// What an architecture assumes of its rotary embedding where `config.json` says nothing, and where it says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeDefaults {
    pub theta: f64,
    /// The field beside the section of the embedding.
    pub theta_field: &'static str,
    /// The share of each head that is rotated, and the field beside the section; `None` where it is always all.
    pub partial: Option<(f64, &'static str)>,
    /// `None` is `max_position_embeddings`.
    pub original_max_position_embeddings: Option<usize>,
}

impl RopeDefaults {
    pub(crate) const USUAL: Self = Self::theta(10_000.0);

    pub(crate) const fn theta(theta: f64) -> Self {
        Self { theta, theta_field: "rope_theta", partial: None, original_max_position_embeddings: None }
    }
}

/// A rotary embedding.
///
/// ```
/// use sinew_models::config::{RopeConfig, RopeScaling};
///
/// let rope = RopeConfig { theta: 10_000.0, partial_rotary_factor: 1.0, scaling: RopeScaling::None };
/// let (inv_freq, attention_scale) = rope.frequencies(4, 4096);
/// assert_eq!(inv_freq, [1.0, 0.01]);
/// assert_eq!(attention_scale, 1.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// The share of each head that is rotated, from its front.
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
    /// NTK-aware: beyond the context in training the base grows with the sequence, such that the lowest frequency is
    /// interpolated and the highest kept.
    Dynamic {
        /// How many times longer the context becomes.
        factor: f64,
        /// The context in training.
        max_position_embeddings: usize,
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
    /// LongRoPE, <https://arxiv.org/abs/2402.13753>: every frequency has a divisor of its own, found by search.
    LongRope {
        /// The divisors for contexts up to the original one, one for each pair.
        short_factor: Vec<f64>,
        /// The divisors for longer contexts.
        long_factor: Vec<f64>,
        /// The factor on cos and sin.
        attention_factor: f64,
        /// The context in training.
        original_max_position_embeddings: usize,
    },
}

impl RopeConfig {
    /// The inverse frequencies, and the factor on cos and sin, for heads of `head_dim` in sequences of up to `context`
    /// tokens.
    ///
    /// With `d = head_dim * partial_rotary_factor`, pair `i` of a head turns by `position * inv_freq[i]`, where
    /// before scaling `inv_freq[i] = theta^(-2i/d)`, for `i` in `0..d/2`. The scalings are those of
    /// `modeling_rope_utils.py` in transformers, which computes them in f32; here everything is f64.
    ///
    /// Dynamic scaling and LongRoPE depend on the length of the sequence. Here that is `context`, for which a model is
    /// loaded, and not the length so far, so that a token's numbers do not depend on how a prompt is divided.
    pub fn frequencies(&self, head_dim: usize, context: usize) -> (Vec<f64>, f64) {
        let dim = self.rotary_dim(head_dim);
        let d = dim as f64;
        let of_base = |base: f64| (0..dim).step_by(2).map(move |i| base.powf(i as f64 / d).recip());
        let plain = of_base(self.theta);
        match &self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            &RopeScaling::Dynamic { factor, max_position_embeddings } => {
                let stretch = context.max(max_position_embeddings) as f64 / max_position_embeddings as f64;
                let grown = (factor * stretch - (factor - 1.0)).powf(d / (d - 2.0));
                (of_base(self.theta * grown).collect(), 1.0)
            }
            RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings, attention_factor } => {
                let factors = if context > *original_max_position_embeddings { long_factor } else { short_factor };
                (plain.zip(factors).map(|(f, factor)| f / factor).collect(), *attention_factor)
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
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
            &RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position_embeddings, truncate, .. } => {
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
    pub(crate) fn read(config: &Fields<'_>, defaults: RopeDefaults, max_position_embeddings: usize) -> Result<Self> {
        // transformers lets `rope_scaling` win when a file has both.
        let rope = match old_section(config)? {
            Some(old) => Some(old),
            None => new_section(config)?,
        };
        let nested = rope.and_then(|rope| rope.keys().find(|key| key.ends_with("_attention")));
        if let Some(key) = nested {
            return Err(Error::Unsupported {
                what: format!("rope_parameters per layer type (`{key}`)"),
                supported: "one set of rope parameters for all layers".to_owned(),
            });
        }
        Self::read_section(config, rope, defaults, max_position_embeddings)
    }

    /// Reads an embedding for layers with full attention and one for those with a window: two sections of
    /// `rope_parameters` (from transformers 5 on), or fields of their own beside a `rope_scaling` of the former.
    pub(crate) fn read_by_layer_type(
        config: &Fields<'_>,
        [full, sliding]: [RopeDefaults; 2],
        max_position_embeddings: usize,
    ) -> Result<[Self; 2]> {
        let sections = new_section(config)?;
        let section = |name| sections.map(|sections| sections.section(name)).transpose().map(Option::flatten);
        let (of_full, of_sliding) = (section("full_attention")?, section("sliding_attention")?);
        if sections.is_some() && of_full.is_none() && of_sliding.is_none() {
            return Err(config.problem("rope_parameters", "must have full_attention and sliding_attention"));
        }
        let of_full = match (old_section(config)?, of_full) {
            // transformers mixes the two, by the version in different ways.
            (Some(_), Some(_)) => {
                return Err(config.problem("rope_scaling", "contradicts rope_parameters: a config has one of the two"));
            }
            (old, new) => old.or(new),
        };
        Ok([
            Self::read_section(config, of_full, full, max_position_embeddings)?,
            Self::read_section(config, of_sliding, sliding, max_position_embeddings)?,
        ])
    }

    fn read_section(
        config: &Fields<'_>,
        rope: Option<Fields<'_>>,
        defaults: RopeDefaults,
        max_position_embeddings: usize,
    ) -> Result<Self> {
        // Inside the section first, then beside it.
        let inside_or_beside = |name: &str, field: &str| -> Result<Option<f64>> {
            match rope.map(|rope| rope.positive(name)).transpose()?.flatten() {
                Some(value) => Ok(Some(value)),
                None => config.positive(field),
            }
        };
        let theta = inside_or_beside("rope_theta", defaults.theta_field)?.unwrap_or(defaults.theta);
        const PARTIAL: &str = "partial_rotary_factor";
        let (usual, field) = defaults.partial.unwrap_or((1.0, PARTIAL));
        let partial_rotary_factor = inside_or_beside(PARTIAL, field)?.unwrap_or(usual);
        if partial_rotary_factor > 1.0 || (defaults.partial.is_none() && partial_rotary_factor != 1.0) {
            return Err(Error::Unsupported {
                what: format!("{PARTIAL} {partial_rotary_factor}"),
                supported: match defaults.partial {
                    Some(_) => "up to 1".to_owned(),
                    None => "1 (whole heads are rotated)".to_owned(),
                },
            });
        }
        let scaling = match rope {
            Some(rope) => RopeScaling::read(config, &rope, theta, defaults, max_position_embeddings)?,
            None => RopeScaling::None,
        };
        Ok(Self { theta, partial_rotary_factor, scaling })
    }

    /// Checks that it fits heads of `head_dim`.
    pub(crate) fn check(&self, config: &Fields<'_>, head_dim: usize) -> Result<()> {
        let dim = self.rotary_dim(head_dim);
        if dim == 0 || !dim.is_multiple_of(2) {
            let what = format!("is {head_dim}, of which rotary embedding turns {dim}: that must be even");
            return Err(config.problem("head_dim", &what));
        }
        if let RopeScaling::LongRope { short_factor, long_factor, .. } = &self.scaling {
            for (name, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                if factors.len() != dim / 2 {
                    let what = format!("has {} entries for {} pairs of a head", factors.len(), dim / 2);
                    return Err(config.problem(name, &what));
                }
            }
        }
        for context in [1, MAX_SIZE] {
            let (frequencies, scale) = self.frequencies(head_dim, context);
            if !scale.is_finite() || frequencies.iter().any(|frequency| !frequency.is_finite()) {
                let what = format!("is {}, and with the scaling gives frequencies that are no numbers", self.theta);
                return Err(config.problem("rope_theta", &what));
            }
        }
        Ok(())
    }
}

/// A section that says something. Until transformers 4 only scaled embeddings had one.
fn old_section<'a>(config: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    Ok(config.section("rope_scaling")?.filter(|section| !section.is_empty()))
}

fn new_section<'a>(config: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    Ok(config.section("rope_parameters")?.filter(|section| !section.is_empty()))
}

impl RopeScaling {
    /// The length from which on the frequencies are others than up to there.
    pub(crate) fn changes_beyond(&self) -> Option<usize> {
        match *self {
            Self::Dynamic { max_position_embeddings, .. } => Some(max_position_embeddings),
            Self::LongRope { original_max_position_embeddings, .. } => Some(original_max_position_embeddings),
            _ => None,
        }
    }

    /// The factor on cos and sin: 1 but for LongRoPE, and for YaRN, where it is `0.1 ln(factor) + 1` unless the config
    /// says else.
    pub fn attention_scale(&self) -> f64 {
        let (factor, attention_factor, mscale, mscale_all_dim) = match *self {
            Self::Yarn { factor, attention_factor, mscale, mscale_all_dim, .. } => {
                (factor, attention_factor, mscale, mscale_all_dim)
            }
            Self::LongRope { attention_factor, .. } => return attention_factor,
            _ => return 1.0,
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

    fn read(
        config: &Fields<'_>,
        rope: &Fields<'_>,
        theta: f64,
        defaults: RopeDefaults,
        max_position_embeddings: usize,
    ) -> Result<Self> {
        // "type" is the older spelling.
        let kind = match rope.text("rope_type")? {
            Some(kind) => kind,
            None => rope.text("type")?.unwrap_or("default"),
        };
        let original_max_position_embeddings = || -> Result<usize> {
            Ok(match config.size("original_max_position_embeddings", MAX_SIZE)? {
                Some(original) => original,
                None => rope
                    .size("original_max_position_embeddings", MAX_SIZE)?
                    .or(defaults.original_max_position_embeddings)
                    .unwrap_or(max_position_embeddings),
            })
        };
        let required = |name: &str| rope.required(name, rope.positive(name)?);
        match kind {
            // `mrope_section` divides a head among the axes of images. Positions of text are alike on all of them.
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
            "dynamic" => {
                let factor = required("factor")?;
                if factor < 1.0 {
                    return Err(rope.problem("factor", &format!("is {factor}, and must be at least 1")));
                }
                Ok(RopeScaling::Dynamic { factor, max_position_embeddings })
            }
            "longrope" | "su" => {
                let original = original_max_position_embeddings()?;
                let factors = |name: &str| rope.required(name, rope.positives(name)?);
                let factor = rope.positive("factor")?.unwrap_or(max_position_embeddings as f64 / original as f64);
                let attention_factor = match rope.positive("attention_factor")? {
                    Some(given) => given,
                    None if factor <= 1.0 => 1.0,
                    None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
                };
                if !attention_factor.is_finite() {
                    return Err(rope.problem("original_max_position_embeddings", "must be greater than 1"));
                }
                Ok(RopeScaling::LongRope {
                    short_factor: factors("short_factor")?,
                    long_factor: factors("long_factor")?,
                    attention_factor,
                    original_max_position_embeddings: original,
                })
            }
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
