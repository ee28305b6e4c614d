use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

#[test]
fn products_take_every_layout_and_broadcast_batches() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for (a_shape, b_shape) in [
        (&[3, 7][..], &[7, 5][..]),
        (&[2, 3, 7], &[7, 5]),
        (&[2, 1, 3, 4], &[3, 4, 17]),
        (&[1, 33], &[33, 1]),
        (&[2, 0], &[0, 3]),
        (&[0, 2], &[2, 3]),
    ] {
        for a_lay in Lay::ALL {
            for b_lay in Lay::ALL {
                turn += 1;
                let (a_dtype, b_dtype) = (DType::COMPUTE[turn % 3], DType::COMPUTE[turn / 3 % 3]);
                let (a, b) = (random(&ctx, a_dtype, a_shape, a_lay, turn), random(&ctx, b_dtype, b_shape, b_lay, 1));
                let (ah, bh) = (Host::of(&ctx, &a), Host::of(&ctx, &b));
                let k = *a_shape.last().unwrap();
                let y = matmul(&a, &b).run(&ctx).unwrap();
                let want = Host::build(y.shape(), |i| {
                    let (batch, [m, n]) = (&i[..i.len() - 2], [i[i.len() - 2], i[i.len() - 1]]);
                    let at = |x: &Host, r, c| {
                        let index = [batch, &[r, c]].concat();
                        let skip = index.len() - x.shape.len();
                        x.at(&index[skip..])
                    };
                    (0..k).map(|k| at(&ah, m, k) * at(&bh, k, n)).sum()
                });
                let slack = 4.0 * k as f64 * 2e-6;
                assert_close(&ctx, &y, &want, 1.0, slack, &format!("{:?} x {:?}", a.layout(), b.layout()));
                let mut y = output(&ctx, DType::COMPUTE[turn / 9 % 3], &want.shape, Lay::OUTPUTS[turn % 4]);
                matmul(&a, &b).run_into(&ctx, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 1.0, slack, "into");
                assert_gaps_kept(&ctx, &y);
            }
        }
    }
}

#[test]
fn errors_of_products_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let zeros = |shape: &[usize]| random(&ctx, DType::F32, shape, Lay::Contiguous, 0);
    assert_names(matmul(&zeros(&[2, 3]), &zeros(&[4, 5])).run(&ctx), &["matmul", "[2, 3]", "4 rows of 5"]);
    let wide = cast(&ctx, &zeros(&[3, 5]), DType::F64).unwrap();
    assert_names(matmul(&zeros(&[2, 3]), &wide).run(&ctx), &["matmul", "b is f64", "[3, 5]", "cast(ctx, b"]);
    assert_names(matmul(&zeros(&[2, 2, 3]), &zeros(&[3, 3, 5])).run(&ctx), &["matmul", "broadcast"]);
}
