//! `sinew bench --engine`: the same batch through the scheduler.

use std::collections::HashSet;
use std::time::Instant;

use sinew::models::{Engine, EngineOptions, GenerateOptions, Happening, LanguageModel, Request};

use super::{Bench, Measured, tokens};
use crate::command::Outcome;
use crate::command::interrupts::interrupted;

impl Bench {
    /// One run of the batch as requests of an engine, which come at once. Its prefill ends with the first token of all;
    /// its decode is all tokens at the rate of the steps from there on in which every request has one, or of what is left
    /// where there are none such: long prompts take several steps, and who has begun earlier ends earlier.
    pub(super) fn through_engine(&self, model: LanguageModel, number: usize) -> Outcome<(LanguageModel, Measured)> {
        let vocab = model.decoder().config().vocab_size;
        let mut engine = Engine::new(model, EngineOptions { max_waiting: self.batch, ..EngineOptions::default() });
        let start = Instant::now();
        for b in 0..self.batch {
            // Of this run alone: what earlier ones left in the cache is of no use.
            let shared = self.shared_prefix;
            let mut prompt = tokens(vocab, 7919 * (number + 1), shared);
            prompt.extend(tokens(vocab, 104_729 * (number * self.batch + b + 1), self.prompt_tokens - shared));
            let max_new_tokens = self.new_tokens() + 1;
            let options = GenerateOptions { max_new_tokens, ignore_eos: true, ..GenerateOptions::default() };
            engine.submit(Request { options, text: false, ..Request::new(prompt) })?;
        }
        let (mut begun, mut left) = (HashSet::new(), self.batch * (self.new_tokens() + 1));
        let (mut first_token, mut prefill) = (0.0, None);
        let (mut whole, mut any_ended) = (None, false);
        while !engine.is_idle() && !interrupted() {
            let (before, all_run) = (left, prefill.is_some() && !any_ended);
            for event in engine.step()? {
                if matches!(event.what, Happening::Token { .. }) {
                    left -= 1;
                    begun.insert(event.request);
                }
                any_ended |= event.is_last();
            }
            if all_run {
                let (_, tokens) = whole.unwrap_or((0.0, 0));
                whole = Some((start.elapsed().as_secs_f64(), tokens + before - left));
            }
            if first_token == 0.0 && !begun.is_empty() {
                first_token = start.elapsed().as_secs_f64();
            }
            if prefill.is_none() && begun.len() == self.batch {
                prefill = Some((start.elapsed().as_secs_f64(), left));
            }
        }
        let end = start.elapsed().as_secs_f64();
        let (prefill, left) = prefill.unwrap_or((end, 0));
        let (end, counted) = whole.unwrap_or((end, left));
        let decode = (end - prefill) * (self.batch * self.new_tokens()) as f64 / counted as f64;
        let found = engine.stats().found;
        Ok((engine.into_model(), Measured { first_token, prefill, decode, found }))
    }
}
