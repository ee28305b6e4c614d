//! No public operator or constructor shows memory that was not written: results do not depend on what a pool held.

use std::sync::Arc;

use half::{bf16, f16};
use sinew_kernels::packed::{self, WeightRows, Weights};
use sinew_memory::{SimdLevel, Team};
use sinew_ops::layers::{
    Activation, Attention, AttentionStatic, Combine, CombineOptions, Compute, Dispatch, Inputs, KvAppend, KvSource,
    Linear, LinearOptions, Route, RouteOptions, Routing, Sequences, SliceToPack, WeightPacker,
};
use sinew_ops::*;
use sinew_tensor::{DType, Element, Layout, PagedLayout, Tensor};

use crate::lay::*;

/// A context whose pool hands out memory that is full of `byte`.
fn tainted(byte: u8) -> Context {
    let ctx = Context::cpu().unwrap();
    let classes: Vec<usize> = ctx.pool().size_classes().into_iter().filter(|&bytes| bytes <= 64 << 10).collect();
    let held: Vec<Tensor> = classes
        .iter()
        .flat_map(|&bytes| [bytes; 4])
        .map(|bytes| {
            let mut tensor = ctx.uninitialised(DType::U8, &[bytes]).unwrap();
            tensor.as_mut_slice::<u8>().unwrap().fill(byte);
            tensor
        })
        .collect();
    drop(held);
    let shown = ctx.uninitialised(DType::U8, &[1000]).unwrap().to_vec::<u8>().unwrap();
    assert!(shown.iter().all(|&shown| shown == byte), "the pool shows what it held");
    ctx
}

/// Runs `f` on pools that held two different bytes, and compares the bytes of the results.
#[track_caller]
fn assert_written(what: &str, f: impl Fn(&Context) -> Result<Vec<Tensor>>) {
    let run = |byte| {
        let ctx = tainted(byte);
        let results = f(&ctx).unwrap_or_else(|error| panic!("{what}: {error}"));
        results.iter().map(|tensor| tensor.to_bytes().unwrap().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(run(0xff), run(0x2a), "{what} shows memory that was not written");
}

fn ones<T: Element>(ctx: &Context, shape: &[usize]) -> Tensor {
    ctx.tensor(&vec![T::from_f64(1.0); shape.iter().product()], shape).unwrap()
}

fn floats(ctx: &Context, dtype: DType, shape: &[usize]) -> Tensor {
    match dtype {
        DType::F16 => ones::<f16>(ctx, shape),
        DType::BF16 => ones::<bf16>(ctx, shape),
        _ => ones::<f32>(ctx, shape),
    }
}

#[test]
fn constructors_take_exactly_as_many_values_as_elements() {
    let ctx = tainted(0x2a);
    for (count, shape) in
        [(1, &[1024][..]), (0, &[1]), (0, &[]), (2, &[]), (1, &[0]), (5, &[2, 3]), (7, &[2, 3]), (1, &[3, 0])]
    {
        let elements: usize = shape.iter().product();
        let words = [format!("given: {count}"), format!("{shape:?}"), format!("{elements} elements")];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_names(ctx.tensor(&vec![1f32; count], shape), &words);
        assert_names(ctx.tensor(&vec![1u8; count], shape), &words);
        assert_names(ctx.tensor_tagged("tag", &vec![1i64; count], shape), &words);
        let device = ctx.device();
        for refused in [
            Tensor::from_slice(device, &vec![1f32; count], shape),
            Tensor::from_vec(device, vec![1f32; count], shape),
            Tensor::from_bools(device, &vec![true; count], shape),
        ] {
            assert_names(refused.map_err(Into::into), &words);
        }
        let refused = Tensor::from_bytes(device, &vec![0; 2 * count], DType::BF16, shape);
        assert_names(
            refused.map_err(Into::into),
            &[&format!("given: {}", 2 * count), &format!("{} bytes", 2 * elements)],
        );
    }
    for shape in [&[][..], &[0], &[3, 0], &[2, 3]] {
        let x = ctx.tensor(&vec![1f32; shape.iter().product()], shape).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), vec![1.0; x.layout().elements()]);
        let zeros = Tensor::zeros(ctx.device(), DType::F32, shape).unwrap();
        assert!(zeros.to_vec::<f32>().unwrap().iter().all(|&x| x == 0.0));
    }
}

