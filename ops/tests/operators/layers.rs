//! Planned layers take what they were planned for: operands of too few dimensions are errors.

use std::sync::Arc;

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionOptions, Compute, Embedding, Inputs, KvAppend, Linear, LinearOptions, Rotary, RowGather,
    Sample, Sequences, WeightPacker,
};
use sinew_tensor::{DType, Tensor};

#[test]
fn operands_of_too_few_dimensions_are_errors() {
    let ctx = Context::cpu().unwrap();
    let f32 = DType::F32;
    let mut packer = WeightPacker::new(&ctx, f32, &[4], 3, false).unwrap();
    for slice in packer.slices(1 << 20) {
        packer.pack(&ctx, &slice, &[(&[0; 4 * 3 * 4], f32)]).unwrap();
    }
    let options = LinearOptions::new(f32, f32, Compute::F32);
    let linear = Linear::new(&ctx, Arc::new(packer.finish().unwrap()), options, 1).unwrap();
    let table = ctx.tensor(&[0f32; 6], &[2, 3]).unwrap();
    let embedding = Embedding::table(&ctx, table.clone(), f32).unwrap();
    let gather = RowGather::new(&ctx, f32, 2, 3).unwrap();
    let rotary = Rotary::new(&ctx, &[1.0], 1.0, 4, 2, f32).unwrap();
    let sample = Sample::new(&ctx, 3, 1).unwrap();
    let append = KvAppend::new(&ctx, 1, 2, f32, f32, 2).unwrap();
    let options = AttentionOptions {
        num_heads: 1,
        num_kv_heads: 1,
        head_dim: 2,
        q: f32,
        kv: f32,
        output: f32,
        compute: Compute::F32,
        scale: 1.0,
        causal: true,
        window: None,
        softcap: None,
        block_size: None,
        mask: None,
    };
    let attention = Attention::new(&ctx, options, 1, 1).unwrap();

    let scalar = ctx.tensor(&[0f32], &[]).unwrap();
    let mut outs: [Tensor; 8] = std::array::from_fn(|_| ctx.tensor(&[0f32], &[]).unwrap());
    let [a, b, c, d, e, f, g, h] = outs.each_mut().map(|out| out.view_mut().unwrap());
    let x = scalar.view();
    let of = Sequences { query_start: x, kv_len: x, block_table: None, max_query: 1, max_kv: 1 };
    let refused = [
        ("linear", linear.run(&ctx, x, a)),
        ("embedding", embedding.run(&ctx, x, b)),
        ("rows", gather.run(&ctx, x, x, c)),
        ("rotary", rotary.run_in_place(&ctx, d, x)),
        ("sample", sample.run(&ctx, x, x, x, e)),
        ("append", append.run(&ctx, x, x, x, f, g)),
        ("attention", attention.run(&ctx, Inputs { q: x, k: x, v: x, mask: None }, of, h)),
    ];
    for (layer, outcome) in refused {
        let error = outcome.expect_err(layer).to_string();
        assert!(error.contains("expected"), "{layer}: {error}");
    }
    let error = Embedding::table(&ctx, scalar, f32).unwrap_err().to_string();
    assert!(error.contains("expected [vocab, width]"), "{error}");
}
