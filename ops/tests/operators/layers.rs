//! Planned layers take what they were planned for: operands of too few dimensions are errors.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use sinew_kernels::gemm::{self, Gemm};
use sinew_kernels::norm;
use sinew_kernels::packed::{self, Weights};
use sinew_kernels::{Registry, Row};
use sinew_memory::{Cpu, DeviceKind, SimdLevel, Team};
use sinew_ops::layers::{
    Activation, Attention, AttentionStatic, Compute, Embedding, Inputs, KvAppend, Linear, LinearOptions, Norm,
    NormOptions, NormedLinear, PackedWeight, Rotary, RowGather, Sample, Sequences, SliceToPack, WeightPacker,
    WeightRows,
};
use sinew_ops::{Context, Policy};
use sinew_tensor::{DType, Tensor};

#[test]
fn operands_of_too_few_dimensions_are_errors() {
    let ctx = Context::cpu().unwrap();
    let f32 = DType::F32;
    let mut packer = WeightPacker::new(&ctx, f32, &[4], 3, false).unwrap();
    for slice in packer.slices(1 << 20) {
        packer.pack(&ctx, &slice, &[WeightRows::from_bytes(&[0; 4 * 3 * 4], f32, 4, 3).unwrap()]).unwrap();
    }
    let options = LinearOptions::new(f32, f32, Compute::F32);
    let linear = Linear::new(&ctx, Arc::new(packer.finish().unwrap()), options, 1).unwrap();
    let table = ctx.tensor(&[0f32; 6], &[2, 3]).unwrap();
    let embedding = Embedding::table(&ctx, table.clone(), f32).unwrap();
    let gather = RowGather::new(&ctx, f32, 2, 3).unwrap();
    let rotary = Rotary::new(&ctx, &[1.0], 1.0, 4, 2, f32).unwrap();
    let sample = Sample::new(&ctx, 3, 1).unwrap();
    let append = KvAppend::new(&ctx, 1, 2, f32, f32, 2).unwrap();
    let causal = AttentionStatic { causal: true, ..AttentionStatic::new(1, 1, 2, [f32; 3], Compute::F32) };
    let attention = Attention::new(&ctx, causal, 1, 1).unwrap();

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
        ("append", append.run(&ctx, [x, x], None, x, [f, g])),
        ("attention", attention.run(&ctx, Inputs { q: x, k: x, v: x, mask: None, old: None, sinks: None }, of, h)),
    ];
    for (layer, outcome) in refused {
        let error = outcome.expect_err(layer).to_string();
        assert!(error.contains("expected"), "{layer}: {error}");
    }
    let error = Embedding::table(&ctx, scalar, f32).unwrap_err().to_string();
    assert!(error.contains("expected [vocab, width]"), "{error}");
}

/// Values that are exact in no format but f32.
fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) % 997) as f32 / 313.0 - 1.5).collect()
}

fn weight(
    ctx: &Context,
    rows: &[usize],
    k: usize,
    dtype: DType,
    gated: bool,
    order: Option<&[u32]>,
) -> Arc<PackedWeight> {
    let bytes: Vec<u8> = values(1, rows.iter().sum::<usize>() * k).into_iter().flat_map(f32::to_le_bytes).collect();
    let mut packer = WeightPacker::new(ctx, dtype, rows, k, gated).unwrap();
    if let Some(order) = order {
        packer = packer.ordered(ctx, order).unwrap();
    }
    for slice in packer.slices(1 << 20) {
        let pieces = slice.rows.iter().map(|(_, rows)| {
            WeightRows::from_bytes(&bytes[rows.start * k * 4..rows.end * k * 4], DType::F32, rows.len(), k).unwrap()
        });
        packer.pack(ctx, &slice, &pieces.collect::<Vec<_>>()).unwrap();
    }
    Arc::new(packer.finish().unwrap())
}

