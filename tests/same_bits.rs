//! A sequence gets the same bits in any prefill chunking, on any number of threads, from any block size, and beside any
//! neighbours, through the rows that are chosen by default.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinew::memory::Cpu;
use sinew::models::decoder::Passes;
use sinew::models::{Load, OldKv};
use sinew::ops::Policy;
use sinew::prelude::*;
use sinew_conformance::parity;

#[path = "common/fixtures.rs"]
mod fixtures;

use fixtures::{bits, fixture_path};

const FIXTURE: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";

/// More than a group of 512 keys, at a length that nothing divides.
const TOKENS: usize = 613;
/// The fixture says 256, but its rotary positions go on for ever.
const POSITIONS: usize = 1024;

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 3) % 1003).collect()
}

/// The machine's SIMD levels, lowest first.
fn levels() -> impl Iterator<Item = SimdLevel> {
    SimdLevel::ALL.into_iter().filter(|&level| level <= SimdLevel::detected())
}

fn model(level: SimdLevel, dtype: DType, threads: usize, options: LoadOptions) -> LanguageModel {
    let folder = Folder::new(fixture_path(FIXTURE));
    let config = folder.config().expect("the config is valid");
    let mut config = config.as_decoder().expect("it is a decoder").clone();
    config.max_position_embeddings = POSITIONS;
    let checkpoint = folder.checkpoint(Load::Mmap).expect("the fixture opens");
    let device = Cpu::with(threads, level).expect("threads start");
    let ctx = Context::on(device, Policy::default()).expect("a context");
    let weights = WeightOptions { dtype: Some(dtype), ..WeightOptions::default() };
    let options = LoadOptions { weights, ..options };
    LanguageModel::from_parts(Arc::new(ctx), &config, &checkpoint, None, &options, &mut |_, _| {})
        .expect("the fixture loads")
}

/// Dtypes of weights, of the cache where it is another, and the form of old tokens where they have one.
const DTYPES: [(DType, Option<DType>, Option<OldKv>); 10] = [
    (DType::F32, None, None),
    (DType::BF16, None, None),
    (DType::F16, None, None),
    (DType::BF16, Some(DType::I8), None),
    (DType::BF16, Some(DType::F8E4M3), None),
    (DType::F32, Some(DType::I8), None),
    (DType::F16, Some(DType::F8E4M3), None),
    (DType::BF16, None, Some(OldKv { dtype: DType::I8, recent: 100 })),
    (DType::BF16, Some(DType::F32), Some(OldKv { dtype: DType::F8E4M3, recent: 1 })),
    (DType::F32, None, Some(OldKv { dtype: DType::I8, recent: 64 })),
];

/// What a cache is called.
fn name_of(dtype: DType, kv: Option<DType>, old_kv: Option<OldKv>) -> String {
    let kv = kv.map_or(String::new(), |kv| format!(" with a cache in {kv}"));
    let old = old_kv.map_or(String::new(), |old| format!(" with {} before the latest {}", old.dtype, old.recent));
    format!("{dtype}{kv}{old}")
}

/// All logits, after the model has taken the steps that the options ask for.
fn logits(level: SimdLevel, dtype: DType, threads: usize, options: LoadOptions) -> Vec<u32> {
    let (chunk, most) = (options.prefill_chunk, options.max_logits);
    let mut model = model(level, dtype, threads, options);
    let mut all = Vec::new();
    model
        .logits(&tokens(TOKENS), &mut |rows| {
            assert!(rows.len() <= most * 1003, "{} logits at once", rows.len());
            all.extend(bits(rows));
            Ok(())
        })
        .expect("the tokens are valid");
    let latest = (TOKENS - 1) % chunk + 1;
    let steps = Passes { count: TOKENS.div_ceil(chunk), largest: chunk.min(TOKENS), latest };
    assert_eq!(model.decoder().passes(), steps, "chunks of {chunk}");
    println!(
        "{dtype} at {level}: {threads} threads, chunks of {chunk}: {} steps of at most {}",
        steps.count, steps.largest
    );
    all
}