#[test]
fn a_layout_past_a_pooled_tensor_is_refused() {
    let ctx = tainted(0x2a);
    // A size class is larger than the tensor.
    let x = ctx.tensor(&[1f32; 3], &[3]).unwrap();
    assert!(x.with_layout(Layout::contiguous(&[4]).unwrap()).is_err());
    assert!(x.view().with_layout(Layout::strided(&[2], &[3], 0).unwrap()).is_err());
    assert!(Tensor::new(x.buffer().clone(), DType::F64, Layout::contiguous(&[2]).unwrap()).is_err());
}

#[test]
fn upload_keeps_the_elements_behind_its_values() {
    let ctx = tainted(0x2a);
    let mut x = ctx.tensor(&[1f32, 2.0, 3.0], &[3]).unwrap();
    ctx.upload(&[7f32], &mut x).unwrap();
    ctx.upload::<f32>(&[], &mut x).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [7.0, 2.0, 3.0]);
    assert_names(ctx.upload(&[0f32; 4], &mut x), &["upload", "given: 4", "[3]", "at most"]);
    assert_names(ctx.upload(&[0i32; 3], &mut x), &["upload", "i32", "f32"]);
    let mut column = ctx.tensor(&[0f32; 4], &[2, 2]).unwrap().select(1, 0).unwrap();
    assert_names(ctx.upload(&[0f32; 2], &mut column), &["upload", "contiguous"]);
}

#[test]
fn elementwise_results_are_written() {
    for shape in [&[][..], &[0], &[1], &[3, 5], &[2, 0, 3], &[7, 33]] {
        for dtype in DType::COMPUTE {
            assert_written(&format!("elementwise {shape:?} {dtype}"), |ctx| {
                let x = floats(ctx, dtype, shape);
                let yes = eq(ctx, &x, &x)?;
                let scalar = floats(ctx, dtype, &[]);
                Ok(vec![
                    add(ctx, &x, &x)?,
                    mul(ctx, &x, 2.0)?,
                    pow(ctx, &x, &scalar)?,
                    exp(ctx, &x)?,
                    logical_not(ctx, &x)?,
                    where_(ctx, &yes, &x, &scalar)?,
                    silu(ctx, &x)?,
                    gelu(ctx, &x)?,
                    gated(ctx, Activation::Silu, &x, &x)?,
                    yes,
                ])
            });
        }
    }
}

#[test]
fn casts_and_copies_are_written() {
    for shape in [&[][..], &[0], &[1], &[17, 5], &[2, 0], &[40, 50]] {
        for from in DType::ALL {
            assert_written(&format!("casts of {from} {shape:?}"), |ctx| {
                let x = cast(ctx, &ones::<f32>(ctx, shape), from)?;
                let turned = if shape.len() == 2 { x.t()? } else { x.clone() };
                let mut all = vec![to_contiguous(ctx, &turned)?];
                for to in DType::ALL {
                    all.push(cast(ctx, &turned, to)?);
                }
                Ok(all)
            });
        }
    }
}

#[test]
fn rows_and_reductions_are_written() {
    for shape in [&[1][..], &[0], &[3, 0], &[0, 4], &[2, 3, 7], &[5, 130]] {
        for dtype in DType::COMPUTE {
            assert_written(&format!("rows {shape:?} {dtype}"), |ctx| {
                let x = floats(ctx, dtype, shape);
                let width = *shape.last().unwrap();
                let weight = floats(ctx, dtype, &[width]);
                let mut residual = floats(ctx, dtype, shape);
                let mut all = vec![
                    softmax(ctx, &x)?,
                    log_softmax(ctx, &x)?,
                    rms_norm(&x).weight(&weight).run(ctx)?,
                    layer_norm(&x).weight(&weight).bias(&weight).run(ctx)?,
                    rms_norm(&x).run_residual(ctx, &mut residual)?,
                    sum(&x).run(ctx)?,
                    mean(&x).run(ctx)?,
                    sum(&logical_not(ctx, &x)?).run(ctx)?,
                ];
                for k in [0, width.min(1), width] {
                    let (values, indices) = topk(ctx, &x, k)?;
                    all.extend([values, indices]);
                }
                for (dim, &size) in shape.iter().enumerate() {
                    all.extend([sum(&x).dim(dim).run(ctx)?, mean(&x).dim(dim).keepdim().run(ctx)?]);
                    if size > 0 {
                        all.extend([max(&x).dim(dim).run(ctx)?, min(&x).dim(dim).run(ctx)?]);
                        all.extend([argmax(&x).dim(dim).run(ctx)?, argmin(&x).dim(dim).run(ctx)?]);
                    }
                }
                if width.is_multiple_of(2) {
                    all.push(gated_halves(ctx, Activation::Gelu, &x)?);
                }
                all.push(residual);
                Ok(all)
            });
        }
    }
}

