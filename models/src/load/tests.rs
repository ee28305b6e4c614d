use half::f16;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use sinew_memory::{Cpu, SimdLevel};
use sinew_ops::Policy;
use sinew_ops::layers::{Compute, Encoding, SliceToPack};
use sinew_tensor::{BlockFormat, BlockValues};

use super::fill::{SLICES_A_TURN, slices};
use super::matrix::StoredMatrix;
use super::*;
use crate::precision::{Activations, Precision, WeightOptions};
use crate::quantized::Quantization;
use crate::tensors::Tensors;

/// More rows than the slices of one turn hold, on two threads.
const N: usize = 20_000;
const K: usize = 517;

fn value(row: usize, step: usize) -> f32 {
    ((row * 31 + step * 7) % 251) as f32 - 125.0
}

fn checkpoint<S: AsRef<str>>(
    tensors: &[(S, safetensors::Dtype, Vec<usize>, Vec<u8>)],
    quantization: Option<Quantization>,
) -> Checkpoint {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_ref(), TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    let file = safetensors::serialize(views, None).expect("a file");
    Checkpoint::new(Tensors::from_bytes(file).expect("tensors"), quantization)
}

fn context() -> Arc<Context> {
    let cpu = Cpu::with(2, SimdLevel::detected()).expect("threads");
    Arc::new(Context::on(cpu, Policy::default()).expect("a context"))
}

fn packed(checkpoint: &Checkpoint, part: Part, k: usize) -> Vec<u8> {
    let ctx = context();
    let precision = Precision::of(DType::BF16, ctx.device().hardware()).expect("bf16");
    let mut done = 0;
    let mut progress = |now, total| {
        assert!(done < now && now <= total, "{now} of {total} after {done}");
        done = now;
    };
    let mut loader = Loader::new(ctx, checkpoint, precision, 0, &mut progress);
    let packer = WeightPacker::new(loader.context(), DType::BF16, &[part.len()], k, false).expect("room");
    let threads = loader.context().host_threads();
    let slices = slices(&packer, threads, [k, k]).len();
    assert!(slices > SLICES_A_TURN * threads, "{slices} slices are packed in one turn");
    let (weight, _) = loader.pack([part], [1, k], false, false, true).expect("the weight packs");
    weight.tensor().to_vec().expect("values")
}

#[test]
fn a_transposed_weight_is_packed_as_the_weight_itself() {
    let by_rows = (0..N).flat_map(|row| (0..K).flat_map(move |step| value(row, step).to_le_bytes())).collect();
    let by_steps = (0..K).flat_map(|step| (0..N).flat_map(move |row| value(row, step).to_le_bytes())).collect();
    let checkpoint = checkpoint(
        &[
            ("rows.weight", safetensors::Dtype::F32, vec![N, K], by_rows),
            ("steps.weight", safetensors::Dtype::F32, vec![K, N], by_steps),
        ],
        None,
    );
    let rows = packed(&checkpoint, Part::whole("rows", N), K);
    assert!(rows == packed(&checkpoint, Part::whole("steps", N).transposed(true), K));
    assert!(rows.iter().any(|&byte| byte != 0));
}

#[test]
fn f64_is_packed_as_f32_is() {
    let narrow = (0..N * K).flat_map(|i| value(i / K, i % K).to_le_bytes()).collect();
    let wide = (0..N * K).flat_map(|i| f64::from(value(i / K, i % K)).to_le_bytes()).collect();
    let checkpoint = checkpoint(
        &[
            ("narrow.weight", safetensors::Dtype::F32, vec![N, K], narrow),
            ("wide.weight", safetensors::Dtype::F64, vec![N, K], wide),
        ],
        None,
    );
    assert!(packed(&checkpoint, Part::whole("narrow", N), K) == packed(&checkpoint, Part::whole("wide", N), K));
}

/// Gates and ups of experts, `[n, k]` each, of 4 bits in groups of 128. Those of an expert are more than a strip.
struct Experts {
    count: usize,
    n: usize,
    k: usize,
}

