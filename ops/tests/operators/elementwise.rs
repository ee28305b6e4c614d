use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

type Into = fn(&Context, &sinew_tensor::Tensor, Operand<'_>, &mut sinew_tensor::Tensor) -> Result<()>;
type Of = fn(&Context, &sinew_tensor::Tensor, Operand<'_>) -> Result<sinew_tensor::Tensor>;

/// Closures, because the lifetime of an [`Operand`] is not late bound in the functions themselves.
macro_rules! both {
    ($of:ident, $into:ident, $f:expr, $compares:expr) => {
        (|ctx, a, b| $of(ctx, a, b), |ctx, a, b, y| $into(ctx, a, b, y), $f, $compares)
    };
}

/// The functions of two operands with their definitions and whether they compare.
type Binary = (Of, Into, fn(f64, f64) -> f64, bool);

fn binaries() -> Vec<Binary> {
    fn truth(b: bool) -> f64 {
        f64::from(u8::from(b))
    }
    vec![
        both!(add, add_into, |a, b| a + b, false),
        both!(sub, sub_into, |a, b| a - b, false),
        both!(mul, mul_into, |a, b| a * b, false),
        both!(div, div_into, |a, b| a / b, false),
        both!(maximum, maximum_into, f64::max, false),
        both!(minimum, minimum_into, f64::min, false),
        both!(eq, eq_into, |a, b| truth(a == b), true),
        both!(ne, ne_into, |a, b| truth(a != b), true),
        both!(lt, lt_into, |a, b| truth(a < b), true),
        both!(le, le_into, |a, b| truth(a <= b), true),
        both!(gt, gt_into, |a, b| truth(a > b), true),
        both!(ge, ge_into, |a, b| truth(a >= b), true),
    ]
}

const SHAPES: [(&[usize], &[usize]); 8] = [
    (&[3, 5], &[3, 5]),
    (&[2, 1, 7], &[4, 1]),
    (&[1, 17], &[3, 17]),
    (&[], &[4]),
    (&[], &[]),
    (&[0, 3], &[1, 3]),
    (&[2, 3, 1, 5], &[3, 4, 1]),
    (&[130], &[1]),
];

#[test]
fn functions_of_two_broadcast_and_take_every_layout_and_mixture_of_dtypes() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for (function, (run, run_into, f, compares)) in binaries().into_iter().enumerate() {
        for (a_shape, b_shape) in SHAPES {
            for lay in Lay::ALL {
                turn += 1;
                let [a_dtype, b_dtype] = [DType::COMPUTE[turn % 3], DType::COMPUTE[turn / 3 % 3]];
                // Multiples of 1/4, so that some are equal.
                let coarse = |seed| move |i| (4.0 * number(seed, i)).round() / 4.0;
                let a = operand(&ctx, a_dtype, a_shape, lay, coarse(turn));
                let b = operand(&ctx, b_dtype, b_shape, Lay::ALL[turn % 5], coarse(turn + 1));
                let y = run(&ctx, &a, (&b).into()).unwrap();
                let (ah, bh) = (Host::of(&ctx, &a), Host::of(&ctx, &b));
                let want = Host::build(y.shape(), |i| f(ah.at(i), bh.at(i)));
                assert_close(&ctx, &y, &want, 1.0, 0.0, &format!("function {function}, {lay:?}"));
                let common = if a_dtype == b_dtype { a_dtype } else { DType::F32 };
                assert_eq!(y.dtype(), if compares { DType::Bool } else { common });
                if compares {
                    continue;
                }
                let mut out = output(&ctx, DType::COMPUTE[turn / 9 % 3], y.shape(), Lay::OUTPUTS[turn % 4]);
                run_into(&ctx, &a, (&b).into(), &mut out).unwrap();
                assert_close(&ctx, &out, &want, 1.0, 0.0, &format!("function {function} into, {lay:?}"));
                assert_gaps_kept(&ctx, &out);
            }
        }
    }
}

#[test]
fn a_number_stands_for_a_tensor_and_is_not_rounded_to_16_bits() {
    let ctx = Context::cpu().unwrap();
    for (run, _, f, _) in binaries() {
        for dtype in DType::COMPUTE {
            let x = random(&ctx, dtype, &[3, 19], Lay::Transposed, 5);
            let scalar = 0.1f32;
            let xh = Host::of(&ctx, &x);
            let want = Host::build(x.shape(), |i| f(xh.at(i), f64::from(scalar)));
            assert_close(&ctx, &run(&ctx, &x, 0.1.into()).unwrap(), &want, 1.0, 0.0, "scalar");
        }
    }
    let x = ctx.tensor(&[3i64, -4], &[2]).unwrap();
    assert_eq!(add(&ctx, &x, 5.0).unwrap().to_vec::<i64>().unwrap(), [8, 1]);
    assert_names(add(&ctx, &x, 0.5), &["add", "0.5", "i64", "cast"]);
}

#[test]
fn powers_are_right_to_a_few_ulps() {
    let ctx = Context::cpu().unwrap();
    let a = operand(&ctx, DType::F32, &[5, 7], Lay::Stepped, |i| 0.1 + i as f64 / 7.0);
    let b = random(&ctx, DType::BF16, &[7], Lay::Padded, 3);
    let (ah, bh) = (Host::of(&ctx, &a), Host::of(&ctx, &b));
    let want = Host::build(&[5, 7], |i| ah.at(i).powf(bh.at(i)));
    assert_close(&ctx, &pow(&ctx, &a, &b).unwrap(), &want, 4.0, 0.0, "pow");
    let mut y = output(&ctx, DType::F16, &[5, 7], Lay::Transposed);
    pow_into(&ctx, &a, &b, &mut y).unwrap();
    assert_close(&ctx, &y, &want, 1.0, 0.0, "pow into");
}

#[test]
fn integers_are_computed_as_they_are() {
    let ctx = Context::cpu().unwrap();
    for dtype in [DType::I32, DType::I64, DType::U8, DType::F64] {
        let a = operand(&ctx, dtype, &[4, 6], Lay::Transposed, |i| i as f64);
        let b = operand(&ctx, dtype, &[6], Lay::Stepped, |i| (i % 3) as f64);
        let (ah, bh) = (Host::of(&ctx, &a), Host::of(&ctx, &b));
        let want = Host::build(&[4, 6], |i| ah.at(i) * bh.at(i));
        assert_close(&ctx, &mul(&ctx, &a, &b).unwrap(), &want, 0.0, 0.0, dtype.name());
    }
}

#[test]
fn functions_of_one_take_every_layout_and_dtype() {
    type One = fn(&Context, &sinew_tensor::Tensor) -> Result<sinew_tensor::Tensor>;
    type OneInto = fn(&Context, &sinew_tensor::Tensor, &mut sinew_tensor::Tensor) -> Result<()>;
    let ctx = Context::cpu().unwrap();
    type Unary = (One, OneInto, fn(f64) -> f64);
    let all: [Unary; 16] = [
        (neg, neg_into, |x| -x),
        (abs, abs_into, f64::abs),
        (sign, sign_into, f64::signum),
        (square, square_into, |x| x * x),
        (sqrt, sqrt_into, f64::sqrt),
        (rsqrt, rsqrt_into, |x| 1.0 / x.sqrt()),
        (reciprocal, reciprocal_into, |x| 1.0 / x),
        (exp, exp_into, f64::exp),
        (log, log_into, f64::ln),
        (sin, sin_into, f64::sin),
        (cos, cos_into, f64::cos),
        (tanh, tanh_into, f64::tanh),
        (floor, floor_into, f64::floor),
        (ceil, ceil_into, f64::ceil),
        (round, round_into, f64::round_ties_even),
        (logical_not, logical_not_into, |x| f64::from(u8::from(x == 0.0))),
    ];
    for (which, (run, run_into, f)) in all.into_iter().enumerate() {
        for (turn, shape) in [&[5, 3][..], &[], &[0], &[2, 3, 33]].into_iter().enumerate() {
            for (n, lay) in Lay::ALL.into_iter().enumerate() {
                let x = random(&ctx, DType::COMPUTE[(turn + n) % 3], shape, lay, which);
                let xh = Host::of(&ctx, &x);
                let want = Host::build(shape, |i| f(xh.at(i)));
                let y = run(&ctx, &x).unwrap();
                assert_close(&ctx, &y, &want, 4.0, 0.0, &format!("function {which}"));
                let dtype = if y.dtype() == DType::Bool { continue } else { DType::COMPUTE[n % 3] };
                let mut y = output(&ctx, dtype, shape, Lay::OUTPUTS[n % 4]);
                run_into(&ctx, &x, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 4.0, 0.0, &format!("function {which} into"));
                assert_gaps_kept(&ctx, &y);
            }
        }
    }
}

#[test]
fn where_chooses_elements_of_any_dtype_with_broadcasting() {
    let ctx = Context::cpu().unwrap();
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::U8] {
        for (n, lay) in Lay::ALL.into_iter().enumerate() {
            let x = random(&ctx, DType::F32, &[3, 1, 5], lay, n);
            let condition = gt(&ctx, &x, 0.0).unwrap();
            let a = operand(&ctx, dtype, &[4, 5], lay, |i| i as f64);
            let b = operand(&ctx, dtype, &[1], Lay::Padded, |_| 9.0);
            let (xh, ah) = (Host::of(&ctx, &x), Host::of(&ctx, &a));
            let want = Host::build(&[3, 4, 5], |i| if xh.at(i) > 0.0 { ah.at(i) } else { 9.0 });
            assert_close(&ctx, &where_(&ctx, &condition, &a, &b).unwrap(), &want, 0.0, 0.0, "where");
            let mut y = output(&ctx, dtype, &[3, 4, 5], Lay::OUTPUTS[n % 4]);
            where_into(&ctx, &condition, &a, &b, &mut y).unwrap();
            assert_close(&ctx, &y, &want, 0.0, 0.0, "where into");
            assert_gaps_kept(&ctx, &y);
        }
    }
}

