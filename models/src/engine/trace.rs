//! Traces of requests: when they come, how long they are, and which begin alike.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One request of a trace: a line of JSON.
///
/// ```
/// use sinew_models::engine::TraceLine;
/// let line = r#"{"arrival_s": 0.5, "prompt_tokens": 12, "new_tokens": 4, "prefix": 3, "prefix_tokens": 8}"#;
/// let one = TraceLine::parse_all(line.as_bytes())?[0];
/// let other = TraceLine { prompt_tokens: 20, ..one };
/// assert_eq!(one.prompt(0, 1000)[..8], other.prompt(1, 1000)[..8]);
/// assert_ne!(one.prompt(0, 1000)[8..], other.prompt(1, 1000)[8..12]);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceLine {
    /// When it comes, in seconds from the start.
    pub arrival_s: f64,
    /// Tokens of its prompt, those of the prefix among them.
    pub prompt_tokens: usize,
    /// Tokens that it is answered.
    pub new_tokens: usize,
    /// Requests of the same number begin with the same tokens.
    #[serde(default)]
    pub prefix: u64,
    /// How many those are.
    #[serde(default)]
    pub prefix_tokens: usize,
}

/// What a generated trace is like.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceOptions {
    /// How many requests.
    pub requests: usize,
    /// Requests a second, whose gaps are distributed exponentially.
    pub rate: f64,
    /// The shortest and the longest prompt, its prefix apart; lengths are uniform in their logarithm.
    pub prompt_tokens: (usize, usize),
    /// The same of answers.
    pub new_tokens: (usize, usize),
    /// Kinds of prompts, each with a prefix of its own.
    pub prefixes: u64,
    /// Tokens of each prefix.
    pub prefix_tokens: usize,
    /// Where the random numbers start.
    pub seed: u64,
}

impl TraceLine {
    /// The requests of a file with one on each line, in order of arrival.
    ///
    /// # Errors
    /// A line that is not such a request, or a time that is not one.
    pub fn parse_all(text: &[u8]) -> Result<Vec<Self>> {
        // Some editors begin files with a mark.
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        let lines = text.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty());
        let parse = |(number, line): (usize, &[u8])| {
            let wrong = |what: String| Error::Input(format!("line {} of the trace: {what}", number + 1));
            let line: Self = serde_json::from_slice(line).map_err(|error| wrong(error.to_string()))?;
            let timely = line.arrival_s.is_finite() && line.arrival_s >= 0.0;
            if !timely || line.prompt_tokens == 0 || line.new_tokens == 0 || line.prefix_tokens > line.prompt_tokens {
                return Err(wrong(
                    "a time from 0 on, a prompt and an answer of at least 1 token, and no prefix longer than the prompt"
                        .to_owned(),
                ));
            }
            Ok(line)
        };
        let mut all = lines.map(parse).collect::<Result<Vec<_>>>()?;
        all.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        Ok(all)
    }

    /// Requests at random.
    ///
    /// # Errors
    /// A rate that is not positive or too low for times to be numbers, lengths of 0, in the wrong order or too large, or
    /// more requests than there is memory for.
    pub fn generate(options: &TraceOptions) -> Result<Vec<Self>> {
        let &TraceOptions { requests, rate, prompt_tokens, new_tokens, prefixes, prefix_tokens, seed } = options;
        if !rate.is_finite() || rate <= 0.0 {
            return Err(Error::Input(format!("{rate:e} requests a second")));
        }
        for (least, most) in [prompt_tokens, new_tokens] {
            if least == 0 || least > most {
                return Err(Error::Input(format!("lengths from {least} to {most} tokens")));
            }
        }
        if prefixes > 0 && prompt_tokens.1.checked_add(prefix_tokens).is_none() {
            return Err(Error::Input(format!("prompts of {} tokens behind {prefix_tokens}", prompt_tokens.1)));
        }
        let mut all = Vec::new();
        all.try_reserve_exact(requests)
            .map_err(|_| Error::Input(format!("{requests} requests are more than there is memory for")))?;
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        // In (0, 1], so that its logarithm is a number.
        let mut uniform = move || ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        let mut arrival_s = 0.0;
        all.extend((0..requests).map(|_| {
            arrival_s -= uniform().ln() / rate;
            let mut length = |(least, most): (usize, usize)| {
                let (least, above) = (least as f64, most as f64 + 1.0);
                ((least * (above / least).powf(uniform())) as usize).min(most)
            };
            let (own, new_tokens) = (length(prompt_tokens), length(new_tokens));
            let (prefix, prefix_tokens) = match prefixes {
                0 => (0, 0),
                _ => (((uniform() * prefixes as f64) as u64).min(prefixes - 1), prefix_tokens),
            };
            Self { arrival_s, prompt_tokens: prefix_tokens + own, new_tokens, prefix, prefix_tokens }
        }));
        if !arrival_s.is_finite() {
            return Err(Error::Input(format!("{rate:e} requests a second: the last would never come")));
        }
        Ok(all)
    }

    /// The prompt of the request of number `request`: its prefix depends on the number of that, the rest on its own.
    pub fn prompt(&self, request: u64, vocab_size: usize) -> Vec<u32> {
        let token = |row: u64, i: usize| {
            let mixed = (row.wrapping_mul(0xd134_2543_de82_ef95) ^ (i as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed >> 33) % vocab_size.max(1) as u64) as u32
        };
        // Odd rows, as far as there are any, so that they are no request's.
        let prefix = (0..self.prefix_tokens).map(|i| token(self.prefix.rotate_left(1) ^ 1, i));
        prefix
            .chain((self.prefix_tokens..self.prompt_tokens).map(|i| token(request.wrapping_mul(2).wrapping_add(2), i)))
            .collect()
    }
}
