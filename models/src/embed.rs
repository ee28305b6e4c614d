//! An embedding model: an encoder, its tokenizer, pooling and normalisation.

use std::path::Path;
use std::sync::Arc;

use sinew_ops::Context;

use crate::checkpoint::Checkpoint;
use crate::encoder::Encoder;
use crate::load::{Loader, Progress, WeightOptions};
use crate::tokenizer::{EmbeddingConfig, Pooling, TextLimits, Tokenizer};
use crate::{Error, ModelConfig, Result};

/// Texts to vectors.
///
/// Texts are cut at `max_seq_length` of `sentence_bert_config.json`, else at `model_max_length` of
/// `tokenizer_config.json`, special tokens included.
///
/// ```no_run
/// use sinew_models::{EmbeddingModel, WeightOptions};
///
/// let mut model = EmbeddingModel::load("path/to/model", &WeightOptions::default())?;
/// let vectors = model.embed(&["a text", "another"])?;
/// println!("{} values", vectors[0].len());
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct EmbeddingModel {
    ctx: Arc<Context>,
    encoder: Encoder,
    tokenizer: Option<Tokenizer>,
    pooling: EmbeddingConfig,
    max_tokens: usize,
}

/// The most texts in one pass.
const MAX_TEXTS: usize = 32;
/// Tokens in one pass, where the model's positions are fewer: several texts share a pass.
const PASS_TOKENS: usize = 2048;

impl EmbeddingModel {
    /// Loads a folder with `config.json`, safetensors, `tokenizer.json` and, where they are, the files of
    /// sentence-transformers, for the CPU.
    ///
    /// # Errors
    /// Files that are missing or damaged, an architecture that is not a supported encoder, or out of memory.
    pub fn load(folder: impl AsRef<Path>, options: &WeightOptions) -> Result<Self> {
        Self::load_on(Arc::new(Context::cpu()?), folder, options, &mut |_, _| {})
    }

    /// [`EmbeddingModel::load`] on a context, with progress in bytes of the checkpoint.
    ///
    /// # Errors
    /// Those of [`EmbeddingModel::load`].
    pub fn load_on(
        ctx: Arc<Context>,
        folder: impl AsRef<Path>,
        options: &WeightOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let folder = folder.as_ref();
        let config = match ModelConfig::from_folder(folder)? {
            ModelConfig::Encoder(config) => config,
            other => {
                return Err(Error::Unsupported {
                    what: format!("embedding with the decoder `{}`", other.model_type()),
                    supported: "encoders (bert)".to_owned(),
                });
            }
        };
        let tokenizer = Tokenizer::from_folder_if_present(folder)?;
        let pooling = EmbeddingConfig::from_folder(folder)?;
        let max_tokens = TextLimits::from_folder(folder)?.limit(config.max_position_embeddings);
        let checkpoint = Checkpoint::open(folder, options.load)?;
        ctx.prefetch()?;
        let precision = options.precision(&checkpoint, ctx.device().hardware())?;
        let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, progress);
        let rows = config.max_position_embeddings.max(PASS_TOKENS);
        let encoder = Encoder::load(&mut loader, &config, rows, MAX_TEXTS)?;
        Ok(Self { ctx, encoder, tokenizer, pooling, max_tokens })
    }

    /// The encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The context that it runs on.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The most tokens of a text that are read, special ones included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The last hidden states of one text given as tokens, `[tokens, hidden_size]`.
    ///
    /// # Errors
    /// A token out of the vocabulary, or more tokens than the model has positions.
    pub fn hidden_states(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::Input("the text has no token".to_owned()));
        }
        self.check_length(tokens)?;
        let Self { ctx, encoder, .. } = self;
        encoder.forward(ctx, &[tokens])
    }

    fn check_length(&self, tokens: &[u32]) -> Result<()> {
        let (length, positions) = (tokens.len(), self.encoder.config().max_position_embeddings);
        if length > positions {
            return Err(Error::Input(format!("a text of {length} tokens; the model has {positions} positions")));
        }
        Ok(())
    }

    /// One vector for each text, in order.
    ///
    /// # Errors
    /// A model without a tokenizer, or a text that cannot be tokenized.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>> {
        let tokenizer = self
            .tokenizer
            .as_ref()
            .ok_or_else(|| Error::Input("the model has no tokenizer.json, which embedding texts needs".to_owned()))?;
        let encoded = texts
            .iter()
            .map(|text| {
                let lower;
                let mut text = text.as_ref();
                if self.pooling.do_lower_case {
                    lower = text.to_lowercase();
                    text = &lower;
                }
                let encoded = tokenizer.encode_within(text, self.max_tokens)?;
                if encoded.ids.is_empty() {
                    return Err(Error::Input(format!("the text `{text}` has no token")));
                }
                Ok(encoded.ids)
            })
            .collect::<Result<Vec<_>>>()?;
        self.embed_tokens(&encoded)
    }

    /// One vector for each text given as tokens, in order.
    ///
    /// # Errors
    /// A text without a token, a token out of the vocabulary, or more tokens than the model has positions.
    pub fn embed_tokens(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        if texts.iter().any(Vec::is_empty) {
            return Err(Error::Input("a text has no token".to_owned()));
        }
        texts.iter().try_for_each(|tokens| self.check_length(tokens))?;
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            // As many texts as fit in a pass: whoever shares it changes no bit of the others.
            let mut tokens = 0;
            let fitting = rest.iter().take(MAX_TEXTS).take_while(|ids| {
                tokens += ids.len();
                tokens <= self.encoder.max_rows()
            });
            let (pass, later) = rest.split_at(fitting.count().max(1));
            let ids: Vec<&[u32]> = pass.iter().map(Vec::as_slice).collect();
            let Self { ctx, encoder, .. } = self;
            let states = encoder.forward(ctx, &ids)?;
            let width = self.encoder.config().hidden_size;
            let mut start = 0;
            for ids in pass {
                let end = start + ids.len() * width;
                vectors.push(self.pool(&states[start..end], width));
                start = end;
            }
            rest = later;
        }
        Ok(vectors)
    }

    /// The vector of one text from those of its tokens. Sums are f64: they are short and their error would show in the
    /// last digits.
    fn pool(&self, states: &[f32], width: usize) -> Vec<f32> {
        let tokens = states.len() / width.max(1);
        let mut vector = vec![0.0f64; width];
        let rows = match self.pooling.pooling {
            Pooling::Mean => 0..tokens,
            Pooling::Cls => 0..1,
            Pooling::LastToken => tokens - 1..tokens,
        };
        let weight = 1.0 / rows.len() as f64;
        for row in states.chunks_exact(width).take(rows.end).skip(rows.start) {
            for (sum, x) in vector.iter_mut().zip(row) {
                *sum += f64::from(*x) * weight;
            }
        }
        if self.pooling.normalize {
            // sentence-transformers divides by the norm, or by 1e-12 where it is smaller.
            let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            vector.iter_mut().for_each(|x| *x /= norm);
        }
        vector.into_iter().map(|x| x as f32).collect()
    }
}