const EXPERTS: Experts = Experts { count: 2, n: 1600, k: 8192 };

impl Experts {
    /// GPTQ, or AWQ; each expert with an order of its own, or none.
    fn checkpoint(&self, method: &str, has_order: bool) -> Checkpoint {
        use safetensors::Dtype::{F16, I32};
        let Self { count, n, k } = *self;
        let groups = k / 128;
        let codes = if method == "gptq" { [k / 8, n] } else { [k, n / 8] };
        let mut tensors = vec![("norm.weight".to_owned(), F16, vec![1], f16::ONE.to_le_bytes().to_vec())];
        for (at, part) in self.parts().iter().enumerate() {
            let words = |[rows, columns]: [usize; 2]| -> Vec<u8> {
                let word = |i: usize| (i as u32 + 7 * at as u32).wrapping_mul(0x9e37_79b9);
                (0..rows * columns).flat_map(|i| word(i).to_le_bytes()).collect()
            };
            let scales = (0..groups * n).flat_map(|i| f16::from_f32(1.0 + (i % 997) as f32 / 64.0).to_le_bytes());
            let name = |tensor: &str| format!("{}.{tensor}", part.name());
            tensors.push((name("qweight"), I32, codes.to_vec(), words(codes)));
            tensors.push((name("qzeros"), I32, vec![groups, n / 8], words([groups, n / 8])));
            tensors.push((name("scales"), F16, vec![groups, n], scales.collect()));
            if has_order {
                let index = (0..k).flat_map(|i| ((i * (2 * (at / count) + 3) % k / 128) as i32).to_le_bytes());
                tensors.push((name("g_idx"), I32, vec![k], index.collect()));
            }
        }
        let config = json!({ "quantization_config":
            { "quant_method": method, "bits": 4, "group_size": 128, "desc_act": has_order, "version": "gemm" } });
        checkpoint(&tensors, Quantization::parse(&config, "config.json", None).expect("known"))
    }

    fn parts(&self) -> Vec<Part> {
        let names = (0..self.count).flat_map(|expert| ["gate", "up"].map(|name| format!("{expert}.{name}")));
        names.map(|name| Part::whole(name, self.n)).collect()
    }
}

#[test]
fn what_is_packed_in_strips_has_the_bytes_of_what_is_packed_whole() {
    let (ctx, Experts { count, k, .. }) = (context(), EXPERTS);
    for (method, has_order) in [("gptq", false), ("gptq", true), ("awq", false)] {
        let (checkpoint, parts) = (EXPERTS.checkpoint(method, has_order), EXPERTS.parts());
        let precision = WeightOptions::default().precision(&checkpoint, &ctx).expect("a precision");
        let matrices = StoredMatrices::of(&checkpoint, parts.clone(), count, k).expect("they fit");
        let becomes = matrices.becomes(&precision, &ctx, true);
        let mut nothing = |_, _| {};
        let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, 0, &mut nothing);
        let packer = || loader.packer(&matrices, &becomes, true).expect("room");
        let mut whole = packer();
        assert_eq!(whole.is_ordered(), has_order);
        let modules: Vec<_> =
            parts.iter().map(|part| checkpoint.module(part.name()).expect("fits").expect("quantized")).collect();
        let pack = |slice: SliceToPack<'_>| {
            let rows = slice.slice.rows.iter().map(|(part, rows)| modules[*part].rows(&checkpoint, rows.clone()));
            Ok::<(), crate::Error>(slice.pack(&rows.collect::<Result<Vec<_>>>()?)?)
        };
        let slices = whole.slices(16 << 20);
        whole.pack_each(&ctx, &slices, pack).expect("it packs");
        let in_strips = packer();
        let in_strips = loader.fill(in_strips, &matrices, &becomes).expect("it packs").finish().expect("a weight");
        let whole = whole.finish().expect("a weight");
        assert!(becomes.as_stored && matches!(becomes.encoding, Encoding::Blocks(_)), "{becomes:?}");
        let [found, expected] = [&in_strips, &whole].map(|weight| weight.tensor().to_vec::<u8>().expect("bytes"));
        assert!(found == expected, "{method}, {has_order}");
    }
}

