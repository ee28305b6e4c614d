//! What the accuracy harness's cases do not reach on a wgpu device: contents that a kernel cannot take are errors when
//! something waits, and nothing is written for them; angles of any size; and that a device with less gives the same
//! bits.

#[path = "../../tests/common/harness.rs"]
mod harness;

use std::sync::Arc;

use sinew_kernels::activation::Activate;
use sinew_kernels::attention::Attention;
use sinew_kernels::cast::{Cast, CastStatic};
use sinew_kernels::combine::{Combine, CombineDynamic, CombineStatic};
use sinew_kernels::elementwise::{Binary, Elements, Unary, UnaryFunction, UnaryStatic, Where};
use sinew_kernels::embedding::Embedding;
use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::gemm::Gemm;
use sinew_kernels::grouped_gemm::GroupedGemm;
use sinew_kernels::harness::case::{Depth, HostOperand, decode};
use sinew_kernels::kv_append::{KvAppend, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::norm::Norm;
use sinew_kernels::reduce::Reduce;
use sinew_kernels::rotary::{Rotary, RotaryDynamic, RotaryStatic, Style};
use sinew_kernels::route::Route;
use sinew_kernels::sample::{Sample, SampleDynamic, SampleStatic};
use sinew_kernels::softmax::Softmax;
use sinew_kernels::topk::TopK;
use sinew_kernels::{Launch, Operands, Operator, Reference, Registry, Row};
use sinew_memory::webgpu::{WgpuDevice, WgpuOptions};
use sinew_memory::{Buffer, Device, DeviceKind, Stream};
use sinew_tensor::{DType, Element, Layout, Tensor};

fn stream() -> Arc<dyn Stream> {
    WgpuDevice::open(0, &WgpuOptions::default()).unwrap().stream().unwrap()
}

fn tensor<T: Element>(stream: &Arc<dyn Stream>, values: &[T], shape: &[usize]) -> Tensor {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let mut buffer = Buffer::uninitialised(stream.device(), bytes.len()).unwrap();
    stream.upload(bytes, &mut buffer, 0).unwrap();
    Tensor::new(buffer, T::DTYPE, Layout::contiguous(shape).unwrap()).unwrap()
}

fn values<T: Element>(stream: &Arc<dyn Stream>, tensor: &Tensor) -> Vec<T> {
    let mut bytes = vec![0; tensor.buffer().len()];
    stream.download(tensor.buffer(), 0, &mut bytes).unwrap();
    bytemuck::pod_collect_to_vec(&bytes)
}

/// Enqueues the row for wgpu.
fn run<O: Operator>(
    stream: &Arc<dyn Stream>,
    fixed: &O::Static,
    call: &O::Dynamic,
    inputs: &[Option<&Tensor>],
    outputs: &mut [Tensor],
) {
    let registry = Registry::standard();
    let table = registry.table::<O>().unwrap();
    let row = table.rows().iter().find(|row| row.device == DeviceKind::WGPU).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|tensor| tensor.map(Tensor::view)).collect();
    let outputs: Vec<_> = outputs.iter_mut().map(|tensor| tensor.view_mut().unwrap()).collect();
    let operands = Operands { inputs: &inputs, outputs: &outputs };
    row.launch(&Launch::new(stream, None).unwrap(), fixed, call, operands).unwrap();
}

/// Runs the row, waits, and gives back what went wrong, which must not stay.
fn error<O: Operator>(
    stream: &Arc<dyn Stream>,
    fixed: &O::Static,
    call: &O::Dynamic,
    inputs: &[Option<&Tensor>],
    outputs: &mut [Tensor],
) -> String {
    run::<O>(stream, fixed, call, inputs, outputs);
    let error = stream.synchronize().unwrap_err().to_string();
    stream.synchronize().unwrap();
    error
}