/// Threads, tokens of a chunk and of a block, and rows of logits at once.
const WAYS: [(usize, usize, usize, usize); 12] = [
    (1, 7, 8, 3),
    (5, 64, 64, 64),
    (2, 1, 16, 64),
    (1, TOKENS, 16, 64),
    (5, TOKENS, 16, 100),
    (33, TOKENS, 16, 64),
    (2, TOKENS, 16, 1),
    (2, 7, 16, 64),
    (2, 64, 16, 64),
    (2, 512, 16, 64),
    (2, TOKENS, 8, 64),
    (2, TOKENS, 64, 64),
];
/// Of them, the first, that levels below the machine's own are tried in.
const WAYS_BELOW: usize = 3;

#[test]
fn chunks_threads_and_block_sizes_change_no_bit() {
    for level in levels() {
        let ways = if level == SimdLevel::detected() { WAYS.len() } else { WAYS_BELOW };
        for (dtype, kv, old_kv) in DTYPES {
            let name = format!("{} at {level}", name_of(dtype, kv, old_kv));
            let options = |prefill_chunk, block_size, max_logits| LoadOptions {
                prefill_chunk,
                block_size,
                max_logits,
                kv,
                old_kv,
                ..LoadOptions::default()
            };
            for (place, rows) in model(level, dtype, 2, options(TOKENS, 16, TOKENS)).decoder().kernels() {
                println!("{name} {place}: {}", rows.join(", "));
            }
            let expected = logits(level, dtype, 2, options(TOKENS, 16, TOKENS));
            assert!(expected.iter().any(|&x| f32::from_bits(x) != 0.0));
            for &(threads, chunk, block, most) in &WAYS[..ways] {
                let found = logits(level, dtype, threads, options(chunk, block, most));
                let way = format!("{threads} threads, chunks of {chunk}, blocks of {block}, {most} rows");
                assert!(found == expected, "{name}: {way}");
            }
        }
    }
}

#[test]
fn neighbours_in_a_batch_change_no_bit() {
    for level in levels() {
        DTYPES.into_iter().for_each(|(dtype, kv, old_kv)| neighbours_change_no_bit(level, dtype, kv, old_kv));
    }
}

fn neighbours_change_no_bit(level: SimdLevel, dtype: DType, kv: Option<DType>, old_kv: Option<OldKv>) {
    let prompts = [tokens(33), tokens(1), tokens(90)];
    let alone: Vec<Vec<u32>> = prompts
        .iter()
        .map(|prompt| {
            let mut model = model(level, dtype, 2, LoadOptions { kv, old_kv, ..LoadOptions::default() });
            let mut sequence = model.sequence();
            model.prefill(&mut sequence, prompt).expect("a valid prompt");
            let mut sequences = [sequence];
            (0..4).flat_map(|i| bits(model.decode(&mut sequences, &[17 + i]).expect("a valid token"))).collect()
        })
        .collect();
    let mut model = model(level, dtype, 2, LoadOptions { max_sequences: 3, kv, old_kv, ..LoadOptions::default() });
    let mut sequences: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let mut sequence = model.sequence();
            model.prefill(&mut sequence, prompt).expect("a valid prompt");
            sequence
        })
        .collect();
    let mut together = vec![Vec::<u32>::new(); prompts.len()];
    for i in 0..4 {
        let rows = bits(model.decode(&mut sequences, &[17 + i; 3]).expect("valid tokens"));
        let vocab = rows.len() / prompts.len();
        together.iter_mut().zip(rows.chunks(vocab)).for_each(|(all, row)| all.extend(row));
    }
    assert!(alone == together, "{} at {level}", name_of(dtype, kv, old_kv));
}

/// Where a norm is part of the product that follows, and the turn of keys part of their append, unless another row is
/// wanted. Router and experts read one normed input; the norms of queries, keys and outputs follow products.
const FOLDED: [&str; 4] = ["attention norm", "mlp norm", "last norm", "key rotary"];

/// The decoders among the fixtures: every architecture, window, rotary embedding and mixture of experts, and weights that
/// have their inputs in another order.
fn decoders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let fixtures = parity::fixtures(&root);
    let mut quantized = parity::quantized_fixtures(&root).expect("the fixtures are there");
    quantized.retain(|folder| ["desc_act", "actorder"].iter().any(|words| parity::name(folder).contains(words)));
    assert_eq!(quantized.len(), 2);
    let decoders = fixtures.expect("the fixtures are there").into_iter().filter(|folder| {
        let config = Folder::new(folder).config().cloned().expect("the config is valid");
        config.as_decoder().is_ok() && !folder.join("modules.json").exists()
    });
    decoders.chain(quantized).collect()
}

