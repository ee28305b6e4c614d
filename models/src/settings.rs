//! Settings: what decides how a model is loaded and run, besides the model, in one table.
//!
//! From the table come the fields of [`Settings`] with their documentation, the keys of a settings file in TOML, the
//! variables `SINEW_…` of the environment, the arguments of the command, and what `sinew settings` prints: a field cannot
//! be in one and not in another. What decides is, the last first: an argument, a variable, the file, the default
//! ([`Resolved`]). A variable that is but a slip away from one of these ([`meant_by`]) is what the command warns of.

mod apply;
mod resolve;
#[cfg(all(test, feature = "settings-file"))]
mod tests;
#[cfg(feature = "settings-file")]
mod toml_file;
mod value;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use sinew_memory::{Bytes, SimdLevel};

pub use self::resolve::{FILE_VARIABLE, Resolved, Source, meant_by};
pub use self::value::{GroupSize, KvDType, OldKvDType, Value, WeightDType};
use crate::precision::Activations;
use crate::tensors::Load;

/// One setting: its names, its documentation, and how it is read and shown as text.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The field of [`Settings`], and the key in a file.
    pub name: &'static str,
    /// The argument of the command without its dashes, where it has one of its own; `--set name=value` sets others, too.
    pub argument: Option<&'static str>,
    /// What its value is called where arguments are listed.
    pub value: &'static str,
    /// Whether its value is not for other eyes.
    pub secret: bool,
    /// Whether its value is a list.
    pub list: bool,
    lines: &'static str,
    show: fn(&Settings) -> String,
    set: fn(&mut Settings, &str) -> Result<(), String>,
    rebase: fn(&mut Settings, &Path),
}

impl Field {
    /// What it means, as the field's documentation has it.
    pub fn doc(&self) -> String {
        let lines: Vec<&str> = self.lines.lines().map(str::trim).collect();
        lines.join(" ").trim().to_owned()
    }

    /// The variable of the environment that sets it.
    pub fn variable(&self) -> String {
        format!("SINEW_{}", self.name.to_ascii_uppercase())
    }

    /// Its value as [`Field::set`] reads it.
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }

    /// Sets it from text.
    ///
    /// # Errors
    /// What values there are.
    pub fn set(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        (self.set)(settings, text)
    }

    /// Takes a path that does not begin at the root from a folder.
    pub fn rebase(&self, settings: &mut Settings, folder: &Path) {
        (self.rebase)(settings, folder);
    }

    /// Sets it to its default.
    pub fn reset(&self, settings: &mut Settings) {
        // What is shown of a value is read again.
        let _ = self.set(settings, &self.show(&Settings::default()));
    }

    /// The field of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.name == name)
    }
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $argument:expr, $value:literal;)*) => {
        /// How models are loaded and run.
        ///
        /// ```no_run
        /// use std::num::NonZeroUsize;
        /// use sinew_models::{Folder, LanguageModel, Settings};
        ///
        /// let (threads, context) = (NonZeroUsize::new(4), NonZeroUsize::new(2048));
        /// let settings = Settings { threads, context, ..Settings::default() };
        /// let model = LanguageModel::load_on(
        ///     settings.open_context()?,
        ///     &Folder::new("path/to/model"),
        ///     &settings.load_options()?,
        ///     &mut |_, _| {},
        /// )?;
        /// # Ok::<(), sinew_models::Error>(())
        /// ```
        #[derive(Clone, PartialEq)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $name: $type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// Every setting, in the order of [`Settings`].
        pub static FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            argument: $argument,
            value: $value,
            secret: is_secret(stringify!($name)),
            list: <$type as Value>::LIST,
            lines: concat!($($doc, "\n"),+),
            show: |settings| settings.$name.show(),
            set: |settings, text| {
                settings.$name = Value::parse(text)?;
                Ok(())
            },
            rebase: |settings, folder| settings.$name.rebase(folder),
        }),*];
    };
}

const SECRET: &str = "hub_token";

/// Names are compared byte by byte, as constants are.
const fn is_secret(name: &str) -> bool {
    let (name, secret) = (name.as_bytes(), SECRET.as_bytes());
    let mut at = 0;
    while at < name.len() && at < secret.len() && name[at] == secret[at] {
        at += 1;
    }
    at == name.len() && at == secret.len()
}

