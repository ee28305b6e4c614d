//! What serving many requests costs and brings, with one model: what is found of a prompt beside what is run, sequences
//! that decode together, and blocks beside one run of memory.
//!
//! ```text
//! serving-rates FOLDER DTYPE THREADS [ROUNDS]
//! ```
//! Everything is taken in turns, and medians of the rounds are printed; shares are medians of the rounds' own. Checkpoints
//! of random weights are made by `benches/peers/models.py`. Two copies of the weights are held at once.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sinew_benches::contender::{Error, tokens};
use sinew_benches::{command, context};
use sinew_memory::{Cpu, level_from_environment};
use sinew_models::{
    Engine, EngineOptions, Folder, GenerateOptions, Happening, LanguageModel, LoadOptions, Request, WeightOptions,
};
use sinew_tensor::DType;

/// Tokens of a prompt that is found again, in whole blocks, and of the one that is run in any case.
const PREFIX: usize = 1008;
/// Sequences at once, at most.
const MOST: usize = 64;
/// Tokens before and after of sequences that decode together.
const PROMPT: usize = 64;
const NEW: usize = 16;
/// Sequences, tokens before, and steps where blocks are held against one run.
const BATCH: usize = 8;
const BEFORE: usize = 512;
const STEPS: usize = 16;
/// Tokens of the longest sequence.
const CONTEXT: usize = 1024;
/// Tokens of a block, as they are by default.
const BLOCK: usize = 16;

fn main() -> ExitCode {
    command(include_str!("serving_rates.rs"), rates)
}

fn rates(arguments: &[String]) -> Result<(), Error> {
    let [folder, dtype, threads, rounds @ ..] = arguments else {
        return Err("arguments are FOLDER DTYPE THREADS [ROUNDS]; see --help".into());
    };
    let dtype = DType::COMPUTE.into_iter().find(|d| d.name() == dtype).ok_or("dtype is f32, f16 or bf16")?;
    let rounds: usize = rounds.first().map_or(Ok(5), |text| text.parse())?;
    let (folder, threads) = (Folder::new(folder), threads.parse()?);
    let load = |block_size, max_sequences, cache_tokens| -> Result<LanguageModel, Error> {
        let device = Cpu::with(threads, level_from_environment()?)?;
        let weights = WeightOptions { dtype: Some(dtype), ..WeightOptions::default() };
        let options = LoadOptions {
            weights,
            context: Some(CONTEXT),
            block_size,
            max_sequences,
            cache_tokens: Some(cache_tokens),
            ..LoadOptions::default()
        };
        Ok(LanguageModel::load_on(Arc::new(context(&device)?), &folder, &options, &mut |_, _| {})?)
    };
    let blocks = load(BLOCK, MOST, MOST * (PROMPT + NEW + BLOCK) + CONTEXT)?;
    let one_run = load(CONTEXT, BATCH, BATCH * CONTEXT)?;
    println!("{}, {dtype}, medians of {rounds} rounds", blocks.context().device().hardware());
    let blocks = found(blocks, rounds)?;
    let blocks = together(blocks, rounds)?;
    in_blocks(blocks, one_run, rounds)
}

/// Seconds to the first token of a prompt that is run, of the same again, and of what that last token costs alone.
fn found(model: LanguageModel, rounds: usize) -> Result<LanguageModel, Error> {
    let vocab = model.decoder().config().vocab_size;
    let mut engine = Engine::new(model, EngineOptions::default());
    let mut all = [const { Vec::new() }; 3];
    for round in 0..=rounds {
        let prompt = tokens(vocab, 31 * (round + 1), PREFIX + 1);
        let run = first_token(&mut engine, &prompt)?;
        let again = first_token(&mut engine, &prompt)?;
        let mut model = engine.into_model();
        let mut sequence = model.sequence();
        model.prefill(&mut sequence, &prompt[..PREFIX])?;
        let start = Instant::now();
        model.prefill(&mut sequence, &prompt[PREFIX..])?;
        let last = start.elapsed().as_secs_f64();
        drop(sequence);
        engine = Engine::new(model, EngineOptions::default());
        if round > 0 {
            all.iter_mut()
                .zip([run - last, again - last, 100.0 * (again - last) / (run - last)])
                .for_each(|(v, x)| v.push(x));
        }
    }
    let [run, again, share] = all.map(median);
    println!("{PREFIX} tokens run in {:.2} ms, found in {:.3} ms: {share:.2} %", run * 1e3, again * 1e3);
    Ok(engine.into_model())
}

