use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

const EPS: f32 = 1e-3;

/// A norm in f64: of `x`, with weight and bias.
fn reference(x: &Host, layer: bool, weight: Option<&Host>, offset: f64, bias: Option<&Host>) -> Host {
    let width = *x.shape.last().unwrap();
    let mut values = Vec::new();
    for row in x.values.chunks(width.max(1)) {
        let mean = if layer { row.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let square = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        let factor = 1.0 / (square + f64::from(EPS)).sqrt();
        values.extend(row.iter().enumerate().map(|(i, x)| {
            let w = weight.map_or(1.0, |w| w.values[i] + offset);
            (x - mean) * factor * w + bias.map_or(0.0, |b| b.values[i])
        }));
    }
    Host { shape: x.shape.clone(), values }
}

#[test]
fn norms_take_every_layout_and_mixture_of_dtypes_with_or_without_weight_and_bias() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for shape in [&[4, 33][..], &[7], &[2, 3, 64], &[0, 5], &[1, 1]] {
        for lay in Lay::ALL {
            for layer in [false, true] {
                turn += 1;
                let dtype = |n: usize| DType::COMPUTE[turn / n % 3];
                let width = *shape.last().unwrap();
                let x = random(&ctx, dtype(1), shape, lay, turn);
                let w = random(&ctx, dtype(2), &[width], [Lay::Contiguous, Lay::Stepped][turn % 2], 1);
                let b = random(&ctx, dtype(3), &[width], Lay::Padded, 2);
                let (xh, wh, bh) = (Host::of(&ctx, &x), Host::of(&ctx, &w), Host::of(&ctx, &b));
                let of = || if layer { layer_norm(&x).eps(EPS) } else { rms_norm(&x).eps(EPS) };
                let what = format!("layer {layer} {:?}", x.layout());
                let plain = of().run(&ctx).unwrap();
                assert_close(&ctx, &plain, &reference(&xh, layer, None, 0.0, None), 1.0, 4e-6, &what);
                let offset = if turn % 2 == 0 { 1.0 } else { 0.0 };
                let full = of().weight(&w).weight_offset(offset as f32).bias(&b);
                let want = reference(&xh, layer, Some(&wh), offset, Some(&bh));
                let mut y = output(&ctx, dtype(4), shape, Lay::OUTPUTS[turn % 4]);
                full.run_into(&ctx, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 1.0, 1e-5, &what);
                assert_gaps_kept(&ctx, &y);
                let y = full.output(DType::F32).run(&ctx).unwrap();
                assert_close(&ctx, &y, &want, 1.0, 1e-5, &what);
            }
        }
    }
}

#[test]
fn a_residual_is_added_to_and_normed_as_it_is_stored() {
    let ctx = Context::cpu().unwrap();
    for (n, lay) in Lay::ALL.into_iter().enumerate() {
        let x = random(&ctx, DType::COMPUTE[n % 3], &[3, 40], lay, n);
        let dtype = DType::COMPUTE[(n + 1) % 3];
        let before = random(&ctx, dtype, &[3, 40], Lay::Contiguous, n + 9);
        let mut stream = output(&ctx, dtype, &[3, 40], Lay::OUTPUTS[n % 4]);
        cast_into(&ctx, &before, &mut stream).unwrap();
        let (xh, rh) = (Host::of(&ctx, &x), Host::of(&ctx, &before));
        let y = rms_norm(&x).eps(EPS).output(DType::F32).run_residual(&ctx, &mut stream).unwrap();
        let total = Host::build(&[3, 40], |i| xh.at(i) + rh.at(i));
        assert_close(&ctx, &stream, &total, 1.0, 0.0, "residual");
        assert_gaps_kept(&ctx, &stream);
        let stored = Host::of(&ctx, &stream);
        let want = reference(&stored, false, None, 0.0, None);
        assert_close(&ctx, &y, &want, 1.0, 4e-6, "norm of the sum");
        // Into what is there: the same stream and the same norm.
        let mut again = output(&ctx, dtype, &[3, 40], Lay::OUTPUTS[(n + 1) % 4]);
        cast_into(&ctx, &before, &mut again).unwrap();
        let mut y = output(&ctx, DType::COMPUTE[(n + 2) % 3], &[3, 40], Lay::OUTPUTS[(n + 2) % 4]);
        rms_norm(&x).eps(EPS).run_residual_into(&ctx, &mut again, &mut y).unwrap();
        assert_eq!(Host::of(&ctx, &again), stored);
        assert_close(&ctx, &y, &want, 1.0, 4e-6, "norm of the sum into a tensor");
        assert_gaps_kept(&ctx, &again);
        assert_gaps_kept(&ctx, &y);
    }
}

#[test]
fn errors_of_norms_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let (x, w) = (ctx.tensor(&[0f32; 6], &[2, 3]).unwrap(), ctx.tensor(&[0f32; 2], &[2]).unwrap());
    assert_names(rms_norm(&x).weight(&w).run(&ctx), &["rms_norm", "[2, 3]", "weight", "[3]"]);
    assert_names(layer_norm(&x).bias(&w).run(&ctx), &["layer_norm", "bias", "[3]"]);
    let mut r = ctx.tensor(&[0f32; 3], &[3]).unwrap();
    assert_names(rms_norm(&x).run_residual(&ctx, &mut r), &["rms_norm", "residual", "[3]"]);
    let (mut r, mut y) = (ctx.tensor(&[0f32; 6], &[2, 3]).unwrap(), ctx.tensor(&[0f32; 6], &[3, 2]).unwrap());
    assert_names(rms_norm(&x).run_residual_into(&ctx, &mut r, &mut y), &["rms_norm", "y", "[3, 2]", "[2, 3]"]);
    assert_names(rms_norm(&ctx.tensor(&[0f32], &[]).unwrap()).run(&ctx), &["rms_norm", "dimension"]);
    let whole = ctx.tensor(&[1i32; 3], &[3]).unwrap();
    assert_names(rms_norm(&whole).run(&ctx), &["norm", "i32"]);
}
