//! Block-quantized weights: every element is found again, whatever the groups and the parity of the rows.

use half::f16;
use proptest::prelude::*;
use sinew_memory::Cpu;
use sinew_tensor::{BlockElement, BlockFormat, BlockValues, BlockWeight, DType, Error, Tensor, pack_int4, unpack_int4};

fn format(bits: usize, group: usize, zero_points: bool) -> BlockFormat {
    let values = if bits == 4 { BlockValues::Int4 } else { BlockValues::Int8 };
    BlockFormat::new(values, group, DType::F16, zero_points).unwrap()
}

/// Element `i` of a tensor of integers from `low` on, all different as long as their range allows.
fn integers(count: usize, low: i64, range: usize) -> Vec<i8> {
    (0..count).map(|i| (low + (i * 7 % range) as i64) as i8).collect()
}

proptest! {
    #[test]
    fn packing_and_unpacking_gives_the_values_back(values in prop::collection::vec(-8i8..8, 0..70)) {
        let packed = pack_int4(&values).unwrap();
        prop_assert_eq!(packed.len(), values.len().div_ceil(2));
        prop_assert_eq!(&unpack_int4(&packed, values.len()).unwrap(), &values);
        if values.len() % 2 == 1 {
            prop_assert_eq!(packed[packed.len() - 1] >> 4, 0);
        }
    }

    #[test]
    fn unpacking_and_packing_gives_the_bytes_back(packed in prop::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(pack_int4(&unpack_int4(&packed, 2 * packed.len()).unwrap()).unwrap(), packed);
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_its_place(at in 0usize..9, value in prop_oneof![-128i8..=-9, 8i8..=127]) {
        let mut values = [0i8; 9];
        values[at] = value;
        let error = pack_int4(&values).unwrap_err().to_string();
        prop_assert_eq!(error, format!("pack_int4: {value} at {at} is outside -8..=7"));
    }

    #[test]
    fn every_element_is_found_with_its_scale_and_zero_point(
        bits in prop_oneof![Just(4usize), Just(8)],
        n in 0usize..5,
        k in 0usize..40,
        group in 1usize..50,
        zero_points: bool,
        strided: bool,
    ) {
        let layout = format(bits, group, zero_points).layout(n, k).unwrap();
        let groups = layout.groups();
        prop_assert!(groups * group >= k && (k == 0 || (groups - 1) * group < k));
        let q = if bits == 4 { integers(n * k, -8, 16) } else { integers(n * k, -128, 256) };
        let scales: Vec<f16> = (0..n * groups).map(|i| f16::from_f64(0.25 * i as f64)).collect();
        let zeros = integers(n * groups, -100, 200);

        let cpu = Cpu::get();
        let packed = layout.pack(&q).unwrap();
        prop_assert_eq!(packed.len(), layout.values_bytes());
        let values = Tensor::from_slice(&cpu, &packed, &layout.values_shape()).unwrap();
        let mut scale = Tensor::from_slice(&cpu, &scales, &layout.scales_shape()).unwrap();
        let zero = zero_points.then(|| Tensor::from_slice(&cpu, &zeros, &layout.scales_shape()).unwrap());
        let bytes = [Some(&values), Some(&scale), zero.as_ref()].into_iter().flatten().map(|t| t.buffer().len());
        prop_assert_eq!(layout.bytes(), bytes.sum::<usize>());
        if strided {
            // Scales stored as [groups, n], as GPTQ and AWQ do.
            let stream = cpu.clone().stream().unwrap();
            scale = scale.t().unwrap().to_device(&*stream, &*stream).unwrap().t().unwrap();
        }

        let weight = BlockWeight::new(layout, values, scale, zero).unwrap();
        for (row, column) in (0..n).flat_map(|row| (0..k).map(move |column| (row, column))) {
            let at = row * groups + column / group;
            let zero = if zero_points { zeros[at] } else { 0 };
            let expected = BlockElement { q: q[row * k + column].into(), scale: scales[at].to_f64(), zero };
            prop_assert_eq!(weight.element(row, column).unwrap(), expected);
            let index = layout.index(row, column).unwrap();
            prop_assert_eq!(index.group, at);
            let bits_there = packed[index.byte] >> index.shift;
            let mask = if bits == 4 { 0xf } else { 0xff };
            prop_assert_eq!(bits_there & mask, q[row * k + column] as u8 & mask);
        }
        prop_assert!(weight.element(n, 0).is_err() && weight.element(0, k).is_err());
        prop_assert_eq!((layout.index(n, 0), layout.index(0, k)), (None, None));
    }
}

#[test]
fn rows_of_odd_length_start_on_a_byte_of_their_own() {
    let layout = format(4, 4, false).layout(2, 3).unwrap();
    assert_eq!(layout.pack(&[1, 2, 3, 4, 5, 6]).unwrap(), [0x21, 0x03, 0x54, 0x06]);
    assert_eq!((layout.values_shape(), layout.scales_shape(), layout.zeros_shape()), ([2, 2], [2, 1], None));
    assert_eq!(layout.bytes(), 4 + 2 * 2);
    // What lies past the last value of a row is nobody's.
    assert_eq!(unpack_int4(&[0x21, 0xf3], 3).unwrap(), [1, 2, 3]);
}

#[test]
fn every_float_can_be_a_scale() {
    let cpu = Cpu::get();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let layout = BlockFormat::new(BlockValues::Int8, 2, dtype, false).unwrap().layout(1, 2).unwrap();
        let one = match dtype {
            DType::F64 => 1f64.to_le_bytes().to_vec(),
            DType::F32 => 1f32.to_le_bytes().to_vec(),
            DType::F16 => vec![0x00, 0x3c],
            DType::BF16 => vec![0x80, 0x3f],
            DType::F8E4M3 => vec![0x38],
            _ => vec![0x3c],
        };
        let scales = Tensor::from_bytes(&cpu, &one, dtype, &[1, 1]).unwrap();
        let values = Tensor::from_slice(&cpu, &[0x80u8, 0x7f], &[1, 2]).unwrap();
        let weight = BlockWeight::new(layout, values, scales, None).unwrap();
        assert_eq!(weight.element(0, 0).unwrap(), BlockElement { q: -128.0, scale: 1.0, zero: 0 }, "{dtype}");
    }
}

