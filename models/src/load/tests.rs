use safetensors::tensor::TensorView;
use sinew_kernels::Registry;
use sinew_memory::{Cpu, SimdLevel};
use sinew_ops::Policy;

use super::fill::{SLICES_A_TURN, slices};
use super::*;

/// More rows than the slices of one turn hold, on two threads.
const N: usize = 20_000;
const K: usize = 517;

fn value(row: usize, step: usize) -> f32 {
    ((row * 31 + step * 7) % 251) as f32 - 125.0
}

fn checkpoint(tensors: &[(&str, safetensors::Dtype, [usize; 2], Vec<u8>)]) -> Checkpoint {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("as many bytes as the shape says"))
    });
    Checkpoint::from_bytes(safetensors::serialize(views, None).expect("a file")).expect("a checkpoint")
}

fn packed(checkpoint: &Checkpoint, part: Part, k: usize) -> Vec<u8> {
    let cpu = Cpu::with(2, SimdLevel::detected()).expect("threads");
    let ctx = Context::new(cpu, Arc::new(Registry::standard()), Policy::default()).expect("a context");
    let ctx = Arc::new(ctx);
    let precision = Precision::of(DType::BF16, ctx.device().hardware()).expect("bf16");
    let mut done = 0;
    let mut progress = |now, total| {
        assert!(done < now && now <= total, "{now} of {total} after {done}");
        done = now;
    };
    let mut loader = Loader::new(ctx, checkpoint, precision, &mut progress);
    let packer = WeightPacker::new(loader.context(), DType::BF16, &[part.len()], k, false).expect("room");
    let threads = loader.context().host_threads();
    let slices = slices(&packer, threads, [k, k]).len();
    assert!(slices > SLICES_A_TURN * threads, "{slices} slices are packed in one turn");
    let weight = loader.weight(&[part], k).expect("the weight packs");
    weight.tensor().to_vec().expect("values")
}

#[test]
fn a_transposed_weight_is_packed_as_the_weight_itself() {
    let by_rows = (0..N).flat_map(|row| (0..K).flat_map(move |step| value(row, step).to_le_bytes())).collect();
    let by_steps = (0..K).flat_map(|step| (0..N).flat_map(move |row| value(row, step).to_le_bytes())).collect();
    let checkpoint = checkpoint(&[
        ("rows.weight", safetensors::Dtype::F32, [N, K], by_rows),
        ("steps.weight", safetensors::Dtype::F32, [K, N], by_steps),
    ]);
    let rows = packed(&checkpoint, Part::whole("rows", N), K);
    assert!(rows == packed(&checkpoint, Part::whole("steps", N).transposed(true), K));
    assert!(rows.iter().any(|&byte| byte != 0));
}

#[test]
fn f64_is_packed_as_f32_is() {
    let narrow = (0..N * K).flat_map(|i| value(i / K, i % K).to_le_bytes()).collect();
    let wide = (0..N * K).flat_map(|i| f64::from(value(i / K, i % K)).to_le_bytes()).collect();
    let checkpoint = checkpoint(&[
        ("narrow.weight", safetensors::Dtype::F32, [N, K], narrow),
        ("wide.weight", safetensors::Dtype::F64, [N, K], wide),
    ]);
    assert!(packed(&checkpoint, Part::whole("narrow", N), K) == packed(&checkpoint, Part::whole("wide", N), K));
}
