//! The programs in `examples/` run, and what the types of the interface promise to threads is so.

use std::path::PathBuf;
use std::process::Command;

use sinew::memory::{Buffer, Pool, PrivateFolder};
use sinew::models::{Checkpoint, Sampler, Tokenizer};
use sinew::prelude::*;
use sinew::tensor::{View, ViewMut};

#[path = "common/fixtures.rs"]
mod fixtures;

use fixtures::fixture;

/// What an example prints. Cargo builds examples before it runs tests.
fn example(name: &str, arguments: &[&str]) -> String {
    let mut folder: PathBuf = std::env::current_exe().expect("this program");
    folder.pop();
    folder.pop();
    let program = folder.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let output = Command::new(&program).args(arguments).output().expect("the example runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn operators_prints_what_it_computes() {
    let printed = example("operators", &[]);
    assert!(printed.contains("x · xᵀ =\n[[14. 32.]\n [32. 77.]]"), "{printed}");
    assert!(printed.contains("0.2689414"), "{printed}");
}

#[test]
fn load_checkpoint_answers() {
    let folder = fixture("llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let printed = example("load_checkpoint", &[&folder, "the Work"]);
    let last = printed.trim_end().lines().last().expect("a last line");
    assert!(last.ends_with(" tokens, length") || last.ends_with(" tokens, eos"), "{printed}");
}

#[test]
fn embed_finds_a_text_most_like_itself() {
    let folder = fixture("bert_hd20_f32_wordpiece");
    let printed = example("embed", &[&folder, "the work", "rights", "the work"]);
    let likeness: Vec<f32> =
        printed.lines().map(|line| line.split_once(' ').expect("a number").0.parse().expect("a number")).collect();
    assert_eq!((likeness[0], likeness[2]), (1.0, 1.0), "{printed}");
    assert!(likeness[1] < 1.0, "{printed}");
}

#[test]
fn what_may_cross_threads_may() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Context>();
    shared::<Tensor>();
    shared::<Buffer>();
    shared::<Pool>();
    shared::<PrivateFolder>();
    shared::<View<'_>>();
    shared::<Checkpoint>();
    shared::<Tokenizer>();
    sent::<ViewMut<'_>>();
    sent::<Sampler>();
    sent::<LanguageModel>();
    sent::<EmbeddingModel>();
}

/// One context serves threads at once, and each gets what it would get alone.
#[test]
fn a_context_is_shared_by_threads() {
    let ctx = Context::cpu().expect("a context");
    let run = |i: usize| -> Vec<f32> {
        let values: Vec<f32> = (0..64 * 64).map(|j| ((i + j) % 13) as f32 - 6.0).collect();
        let a = ctx.tensor(&values, &[64, 64]).expect("a tensor");
        sinew::ops::matmul(&a, &a.t().expect("a view")).run(&ctx).expect("a product").to_vec().expect("values")
    };
    let alone: Vec<Vec<f32>> = (0..8).map(run).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || run(i))).collect();
        for (thread, expected) in threads.into_iter().zip(&alone) {
            assert_eq!(&thread.join().expect("the thread ends"), expected);
        }
    });
}