#[test]
fn a_largest_of_nothing_is_refused() {
    let ctx = tainted(0x2a);
    for shape in [&[0][..], &[3, 0]] {
        let x = ones::<f32>(&ctx, shape);
        for reduce in [max, min, argmax, argmin] {
            assert!(reduce(&x).dim(shape.len() - 1).run(&ctx).is_err());
        }
        assert!(topk(&ctx, &x, 1).is_err());
    }
}

#[test]
fn selected_rows_are_written() {
    for (count, width) in [(0, 3), (2, 0), (1, 1), (5, 17)] {
        assert_written(&format!("{count} rows of {width}"), |ctx| {
            let table = ones::<f32>(ctx, &[4, width]);
            let ids = ctx.tensor(&vec![3u32; count], &[count])?;
            let index = ctx.tensor(&vec![2i64; count * width], &[count, width])?;
            Ok(vec![
                embedding(ctx, &ids, &table)?,
                index_select(ctx, &table, 0, &ids)?,
                gather(ctx, &table, 0, &index)?,
                gather(ctx, &cast(ctx, &table, DType::U8)?, 0, &index)?,
            ])
        });
    }
    assert_written("no rows of an empty table", |ctx| {
        let (ids, table) = (ctx.tensor::<u32>(&[], &[0])?, ones::<f32>(ctx, &[0, 3]));
        Ok(vec![embedding(ctx, &ids, &table)?, index_select(ctx, &table, 0, &ids)?])
    });
}

#[test]
fn products_are_written_whatever_their_sizes() {
    for [m, k, n] in [[0, 3, 4], [2, 0, 3], [2, 3, 0], [1, 1, 1], [1, 5, 33], [7, 64, 65], [70, 3, 5]] {
        for dtype in DType::COMPUTE {
            assert_written(&format!("{m} x {k} x {n} {dtype}"), |ctx| {
                let (a, b) = (floats(ctx, dtype, &[m, k]), floats(ctx, dtype, &[k, n]));
                let bias = floats(ctx, dtype, &[n]);
                let residual = floats(ctx, dtype, &[m, n]);
                let batch = floats(ctx, dtype, &[2, 3, m, k]);
                let empty = floats(ctx, dtype, &[0, m, k]);
                let mut packer = WeightPacker::new(ctx, dtype, &[n], k, false)?;
                let rows = vec![0x11; n * k * dtype.size()];
                for slice in packer.slices(1 << 20) {
                    let (_, range) = &slice.rows[0];
                    let bytes = &rows[..range.len() * k * dtype.size()];
                    packer.pack(ctx, &slice, &[WeightRows::from_bytes(bytes, dtype, range.len(), k)?])?;
                }
                let weight = packer.finish()?;
                let mut all = vec![
                    matmul(&a, &b).run(ctx)?,
                    matmul(&a, &b).bias(&bias).residual(&residual).gelu().run(ctx)?,
                    matmul(&batch, &b).run(ctx)?,
                    matmul(&empty, &b).run(ctx)?,
                    linear(&a, &weight).bias(&bias).run(ctx)?,
                ];
                for lay in Lay::OUTPUTS {
                    let layout = lay.layout(&[m, n]);
                    let mut y = ctx.uninitialised(dtype, &[layout.end() + 3])?.with_layout(layout)?;
                    matmul(&a, &b).run_into(ctx, &mut y)?;
                    all.push(y);
                }
                Ok(all)
            });
        }
    }
}