fn a_slot_outside_the_cache_is_not_written() {
    let stream = stream();
    let fixed = KvAppendStatic {
        num_kv_heads: 1,
        head_dim: 2,
        source: DType::F32,
        kv: DType::F32,
        block_size: 2,
        rotary: None,
    };
    let new = tensor(&stream, &[1f32, 2., 3., 4.], &[2, 1, 2]);
    for (slots, found) in [([1i64, 4], "index 4"), ([1, -1], "index -1"), ([1, 1 << 32], "index 0")] {
        let slots = tensor(&stream, &slots, &[2]);
        let mut caches = [0, 1].map(|_| tensor(&stream, &[9f32; 8], &[2, 1, 2, 2]));
        let inputs = [Some(&new), Some(&new), Some(&slots)];
        let error = error::<KvAppend>(&stream, &fixed, &KvAppendDynamic { tokens: 2 }, &inputs, &mut caches);
        assert!(error.contains("kv_append.wgpu") && error.contains(found), "{error}");
        for cache in &caches {
            assert_eq!(values::<f32>(&stream, cache), [9., 9., 1., 2., 9., 9., 9., 9.]);
        }
    }
}

fn a_position_outside_the_tables_is_not_turned() {
    let stream = stream();
    let (x, out) = (DType::F32, DType::F32);
    let fixed = RotaryStatic { head_dim: 2, rotary_dim: 2, style: Style::Half, x, out, in_place: true };
    let (cos, sin) = (tensor(&stream, &[0f32; 3], &[3, 1]), tensor(&stream, &[1f32; 3], &[3, 1]));
    for position in [3, -1] {
        let positions = tensor(&stream, &[2i32, position], &[2]);
        let mut x = [tensor(&stream, &[3f32, 4., 3., 4.], &[2, 1, 2])];
        let inputs = [None, Some(&positions), Some(&cos), Some(&sin)];
        let error = error::<Rotary>(&stream, &fixed, &RotaryDynamic { tokens: 2, heads: 1 }, &inputs, &mut x);
        assert!(error.contains("rotary.wgpu") && error.contains(&format!("index {position} is outside")), "{error}");
        assert_eq!(values::<f32>(&stream, &x[0]), [-4., 3., 3., 4.]);
    }
}

fn an_index_outside_the_dimension_is_not_gathered() {
    let stream = stream();
    let x = tensor(&stream, &[5f32, 6., 7.], &[3]);
    let index = tensor(&stream, &[2i32, 3], &[2]);
    let mut y = [tensor(&stream, &[9f32; 2], &[2])];
    let (fixed, call) = (GatherStatic { dtype: DType::F32, dim: 0 }, GatherDynamic { elements: 2, size: 3 });
    let error = error::<Gather>(&stream, &fixed, &call, &[Some(&x), Some(&index)], &mut y);
    assert!(error.contains("gather.wgpu") && error.contains("index 3 is outside"), "{error}");
    assert_eq!(values::<f32>(&stream, &y[0]), [7., 9.]);
}

fn a_place_outside_the_rows_adds_nothing() {
    let stream = stream();
    let (y, out) = (DType::F32, DType::F32);
    let fixed = CombineStatic { width: 2, top_k: 2, y, out, accumulate: true };
    let rows = tensor(&stream, &[1f32, 2., 3., 4., 5., 6., 7., 8.], &[4, 2]);
    let weights = tensor(&stream, &[1f32, 10., 1., 10.], &[2, 2]);
    for place in [4, u32::MAX] {
        let place = tensor(&stream, &[3u32, 0, 1, place], &[4]);
        let mut sums = [tensor(&stream, &[100f32; 4], &[2, 2])];
        let inputs = [Some(&rows), Some(&weights), Some(&place)];
        let error = error::<Combine>(&stream, &fixed, &CombineDynamic { tokens: 2 }, &inputs, &mut sums);
        assert!(error.contains("combine.wgpu") && error.contains("is outside its range"), "{error}");
        assert_eq!(values::<f32>(&stream, &sums[0]), [117., 128., 103., 104.]);
    }
}