#[test]
fn a_plan_has_what_loading_makes_of_experts() {
    let ctx = context();
    // Gates and ups in one order, which each expert has its own of or none, and of one expert in two orders.
    for (method, has_order, apart) in
        [("gptq", false, false), ("gptq", true, false), ("gptq", true, true), ("awq", false, false)]
    {
        let experts = Experts { count: 2, n: 64, k: 512 };
        let checkpoint = experts.checkpoint(method, has_order);
        let mut parts = experts.parts();
        if apart {
            parts.swap(1, 2);
        }
        let precision = WeightOptions::default().precision(&checkpoint, &ctx).expect("a precision");
        let mut sizes = Sizes::new(&ctx, &checkpoint, precision);
        sizes.product(parts.clone(), [experts.count, experts.k], true, false, true).expect("they fit");
        let mut nothing = |_, _| {};
        let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, 0, &mut nothing);
        let (weight, _) = loader.pack(parts, [experts.count, experts.k], true, false, true).expect("it packs");
        let order = weight.order().map_or(0, |order| order.shape().iter().product::<usize>() * 4);
        let in_blocks = matches!(weight.shape().encoding(), Encoding::Blocks(_));
        assert_eq!((in_blocks, order > 0), (!apart, has_order && !apart), "{method}, {has_order}, {apart}");
        let said: Vec<String> = loader.dequantized.sentences(DType::F16).collect();
        let of_it = "4 quantized weights of products with parts in other orders of columns are held as f16: 0.gate, 0.up, 1.gate, …";
        assert_eq!(said, if apart { vec![of_it] } else { vec![] });
        assert_eq!(sizes.dequantized, loader.dequantized);
        let bytes: usize = weight.tensor().shape().iter().product();
        assert_eq!(sizes.device_bytes().weights, bytes + order, "{method}, {has_order}, {apart}");
    }
}

/// Four heads whose queries, keys and values, so many rows each, take turns in the rows of one weight of 4 bits.
struct Turns {
    heads: usize,
    rows: usize,
    k: usize,
}

impl Turns {
    /// GPTQ or AWQ: the weight in its own order, in the order of matrices as `stacked`, and these apart as `0`, `1`, `2`.
    fn checkpoint(&self, method: &str, has_order: bool) -> Checkpoint {
        use safetensors::Dtype::{F16, I32};
        let Self { heads, rows: d, k } = *self;
        let (groups, along_rows) = (k / 128, method == "awq");
        let of = |matrix: usize| (0..heads).flat_map(move |head| (head * 3 + matrix) * d..(head * 3 + matrix + 1) * d);
        let apart: Vec<Vec<usize>> = (0..3).map(|matrix| of(matrix).collect()).collect();
        let modules = [("in_turn", (0..3 * heads * d).collect()), ("stacked", apart.concat())];
        let apart = ["0", "1", "2"].into_iter().zip(apart);
        let mut tensors = vec![("norm.weight".to_owned(), F16, vec![1], f16::ONE.to_le_bytes().to_vec())];
        for (name, rows) in modules.into_iter().chain(apart) {
            // A word for each row, or for eight that follow each other.
            let words = |lines: usize, each: usize| {
                let word = |line: usize, row: usize| ((line * 4099 + row / each) as u32).wrapping_mul(0x9e37_79b9);
                let line = |line| rows.iter().step_by(each).flat_map(move |&row| word(line, row).to_le_bytes());
                (vec![lines, rows.len() / each], (0..lines).flat_map(line).collect::<Vec<u8>>())
            };
            let scale = |group: usize, row: usize| f16::from_f32(1.0 + ((row * 7 + group) % 997) as f32 / 64.0);
            let scales =
                (0..groups).flat_map(|group| rows.iter().flat_map(move |&row| scale(group, row).to_le_bytes()));
            let mut push = |tensor: &str, dtype, (shape, bytes)| {
                tensors.push((format!("{name}.{tensor}"), dtype, shape, bytes));
            };
            push("scales", F16, (vec![groups, rows.len()], scales.collect()));
            push("qweight", I32, if along_rows { words(k, 8) } else { words(k / 8, 1) });
            push("qzeros", I32, words(groups, 8));
            if has_order {
                let index = (0..k).flat_map(|i| ((i * 5 % k / 128) as i32).to_le_bytes());
                push("g_idx", I32, (vec![k], index.collect()));
            }
        }
        let config = json!({ "quantization_config":
            { "quant_method": method, "bits": 4, "group_size": 128, "desc_act": has_order, "version": "gemm" } });
        checkpoint(&tensors, Quantization::parse(&config, "config.json", None).expect("known"))
    }
}

