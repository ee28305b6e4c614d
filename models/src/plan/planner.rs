//! Plans of a model in a folder: how much memory a process takes with it, what fits, and what would save how much.

use std::fmt;
use std::ops::Deref;

use sinew_memory::Bytes;
use sinew_ops::Context;
use sinew_ops::layers::{Encoding, OldKv};
use sinew_tensor::{BlockFormat, BlockValues, DType, PagedLayout};

use super::footprint::{self, Footprint, SequenceBytes};
use super::{Purpose, most_that_fits, refuse_beyond_memory};
use crate::documents::FileName;
use crate::error::count_of;
use crate::load::Sizes;
use crate::load_options::LoadOptions;
use crate::passes;
use crate::precision::{Precision, Quantize, main_dtype};
use crate::{Checkpoint, DecoderConfig, Folder, Load, Result, WeightOptions};

/// Says what memory a model takes before its weights are read.
///
/// ```no_run
/// use sinew_models::{Folder, LoadOptions, Load, Planner};
/// use sinew_ops::Context;
///
/// let (ctx, folder) = (Context::cpu()?, Folder::new("path/to/model"));
/// let planner = Planner::new(&ctx, &folder, Load::default())?;
/// let options = LoadOptions { context: Some(4096), max_sequences: 64, ..LoadOptions::default() };
/// let (footprint, budget) = (planner.footprint(&options)?, 2 << 30);
/// println!("{} bytes, {} of them weights", footprint.peak(), footprint.plan.weights);
/// if !planner.fits(&footprint, budget) {
///     println!("at most {} sequences fit", planner.most_sequences(&options, budget)?);
///     for saving in planner.savings(&options, budget)? {
///         println!("{:?} would take {} bytes", saving.change, saving.peak);
///     }
/// }
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Planner<'a> {
    ctx: &'a Context,
    purpose: Purpose<'a>,
    checkpoint: MaybeOwned<'a>,
    /// Bytes of the tokenizer's file.
    tokenizer: u64,
}

/// A checkpoint of the planner's own, or of who loads it.
#[derive(Debug)]
enum MaybeOwned<'a> {
    Own(Checkpoint),
    Lent(&'a Checkpoint),
}

impl Deref for MaybeOwned<'_> {
    type Target = Checkpoint;
    fn deref(&self) -> &Checkpoint {
        match self {
            Self::Own(checkpoint) => checkpoint,
            Self::Lent(checkpoint) => checkpoint,
        }
    }
}

/// What could be loaded otherwise to take less memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// So many sequences at once.
    Sequences(usize),
    /// Sequences of so many tokens.
    Context(usize),
    /// Keys and values in this dtype.
    Kv(DType),
    /// Old keys and values so, or as all others are.
    OldKv(Option<OldKv>),
    /// Weights in this dtype, or as they are stored.
    Dtype(Option<DType>),
    /// Weights quantized to such values.
    Weights(BlockValues),
    /// Weights that are quantized anyway to such values, in the same groups.
    Values(BlockValues),
    /// So many tokens of a prompt in one step.
    PrefillChunk(usize),
    /// Room for so many tokens in the cache, or for every sequence at its longest.
    CacheTokens(Option<usize>),
    /// Room for so many tokens beside it.
    SwapTokens(usize),
    /// So many tokens in a block of the cache.
    BlockSize(usize),
}

/// A change, and what comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saving {
    /// The change.
    pub change: Change,
    /// The [`peak`](Footprint::peak) then.
    pub peak: usize,
    /// Whether it [fits](Planner::fits) then.
    pub fits: bool,
}

impl<'a> Planner<'a> {
    /// A planner of the model in a folder, whose headers are read.
    ///
    /// # Errors
    /// Files that are missing or damaged, or an architecture that is not supported.
    pub fn new(ctx: &'a Context, folder: &'a Folder, load: Load) -> Result<Self> {
        let purpose = Purpose::of(folder)?;
        let tokenizer =
            std::fs::metadata(folder.documents().path_of(FileName::Tokenizer)?).map_or(0, |file| file.len());
        Ok(Self { ctx, purpose, checkpoint: MaybeOwned::Own(folder.checkpoint(load)?), tokenizer })
    }