fn a_row_of_logits_without_a_largest_number_draws_nothing() {
    let stream = stream();
    let params = tensor(&stream, &[1f32, 1., 0., 0.5, 1., 1., 0., 0.5], &[2, 4]);
    let top_k = tensor(&stream, &[0u32; 2], &[2]);
    let banned = f32::NEG_INFINITY;
    for bad in [[0., f32::NAN], [f32::INFINITY, 0.], [banned, banned], [0., -f32::NAN]] {
        let logits = tensor(&stream, &[banned, 1., bad[0], bad[1]], &[2, 2]);
        let mut tokens = [tensor(&stream, &[77u32; 2], &[2])];
        let inputs = [Some(&logits), Some(&params), Some(&top_k)];
        let error =
            error::<Sample>(&stream, &SampleStatic { vocab: 2 }, &SampleDynamic { rows: 2 }, &inputs, &mut tokens);
        assert!(error.contains("sample.wgpu") && error.contains("row 1 has"), "{error}");
        assert_eq!(values::<u32>(&stream, &tokens[0]), [1, 77]);
    }
}

fn sines_and_cosines_of_large_angles_are_as_good_as_of_small_ones() {
    let stream = stream();
    // Beside a quarter of π; in the middle; as near to a multiple of π/2 as f32 comes (Muller 2016, section 11.1).
    let quarter = std::f32::consts::FRAC_PI_4;
    let mut angles = vec![quarter.next_down(), quarter, 131_071.0, 16_367_173.0 * 2f32.powi(72), f32::MAX, f32::MIN];
    angles.extend((0..5000).map(|i| (-1f32).powi(i) * 1.02f32.powi(i) * 0.3).filter(|x| x.is_finite()));
    angles.extend((1..2000).map(|i| (f64::from(i) * std::f64::consts::FRAC_PI_2) as f32));
    let x = tensor(&stream, &angles, &[angles.len()]);
    for function in [UnaryFunction::Sin, UnaryFunction::Cos] {
        let reference = if function == UnaryFunction::Sin { f64::sin } else { f64::cos };
        let mut y = [tensor(&stream, &vec![9f32; angles.len()], &[angles.len()])];
        let fixed = UnaryStatic { function, input: DType::F32, output: DType::F32 };
        run::<Unary>(&stream, &fixed, &Elements(angles.len()), &[Some(&x)], &mut y);
        for (angle, y) in angles.iter().zip(values::<f32>(&stream, &y[0])) {
            let want = reference(f64::from(*angle));
            let error = (f64::from(y) - want).abs() / DType::F32.ulp(want);
            assert!(error <= 2.0, "{function:?} of {angle:e} is {y:e}, {error} units from {want:e}");
        }
    }
}

/// Runs every wgpu row of an operator on both devices, of which the second has less, with some of the cases that both
/// take: most of the time goes to compiling kernels for each.
fn same_on_both<O: Reference>(streams: &[Arc<dyn Stream>; 2]) {
    let registry = Registry::standard();
    let rows = registry.table::<O>().unwrap().rows().iter().filter(|row| row.device == DeviceKind::WGPU);
    let rows: Vec<_> = rows.collect();
    let mut compared = 0;
    for case in O::cases(Depth::Quick).into_iter().step_by(5) {
        let host = O::operands(&case).unwrap();
        let takes = |row: &Row<O>| streams.iter().all(|s| (row.admits)(&case.fixed, s.device().hardware()).is_ok());
        for row in rows.iter().filter(|row| takes(row)) {
            let [more, less] = streams.each_ref().map(|stream| {
                let place = |operand: &HostOperand| {
                    let bytes = operand.tensor.buffer().as_slice::<u8>().unwrap();
                    let mut buffer = Buffer::uninitialised(stream.device(), bytes.len()).unwrap();
                    stream.upload(bytes, &mut buffer, 0).unwrap();
                    Tensor::new(buffer, operand.tensor.dtype(), *operand.tensor.layout()).unwrap()
                };
                let inputs: Vec<_> = host.inputs.iter().map(|operand| operand.as_ref().map(place)).collect();
                let mut outputs: Vec<_> = host.outputs.iter().map(place).collect();
                let needed = (row.workspace)(&case.fixed, &case.call, stream.device().hardware());
                let mut workspace = (needed > 0).then(|| Buffer::uninitialised(stream.device(), needed).unwrap());
                let views: Vec<_> = inputs.iter().map(|tensor| tensor.as_ref().map(Tensor::view)).collect();
                let written: Vec<_> = outputs.iter_mut().map(|tensor| tensor.view_mut().unwrap()).collect();
                let launch = Launch::new(stream, workspace.as_mut()).unwrap();
                row.launch(&launch, &case.fixed, &case.call, Operands { inputs: &views, outputs: &written }).unwrap();
                stream.synchronize().unwrap();
                outputs
                    .iter()
                    .flat_map(|tensor| decode(tensor.dtype(), &values::<u8>(stream, tensor)))
                    .collect::<Vec<_>>()
            });
            let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(more.iter().zip(&less).all(same), "{} {case}", row.name);
            compared += 1;
        }
    }
    assert!(compared > 0, "{}", O::NAME);
}