/// A number that is not 0.
const fn count(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

settings! {
    /// Where to run: cpu, cuda or wgpu, or one of several devices by its number, as cuda:1.
    device: String = "cpu".to_owned(), Some("device"), "NAME";
    /// Threads of the CPU; auto is all that the process may use.
    threads: Option<NonZeroUsize> = None, Some("threads"), "N";
    /// Keep each of the CPU's threads but the main one on a logical core of its own: for a machine that no one else
    /// uses.
    pin: bool = false, Some("pin"), "BOOL";
    /// The highest SIMD level that kernels may use: portable, avx2, avx512, avx512vnni or avx512bf16; auto is the
    /// machine's.
    simd: Option<SimdLevel> = None, Some("simd"), "LEVEL";
    /// Prefer these kernels by name wherever they take the problem, as a,b.
    kernels: Vec<String> = Vec::new(), Some("kernel"), "NAME";
    /// Only kernels whose bits do not depend on the shape of a call: a sequence gets the same bits alone, in a batch and
    /// in any chunking. auto is on for CPUs.
    deterministic: Option<bool> = None, Some("deterministic"), "BOOL";
    /// Most bytes of the device's memory that a model may take with all that it runs on, as 2GiB; auto is what is free.
    memory_limit: Option<Bytes> = None, Some("memory-limit"), "BYTES";
    /// Choose kernels by what `sinew tune` measured, where it did; otherwise by predicted cost alone.
    tuning: bool = true, Some("tuning"), "BOOL";
    /// The folder of what `sinew tune` measured; auto is the user's.
    tuning_cache: Option<PathBuf> = None, Some("tuning-cache"), "FOLDER";
    /// The folder of what `sinew devices --measure` measured; auto is the user's.
    device_cache: Option<PathBuf> = None, None, "FOLDER";
    /// The folder of compiled kernels of GPUs; auto is the user's.
    kernel_cache: Option<PathBuf> = None, None, "FOLDER";
    /// Dtype of the weights in memory: auto (as stored), f32, f16, bf16, or int8, int4 or fp8, to which the weights of
    /// products are quantized as they are loaded.
    dtype: WeightDType = WeightDType::AsStored, Some("dtype"), "DTYPE";
    /// Values of a row that share a scale where weights are quantized: 32, 64 or 128, or channel, which is the whole row;
    /// auto is 32 for int4 and int8, and channel for fp8.
    group_size: GroupSize = GroupSize::Auto, Some("group-size"), "N";
    /// Quantize to int4 or int8 with a zero point for each group.
    zero_points: bool = false, Some("zero-points"), "BOOL";
    /// Do not quantize the head, and with it an embedding that is tied to it.
    keep_head: bool = false, Some("keep-head"), "BOOL";
    /// What products with quantized weights read: bf16, or int8, which is less exact, and faster with AVX512-VNNI; auto is
    /// what the other products read.
    activations: Option<Activations> = None, Some("activations"), "bf16|int8";
    /// How files are read: read, or mmap, which is slower and does not survive a file that shrinks under it.
    load: Load = Load::Read, Some("load"), "read|mmap";
    /// Tokens of one sequence, prompt and answer, where neither a prompt nor the command says how many; auto is what the
    /// model allows, at most 4,096.
    context: Option<NonZeroUsize> = None, Some("context"), "N";
    /// Tokens of a prompt in one step.
    prefill_chunk: NonZeroUsize = count(512), Some("prefill-chunk"), "N";
    /// Tokens in a block of the KV cache.
    block_size: NonZeroUsize = count(16), Some("block-size"), "N";
    /// Dtype of the KV cache: auto (that of the weights, or bf16 where they are quantized), f32, f16, bf16, or int8 or
    /// fp8 with a scale for each token and head.
    kv_dtype: KvDType = KvDType(None), Some("kv-dtype"), "DTYPE";
    /// Keep old tokens in int8 or fp8 with a scale for each token and head, on CPUs; recent ones stay in the dtype of the
    /// cache. none keeps all alike.
    kv_old: OldKvDType = OldKvDType(None), Some("kv-old"), "int8|fp8";
    /// How many tokens up to its own each token sees in full at least, where old ones are kept otherwise.
    kv_recent: NonZeroUsize = count(256), Some("kv-recent"), "N";
    /// Sequences in one step, where many are served.
    max_sequences: NonZeroUsize = count(8), Some("max-sequences"), "N";
    /// Tokens that the KV cache has room for; auto is as many as all sequences can have.
    cache_tokens: Option<NonZeroUsize> = None, Some("cache-tokens"), "N";
    /// Tokens that there is room for beside it, on the host, of sequences that make room for others.
    swap_tokens: usize = 0, Some("swap-tokens"), "N";
    /// The folder of the Hugging Face Hub's cache; auto is what HF_HUB_CACHE and HF_HOME say, or the user's.
    hub_cache: Option<PathBuf> = None, None, "FOLDER";
    /// The hub's address; auto is what HF_ENDPOINT says, or huggingface.co.
    hub_endpoint: Option<String> = None, None, "URL";
    /// What private and gated models are asked for with; auto is what HF_TOKEN says, or the hub's own file.
    hub_token: Option<String> = None, None, "TOKEN";
    /// Take models from folders and the hub's cache only; auto is what HF_HUB_OFFLINE says.
    hub_offline: Option<bool> = None, None, "BOOL";
}

/// Without what is secret.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Settings");
        for field in FIELDS {
            let shown = field.show(self);
            let hidden = field.secret && shown != Settings::default().shown(field);
            all.field(field.name, &if hidden { "…".to_owned() } else { shown });
        }
        all.finish()
    }
}

impl Settings {
    fn shown(&self, field: &Field) -> String {
        field.show(self)
    }
}
