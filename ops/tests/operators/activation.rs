use sinew_ops::layers::Activation;
use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

#[test]
fn activations_plain_and_gated_take_every_layout_and_dtype() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for act in Activation::ALL {
        for shape in [&[3, 34][..], &[2, 3, 6], &[2], &[0, 4]] {
            for lay in Lay::ALL {
                turn += 1;
                let dtype = DType::COMPUTE[turn % 3];
                let mut half = shape.to_vec();
                *half.last_mut().unwrap() /= 2;
                let (x, up) =
                    (random(&ctx, dtype, shape, lay, turn), random(&ctx, dtype, shape, Lay::Padded, turn + 1));
                let (xh, uh) = (Host::of(&ctx, &x), Host::of(&ctx, &up));
                let plain = Host::build(shape, |i| act.reference(xh.at(i)));
                let product = Host::build(shape, |i| act.reference(xh.at(i)) * act.factor_reference(uh.at(i)));
                let halves = Host::build(&half, |i| {
                    let mut other = i.to_vec();
                    *other.last_mut().unwrap() += half[half.len() - 1];
                    act.reference(xh.at(i)) * act.factor_reference(xh.at(&other))
                });
                let close = |y: &sinew_tensor::Tensor, want: &Host, what| {
                    assert_close(&ctx, y, want, 4.0, 1e-6, &format!("{act} {what}"))
                };
                close(&activation(&ctx, act, &x).unwrap(), &plain, "plain");
                close(&gated(&ctx, act, &x, &up).unwrap(), &product, "gated");
                close(&gated_halves(&ctx, act, &x).unwrap(), &halves, "halves");
                let out = |shape: &[usize]| output(&ctx, DType::COMPUTE[turn / 3 % 3], shape, Lay::OUTPUTS[turn % 4]);
                let (mut a, mut b, mut c) = (out(shape), out(shape), out(&half));
                activation_into(&ctx, act, &x, &mut a).unwrap();
                gated_into(&ctx, act, &x, &up, &mut b).unwrap();
                gated_halves_into(&ctx, act, &x, &mut c).unwrap();
                close(&a, &plain, "plain into");
                close(&b, &product, "gated into");
                close(&c, &halves, "halves into");
                [a, b, c].iter().for_each(|y| assert_gaps_kept(&ctx, y));
            }
        }
    }
}

#[test]
fn named_activations_are_those_of_their_names() {
    let ctx = Context::cpu().unwrap();
    let x = random(&ctx, DType::F32, &[40], Lay::Contiguous, 3);
    let named = [silu, gelu, gelu_tanh, quick_gelu, relu, relu2];
    for (act, run) in Activation::ALL.into_iter().zip(named) {
        let values = |y: Result<sinew_tensor::Tensor>| y.unwrap().to_vec::<f32>().unwrap();
        assert_eq!(values(run(&ctx, &x)), values(activation(&ctx, act, &x)), "{act}");
    }
}

#[test]
fn errors_of_gates_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let (x, y) = (ctx.tensor(&[0f32; 3], &[3]).unwrap(), ctx.tensor(&[0f32; 2], &[2]).unwrap());
    assert_names(gated(&ctx, Activation::Silu, &x, &y), &["gated", "[3]", "[2]"]);
    assert_names(gated_halves(&ctx, Activation::Silu, &x), &["gated_halves", "[3]", "even"]);
    let narrow = cast(&ctx, &x, DType::BF16).unwrap();
    assert_names(gated(&ctx, Activation::Silu, &x, &narrow), &["gated", "f32", "bf16", "cast"]);
}
