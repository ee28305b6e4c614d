use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

#[test]
fn casts_take_every_layout_and_round_once() {
    let ctx = Context::cpu().unwrap();
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64];
    for from in dtypes {
        for to in dtypes {
            for (n, lay) in Lay::ALL.into_iter().enumerate() {
                for shape in [&[3, 5][..], &[2, 3, 19], &[], &[0, 2]] {
                    let x = operand(&ctx, from, shape, lay, |i| 100.0 * number(n, i));
                    let xh = Host::of(&ctx, &x);
                    let want = Host::build(shape, |i| to.round(xh.at(i)));
                    let y = cast(&ctx, &x, to).unwrap();
                    assert!(y.layout().is_contiguous());
                    assert_close(&ctx, &y, &want, 0.0, 0.0, &format!("{from} to {to}"));
                    let mut y = output(&ctx, to, shape, Lay::OUTPUTS[n % 4]);
                    cast_into(&ctx, &x, &mut y).unwrap();
                    assert_close(&ctx, &y, &want, 0.0, 0.0, &format!("{from} into {to}"));
                    assert_gaps_kept(&ctx, &y);
                }
            }
        }
    }
}

#[test]
fn what_is_contiguous_is_not_copied() {
    let ctx = Context::cpu().unwrap();
    let x = random(&ctx, DType::F32, &[3, 4], Lay::Contiguous, 0);
    let same = to_contiguous(&ctx, &x).unwrap();
    assert_eq!(same.view().host_ptr().unwrap(), x.view().host_ptr().unwrap());
    let turned = x.transpose(0, 1).unwrap();
    let copy = to_contiguous(&ctx, &turned).unwrap();
    assert!(copy.layout().is_contiguous());
    assert_eq!(copy.to_vec::<f32>().unwrap(), turned.to_vec::<f32>().unwrap());
}