    /// A planner of the model in a folder whose headers were read.
    ///
    /// # Errors
    /// Files that are missing or damaged, or an architecture that is not supported.
    pub fn with(ctx: &'a Context, folder: &'a Folder, checkpoint: &'a Checkpoint) -> Result<Self> {
        Ok(Self::of(ctx, Purpose::of(folder)?, checkpoint))
    }

    /// A planner of a checkpoint that is being loaded, beside its tokenizer.
    pub(crate) fn of(ctx: &'a Context, purpose: Purpose<'a>, checkpoint: &'a Checkpoint) -> Self {
        Self { ctx, purpose, checkpoint: MaybeOwned::Lent(checkpoint), tokenizer: 0 }
    }

    /// Whether the model turns texts into vectors: then nothing but the weights is asked of options.
    pub fn embeds(&self) -> bool {
        matches!(self.purpose, Purpose::Embed(_))
    }

    /// What the weights are, in words, of which none takes the [activations](WeightOptions::activations) that are asked
    /// for; `None` where one does, or none are asked for.
    ///
    /// # Errors
    /// Those of [`Planner::footprint`].
    pub fn why_untaken(&self, weights: &WeightOptions) -> Result<Option<String>> {
        let Some(activations) = weights.activations else { return Ok(None) };
        let options =
            LoadOptions { weights: WeightOptions { activations: None, ..*weights }, ..LoadOptions::default() };
        let mut sizes = Sizes::new(self.ctx, &self.checkpoint, self.precision(&options)?);
        match self.purpose {
            Purpose::Generate(config) => options.device_bytes(config, &mut sizes)?,
            Purpose::Embed(config) => passes::device_bytes(config, &mut sizes)?,
        };
        Ok(sizes.why_untaken(activations))
    }

    fn precision(&self, options: &LoadOptions) -> Result<Precision> {
        match self.purpose {
            Purpose::Generate(_) => options.precision(&self.checkpoint, self.ctx),
            Purpose::Embed(_) => options.weights.precision(&self.checkpoint, self.ctx),
        }
    }

    /// What a process takes that loads the model so and runs it.
    ///
    /// # Errors
    /// Options that make no sense for the model, tensors that are missing or of another shape than the config says, or those
    /// of [`Checkpoint::refuse_unread`].
    pub fn footprint(&self, options: &LoadOptions) -> Result<Footprint> {
        let device = &**self.ctx.device();
        let precision = self.precision(options)?;
        let mut sizes = Sizes::new(self.ctx, &self.checkpoint, precision).with_workspace();
        let (plan, cache, sequences) = match self.purpose {
            Purpose::Generate(config) => {
                let plan = options.device_bytes(config, &mut sizes)?;
                let swapped = if footprint::is_host(device) { options.swap_tokens } else { 0 };
                let shape = options.cache_shape(config, precision);
                let held = shape.map_or(plan.cache, |shape| shape.held_bytes(device, swapped));
                (plan, held, Some(SequenceBytes::of(config, options, precision)?))
            }
            Purpose::Embed(config) => {
                let plan = passes::device_bytes(config, &mut sizes)?;
                (plan, plan.cache, None)
            }
        };
        sizes.check_activations()?;
        let dequantized = sizes.dequantized.sentences(precision.weights).collect();
        let kept = sizes.kept();
        let (made, workspace) = (sizes.made, sizes.workspace);
        Ok(Footprint {
            dequantized,
            kept,
            weights: footprint::by_encoding(&made),
            sequences,
            workspace,
            rounding: footprint::rounding(device, &plan, &made, cache, workspace),
            margin: footprint::margin(&plan, workspace),
            staging: footprint::staging(&made, self.checkpoint.num_bytes()),
            tokenizer: footprint::tokenizer(self.tokenizer),
            process: footprint::process(device, self.checkpoint.names().count()),
            is_host: footprint::is_host(device),
            plan,
        })
    }

    /// Whether the peak is within a budget, and what the context is asked for within its
    /// [limit](Context::with_memory_limit). What are more bytes than can be counted fit nowhere.
    pub fn fits(&self, footprint: &Footprint, budget: usize) -> bool {
        footprint.peak() <= budget.min(usize::MAX - 1) && footprint.pooled() <= self.ctx.memory_limit_left()
    }