#[test]
fn parts_of_one_tensor_share_what_is_read_of_it_and_are_those_of_tensors_of_their_own() {
    let ctx = context();
    let turns = Turns { heads: 4, rows: 16, k: 384 };
    let (n, k) = (turns.heads * turns.rows, turns.k);
    for (method, has_order) in [("gptq", false), ("gptq", true), ("awq", false)] {
        let checkpoint = turns.checkpoint(method, has_order);
        let precision = WeightOptions::default().precision(&checkpoint, &ctx).expect("a precision");
        let packed = |parts: Vec<Part>, tensors: usize| {
            let matrices = StoredMatrices::of(&checkpoint, parts.clone(), 1, k).expect("they fit");
            assert_eq!(matrices.stored().len(), tensors, "{method}, {has_order}");
            let mut sizes = Sizes::new(&ctx, &checkpoint, precision);
            sizes.product(parts.clone(), [1, k], false, false, true).expect("they fit");
            let mut nothing = |_, _| {};
            let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, 0, &mut nothing);
            let (weight, _) = loader.pack(parts, [1, k], false, false, true).expect("it packs");
            let order = weight.order().map(|order| order.to_vec::<u32>().expect("an order"));
            let bytes: Vec<u8> = weight.tensor().to_vec().expect("bytes");
            let made = sizes.made[0];
            assert_eq!(made.bytes, bytes.len() + order.as_ref().map_or(0, |order| order.len() * 4));
            (bytes, order, made.read_whole)
        };
        let apart = packed(["0", "1", "2"].map(|name| Part::whole(name, n)).to_vec(), 3);
        assert_eq!((apart.1.is_some(), apart.2 > 0), (has_order, has_order), "{method}");
        // All of it at once, and none of it twice: an order is each tensor's own.
        let orders = if has_order { [3 * k * 4, k * 4] } else { [0; 2] };
        let (bytes, order, read_whole) = (apart.0, apart.1, apart.2 - orders[0]);
        for parts in [vec![Part::whole("in_turn", 3 * n).alternating(3, turns.rows)], Part::split("stacked", &[n; 3])] {
            let (found, found_order, found_whole) = packed(parts, 1);
            assert!(found == bytes && found_order == order, "{method}, {has_order}");
            assert_eq!(found_whole.saturating_sub(orders[1]), read_whole, "{method}, {has_order}");
        }
    }
}

