//! Headers, indices and configs that are nearly right are loaded or refused: no panic, no time, no memory.
//!
//! `SINEW_FUZZ` says how many cases; each is made from its number alone, so that `SINEW_FUZZ_FROM` repeats one.

mod mutate;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mutate::Choices;
use serde_json::Value;
use sinew_models::{Error, Folder, Load, ModelConfig, Result, Tensors};

const SEED: u64 = 20;
/// A case takes microseconds; a machine with other work on it may take longer.
const MAX_TIME: Duration = Duration::from_secs(1);
/// What a case may hold at once: JSON as values is some 30 times its text, a list per layer has a fixed limit.
const MAX_BYTES: usize = 16 << 20;
const MAX_BYTES_PER_BYTE: usize = 64;

/// What is read.
#[derive(Clone, Copy)]
enum Target {
    Header,
    Index,
    Config,
    GenerationConfig,
    TextConfig(&'static str),
}

/// Read from memory, by a case in microseconds.
const IN_MEMORY: [Target; 3] = [Target::Header, Target::Config, Target::GenerationConfig];
/// Read from files, which takes many times as long: one case in [`FILE_SHARE`].
const IN_FILES: [Target; 5] = [
    Target::Index,
    Target::TextConfig("tokenizer_config.json"),
    Target::TextConfig("sentence_bert_config.json"),
    Target::TextConfig("modules.json"),
    Target::TextConfig("1_Pooling/config.json"),
];
const FILE_SHARE: usize = 20;

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Index => "index",
            Self::Config => "config.json",
            Self::GenerationConfig => "generation_config.json",
            Self::TextConfig(name) => name,
        }
    }
}

/// What cases begin with.
struct Seeds {
    /// Headers, with the sizes of what follows.
    headers: Vec<(Value, usize)>,
    indices: Vec<Value>,
    configs: Vec<Value>,
    generation_configs: Vec<Value>,
    text_configs: BTreeMap<&'static str, Vec<Value>>,
    decoders: Vec<Value>,
    /// A folder with shards, one for the configs of models, and one for those of texts.
    sharded: tempfile::TempDir,
    models: tempfile::TempDir,
    texts: tempfile::TempDir,
}

impl Seeds {
    fn of_fixtures() -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let entries = |path: &Path| -> Vec<PathBuf> {
            let mut all: Vec<_> =
                fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            all.sort();
            all
        };
        let folders: Vec<PathBuf> = entries(&fixtures).into_iter().filter(|path| path.is_dir()).collect();
        let named = |name: &str| -> Vec<Value> {
            let texts = folders.iter().filter_map(|folder| fs::read_to_string(folder.join(name)).ok());
            texts.map(|text| serde_json::from_str(&text).expect("the fixture is valid")).collect()
        };
        let weights: Vec<PathBuf> = folders
            .iter()
            .flat_map(|folder| entries(folder))
            .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
            .collect();
        let mut headers: Vec<(Value, usize)> = weights.iter().map(|path| header(path)).collect();
        // Large data would be copied for every case.
        headers.retain(|(_, data)| *data < 1 << 20);
        assert!(!headers.is_empty(), "no fixture is small enough");

        // Every field that counts is in one of these.
        let cases = named("expected_generation.json");
        let honoured = cases.iter().flat_map(|cases| cases.as_array()).flatten().map(|case| case["config"].clone());

        let configs = named("config.json");
        let decoders = configs
            .iter()
            .filter(|config| matches!(ModelConfig::from_json(&config.to_string()), Ok(ModelConfig::Decoder(_))))
            .cloned()
            .collect();
        let sharded = folder();
        let first = folders.iter().find(|folder| folder.join(INDEX).exists()).expect("a fixture with shards");
        for path in entries(first) {
            fs::copy(&path, sharded.path().join(path.file_name().expect("a file"))).expect("copied");
        }
        let texts = folder();
        fs::create_dir(texts.path().join("1_Pooling")).expect("created");
        let text = |text: &str| serde_json::from_str::<Value>(text).expect("valid JSON");
        let modules = r#"[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;
        let pooling = [
            text(
                r#"{"word_embedding_dimension": 384, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}"#,
            ),
            text(r#"{"pooling_mode": "lasttoken"}"#),
        ];
        let text_configs = BTreeMap::from([
            ("tokenizer_config.json", named("tokenizer_config.json")),
            ("sentence_bert_config.json", named("sentence_bert_config.json")),
            ("modules.json", vec![text(modules)]),
            ("1_Pooling/config.json", pooling.to_vec()),
        ]);
        Self {
            headers,
            indices: named(INDEX),
            configs,
            generation_configs: named("generation_config.json").into_iter().chain(honoured).collect(),
            text_configs,
            decoders,
            sharded,
            models: folder(),
            texts,
        }
    }

