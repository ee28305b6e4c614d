//! Old keys and values in int8 or fp8 while recent ones stay in the full dtype: what a token sees so, that nothing else
//! decides it, and what it saves.

use std::sync::Arc;

use sinew::models::cache::Sequence;
use sinew::models::{Load, OldKv};
use sinew::prelude::*;

#[path = "common/fixtures.rs"]
mod fixtures;

use fixtures::{bits, fixture_path};

/// Every layer sees all; one of two sees 7 tokens.
const FIXTURES: [&str; 2] = ["llama3_rope_gqa3_hd20_bf16_tied_bpe", "gemma2_gqa3_hd20_bf16"];
const POSITIONS: usize = 1024;
const TOKENS: usize = 400;
const RECENT: usize = 100;
/// The first token that sees any as codes: the one whose latest [`RECENT`] begin behind the first 64.
const FIRST: usize = 64 + RECENT - 1;

fn old(dtype: DType, recent: usize) -> Option<OldKv> {
    Some(OldKv { dtype, recent })
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 3) % 307).collect()
}

fn load(name: &str, options: &LoadOptions) -> sinew::models::Result<LanguageModel> {
    let folder = Folder::new(fixture_path(name));
    let mut config = folder.config().expect("the config is valid").as_decoder().expect("it is a decoder").clone();
    // The fixtures say 256, but their rotary positions go on for ever.
    config.max_position_embeddings = POSITIONS;
    let checkpoint = folder.checkpoint(Load::Mmap).expect("the fixture opens");
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    LanguageModel::from_parts(ctx, &config, &checkpoint, None, options, &mut |_, _| {})
}

fn with(name: &str, kv: DType, old_kv: Option<OldKv>) -> LanguageModel {
    load(name, &LoadOptions { kv: Some(kv), old_kv, max_logits: 64, ..LoadOptions::default() }).expect("it loads")
}

/// The logits of all tokens, `[TOKENS, vocab]`.
fn logits(model: &mut LanguageModel) -> Vec<f32> {
    let mut all = Vec::new();
    let mut each = |rows: &[f32]| {
        all.extend_from_slice(rows);
        Ok(())
    };
    model.logits(&tokens(TOKENS), &mut each).expect("the tokens are valid");
    all
}

/// The root mean square of the differences, in units of the first ones' standard deviation.
fn rms(exact: &[f32], rounded: &[f32]) -> f64 {
    let pairs = || exact.iter().zip(rounded).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let mean = pairs().map(|(a, _)| a).sum::<f64>() / exact.len() as f64;
    let variance = pairs().map(|(a, _)| (a - mean).powi(2)).sum::<f64>();
    (pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>() / variance).sqrt()
}

#[test]
fn logits_are_those_of_the_full_cache_until_something_is_old_and_near_them_after() {
    println!("model, cache, old tokens, RMS of logits behind the first {FIRST} in standard deviations");
    for name in FIXTURES {
        for kv in [DType::F32, DType::BF16] {
            let mut model = with(name, kv, None);
            let (vocab, full) = (model.decoder().config().vocab_size, logits(&mut model));
            for (dtype, most) in [(DType::I8, 0.02), (DType::F8E4M3, 0.08)] {
                let found = logits(&mut with(name, kv, old(dtype, RECENT)));
                let first = FIRST * vocab;
                assert_eq!(bits(&found[..first]), bits(&full[..first]), "{name}");
                assert_ne!(bits(&found[first..first + vocab]), bits(&full[first..first + vocab]), "{name}");
                let off = rms(&full[first..], &found[first..]);
                println!("{name}, {kv}, {dtype}: {off:.1e}");
                assert!(off < most, "{name} {kv} {dtype}: {off:e}");
                // With as many recent tokens as there are none is ever old.
                assert_eq!(bits(&logits(&mut with(name, kv, old(dtype, TOKENS)))), bits(&full), "{name}");
            }
        }
    }
}

#[test]
fn a_cache_with_old_tokens_is_smaller_and_frees_what_is_no_longer_recent() {
    let folder = Folder::new(fixture_path(FIXTURES[0]));
    let checkpoint = folder.checkpoint(Load::Mmap).expect("the fixture opens");
    let mut config = folder.config().expect("the config is valid").as_decoder().expect("it is a decoder").clone();
    config.max_position_embeddings = POSITIONS;
    let heads = 2 * config.num_hidden_layers() * config.num_key_value_heads;
    let (full, codes) = (heads * config.head_dim * 4, heads * (config.head_dim + 4));
    let options = |old_kv| LoadOptions {
        kv: Some(DType::F32),
        old_kv,
        context: Some(POSITIONS),
        prefill_chunk: 32,
        ..LoadOptions::default()
    };
    let plan = |old_kv| {
        LanguageModel::plan(&config, &checkpoint, &options(old_kv), &Context::cpu().expect("a context"))
            .expect("a plan")
    };
    // What a token may see in full is 163 positions, in 12 blocks of which two are not whole; one more that a step ends
    // in, and two that it fills.
    let recent = (162usize.div_ceil(16) + 2 + 2) * 16;
    let old_kv = old(DType::I8, RECENT);
    assert_eq!(plan(None).cache, POSITIONS * full);
    assert_eq!(plan(old_kv).cache, POSITIONS * codes + recent * full);
    assert!(3 * plan(old_kv).cache < 2 * plan(None).cache);

    let mut model = load(FIXTURES[0], &options(old_kv)).expect("it loads");
    assert_eq!((model.cache().bytes(), model.cache().bytes_per_token()), (plan(old_kv).cache, codes));
    let read = model.decoder().step_bytes(1, 1000.0) - model.decoder().step_bytes(1, 0.0);
    assert_eq!(read, (163 * full + (1000 - 163) * codes) as f64);
    let mut sequence = model.sequence();
    let mut most = 0;
    for chunk in tokens(1000).chunks(25) {
        model.prefill(&mut sequence, chunk).expect("there is room");
        most = most.max(model.cache().stats().used);
    }
    // All in codes, and in full no more than the shape has room for.
    assert!(most <= 1000usize.div_ceil(16) + recent / 16, "{most} blocks");
    assert!(most > 1000usize.div_ceil(16) + RECENT / 16, "{most} blocks");
    drop(sequence);
    assert_eq!(model.cache().stats().used, 0);
}

