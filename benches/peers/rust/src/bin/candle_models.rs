//! candle's side of models.py: `candle_models FOLDER f32|f16|bf16 SHORT PREFILL STEPS BATCH BATCH_STEPS`, with the
//! sizes of measures.py. Threads by RAYON_NUM_THREADS.

use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{llama, qwen2};
use serde_json::Value;
use sinew_peers::contender::{Error, Generation, put, ready, serve, tokens};

enum Model {
    Qwen2(qwen2::ModelForCausalLM),
    Llama(llama::Llama, llama::Cache, Box<llama::Config>, DType),
}

impl Model {
    fn load(folder: &Path, dtype: DType) -> candle_core::Result<(Self, usize)> {
        let text = std::fs::read_to_string(folder.join("config.json"))?;
        let config: Value = serde_json::from_str(&text).map_err(candle_core::Error::wrap)?;
        let size = |name: &str| config[name].as_u64().unwrap_or(0) as usize;
        let (theta, eps) = (config["rope_parameters"]["rope_theta"].as_f64(), config["rms_norm_eps"].as_f64());
        let (theta, eps) = (theta.unwrap_or(1e4), eps.unwrap_or(1e-6));
        let file = folder.join("model.safetensors");
        // SAFETY: no one writes the file while it is mapped.
        let weights = unsafe { VarBuilder::from_mmaped_safetensors(&[file], dtype, &Device::Cpu)? };
        let model = if config["model_type"] == "qwen2" {
            let config = qwen2::Config {
                vocab_size: size("vocab_size"),
                hidden_size: size("hidden_size"),
                intermediate_size: size("intermediate_size"),
                num_hidden_layers: size("num_hidden_layers"),
                num_attention_heads: size("num_attention_heads"),
                num_key_value_heads: size("num_key_value_heads"),
                max_position_embeddings: size("max_position_embeddings"),
                sliding_window: size("max_position_embeddings"),
                max_window_layers: size("num_hidden_layers"),
                tie_word_embeddings: true,
                rope_theta: theta,
                rms_norm_eps: eps,
                use_sliding_window: false,
                hidden_act: Activation::Silu,
            };
            Self::Qwen2(qwen2::ModelForCausalLM::new(&config, weights)?)
        } else {
            let config = llama::Config {
                hidden_size: size("hidden_size"),
                intermediate_size: size("intermediate_size"),
                vocab_size: size("vocab_size"),
                num_hidden_layers: size("num_hidden_layers"),
                num_attention_heads: size("num_attention_heads"),
                num_key_value_heads: size("num_key_value_heads"),
                use_flash_attn: false,
                rms_norm_eps: eps,
                rope_theta: theta as f32,
                bos_token_id: None,
                eos_token_id: None,
                rope_scaling: None,
                max_position_embeddings: 8192,
                tie_word_embeddings: true,
            };
            let cache = llama::Cache::new(true, dtype, &config, &Device::Cpu)?;
            Self::Llama(llama::Llama::load(weights, &config)?, cache, Box::new(config), dtype)
        };
        Ok((model, size("vocab_size")))
    }

    fn clear(&mut self) -> candle_core::Result<()> {
        match self {
            Self::Qwen2(model) => model.clear_kv_cache(),
            Self::Llama(_, cache, config, dtype) => *cache = llama::Cache::new(true, *dtype, config, &Device::Cpu)?,
        }
        Ok(())
    }

    /// One step of `batch` equal sequences behind `position` tokens; reads the logits.
    fn step(&mut self, tokens: &[u32], batch: usize, position: usize) -> candle_core::Result<()> {
        let tokens = Tensor::from_slice(tokens, (batch, tokens.len() / batch), &Device::Cpu)?;
        let logits = match self {
            Self::Qwen2(model) => model.forward(&tokens, position)?,
            Self::Llama(model, cache, ..) => model.forward(&tokens, position, cache)?,
        };
        std::hint::black_box(logits.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, dtype, sizes @ ..] = &arguments[..] else { return Err("FOLDER DTYPE SIZES".into()) };
    let generations = Generation::all(sizes)?;
    ready()?;
    let start = Instant::now();
    let (mut model, vocab) = Model::load(Path::new(folder), dtype.parse()?)?;
    model.step(&tokens(vocab, 0, generations[1].prompt), 1, 0)?;
    put("load to first token", start.elapsed().as_secs_f64(), "s");
    model.clear()?;
    model.step(&tokens(vocab, 0, generations[0].prompt), 1, 0)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).and_then(|line| line.split_whitespace().nth(1));
    put("peak memory", peak.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0 / 1e6, "MB");

    // What the cache holds: the prompts of which generation, and how long sequences are.
    let mut at: (Option<Generation>, usize) = (None, 0);
    let items: Vec<_> = generations.iter().map(Generation::item).collect();
    serve(&items, &mut |item| {
        let generation = *generations.iter().find(|g| g.item().what == item.what).ok_or("no such item")?;
        let Generation { prompt, batch, steps, .. } = generation;
        // candle's bf16 takes a third of a second for a step.
        let steps = if dtype == "bf16" { steps.div_ceil(8) } else { steps };
        let timed = Generation { steps, ..generation }.tokens() as f64;
        let mut start = Instant::now();
        if steps == 0 || at.0 != Some(generation) {
            model.clear()?;
            start = Instant::now();
            model.step(&(0..batch).flat_map(|b| tokens(vocab, b, prompt)).collect::<Vec<_>>(), batch, 0)?;
            at = (Some(generation), prompt);
        }
        if steps == 0 {
            return Ok((timed / start.elapsed().as_secs_f64()).into());
        }
        // The first is not counted.
        for step in 0..=steps {
            if step == 1 {
                start = Instant::now();
            }
            let row: Vec<u32> = (0..batch).flat_map(|b| tokens(vocab, 1000 + at.1 + 70 * b, 1)).collect();
            model.step(&row, batch, at.1)?;
            at.1 += 1;
        }
        Ok((timed / start.elapsed().as_secs_f64()).into())
    })
}
