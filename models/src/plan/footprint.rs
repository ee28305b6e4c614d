//! What a process takes that loads a model and runs it: the model's plan, and what comes with it.

use sinew_memory::{Device, DeviceKind, PoolConfig};
use sinew_ops::layers::Encoding;

use crate::activations::sum;
use crate::cache::CacheShape;
use crate::load::{AT_HAND_BYTES, DeviceBytes, Made, Taken};
use crate::precision::Precision;
use crate::{DecoderConfig, LoadOptions, Result};

/// What the command itself takes on a CPU once it runs: its code, what is linked to it, the heap, the tables of kernels
/// and what the config of a checkpoint says. With the threads' share that is its peak less what the pool then holds, of
/// models of 80 to 300 MB: 21.5 MiB with one thread, and 22.0 to 23.8 with two.
const PROCESS_BYTES: usize = 21 << 20;
/// What a thread of the team takes, by what two take more than one: its stack as far as it is touched, and an arena of the
/// allocator.
const THREAD_BYTES: usize = 1 << 20;
/// What is known of a tensor of a checkpoint and of the module that it is of: 37,370 tensors of GPTQ took 5.5 MiB more than
/// was planned without it, 74,738 took 20, and 31 where they are mapped.
const TENSOR_BYTES: usize = 384;
/// Bytes of a tokenizer in memory for each byte of its file: the vocabulary both ways, merges, and expressions. 7.2 MB of
/// 151,643 byte pairs take 43 MB.
const TOKENIZER_PER_FILE: usize = 6;
/// A pool rounds a request up by a quarter at most, and by an eighth on average.
const POOL_ROUNDS: usize = 8;
/// The part of a pool's buffers that may be free between them, and the least and the most of that: some small buffers' own
/// rounding, and a slab that is begun.
const POOL_SCATTERS: usize = 2;
const LEAST_SCATTERED: usize = 64 << 10;
const MOST_SCATTERED: usize = 4 << 20;

/// Bytes that a process takes which loads a model and runs it, by what they are for, from headers alone.
///
/// On a CPU all of it is the process's own memory; on a GPU the [`peak`](Self::peak) is that of the device, beside which
/// the [`host`](Self::host) has the rest. What drivers of GPUs take is not counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Footprint {
    /// What the model asks its device for.
    pub plan: DeviceBytes,
    /// The weights of the plan in each encoding, the most bytes first.
    pub weights: Vec<(Encoding, usize)>,
    /// What of them the checkpoint has quantized and is not held so, in a sentence for each reason.
    pub dequantized: Vec<String>,
    /// What most of the weights are in that stay as the checkpoint has them quantized.
    pub kept: Option<Encoding>,
    /// How sequences share the cache, of a decoder that generates.
    pub sequences: Option<SequenceBytes>,
    /// What kernels work on while they run.
    pub workspace: usize,
    /// What is rounded up: to large pages, and to what a pool hands out.
    pub rounding: usize,
    /// What a pool may need beyond that where requests come at their worst.
    pub margin: usize,
    /// Of the checkpoint at once, while its weights are packed.
    pub staging: usize,
    /// The tokenizer.
    pub tokenizer: usize,
    /// The process without a model.
    pub process: usize,
    /// Whether the device is the host.
    pub is_host: bool,
}

/// What sequences take of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceBytes {
    /// Keys and values of one token in all layers; of those where old tokens have a form of their own, an old one's.
    pub of_token: usize,
    /// Of a sequence at its longest.
    pub of_sequence: usize,
    /// Tokens of that.
    pub context: usize,
    /// Sequences at once.
    pub count: usize,
}

impl SequenceBytes {
    /// What those of a decoder take that is loaded so.
    ///
    /// # Errors
    /// Those of [`LoadOptions::limits`].
    pub fn of(config: &DecoderConfig, options: &LoadOptions, precision: Precision) -> Result<Self> {
        let limits = options.limits(config)?;
        let one = LoadOptions { max_sequences: 1, cache_tokens: None, swap_tokens: 0, ..options.clone() };
        Ok(Self {
            of_token: CacheShape::of_blocks(config, &precision, 1, |_| 1)?.bytes_per_token(),
            of_sequence: one.cache_shape(config, precision).map_or(usize::MAX, |shape| shape.bytes()),
            context: limits.context,
            count: limits.max_sequences,
        })
    }
}

