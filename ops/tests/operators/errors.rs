//! Every error is one line of bounded length, and shows no element of a tensor.

use sinew_kernels::gemm::{Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_memory::Cpu;
use sinew_ops::layers::{Activation, Compute, Embedding, WeightPacker};
use sinew_ops::*;
use sinew_tensor::{DType, Layout, Tensor};

/// A number that no message has another reason to contain.
const ELEMENT: f32 = 4242.5;
/// Characters of the longest message of two operands of eight dimensions; most have fewer than 200.
const MOST: usize = 450;

#[track_caller]
fn assert_one_line(what: &str, outcome: std::result::Result<(), Error>) {
    let error = outcome.expect_err(what);
    // The last is what `main` prints of an error that it returns.
    let mut texts = vec![error.to_string(), format!("{error:?}")];
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        texts.push(error.to_string());
        source = error.source();
    }
    for text in texts {
        assert!(!text.contains(['\n', '\r']), "{what}: {text}");
        assert!(text.chars().count() <= MOST, "{what} has {} characters: {text}", text.chars().count());
        assert!(!text.contains("4242"), "{what} shows an element: {text}");
    }
}

fn filled(ctx: &Context, shape: &[usize]) -> Tensor {
    ctx.tensor(&vec![ELEMENT; shape.iter().product()], shape).unwrap()
}

#[test]
fn errors_of_operators_are_one_line_without_elements() {
    let ctx = Context::cpu().unwrap();
    let [x, y] = [[40, 50], [50, 41]].map(|shape| filled(&ctx, &shape));
    let deep = filled(&ctx, &[1, 2, 1, 3, 1, 2, 5, 7]);
    let heads = filled(&ctx, &[2, 3, 4, 8]);
    let whole = cast(&ctx, &x, DType::I32).unwrap();
    let wide = cast(&ctx, &x, DType::F64).unwrap();
    let vector = filled(&ctx, &[7]);
    let table = RotaryTable::with_theta(&ctx, 1e4, 8, 3).unwrap();
    let ids = ctx.tensor(&[99u32; 3], &[3]).unwrap();
    let shared = x.clone();
    let into = |f: &dyn Fn(&mut Tensor) -> Result<()>| f(&mut filled(&ctx, &[2, 1500]));
    let outcomes: Vec<(&str, Result<()>)> = vec![
        ("add", add(&ctx, &x, &y).map(drop)),
        ("add deep", add(&ctx, &deep, &heads).map(drop)),
        ("add dtypes", add(&ctx, &whole, &x).map(drop)),
        ("add scalar", add(&ctx, &whole, 0.5).map(drop)),
        ("exp", exp(&ctx, &whole).map(drop)),
        ("where", where_(&ctx, &x, &x, &x).map(drop)),
        ("gated", gated(&ctx, Activation::Silu, &x, &y).map(drop)),
        ("gated_halves", gated_halves(&ctx, Activation::Silu, &y).map(drop)),
        ("silu", silu(&ctx, &whole).map(drop)),
        ("matmul", matmul(&x, &x).run(&ctx).map(drop)),
        ("matmul dtype", matmul(&wide, &wide.t().unwrap()).run(&ctx).map(drop)),
        ("matmul rank", matmul(&x, &vector).run(&ctx).map(drop)),
        ("matmul batch", matmul(&deep, &heads.t().unwrap()).run(&ctx).map(drop)),
        ("matmul bias", matmul(&x, &y).bias(&vector).run(&ctx).map(drop)),
        ("matmul residual", matmul(&x, &y).residual(&x).run(&ctx).map(drop)),
        ("matmul into", into(&|out| matmul(&x, &y).run_into(&ctx, out))),
        ("rms_norm", rms_norm(&x).weight(&vector).run(&ctx).map(drop)),
        ("layer_norm", layer_norm(&whole).run(&ctx).map(drop)),
        ("norm into", into(&|out| rms_norm(&x).run_into(&ctx, out))),
        ("softmax", softmax(&ctx, &whole).map(drop)),
        ("softmax into", into(&|out| softmax_into(&ctx, &x, out))),
        ("sum", sum(&x).dim(9).run(&ctx).map(drop)),
        ("mean", mean(&whole).run(&ctx).map(drop)),
        ("argmax into", into(&|out| argmax(&x).run_into(&ctx, out))),
        ("topk", topk(&ctx, &x, 99).map(drop)),
        ("topk dtype", topk(&ctx, &whole, 2).map(drop)),
        ("embedding", embedding(&ctx, &ids, &x).map(drop)),
        ("embedding ids", embedding(&ctx, &x, &x).map(drop)),
        ("embedding table", embedding(&ctx, &ids, &deep).map(drop)),
        ("gather", gather(&ctx, &x, 0, &ids).map(drop)),
        ("gather index", gather(&ctx, &x, 0, &x).map(drop)),
        ("index_select", index_select(&ctx, &x, 0, &x).map(drop)),
        ("rotary", rotary(&heads, &vector, &table).run(&ctx).map(drop)),
        ("rotary rank", rotary(&x, &vector, &table).run(&ctx).map(drop)),
        ("attention", attention(&heads, &x, &x).run(&ctx).map(drop)),
        ("attention shapes", attention(&heads, &heads, &deep).run(&ctx).map(drop)),
        ("attention mask", attention(&heads, &heads, &heads).mask(&x).run(&ctx).map(drop)),
        ("attention sinks", attention(&heads, &heads, &heads).sinks(&x).run(&ctx).map(drop)),
        ("kv_append", kv_append(&ctx, &x, &x, &ids, &mut filled(&ctx, &[3]), &mut filled(&ctx, &[3]))),
        ("cast_into", into(&|out| cast_into(&ctx, &x, out))),
        ("cast shared", cast_into(&ctx, &y, &mut shared.clone())),
        ("tensor", ctx.tensor(&[ELEMENT], &[1 << 20]).map(drop)),
        ("tensor of many", ctx.tensor(&[ELEMENT; 5000], &[40, 50]).map(drop)),
        ("tensor rank", ctx.tensor(&[ELEMENT], &[1; 10_000]).map(drop)),
        ("tensor size", ctx.tensor(&[ELEMENT], &[usize::MAX; 8]).map(drop)),
        ("upload", ctx.upload(&[ELEMENT; 3000], &mut filled(&ctx, &[40, 50]))),
        ("upload dtype", ctx.upload(&[1i32; 3], &mut filled(&ctx, &[40, 50]))),
        ("upload shared", ctx.upload(&[ELEMENT; 3], &mut shared.clone())),
        ("uninitialised", ctx.uninitialised(DType::F32, &[1 << 40, 1 << 10]).map(drop)),
        ("embedding layer", Embedding::table(&ctx, deep.clone(), DType::F32).map(drop)),
        ("packer", WeightPacker::new(&ctx, DType::I64, &[40], 50, false).map(drop)),
        ("packer rows", WeightPacker::new(&ctx, DType::F32, &[40; 5000], 50, true).map(drop)),
        ("packer sizes", WeightPacker::new(&ctx, DType::F32, &[usize::MAX; 5000], 50, false).map(drop)),
        (
            "packer order",
            WeightPacker::new(&ctx, DType::F32, &[4], 5, false).unwrap().ordered(&ctx, &[9; 5000]).map(drop),
        ),
        ("policy", Policy::check_names(&["gemm.abacus".into()])),
        ("plan", {
            let fixed = GemmStatic::new(8, 8, DType::F64, Rhs::Strided(DType::F64), DType::F64, Compute::F32);
            ctx.plan::<Gemm>(fixed, &[GemmDynamic { batch: 1, m: 1 }]).map(drop)
        }),
    ];
    for (what, outcome) in outcomes {
        assert_one_line(what, outcome);
    }
}

