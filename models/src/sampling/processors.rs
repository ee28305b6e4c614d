//! What is done to logits before a token is chosen: bias, penalties, and tokens that are ruled out.

use super::{History, SamplingParams};

/// Marks a token in the history; the bits below count its occurrences in the generated text.
const SEEN: u32 = 1 << 31;

impl SamplingParams {
    /// Whether the logits of the token after so many generated ones are used other than as they are.
    pub(super) fn changes_logits(&self, generated: usize) -> bool {
        self.penalises()
            || !self.logit_bias.is_empty()
            || self.no_repeat_ngram_size > 0
            || !self.bad_words.is_empty()
            || self.not_before.iter().any(|&(_, first)| generated < first)
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Changed logits. Once it has grown to the vocabulary nothing is allocated.
#[derive(Debug, Clone, Default)]
pub(super) struct Changed {
    pub(super) logits: Vec<f32>,
    pub(super) seen: Vec<u32>,
}

impl Changed {
    /// `logits` as the parameters have them changed after `history`.
    pub(super) fn change(&mut self, logits: &[f32], params: &SamplingParams, history: History<'_>) -> &[f32] {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        apply_bias_and_penalties(params, &mut self.logits, &mut self.seen, history);
        rule_out(params, &mut self.logits, history);
        &self.logits
    }
}

fn apply_bias_and_penalties(params: &SamplingParams, logits: &mut [f32], seen: &mut Vec<u32>, history: History<'_>) {
    for &(id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    if !params.penalises() {
        return;
    }
    // Grows once to the vocabulary, and is all zero between calls.
    if seen.len() < logits.len() {
        seen.resize(logits.len(), 0);
    }
    for &id in history.prompt {
        if let Some(mark) = seen.get_mut(id as usize) {
            *mark |= SEEN;
        }
    }
    for &id in history.generated {
        if let Some(mark) = seen.get_mut(id as usize) {
            // A text has less than 2^31 tokens; beyond, the count stays where it is.
            *mark = (*mark | SEEN).saturating_add(1);
        }
    }
    for &id in history.prompt.iter().chain(history.generated) {
        let Some(mark) = seen.get_mut(id as usize) else {
            continue;
        };
        let mark = std::mem::take(mark);
        let Some(logit) = logits.get_mut(id as usize).filter(|_| mark != 0) else {
            continue;
        };
        *logit = match *logit > 0.0 {
            true => *logit / params.repetition_penalty,
            false => *logit * params.repetition_penalty,
        };
        let count = mark & !SEEN;
        if count > 0 {
            *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
        }
    }
}

fn rule_out(params: &SamplingParams, logits: &mut [f32], history: History<'_>) {
    let mut ban = |id: u32| {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    };
    let late = params.not_before.iter().filter(|&&(_, first)| history.generated.len() < first);
    late.for_each(|&(id, _)| ban(id));
    for word in &params.bad_words {
        let Some((&last, begun)) = word.split_last() else { continue };
        if history.len() >= begun.len() && history.tokens_from(history.len() - begun.len()).eq(begun.iter().copied()) {
            ban(last);
        }
    }
    if let Some(before) = params.no_repeat_ngram_size.checked_sub(1)
        && let Some(last) = history.len().checked_sub(before)
    {
        for start in 0..last {
            let mut ngram = history.tokens_from(start);
            if ngram.by_ref().take(before).eq(history.tokens_from(last)) {
                // `start` is before the last ones, so that a token follows.
                ngram.next().into_iter().for_each(&mut ban);
            }
        }
    }
}