fn first_token(engine: &mut Engine, prompt: &[u32]) -> Result<f64, Error> {
    let start = Instant::now();
    engine.submit(request(prompt.to_vec(), 1))?;
    let mut seconds = 0.0;
    while !engine.is_idle() {
        if engine.step()?.iter().any(|event| matches!(event.what, Happening::Token { .. })) {
            seconds = start.elapsed().as_secs_f64();
        }
    }
    Ok(seconds)
}

fn request(prompt: Vec<u32>, max_new_tokens: usize) -> Request {
    let options = GenerateOptions { max_new_tokens, ignore_eos: true, ..GenerateOptions::default() };
    Request { options, text: false, ..Request::new(prompt) }
}

/// Tokens per second of 1, 2, 4, … sequences that decode together.
fn together(mut model: LanguageModel, rounds: usize) -> Result<LanguageModel, Error> {
    let vocab = model.decoder().config().vocab_size;
    let counts: Vec<usize> = (0..).map(|i| 1 << i).take_while(|&n| n <= MOST).collect();
    let mut rates = vec![Vec::new(); counts.len()];
    for round in 0..rounds {
        for (&count, rates) in counts.iter().zip(&mut rates) {
            let mut engine = Engine::new(model, EngineOptions::default());
            for i in 0..count {
                engine.submit(request(tokens(vocab, 104_729 * (round * MOST + i + 1), PROMPT), NEW + 1))?;
            }
            // Steps in which all of them answer.
            let (mut timed, mut seconds) = (0, 0.0);
            while !engine.is_idle() {
                let before = engine.stats();
                let start = Instant::now();
                engine.step()?;
                let took = start.elapsed().as_secs_f64();
                let done = engine.stats().since(&before);
                if (done.decoded, done.prefilled) == (count as u64, 0) {
                    timed += count;
                    seconds += took;
                }
            }
            rates.push(timed as f64 / seconds);
            model = engine.into_model();
        }
    }
    let mut one = f64::NAN;
    for (count, rates) in counts.iter().zip(rates) {
        let rate = median(rates);
        one = if *count == 1 { rate } else { one };
        println!("{count:>2} sequences decode {rate:7.1} tokens/s, {:.2} times one", rate / one);
    }
    Ok(model)
}

/// Seconds of prompts and of steps in blocks, and where each sequence has one block for all.
fn in_blocks(mut blocks: LanguageModel, mut one_run: LanguageModel, rounds: usize) -> Result<(), Error> {
    let mut all = [const { Vec::new() }; 4];
    for round in 0..=rounds {
        let turn = |model: &mut LanguageModel| -> Result<[f64; 2], Error> {
            let vocab = model.decoder().config().vocab_size;
            let mut sequences: Vec<_> = (0..BATCH).map(|_| model.sequence()).collect();
            let start = Instant::now();
            for (b, sequence) in sequences.iter_mut().enumerate() {
                model.prefill(sequence, &tokens(vocab, b + 7 * round, BEFORE))?;
            }
            let prompts = start.elapsed().as_secs_f64();
            let start = Instant::now();
            for step in 0..STEPS {
                model.decode_greedy(&mut sequences, &tokens(vocab, 1000 + step * BATCH, BATCH))?;
            }
            Ok([prompts, start.elapsed().as_secs_f64()])
        };
        // Who comes first changes from round to round.
        let (of_blocks, of_run) = match round % 2 {
            0 => (turn(&mut blocks)?, turn(&mut one_run)?),
            _ => {
                let of_run = turn(&mut one_run)?;
                (turn(&mut blocks)?, of_run)
            }
        };
        if round > 0 {
            let figures = [of_blocks[0], of_blocks[0] / of_run[0], of_blocks[1], of_blocks[1] / of_run[1]];
            all.iter_mut().zip(figures).for_each(|(values, x)| values.push(x));
        }
    }
    let [prompts, of_prompts, steps, of_steps] = all.map(median);
    println!(
        "{BATCH} sequences in blocks of {BLOCK}: prompts of {BEFORE} tokens {:.1} tokens/s, {:+.1} % beside one run of \
         memory; {STEPS} steps behind them {:.1} tokens/s, {:+.1} %",
        (BATCH * BEFORE) as f64 / prompts,
        100.0 * (of_prompts - 1.0),
        (BATCH * STEPS) as f64 / steps,
        100.0 * (of_steps - 1.0)
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
