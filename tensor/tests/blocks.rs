//! Block-quantized weights: what codes stand for, and what formats there can be.

use sinew_tensor::{BlockFormat, BlockValues, DType, Error};

#[test]
fn formats_that_make_no_sense_are_refused() {
    let (int4, fp8) = (BlockValues::Int4, BlockValues::F8E4M3);
    let wrong = [(int4, 0, DType::F16, false), (int4, 32, DType::I8, false), (fp8, 32, DType::F16, true)];
    for (values, group, scale, zero_points) in wrong {
        assert!(matches!(BlockFormat::new(values, group, scale, zero_points), Err(Error::Shape { .. })));
    }
}

#[test]
fn codes_of_floats_stand_for_their_values() {
    let fp4: Vec<f32> = (0..16).map(|code| BlockValues::F4E2M1.value(code)).collect();
    let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    assert_eq!(fp4[..8], positive);
    assert_eq!(fp4[8..], positive.map(|x| -x));
    // OCP's table of E4M3: the largest, the least normal, the least subnormal, and the one NaN of each sign.
    let of = |code| BlockValues::F8E4M3.value(code);
    assert_eq!([of(0x7e), of(0xfe), of(0x08), of(0x01)], [448.0, -448.0, 0.015625, 0.001953125]);
    assert!(of(0x7f).is_nan() && of(0xff).is_nan());
    assert_eq!(
        [0x7b, 0x01, 0x7c].map(|code| BlockValues::F8E5M2.value(code)),
        [57344.0, 2f32.powi(-16), f32::INFINITY]
    );
}

#[test]
fn every_value_has_its_own_code_and_what_lies_between_that_of_the_nearest() {
    for values in BlockValues::ALL {
        let codes = 0..=if values.bits() == 4 { 0xfu8 } else { 0xff };
        let finite: Vec<u8> = codes.filter(|&code| values.value(code).is_finite()).collect();
        for &code in &finite {
            let x = values.value(code);
            assert_eq!(values.value(values.code(x)).to_bits(), x.to_bits(), "{values:?} {code:#x}");
        }
        let mut ordered: Vec<f32> = finite.iter().map(|&code| values.value(code)).collect();
        ordered.sort_by(f32::total_cmp);
        for pair in ordered.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let quarter = |part: f32| values.value(values.code(a + (b - a) * part));
            assert_eq!([quarter(0.25), quarter(0.75)], [a, b], "{values:?}");
            // In the middle it is the one whose code is even: neighbours' codes differ by one.
            let even = if values.code(a) % 2 == 0 { a } else { b };
            assert_eq!(quarter(0.5), even, "{values:?} between {a} and {b}");
        }
        let largest = values.extreme().abs();
        assert_eq!(values.value(values.code(-2.0 * largest)), -largest, "{values:?}");
        assert_eq!(Some(&values.value(values.code(2.0 * largest))), ordered.last(), "{values:?}");
    }
}