/// The same bytes slice by slice and several slices at a time; the first error of a slice, and slices out of order.
#[test]
fn slices_are_packed_at_once_as_one_by_one() {
    const K: usize = 5;
    let (cpu, n) = (Cpu::with(3, SimdLevel::detected()).unwrap(), 1000);
    let ctx = Context::on(cpu, Policy::default()).unwrap();
    let bytes: Vec<u8> = values(1, n * K).into_iter().flat_map(f32::to_le_bytes).collect();
    let packer = || WeightPacker::new(&ctx, DType::BF16, &[600, 400], K, false).unwrap();
    let pack = |slice: SliceToPack<'_>| {
        let starts = [0, 600];
        let pieces = slice.slice.rows.iter().map(|(part, rows)| {
            let bytes = &bytes[(starts[*part] + rows.start) * K * 4..(starts[*part] + rows.end) * K * 4];
            WeightRows::from_bytes(bytes, DType::F32, rows.len(), K).unwrap()
        });
        slice.pack(&pieces.collect::<Vec<_>>())
    };
    let mut at_once = packer();
    let slices = at_once.slices(32 * K * 4);
    assert_eq!(slices.len(), 1000usize.div_ceil(32));
    at_once.pack_each(&ctx, &slices, pack).unwrap();
    let mut one_by_one = packer();
    for slice in &slices {
        one_by_one.pack_each(&ctx, std::slice::from_ref(slice), pack).unwrap();
    }
    let [at_once, one_by_one] = [at_once, one_by_one].map(|p| p.finish().unwrap().tensor().to_vec::<u8>().unwrap());
    let whole = [WeightRows::from_bytes(&bytes, DType::F32, n, K).unwrap()];
    let mut expected = vec![0; at_once.len()];
    let team = Team::new(1).unwrap();
    packed::BF16.pack(&team, SimdLevel::detected(), &Weights::new(&whole, false), &mut expected).unwrap();
    assert!(at_once == expected && one_by_one == expected);

    // Two slices at least are in hand together: each waits for another.
    let (met, more) = (Mutex::new(0), Condvar::new());
    let meet = |slice: SliceToPack<'_>| {
        *met.lock().unwrap() += 1;
        more.notify_all();
        let (met, late) =
            more.wait_timeout_while(met.lock().unwrap(), Duration::from_secs(60), |met| *met < 2).unwrap();
        assert!(!late.timed_out(), "no second slice in a minute");
        drop(met);
        pack(slice)
    };
    packer().pack_each(&ctx, &slices, meet).unwrap();

    // For three threads, as many for each; no more than there are panels; none of nothing.
    assert_eq!(packer().slices_for(3, 5 * 32 * K * 4).len(), 9);
    assert_eq!(packer().slices_for(100, 1 << 20).len(), 32);
    for (rows, k) in [(0, 1 << 57), (1 << 40, 0)] {
        assert!(WeightPacker::new(&ctx, DType::BF16, &[rows], k, false).unwrap().slices(1).is_empty());
    }

    let third = |slice: SliceToPack<'_>| if slice.slice == &slices[3] { slice.pack(&[]) } else { pack(slice) };
    let error = packer().pack_each(&ctx, &slices, third).unwrap_err().to_string();
    assert!(error.contains("0 pieces for 1 ranges of rows"), "{error}");
    let shorter = [WeightRows::from_bytes(&bytes[..4 * K], DType::F32, 1, K).unwrap()];
    let error = packer().pack(&ctx, &slices[0], &shorter).unwrap_err().to_string();
    assert!(error.contains("1 rows of 5 of f32 for rows 0..32"), "{error}");
    let backwards = [slices[1].clone(), slices[0].clone()];
    let error = packer().pack_each(&ctx, &backwards, pack).unwrap_err().to_string();
    assert!(error.contains("units 0..1 are not behind those before"), "{error}");
}

/// Compares a normed linear layer in every form with a norm and a linear layer, bit by bit.
fn normed_as_apart(ctx: &Context, apart: bool) {
    const K: usize = 53;
    const MOST: usize = 20;
    let (f32, n) = (DType::F32, 22);
    let (scale, shift) = (ctx.tensor(&values(2, K), &[K]).unwrap(), ctx.tensor(&values(3, K), &[K]).unwrap());
    for (dtype, compute) in [(DType::BF16, Compute::Bf16), (DType::F16, Compute::F32), (f32, Compute::F32)] {
        let norms = [
            NormOptions::rms(1e-6, scale.clone(), f32, dtype),
            NormOptions::layer(1e-5, scale.clone(), shift.clone(), f32, dtype),
        ];
        let plain = LinearOptions::new(dtype, f32, compute);
        let gated = LinearOptions { gated: Some(Activation::Silu), ..LinearOptions::new(dtype, dtype, compute) };
        let bias = Some(ctx.tensor(&values(4, n), &[n]).unwrap());
        let forms = [LinearOptions { bias, ..plain.clone() }, gated, plain.accumulate()];
        let backwards: Vec<u32> = (0..K as u32).rev().collect();
        let orders = [None, Some(&backwards[..])];
        let each =
            norms.iter().flat_map(|norm| forms.iter().flat_map(move |form| orders.map(|order| (norm, form, order))));
        for (norm, form, order) in each {
            let weight = weight(ctx, &[n / 2; 2], K, dtype, form.gated.is_some(), order);
            let whole = NormedLinear::new(ctx, Some(norm.clone()), weight.clone(), form.clone(), MOST).unwrap();
            let parts = (Norm::new(ctx, norm.clone(), MOST), Linear::new(ctx, weight, form.clone(), MOST));
            let (first, then) = (parts.0.unwrap(), parts.1.unwrap());
            let norm_and_product = [("norm", first.kernels()), ("product", then.kernels())];
            assert_eq!(whole.kernels(["norm", "product"]), norm_and_product[usize::from(!apart)..]);
            assert_eq!(whole.weight_bytes(), first.weight_bytes() + then.weight_bytes());
            let columns = if form.gated.is_some() { n / 2 } else { n };
            for rows in [1, 3, MOST] {
                let x = ctx.tensor(&values(5, rows * K), &[rows, K]).unwrap();
                let [mut room, mut normed] = [0; 2].map(|_| ctx.uninitialised(dtype, &[rows, K]).unwrap());
                // What is added to, where the form adds.
                let [mut found, mut expected] =
                    [0; 2].map(|_| Tensor::zeros(ctx.device(), form.output, &[rows, columns]).unwrap());
                whole.run(ctx, x.view(), Some(room.view_mut().unwrap()), found.view_mut().unwrap()).unwrap();
                first.run(ctx, x.view(), normed.view_mut().unwrap()).unwrap();
                then.run(ctx, normed.view(), expected.view_mut().unwrap()).unwrap();
                let [found, expected] =
                    [found, expected].map(|tensor| tensor.buffer().as_slice::<u8>().unwrap().to_vec());
                assert!(found == expected, "{norm:?} {form:?} {order:?} {rows} rows");
                assert!(found.iter().any(|&byte| byte != 0));
            }
        }
    }
}

