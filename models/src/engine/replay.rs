//! A trace of requests, run as it came, and how long everybody waited.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{Engine, EngineStats, Happening, Request, RequestId, TraceLine};
use crate::answering::GenerateOptions;
use crate::{Error, Result};

/// What a replay measured.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// Requests that were answered.
    pub answered: usize,
    /// Requests that were refused or failed.
    pub failed: usize,
    /// Why the first of those did.
    pub failure: Option<String>,
    /// From the first arrival to the last token, in seconds.
    pub seconds: f64,
    /// Tokens of the prompts of all requests that were answered.
    pub prompt_tokens: usize,
    /// Tokens that they were answered.
    pub new_tokens: usize,
    /// Seconds from a request's arrival to its first token.
    pub first_token: Percentiles,
    /// Seconds between two tokens of an answer.
    pub between_tokens: Percentiles,
    /// What the engine did meanwhile.
    pub engine: EngineStats,
}

/// Of many values: half, 95 and 99 of a hundred are at most so large. Zero where there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Of 95 in a hundred.
    pub p95: f64,
    /// Of 99 in a hundred.
    pub p99: f64,
}

impl Percentiles {
    /// Those of `values`, by nearest rank.
    ///
    /// ```
    /// use sinew_models::engine::Percentiles;
    /// let of_hundred = Percentiles::of((1..=100).map(f64::from).collect());
    /// assert_eq!((of_hundred.p50, of_hundred.p95, of_hundred.p99), (50.0, 95.0, 99.0));
    /// ```
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// A request that is being answered.
struct Waiting {
    came: f64,
    latest: Option<f64>,
    prompt_tokens: usize,
    new_tokens: usize,
}

impl Engine {
    /// Runs a trace: each request is submitted when its time has come, `speed` times as fast as it was recorded, and is
    /// answered with as many tokens as it says, whatever they are; one of more tokens than the model's context fails, and
    /// the others are answered. Requests wait outside as long as `max_waiting` do.
    /// Between steps it asks whether to go on.
    ///
    /// # Errors
    /// An engine that has other requests, a speed that is not positive, or a failed device.
    pub fn replay(
        &mut self,
        trace: &[TraceLine],
        speed: f64,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Replayed> {
        if !self.is_idle() {
            return Err(Error::Input("a replay in an engine that has other requests".to_owned()));
        }
        if !speed.is_finite() || speed <= 0.0 {
            return Err(Error::Input(format!("a replay {speed:e} times as fast")));
        }
        let never = |line: &&TraceLine| Duration::try_from_secs_f64(line.arrival_s / speed).is_err();
        if let Some(line) = trace.iter().find(never) {
            let late = line.arrival_s;
            return Err(Error::Input(format!("a request at {late:e} s would never come {speed:e} times as fast")));
        }
        let before = self.stats();
        let decoder = self.model().decoder();
        let (vocab_size, context) = (decoder.config().vocab_size, decoder.limits().context);
        let start = Instant::now();
        let (mut first, mut between) = (Vec::new(), Vec::new());
        let mut all: HashMap<RequestId, Waiting> = HashMap::new();
        let mut lines = trace.iter().enumerate().peekable();
        let (mut answered, mut failed, mut prompt_tokens, mut new_tokens, mut end) = (0, 0, 0, 0, 0.0);
        let mut failure = None;
        while (lines.peek().is_some() || !self.is_idle()) && go_on().is_continue() {
            while let Some(&(number, line)) = lines.peek() {
                let came = line.arrival_s / speed;
                if came > start.elapsed().as_secs_f64() || self.is_full() {
                    break;
                }
                lines.next();
                let tokens = line.prompt_tokens.saturating_add(line.new_tokens);
                if tokens > context {
                    failed += 1;
                    failure.get_or_insert_with(|| {
                        format!("a request of {tokens} tokens; the model was loaded for {context}")
                    });
                    continue;
                }
                let options =
                    GenerateOptions { max_new_tokens: line.new_tokens, ignore_eos: true, ..GenerateOptions::default() };
                let prompt = line.prompt(number as u64, vocab_size);
                match self.submit(Request { options, text: false, ..Request::new(prompt) }) {
                    Ok(id) => {
                        all.insert(
                            id,
                            Waiting { came, latest: None, prompt_tokens: line.prompt_tokens, new_tokens: 0 },
                        );
                    }
                    Err(error) => {
                        failed += 1;
                        failure.get_or_insert_with(|| error.to_string());
                    }
                }
            }
            if self.is_idle() {
                // Not longer than it takes to ask whether to go on.
                let next = lines.peek().map_or(0.0, |(_, line)| line.arrival_s / speed);
                let wait = (next - start.elapsed().as_secs_f64()).clamp(0.0, 0.05);
                std::thread::sleep(Duration::from_secs_f64(wait));
                continue;
            }
            let events = self.step()?;
            let now = start.elapsed().as_secs_f64();
            for event in events {
                let Some(request) = all.get_mut(&event.request) else { continue };
                match &event.what {
                    Happening::Token { .. } => {
                        match request.latest.replace(now) {
                            None => first.push(now - request.came),
                            Some(latest) => between.push(now - latest),
                        }
                        request.new_tokens += 1;
                        end = now;
                    }
                    Happening::Finished { .. } => {
                        answered += 1;
                        prompt_tokens += request.prompt_tokens;
                        new_tokens += request.new_tokens;
                    }
                    Happening::Failed(error) => {
                        failed += 1;
                        failure.get_or_insert_with(|| error.to_string());
                    }
                }
            }
        }
        let began = trace.first().map_or(0.0, |line| line.arrival_s / speed);
        Ok(Replayed {
            answered,
            failed,
            failure,
            seconds: (end - began).max(0.0),
            prompt_tokens,
            new_tokens,
            first_token: Percentiles::of(first),
            between_tokens: Percentiles::of(between),
            engine: self.stats().since(&before),
        })
    }
}