#[test]
fn errors_name_operator_operands_and_what_would_work() {
    let ctx = Context::cpu().unwrap();
    let (a, b) = (ctx.tensor(&[0f32; 6], &[2, 3]).unwrap(), ctx.tensor(&[0f32; 4], &[4]).unwrap());
    assert_names(add(&ctx, &a, &b), &["add", "[2, 3]", "[4]", "f32", "cpu", "strides", "broadcast"]);
    let wide = ctx.tensor(&[0f64; 3], &[3]).unwrap();
    assert_names(mul(&ctx, &a, &wide), &["mul", "f32", "f64", "cast"]);
    let mut y = ctx.tensor(&[0f32; 3], &[3]).unwrap();
    assert_names(exp_into(&ctx, &a, &mut y), &["exp", "[2, 3]", "[3]"]);
    let mut float = ctx.tensor(&[0f32; 6], &[2, 3]).unwrap();
    assert_names(lt_into(&ctx, &a, 0.0, &mut float), &["lt", "bool"]);
    assert_names(where_(&ctx, &a, &a, &a), &["where", "bool"]);
    let shared = y.clone();
    assert_names(exp_into(&ctx, &wide, &mut y), &["shared"]);
    drop(shared);
    let whole = ctx.tensor(&[0i32; 3], &[3]).unwrap();
    assert_names(div(&ctx, &whole, &whole), &["div", "i32", "cast"]);
}
