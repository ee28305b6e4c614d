//! What quantizing costs: how far what a model gives lies from what the same model gives with exact weights.

use std::ops::ControlFlow;

use sinew_memory::system::memory_and_bound;
use sinew_ops::layers::Encoding;
use sinew_tensor::BlockValues::{F8E4M3, Int4, Int8};

use crate::error::{Error, Result};
use crate::language::LanguageModel;
use crate::precision::Quantize;
use crate::settings::GroupSize;

/// The formats that weights can be quantized to as they are loaded and that are worth a comparison: each of few bits, in
/// the groups that are usual, and int4 with a head of 16 bits, as published checkpoints have it.
///
/// # Errors
/// None: all of them are known.
pub fn formats() -> Result<Vec<Quantize>> {
    const USUAL: [(GroupSize, bool, bool); 4] = [
        (GroupSize::Of(32), false, false),
        (GroupSize::Of(32), true, false),
        (GroupSize::Of(128), false, false),
        (GroupSize::Of(128), true, false),
    ];
    let int8 = [GroupSize::Of(32), GroupSize::Of(128), GroupSize::Channel].map(|group| (Int8, (group, false, false)));
    let fp8 = [GroupSize::Of(128), GroupSize::Channel].map(|group| (F8E4M3, (group, false, false)));
    let int4 = USUAL.into_iter().chain([(GroupSize::Of(128), false, true)]).map(|form| (Int4, form));
    let all = int8.into_iter().chain(fp8).chain(int4);
    all.map(|(values, (group, zero_points, keep_head))| group.quantize(values, zero_points, keep_head)).collect()
}

/// How weights that are quantized so are called: what they are, what shares a scale, and what is otherwise than usual.
pub fn name(how: &Quantize) -> String {
    let format = how.format;
    let scales = if how.per_channel { "rows".to_owned() } else { format!("groups of {}", format.group()) };
    let zeros = if format.zero_points() { ", zero points" } else { "" };
    let head = if how.head { "" } else { ", 16-bit head" };
    format!("{}, {scales}{zeros}{head}", format.values().name())
}

/// Bits of a weight, with its share of a group's scale and zero point.
pub fn bits(weights: Encoding) -> f64 {
    /// Of a zero point.
    const ZERO: usize = 8;
    match weights {
        Encoding::Float(dtype) => 8.0 * dtype.size() as f64,
        Encoding::Blocks(format) => {
            let of_group = 8 * format.scale_dtype().size() + if format.zero_points() { ZERO } else { 0 };
            format.values().bits() as f64 + of_group as f64 / format.group() as f64
        }
    }
}

/// How the next tokens' probabilities lie to those of an exact model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Divergence {
    sum: f64,
    agreeing: usize,
    rows: usize,
}

/// A model with exact weights, and texts behind whose tokens others are held against it.
///
/// Its logits are kept as far as there is room for them beside the first of the others: it is run again for the rest.
#[derive(Debug)]
pub struct Exact<'t> {
    model: LanguageModel,
    texts: &'t [Vec<u32>],
    /// Those of the first texts.
    kept: Vec<Vec<f32>>,
    /// Bytes that more of them may take, once that is known.
    room: Option<usize>,
}

impl<'t> Exact<'t> {
    /// The part of the memory that is free which logits may take.
    const PART: usize = 4;

    /// A model and some texts.
    pub fn new(model: LanguageModel, texts: &'t [Vec<u32>]) -> Self {
        Self { model, texts, kept: Vec::new(), room: None }
    }

    /// The divergence of a model with the same vocabulary behind every token of the texts.
    ///
    /// # Errors
    /// Those of [`LanguageModel::logits`], another vocabulary, logits that are no numbers, and [`Error::Cancelled`] where
    /// `go_on` ended it.
    pub fn divergence(
        &mut self,
        other: &mut LanguageModel,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Divergence> {
        let vocab = self.model.decoder().config().vocab_size;
        if other.decoder().config().vocab_size != vocab {
            return Err(Error::Input("models with other vocabularies cannot be compared".to_owned()));
        }
        let room = self.room.get_or_insert_with(|| memory_and_bound().0.available / Self::PART);
        let mut all = Divergence::default();
        for (at, tokens) in self.texts.iter().enumerate() {
            let mut rows = Vec::new();
            if at >= self.kept.len() {
                rows.reserve_exact(tokens.len() * vocab);
                self.model.logits(tokens, &mut |some| {
                    check_numbers(some, "exact weights")?;
                    rows.extend_from_slice(some);
                    if go_on().is_break() { Err(Error::Cancelled) } else { Ok(()) }
                })?;
                if at == self.kept.len() && size_of_val(&rows[..]) <= *room {
                    *room -= size_of_val(&rows[..]);
                    self.kept.push(std::mem::take(&mut rows));
                }
            }
            let mut exact = self.kept.get(at).unwrap_or(&rows).chunks_exact(vocab);
            other.logits(tokens, &mut |some| {
                check_numbers(some, "the weights that are compared")?;
                some.chunks_exact(vocab).zip(&mut exact).for_each(|(other, exact)| all.add(exact, other));
                if go_on().is_break() { Err(Error::Cancelled) } else { Ok(()) }
            })?;
        }
        Ok(all)
    }
}

impl Divergence {
    /// Takes in the logits of one token, exact and as they are compared.
    pub fn add(&mut self, exact: &[f32], other: &[f32]) {
        let (p, q) = (log_probabilities(exact), log_probabilities(other));
        self.sum += p.zip(q).map(|(p, q)| if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }).sum::<f64>();
        self.agreeing += usize::from(largest(exact) == largest(other));
        self.rows += 1;
    }