#[test]
fn attention_and_rotary_are_written_without_keys_or_angles() {
    for (seq, kv) in [(0, 3), (2, 0), (3, 3), (1, 70)] {
        for dtype in DType::COMPUTE {
            assert_written(&format!("attention {seq} of {kv} {dtype}"), |ctx| {
                let q = floats(ctx, dtype, &[2, seq, 4, 8]);
                let k = floats(ctx, dtype, &[2, kv, 2, 8]);
                let nothing = logical_not(ctx, &ones::<f32>(ctx, &[seq, kv]))?;
                let positions = ctx.tensor(&vec![1i32; seq], &[seq])?;
                let table = RotaryTable::with_theta(ctx, 1e4, 4, 3)?;
                let none = RotaryTable::new(ctx, &[], 1.0, 3)?;
                let mut all = vec![
                    attention(&q, &k, &k).run(ctx)?,
                    attention(&q, &k, &k).mask(&nothing.unsqueeze(0)?).run(ctx)?,
                    rotary(&q, &positions, &table).run(ctx)?,
                    rotary(&q, &positions, &none).run(ctx)?,
                ];
                all.extend([table.cos, table.sin]);
                Ok(all)
            });
        }
    }
}

#[test]
fn attention_reads_no_slot_of_a_cache_that_was_not_written() {
    for kv in [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8E4M3] {
        assert_written(&format!("a cache of {kv}"), |ctx| {
            let (f32, head_dim, block_size) = (DType::F32, 8, 16);
            let cache = PagedLayout::new(6, 2, block_size, head_dim, kv)?;
            let mut caches = [0, 1].map(|_| ctx.uninitialised(cache.stored(), cache.layout().shape()));
            let [Ok(keys), Ok(values)] = &mut caches else { panic!("no room for a cache") };
            // Sequences of 1 and 17 tokens: the tails of blocks 4 and 3 stay unwritten, and the other blocks.
            let slots: Vec<i64> =
                [4 * 16].into_iter().chain((0..17).map(|t| if t < 16 { 16 + t } else { 3 * 16 })).collect();
            let tokens = slots.len();
            let new = ones::<f32>(ctx, &[tokens, 2, head_dim]);
            let slots = ctx.tensor(&slots, &[tokens])?;
            let append = KvAppend::new(ctx, 2, head_dim, f32, kv, block_size)?;
            append.run(ctx, [new.view(), new.view()], None, slots.view(), [keys.view_mut()?, values.view_mut()?])?;
            let problem = AttentionStatic::new(4, 2, head_dim, [f32, kv, f32], Compute::F32);
            let problem = AttentionStatic { causal: true, kv_source: KvSource::Paged { block_size }, ..problem };
            let layer = Attention::new(ctx, problem, tokens, 17)?;
            let q = ones::<f32>(ctx, &[tokens, 4, head_dim]);
            let (starts, lengths) = (ctx.tensor(&[0i32, 1, 18], &[3])?, ctx.tensor(&[1i32, 17], &[2])?);
            let table = ctx.tensor(&[4u32, 0, 1, 3], &[2, 2])?;
            let mut out = ctx.uninitialised(f32, &[tokens, 4, head_dim])?;
            let inputs = Inputs { q: q.view(), k: keys.view(), v: values.view(), mask: None, old: None, sinks: None };
            let of = Sequences {
                query_start: starts.view(),
                kv_len: lengths.view(),
                block_table: Some(table.view()),
                max_query: 17,
                max_kv: 17,
            };
            layer.run(ctx, inputs, of, out.view_mut()?)?;
            let values = out.to_vec::<f32>()?;
            assert!(values.iter().all(|y| (y - 1.0).abs() < 0.1), "{values:?}");
            Ok(vec![out])
        });
    }
}

