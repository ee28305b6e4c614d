//! An embedding model: an encoder or a decoder, its tokenizer, pooling and normalisation.

mod backbone;

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;

use sinew_ops::Context;
use sinew_ops::layers::Place;

use self::backbone::Backbone;
use crate::checkpoint::Checkpoint;
use crate::config::check_positions;
use crate::load::{DeviceBytes, Loader, Progress, Sizes};
use crate::load_options::LoadOptions;
use crate::passes::{self, MAX_TEXTS};
use crate::plan::{Footprint, Planner, Purpose};
use crate::pooling::{EmbeddingConfig, Pooling, normalize};
use crate::precision::{Precision, WeightOptions};
use crate::{Error, Folder, ModelConfig, Result, Tokenizer};

/// Texts to vectors.
///
/// Texts are cut at `max_seq_length` of `sentence_bert_config.json`, else at `model_max_length` of
/// `tokenizer_config.json`, special tokens included. Without a `modules.json`, an encoder's tokens are averaged and the
/// mean is scaled to length 1; a decoder without one is no embedding model.
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
    backbone: Backbone,
    tokenizer: Option<Arc<Tokenizer>>,
    /// The reason why there is none.
    no_tokenizer: Option<String>,
    config: EmbeddingConfig,
    pooling: Pooling,
    max_tokens: usize,
}

impl EmbeddingModel {
    /// Loads a folder with `config.json`, safetensors, `tokenizer.json` and, where they are, the files of
    /// sentence-transformers, for the CPU.
    ///
    /// # Errors
    /// Files that are missing or damaged, an architecture that is not supported, a decoder without a pooling, or out of
    /// memory.
    pub fn load(folder: impl AsRef<Path>, options: &WeightOptions) -> Result<Self> {
        Self::load_on(Arc::new(Context::cpu()?), &Folder::new(folder.as_ref()), options, &mut |_, _| {})
    }