    /// The mean over all tokens of the Kullback-Leibler divergence `Σ p log(p / q)`, in nats, where `p` is exact.
    pub fn mean(&self) -> f64 {
        self.sum / self.rows as f64
    }

    /// The share of tokens behind which the likeliest one is the same.
    pub fn agreement(&self) -> f64 {
        self.agreeing as f64 / self.rows as f64
    }
}

/// Refuses logits of which one is no number: compared, they would agree with each other.
fn check_numbers(logits: &[f32], of: &str) -> Result<()> {
    match logits.iter().any(|x| x.is_nan()) {
        true => Err(Error::Input(format!("the logits by {of} have values that are no numbers"))),
        false => Ok(()),
    }
}

fn log_probabilities(logits: &[f32]) -> impl Iterator<Item = f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of = move |x: &f32| f64::from(*x) - f64::from(most);
    let sum: f64 = logits.iter().map(|x| of(x).exp()).sum();
    logits.iter().map(move |x| of(x) - sum.ln())
}

fn largest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

/// The mean of the cosines between the vectors of each text, and the least; of no texts, 1. A vector of zeros has none: then
/// both are NaN.
pub fn cosines(exact: &[Vec<f32>], other: &[Vec<f32>]) -> [f64; 2] {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let pairs = exact.iter().zip(other);
    let all: Vec<f64> = pairs.map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).collect();
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    let least = |least: f64, x| if least.is_nan() || x >= least { least } else { x };
    [if all.is_empty() { 1.0 } else { mean }, all.into_iter().fold(1.0, least)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_a_half_and_quarters_diverge_by_what_they_do() {
        let logs = |of: [f32; 3]| of.map(f32::ln);
        let mut divergence = Divergence::default();
        divergence.add(&logs([0.5, 0.25, 0.25]), &logs([0.25, 0.5, 0.25]));
        assert!((divergence.mean() - 0.25 * 2f64.ln()).abs() < 1e-7, "{divergence:?}");
        assert_eq!(divergence.agreement(), 0.0);
        // Whatever is added to all logits of a row.
        divergence.add(&[900.0, 899.0], &[-3.0, -4.0]);
        assert!((divergence.mean() - 0.125 * 2f64.ln()).abs() < 1e-7, "{divergence:?}");
        assert_eq!(divergence.agreement(), 0.5);
        // What is no number agrees with nothing.
        let mut unknown = Divergence::default();
        unknown.add(&[f32::NAN, 1.0], &[f32::NAN, 1.0]);
        assert!(unknown.mean().is_nan(), "{unknown:?}");
        assert!(check_numbers(&[1.0, f32::NAN], "some weights").is_err_and(|e| e.to_string().contains("some weights")));
        assert!(check_numbers(&[1.0, f32::NEG_INFINITY], "some weights").is_ok());
        // What never comes costs nothing.
        let mut ruled_out = Divergence::default();
        ruled_out.add(&[1.0, f32::NEG_INFINITY], &[1.0, -1.0]);
        assert!((ruled_out.mean() - (1.0 + (-2f64).exp()).ln()).abs() < 1e-7, "{ruled_out:?}");
    }

    #[test]
    fn cosines_are_those_of_angles() {
        let [mean, least] = cosines(&[vec![1.0, 0.0], vec![2.0, 0.0]], &[vec![3.0, 0.0], vec![1.0, 1.0]]);
        assert!((least - 0.5f64.sqrt()).abs() < 1e-9 && (mean - (1.0 + least) / 2.0).abs() < 1e-9);
        let zeros = [vec![0.0, 0.0], vec![1.0, 0.0]];
        assert!(cosines(&zeros, &zeros).iter().all(|x| x.is_nan()));
    }

    #[test]
    fn scales_and_zero_points_are_shared_by_groups() {
        let of = |values, group: GroupSize, zero_points| {
            let how = group.quantize(values, zero_points, false).expect("a format");
            bits(Encoding::Blocks(how.format))
        };
        assert_eq!(of(Int4, GroupSize::Of(32), false), 4.5);
        assert_eq!(of(Int4, GroupSize::Of(64), true), 4.375);
        assert_eq!(of(F8E4M3, GroupSize::Of(128), false), 8.125);
        assert_eq!(bits(Encoding::Float(sinew_tensor::DType::BF16)), 16.0);
    }

    #[test]
    fn formats_have_names_of_their_own() {
        let names: Vec<String> = formats().expect("known").iter().map(name).collect();
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(names.contains(&"int4, groups of 128, 16-bit head".to_owned()), "{names:?}");
        assert!(names.contains(&"fp8, rows".to_owned()), "{names:?}");
    }
}