#[test]
fn experts_of_mxfp4_are_as_many_as_are_asked_for() {
    use safetensors::Dtype::{BF16, U8};
    let config = json!({ "quantization_config": { "quant_method": "mxfp4" } });
    let of = |experts: usize, rows: usize| {
        let tensors = [
            ("norm.weight", BF16, vec![1], vec![0; 2]),
            ("experts_blocks", U8, vec![experts, rows, 2, 16], vec![0; experts * rows * 32]),
            ("experts_scales", U8, vec![experts, rows, 2], vec![127; experts * rows * 2]),
        ];
        let checkpoint = checkpoint(&tensors, Quantization::parse(&config, "config.json", None).expect("known"));
        let parts = (0..4).map(|e| Part::whole("experts", 64).transposed(true).stacked(e, 4));
        StoredMatrices::of(&checkpoint, parts, 4, 64).map(|_| ())
    };
    of(4, 64).expect("they are");
    for (experts, rows, words) in
        [(64, 4, "has shape [64, 4, 64]"), (1, 256, "has shape [256, 64]"), (2, 128, "has shape [2, 128, 64]")]
    {
        let error = of(experts, rows).expect_err("other experts").to_string();
        assert!(error.contains(words) && error.contains("asks for [4, 64, 64]"), "{error}");
    }
}

/// What loading makes of experts' weights, which have biases: packed bytes, biases and their shape, and what a plan counts.
fn experts_of(checkpoint: &Checkpoint, parts: &[Part], [count, k]: [usize; 2]) -> (Vec<u8>, Vec<f32>, Vec<usize>) {
    let ctx = context();
    let precision = WeightOptions::default().precision(checkpoint, &ctx).expect("a precision");
    let mut sizes = Sizes::new(&ctx, checkpoint, precision);
    sizes.product(parts.to_vec(), [count, k], true, true, true).expect("they fit");
    let mut nothing = |_, _| {};
    let mut loader = Loader::new(ctx.clone(), checkpoint, precision, 0, &mut nothing);
    let (weight, bias) = loader.pack(parts.to_vec(), [count, k], true, true, true).expect("it packs");
    let bias = bias.expect("there are biases");
    let packed: Vec<u8> = weight.tensor().to_vec().expect("bytes");
    let biases: Vec<f32> = bias.to_vec().expect("values");
    assert_eq!(sizes.device_bytes().weights, packed.len() + 4 * biases.len());
    (packed, biases, bias.shape().to_vec())
}

