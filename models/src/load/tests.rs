use half::f16;
use safetensors::tensor::TensorView;
use serde_json::json;
use sinew_memory::{Cpu, SimdLevel};
use sinew_ops::Policy;
use sinew_ops::layers::{Compute, Encoding, SliceToPack};
use sinew_tensor::{BlockFormat, BlockValues};

use super::fill::{SLICES_A_TURN, slices};
use super::*;
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
    let mut loader = Loader::new(ctx, checkpoint, precision, &Plan::default(), &mut progress);
    let packer = WeightPacker::new(loader.context(), DType::BF16, &[part.len()], k, false).expect("room");
    let threads = loader.context().host_threads();
    let slices = slices(&packer, threads, [k, k]).len();
    assert!(slices > SLICES_A_TURN * threads, "{slices} slices are packed in one turn");
    let weight = loader.pack([part], 1, k, false, true).expect("the weight packs");
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
        let matrices = Matrices::of(&checkpoint, parts.clone(), count, k).expect("they fit");
        let becomes = matrices.becomes(&precision, &ctx, true);
        let mut nothing = |_, _| {};
        let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, &Plan::default(), &mut nothing);
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
        sizes.product(parts.clone(), experts.count, experts.k, true, true).expect("they fit");
        let mut nothing = |_, _| {};
        let mut loader = Loader::new(ctx.clone(), &checkpoint, precision, &Plan::default(), &mut nothing);
        let weight = loader.pack(parts, experts.count, experts.k, true, true).expect("it packs");
        let order = weight.order().map_or(0, |order| order.shape().iter().product::<usize>() * 4);
        let in_blocks = matches!(weight.shape().encoding(), Encoding::Blocks(_));
        assert_eq!((in_blocks, order > 0), (!apart, has_order && !apart), "{method}, {has_order}, {apart}");
        let bytes: usize = weight.tensor().shape().iter().product();
        assert_eq!(sizes.plan().weights, bytes + order, "{method}, {has_order}, {apart}");
    }
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
    let of = |part: Part| Matrices::of(&checkpoint, [part], 1, 4).map(|_| ());
    let error = of(Part::whole("layers.0.gate", 2)).expect_err("it has scales").to_string();
    assert!(error.contains("layers.0.gate.weight_scale"), "{error}");
    of(Part::whole("layers.0.gate", 2).exact(true)).expect("a router stays as it is");
}
