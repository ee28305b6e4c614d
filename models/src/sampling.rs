//! The next token from its logits.
//!
//! The steps, in the order in which they are applied, which is that of vLLM up to the temperature and that of
//! transformers after it:
//!
//! 1. `logit_bias` is added;
//! 2. `repetition_penalty` divides the positive logits of tokens in the prompt or the generated text, and multiplies
//!    the negative ones (<https://arxiv.org/abs/1909.05858>);
//! 3. `frequency_penalty * count + presence_penalty` is subtracted for tokens in the generated text;
//! 4. what `no_repeat_ngram_size`, `bad_words` and `not_before` rule out falls to minus infinity;
//! 5. at temperature 0 the largest logit wins; otherwise logits are divided by the temperature;
//! 6. `top_k`, then `top_p` over the probabilities of what is left, then `min_p` relative to the largest;
//! 7. one draw from what is left, by token id.
//!
//! Equal logits are ordered by token id, the lowest first. So `top_k = 1` is greedy, and `top_k = k` keeps k tokens,
//! where transformers would keep every token that ties with the last.

use std::cmp::Ordering;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use self::filters::{collect_top_k, keep_min_p, keep_top_p, softmax};
use self::processors::Changed;
use crate::error::{Error, Result};

mod filters;
mod processors;

/// How the next token is chosen. The default is greedy.
///
/// On a GPU tokens are drawn where the logits are, unless bias, penalties or what is ruled out change the logits first:
/// then those of the step come to the host.
///
/// ```
/// use sinew_models::{Sampler, SamplingParams};
///
/// let mut greedy = Sampler::new(SamplingParams::default())?;
/// assert_eq!(greedy.sample(&[0.1, 2.0, -1.0], &[])?, 1);
///
/// let params = SamplingParams { temperature: 0.8, top_p: 0.9, seed: 7, ..SamplingParams::default() };
/// let (mut one, mut other) = (Sampler::new(params.clone())?, Sampler::new(params)?);
/// for _ in 0..10 {
///     assert_eq!(one.sample(&[0.1, 0.2, 0.3], &[])?, other.sample(&[0.1, 0.2, 0.3], &[])?);
/// }
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy, 1 the distribution of the model.
    pub temperature: f32,
    /// Keep this many of the most probable tokens; 0 is all.
    pub top_k: usize,
    /// Keep the fewest of the most probable tokens whose probabilities sum to this, and one at least; from 0 to 1, and 1
    /// is all.
    pub top_p: f32,
    /// Drop tokens less probable than this times the most probable; from 0 to 1, and 0 is none.
    pub min_p: f32,
    /// Above 1 discourages tokens that the text has; positive, and 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens that have been generated; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token has been generated; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; minus infinity bans one.
    pub logit_bias: Vec<(u32, f32)>,
    /// No so many tokens in a row come twice in prompt and generated text; 0 is off.
    pub no_repeat_ngram_size: usize,
    /// Rows of tokens that the generated text does not complete; the prompt may begin one.
    pub bad_words: Vec<Vec<u32>>,
    /// Tokens that are not among the first so many of the generated text.
    pub not_before: Vec<(u32, usize)>,
    /// Where the random numbers start. The same seed and logits give the same tokens, on every machine that gives
    /// the same `exp`. A device that draws itself takes the upper 24 bits of each random number where the host takes
    /// 53: of a billion tokens a few may differ.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            no_repeat_ngram_size: 0,
            bad_words: Vec::new(),
            not_before: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// [`Error::Sampling`], naming the first field that is out of range, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let check = |field: &'static str, value: f32, allowed: bool, expected: &'static str| {
            if allowed {
                return Ok(());
            }
            Err(Error::Sampling { field, found: value.to_string(), expected })
        };
        let t = self.temperature;
        check("temperature", t, t.is_finite() && t >= 0.0, "0 (greedy) or a positive number")?;
        let p = self.top_p;
        check("top_p", p, (0.0..=1.0).contains(&p), "from 0 (the most probable token) to 1 (all)")?;
        let p = self.min_p;
        check("min_p", p, (0.0..=1.0).contains(&p), "from 0 to 1")?;
        let r = self.repetition_penalty;
        check("repetition_penalty", r, r.is_finite() && r > 0.0, "a positive number")?;
        let p = self.presence_penalty;
        check("presence_penalty", p, p.is_finite(), "a finite number")?;
        let p = self.frequency_penalty;
        check("frequency_penalty", p, p.is_finite(), "a finite number")?;
        for &(_, bias) in &self.logit_bias {
            let allowed = bias.is_finite() || bias == f32::NEG_INFINITY;
            check("logit_bias", bias, allowed, "a finite number, or minus infinity")?;
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            let (found, expected) = ("an empty list".to_owned(), "lists of at least one token");
            return Err(Error::Sampling { field: "bad_words", found, expected });
        }
        Ok(())
    }

    /// `top_k` and `top_p` as the filters take them. A `top_p` of 0 keeps the most probable token, as in transformers; the
    /// filters would keep none.
    fn kept(&self) -> (usize, f32) {
        if self.top_p > 0.0 { (self.top_k, self.top_p) } else { (1, 1.0) }
    }
}

