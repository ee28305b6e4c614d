use sinew_ops::*;
use sinew_tensor::{DType, Tensor};

use crate::lay::*;

type Of = fn(&Tensor) -> Reduce<'_>;

/// The elements that each result is made of, in row-major order of the reduced dimensions.
fn groups(x: &Host, dims: &[usize], keepdim: bool) -> (Vec<usize>, Vec<Vec<f64>>) {
    let all = dims.is_empty();
    let gone = |d: &usize| all || dims.contains(d);
    let rank = x.shape.len();
    let kept: Vec<usize> = (0..rank).filter(|d| !gone(d)).collect();
    let lost: Vec<usize> = (0..rank).filter(gone).collect();
    let sizes = |dims: &[usize]| dims.iter().map(|&d| x.shape[d]).collect::<Vec<_>>();
    let rows = indices(&sizes(&kept)).map(|outer| {
        indices(&sizes(&lost))
            .map(|inner| {
                let mut index = vec![0; rank];
                kept.iter().zip(&outer).chain(lost.iter().zip(&inner)).for_each(|(&d, &i)| index[d] = i);
                x.at(&index)
            })
            .collect()
    });
    let rows = rows.collect();
    let shape = (0..rank).filter(|d| keepdim || !gone(d)).map(|d| if gone(&d) { 1 } else { x.shape[d] }).collect();
    (shape, rows)
}

fn first(row: &[f64], better: impl Fn(f64, f64) -> bool) -> f64 {
    (1..row.len()).fold(0, |best, i| if better(row[i], row[best]) { i } else { best }) as f64
}

type Reduction = (Of, fn(&[f64]) -> f64);
const ALL: [Reduction; 6] = [
    (sum, |row| row.iter().sum()),
    (mean, |row| row.iter().sum::<f64>() / row.len() as f64),
    (max, |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    (min, |row| row.iter().copied().fold(f64::INFINITY, f64::min)),
    (argmax, |row| first(row, |a, b| a > b)),
    (argmin, |row| first(row, |a, b| a < b)),
];

const SHAPES: [(&[usize], &[&[usize]]); 4] = [
    (&[3, 5, 7], &[&[], &[0], &[1], &[2], &[0, 2], &[2, 0, 1]]),
    (&[1300], &[&[], &[0]]),
    (&[], &[&[]]),
    (&[0, 4], &[&[1]]),
];

#[test]
fn reductions_go_over_any_dimensions_of_every_layout() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for (which, (of, f)) in ALL.into_iter().enumerate() {
        for (shape, all_dims) in SHAPES {
            for dims in all_dims {
                for lay in Lay::ALL {
                    turn += 1;
                    let x = random(&ctx, DType::COMPUTE[turn % 3], shape, lay, turn);
                    let keepdim = turn % 2 == 0;
                    let mut reduce = dims.iter().fold(of(&x), |reduce, &d| reduce.dim(d));
                    if keepdim {
                        reduce = reduce.keepdim();
                    }
                    let (shape, rows) = groups(&Host::of(&ctx, &x), dims, keepdim);
                    let values = rows.iter().map(|row| f(row)).collect();
                    let want = Host { shape: shape.clone(), values };
                    let what = format!("reduction {which} of {:?} over {dims:?}", x.layout());
                    let slack = if which < 2 { rows.first().map_or(0, Vec::len) as f64 * 1e-6 } else { 0.0 };
                    assert_close(&ctx, &reduce.run(&ctx).unwrap(), &want, 1.0, slack, &what);
                    let dtype =
                        if which < 4 { DType::COMPUTE[turn / 3 % 3] } else { [DType::U32, DType::I32][turn % 2] };
                    let mut y = output(&ctx, dtype, &shape, Lay::OUTPUTS[turn % 4]);
                    reduce.run_into(&ctx, &mut y).unwrap();
                    assert_close(&ctx, &y, &want, 1.0, slack, &what);
                    assert_gaps_kept(&ctx, &y);
                }
            }
        }
    }
}

#[test]
fn sums_of_integers_are_i64_and_nothing_sums_to_zero() {
    let ctx = Context::cpu().unwrap();
    let x = operand(&ctx, DType::U8, &[3, 100], Lay::Transposed, |i| (i % 256) as f64);
    let (_, rows) = groups(&Host::of(&ctx, &x), &[1], false);
    let y = sum(&x).dim(1).run(&ctx).unwrap();
    let want: Vec<i64> = rows.iter().map(|row| row.iter().sum::<f64>() as i64).collect();
    assert_eq!(y.to_vec::<i64>().unwrap(), want);
    let empty = ctx.tensor::<f32>(&[], &[2, 0]).unwrap();
    assert_eq!(sum(&empty).dim(1).run(&ctx).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert!(mean(&empty).run(&ctx).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
    let bools = gt(&ctx, &random(&ctx, DType::F32, &[4, 4], Lay::Stepped, 0), -5.0).unwrap();
    assert_eq!(sum(&bools).run(&ctx).unwrap().to_vec::<i64>().unwrap(), [16]);
}

#[test]
fn errors_of_reductions_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let x = ctx.tensor(&[0f32; 6], &[2, 3]).unwrap();
    assert_names(sum(&x).dim(2).run(&ctx), &["sum", "dimension 2", "[2, 3]"]);
    assert_names(sum(&x).dim(1).dim(1).run(&ctx), &["sum", "twice"]);
    let empty = ctx.tensor::<f32>(&[], &[2, 0]).unwrap();
    assert_names(max(&empty).dim(1).run(&ctx), &["amax", "no elements"]);
    let whole = ctx.tensor(&[1i32], &[1]).unwrap();
    assert_names(mean(&whole).run(&ctx), &["mean", "i32", "cast"]);
    let mut y = ctx.tensor(&[0f32; 3], &[3]).unwrap();
    assert_names(sum(&x).dim(1).run_into(&ctx, &mut y), &["sum", "[2]", "[3]"]);
}