impl Footprint {
    /// Most bytes of the device's memory at once: while weights are packed, or afterwards.
    pub fn peak(&self) -> usize {
        match self.is_host {
            true => sum([self.loading(), self.tokenizer, self.process]).max(self.running()),
            false => self.of_device(),
        }
    }

    /// Bytes that a [limit](sinew_ops::Context::with_memory_limit) of the device's memory has to leave for it: with so
    /// many it runs.
    pub fn pooled(&self) -> usize {
        sum(self.pooled_parts().map(|(_, bytes)| bytes))
    }

    /// What these are for.
    pub(crate) fn pooled_parts(&self) -> [Taken; 7] {
        let [weights, cache, activations, tables, logits] = self.plan.parts();
        let rounding = ("rounding", self.rounding.saturating_add(self.margin));
        [weights, cache, activations, tables, logits, ("workspace", self.workspace), rounding]
    }

    /// Bytes of the device's memory, as they are expected.
    fn of_device(&self) -> usize {
        sum([self.plan.total(), self.rounding, self.workspace])
    }

    /// Bytes of the host's memory beside a device that is not the host; none otherwise.
    pub fn host(&self) -> usize {
        if self.is_host { 0 } else { sum([self.staging, self.tokenizer, self.process]) }
    }

    fn loading(&self) -> usize {
        sum([self.plan.weights, self.rounding, self.plan.tables, self.staging])
    }

    fn running(&self) -> usize {
        sum([self.of_device(), self.tokenizer, self.process])
    }
}

/// The process without a model but for what it knows of so many tensors.
pub(super) fn process(device: &dyn Device, tensors: usize) -> usize {
    PROCESS_BYTES + device.hardware().threads * THREAD_BYTES + tensors.saturating_mul(TENSOR_BYTES)
}

/// A tokenizer in memory, by the bytes of its file.
pub(super) fn tokenizer(file: u64) -> usize {
    usize::try_from(file).unwrap_or(usize::MAX).saturating_mul(TOKENIZER_PER_FILE)
}

/// What is in memory at once, beyond the weights, of a checkpoint of so many bytes. What is read whole may be more than a
/// slice, but of what comes after it nothing is there yet.
pub(super) fn staging(made: &[Made], checkpoint: u64) -> usize {
    let slice = AT_HAND_BYTES.min(usize::try_from(checkpoint).unwrap_or(usize::MAX));
    let mut so_far = 0usize;
    let most = made.iter().fold(0, |most, made| {
        so_far = so_far.saturating_add(made.bytes);
        most.max(so_far.saturating_add(slice.max(made.read_whole)))
    });
    most.saturating_sub(so_far)
}

/// Bytes in each encoding, the most first.
pub(super) fn by_encoding(made: &[Made]) -> Vec<(Encoding, usize)> {
    let mut all: Vec<(Encoding, usize)> = Vec::new();
    for &Made { encoding, bytes, .. } in made {
        match all.iter_mut().find(|(known, _)| *known == encoding) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => all.push((encoding, bytes)),
        }
    }
    all.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    all
}

/// What is rounded up: weights, the cache, activations and workspace to pages, and the rest to what a pool hands out.
pub(super) fn rounding(
    device: &dyn Device,
    plan: &DeviceBytes,
    made: &[Made],
    cache: usize,
    workspace: usize,
) -> usize {
    let of_pages = |bytes: usize| device.held_bytes(bytes).saturating_sub(bytes);
    let of_weights = made.iter().map(|made| of_pages(made.bytes));
    sum([
        sum(of_weights),
        of_pages(plan.activations),
        of_pages(workspace),
        cache.saturating_sub(plan.cache),
        in_slabs(plan) / POOL_ROUNDS,
    ])
}

/// What a pool rounds up beyond its average, and what is free in its slabs: at least most of one that is begun.
pub(super) fn margin(plan: &DeviceBytes, workspace: usize) -> usize {
    let in_slabs = in_slabs(plan);
    let slab = PoolConfig::limited(plan.total().saturating_add(workspace)).slab_bytes;
    let scattered = (in_slabs / POOL_SCATTERS).clamp(LEAST_SCATTERED, MOST_SCATTERED);
    sum([in_slabs / POOL_ROUNDS, scattered.max(slab)])
}

/// What has no memory of its own.
fn in_slabs(plan: &DeviceBytes) -> usize {
    sum([plan.tables, plan.logits])
}

/// Whether a device's memory is that of the process.
pub(super) fn is_host(device: &dyn Device) -> bool {
    device.id().kind == DeviceKind::CPU
}
