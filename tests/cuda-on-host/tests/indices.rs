//! Indices that point outside what they index, and logits that nothing can be drawn from: nothing is reached there, and
//! the next synchronisation names the kernel and the value.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use sinew_kernels::embedding::{Embedding, EmbeddingDynamic, EmbeddingStatic, TableKind};
use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::kv_append::{KvAppend, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::rotary::{Rotary, RotaryDynamic, RotaryStatic, Style};
use sinew_kernels::sample::{Sample, SampleDynamic, SampleStatic};
use sinew_kernels::{Launch, Operands, Operator, Registry};
use sinew_memory::{Buffer, Cpu, DeviceKind, Stream};
use sinew_tensor::{DType, Element, Tensor, View, ViewMut};

fn stream() -> Option<Arc<dyn Stream>> {
    let device = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap()?;
    Some(device.stream().unwrap())
}

fn tensor<T: Element>(stream: &Arc<dyn Stream>, values: &[T], shape: &[usize]) -> Tensor {
    let host = Tensor::from_slice(&Cpu::get(), values, shape).unwrap();
    let bytes = host.buffer().as_slice::<u8>().unwrap();
    let mut buffer = Buffer::uninitialised(stream.device(), bytes.len()).unwrap();
    stream.upload(bytes, &mut buffer, 0).unwrap();
    Tensor::new(buffer, host.dtype(), *host.layout()).unwrap()
}

/// Runs the operator's row for CUDA, which must report `kernel` in these words, and gives the first output's floats.
fn run<O: Operator>(
    stream: &Arc<dyn Stream>,
    kernel: &str,
    words: &str,
    fixed: &O::Static,
    call: &O::Dynamic,
    inputs: &[Option<&Tensor>],
    outputs: &mut [Tensor],
) -> Vec<f32> {
    let registry = Registry::standard();
    let row = *registry.table::<O>().unwrap().rows().iter().find(|row| row.device == DeviceKind::CUDA).unwrap();
    let inputs: Vec<Option<View<'_>>> = inputs.iter().map(|tensor| tensor.map(Tensor::view)).collect();
    let views: Vec<ViewMut<'_>> = outputs.iter_mut().map(|tensor| tensor.view_mut().unwrap()).collect();
    let launch = Launch::new(stream, None).unwrap();
    row.launch(&launch, fixed, call, Operands { inputs: &inputs, outputs: &views }).unwrap();
    let error = stream.synchronize().unwrap_err().to_string();
    assert_eq!(error, format!("{kernel} failed on cuda:0: {words}"));
    // It is told once.
    let buffer = views[0].view().buffer();
    let mut bytes = vec![0; buffer.len()];
    stream.download(buffer, 0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| f32::from_ne_bytes([c[0], c[1], c[2], c[3]])).collect()
}

fn outside(index: impl std::fmt::Display) -> String {
    format!("index {index} is outside its range")
}

/// What is outside and hardly so, and what wraps around where addresses do.
const OUTSIDE: [i64; 4] = [-1, 3, i64::MIN, i64::MAX];

#[test]
fn an_embedding_leaves_out_ids_that_the_table_does_not_have() {
    let Some(stream) = stream() else { return };
    let table = tensor(&stream, &[1f32, 2., 3., 4., 5., 6.], &[3, 2]);
    for id in OUTSIDE {
        let ids = tensor(&stream, &[2, id, 0], &[3]);
        let mut out = [tensor(&stream, &[9f32; 6], &[3, 2])];
        let fixed = EmbeddingStatic { width: 2, vocab: 3, table: TableKind::Strided(DType::F32), out: DType::F32 };
        let call = EmbeddingDynamic { tokens: 3 };
        let found =
            run::<Embedding>(&stream, "embedding", &outside(id), &fixed, &call, &[Some(&ids), Some(&table)], &mut out);
        assert_eq!(found, [5., 6., 9., 9., 1., 2.], "{id}");
    }
}

#[test]
fn a_gather_leaves_out_indices_outside_the_dimension() {
    let Some(stream) = stream() else { return };
    let x = tensor(&stream, &[1f32, 2., 3.], &[3]);
    for index in OUTSIDE {
        let indices = tensor(&stream, &[2, index, 0], &[3]);
        let mut out = [tensor(&stream, &[9f32; 3], &[3])];
        let fixed = GatherStatic { dtype: DType::F32, dim: 0 };
        let call = GatherDynamic { elements: 3, size: 3 };
        let found =
            run::<Gather>(&stream, "gather", &outside(index), &fixed, &call, &[Some(&x), Some(&indices)], &mut out);
        assert_eq!(found, [3., 9., 1.], "{index}");
    }
}

#[test]
fn a_rotation_leaves_out_positions_that_the_tables_do_not_have() {
    let Some(stream) = stream() else { return };
    let (cos, sin) = (tensor(&stream, &[1f32, 0., 1.], &[3, 1]), tensor(&stream, &[0f32, 1., 0.], &[3, 1]));
    for position in [-1, 3, i32::MIN, i32::MAX] {
        let positions = tensor(&stream, &[position, 1], &[2]);
        let mut x = [tensor(&stream, &[3f32, 4., 3., 4.], &[2, 1, 2])];
        let (head_dim, rotary_dim, dtype) = (2, 2, DType::F32);
        let fixed = RotaryStatic { head_dim, rotary_dim, style: Style::Half, x: dtype, out: dtype, in_place: true };
        let call = RotaryDynamic { tokens: 2, heads: 1 };
        let inputs = [None, Some(&positions), Some(&cos), Some(&sin)];
        let found = run::<Rotary>(&stream, "rotary", &outside(position), &fixed, &call, &inputs, &mut x);
        assert_eq!(found, [3., 4., -4., 3.], "{position}");
    }
}

#[test]
fn an_append_leaves_out_slots_that_the_caches_do_not_have() {
    let Some(stream) = stream() else { return };
    let new = tensor(&stream, &[1f32, 2., 3.], &[3, 1, 1]);
    for slot in OUTSIDE {
        let slots = tensor(&stream, &[2, slot, 0], &[3]);
        let cache = || tensor(&stream, &[9f32; 3], &[3, 1, 1, 1]);
        let fixed = KvAppendStatic {
            num_kv_heads: 1,
            head_dim: 1,
            source: DType::F32,
            kv: DType::F32,
            block_size: 1,
            rotary: None,
        };
        let call = KvAppendDynamic { tokens: 3 };
        let inputs = [Some(&new), Some(&new), Some(&slots)];
        let found =
            run::<KvAppend>(&stream, "kv_append", &outside(slot), &fixed, &call, &inputs, &mut [cache(), cache()]);
        assert_eq!(found, [3., 9., 1.], "{slot}");
    }
}

#[test]
fn a_row_of_logits_that_nothing_can_be_drawn_from_is_named_and_the_others_are_drawn() {
    let Some(stream) = stream() else { return };
    let none = f32::NEG_INFINITY;
    for bad in [[0., f32::NAN, 1.], [f32::INFINITY, 0., 1.], [none; 3]] {
        let logits = tensor(&stream, &[[1., 3., 2.], bad, [none, none, 0.]].concat(), &[3, 3]);
        // The largest: no temperature.
        let options = tensor(&stream, &[0f32, 1., 0., 0.].repeat(3), &[3, 4]);
        let top_k = tensor(&stream, &[0u32; 3], &[3]);
        let mut tokens = [tensor(&stream, &[9u32; 3], &[3])];
        let inputs = [Some(&logits), Some(&options), Some(&top_k)];
        let words = "row 1 has no finite logit, or has NaN or infinity";
        let (fixed, call) = (SampleStatic { vocab: 3 }, SampleDynamic { rows: 3 });
        let found = run::<Sample>(&stream, "sample", words, &fixed, &call, &inputs, &mut tokens);
        assert_eq!(found.iter().map(|token| token.to_bits()).collect::<Vec<_>>(), [1, 9, 2], "{bad:?}");
    }
}