#[test]
fn formats_and_sizes_that_make_no_sense_are_refused() {
    let (int4, fp8) = (BlockValues::Int4, BlockValues::F8E4M3);
    let wrong = [(int4, 0, DType::F16, false), (int4, 32, DType::I8, false), (fp8, 32, DType::F16, true)];
    for (values, group, scale, zero_points) in wrong {
        assert!(matches!(BlockFormat::new(values, group, scale, zero_points), Err(Error::Shape { .. })));
    }
    let floats = BlockFormat::new(fp8, 32, DType::F16, false).unwrap().layout(1, 2).unwrap();
    assert!(floats.pack(&[1, 2]).is_err());
    for (n, k) in [(usize::MAX, 2), (2, usize::MAX), (1 << 40, 1 << 30), (0, usize::MAX)] {
        assert!(matches!(format(4, 1, true).layout(n, k), Err(Error::Shape { .. })), "[{n}, {k}]");
    }
    // Each part can be counted, all of them cannot.
    let wide = BlockFormat::new(BlockValues::Int8, 1, DType::F64, true).unwrap();
    assert!(wide.layout(1, isize::MAX as usize / 8).is_err());
    assert!(wide.layout(1, isize::MAX as usize / 16).is_ok());
    let layout = format(4, usize::MAX, true).layout(3, 7).unwrap();
    assert_eq!((layout.groups(), layout.bytes()), (1, 3 * 4 + 3 * 2 + 3));
    assert!(layout.pack(&[0; 20]).is_err());
    assert!(unpack_int4(&[0, 0], 5).is_err() && unpack_int4(&[0, 0], 2).is_err());
    assert_eq!(unpack_int4(&[], 0).unwrap(), Vec::<i8>::new());
}

#[test]
fn tensors_that_do_not_fit_the_format_are_refused() {
    let cpu = Cpu::get();
    let zeros = |dtype, shape: [usize; 2]| Tensor::zeros(&cpu, dtype, &shape).unwrap();
    let (u8, f16, i8) = (DType::U8, DType::F16, DType::I8);
    let with = format(4, 4, true).layout(2, 9).unwrap();
    let without = format(4, 4, false).layout(2, 9).unwrap();
    let ok = || (zeros(u8, [2, 5]), zeros(f16, [2, 3]), zeros(i8, [2, 3]));
    let (values, scales, zero) = ok();
    assert!(BlockWeight::new(with, values.clone(), scales.clone(), Some(zero.clone())).is_ok());
    assert!(BlockWeight::new(without, values.clone(), scales.clone(), None).is_ok());

    let shape = |result: Result<BlockWeight, Error>| matches!(result, Err(Error::Shape { .. }));
    let dtype = |result: Result<BlockWeight, Error>| matches!(result, Err(Error::DType { .. }));
    assert!(shape(BlockWeight::new(with, values.clone(), scales.clone(), None)));
    assert!(shape(BlockWeight::new(without, values.clone(), scales.clone(), Some(zero.clone()))));
    assert!(shape(BlockWeight::new(without, zeros(u8, [2, 4]), scales.clone(), None)));
    assert!(shape(BlockWeight::new(without, values.clone(), zeros(f16, [3, 2]), None)));
    assert!(shape(BlockWeight::new(with, values.clone(), scales.clone(), Some(zeros(i8, [2, 2])))));
    assert!(dtype(BlockWeight::new(without, zeros(i8, [2, 5]), scales.clone(), None)));
    assert!(dtype(BlockWeight::new(without, values.clone(), zeros(DType::F32, [2, 3]), None)));
    assert!(dtype(BlockWeight::new(with, values, scales, Some(zeros(u8, [2, 3])))));
    drop(zero);
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