    /// The most sequences at once that fit a budget, each as long as they may become; none where not even one does.
    ///
    /// # Errors
    /// Those of [`Planner::footprint`], and [`Error::Unsupported`](crate::Error::Unsupported) for a model that
    /// [embeds](Planner::embeds): any number of texts is in passes of one size.
    pub fn most_sequences(&self, options: &LoadOptions, budget: usize) -> Result<usize> {
        // A cache of so many tokens holds no more, however much memory is left.
        let context = options.limits(self.purpose.generating()?)?.context.max(1);
        let limit = options.cache_tokens.map_or(usize::MAX, |tokens| tokens / context);
        self.most(limit, budget, |max_sequences| LoadOptions { max_sequences, ..options.clone() })
    }

    /// The longest context that fits a budget, in whole blocks but for the model's longest; none where not even a block
    /// does.
    ///
    /// # Errors
    /// Those of [`Planner::most_sequences`].
    pub fn longest_context(&self, options: &LoadOptions, budget: usize) -> Result<usize> {
        let (longest, block) = (self.purpose.generating()?.longest_context(), options.block_size.max(1));
        let tokens = |blocks: usize| blocks.saturating_mul(block).min(longest);
        let blocks = self.most(longest.div_ceil(block), budget, |blocks| LoadOptions {
            context: Some(tokens(blocks)),
            ..options.clone()
        })?;
        Ok(tokens(blocks))
    }

    /// The largest number up to `limit` of which the options fit; more of it never takes less.
    fn most(&self, limit: usize, budget: usize, options: impl Fn(usize) -> LoadOptions) -> Result<usize> {
        most_that_fits(limit, |at| Ok(self.fits(&self.footprint(&options(at))?, budget)))
    }

    /// Refuses to load what the context has not as much memory for as [`pooled`](Footprint::pooled) says, before any of
    /// it is allocated; `work` is what it would be for, in words. The plan of what is not refused.
    ///
    /// # Errors
    /// Those of [`Planner::footprint`], and [`Error::Input`](crate::Error::Input), which says what takes how much, what
    /// holds the rest, and what would fit.
    pub(crate) fn refuse_beyond_memory(&self, options: &LoadOptions, work: &str) -> Result<Footprint> {
        let footprint = self.footprint(options)?;
        refuse_beyond_memory(self.ctx, &footprint.pooled_parts(), work, |_| self.would_fit(options))?;
        Ok(footprint)
    }

    /// What of what would take less memory fits into what is free now, in words.
    fn would_fit(&self, options: &LoadOptions) -> Result<String> {
        /// Ways out that are named.
        const NAMED: usize = 4;
        let device = &**self.ctx.device();
        // This process is there already.
        let process =
            if footprint::is_host(device) { footprint::process(device, self.checkpoint.names().count()) } else { 0 };
        let savings = self.savings(options, device.memory()?.available.saturating_add(process))?;
        let fit: Vec<String> =
            savings.iter().filter(|saving| saving.fits).take(NAMED).map(|saving| saving.change.to_string()).collect();
        if !fit.is_empty() {
            return Ok(format!("what would fit: {}", fit.join(", or ")));
        }
        // As what does not fit is counted: without what the process takes beside the model.
        let pooled = savings.iter().map(|saving| {
            let footprint = self.footprint(&saving.change.applied(options)?)?;
            Ok((saving.change, footprint.pooled()))
        });
        let pooled = pooled.collect::<Result<Vec<_>>>()?;
        Ok(match pooled.iter().min_by_key(|(_, bytes)| *bytes) {
            Some(&(change, bytes)) => {
                let bytes = Bytes(bytes).beside([self.ctx.available_memory()?]).0;
                format!("no one change would make it fit: {change} would take {bytes}")
            }
            None => "there is nothing to change that would make it fit".to_owned(),
        })
    }