    /// The input of a case.
    fn input(&self, target: Target, choices: &mut Choices) -> Vec<u8> {
        let (all, of_header): (&[Value], _) = match target {
            Target::Header => {
                let at = choices.below(self.headers.len());
                (&[], Some(&self.headers[at]))
            }
            Target::Index => (&self.indices, None),
            Target::Config => (&self.configs, None),
            Target::GenerationConfig => (&self.generation_configs, None),
            Target::TextConfig(name) => (&self.text_configs[name], None),
        };
        let document = of_header.map_or_else(|| choices.one_of(all), |(header, _)| header);
        let others = if all.is_empty() { std::slice::from_ref(document) } else { all };
        let mut text = match choices.once_in(8) {
            true => document.to_string(),
            false => mutate::json(choices, document, others).to_string(),
        }
        .into_bytes();
        if choices.once_in(4) {
            mutate::bytes(choices, &mut text);
        }
        let Some((_, data)) = of_header else { return text };
        let length = match choices.below(20) {
            0 => *choices.one_of(&[0, 1, 7, 8, u64::MAX, u64::MAX - 7, 1 << 63, 1 << 32, 1 << 24]),
            1 => text.len() as u64 ^ 1 << choices.below(64),
            _ => text.len() as u64,
        };
        let data = if choices.once_in(10) { data.saturating_sub(8) + choices.below(17) } else { *data };
        let mut file = length.to_le_bytes().to_vec();
        file.extend(text);
        file.resize(file.len() + data, 0);
        if choices.once_in(20) {
            file.truncate(choices.below(file.len()));
        }
        file
    }

    fn folder_of(&self, config: &str, generation_config: &str) -> Folder {
        let path = self.models.path();
        fs::write(path.join("config.json"), config).expect("written");
        fs::write(path.join("generation_config.json"), generation_config).expect("written");
        Folder::new(path)
    }

    /// Reads it, and whatever can be asked of the result.
    fn read(&self, target: Target, input: &[u8], choices: &mut Choices) -> Result<()> {
        let text = || String::from_utf8_lossy(input);
        match target {
            Target::Header => read_all(&Tensors::from_bytes(input.to_vec())?),
            Target::Index => {
                fs::write(self.sharded.path().join(INDEX), input).expect("written");
                let load = *choices.one_of(&[Load::Mmap, Load::Read]);
                read_all(&Tensors::open(self.sharded.path(), load)?)
            }
            Target::Config => {
                let generation = choices.one_of(&self.generation_configs).to_string();
                match self.folder_of(&text(), &generation).config()? {
                    ModelConfig::Decoder(config) => {
                        for rope in &config.ropes {
                            let (frequencies, scale) = rope.frequencies(config.head_dim, config.usual_context());
                            assert_eq!(frequencies.len(), rope.rotary_dim(config.head_dim) / 2);
                            assert!(!scale.is_nan() && !frequencies.iter().any(|f| f.is_nan()));
                        }
                        assert!(config.layers.iter().all(|layer| layer.feed_forward.width() > 0));
                        assert!(config.usual_context() <= config.longest_context());
                        assert!(config.flops_per_token(1.0) >= 0.0 && config.head_flops() > 0.0);
                    }
                    ModelConfig::Encoder(config) => assert!(config.flops_per_token(1.0) >= 0.0),
                    other => panic!("{other:?}"),
                }
                Ok(())
            }
            Target::GenerationConfig => {
                let folder = self.folder_of(&choices.one_of(&self.decoders).to_string(), &text());
                folder.config()?;
                let options = folder.generation_config()?.options(choices.below(100), 128);
                options.sampling.validate()
            }
            Target::TextConfig(name) => {
                let path = self.texts.path();
                for (other, seeds) in &self.text_configs {
                    if *other != name && !path.join(other).exists() {
                        fs::write(path.join(other), seeds[0].to_string()).expect("written");
                    }
                }
                fs::write(path.join(name), input).expect("written");
                let folder = Folder::new(path);
                let read = folder
                    .text_limits()
                    .map(|limits| assert!(limits.limit(512) <= 512))
                    .and_then(|()| folder.embedding().map(drop));
                // The next case damages another one.
                fs::remove_file(path.join(name)).expect("removed");
                read
            }
        }
    }
}