fn bits_do_not_depend_on_subgroups_or_on_16_bit_storage() {
    let more = stream();
    let less = WgpuDevice::open(0, &WgpuOptions { f16: false, subgroups: false, ..WgpuOptions::default() }).unwrap();
    let streams = [more, less.stream().unwrap()];
    same_on_both::<Activate>(&streams);
    same_on_both::<Attention>(&streams);
    same_on_both::<Binary>(&streams);
    same_on_both::<Cast>(&streams);
    same_on_both::<Combine>(&streams);
    same_on_both::<Embedding>(&streams);
    same_on_both::<Gather>(&streams);
    same_on_both::<Gemm>(&streams);
    same_on_both::<GroupedGemm>(&streams);
    same_on_both::<KvAppend>(&streams);
    same_on_both::<Norm>(&streams);
    same_on_both::<Reduce>(&streams);
    same_on_both::<Rotary>(&streams);
    same_on_both::<Route>(&streams);
    same_on_both::<Sample>(&streams);
    same_on_both::<Softmax>(&streams);
    same_on_both::<TopK>(&streams);
    same_on_both::<Unary>(&streams);
    same_on_both::<Where>(&streams);
}

fn every_16_bit_float_is_the_same_with_16_bit_storage_and_without() {
    let more = stream();
    let less = WgpuDevice::open(0, &WgpuOptions { f16: false, ..WgpuOptions::default() }).unwrap();
    let less = less.stream().unwrap();
    let bits: Vec<i16> = (i16::MIN..=i16::MAX).collect();
    let count = bits.len();
    for dtype in [DType::F16, DType::BF16] {
        let given = [&more, &less].map(|stream| {
            let place = || {
                let x = tensor(stream, &bits, &[count]);
                Tensor::new(x.buffer().clone(), dtype, *x.layout()).unwrap()
            };
            let (x, mut wide, mut narrow) = (place(), [tensor(stream, &vec![9f32; count], &[count])], [place()]);
            let widened = CastStatic { input: dtype, output: DType::F32 };
            run::<Cast>(stream, &widened, &Elements(count), &[Some(&x)], &mut wide);
            let narrowed = CastStatic { input: DType::F32, output: dtype };
            run::<Cast>(stream, &narrowed, &Elements(count), &[Some(&wide[0])], &mut narrow);
            (values::<u32>(stream, &wide[0]), values::<i16>(stream, &narrow[0]))
        });
        assert!(given[0] == given[1], "{dtype}");
        let kept = given[0].1.iter().zip(&bits).filter(|(found, bits)| found == bits).count();
        // All but NaNs, and subnormals where a driver flushes them.
        assert!(kept >= if dtype == DType::F16 { 61_000 } else { 65_000 }, "{dtype}: {kept}");
    }
}

fn main() -> std::process::ExitCode {
    harness::run(
        Vec::new(),
        harness::trials![
            a_slot_outside_the_cache_is_not_written,
            a_position_outside_the_tables_is_not_turned,
            an_index_outside_the_dimension_is_not_gathered,
            a_place_outside_the_rows_adds_nothing,
            a_row_of_logits_without_a_largest_number_draws_nothing,
            sines_and_cosines_of_large_angles_are_as_good_as_of_small_ones,
            bits_do_not_depend_on_subgroups_or_on_16_bit_storage,
            every_16_bit_float_is_the_same_with_16_bit_storage_and_without,
        ],
    )
}