    /// What would take less memory than `options`, enough of it or by a hundredth at least: what fits a budget first, and of
    /// that what changes no result.
    ///
    /// # Errors
    /// Those of [`Planner::footprint`].
    pub fn savings(&self, options: &LoadOptions, budget: usize) -> Result<Vec<Saving>> {
        let now = self.footprint(options)?;
        let (fits_now, kept, now) = (self.fits(&now, budget), now.kept, now.peak());
        let mut savings = Vec::new();
        for change in self.changes(options, budget, kept)? {
            let footprint = self.footprint(&change.applied(options)?)?;
            let (peak, fits) = (footprint.peak(), self.fits(&footprint, budget));
            // However little, if it is enough.
            if (fits && !fits_now) || peak <= now - now / 100 {
                savings.push(Saving { change, peak, fits });
            }
        }
        // Kept in their order otherwise: what changes no result is first.
        savings.sort_by_key(|saving| !saving.fits);
        Ok(savings)
    }

    /// What could be changed; of what is counted, as much as fits.
    fn changes(&self, options: &LoadOptions, budget: usize, kept: Option<Encoding>) -> Result<Vec<Change>> {
        /// Rows of a step with which products are still near their rate.
        const SHORT_CHUNK: usize = 64;
        let precision = options.weights.precision(&self.checkpoint, self.ctx)?;
        let mut changes = Vec::new();
        if let Purpose::Generate(config) = self.purpose {
            changes.extend(self.less_room(config, options, budget)?);
            let sequences = self.most_sequences(options, budget)?;
            if sequences > 0 && sequences < options.max_sequences {
                changes.push(Change::Sequences(sequences));
            }
            let context = self.longest_context(options, budget)?;
            if context > 0 && context < options.limits(config)?.context {
                changes.push(Change::Context(context));
            }
            if options.prefill_chunk > SHORT_CHUNK {
                changes.push(Change::PrefillChunk(SHORT_CHUNK));
            }
            let kv = options.kv.unwrap_or(precision.kv);
            let old = match options.old_kv {
                // Recent tokens are held twice.
                Some(_) => Some(None),
                None if PagedLayout::has_scales(kv) => None,
                None => Some(Some(OldKv { dtype: DType::I8, recent: 256 })),
            };
            if let Some(old) = old {
                changes.extend(self.ctx.keeps_kv(kv, old).then_some(Change::OldKv(old)));
                changes.extend(self.ctx.keeps_kv(DType::I8, None).then_some(Change::Kv(DType::I8)));
            }
        }
        changes.extend(self.fewer_bits(&options.weights, &precision, kept));
        Ok(changes)
    }

    /// Less room than was asked for beside that of the sequences, and blocks of the usual size.
    fn less_room(&self, config: &DecoderConfig, options: &LoadOptions, budget: usize) -> Result<Vec<Change>> {
        let &LoadOptions { cache_tokens, swap_tokens, block_size, .. } = options;
        // In whole blocks, as they are allocated.
        let most = |asked: usize, with: &dyn Fn(usize) -> LoadOptions| {
            let tokens = |blocks: usize| blocks.saturating_mul(block_size);
            let blocks = self.most(asked.div_ceil(block_size), budget, |blocks| with(tokens(blocks)))?;
            Ok::<_, crate::Error>(tokens(blocks))
        };
        let mut changes = Vec::new();
        if let Some(asked) = cache_tokens {
            let fits = most(asked, &|tokens| LoadOptions { cache_tokens: Some(tokens), ..options.clone() })?.min(asked);
            if fits < asked {
                // With less than a sequence no request as long as the context would ever run.
                let context = options.limits(config)?.context;
                changes.push(Change::CacheTokens(Some(fits).filter(|fits| *fits >= context)));
            }
        }
        let fits = most(swap_tokens, &|swap_tokens| LoadOptions { swap_tokens, ..options.clone() })?;
        if fits < swap_tokens {
            changes.push(Change::SwapTokens(fits));
        }
        let usual = LoadOptions::default().block_size;
        if block_size > usual {
            changes.push(Change::BlockSize(usual));
        }
        Ok(changes)
    }