#[test]
fn experts_of_one_tensor_whose_gates_and_ups_take_turns_are_those_of_modules_of_their_own() {
    use safetensors::Dtype::{F32, U8};
    // Floats of an expert are more than a strip.
    let (count, n, k) = (3usize, 1000usize, 1120usize);
    // Row `row` of a gate or an up of an expert.
    let value = |e: usize, up: usize, row: usize, step: usize| value(row * 2 + up + e * 77, step);
    let bias = |e: usize, up: usize, row: usize| (e * 10_000 + up * 5_000 + row) as f32;
    let bytes = |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let mut apart = Vec::new();
    for (e, up) in (0..count).flat_map(|e| [(e, 0), (e, 1)]) {
        let rows =
            bytes(&mut (0..n).flat_map(|row| (0..k).map(move |step| (row, step))).map(|(r, s)| value(e, up, r, s)));
        apart.push((format!("{e}.{up}.weight"), F32, vec![n, k], rows));
        apart.push((format!("{e}.{up}.bias"), F32, vec![n], bytes(&mut (0..n).map(|row| bias(e, up, row)))));
    }
    let in_turn = |e: usize| (0..n).flat_map(move |row| [(e, 0, row), (e, 1, row)]);
    let stacked =
        (0..count).flat_map(|e| (0..k).flat_map(move |step| in_turn(e).map(move |(e, up, r)| (e, up, r, step))));
    let stacked = bytes(&mut stacked.map(|(e, up, row, step)| value(e, up, row, step)));
    let biases = bytes(&mut (0..count).flat_map(in_turn).map(|(e, up, row)| bias(e, up, row)));
    let stacked =
        [("gate_up", F32, vec![count, k, 2 * n], stacked), ("gate_up_bias", F32, vec![count, 2 * n], biases.clone())];
    let parts_apart: Vec<Part> =
        (0..count).flat_map(|e| [0, 1].map(|up| Part::whole(format!("{e}.{up}"), n))).collect();
    let part = |e: usize, up: usize| Part::whole("gate_up", 2 * n).transposed(true).stacked(e, count).every(2, up);
    let parts: Vec<Part> = (0..count).flat_map(|e| [part(e, 0), part(e, 1)]).collect();
    let expected = experts_of(&checkpoint(&apart, None), &parts_apart, [count, k]);
    assert_eq!(expected.2, [count, 2 * n]);
    assert!(experts_of(&checkpoint(&stacked, None), &parts, [count, k]) == expected);

    // The same of MXFP4, where a module of its own is a tensor of one expert.
    let byte = |e: usize, up: usize, row: usize, at: usize| (e * 71 + up * 13 + row * 7 + at * 3) as u8;
    let blocks = |rows: &mut dyn Iterator<Item = (usize, usize, usize)>, each: usize| -> Vec<u8> {
        rows.flat_map(|(e, up, row)| (0..each).map(move |at| byte(e, up, row, at))).collect()
    };
    let scales = |rows: &mut dyn Iterator<Item = (usize, usize, usize)>| -> Vec<u8> {
        rows.flat_map(|(e, up, row)| (0..k / 32).map(move |at| 100 + byte(e, up, row, at) % 50)).collect()
    };
    let config = json!({ "quantization_config": { "quant_method": "mxfp4" } });
    let quantized = |tensors: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>| {
        let norm = ("norm.weight".to_owned(), F32, vec![1], 1f32.to_le_bytes().to_vec());
        let tensors: Vec<_> = tensors.into_iter().chain([norm]).collect();
        checkpoint(&tensors, Quantization::parse(&config, "config.json", None).expect("known"))
    };
    let shape = |experts: usize, rows: usize| vec![experts, rows, k / 32, 16];
    let mut apart = Vec::new();
    for (e, up) in (0..count).flat_map(|e| [(e, 0), (e, 1)]) {
        let rows = || (0..n).map(move |row| (e, up, row));
        apart.push((format!("{e}.{up}_blocks"), U8, shape(1, n), blocks(&mut rows(), k / 2)));
        apart.push((format!("{e}.{up}_scales"), U8, shape(1, n)[..3].to_vec(), scales(&mut rows())));
        apart.push((format!("{e}.{up}.bias"), F32, vec![n], bytes(&mut rows().map(|(e, up, row)| bias(e, up, row)))));
    }
    let all = || (0..count).flat_map(in_turn);
    let stacked = vec![
        ("gate_up_blocks".to_owned(), U8, shape(count, 2 * n), blocks(&mut all(), k / 2)),
        ("gate_up_scales".to_owned(), U8, shape(count, 2 * n)[..3].to_vec(), scales(&mut all())),
        ("gate_up_bias".to_owned(), F32, vec![count, 2 * n], biases),
    ];
    let expected = experts_of(&quantized(apart), &parts_apart, [count, k]);
    assert!(experts_of(&quantized(stacked), &parts, [count, k]) == expected);
}

#[test]
fn products_that_asked_for_activations_say_nothing_of_stay_as_they_are() {
    let hardware = Cpu::get().hardware().clone();
    let blocks = |values| Encoding::Blocks(BlockFormat::new(values, 32, DType::BF16, false).expect("a format"));
    let [int4, fp8] = [BlockValues::Int4, BlockValues::F8E4M3].map(blocks);
    let float = Encoding::Float(DType::BF16);
    for (stored, usual) in [(DType::F16, Compute::F32), (DType::F32, Compute::F32), (DType::BF16, Compute::Bf16)] {
        let of = |activations| {
            let precision = Precision::of(stored, &hardware).expect("a dtype of weights");
            let precision = Precision { activations_of_quantized: activations, ..precision };
            [int4, fp8, float].map(|weight| precision.compute_with(weight))
        };
        assert_eq!(of(None), [usual; 3], "{stored}");
        assert_eq!(of(Some(Activations::Bf16)), [Compute::Bf16, Compute::Bf16, usual], "{stored}");
        assert_eq!(of(Some(Activations::Int8)), [Compute::Int8, usual, usual], "{stored}");
    }
}

