use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

#[test]
fn softmax_and_its_logarithm_take_every_layout_and_dtype() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for shape in [&[3, 17][..], &[5], &[2, 3, 64], &[0, 4], &[4, 1], &[2, 1300]] {
        for lay in Lay::ALL {
            turn += 1;
            let x = random(&ctx, DType::COMPUTE[turn % 3], shape, lay, turn);
            let width = *shape.last().unwrap();
            let (mut values, mut logs) = (Vec::new(), Vec::new());
            for row in Host::of(&ctx, &x).values.chunks(width) {
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                values.extend(row.iter().map(|x| x.exp() / sum));
                logs.extend(row.iter().map(|x| x - sum.ln()));
            }
            let [values, logs] = [values, logs].map(|values| Host { shape: shape.to_vec(), values });
            assert_close(&ctx, &softmax(&ctx, &x).unwrap(), &values, 1.0, 5e-7, "softmax");
            assert_close(&ctx, &log_softmax(&ctx, &x).unwrap(), &logs, 1.0, 5e-6, "log_softmax");
            let out = || output(&ctx, DType::COMPUTE[turn / 3 % 3], shape, Lay::OUTPUTS[turn % 4]);
            let (mut y, mut log) = (out(), out());
            softmax_into(&ctx, &x, &mut y).unwrap();
            log_softmax_into(&ctx, &x, &mut log).unwrap();
            assert_close(&ctx, &y, &values, 1.0, 5e-7, "softmax into");
            assert_close(&ctx, &log, &logs, 1.0, 5e-6, "log_softmax into");
            [y, log].iter().for_each(|y| assert_gaps_kept(&ctx, y));
        }
    }
}

#[test]
fn rows_that_are_masked_altogether_give_zeros() {
    let ctx = Context::cpu().unwrap();
    let x = operand(&ctx, DType::F32, &[2, 3], Lay::Padded, |i| if i < 3 { f64::NEG_INFINITY } else { 1.0 });
    let third = 1.0 / 3.0;
    let want = Host { shape: vec![2, 3], values: vec![0.0, 0.0, 0.0, third, third, third] };
    assert_close(&ctx, &softmax(&ctx, &x).unwrap(), &want, 4.0, 0.0, "softmax");
}

#[test]
fn errors_of_softmax_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    assert_names(softmax(&ctx, &ctx.tensor(&[0f32], &[]).unwrap()), &["softmax", "[]"]);
    assert_names(softmax(&ctx, &ctx.tensor(&[0i32], &[1]).unwrap()), &["softmax", "i32"]);
}