    /// Weights of fewer bits than those of a precision.
    fn fewer_bits(&self, weights: &WeightOptions, precision: &Precision, kept: Option<Encoding>) -> Vec<Change> {
        if let Some(Quantize { format, .. }) = weights.quantize {
            let fewer = format.values().bits() > BlockValues::Int4.bits();
            return if fewer { vec![Change::Values(BlockValues::Int4)] } else { Vec::new() };
        }
        let mut changes = Vec::new();
        let stored = main_dtype(&self.checkpoint).ok();
        if weights.dtype.is_some() && stored.is_some() {
            changes.push(Change::Dtype(None));
        }
        let stored_wide = stored.is_none_or(|dtype| dtype == DType::F32);
        if precision.weights == DType::F32 && kept.is_none() && stored_wide {
            changes.push(Change::Dtype(Some(DType::BF16)));
        }
        if kept.is_none() {
            let is_kept =
                |values: &BlockValues| Change::quantized(*values).is_ok_and(|to| to.check_device(self.ctx).is_ok());
            changes.extend([BlockValues::Int8, BlockValues::Int4].into_iter().filter(is_kept).map(Change::Weights));
        }
        changes
    }
}

impl Change {
    /// Weights in a group of those that are quantized.
    pub const GROUP: usize = 32;

    fn quantized(values: BlockValues) -> Result<Quantize> {
        let format = BlockFormat::new(values, Self::GROUP, DType::BF16, false).map_err(sinew_ops::Error::from)?;
        Ok(Quantize { format, per_channel: false, head: true })
    }

    /// The options with it.
    ///
    /// # Errors
    /// None, unless there is no format of such values.
    pub fn applied(self, options: &LoadOptions) -> Result<LoadOptions> {
        let options = options.clone();
        Ok(match self {
            Self::Sequences(max_sequences) => LoadOptions { max_sequences, ..options },
            Self::Context(context) => LoadOptions { context: Some(context), ..options },
            Self::Kv(dtype) => LoadOptions { kv: Some(dtype), old_kv: None, ..options },
            Self::OldKv(old_kv) => LoadOptions { old_kv, ..options },
            Self::PrefillChunk(prefill_chunk) => LoadOptions { prefill_chunk, ..options },
            Self::CacheTokens(cache_tokens) => LoadOptions { cache_tokens, ..options },
            Self::SwapTokens(swap_tokens) => LoadOptions { swap_tokens, ..options },
            Self::BlockSize(block_size) => LoadOptions { block_size, ..options },
            Self::Dtype(dtype) => LoadOptions { weights: WeightOptions { dtype, ..options.weights }, ..options },
            Self::Values(values) => {
                let of_values = |quantize: Quantize| {
                    let (group, scale) = (quantize.format.group(), quantize.format.scale_dtype());
                    let format = BlockFormat::new(values, group, scale, quantize.format.zero_points());
                    format.map(|format| Quantize { format, ..quantize })
                };
                let quantize = options.weights.quantize.map(of_values).transpose().map_err(sinew_ops::Error::from)?;
                LoadOptions { weights: WeightOptions { quantize, ..options.weights }, ..options }
            }
            Self::Weights(values) => {
                let quantize = Some(Self::quantized(values)?);
                LoadOptions { weights: WeightOptions { dtype: None, quantize, ..options.weights }, ..options }
            }
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = |count| count_of(count, "token");
        match *self {
            Self::Sequences(count) => write!(f, "{} at once", count_of(count, "sequence")),
            Self::Context(count) => write!(f, "a context of {}", tokens(count)),
            Self::Kv(dtype) => write!(f, "keys and values in {dtype}"),
            Self::OldKv(None) => f.write_str("keys and values all alike"),
            Self::OldKv(Some(OldKv { dtype, recent })) => {
                write!(f, "keys and values in {dtype} but for the {recent} recent ones")
            }
            Self::Dtype(None) => f.write_str("weights as they are stored"),
            Self::Dtype(Some(dtype)) => write!(f, "weights in {dtype}"),
            Self::Weights(values) | Self::Values(values) => write!(f, "weights in {}", values.name()),
            Self::PrefillChunk(count) => write!(f, "{} of a prompt in one step", tokens(count)),
            Self::CacheTokens(None) => f.write_str("a cache for every sequence at its longest and no more"),
            Self::CacheTokens(Some(count)) => write!(f, "a cache of {}", tokens(count)),
            Self::SwapTokens(count) => write!(f, "room for {} beside the cache", tokens(count)),
            Self::BlockSize(count) => write!(f, "blocks of {} in the cache", tokens(count)),
        }
    }
}
