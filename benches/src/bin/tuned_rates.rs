//! A model tuned and untuned, in turns: a tuned run is to be no slower than an untuned one, and to give the same bits.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin tuned-rates -- FOLDER DTYPE [ROUNDS [SECONDS]]
//! ```
//! loads the model twice, tunes for up to SECONDS (20), and prints for each thing that it does the median milliseconds
//! of ROUNDS (15) of both, and the median of each round's ratio, below 1 where the tuned one is faster. A decoder runs a
//! prompt of 512 tokens and 32 steps behind it, an encoder 8 texts of 128 tokens. DTYPE is as for `model-rates`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinew_benches::contender::{Error, tokens};
use sinew_benches::{command, context, weights};
use sinew_memory::{Cpu, PrivateFolder};
use sinew_models::{EmbeddingModel, Folder, LanguageModel, LoadOptions, ModelConfig, WeightOptions};
use sinew_ops::{Budget, Context, TuningCache, tune};

const PROMPT: usize = 512;
const STEPS: usize = 32;
const TEXTS: usize = 8;
const TEXT: usize = 128;

/// A model that does one thing after the other: the seconds of each, and the bits that came out last.
trait Subject {
    fn once(&mut self) -> Result<(Vec<f64>, Vec<f32>), Error>;
}

struct Decoder(LanguageModel);

impl Subject for Decoder {
    fn once(&mut self) -> Result<(Vec<f64>, Vec<f32>), Error> {
        let vocab = self.0.decoder().config().vocab_size;
        let mut sequence = self.0.sequence();
        let start = Instant::now();
        self.0.prefill(&mut sequence, &tokens(vocab, 0, PROMPT))?;
        let prefill = start.elapsed().as_secs_f64();
        let mut sequences = [sequence];
        let start = Instant::now();
        for token in tokens(vocab, 1000, STEPS) {
            self.0.decode_greedy(&mut sequences, &[token])?;
        }
        let decode = start.elapsed().as_secs_f64();
        let [mut sequence] = sequences;
        let logits = self.0.prefill(&mut sequence, &[1])?.to_vec();
        Ok((vec![prefill, decode], logits))
    }
}

struct Encoder {
    model: EmbeddingModel,
    texts: Vec<Vec<u32>>,
}

impl Subject for Encoder {
    fn once(&mut self) -> Result<(Vec<f64>, Vec<f32>), Error> {
        let start = Instant::now();
        let vectors = self.model.embed_tokens(&self.texts)?;
        Ok((vec![start.elapsed().as_secs_f64()], vectors.into_iter().flatten().collect()))
    }
}

fn load(ctx: Arc<Context>, folder: &Folder, weights: &WeightOptions) -> Result<Box<dyn Subject>, Error> {
    if let ModelConfig::Encoder(config) = folder.config()? {
        let texts = (0..TEXTS).map(|b| tokens(config.vocab_size, b, TEXT)).collect();
        return Ok(Box::new(Encoder { model: EmbeddingModel::load_on(ctx, folder, weights, &mut |_, _| {})?, texts }));
    }
    let options = LoadOptions { weights: *weights, context: Some(2 * PROMPT), ..LoadOptions::default() };
    Ok(Box::new(Decoder(LanguageModel::load_on(ctx, folder, &options, &mut |_, _| {})?)))
}

fn main() -> ExitCode {
    command(include_str!("tuned_rates.rs"), rates)
}

fn rates(arguments: &[String]) -> Result<(), Error> {
    let [folder, dtype, rest @ ..] = arguments else {
        return Err("arguments are FOLDER DTYPE [ROUNDS [SECONDS]]; see --help".into());
    };
    let rounds = rest.first().map_or(Ok(15), |rounds| rounds.parse::<usize>())?;
    let seconds = rest.get(1).map_or(Ok(20.0), |seconds| seconds.parse::<f64>())?;
    let (folder, weights, device) = (Folder::new(folder), weights(dtype)?, Cpu::get());
    let names = match folder.config()? {
        ModelConfig::Encoder(_) => vec![format!("{TEXTS} texts of {TEXT}")],
        _ => vec![format!("prompt of {PROMPT}"), format!("{STEPS} steps")],
    };

    let plain = Arc::new(context(&device)?);
    let mut untuned = load(plain.clone(), &folder, &weights)?;
    // What the model asks for when it runs is noted as well.
    untuned.once()?;
    let tuned = tune(&plain, &Budget { time: Duration::from_secs_f64(seconds), ..Budget::default() })?;
    let changed: Vec<_> = tuned.problems.iter().filter(|problem| problem.winner != problem.predicted).collect();
    println!("{}: {} problems in {:.1} s, {} left", device.hardware(), tuned.problems.len(), tuned.seconds, tuned.left);
    for problem in &changed {
        println!("  {} in place of {}: {}", problem.winner, problem.predicted, problem.problem);
    }
    let name = format!("sinew-tuned-rates-{}", std::process::id());
    let place = std::env::temp_dir().join(name);
    let cache = TuningCache::at(PrivateFolder::at(&place));
    cache.save(&plain, &tuned)?;
    let with_times = context(&device)?.with_tuning(&cache);
    std::fs::remove_dir_all(&place)?;
    let mut tuned = load(Arc::new(with_times), &folder, &weights)?;

    let mut all: Vec<Vec<[f64; 2]>> = vec![Vec::new(); names.len()];
    for round in 0..=rounds {
        // Who is first changes from round to round; the first round is not counted.
        let ((a, a_bits), (b, b_bits)) = match round % 2 {
            0 => {
                let first = untuned.once()?;
                (first, tuned.once()?)
            }
            _ => {
                let first = tuned.once()?;
                (untuned.once()?, first)
            }
        };
        if a_bits.iter().map(|x| x.to_bits()).ne(b_bits.iter().map(|x| x.to_bits())) {
            return Err("tuned and untuned give other bits".into());
        }
        if round > 0 {
            all.iter_mut().zip(a.into_iter().zip(b)).for_each(|(of, (a, b))| of.push([a, b]));
        }
    }
    println!("{:<20} {:>12} {:>12} {:>8}", dtype, "untuned, ms", "tuned, ms", "ratio");
    for (name, pairs) in names.iter().zip(&all) {
        let [a, b] = [0, 1].map(|which| median(pairs.iter().map(|pair| pair[which] * 1e3)));
        let ratio = median(pairs.iter().map(|[a, b]| b / a));
        println!("{name:<20} {a:>12.2} {b:>12.2} {ratio:>8.3}");
    }
    println!("the bits are the same");
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
