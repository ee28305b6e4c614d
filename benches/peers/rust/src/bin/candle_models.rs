//! candle's side of models.py, as JSON lines: `candle_models FOLDER f32|f16|bf16 SHORT PREFILL STEPS BATCH BATCH_STEPS`,
//! with the sizes of measures.py. Threads by RAYON_NUM_THREADS.

use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{llama, qwen2};
use serde_json::Value;

enum Model {
    Qwen2(qwen2::ModelForCausalLM),
    Llama(llama::Llama, llama::Cache, Box<llama::Config>, DType),
}

impl Model {
    fn load(folder: &Path, dtype: DType) -> Result<(Self, u32)> {
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
        Ok((model, size("vocab_size") as u32))
    }

    fn clear(&mut self) -> Result<()> {
        match self {
            Self::Qwen2(model) => model.clear_kv_cache(),
            Self::Llama(_, cache, config, dtype) => *cache = llama::Cache::new(true, *dtype, config, &Device::Cpu)?,
        }
        Ok(())
    }

    /// One step of `batch` equal sequences behind `position` tokens; reads the logits.
    fn step(&mut self, tokens: &[u32], batch: usize, position: usize) -> Result<()> {
        let tokens = Tensor::from_slice(tokens, (batch, tokens.len() / batch), &Device::Cpu)?;
        let logits = match self {
            Self::Qwen2(model) => model.forward(&tokens, position)?,
            Self::Llama(model, cache, ..) => model.forward(&tokens, position, cache)?,
        };
        std::hint::black_box(logits.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}

fn put(what: &str, value: f64, unit: &str) {
    println!("{{\"what\":\"{what}\",\"value\":{value},\"unit\":\"{unit}\"}}");
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (folder, dtype) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let sizes: Vec<usize> = arguments.filter_map(|size| size.parse().ok()).collect();
    let [short, long, steps, batch, batch_steps] = sizes[..] else {
        candle_core::bail!("usage: candle_models FOLDER f32|f16|bf16 SHORT PREFILL STEPS BATCH BATCH_STEPS");
    };
    let start = Instant::now();
    let (mut model, vocab) = Model::load(Path::new(&folder), dtype.parse().map_err(candle_core::Error::wrap)?)?;
    let ids: Vec<u32> =
        (0..8192u64).map(|i| ((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % vocab).collect();
    model.step(&ids[..short], 1, 0)?;
    put("load to first token", start.elapsed().as_secs_f64(), "s");
    let prefill = |model: &mut Model| -> Result<f64> {
        model.clear()?;
        let start = Instant::now();
        model.step(&ids[..long], 1, 0)?;
        Ok(long as f64 / start.elapsed().as_secs_f64())
    };
    let decode = |model: &mut Model, prompt: usize, batch: usize, steps: usize| -> Result<f64> {
        model.clear()?;
        let prompts: Vec<u32> = (0..batch).flat_map(|b| ids[b..b + prompt].iter().copied()).collect();
        model.step(&prompts, batch, 0)?;
        let start = Instant::now();
        for i in 0..steps {
            let row: Vec<u32> = (0..batch).map(|b| ids[1000 + i + 70 * b]).collect();
            model.step(&row, batch, prompt + i)?;
        }
        Ok((batch * steps) as f64 / start.elapsed().as_secs_f64())
    };
    prefill(&mut model)?;
    put(&format!("prefill {long}"), prefill(&mut model)?, "tokens/s");
    // candle's bf16 takes a third of a second for a step.
    let fewer = if dtype == "bf16" { 8 } else { 1 };
    for prompt in [short, long] {
        put(&format!("decode after {prompt}"), decode(&mut model, prompt, 1, steps / fewer)?, "tokens/s");
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).and_then(|line| line.split_whitespace().nth(1));
    put("peak memory", peak.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0 / 1e6, "MB");
    for prompt in [short, long] {
        let rate = decode(&mut model, prompt, batch, batch_steps / fewer)?;
        put(&format!("batch {batch}, decode after {prompt}"), rate, "tokens/s");
    }
    Ok(())
}