#[test]
fn errors_of_tensors_are_one_line_without_elements() {
    let ctx = Context::cpu().unwrap();
    let x = filled(&ctx, &[40, 50]);
    let deep = filled(&ctx, &[1, 2, 1, 3, 1, 2, 5, 7]).t().unwrap();
    let cpu = Cpu::get();
    let many = vec![1; 10_000];
    let outcomes: Vec<(&str, sinew_tensor::Result<()>)> = vec![
        ("from_slice", Tensor::from_slice(&cpu, &[ELEMENT; 3], &[40, 50]).map(drop)),
        ("from_vec", Tensor::from_vec(&cpu, vec![ELEMENT; 3], &[40, 50]).map(drop)),
        ("from_bytes", Tensor::from_bytes(&cpu, &[1; 3], DType::F64, &[40, 50]).map(drop)),
        ("from_bools", Tensor::from_bools(&cpu, &[true; 3], &[40, 50]).map(drop)),
        ("zeros", Tensor::zeros(&cpu, DType::F64, &many).map(drop)),
        ("new", Tensor::new(x.buffer().clone(), DType::F64, *x.layout()).map(drop)),
        ("as_slice", x.as_slice::<i32>().map(drop)),
        ("as_slice strides", deep.as_slice::<f32>().map(drop)),
        ("to_vec", x.to_vec::<i32>().map(drop)),
        ("to_bools", x.to_bools().map(drop)),
        ("as_mut_slice", x.clone().as_mut_slice::<f32>().map(drop)),
        ("view_mut", x.clone().view_mut().map(drop)),
        ("upload", filled(&ctx, &[2, 2]).upload(&**ctx.stream(), &[ELEMENT; 9])),
        ("download", x.download(&**ctx.stream(), &mut [0f32; 9000])),
        ("reshape", deep.reshape(&[420]).map(drop)),
        ("reshape rank", x.reshape(&many).map(drop)),
        ("permute", deep.permute(&many).map(drop)),
        ("transpose", deep.transpose(9, 1).map(drop)),
        ("broadcast_to", deep.broadcast_to(&[9; 8]).map(drop)),
        ("broadcast_to rank", x.broadcast_to(&many).map(drop)),
        ("split", x.split(0, &many).map(drop)),
        ("chunk", x.chunk(0, 0).map(drop)),
        ("narrow", deep.narrow(7, usize::MAX, 9).map(drop)),
        ("slice", deep.slice(7, 3..usize::MAX, 0).map(drop)),
        ("select", deep.select(7, 99).map(drop)),
        ("squeeze", deep.squeeze(7).map(drop)),
        ("unsqueeze", deep.unsqueeze(3).map(drop)),
        ("flatten", deep.flatten(3..99).map(drop)),
        ("unfold", x.unfold(1, 99, 1).map(drop)),
        ("strided", Layout::strided(&[9; 8], &[usize::MAX / 2; 8], 0).map(drop)),
        ("strides", Layout::strided(&[1; 8], &many, 0).map(drop)),
    ];
    for (what, outcome) in outcomes {
        assert_one_line(what, outcome.map_err(Into::into));
    }
}
