mod fixtures;
mod modules;
mod unread;
mod variants;

use std::ops::Range;
use std::path::PathBuf;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use sinew_ops::layers::{Codes, Encoding, WeightRows};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::*;
use crate::error::{Error, Result};
use crate::precision::main_dtype;
use crate::tensors::Load;

/// A fixture's way of quantization, its tensors, and those that its own code dequantizes.
struct Fixture {
    quantization: Quantization,
    stored: Tensors,
    dequantized: Tensors,
}

impl Fixture {
    fn open(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quantized").join(name);
        let config = std::fs::read_to_string(folder.join("config.json")).expect("a config");
        let mut config: Value = serde_json::from_str(&config).expect("json");
        if config.get("quant_method").is_some() {
            config = json!({ "quantization_config": config });
        }
        let open = |file: &str| Tensors::open(folder.join(file), Load::Read).expect("a checkpoint");
        Self {
            quantization: Quantization::parse(&config, "config.json", None).expect("known").expect("quantized"),
            stored: open("model.safetensors"),
            dequantized: open("dequantized.safetensors"),
        }
    }

    fn module(&self, name: &str) -> StoredModule {
        self.quantization.module(&self.stored, name).expect("fits").unwrap_or_else(|| panic!("{name} is quantized"))
    }
}

fn float(bytes: &[u8], dtype: DType) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => panic!("{} bytes of {dtype}", bytes.len()),
    }
}