/// The bits of the logits of one token after another.
fn decode(model: &mut LanguageModel, sequence: &mut Sequence, tokens: &[u32]) -> Vec<u32> {
    let sequences = std::slice::from_mut(sequence);
    tokens.iter().flat_map(|&token| bits(model.decode(sequences, &[token]).expect("there is room"))).collect()
}

#[test]
fn a_sequence_goes_on_from_where_it_was_cut_or_forked_as_one_that_was_never_longer() {
    for name in FIXTURES {
        let options = LoadOptions {
            old_kv: old(DType::F8E4M3, RECENT),
            max_sequences: 3,
            block_size: 8,
            prefill_chunk: 50,
            ..LoadOptions::default()
        };
        let mut model = load(name, &options).expect("it loads");
        let (prompt, more, others) = (tokens(300), [5, 6, 7, 8], [9, 10, 11, 12]);
        let mut fresh = |more: &[u32]| {
            let mut sequence = model.sequence();
            model.prefill(&mut sequence, &prompt).expect("there is room");
            decode(&mut model, &mut sequence, more)
        };
        let (expected, expected_of_others) = (fresh(&more), fresh(&others));
        let mut sequence = model.sequence();
        model.prefill(&mut sequence, &prompt).expect("there is room");
        let mut fork = model.cache().fork(&sequence).expect("few sequences");
        assert_eq!(decode(&mut model, &mut sequence, &others), expected_of_others, "{name}");
        assert_eq!(decode(&mut model, &mut fork, &more), expected, "{name}");
        // What a step has released is not seen by the step itself.
        let (rejected, before) = ([1, 2, 3, 4, 5, 6], sequence.len());
        model.prefill(&mut sequence, &rejected).expect("there is room");
        sequence.truncate(before).expect("nothing that is seen was left behind");
        // Further back recent tokens are no longer there in full.
        let refused = sequence.truncate(150).expect_err("released").to_string();
        assert!(refused.contains("cannot truncate to 150 tokens a sequence of 304"), "{refused}");
        assert_eq!(sequence.len(), before);
        drop(fork);
        // Four back they are, but a window of 7 has left a block of 8 behind that would be seen.
        let cut = sequence.truncate(300);
        assert_eq!(cut.is_err(), name == FIXTURES[1], "{name}");
        if cut.is_ok() {
            assert_eq!(decode(&mut model, &mut sequence, &more), expected, "{name}");
        }
        drop(sequence);
        assert_eq!(model.cache().stats().used, 0);
    }
}

#[test]
fn what_old_tokens_cannot_be_is_refused_in_words() {
    let base = LoadOptions::default();
    for (options, words) in [
        (LoadOptions { old_kv: old(DType::BF16, 64), ..base.clone() }, &["bf16", "int8 and fp8"][..]),
        (LoadOptions { old_kv: old(DType::I8, 0), ..base.clone() }, &["at least one token is recent"]),
        (
            LoadOptions { kv: Some(DType::F8E4M3), old_kv: old(DType::I8, 64), ..base.clone() },
            &["f8_e4m3", "recent ones in f32, f16 and bf16"],
        ),
    ] {
        let error = load(FIXTURES[0], &options).expect_err("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn a_batch_of_long_prompts_has_room_where_each_holds_what_it_sees() {
    for name in FIXTURES {
        for block_size in [8, 16, 64] {
            let options = LoadOptions {
                old_kv: old(DType::I8, 16),
                prefill_chunk: 64,
                max_sequences: 4,
                context: Some(234),
                block_size,
                ..LoadOptions::default()
            };
            let mut model = load(name, &options).expect("it loads");
            let mut batch: Vec<Sequence> = (0..4).map(|_| model.sequence()).collect();
            for sequence in &mut batch {
                model.prefill(sequence, &tokens(230)).expect("there is room for a prompt");
            }
            for _ in 0..4 {
                model.decode(&mut batch, &[1, 2, 3, 4]).expect("there is room for a step");
            }
        }
    }
}
