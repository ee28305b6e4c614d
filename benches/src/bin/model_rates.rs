//! Sinew's side of `benches/peers/models.py` and `benches/peers/embeddings.py`: a whole model, in turn with others.
//!
//! ```text
//! model-rates FOLDER DTYPE THREADS SHORT PREFILL STEPS BATCH BATCH_STEPS
//! model-rates FOLDER DTYPE THREADS TOKENS BATCH...
//! ```
//! The first for a decoder, with the sizes of measures.py; the second for an encoder, texts of TOKENS tokens. For speed
//! by itself there is `sinew bench`. DTYPE is f32, f16, bf16, int8 or int4, to which weights are quantized in groups of
//! 32 as they are loaded; with `+int8` behind it their products read int8. `SINEW_SIMD` caps the level.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sinew_benches::contender::{Error, Generation, Item, Measured, put, ready, serve, tokens};
use sinew_benches::{beside_limits, command, context, flops_limit, weights};
use sinew_kernels::rates::{Meter, Peaks};
use sinew_memory::{Cpu, system};
use sinew_models::engine::RequestId;
use sinew_models::{EmbeddingModel, EncoderConfig, Engine, EngineOptions, Folder, GenerateOptions, LanguageModel};
use sinew_models::{LoadOptions, ModelConfig, Request};

fn main() -> ExitCode {
    command(include_str!("model_rates.rs"), rates)
}

fn rates(arguments: &[String]) -> Result<(), Error> {
    let [folder, dtype, threads, sizes @ ..] = arguments else {
        return Err("arguments are FOLDER DTYPE THREADS SIZES; see --help".into());
    };
    ready()?;
    let start = Instant::now();
    let device = Cpu::with(threads.parse()?, sinew_memory::level_from_environment()?)?;
    let (ctx, folder) = (Arc::new(context(&device)?), Folder::new(folder));
    let weights = weights(dtype)?;
    if let ModelConfig::Encoder(config) = folder.config()? {
        let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
        let [tokens, batches @ ..] = &sizes[..] else { return Err("sizes are TOKENS BATCH...".into()) };
        return encoder(EmbeddingModel::load_on(ctx, &folder, &weights, &mut |_, _| {})?, config, *tokens, batches);
    }
    let all = Generation::all(sizes)?;
    let (long, short) = (all[0].prompt, all[1].prompt);
    let max_sequences = all.iter().map(|g| g.batch).max().unwrap_or(1);
    let options = LoadOptions { weights, context: Some(CONTEXT), max_sequences, ..LoadOptions::default() };
    let mut model = LanguageModel::load_on(ctx, &folder, &options, &mut |_, _| {})?;
    let vocab = model.decoder().config().vocab_size;
    let mut sequence = model.sequence();
    model.prefill(&mut sequence, &tokens(vocab, 0, short))?;
    put("load to first token", start.elapsed().as_secs_f64(), "s");
    sequence.truncate(0)?;
    model.prefill(&mut sequence, &tokens(vocab, 0, long))?;
    put("peak memory", system::peak_resident_bytes() as f64 / 1e6, "MB");
    drop(sequence);
    decoder(model, &all)
}

/// Tokens of a sequence.
const CONTEXT: usize = 1024;