fn rounded(value: f32, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

/// What rows of `k` columns of a module are, each value by itself, in the order of the module's columns.
fn evaluated(rows: &WeightRows<'_>, module: &StoredModule, k: usize) -> Vec<u8> {
    let dtype = module.dtype();
    if let Some((bytes, of)) = rows.floats() {
        assert_eq!(of, dtype);
        return bytes.to_vec();
    }
    let Codes { format, codes, scales, zeros } = rows.codes().expect("codes, as there are no floats");
    let (groups, size) = (k.div_ceil(format.group()), format.scale_dtype().size());
    assert_eq!(zeros.len(), if format.zero_points() { codes.len() / k * groups } else { 0 });
    let value = |(at, &code): (usize, &u8)| {
        let group = at / k * groups + at % k / format.group();
        let scale = float(&scales[group * size..][..size], format.scale_dtype());
        let zero = zeros.get(group).map_or(0.0, |&zero| f32::from(zero));
        rounded(scale * (format.values().value(code) - zero), dtype)
    };
    let packed: Vec<Vec<u8>> = codes.iter().enumerate().map(value).collect();
    let Some(order) = module.order() else { return packed.concat() };
    let mut columns = packed.clone();
    for (row, packed) in columns.chunks_mut(k).zip(packed.chunks(k)) {
        order.iter().zip(packed).for_each(|(&column, value)| row[column as usize].clone_from(value));
    }
    columns.concat()
}

/// Ranges of seven rows, the last of fewer.
fn sevens(n: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(7).map(move |start| start..n.min(start + 7))
}

fn check_module(module: &StoredModule, checkpoint: &Tensors, expected: &[u8], name: &str) {
    let [n, k] = module.shape();
    let all = module.dequantized(checkpoint, 0..n).expect("rows");
    assert!(all == expected, "{name} is dequantized to other bits");
    let slices = sevens(n).flat_map(|rows| module.dequantized(checkpoint, rows).expect("rows"));
    assert!(slices.eq(all.iter().copied()), "{name} differs in slices");
    let of = |rows| {
        let rows = module.rows(checkpoint, rows).expect("rows");
        match module.encoding() {
            Encoding::Blocks(of) => assert_eq!(rows.codes().map(|codes| codes.format), Some(of)),
            Encoding::Float(of) => assert_eq!(rows.floats().map(|(_, dtype)| dtype), Some(of)),
        }
        evaluated(&rows, module, k)
    };
    assert!(of(0..n) == expected, "{name} is packed with other bits");
    assert!(sevens(n).flat_map(of).eq(expected.iter().copied()), "{name} is packed with other bits in slices");
    let width = match module.encoding() {
        Encoding::Blocks(format) => module.strip_granule().max(format.group()),
        Encoding::Float(_) => module.strip_granule(),
    };
    for start in (0..k).step_by(width) {
        let columns = start..k.min(start.saturating_add(width));
        let strip = module.columns(checkpoint, columns.clone()).expect("a strip");
        let size = module.dtype().size();
        let expected = expected.chunks(k * size).flat_map(|row| &row[columns.start * size..columns.end * size]);
        let expected: Vec<u8> = expected.copied().collect();
        assert!(strip.dequantized(0..n).expect("rows") == expected, "columns {columns:?} of {name}");
        let rows = strip.rows(0..n).expect("rows");
        assert!(
            evaluated(&rows, module, columns.len()) == expected,
            "columns {columns:?} of {name} are packed otherwise"
        );
    }
}

/// A tensor of a checkpoint made here.
struct Made(&'static str, Dtype, Vec<usize>, Vec<u8>);

fn i32s(name: &'static str, shape: &[usize], values: &[u32]) -> Made {
    Made(name, Dtype::I32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn f16s(name: &'static str, shape: &[usize], values: &[f32]) -> Made {
    let bytes = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
    Made(name, Dtype::F16, shape.to_vec(), bytes)
}

fn f32s(name: &'static str, shape: &[usize], values: &[f32]) -> Made {
    Made(name, Dtype::F32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn checkpoint(tensors: &[Made]) -> Tensors {
    let views = tensors.iter().map(|Made(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    Tensors::from_bytes(safetensors::serialize(views, None).expect("a file")).expect("a checkpoint")
}

fn quantization(config: Value) -> Result<Quantization> {
    let config = json!({ "torch_dtype": "bfloat16", "quantization_config": config });
    Ok(Quantization::parse(&config, "config.json", None)?.expect("quantized"))
}

fn gptq(bits: usize, group: i64, format: &str) -> Quantization {
    let config = json!({ "quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": format });
    quantization(config).expect("known")
}

fn values(module: &StoredModule, checkpoint: &Tensors) -> Vec<f32> {
    let [n, k] = module.shape();
    let bytes = module.dequantized(checkpoint, 0..n).expect("rows");
    let rows = module.rows(checkpoint, 0..n).expect("rows");
    assert_eq!(evaluated(&rows, module, k), bytes, "blocks and values differ");
    bytes.chunks(module.dtype().size()).map(|bytes| float(bytes, module.dtype())).collect()
}

fn refused(quantization: &Quantization, tensors: &[Made], parts: &[&str]) {
    let error = quantization.module(&checkpoint(tensors), "m").expect_err("does not fit").to_string();
    for part in parts {
        assert!(error.contains(part), "{error} does not say {part}");
    }
}

#[test]
fn zero_points_of_gptq_carry_from_one_to_the_next() {
    // Of eight outputs 0, 15, 1, 8, 8, 8, 8, 8, less 1 of the whole word.
    let zeros = 0x8888_81f0u32;
    let stored = zeros.wrapping_sub(0x1111_1111);
    let tensors = |zeros| {
        [
            i32s("m.qweight", &[1, 8], &[0x7654_3210; 8]),
            i32s("m.qzeros", &[1, 1], &[zeros]),
            f16s("m.scales", &[1, 8], &[0.5; 8]),
        ]
    };
    let expected: Vec<f32> =
        [0, 15, 1, 8, 8, 8, 8, 8].iter().flat_map(|zero| (0..8).map(move |q| 0.5 * (q - zero) as f32)).collect();
    let first = checkpoint(&tensors(stored));
    let module = gptq(4, 32, "gptq").module(&first, "m").expect("fits").expect("quantized");
    assert_eq!(values(&module, &first), expected);
    let second = checkpoint(&tensors(zeros));
    let module = gptq(4, -1, "gptq_v2").module(&second, "m").expect("fits").expect("quantized");
    assert_eq!(values(&module, &second), expected);
}

#[test]
fn groups_that_do_not_divide_a_row_end_with_it() {
    // 40 inputs in groups of 32, with g_idx in order, out of order, and of groups of other sizes.
    let scales: Vec<f32> = (0..16).map(|i| 1.0 + i as f32).collect();
    let tensors = |index: Option<Vec<u32>>| {
        let mut tensors = vec![
            i32s("m.qweight", &[5, 8], &[0x9999_9999; 40]),
            i32s("m.qzeros", &[2, 1], &[0x7777_7777; 2]),
            f16s("m.scales", &[2, 8], &scales),
        ];
        tensors.extend(index.map(|index| i32s("m.g_idx", &[40], &index)));
        checkpoint(&tensors)
    };
    let in_order: Vec<u32> = (0..40).map(|i| i / 32).collect();
    let reversed: Vec<u32> = in_order.iter().rev().copied().collect();
    let mut unequal = reversed.clone();
    unequal[0] = 0;
    let expected = |index: &[u32]| -> Vec<f32> {
        (0..8).flat_map(|row| index.iter().map(move |&group| (group * 8 + row + 1) as f32)).collect()
    };
    for index in [None, Some(in_order.clone())] {
        let checkpoint = tensors(index);
        let module = gptq(4, 32, "gptq").module(&checkpoint, "m").expect("fits").expect("quantized");
        assert!(matches!(module.encoding(), Encoding::Blocks(format) if format.group() == 32));
        assert_eq!(values(&module, &checkpoint), expected(&in_order));
    }
    // Those of the first group, and then those of the second, as they follow each other.
    let order: Vec<u32> = (8..40).chain(0..8).collect();
    for (index, order) in [(&reversed, Some(&order[..])), (&unequal, None)] {
        let checkpoint = tensors(Some(index.clone()));
        let module = gptq(4, 32, "gptq").module(&checkpoint, "m").expect("fits").expect("quantized");
        assert_eq!(module.order(), order);
        let unlike = "groups of unlike sizes".to_owned();
        assert_eq!(module.groups_in_no_blocks(), order.is_none().then_some(unlike));
        assert_eq!(matches!(module.encoding(), Encoding::Blocks(_)), order.is_some());
        assert_eq!(values(&module, &checkpoint), expected(index));
    }
}

#[test]
fn groups_that_are_no_whole_words_are_cut_between_both() {
    for (bits, size, granule) in [(4, 20, 40), (4, 36, 72), (4, 84, 168), (8, 18, 36), (8, 50, 100), (8, 12, 12)] {
        let (per_word, k, n) = (32 / bits, 840, 16);
        let groups = k / size + usize::from(k % size > 0);
        // Code `i + row`, less its bits beyond, in groups of one scale and zero point each.
        let code = |row: usize, i: usize| (i * 7 + row) % (1 << bits);
        let word = |row: usize, at: usize| {
            (0..per_word).fold(0u32, |word, i| word | (code(row, at * per_word + i) as u32) << (i * bits))
        };
        let words: Vec<u32> = (0..k / per_word).flat_map(|at| (0..n).map(move |row| word(row, at))).collect();
        let scales: Vec<f32> = (0..groups * n).map(|i| 1.0 + i as f32).collect();
        let zero = |group: usize| group % 3;
        let ones = if bits == 4 { 0x1111_1111u32 } else { 0x0101_0101 };
        let zeros: Vec<u32> = (0..groups * n / per_word).map(|at| zero(at / (n / per_word)) as u32 * ones).collect();
        let checkpoint = checkpoint(&[
            i32s("m.qweight", &[k / per_word, n], &words),
            i32s("m.qzeros", &[groups, n / per_word], &zeros),
            f16s("m.scales", &[groups, n], &scales),
        ]);
        let module = gptq(bits, size as i64, "gptq_v2").module(&checkpoint, "m").expect("fits").expect("quantized");
        assert_eq!(module.strip_granule(), granule, "groups of {size}");
        let value = |row: usize, i: usize| {
            let scale = f16::from_f32(scales[i / size * n + row]).to_f32();
            f16::from_f32(scale * (code(row, i) as f32 - zero(i / size) as f32)).to_le_bytes()
        };
        let value = &value;
        let expected: Vec<u8> = (0..n).flat_map(|row| (0..k).flat_map(move |i| value(row, i))).collect();
        check_module(&module, &checkpoint, &expected, &format!("{bits} bits in groups of {size}"));
    }
}

#[test]
fn groups_become_the_packed_groups_of_which_they_are_made_up() {
    let cases = [(16, None), (32, Some(32)), (96, Some(32)), (64, Some(64)), (192, Some(64)), (256, Some(128))];
    let k = 384usize;
    for (size, packed) in cases {
        let groups = k.div_ceil(size);
        let scales: Vec<f32> = (0..groups * 8).map(|i| 1.0 + i as f32).collect();
        let checkpoint = checkpoint(&[
            i32s("m.qweight", &[k / 8, 8], &vec![0x9999_9999; k]),
            i32s("m.qzeros", &[groups, 1], &vec![0x8888_8888; groups]),
            f16s("m.scales", &[groups, 8], &scales),
        ]);
        let module = gptq(4, size as i64, "gptq_v2").module(&checkpoint, "m").expect("fits").expect("quantized");
        let group = match module.encoding() {
            Encoding::Blocks(format) => Some(format.group()),
            Encoding::Float(_) => None,
        };
        assert_eq!(group, packed, "groups of {size}");
        assert_eq!(module.groups_in_no_blocks(), packed.is_none().then(|| format!("groups of {size}")));
        let expected = (0..8).flat_map(|row| (0..k).map(move |i| (i / size * 8 + row + 1) as f32));
        assert!(values(&module, &checkpoint).into_iter().eq(expected), "groups of {size}");
    }
}

#[test]
fn awq_has_its_outputs_interleaved_and_its_zero_points_as_they_are() {
    // Nibble n of a word is n, so that output o has the nibble whose output it is.
    let checkpoint = checkpoint(&[
        i32s("m.qweight", &[3, 1], &[0x7654_3210; 3]),
        i32s("m.qzeros", &[1, 1], &[0xf000_0000]),
        f16s("m.scales", &[1, 8], &[1.0; 8]),
    ]);
    let config = json!({ "quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM" });
    let module = quantization(config).expect("known").module(&checkpoint, "m").expect("fits").expect("quantized");
    assert_eq!(module.shape(), [8, 3]);
    // Output 7 is in the highest nibble: 7 - 15.
    let expected = [0, 4, 1, 5, 2, 6, 3, -8].iter().flat_map(|&value| [value as f32; 3]);
    assert!(values(&module, &checkpoint).into_iter().eq(expected));
}

fn packed(format: &str, bits: usize, weights: Value) -> Quantization {
    let kind = if format == "float-quantized" { "float" } else { "int" };
    let mut scheme = json!({ "num_bits": bits, "type": kind, "symmetric": true });
    for (name, value) in weights.as_object().expect("an object") {
        scheme[name] = value.clone();
    }
    let groups = json!({ "group_0": { "targets": ["Linear"], "weights": scheme } });
    let config = json!({ "quant_method": "compressed-tensors", "format": format, "config_groups": groups });
    quantization(config).expect("known")
}

#[test]
fn rows_that_fill_no_whole_word_end_where_weight_shape_says() {
    let shape = |k: u32| i32s("m.weight_shape", &[2], &[2, k]);
    let scale = || f16s("m.weight_scale", &[2, 1], &[1.0, 2.0]);
    let words = || i32s("m.weight_packed", &[2, 2], &[0xfedc_ba98, 0x0000_0007, 0x8888_8888, 0x0000_0099]);
    let quantization = packed("pack-quantized", 4, json!({ "strategy": "channel" }));
    let good = checkpoint(&[words(), scale(), shape(10)]);
    let module = quantization.module(&good, "m").expect("fits").expect("quantized");
    assert_eq!(module.shape(), [2, 10]);
    let expected = [0., 1., 2., 3., 4., 5., 6., 7., -1., -8., 0., 0., 0., 0., 0., 0., 0., 0., 2., 2.];
    assert_eq!(values(&module, &good), expected);
    for k in [8, 17, 0, u32::MAX] {
        refused(&quantization, &[words(), scale(), shape(k)], &["module `m`", "m.weight_shape", "does not fit"]);
    }
}

#[test]
fn zero_points_of_bytes_and_of_words_are_the_same() {
    let quantization = packed("pack-quantized", 4, json!({ "group_size": 32, "symmetric": false }));
    let tensors = |zeros| {
        let words: Vec<u32> = (0..40).map(|i| 0x0123_4567u32.rotate_left(i)).collect();
        checkpoint(&[
            i32s("m.weight_packed", &[10, 4], &words),
            f16s("m.weight_scale", &[10, 1], &[0.25; 10]),
            i32s("m.weight_shape", &[2], &[10, 32]),
            zeros,
        ])
    };
    // -8 to 1, packed with 8 added.
    let bytes = (-8i8..2).map(|zero| zero as u8).collect();
    let bytes = tensors(Made("m.weight_zero_point", Dtype::I8, vec![10, 1], bytes));
    let words = tensors(i32s("m.weight_zero_point", &[2, 1], &[0x7654_3210, 0x98]));
    let of = |checkpoint| {
        let module = quantization.module(checkpoint, "m").expect("fits").expect("quantized");
        assert!(matches!(module.encoding(), Encoding::Blocks(format) if format.zero_points()));
        values(&module, checkpoint)
    };
    assert_eq!(of(&bytes), of(&words));
}

#[test]
fn blocks_of_fp8_are_cut_off_at_the_end_of_rows_and_columns() {
    let (n, k) = (5, 7);
    let config = json!({ "quant_method": "fp8", "weight_block_size": [2, 4] });
    let quantization = quantization(config).expect("known");
    let scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    // 0x38 is 1.
    let weight = || Made("m.weight", Dtype::F8_E4M3, vec![n, k], vec![0x38; n * k]);
    let two = [weight(), f32s("m.weight_scale_inv", &[3, 2], &scales), f32s("m.weight_scale", &[3, 2], &scales)];
    refused(&quantization, &two, &["`m.weight_scale_inv`", "`m.weight_scale`"]);
    let good = checkpoint(&[weight(), f32s("m.weight_scale_inv", &[3, 2], &scales)]);
    let module = quantization.module(&good, "m").expect("fits").expect("quantized");
    // Blocks of four columns are none that are packed.
    assert_eq!(module.encoding(), Encoding::Float(DType::BF16));
    let expected = (0..n).flat_map(|row| (0..k).map(move |column| scales[row / 2 * 2 + column / 4]));
    assert!(values(&module, &good).into_iter().eq(expected));
    let slice = module.dequantized(&good, 3..4).expect("a row");
    assert_eq!(slice[..2], bf16::from_f32(3.0).to_le_bytes());
    refused(&quantization, &[weight(), f32s("m.weight_scale_inv", &[2, 2], &scales[..4])], &["[2, 2]", "[3, 2]"]);
    refused(&quantization, &[weight()], &["module `m`", "m.weight_scale"]);
    assert!(module.rows(&good, 4..6).is_err());
}

#[test]
fn scales_of_rows_of_fp8_are_vectors_or_columns() {
    let weight = || Made("m.weight", Dtype::F8_E4M3, vec![3, 4], vec![0x38; 12]);
    let row = [1.0f32, 2.0, 3.0].into_iter().flat_map(|scale| [scale; 4]);
    for config in [json!({ "quant_method": "fp8" }), json!({ "quant_method": "fbgemm_fp8" })] {
        let quantization = quantization(config.clone()).expect("known");
        for (name, shape) in
            [("m.weight_scale", &[3][..]), ("m.weight_scale", &[3, 1]), ("m.weight_scale_inv", &[3, 1])]
        {
            let stored = checkpoint(&[weight(), f32s(name, shape, &[1.0, 2.0, 3.0])]);
            let module = quantization.module(&stored, "m").expect("fits").expect("quantized");
            assert!(values(&module, &stored).into_iter().eq(row.clone()), "{config}, {shape:?}");
        }
        refused(&quantization, &[weight(), f32s("m.weight_scale", &[3, 2], &[1.0; 6])], &["[3, 2]", "[3, 1]"]);
    }
    // What has one says so, or has no other.
    let one = || f32s("m.weight_scale", &[1], &[2.0]);
    for config in [json!({ "quant_method": "fp8" }), json!({ "quant_method": "modelopt", "quant_algo": "FP8" })] {
        let single = quantization(config).expect("known");
        for shape in [&[][..], &[1], &[1, 1]] {
            let stored = checkpoint(&[weight(), f32s("m.weight_scale", shape, &[2.0])]);
            let module = single.module(&stored, "m").expect("fits").expect("quantized");
            assert!(values(&module, &stored).into_iter().eq([2.0; 12]), "{shape:?}");
        }
    }
    let of_rows = quantization(json!({ "quant_method": "fbgemm_fp8" })).expect("known");
    refused(&of_rows, &[weight(), one()], &["[1]", "[3]"]);
    let of_tensors = quantization(json!({ "quant_method": "modelopt", "quant_algo": "FP8" })).expect("known");
    refused(&of_tensors, &[weight(), f32s("m.weight_scale", &[3], &[1.0; 3])], &["[3]", "one value"]);
}

#[test]
fn scales_that_are_no_numbers_are_refused_by_the_name_of_their_module() {
    let refused = |quantization: &Quantization, tensors: &[Made], scales: &str| {
        let stored = checkpoint(tensors);
        let module = quantization.module(&stored, "m").expect("fits").expect("quantized");
        let [n, _] = module.shape();
        let errors = [module.rows(&stored, 0..n).map(drop), module.dequantized(&stored, n - 1..n).map(drop)];
        for error in errors.map(|result| result.expect_err("its last row has one").to_string()) {
            assert!(error.contains("module `m`") && error.contains(scales) && error.contains("no numbers"), "{error}");
        }
    };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let words = [i32s("m.qweight", &[4, 8], &[0; 32]), i32s("m.qzeros", &[1, 1], &[0])];
        let scales = f16s("m.scales", &[1, 8], &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, bad]);
        let [codes, zeros] = words;
        refused(&gptq(4, 32, "gptq"), &[codes, zeros, scales], "`m.scales`");
        let weight = || Made("m.weight", Dtype::F8_E4M3, vec![3, 32], vec![0x38; 96]);
        let fp8 = quantization(json!({ "quant_method": "fp8" })).expect("known");
        refused(&fp8, &[weight(), f32s("m.weight_scale", &[3, 1], &[1.0, 1.0, bad])], "`m.weight_scale`");
        refused(&fp8, &[weight(), f32s("m.weight_scale_inv", &[], &[bad])], "`m.weight_scale_inv`");
        let bits = bf16::from_f32(bad).to_le_bytes();
        let of_tensor = Made("m.weight_scale", Dtype::BF16, vec![1], bits.to_vec());
        refused(&fp8, &[weight(), of_tensor], "`m.weight_scale`");
    }
    let blocks = Made("m_blocks", Dtype::U8, vec![1, 2, 1, 16], vec![0; 32]);
    let scales = Made("m_scales", Dtype::U8, vec![1, 2, 1], vec![127, 255]);
    refused(&quantization(json!({ "quant_method": "mxfp4" })).expect("known"), &[blocks, scales], "`m_scales`");
}

#[test]
fn powers_of_two_are_exact_and_255_is_nan() {
    assert_eq!(layout::power(127).to_f32(), 1.0);
    assert_eq!(layout::power(0).to_f32(), 2.0f32.powi(-127));
    assert_eq!(layout::power(254).to_f32(), 2.0f32.powi(127));
    assert!(layout::power(255).is_nan());
}

#[test]
fn what_cannot_be_read_is_refused_by_its_field() {
    let cases = [
        (json!({ "quant_method": "aqlm" }), ["quant_method", "aqlm", "gptq, awq"]),
        (json!({ "quant_method": "bitsandbytes", "load_in_8bit": true }), ["load_in_8bit", "true", "nf4"]),
        (
            json!({ "quant_method": "bitsandbytes", "bnb_4bit_quant_type": "fp4" }),
            ["bnb_4bit_quant_type", "fp4", "nf4"],
        ),
        (json!({ "load_in_4bit": true, "bnb_4bit_quant_type": "fp4" }), ["bnb_4bit_quant_type", "fp4", "nf4"]),
        (json!({ "load_in_8bit": true }), ["load_in_8bit", "true", "nf4"]),
        (json!({ "load_in_4bit": false, "load_in_8bit": false }), ["quant_method", "missing", ""]),
        (json!({ "load_in_4bit": "yes" }), ["load_in_4bit", "true or false", "yes"]),
        (json!({ "group_size": 64, "bits": 4 }), ["MLX", "group_size 64", "made from"]),
        (json!({ "group_size": 32, "bits": 8, "mode": "affine" }), ["MLX", "bits 8", "gptq"]),
        (json!({ "bits": 4, "group_size": 128, "desc_act": false, "sym": true }), ["quant_method", "missing", "gptq"]),
        (json!({ "quant_method": "gptq", "bits": 3, "group_size": 128 }), ["bits", "3", "4, 8"]),
        (json!({ "quant_method": "gptq", "bits": 4 }), ["group_size", "missing", ""]),
        (json!({ "quant_method": "gptq", "bits": 4, "group_size": 0 }), ["group_size", "0", ""]),
        (
            json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin" }),
            ["checkpoint_format", "marlin", "gptq_v2"],
        ),
        (
            json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": true }),
            ["is_marlin_format", "true", "gptq"],
        ),
        (
            json!({ "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv" }),
            ["version", "gemv", "gemm"],
        ),
        (json!({ "quant_method": "awq", "bits": 8, "group_size": 128 }), ["bits", "8", "4"]),
        (json!({ "quant_method": "fp8", "weight_block_size": [128, 0] }), ["weight_block_size", "[128,0]", ""]),
        (json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" }), ["quant_algo", "NVFP4", "FP8"]),
        (
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
                    "sparsity_config": { "format": "sparse-24-bitmask" } }),
            ["sparsity_config", "sparse-24-bitmask", ""],
        ),
        (
            json!({ "quant_method": "compressed-tensors", "format": "marlin-24",
                    "config_groups": { "g": { "targets": ["Linear"], "weights": { "num_bits": 4, "type": "int" } } } }),
            ["format", "marlin-24", "pack-quantized"],
        ),
        (
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["re:(a"] }),
            ["ignore", "(a", "regular expression"],
        ),
        (
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
                    "ignore": ["re:(?:(?:(?:(?=a)b){999}){999}){999}"] }),
            ["ignore", "repeats too much", ""],
        ),
    ];
    for (config, parts) in cases {
        let error = quantization(config.clone()).expect_err("refused").to_string();
        for part in parts {
            assert!(error.contains(part), "{config}: {error} does not say {part}");
        }
    }
}

#[test]
fn tensors_that_do_not_bear_the_config_out_are_refused_by_their_names() {
    let weight = || i32s("m.qweight", &[16, 8], &[0; 128]);
    let zeros = || i32s("m.qzeros", &[1, 1], &[0]);
    let scales = || f16s("m.scales", &[1, 8], &[1.0; 8]);
    let q = gptq(4, 128, "gptq");
    refused(&q, &[weight(), zeros()], &["module `m` (GPTQ, 4 bits)", "m.scales"]);
    refused(&q, &[weight(), scales()], &["m.qzeros"]);
    refused(&q, &[weight(), zeros(), f16s("m.scales", &[2, 8], &[1.0; 16])], &["m.scales", "[2, 8]", "[1, 8]"]);
    refused(&q, &[weight(), scales(), i32s("m.qzeros", &[2, 1], &[0; 2])], &["m.qzeros", "[2, 1]", "[1, 1]"]);
    refused(&q, &[weight(), zeros(), i32s("m.scales", &[1, 8], &[0; 8])], &["m.scales", "I32", "F16"]);
    refused(&q, &[weight(), zeros(), scales(), i32s("m.g_idx", &[128], &[1; 128])], &["m.g_idx", "group 1 of 1"]);
    refused(&q, &[weight(), zeros(), scales(), i32s("m.g_idx", &[128], &[u32::MAX; 128])], &["m.g_idx", "group -1"]);
    refused(&q, &[weight(), zeros(), scales(), i32s("m.g_idx", &[64], &[0; 64])], &["m.g_idx", "[64]", "[128]"]);
    refused(&q, &[i32s("m.qweight", &[16, 4], &[0; 64]), zeros(), scales()], &["4 outputs"]);
    refused(&q, &[i32s("m.qweight", &[0, usize::MAX >> 8], &[]), zeros(), scales()], &["expected a matrix"]);
    let of_columns = |fields: Value| {
        let mut config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": true });
        fields.as_object().expect("fields").iter().for_each(|(name, value)| config[name] = value.clone());
        quantization(config).expect("known")
    };
    let two = || [weight(), i32s("m.qzeros", &[2, 1], &[0; 2]), f16s("m.scales", &[2, 8], &[1.0; 16])];
    for fields in [json!({}), json!({ "dynamic": { "other": { "desc_act": false }, "m": { "bits": 4 } } })] {
        refused(&of_columns(fields), &two(), &["desc_act", "`m.g_idx`, which is missing"]);
    }
    for fields in [
        json!({ "desc_act": false }),
        json!({ "static_groups": true }),
        json!({ "dynamic": { "m": { "desc_act": false } } }),
    ] {
        let module = of_columns(fields.clone()).module(&checkpoint(&two()), "m").expect("fits");
        assert!(module.is_some_and(|module| module.order().is_none()), "{fields}");
    }
    let whole_rows = [weight(), zeros(), scales()];
    assert!(of_columns(json!({ "group_size": -1 })).module(&checkpoint(&whole_rows), "m").expect("fits").is_some());
    let q = packed("pack-quantized", 4, json!({ "strategy": "channel" }));
    let plain = Made("m.weight", Dtype::I8, vec![8, 8], vec![0; 64]);
    refused(&q, &[plain], &["m.weight", "weight_packed"]);
    let q = packed("pack-quantized", 4, json!({ "group_size": 32, "actorder": "group" }));
    let words = || i32s("m.weight_packed", &[2, 8], &[0; 16]);
    let scale = || f16s("m.weight_scale", &[2, 2], &[1.0; 4]);
    refused(&q, &[words(), scale()], &["actorder", "weight_g_idx"]);
    let q = packed("pack-quantized", 4, json!({ "group_size": 32, "symmetric": false }));
    refused(&q, &[words(), scale()], &["m.weight_zero_point"]);
}

#[test]
fn zero_points_that_the_config_denies_are_refused_unless_they_are_none() {
    let words = || i32s("m.weight_packed", &[2, 8], &[0x9999_9999; 16]);
    let scale = || f16s("m.weight_scale", &[2, 1], &[1.0; 2]);
    let bytes = |dtype, zeros: [u8; 2]| Made("m.weight_zero_point", dtype, vec![2, 1], zeros.to_vec());
    let floats = || Made("m.weight", Dtype::F8_E4M3, vec![2, 8], vec![0x38; 16]);
    let denied = &["module `m`", "m.weight_zero_point", "others than 0"];
    let fits = |q: &Quantization, tensors: &[Made]| {
        let stored = checkpoint(tensors);
        let module = q.module(&stored, "m").expect("fits").expect("quantized");
        assert!(values(&module, &stored).iter().all(|&value| value == 1.0));
    };
    let q = packed("pack-quantized", 4, json!({ "strategy": "channel" }));
    fits(&q, &[words(), scale(), i32s("m.weight_zero_point", &[1, 1], &[0x8888_8888])]);
    fits(&q, &[words(), scale(), bytes(Dtype::I8, [0, 0])]);
    refused(&q, &[words(), scale(), i32s("m.weight_zero_point", &[1, 1], &[0x8888_8889])], denied);
    refused(&q, &[words(), scale(), bytes(Dtype::I8, [0, 1])], denied);
    let q = |symmetric: bool| {
        let weights = json!({ "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": symmetric });
        let groups = json!({ "g": { "targets": ["Linear"], "weights": weights } });
        let config = json!({ "quant_method": "compressed-tensors", "format": "float-quantized" });
        let mut config = config;
        config["config_groups"] = groups;
        quantization(config).expect("known")
    };
    fits(&q(true), &[floats(), scale()]);
    refused(&q(false), &[floats(), scale()], &["there is no `m.weight_zero_point`"]);
    for symmetric in [true, false] {
        fits(&q(symmetric), &[floats(), scale(), bytes(Dtype::F8_E4M3, [0, 0])]);
        refused(&q(symmetric), &[floats(), scale(), bytes(Dtype::I8, [0, 3])], denied);
        // Whose values, of which there may be many, are not read.
        let others = Made("m.weight_zero_point", Dtype::I8, vec![2, 5], vec![0; 10]);
        refused(&q(symmetric), &[floats(), scale(), others], &["m.weight_zero_point", "shape [2, 5], expected [2, 1]"]);
    }
}

#[test]
fn floats_in_groups_by_an_index_are_refused_unless_it_is_not_in_use() {
    let q = |order: &str| {
        let weights =
            json!({ "num_bits": 8, "type": "float", "group_size": 32, "strategy": "group", "actorder": order });
        packed("float-quantized", 8, weights)
    };
    let module = |index: Option<u32>| {
        let mut tensors = vec![
            Made("m.weight", Dtype::F8_E4M3, vec![1, 64], vec![0x38; 64]),
            f16s("m.weight_scale", &[1, 2], &[1.0, 2.0]),
        ];
        tensors.extend(index.map(|index| i32s("m.weight_g_idx", &[64], &[index; 64])));
        tensors
    };
    for (order, index) in [("group", Some(1)), ("static", Some(1)), ("group", None)] {
        refused(&q(order), &module(index), &["module `m`", "`weight_g_idx`"]);
    }
    for (order, index) in [("group", Some(u32::MAX)), ("static", Some(u32::MAX)), ("static", None)] {
        let stored = checkpoint(&module(index));
        assert!(q(order).module(&stored, "m").expect("fits").is_some(), "{order}");
    }
}

#[test]
fn floats_of_quantized_weights_say_nothing_of_a_models_dtype() {
    let plain = || f16s("model.embed_tokens.weight", &[2], &[1.0; 2]);
    let of_codes = ["scales", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight.absmax"];
    for of in of_codes.into_iter().chain(["weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"]) {
        let name = format!("model.layers.0.mlp.up_proj.{of}").leak();
        let dtype = |name| main_dtype(&checkpoint(&[plain(), f32s(name, &[99], &[1.0; 99])])).expect("floats");
        assert_eq!(dtype(name), DType::F16, "{of}");
        // The same of a name of its own.
        assert_eq!(dtype(format!("{name}.weight").leak()), DType::F32, "{of}");
    }
    // Codes of NF4 that are stored as floats.
    let codes = || f32s("m.weight", &[99], &[1.0; 99]);
    let state = Made("m.weight.quant_state.bitsandbytes__nf4", Dtype::U8, vec![1], vec![0]);
    assert_eq!(main_dtype(&checkpoint(&[plain(), codes()])).expect("floats"), DType::F32);
    assert_eq!(main_dtype(&checkpoint(&[plain(), codes(), state])).expect("floats"), DType::F16);
}

#[test]
fn states_of_nf4_that_lie_are_refused_by_their_names() {
    let bytes = |name, shape: &[usize], bytes: &[u8]| Made(name, Dtype::U8, shape.to_vec(), bytes.to_vec());
    let state = r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 64],
                    "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}"#;
    let of = |state: &str, nested: bool| {
        let mut tensors = vec![
            bytes("m.weight", &[64, 1], &[0xf7; 64]),
            bytes("m.weight.quant_state.bitsandbytes__nf4", &[state.len()], state.as_bytes()),
            f32s("m.weight.quant_map", &[16], &BlockValues::NF4),
        ];
        match nested {
            false => tensors.push(f32s("m.weight.absmax", &[2], &[2.0, 4.0])),
            true => tensors.extend([
                bytes("m.weight.absmax", &[2], &[0, 255]),
                f32s("m.weight.nested_absmax", &[1], &[3.0]),
                f32s("m.weight.nested_quant_map", &[256], &std::array::from_fn::<f32, 256, _>(|i| i as f32 / 255.0)),
            ]),
        }
        tensors
    };
    let nf4 = quantization(json!({ "quant_method": "bitsandbytes", "load_in_4bit": true })).expect("known");
    for (nested, scales) in [(false, [2.0, 4.0]), (true, [0.5, 3.5])] {
        let stored = checkpoint(&of(state, nested));
        let module = nf4.module(&stored, "m").expect("fits").expect("quantized");
        // The earlier in the high bits: 1 and 0.
        let expected = scales.into_iter().flat_map(|scale| (0..64).map(move |i| if i % 2 == 0 { scale } else { 0.0 }));
        assert!(values(&module, &stored).into_iter().eq(expected), "{nested}");
        // The same bytes by other names.
        for (dtype, size) in [(Dtype::BF16, 2), (Dtype::F16, 2), (Dtype::F32, 4)] {
            let with = |count: usize| {
                let mut tensors = of(state, nested);
                tensors[0] = Made("m.weight", dtype, vec![count, 1], vec![0xf7; count * size]);
                tensors
            };
            let other = checkpoint(&with(64 / size));
            let found = nf4.module(&other, "m").expect("fits").expect("quantized");
            assert_eq!(values(&found, &other), values(&module, &stored), "{dtype:?}");
            refused(&nf4, &with(64), &["codes of shape [64, 1]"]);
        }
    }
    // Blocks of scales, each row's in one of its own.
    let mut many = of(&state.replace("[2, 64]", "[2, 16384]"), true);
    many[0] = bytes("m.weight", &[16384, 1], &[0xf7; 16384]);
    many[3] = bytes("m.weight.absmax", &[512], &[255; 512]);
    many[4] = f32s("m.weight.nested_absmax", &[2], &[3.0, 5.0]);
    let stored = checkpoint(&many);
    let module = nf4.module(&stored, "m").expect("fits").expect("quantized");
    assert_eq!([0, 16384].map(|at| values(&module, &stored)[at]), [3.5, 5.5]);
    let row = module.dequantized(&stored, 1..2).expect("a row");
    assert_eq!(row[..2], bf16::from_f32(5.5).to_le_bytes());
    let changed = |from: &str, to: &str| of(&state.replace(from, to), true);
    refused(&nf4, &changed("\"blocksize\": 64", "\"blocksize\": 35"), &["blocksize", "35"]);
    refused(&nf4, &changed("[2, 64]", "[2, 32]"), &["rows of 32", "64"]);
    refused(&nf4, &changed("[2, 64]", "[4, 64]"), &["codes of shape [64, 1]"]);
    refused(&nf4, &changed("[2, 64]", "[2]"), &["shape"]);
    refused(&nf4, &changed("[2, 64]", "[4611686018427387904, 4611686018427387904]"), &["shape"]);
    refused(&nf4, &changed("\"blocksize\": 64", "\"blocksize\": 0"), &["blocksize"]);
    refused(&nf4, &changed("bfloat16", "float64"), &["dtype"]);
    for other in [0, 1, 64, 512] {
        let to = format!("\"nested_blocksize\": {other}");
        refused(&nf4, &changed("\"nested_blocksize\": 256", &to), &["nested_blocksize", &other.to_string()]);
    }
    many[4] = f32s("m.weight.nested_absmax", &[1], &[3.0]);
    refused(&nf4, &many, &["nested_absmax", "[1]", "[2]"]);
    refused(&nf4, &changed("bfloat16", "int8"), &["m.weight.quant_state", "dtype", "float16, bfloat16 or float32"]);
    refused(&nf4, &changed("0.5", "\"x\""), &["nested_offset"]);
    refused(&nf4, &changed("0.5", "1e39"), &["m.weight.quant_state", "nested_offset", "more than f32 has"]);
    refused(&nf4, &changed("{", "["), &["quant_state"]);
    for (field, value, other) in [("quant_type", "nf4", "fp4"), ("nested_dtype", "float32", "bfloat16")] {
        let said = format!("\"{field}\": \"{value}\", ");
        refused(&nf4, &changed(&said, ""), &["quant_state", field, "missing"]);
        refused(&nf4, &changed(&said, &said.replace(value, other)), &["quant_state", field, other]);
    }
    for missing in ["m.weight.quant_map", "m.weight.absmax", "m.weight.nested_absmax", "m.weight.nested_quant_map"] {
        let tensors: Vec<Made> = of(state, true).into_iter().filter(|made| made.0 != missing).collect();
        refused(&nf4, &tensors, &[missing]);
    }
    let tensors: Vec<Made> = of(state, true).into_iter().filter(|made| !made.0.contains("state")).collect();
    refused(&nf4, &tensors, &["there is no `m.weight.quant_state.bitsandbytes__nf4`"]);
    let mut tensors = of(state, false);
    tensors[2] = f32s("m.weight.quant_map", &[16], &[0.0; 16]);
    refused(&nf4, &tensors, &["other values than NF4"]);
}

#[test]
fn bitsandbytes_is_named_by_its_flags() {
    // transformers' `AutoQuantizationConfig.from_dict`.
    for config in [
        json!({ "load_in_4bit": true, "load_in_8bit": false, "bnb_4bit_quant_type": "nf4" }),
        json!({ "load_in_4bit": true }),
        json!({ "quant_method": "bitsandbytes_4bit", "bnb_4bit_quant_type": "nf4" }),
    ] {
        assert_eq!(quantization(config.clone()).expect("known").to_string(), "bitsandbytes, NF4", "{config}");
    }
}

#[test]
fn modelopt_is_named_by_its_algorithm_in_any_case() {
    for config in [
        json!({ "quant_method": "modelopt", "quant_algo": "fp8" }),
        json!({ "quant_method": "ModelOpt", "quant_algo": "Fp8" }),
        json!({ "quant_algo": "fp8", "kv_cache_quant_algo": null }),
        json!({ "quant_method": "modelopt", "quant_algo": "fp8_per_channel_per_token" }),
        json!({ "producer": { "name": "modelopt" }, "quantization": { "quant_algo": "fp8" } }),
    ] {
        assert_eq!(quantization(config.clone()).expect("known").to_string(), "FP8", "{config}");
    }
    for (own, file) in [
        (json!({ "quantization": { "quant_algo": "fp8" } }), "hf_quant_config.json"),
        (json!({ "quant_algo": "fp8" }), "hf_quant_config.json"),
    ] {
        let parsed = Quantization::parse(&json!({}), "config.json", Some((&own, file)));
        assert_eq!(parsed.expect("known").expect("quantized").to_string(), "FP8", "{own}");
    }
}

#[test]
fn checkpoints_of_mlx_are_named() {
    let of_mlx = json!({ "group_size": 64, "bits": 4, "mode": "affine", "lm_head": { "bits": 8, "group_size": 64 } });
    for config in [
        json!({ "quantization": of_mlx }),
        json!({ "quantization": of_mlx, "quantization_config": of_mlx }),
        json!({ "text_config": { "quantization": of_mlx } }),
    ] {
        let error = Quantization::parse(&config, "config.json", None).expect_err("refused").one_line();
        assert!(error.contains("MLX") && error.contains("group_size 64"), "{error}");
    }
    // Others may have a field of this name.
    for value in [json!("none"), json!({}), json!({ "bits": 4 }), json!(null)] {
        let parsed = Quantization::parse(&json!({ "quantization": value }), "config.json", None);
        assert!(parsed.expect("nothing is refused").is_none(), "{value}");
    }
    let known = json!({ "quantization": of_mlx, "quantization_config": { "quant_method": "mxfp4" } });
    assert!(Quantization::parse(&known, "config.json", None).expect("known").is_some());
}

#[test]
fn a_blank_group_index_counts_with_act_order_alone() {
    // ExLlamaV2's `ext_make_q_matrix` takes a `g_idx` of zeros for none; GPTQModel's `TorchLinear.dequantize_weight` gives
    // all inputs the scales of group 0, which counts where `desc_act` says that there is an index.
    let scales: Vec<f32> = (0..24).map(|i| 1.0 + i as f32).collect();
    let tensors = |index: &[u32]| {
        checkpoint(&[
            i32s("m.qweight", &[12, 8], &[0x9999_9999; 96]),
            i32s("m.qzeros", &[3, 1], &[0x7777_7777; 3]),
            f16s("m.scales", &[3, 8], &scales),
            i32s("m.g_idx", &[96], index),
        ])
    };
    let in_order: Vec<f32> = (0..8).flat_map(|row| (0..96).map(move |i| (i / 32 * 8 + row + 1) as f32)).collect();
    let first: Vec<f32> = (0..8).flat_map(|row| [(row + 1) as f32; 96]).collect();
    for (desc_act, expected) in [(false, in_order), (true, first)] {
        let config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": desc_act });
        let quantization = quantization(config).expect("known");
        let blank = tensors(&[0; 96]);
        let module = quantization.module(&blank, "m").expect("fits").expect("quantized");
        assert_eq!(values(&module, &blank), expected, "{desc_act}");
        assert_eq!(matches!(module.encoding(), Encoding::Blocks(_)), !desc_act);
        assert!(module.order().is_none() && module.tensors().any(|name| name == "m.g_idx"));
        // One input of another group, and the rest is what the file says.
        let mut almost = [0; 96];
        almost[95] = 2;
        let stored = tensors(&almost);
        let module = quantization.module(&stored, "m").expect("fits").expect("quantized");
        let found = values(&module, &stored);
        assert_eq!((found[0], found[94], found[95]), (1.0, 1.0, 17.0), "{desc_act}");
        for wrong in [3, u32::MAX, 1 << 30] {
            almost[50] = wrong;
            let error = quantization.module(&tensors(&almost), "m").expect_err("no such group").one_line();
            assert!(error.contains("`m.g_idx` names group") && error.contains("of 3"), "{error}");
        }
    }
    // One group has zeros by right.
    let whole = checkpoint(&[
        i32s("m.qweight", &[4, 8], &[0x9999_9999; 32]),
        i32s("m.qzeros", &[1, 1], &[0x7777_7777]),
        f16s("m.scales", &[1, 8], &scales[..8]),
        i32s("m.g_idx", &[32], &[0; 32]),
    ]);
    for group in [32, -1] {
        let module = gptq(4, group, "gptq").module(&whole, "m").expect("fits").expect("quantized");
        assert!(values(&module, &whole).into_iter().eq((0..8).flat_map(|row| [(row + 1) as f32; 32])));
    }
}

#[test]
fn a_missing_index_that_is_not_in_use_is_none() {
    let quantization = packed("pack-quantized", 4, json!({ "group_size": 32, "actorder": "group" }));
    let checkpoint = checkpoint(&[
        i32s("m.weight_packed", &[2, 8], &[0x9999_9999; 16]),
        f16s("m.weight_scale", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
        i32s("m.weight_g_idx", &[64], &[u32::MAX; 64]),
    ]);
    let module = quantization.module(&checkpoint, "m").expect("fits").expect("quantized");
    assert!(matches!(module.encoding(), Encoding::Blocks(_)));
    assert_eq!(module.tensors().count(), 3);
}

#[test]
fn files_of_its_own_say_the_same() {
    let parse = |own: Value, file| Quantization::parse(&json!({}), "config.json", Some((&own, file)));
    let shown = |own, file| parse(own, file).expect("known").expect("quantized").to_string();
    assert_eq!(
        shown(json!({ "bits": 8, "group_size": 64, "desc_act": false }), "quantize_config.json"),
        "GPTQ, 8 bits"
    );
    assert_eq!(shown(json!({ "w_bit": 4, "q_group_size": 64, "version": "GEMM" }), "quant_config.json"), "AWQ, 4 bits");
    let modelopt = json!({ "producer": {}, "quantization": { "quant_algo": "FP8" } });
    assert_eq!(shown(modelopt, "hf_quant_config.json"), "FP8");
    let in_config = json!({ "quant_method": "modelopt", "quantization": { "quant_algo": "FP8" } });
    quantization(in_config).expect("nested there, too");
    quantization(json!({ "quant_method": "fp8", "quantization": "of weights" })).expect("a field that is not read");
    let error = parse(json!({}), "quantize_config.json").expect_err("says nothing");
    assert!(matches!(error, Error::Config { .. }) && error.to_string().starts_with("quantize_config.json"));
    let nested = json!({ "text_config": { "quantization_config": { "quant_method": "mxfp4" } } });
    assert!(Quantization::parse(&nested, "config.json", None).expect("known").is_some());
    let old = json!({ "compression_config": { "format": "int-quantized", "config_groups": { "INT8": ["Linear"] } } });
    assert!(Quantization::parse(&old, "config.json", None).expect("known").is_some());
}