/// The tokens so far, for the penalties.
///
/// A plain slice counts as generated text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History<'a> {
    /// What the model was given: seen by the repetition penalty only.
    pub prompt: &'a [u32],
    /// What it has said: seen by all penalties.
    pub generated: &'a [u32],
}

impl<'a> History<'a> {
    fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// The tokens from `start` on, of the prompt first.
    fn tokens_from(&self, start: usize) -> impl Iterator<Item = u32> + use<'a> {
        let (prompt, generated) = (self.prompt, self.generated);
        let in_prompt = start.min(prompt.len());
        prompt[in_prompt..].iter().chain(&generated[start - in_prompt..]).copied()
    }
}

impl<'a> From<&'a [u32]> for History<'a> {
    fn from(generated: &'a [u32]) -> Self {
        Self { prompt: &[], generated }
    }
}

impl<'a> From<&'a Vec<u32>> for History<'a> {
    fn from(generated: &'a Vec<u32>) -> Self {
        generated.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for History<'a> {
    fn from(generated: &'a [u32; N]) -> Self {
        generated.as_slice().into()
    }
}

/// What is asked of a draw on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Asked {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    draw: f32,
    pub(crate) top_k: u32,
}

impl Asked {
    /// How many numbers [`Asked::params`] are.
    pub(crate) const PARAMS: usize = 4;

    /// The most probable token.
    pub(crate) const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, min_p: 0.0, draw: 0.0, top_k: 0 };

    /// The numbers in the order of [`sinew_ops::layers::Sample::run`].
    pub(crate) fn params(&self) -> [f32; Self::PARAMS] {
        [self.temperature, self.top_p, self.min_p, self.draw]
    }
}

/// A token that may come next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit, after bias and penalties, before the temperature.
    pub logit: f32,
    /// Its probability among the candidates.
    pub probability: f32,
}

impl Candidate {
    /// The most probable first, then the lowest id. The logits hold no NaN by now, and the two zeros are equal.
    fn order(&self, other: &Self) -> Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit);
        by_logit.unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

/// How probable the model found a token, and which it found the most probable.
///
/// The natural logarithms of the softmax of the model's own logits: before bias, penalties and temperature, as vLLM
/// reports them by default.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// That of the token itself.
    pub logprob: f32,
    /// The most probable tokens with theirs, in order.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Those of `token`, and of the `most` most probable.
    pub fn of(logits: &[f32], token: u32, most: usize) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - sum.ln()) as f32;
        let mut top = Vec::new();
        // None at all is asked of `collect_top_k` as all.
        if most > 0 {
            collect_top_k(logits, most, &mut top);
            top.sort_unstable_by(Candidate::order);
        }
        let of_token = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit));
        Self { logprob: of_token, top: top.into_iter().map(|c| (c.id, logprob(c.logit))).collect() }
    }
}

