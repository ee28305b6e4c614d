//! A sequence gets the same bits in any prefill chunking, on any number of threads, from any block size, and beside any
//! neighbours, through the rows that are chosen by default.

use std::path::Path;
use std::sync::Arc;

use sinew::kernels::Registry;
use sinew::memory::Cpu;
use sinew::ops::Policy;
use sinew::prelude::*;

const FIXTURE: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";

/// More than one 64-key tile and one default block, at a length that nothing divides.
const TOKENS: usize = 131;

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 3) % 1003).collect()
}

fn model(dtype: DType, threads: usize, options: LoadOptions) -> LanguageModel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(FIXTURE);
    let device = Cpu::with(threads, SimdLevel::detected()).expect("threads start");
    let ctx = Context::new(device, Arc::new(Registry::standard()), Policy::default()).expect("a context");
    let options = LoadOptions { dtype: Some(dtype), context: Some(256), ..options };
    LanguageModel::load_on(Arc::new(ctx), folder, &options, &mut |_, _| {}).expect("the fixture loads")
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn logits(dtype: DType, threads: usize, prefill_chunk: usize, block_size: usize) -> Vec<u32> {
    let options = LoadOptions { prefill_chunk, block_size, max_logits: 256, ..LoadOptions::default() };
    let mut all = Vec::new();
    model(dtype, threads, options)
        .logits(&tokens(TOKENS), &mut |rows| {
            all.extend(bits(rows));
            Ok(())
        })
        .expect("the tokens are valid");
    all
}

#[test]
fn chunks_threads_and_block_sizes_change_no_bit() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (place, rows) in model(dtype, 2, LoadOptions::default()).decoder().kernels() {
            println!("{dtype} {place}: {}", rows.join(", "));
        }
        let expected = logits(dtype, 2, TOKENS, 16);
        assert!(expected.iter().any(|&x| f32::from_bits(x) != 0.0));
        for (threads, chunk, block) in [
            (1, TOKENS, 16),
            (5, TOKENS, 16),
            (2, 1, 16),
            (2, 7, 16),
            (2, 64, 16),
            (2, TOKENS, 8),
            (2, TOKENS, 64),
            (1, 7, 8),
            (5, 1, 64),
        ] {
            let found = logits(dtype, threads, chunk, block);
            assert!(found == expected, "{dtype}: {threads} threads, chunks of {chunk}, blocks of {block}");
        }
    }
}

#[test]
fn neighbours_in_a_batch_change_no_bit() {
    for dtype in [DType::F32, DType::BF16] {
        let prompts = [tokens(33), tokens(1), tokens(90)];
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| {
                let mut model = model(dtype, 2, LoadOptions::default());
                let mut sequence = model.sequence();
                model.prefill(&mut sequence, prompt).expect("a valid prompt");
                let mut sequences = [sequence];
                (0..4).flat_map(|i| bits(model.decode(&mut sequences, &[17 + i]).expect("a valid token"))).collect()
            })
            .collect();
        let mut model = model(dtype, 2, LoadOptions { max_sequences: 3, ..LoadOptions::default() });
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
        assert!(alone == together, "{dtype}");
    }
}