#[test]
fn floats_that_the_config_calls_quantized_are_refused_unless_they_are_a_router() {
    let floats = |n: usize| vec![0; n * 2];
    let tensors = [
        ("layers.0.gate.weight", safetensors::Dtype::F16, vec![2, 4], floats(8)),
        ("layers.0.gate.weight_scale", safetensors::Dtype::F16, vec![2, 1], floats(2)),
    ];
    let config = json!({ "quantization_config": { "quant_method": "fp8" } });
    let quantization = Quantization::parse(&config, "config.json", None).expect("known");
    let checkpoint = checkpoint(&tensors, quantization);
    let of = |part: Part| StoredMatrices::of(&checkpoint, [part], 1, 4).map(|_| ());
    let error = of(Part::whole("layers.0.gate", 2)).expect_err("it has scales").to_string();
    assert!(error.contains("layers.0.gate.weight_scale"), "{error}");
    of(Part::whole("layers.0.gate", 2).exact(true)).expect("a router stays as it is");
}

#[test]
fn sinks_are_f32_as_exactly_as_they_are_stored_and_planned_for() {
    let ctx = context();
    let values = [1.5f32, -0.3125, f32::NEG_INFINITY];
    let bytes = values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
    let checkpoint = checkpoint(&[("sinks", safetensors::Dtype::BF16, vec![3], bytes)], None);
    let precision = Precision::of(DType::BF16, ctx.device().hardware()).expect("bf16");
    let mut nothing = |_, _| {};
    let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, 0, &mut nothing);
    let sinks = loader.sinks("sinks", 3).expect("they load");
    assert_eq!(sinks.to_vec::<f32>().expect("f32"), values);
    let mut sizes = Sizes::new(&ctx, &checkpoint, precision);
    sizes.sinks("sinks", 3).expect("they fit");
    assert_eq!([sizes.device_bytes().weights, loader.held().others], [12; 2]);
    let error = loader.sinks("sinks", 4).expect_err("four heads").to_string();
    assert!(error.contains("sinks") && error.contains("[4]"), "{error}");
}

#[test]
fn a_square_weight_of_a_conv1d_is_read_in_formats_that_say_how_it_lies() {
    const K: usize = 64;
    let codes = ("m.weight", safetensors::Dtype::F8_E4M3, vec![K, K], vec![0x38; K * K]);
    let one = |name| (name, safetensors::Dtype::F32, vec![1], 1f32.to_le_bytes().to_vec());
    let fp8 = json!({ "quantization_config": { "quant_method": "fp8" } });
    let words =
        |name, shape: [usize; 2]| (name, safetensors::Dtype::I32, shape.to_vec(), vec![0x88; shape[0] * shape[1] * 4]);
    let scales = ("m.scales", safetensors::Dtype::F16, vec![1, K], f16::ONE.to_le_bytes().repeat(K));
    let gptq = json!({ "quantization_config": { "quant_method": "gptq", "bits": 4, "group_size": -1 } });
    let of = |config: &Value, tensors: &[(&str, safetensors::Dtype, Vec<usize>, Vec<u8>)], transposed| {
        let quantization = Quantization::parse(config, "config.json", None).expect("known");
        let checkpoint = checkpoint(tensors, quantization);
        StoredMatrix::of(&checkpoint, Part::whole("m", K).transposed(transposed), K).map(drop)
    };
    let of_fp8 = [codes, one("m.weight_scale")];
    of(&fp8, &of_fp8, false).expect("a Linear's");
    let error = of(&fp8, &of_fp8, true).expect_err("it may be either way").to_string();
    assert!(error.contains("the module m") && error.contains("FP8") && error.contains("GPTQ"), "{error}");
    let of_gptq = [words("m.qweight", [K / 8, K]), words("m.qzeros", [1, K / 8]), scales];
    of(&gptq, &of_gptq, true).expect("[out, in]");
}