const INDEX: &str = "model.safetensors.index.json";

/// A folder that is in memory, where the system has such.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

/// A file's header, and how many bytes follow it.
fn header(path: &Path) -> (Value, usize) {
    let file = fs::read(path).expect("the fixture is readable");
    let (length, rest) = file.split_first_chunk().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).expect("the fixture is valid"), data.len())
}

fn read_all(tensors: &Tensors) -> Result<()> {
    for name in tensors.names() {
        let info = tensors.info(name)?;
        let tensor = tensors.tensor(name)?;
        assert_eq!(tensor.bytes.len(), info.num_bytes);
    }
    assert_eq!(tensors.unused().count(), 0);
    Ok(())
}

/// The kind of an outcome, for the table.
fn kind(outcome: &Result<()>) -> &'static str {
    match outcome {
        Ok(()) => "read",
        Err(Error::Io { .. }) => "refused: no such file",
        Err(Error::Json { .. }) => "refused: no JSON",
        Err(Error::Config { .. }) => "refused: a field",
        Err(Error::Unsupported { .. }) => "refused: not supported",
        Err(Error::Header { .. }) => "refused: the header",
        Err(Error::Checkpoint { .. }) => "refused: contradictory",
        Err(_) => "refused: otherwise",
    }
}

#[test]
fn nothing_nearly_right_is_a_finding() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let cases = number("SINEW_FUZZ").unwrap_or(10_000);
    let first = number("SINEW_FUZZ_FROM").unwrap_or(0);
    let seeds = Seeds::of_fixtures();
    let mut outcomes: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let (mut slowest, mut largest) = (Duration::ZERO, 0);
    for case in first..first + cases {
        let mut choices = Choices::of(SEED, case);
        let targets: &[Target] = if choices.once_in(FILE_SHARE) { &IN_FILES } else { &IN_MEMORY };
        let target = *choices.one_of(targets);
        let input = seeds.input(target, &mut choices);
        let start = Instant::now();
        let run = || catch_unwind(AssertUnwindSafe(|| seeds.read(target, &input, &mut choices)));
        let (bytes, outcome) = peak_of(run);
        let time = start.elapsed();
        let what = format!("case {case} (SINEW_FUZZ_FROM={case} SINEW_FUZZ=1), {}", target.name());
        let Ok(outcome) = outcome else { panic!("{what}: a panic, printed above") };
        if let Err(error) = &outcome {
            let line = error.one_line();
            assert!(!line.contains('\n') && line.len() < 4000, "{what}: {line}");
        }
        assert!(time < MAX_TIME, "{what}: {time:?}");
        let allowed = MAX_BYTES + MAX_BYTES_PER_BYTE * input.len();
        assert!(bytes < allowed, "{what}: {bytes} bytes for an input of {}", input.len());
        (slowest, largest) = (slowest.max(time), largest.max(bytes));
        *outcomes.entry((target.name(), kind(&outcome))).or_default() += 1;
    }
    println!("{cases} cases from {first}, seed {SEED}, no finding; slowest {slowest:?}, most memory {largest} bytes");
    for ((target, outcome), count) in &outcomes {
        println!("{target:<26} {outcome:<24} {count:>9}");
    }
    let read = |target: Target| outcomes.contains_key(&(target.name(), "read"));
    // Inputs that are all refused at their first byte would find nothing.
    assert!(cases < 1000 || IN_MEMORY.iter().chain(&IN_FILES).all(|&target| read(target)), "{outcomes:?}");
}

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What `run` held at once beyond what was held before, in bytes, and its result.
fn peak_of<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = run();
    (PEAK.load(Relaxed).saturating_sub(before), result)
}

fn grow(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(held, Relaxed);
}

/// An allocator that knows the most that was held at once.
struct Counting;

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grow(size);
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