#[test]
fn a_linear_layer_of_a_norm_has_the_bits_of_both() {
    for level in SimdLevel::ALL.into_iter().filter(|&level| level <= SimdLevel::detected()) {
        let cpu = Cpu::with(2, level).unwrap();
        normed_as_apart(&Context::on(cpu, Policy::default()).unwrap(), false);
    }
}

#[test]
fn a_norm_runs_by_itself_where_no_product_norms_or_another_row_is_wanted() {
    let portable = gemm::rows().into_iter().find(|row| row.name == "gemm.cpu.portable").unwrap();
    let plain: Row<Gemm> = Row {
        name: "gemm.plain",
        device: DeviceKind::CPU,
        admits: |fixed, _| if fixed.norm.is_some() { Err("norms nothing".into()) } else { Ok(()) },
        ..portable
    };
    let mut lacking = Registry::empty();
    lacking.add([plain]).add(norm::rows());
    let mut offering = Registry::standard();
    offering.add([plain]);
    let prefer = |name: &str| Policy { prefer: vec![name.to_owned()], ..Policy::default() };
    for (registry, policy) in [
        (lacking, Policy::default()),
        (offering, prefer("gemm.plain")),
        (Registry::standard(), prefer("norm.cpu.portable")),
    ] {
        normed_as_apart(&Context::new(Cpu::get(), Arc::new(registry), policy).unwrap(), true);
    }
}

#[test]
fn a_norm_and_a_product_of_different_types_are_refused() {
    let ctx = Context::cpu().unwrap();
    let ones = ctx.tensor(&[1f32; 3], &[3]).unwrap();
    let norm = NormOptions::rms(1e-6, ones, DType::F32, DType::BF16);
    let weight = weight(&ctx, &[4], 3, DType::F32, false, None);
    let options = LinearOptions::new(DType::F32, DType::F32, Compute::F32);
    let error = NormedLinear::new(&ctx, Some(norm), weight, options, 1).unwrap_err().to_string();
    assert!(error.contains("the norm gives bf16, the product reads f32"), "{error}");
}

#[test]
fn the_order_of_a_weights_inputs_is_counted_with_the_weights() {
    const K: usize = 1 << 12;
    let ctx = Context::cpu().unwrap();
    let weights =
        || ctx.memory_report().live.iter().find(|usage| usage.tag == "weights").map_or(0, |usage| usage.bytes);
    let packer = |ctx: &Context| WeightPacker::new(ctx, DType::F32, &[1], K, false).unwrap();
    let order: Vec<u32> = (0..K as u32).rev().collect();
    let plain = packer(&ctx);
    let before = weights();
    let ordered = plain.ordered(&ctx, &order).unwrap();
    assert!(before >= 4 * K && weights() >= before + 4 * K);
    drop(ordered);
    let small = Context::cpu().unwrap().with_memory_limit(before + 4 * K - 1);
    let error = packer(&small).ordered(&small, &order).map(drop).unwrap_err().to_string();
    assert!(error.contains("out of memory") && error.contains("weights"), "{error}");
}

#[test]
fn an_order_that_does_not_fit_and_rows_in_another_order_are_refused() {
    let ctx = Context::cpu().unwrap();
    let packer = || WeightPacker::new(&ctx, DType::F32, &[4], 3, false).unwrap();
    for (order, words) in [
        (&[0, 1][..], "an order of 2 inputs, for 1 weights of 3 inputs"),
        (&[0, 1, 2, 0, 1, 2], "an order of 6 inputs"),
        (&[0, 3, 1], "an order of 3 inputs, input 3 among them"),
    ] {
        let error = packer().ordered(&ctx, order).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let weight = weight(&ctx, &[4], 3, DType::F32, false, Some(&[2, 0, 1]));
    assert_eq!(weight.bytes(), weight.tensor().buffer().len() + 3 * 4);
    let error = Embedding::packed(&ctx, weight, DType::F32).map(drop).unwrap_err().to_string();
    assert!(error.contains("another order"), "{error}");
    let table = WeightPacker::table(&ctx, DType::F32, 4, 3).unwrap();
    assert!(table.ordered(&ctx, &[2, 0, 1]).unwrap().finish_table().is_err());
}
