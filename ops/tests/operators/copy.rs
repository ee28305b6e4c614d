use sinew_ops::*;
use sinew_tensor::{DType, Tensor};

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

/// Values of `x` cast to `to`, in f64.
fn cast_values(ctx: &Context, x: &Tensor, to: DType) -> Vec<f64> {
    cast(ctx, x, to).unwrap().to_f64_vec(&**ctx.stream()).unwrap()
}

#[track_caller]
fn assert_same(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{what}: element {i} is {found}, not {expected}");
    }
}

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

#[test]
fn floats_round_to_floats_as_in_pytorch() {
    // `x.to(dtype)` of PyTorch 2.15, but that f8_e4m3 is NaN past 464, where that version saturates.
    let ctx = Context::cpu().unwrap();
    let x = [
        0.0,
        -0.0,
        0.3,
        1.5,
        -2.5,
        448.0,
        464.0,
        464.0625,
        -480.0,
        57344.0,
        61439.0,
        61440.0,
        65504.0,
        65519.0,
        65520.0,
        3.4e38,
        1e-8,
        0.000_976_562_5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let x = ctx.tensor(&x, &[x.len()]).unwrap();
    let tiny = 0.000_976_562_5;
    for (to, expected) in [
        (
            DType::F16,
            [
                0.0,
                -0.0,
                0.300_048_828_125,
                1.5,
                -2.5,
                448.0,
                464.0,
                464.0,
                -480.0,
                57344.0,
                61440.0,
                61440.0,
                65504.0,
                65504.0,
                INF,
                INF,
                0.0,
                tiny,
                INF,
                -INF,
                NAN,
            ],
        ),
        (
            DType::BF16,
            [
                0.0,
                -0.0,
                0.300_781_25,
                1.5,
                -2.5,
                448.0,
                464.0,
                464.0,
                -480.0,
                57344.0,
                61440.0,
                61440.0,
                65536.0,
                65536.0,
                65536.0,
                INF,
                1.001_171_767_711_639_4e-8,
                tiny,
                INF,
                -INF,
                NAN,
            ],
        ),
        (
            DType::F8E4M3,
            [
                0.0, -0.0, 0.3125, 1.5, -2.5, 448.0, 448.0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0.0, 0.0, NAN,
                NAN, NAN,
            ],
        ),
        (
            DType::F8E5M2,
            [
                0.0, -0.0, 0.3125, 1.5, -2.5, 448.0, 448.0, 448.0, -512.0, 57344.0, 57344.0, INF, INF, INF, INF, INF,
                0.0, tiny, INF, -INF, NAN,
            ],
        ),
    ] {
        assert_same(&cast_values(&ctx, &x, to), &expected, to.name());
        // By way of f64, and of rows that kernels take in lanes, nothing changes.
        let wide = cast(&ctx, &x, DType::F64).unwrap();
        assert_same(&cast_values(&ctx, &wide, to), &expected, &format!("f64 to {to}"));
        let many = x.unsqueeze(1).unwrap().broadcast_to(&[x.shape()[0], 67]).unwrap();
        let repeated: Vec<f64> = expected.iter().flat_map(|&y| [y; 67]).collect();
        assert_same(&cast_values(&ctx, &many, to), &repeated, &format!("many to {to}"));
    }
}

#[test]
fn subnormals_are_kept_and_widening_is_exact() {
    let ctx = Context::cpu().unwrap();
    let x = [1e-40f32, -1e-40, 2f32.powi(-24), 2f32.powi(-133), 6e-8];
    let x = ctx.tensor(&x.repeat(40), &[200]).unwrap();
    let f64s = |x: &Tensor| x.to_f64_vec(&**ctx.stream()).unwrap();
    for to in [DType::F16, DType::BF16] {
        let narrow = cast(&ctx, &x, to).unwrap();
        let expected: Vec<f64> = f64s(&x).into_iter().map(|x| to.round(x)).collect();
        assert!(expected.iter().any(|&y| y != 0.0));
        assert_same(&f64s(&narrow), &expected, to.name());
        for wider in [DType::F32, DType::F64] {
            assert_same(&cast_values(&ctx, &narrow, wider), &expected, &format!("{to} to {wider}"));
        }
    }
}

#[test]
fn floats_truncate_and_saturate_as_integers() {
    // Within the range as in PyTorch and NumPy; beyond it, where those are undefined, as Rust's `as`.
    let ctx = Context::cpu().unwrap();
    let x = [
        0.0f64, -0.0, 0.9, -0.9, 1.5, -1.5, 127.9, 128.0, -128.9, -129.0, 255.9, 256.0, 1e10, -1e10, 1e300, -INF, INF,
        NAN,
    ];
    let wide = ctx.tensor(&x, &[x.len()]).unwrap();
    for from in [DType::F64, DType::F32, DType::BF16] {
        let x = cast(&ctx, &wide, from).unwrap();
        let values = x.to_f64_vec(&**ctx.stream()).unwrap();
        let ends: [(DType, f64, f64); 6] = [
            (DType::U8, 0.0, 255.0),
            (DType::I8, -128.0, 127.0),
            (DType::I16, -32768.0, 32767.0),
            (DType::I32, -2147483648.0, 2147483647.0),
            (DType::U32, 0.0, 4294967295.0),
            (DType::I64, i64::MIN as f64, i64::MAX as f64),
        ];
        for (to, least, most) in ends {
            // Adding 0 turns -0 into 0.
            let integer = |x: &f64| if x.is_nan() { 0.0 } else { x.trunc().clamp(least, most) + 0.0 };
            let expected: Vec<f64> = values.iter().map(integer).collect();
            assert_same(&cast_values(&ctx, &x, to), &expected, &format!("{from} to {to}"));
        }
        let truths: Vec<f64> = values.iter().map(|&x| f64::from(u8::from(x != 0.0))).collect();
        assert_same(&cast_values(&ctx, &x, DType::Bool), &truths, &format!("{from} to bool"));
    }
}

#[test]
fn integers_wrap_and_round_as_in_pytorch() {
    // `x.to(dtype)` of PyTorch 2.15, but that f8_e4m3 is NaN past 464.
    let ctx = Context::cpu().unwrap();
    let x = [
        0,
        1,
        -1,
        127,
        128,
        255,
        256,
        300,
        -129,
        32768,
        65541,
        1i64 << 31,
        (1 << 31) - 1,
        -(1 << 31) - 1,
        (1 << 32) + 7,
        (1 << 53) + 1,
        i64::MAX,
        i64::MIN,
    ];
    let x = ctx.tensor(&x, &[x.len()]).unwrap();
    let integers: [(DType, [i64; 18]); 5] = [
        (
            DType::I32,
            [0, 1, -1, 127, 128, 255, 256, 300, -129, 32768, 65541, -2147483648, 2147483647, 2147483647, 7, 1, -1, 0],
        ),
        (DType::I16, [0, 1, -1, 127, 128, 255, 256, 300, -129, -32768, 5, 0, -1, -1, 7, 1, -1, 0]),
        (DType::I8, [0, 1, -1, 127, -128, -1, 0, 44, 127, 0, 5, 0, -1, -1, 7, 1, -1, 0]),
        (DType::U8, [0, 1, 255, 127, 128, 255, 0, 44, 127, 0, 5, 0, 255, 255, 7, 1, 255, 0]),
        (
            DType::U32,
            [
                0, 1, 4294967295, 127, 128, 255, 256, 300, 4294967167, 32768, 65541, 2147483648, 2147483647,
                2147483647, 7, 1, 4294967295, 0,
            ],
        ),
    ];
    for (to, expected) in integers {
        let narrow = cast(&ctx, &x, to).unwrap();
        assert_eq!(cast(&ctx, &narrow, DType::I64).unwrap().to_vec::<i64>().unwrap(), expected, "{to}");
    }
    let [a, b, c, d] = [2147483648.0, 4294967296.0, 9007199254740992.0, 9223372036854775808.0];
    let floats: [(DType, [f64; 18]); 5] = [
        (DType::F32, [0., 1., -1., 127., 128., 255., 256., 300., -129., 32768., 65541., a, a, -a, b, c, d, -d]),
        (
            DType::F64,
            [0., 1., -1., 127., 128., 255., 256., 300., -129., 32768., 65541., a, a - 1., -a - 1., b + 7., c, d, -d],
        ),
        (
            DType::F16,
            [0., 1., -1., 127., 128., 255., 256., 300., -129., 32768., INF, INF, INF, -INF, INF, INF, INF, -INF],
        ),
        (DType::BF16, [0., 1., -1., 127., 128., 255., 256., 300., -129., 32768., 65536., a, a, -a, b, c, d, -d]),
        (
            DType::F8E4M3,
            [0., 1., -1., 128., 128., 256., 256., 288., -128., NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN],
        ),
    ];
    for (to, expected) in floats {
        assert_same(&cast_values(&ctx, &x, to), &expected, to.name());
    }
    assert_same(&cast_values(&ctx, &x, DType::Bool), &[&[0.0][..], &[1.0; 17]].concat(), "bool");
    // One rounding: 2^40 + 2^16 is a tie, and one more is above it.
    let odd = ctx.tensor(&[(1i64 << 40) + (1 << 16) + 1, (1 << 24) + 1], &[2]).unwrap();
    assert_same(&cast_values(&ctx, &odd, DType::F32), &[1099511758848.0, 16777216.0], "i64 to f32");
}

#[test]
fn any_byte_but_zero_is_true_and_true_is_one() {
    let ctx = Context::cpu().unwrap();
    let x = Tensor::from_bytes(ctx.device(), &[0, 1, 2, 255], DType::Bool, &[4]).unwrap();
    for to in DType::ALL.into_iter().filter(|&to| to != DType::Bool) {
        assert_same(&cast_values(&ctx, &x, to), &[0.0, 1.0, 1.0, 1.0], to.name());
    }
    for from in DType::ALL {
        let x = cast(&ctx, &ctx.tensor(&[0f32, -0.0, 1.0], &[3]).unwrap(), from).unwrap();
        assert_eq!(cast(&ctx, &x, DType::Bool).unwrap().to_bools().unwrap(), [false, false, true], "{from}");
    }
}

#[test]
fn a_cast_to_its_own_dtype_keeps_every_byte() {
    let ctx = Context::cpu().unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    for dtype in DType::ALL {
        let x = Tensor::from_bytes(ctx.device(), &bytes, dtype, &[256 / dtype.size()]).unwrap();
        assert_eq!(*cast(&ctx, &x, dtype).unwrap().to_bytes().unwrap(), bytes, "{dtype}");
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
