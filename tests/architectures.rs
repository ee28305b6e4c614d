//! The table of architectures in `models/README.md` is what the fixtures of `tests/parity.rs` cover.
//!
//! `SINEW_BLESS=1 cargo test --test architectures` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sinew::models::config::{FeedForward, RopeScaling};
use sinew::models::precision::main_dtype;
use sinew::models::{DecoderConfig, EncoderConfig, Folder, Load, ModelConfig, Tensors, architectures};
use sinew_conformance::parity;

const START: &str = "<!-- architectures: written by tests/architectures.rs -->\n";
const END: &str = "<!-- end of architectures -->\n";

/// What the fixtures of one architecture have.
#[derive(Default)]
struct Covered {
    dtypes: BTreeSet<String>,
    features: BTreeSet<&'static str>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What a fixture's config asks for beyond plain Llama or BERT.
fn features(config: &ModelConfig) -> Vec<&'static str> {
    let config = match config {
        ModelConfig::Decoder(config) => config,
        ModelConfig::Encoder(config) => return encoder_features(config),
        _ => return Vec::new(),
    };
    let mut features: Vec<&'static str> = config.ropes.iter().map(|rope| rope_name(&rope.scaling)).collect();
    let mut add = |there: bool, name| features.extend(there.then_some(name));
    add(config.ropes.iter().any(|rope| rope.partial_rotary_factor != 1.0), "partial rope");
    add(config.ropes.len() > 1, "two ropes");
    add(config.layers.iter().any(|layer| layer.rope.is_none()) && !config.ropes.is_empty(), "layers without rope");
    add(config.learned_positions, "learned positions");
    add(config.layers.iter().any(|layer| layer.window.is_some()), "windows");
    add(experts(config), "experts");
    add(config.has_sinks(), "sinks");
    add(config.attention_softcap.is_some() || config.logit_softcap.is_some(), "softcaps");
    add(config.parallel_residual, "parallel residual");
    add(config.qkv_bias || config.o_bias || config.mlp_bias, "biases");
    add(config.qk_norm.is_some(), "norms of q and k");
    features
}

fn encoder_features(config: &EncoderConfig) -> Vec<&'static str> {
    let mut features = vec![match config.learned_positions {
        None => "two ropes",
        Some(_) => "learned positions",
    }];
    features.extend(config.layers.iter().any(|layer| layer.window.is_some()).then_some("windows"));
    features.extend((config.attention_bias || config.mlp_bias || config.norm_bias).then_some("biases"));
    features
}

fn experts(config: &DecoderConfig) -> bool {
    config.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Experts(_)))
}

fn rope_name(scaling: &RopeScaling) -> &'static str {
    match scaling {
        RopeScaling::Linear { .. } => "linear rope",
        RopeScaling::Dynamic { .. } => "dynamic rope",
        RopeScaling::Llama3 { .. } => "llama3 rope",
        RopeScaling::Yarn { .. } => "YaRN",
        RopeScaling::LongRope { .. } => "LongRoPE",
        _ => "rope",
    }
}

/// What the fixtures cover, by `model_type`.
fn covered() -> BTreeMap<String, Covered> {
    let mut covered: BTreeMap<String, Covered> = BTreeMap::new();
    let fixtures: Vec<PathBuf> = parity::fixtures(&root().join("tests/fixtures")).expect("the fixtures are there");
    for folder in fixtures {
        let config = Folder::new(&folder).config().cloned().expect("the fixture's config");
        let checkpoint = Tensors::open(&folder, Load::Mmap).expect("the fixture's checkpoint");
        let of = covered.entry(config.model_type().to_owned()).or_default();
        of.dtypes.insert(main_dtype(&checkpoint).expect("floating-point tensors").to_string());
        of.features.extend(features(&config));
    }
    covered
}

fn table(covered: &BTreeMap<String, Covered>) -> String {
    let mut table = "| architecture | `model_type` | checkpoints in | with |\n|---|---|---|---|\n".to_owned();
    for (name, model_types) in architectures::all() {
        let of: Vec<&Covered> = model_types.iter().filter_map(|model_type| covered.get(*model_type)).collect();
        let dtypes: BTreeSet<&str> = of.iter().flat_map(|c| &c.dtypes).map(String::as_str).collect();
        let features: BTreeSet<&str> = of.iter().flat_map(|c| &c.features).copied().collect();
        let list = |items: BTreeSet<&str>| items.into_iter().collect::<Vec<_>>().join(", ");
        let types = model_types.iter().map(|model_type| format!("`{model_type}`")).collect::<Vec<_>>().join(", ");
        table += &format!("| {name} | {types} | {} | {} |\n", list(dtypes), list(features));
    }
    table
}

/// `tests/parity.rs` runs each fixture in f32, too.
#[test]
fn every_fixture_has_an_architecture_and_every_architecture_one_in_bf16() {
    let covered = covered();
    for (name, model_types) in architectures::all() {
        let of: Vec<&Covered> = model_types.iter().filter_map(|model_type| covered.get(*model_type)).collect();
        assert!(of.iter().any(|c| c.dtypes.contains("bf16")), "{name} has no fixture in bf16");
    }
    for model_type in covered.keys() {
        assert!(
            architectures::all().any(|(_, types)| types.contains(&model_type.as_str())),
            "{model_type} is in no table"
        );
    }
}

#[test]
fn the_readme_lists_what_the_fixtures_cover() {
    let path = root().join("models/README.md");
    let readme = std::fs::read_to_string(&path).expect("the README");
    let (before, rest) = readme.split_once(START).expect("the README marks where the table starts");
    let (found, after) = rest.split_once(END).expect("the README marks where the table ends");
    let expected = table(&covered());
    if std::env::var_os("SINEW_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{START}{expected}{END}{after}")).expect("the README is written");
        return;
    }
    assert_eq!(found, expected, "SINEW_BLESS=1 cargo test --test architectures writes the table anew");
}