fn decoder(model: LanguageModel, all: &[Generation]) -> Result<(), Error> {
    let vocab = model.decoder().config().vocab_size;
    let meter = Meter::new(model.context().device())?;
    let mut model = Some(model);
    // What was asked for last, and its sequences, which go on where it is asked for again.
    let (mut last, mut sequences) = (None, Vec::new());
    let items: Vec<Item> = all.iter().map(Generation::item).collect();
    serve(&items, &mut |item| {
        let generation = *all.iter().find(|g| g.item().what == item.what).ok_or("no such item")?;
        let Generation { prompt, batch, steps, requests } = generation;
        if requests {
            (last, sequences) = (None, Vec::new());
            let mut engine = Engine::new(model.take().ok_or("the model is gone")?, EngineOptions::default());
            let measured = scheduled(&mut engine, &meter, generation);
            model = Some(engine.into_model());
            return measured;
        }
        let (model, again) = (model.as_mut().ok_or("the model is gone")?, last);
        let mut prefill = |model: &mut LanguageModel| -> Result<f64, Error> {
            last = Some(generation);
            sequences.clear();
            sequences.extend((0..batch).map(|_| model.sequence()));
            let start = Instant::now();
            for (b, sequence) in sequences.iter_mut().enumerate() {
                model.prefill(sequence, &tokens(vocab, b, prompt))?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let decoder = model.decoder();
        let (config, factors) = (decoder.config(), decoder.precision().main_factors());
        let of = |seconds: f64| generation.tokens() as f64 / seconds;
        if steps == 0 {
            let flops = prompt as f64 * config.flops_per_token(prompt as f64 / 2.0) + config.head_flops();
            let least = |peaks: &Peaks| flops / flops_limit(peaks, factors);
            return beside_limits(&meter, || prefill(model), least, of);
        }
        if again != Some(generation) {
            prefill(model)?;
        }
        let length = sequences[0].len();
        let bytes = steps as f64 * model.decoder().step_bytes(batch, (length + steps / 2) as f64);
        let work = || {
            let rows: Vec<_> = (0..batch).map(|b| tokens(vocab, length + 1000 + 70 * b, steps + 1)).collect();
            let mut start = Instant::now();
            // The first is not counted.
            for step in 0..=steps {
                if step == 1 {
                    start = Instant::now();
                }
                let row: Vec<u32> = rows.iter().map(|tokens| tokens[step]).collect();
                model.decode_greedy(&mut sequences, &row)?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        beside_limits(&meter, work, |peaks| bytes / peaks.memory_bytes_per_s, of)
    })
}

/// The steps of sequences that are requests of a scheduler.
fn scheduled(engine: &mut Engine, meter: &Meter, generation: Generation) -> Result<Measured, Error> {
    let Generation { prompt, batch, steps, .. } = generation;
    let vocab = engine.model().decoder().config().vocab_size;
    let mut waiting = HashSet::new();
    for b in 0..batch {
        let options = GenerateOptions { max_new_tokens: CONTEXT, ignore_eos: true, ..GenerateOptions::default() };
        let request = Request { options, text: false, ..Request::new(tokens(vocab, b, prompt)) };
        waiting.insert(engine.submit(request)?);
    }
    let all: Vec<RequestId> = waiting.iter().copied().collect();
    while !waiting.is_empty() {
        for event in engine.step()? {
            waiting.remove(&event.request);
        }
    }
    let bytes = steps as f64 * engine.model().decoder().step_bytes(batch, (prompt + steps / 2) as f64);
    let work = || {
        // The first is not counted.
        engine.step()?;
        let start = Instant::now();
        for _ in 0..steps {
            if engine.step()?.len() < batch {
                return Err("a request has no token of a step".into());
            }
        }
        Ok(start.elapsed().as_secs_f64())
    };
    let of = |seconds: f64| generation.tokens() as f64 / seconds;
    let measured = beside_limits(meter, work, |peaks| bytes / peaks.memory_bytes_per_s, of)?;
    for request in all {
        engine.cancel(request);
    }
    engine.step()?;
    Ok(measured)
}

fn encoder(mut model: EmbeddingModel, config: &EncoderConfig, length: usize, batches: &[usize]) -> Result<(), Error> {
    let (meter, factors) = (Meter::new(model.context().device())?, model.precision().main_factors());
    let items: Vec<Item> = batches.iter().map(|batch| Item::new(format!("batch {batch}"), "tokens/s")).collect();
    serve(&items, &mut |item| {
        let batch = *batches.iter().find(|batch| item.what == format!("batch {batch}")).ok_or("no such item")?;
        let texts: Vec<Vec<u32>> = (0..batch).map(|b| tokens(config.vocab_size, b, length)).collect();
        let tokens = (batch * length) as f64;
        let work = || {
            model.embed_tokens(&texts)?;
            let start = Instant::now();
            model.embed_tokens(&texts)?;
            Ok(start.elapsed().as_secs_f64())
        };
        let flops = tokens * config.flops_per_token(length as f64);
        let least = |peaks: &Peaks| flops / flops_limit(peaks, factors);
        beside_limits(&meter, work, least, |seconds| tokens / seconds)
    })
}
