//! What a language model promises about its sequences: an error leaves them as they were, and a prompt can be given up.

use std::ops::ControlFlow;

use sinew::models::cache::Sequence;
use sinew::models::language::Finish;
use sinew::prelude::*;

#[path = "common/fixtures.rs"]
mod fixtures;

use fixtures::{bits, fixture_path};

const FIXTURE: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";
/// One token more than the vocabulary.
const NO_TOKEN: u32 = 1003;

fn model(options: LoadOptions) -> LanguageModel {
    LanguageModel::load(fixture_path(FIXTURE), &options).expect("the fixture loads")
}

/// Blocks of 16 tokens: four of them for two sequences.
fn small() -> LoadOptions {
    LoadOptions { context: Some(32), max_sequences: 2, prefill_chunk: 16, ..LoadOptions::default() }
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 3) % 1003).collect()
}

fn filled(model: &mut LanguageModel, n: usize) -> Sequence {
    let mut sequence = model.sequence();
    model.prefill(&mut sequence, &tokens(n)).expect("there is room");
    sequence
}

fn lengths(sequences: &[Sequence]) -> Vec<usize> {
    sequences.iter().map(Sequence::len).collect()
}

#[test]
fn a_decode_that_fails_leaves_every_sequence_as_it_was() {
    let expected = {
        let mut model = model(small());
        let mut sequences = [filled(&mut model, 15), filled(&mut model, 16)];
        bits(model.decode(&mut sequences, &[5, 6]).expect("there is room"))
    };
    let mut model = model(small());
    let mut sequences = [filled(&mut model, 15), filled(&mut model, 16)];
    let neighbour = filled(&mut model, 32);

    // The first has room in its block, and no block is left for the second.
    let error = model.decode(&mut sequences, &[5, 6]).expect_err("the cache is full").to_string();
    assert!(error.contains("block"), "{error}");
    assert_eq!(lengths(&sequences), [15, 16]);
    // The token of the first is good, that of the second is not.
    let error = model.decode(&mut sequences, &[5, NO_TOKEN]).expect_err("no such token").to_string();
    assert!(error.contains("vocabulary"), "{error}");
    assert_eq!(lengths(&sequences), [15, 16]);
    let [a, b] = sequences;
    let mut with_full = [a, neighbour];
    let error = model.decode(&mut with_full, &[5, 6]).expect_err("the second is at the end").to_string();
    assert!(error.contains("context"), "{error}");
    assert_eq!(lengths(&with_full), [15, 32]);
    let [a, neighbour] = with_full;
    drop(neighbour);

    let mut sequences = [a, b, filled(&mut model, 1)];
    let error = model.decode(&mut sequences, &[5, 6, 7]).expect_err("planned for two").to_string();
    assert!(error.contains("3 sequences") && error.contains("2 sequences"), "{error}");
    assert_eq!(lengths(&sequences), [15, 16, 1]);
    let error = model.decode(&mut sequences[..1], &[5, 6]).expect_err("a token too many").to_string();
    assert!(error.ends_with("2 tokens for 1 sequence"), "{error}");
    assert!(model.decode(&mut [], &[]).expect("nothing to do").is_empty());

    // What failed left no trace in the sequences' keys and values.
    assert_eq!(bits(model.decode(&mut sequences[..2], &[5, 6]).expect("there is room again")), expected);
    assert_eq!(lengths(&sequences), [16, 17, 1]);
}

#[test]
fn a_prefill_that_fails_leaves_the_sequence_as_it_was() {
    let prompt = tokens(25);
    let expected = {
        let mut model = model(small());
        let mut sequence = filled(&mut model, 5);
        bits(model.prefill(&mut sequence, &prompt).expect("there is room"))
    };
    let mut model = model(small());
    let mut sequence = filled(&mut model, 5);
    let neighbours = [filled(&mut model, 16), filled(&mut model, 16)];
    let free = model.cache().stats().free;
    assert_eq!(free, 1);
    // The first chunk takes the last block; the second finds none.
    let more = [filled(&mut model, 1)];
    assert!(model.prefill(&mut sequence, &prompt).is_err());
    assert_eq!(sequence.len(), 5);
    drop(more);
    assert_eq!(model.cache().stats().free, free);
    assert!(model.prefill(&mut sequence, &[1, NO_TOKEN]).is_err());
    assert!(model.prefill(&mut sequence, &tokens(28)).is_err(), "past the context");
    assert!(model.prefill(&mut sequence, &[]).is_err());
    assert_eq!(sequence.len(), 5);
    drop(neighbours);
    assert_eq!(bits(model.prefill(&mut sequence, &prompt).expect("there is room again")), expected);
    assert_eq!(sequence.len(), 30);
}

#[test]
fn a_prompt_is_given_up_after_the_running_chunk() {
    let mut model = model(LoadOptions { prefill_chunk: 10, ..LoadOptions::default() });
    let prompt = tokens(95);
    for chunks in [1, 3, 9] {
        let (mut calls, before) = (0, model.decoder().passes().count);
        let answer = model
            .generate(&prompt, &GenerateOptions::default(), &mut |text| {
                assert!(text.is_empty());
                calls += 1;
                if calls == chunks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .expect("to end is no error");
        assert_eq!((answer.finish, answer.tokens.len()), (Finish::Cancelled, 0));
        assert!(answer.prefill.is_zero());
        assert_eq!(model.decoder().passes().count - before, chunks);
    }
    assert_eq!(model.cache().stats().used, 0);
}