#[test]
fn every_architecture_has_the_same_bits_in_chunks_and_beside_others_and_with_kernels_apart() {
    levels().for_each(every_architecture_has_the_same_bits);
}

fn every_architecture_has_the_same_bits(level: SimdLevel) {
    const MOST: usize = 47;
    // A norm whose row is preferred by name is no part of a product, and neither is a turn part of an append.
    let of_level = match level {
        SimdLevel::Portable => "portable",
        SimdLevel::Avx2 => "avx2",
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => "avx512",
    };
    let prefer = ["norm", "rotary"].map(|operator| format!("{operator}.cpu.{of_level}")).to_vec();
    let kernels_apart = Policy { prefer, ..Policy::default() };
    let mut folded = [0; FOLDED.len()];
    let decoders = decoders();
    assert!(decoders.len() > 30, "{} decoders", decoders.len());
    for folder in decoders {
        let folder = Folder::new(folder);
        let config = folder.config().expect("the config is valid");
        let config = config.as_decoder().expect("it is a decoder");
        let (vocab, length) = (config.vocab_size, config.longest_context().min(MOST));
        let load_with = |policy, prefill_chunk, block_size, max_sequences, threads| {
            let device = Cpu::with(threads, level).expect("threads start");
            let ctx = Context::on(device, policy).expect("a context");
            let context = Some(length);
            let weights = WeightOptions::default();
            let options = LoadOptions {
                weights,
                context,
                prefill_chunk,
                block_size,
                max_sequences,
                max_logits: 64,
                ..LoadOptions::default()
            };
            LanguageModel::load_on(Arc::new(ctx), &folder, &options, &mut |_, _| {}).expect("the fixture loads")
        };
        let load = |chunk, block, sequences, threads| load_with(Policy::default(), chunk, block, sequences, threads);
        let all = |mut model: LanguageModel, tokens: &[u32]| {
            let mut all = Vec::new();
            model
                .logits(tokens, &mut |rows| {
                    all.extend(bits(rows));
                    Ok(())
                })
                .expect("the tokens are valid");
            all
        };
        let tokens: Vec<u32> = (0..length).map(|i| ((i * 7919 + 3) % vocab) as u32).collect();
        let name = format!("{} at {level}", parity::name(folder.path()));
        let whole = all(load(64, 16, 1, 2), &tokens);
        assert!(whole == all(load(7, 5, 1, 1), &tokens), "{name}: chunks of 7 change bits");

        let apart = load_with(kernels_apart.clone(), 64, 16, 1, 2);
        let mut model = load(64, 16, 3, 2);
        // All that runs is listed: what those that run apart add is what is folded.
        let places = |model: &LanguageModel| model.decoder().kernels().into_iter().map(|(place, _)| place);
        let (inside, by_themselves): (BTreeSet<_>, BTreeSet<_>) = (places(&model).collect(), places(&apart).collect());
        let expected: BTreeSet<_> = by_themselves.iter().copied().filter(|place| !FOLDED.contains(place)).collect();
        assert_eq!(inside, expected, "{name}");
        folded.iter_mut().zip(FOLDED).for_each(|(n, place)| *n += usize::from(by_themselves.contains(place)));
        assert_eq!(model.decoder().weight_bytes(), apart.decoder().weight_bytes(), "{name}");
        assert!(whole == all(apart, &tokens), "{name}: kernels apart change bits");

        let (last, before) = tokens.split_last().expect("there are tokens");
        let mut sequences: Vec<_> = (0..3).map(|_| model.sequence()).collect();
        for (i, sequence) in sequences.iter_mut().enumerate() {
            // The middle one is that of before; those beside it are others.
            let others: Vec<u32> = before.iter().take(20 + i).map(|token| (token + 1) % vocab as u32).collect();
            model.prefill(sequence, if i == 1 { before } else { &others }).expect("a valid prompt");
        }
        let together = bits(model.decode(&mut sequences, &[5, *last, 9]).expect("valid tokens"));
        let (row, expected) = (&together[vocab..2 * vocab], &whole[(length - 1) * vocab..]);
        assert!(row == expected, "{name}: sequences beside it change bits");
    }
    assert!(folded.iter().all(|&n| n > 25), "{folded:?} decoders have {FOLDED:?}");
}