#[test]
fn routing_of_experts_is_written() {
    for tokens in [0, 1, 3] {
        assert_written(&format!("{tokens} tokens"), |ctx| {
            let (experts, top_k, width, f32) = (4, 2, 5, DType::F32);
            let mut routing = Routing::new(ctx, experts, top_k, 3)?;
            let mut all = vec![ctx.tensor(routing.offsets().as_slice::<i32>()?, &[experts + 1])?];
            let logits = ones::<f32>(ctx, &[tokens, experts]);
            Route::new(ctx, RouteOptions { experts, top_k, renormalize: true }, 3)?.run(
                ctx,
                logits.view(),
                &mut routing,
            )?;
            let x = ones::<f32>(ctx, &[tokens, width]);
            let mut sorted = ctx.uninitialised(f32, &[tokens * top_k, width])?;
            Dispatch::new(ctx, f32, width)?.run(ctx, x.view(), &routing, sorted.view_mut()?)?;
            let mut out = ctx.uninitialised(f32, &[tokens, width])?;
            let options = CombineOptions { width, top_k, input: f32, output: f32, accumulate: false };
            Combine::new(ctx, options, 3)?.run(ctx, sorted.view(), &routing, out.view_mut()?)?;
            all.extend([sorted, out]);
            Ok(all)
        });
    }
}

#[test]
fn packing_writes_every_byte_of_every_format() {
    let (team, level) = (Team::new(1).unwrap(), SimdLevel::detected());
    for format in packed::formats() {
        for (n, k, gated) in [(1, 1, false), (5, 3, false), (33, 40, false), (6, 129, true), (64, 65, true)] {
            let bytes: Vec<u8> = (0..n * k).flat_map(|i| ((i % 13) as f32 - 6.0).to_le_bytes()).collect();
            let rows = [WeightRows::from_bytes(&bytes, DType::F32, n, k).unwrap()];
            let pack = |byte| {
                let mut packed = vec![byte; format.packed_bytes(n, k, gated)];
                format.pack(&team, level, &Weights::new(&rows, gated), &mut packed).unwrap();
                packed
            };
            assert!(pack(0xff) == pack(0x2a), "{} {n} x {k} gated {gated}", format.name());
        }
    }
}

#[test]
fn a_weight_that_was_not_packed_whole_is_refused() {
    let ctx = tainted(0x2a);
    let (n, k, bytes) = (100, 64, vec![0u8; 100 * 64 * 4]);
    let pack = |slice: SliceToPack<'_>| {
        let (_, range) = slice.slice.rows[0].clone();
        slice.pack(&[WeightRows::from_bytes(&bytes[..range.len() * k * 4], DType::F32, range.len(), k).unwrap()])
    };
    let packer = || WeightPacker::new(&ctx, DType::F32, &[n], k, false).unwrap();
    assert_names(packer().finish(), &["pack", "4 of 4 units"]);
    assert_names(WeightPacker::table(&ctx, DType::F32, n, k).unwrap().finish_table(), &["pack", "100 of 100 units"]);
    let slices = packer().slices(1);
    for given in [&slices[1..], &slices[..3]] {
        let mut part = packer();
        part.pack_each(&ctx, given, pack).unwrap();
        assert_names(part.finish(), &["pack", "1 of 4 units", "every slice"]);
    }
    let mut skipped = packer();
    skipped.pack_each(&ctx, &slices, |_| Ok::<(), Error>(())).unwrap();
    assert!(skipped.finish().is_err());
    let mut strips = packer();
    let strip = |range: std::ops::Range<usize>| {
        let bytes = &bytes;
        move |slice: SliceToPack<'_>| {
            let rows = slice.slice.rows[0].1.len();
            let piece = WeightRows::from_bytes(&bytes[..rows * range.len() * 4], DType::F32, rows, range.len());
            slice.pack_strip(range.clone(), &[piece.unwrap()])
        }
    };
    strips.pack_each(&ctx, &slices, strip(32..64)).unwrap();
    strips.pack_each(&ctx, &slices, strip(0..32)).unwrap();
    let whole = strips.finish().unwrap();
    let options = LinearOptions::new(DType::F32, DType::F32, Compute::F32);
    assert!(Linear::new(&ctx, Arc::new(whole), options, 1).is_ok());
    for (n, k) in [(0, 3), (3, 0)] {
        assert!(WeightPacker::new(&ctx, DType::F32, &[n], k, false).unwrap().finish().is_ok());
    }
}