    /// [`EmbeddingModel::load`] on a context, with progress in bytes of the checkpoint.
    ///
    /// # Errors
    /// Those of [`EmbeddingModel::load`].
    pub fn load_on(
        ctx: Arc<Context>,
        folder: &Folder,
        options: &WeightOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let model = folder.config()?;
        let config = folder.embedding()?.clone();
        let pooling = match model {
            ModelConfig::Encoder(_) => config.pooling.or(Some(Pooling::Mean)),
            ModelConfig::Decoder(_) => config.pooling,
        };
        let pooling = pooling.ok_or_else(|| Error::Unsupported {
            what: format!("embedding with the decoder `{}` without a modules.json", model.model_type()),
            supported: "encoders, and decoders whose modules.json says how tokens are pooled".to_owned(),
        })?;
        let max_tokens = folder.text_limits()?.limit(model.text_positions());
        let checkpoint = folder.checkpoint(options.load)?;
        let precision = options.precision(&checkpoint, &ctx)?;
        let loaded = LoadOptions { weights: *options, ..LoadOptions::default() };
        let Footprint { plan, kept, .. } =
            Planner::of(&ctx, Purpose::Embed(model), &checkpoint).refuse_beyond_memory(&loaded, "embeddings")?;
        let mut tokenizer = folder.tokenizer()?;
        if config.do_lower_case {
            tokenizer = tokenizer.map(|tokenizer| Arc::new(tokenizer.in_lower_case()));
        }
        ctx.prefetch()?;
        let precision = Precision { kept, ..precision };
        let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, plan.activations, progress);
        let backbone = Backbone::load(&mut loader, model)?;
        let no_tokenizer = tokenizer.is_none().then(|| folder.no_tokenizer());
        Ok(Self { ctx, backbone, tokenizer, no_tokenizer, config, pooling, max_tokens })
    }

    /// What a model would take on a context's device. The tensors are checked that loading would read, by what the
    /// headers say.
    ///
    /// # Errors
    /// A dtype that weights cannot be kept in, a checkpoint without floating-point tensors, tensors that are missing or of
    /// another shape than the config says, or those of [`Checkpoint::refuse_unread`].
    pub fn plan(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        options: &WeightOptions,
        ctx: &Context,
    ) -> Result<DeviceBytes> {
        let precision = options.precision(checkpoint, ctx)?;
        passes::device_bytes(config, &mut Sizes::new(ctx, checkpoint, precision))
    }

    /// The context that it runs on.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// Dtypes of weights, activations and products.
    pub fn precision(&self) -> Precision {
        self.backbone.precision()
    }

    /// The rows that serve its encoder or decoder: a name of the place, and the rows chosen there for one row and for
    /// many.
    pub fn kernels(&self) -> Vec<Place> {
        self.backbone.kernels()
    }

    /// Values in a hidden state.
    pub fn hidden_size(&self) -> usize {
        self.backbone.hidden_size()
    }

    /// Values in a vector: as many as in a hidden state, or those that [truncation](EmbeddingConfig::truncate_dim) leaves.
    pub fn dimensions(&self) -> usize {
        self.config.truncate_dim.map_or(self.hidden_size(), |most| most.min(self.hidden_size()))
    }

    /// Has vectors keep their first `most` values, or all, in place of as many as the model's files say. Vectors that are
    /// scaled to length 1 are so before.
    ///
    /// # Errors
    /// [`Error::Input`] for no value at all.
    pub fn truncate_to(&mut self, most: Option<usize>) -> Result<()> {
        if most == Some(0) {
            return Err(Error::Input("vectors of 0 dimensions; keep at least one".to_owned()));
        }
        self.config.truncate_dim = most;
        Ok(())
    }

    /// The most tokens of a text that are read, special ones included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Pooling, normalisation and prompts, as the model's files have them.
    pub fn config(&self) -> &EmbeddingConfig {
        &self.config
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
        let states = self.backbone.run(&self.ctx, &[tokens], false)?;
        Ok(states.concat())
    }

    fn check_length(&self, tokens: &[u32]) -> Result<()> {
        check_positions(tokens.len(), self.backbone.longest())
    }

    /// One vector for each text, in order, with the prompt that the model's files name as the default.
    ///
    /// # Errors
    /// A model without a tokenizer, or a text that cannot be tokenized.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>> {
        self.embed_prompted(None, texts)
    }

    /// One vector for each text, in order, with the prompt of this name.
    ///
    /// # Errors
    /// A name that the model's files do not have, and those of [`EmbeddingModel::embed`].
    pub fn embed_as<T: AsRef<str>>(&mut self, prompt_name: &str, texts: &[T]) -> Result<Vec<Vec<f32>>> {
        self.embed_prompted(Some(prompt_name), texts)
    }

    fn embed_prompted<T: AsRef<str>>(&mut self, prompt_name: Option<&str>, texts: &[T]) -> Result<Vec<Vec<f32>>> {
        let prompt = self.config.prompt(prompt_name)?;
        let skipped = match prompt {
            "" => 0,
            _ if self.config.include_prompt => 0,
            _ => self.prompt_tokens(prompt)?,
        };
        let encoded = texts.iter().map(|text| {
            let text = text.as_ref();
            let tokens = self.encode(&format!("{prompt}{text}"), self.max_tokens)?;
            if tokens.len() <= skipped {
                let line = crate::printable(text);
                return Err(Error::Input(format!("the text `{line}` has no token")));
            }
            Ok(tokens)
        });
        let encoded = encoded.collect::<Result<Vec<_>>>()?;
        self.embed_from(&encoded, skipped)
    }

    fn encode(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer.as_ref().ok_or_else(|| {
            let reason = self.no_tokenizer.as_deref().unwrap_or("the model has no tokenizer.json");
            Error::Input(format!("{reason}; embedding texts needs one"))
        })?;
        tokenizer.encode_within(text, max_tokens)
    }

    /// Tokens of a prompt before a text. As sentence-transformers counts them: those of the prompt alone, without a
    /// special one at its end.
    fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let tokens = self.encode(prompt, self.max_tokens)?;
        let special = |&token: &u32| self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_special(token));
        Ok(tokens.len() - usize::from(tokens.last().is_some_and(special)))
    }

    /// One vector for each text given as tokens, in order.
    ///
    /// # Errors
    /// A text without a token, a token out of the vocabulary, or more tokens than the model has positions.
    pub fn embed_tokens(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        if texts.iter().any(Vec::is_empty) {
            return Err(Error::Input("a text has no token".to_owned()));
        }
        self.embed_from(texts, 0)
    }

    /// One vector for each text, of all but its first `skipped` tokens.
    fn embed_from(&mut self, texts: &[Vec<u32>], skipped: usize) -> Result<Vec<Vec<f32>>> {
        texts.iter().try_for_each(|tokens| self.check_length(tokens))?;
        // Texts of like length share a pass: who shares it changes no bit, and attention is planned for the longest.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&i| Reverse(texts[i].len()));
        let mut vectors = vec![Vec::new(); texts.len()];
        let mut rest = &order[..];
        while !rest.is_empty() {
            let mut left = passes::tokens(self.ctx.device().id().kind);
            let fitting = rest.iter().take(MAX_TEXTS).take_while(|&&i| match left.checked_sub(texts[i].len()) {
                Some(behind) => {
                    left = behind;
                    true
                }
                None => false,
            });
            let (pass, later) = rest.split_at(fitting.count().max(1));
            let ids: Vec<&[u32]> = pass.iter().map(|&i| texts[i].as_slice()).collect();
            let last = self.pooling == Pooling::LastToken;
            for (&i, states) in pass.iter().zip(self.backbone.run(&self.ctx, &ids, last)?) {
                let skipped = if last { 0 } else { skipped * self.hidden_size() };
                vectors[i] = self.vector(i, &states[skipped..])?;
            }
            rest = later;
        }
        Ok(vectors)
    }

    /// The vector of one text from those of its tokens.
    fn vector(&self, text: usize, states: &[f32]) -> Result<Vec<f32>> {
        let mut vector = self.pooling.pool(states, self.hidden_size());
        if self.config.normalize {
            normalize(&mut vector);
        }
        vector.truncate(self.dimensions());
        if vector.iter().any(|x| !x.is_finite()) {
            return Err(Error::Input(format!(
                "the embedding of text {text}, counted from 0, has values that are no numbers"
            )));
        }
        Ok(vector.into_iter().map(|x| x as f32).collect())
    }
}