/// Chooses tokens for one sequence, one after the other.
///
/// Each sequence has its own, so that what it is given does not depend on the sequences beside it. Above
/// temperature 0 every call of [`sample`](Self::sample) takes one number of a ChaCha12 stream. After the first
/// call nothing is allocated.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha12Rng,
    /// The number that a device was asked to draw by, until it has.
    asked: Option<u64>,
    changed: Changed,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    ///
    /// As [`SamplingParams::validate`].
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        Ok(Self {
            rng: ChaCha12Rng::seed_from_u64(params.seed),
            asked: None,
            params,
            changed: Changed::default(),
            candidates: Vec::new(),
        })
    }

    /// The next token, given `logits` of shape `[vocab_size]` and the tokens so far.
    ///
    /// # Errors
    ///
    /// [`Error::Logits`] for no logits, for NaN or plus infinity, or when every token is at minus infinity. The
    /// history may hold any ids; those beyond the vocabulary have no logit to change.
    pub fn sample<'h>(&mut self, logits: &[f32], history: impl Into<History<'h>>) -> Result<u32> {
        let best = self.distribution(logits, history)?[0].id;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        // The order in which kernels that draw on a device find them, too.
        self.candidates.sort_unstable_by_key(|candidate| candidate.id);
        let draw = unit(self.asked.take().unwrap_or_else(|| self.rng.next_u64()));
        Ok(pick(&self.candidates, draw))
    }

    /// What a device needs to draw the token after so many generated ones from logits that it has itself. `None` where
    /// the logits change first. Takes as many random numbers as [`sample`](Self::sample) would, and gives the same again
    /// until the token [was taken](Self::took).
    pub(crate) fn ask(&mut self, generated: usize) -> Option<Asked> {
        let SamplingParams { temperature, min_p, .. } = self.params;
        let (top_k, top_p) = self.params.kept();
        if self.params.changes_logits(generated) {
            return None;
        }
        // The upper 24 bits, which f32 holds: the largest draw is below 1.
        let mut number = || *self.asked.get_or_insert_with(|| self.rng.next_u64());
        let draw = if temperature == 0.0 { 0.0 } else { (number() >> 40) as f32 / (1u32 << 24) as f32 };
        Some(Asked { temperature, top_p, min_p, draw, top_k: u32::try_from(top_k).unwrap_or(u32::MAX) })
    }

    /// The device has drawn what it was [asked](Self::ask) for.
    pub(crate) fn took(&mut self) {
        self.asked = None;
    }

    /// The tokens that [`sample`](Self::sample) would choose from, the most probable first where a filter has sorted
    /// them and by id otherwise, with probabilities that sum to 1. Draws nothing.
    ///
    /// # Errors
    ///
    /// As [`sample`](Self::sample).
    pub fn distribution<'h>(&mut self, logits: &[f32], history: impl Into<History<'h>>) -> Result<&[Candidate]> {
        let (Self { params, changed, candidates, .. }, history) = (self, history.into());
        let logits = match params.changes_logits(history.generated.len()) {
            true => changed.change(logits, params, history),
            false => logits,
        };
        let best = argmax(logits)?;
        candidates.clear();
        if params.temperature == 0.0 {
            candidates.push(Candidate { probability: 1.0, ..best });
            return Ok(candidates);
        }
        let (top_k, top_p) = params.kept();
        collect_top_k(logits, top_k, candidates);
        softmax(candidates, best.logit, params.temperature);
        if top_p < 1.0 {
            keep_top_p(candidates, top_p);
        }
        if params.min_p > 0.0 {
            keep_min_p(candidates, params.min_p, best.logit, params.temperature);
        }
        // The filters change the sum, not the ratios.
        let total: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
        for candidate in candidates.iter_mut() {
            candidate.probability = (f64::from(candidate.probability) / total) as f32;
        }
        Ok(candidates)
    }
}

/// The largest logit, of the lowest id that has it.
pub(crate) fn argmax(logits: &[f32]) -> Result<Candidate> {
    /// Enough independent maxima for the compiler to keep several vectors of them.
    const LANES: usize = 32;
    let refused = |problem: String| Err(Error::Logits(problem));
    let mut max = [f32::NEG_INFINITY; LANES];
    // As wide as what is compared, or the compiler packs each comparison into a byte.
    let mut finite = [1u32; LANES];
    for chunk in logits.chunks(LANES) {
        for ((max, finite), &logit) in max.iter_mut().zip(&mut finite).zip(chunk) {
            // False for NaN and for plus infinity.
            *finite &= u32::from(logit < f32::INFINITY);
            *max = if logit > *max { logit } else { *max };
        }
    }
    if finite.contains(&0) {
        let bad = logits.iter().enumerate().find(|(_, l)| l.is_nan() || **l == f32::INFINITY);
        let (id, logit) = bad.unwrap_or((0, &f32::NAN));
        return refused(format!("token {id} has logit {logit}"));
    }
    let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
    // By chunks, in which no comparison waits for the one before.
    let held = |chunk: &[f32]| chunk.iter().fold(0, |held, &logit| held | u32::from(logit == max)) != 0;
    let first = logits.chunks(LANES).position(held).unwrap_or_default() * LANES;
    match logits.iter().skip(first).position(|&logit| logit == max).map(|id| first + id) {
        None => refused("there are none".to_owned()),
        Some(_) if max == f32::NEG_INFINITY => refused(format!("all {} are minus infinity", logits.len())),
        Some(id) => Ok(Candidate {
            // A vocabulary has less than 2^32 entries.
            id: id as u32,
            logit: logits[id],
            probability: 0.0,
        }),
    }
}

/// A number in `[0, 1)` from the upper 53 bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn pick(candidates: &[Candidate], draw: f64) -> u32 {
    let total: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
    let target = draw * total;
    let mut sum = 0.0;
    let mut last = 0;
    for candidate in candidates.iter().filter(|c| c.probability > 0.0) {
        sum += f64::from(candidate.probability);
        last = candidate.id;
        if sum > target {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests;
