//! A small MLP on a device that Sinew knows nothing of: launched asynchronously, compared with f64.

use std::sync::Arc;
use std::time::Duration;

use sinew_foreign_device::{KIND, Lagging, LaggingStream, register};
use sinew_kernels::activation::{Activate, Activation, ActivationDynamic, ActivationStatic, Gate};
use sinew_kernels::elementwise::{Binary, BinaryDynamic, BinaryFunction, BinaryStatic};
use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::harness::case::{Generator, Values};
use sinew_kernels::{Compute, Launch, Operands, Operator, Registry};
use sinew_memory::{Cpu, Device, Location, Stream};
use sinew_ops::{Context, Policy};
use sinew_tensor::{DType, Layout, Tensor, View};

const ROWS: usize = 5;
const WIDTH: usize = 12;
const HIDDEN: usize = 21;
const OUT: usize = 7;

/// The operands of the MLP on the host, in f64.
struct Mlp {
    x: Vec<f64>,
    w1: Vec<f64>,
    b1: Vec<f64>,
    w2: Vec<f64>,
    b2: Vec<f64>,
}

impl Mlp {
    fn random() -> Self {
        let mut random = Generator::new(7);
        let mut values = |n: usize| (0..n).map(|_| random.value(Values::Normal, DType::F32)).collect();
        Self {
            x: values(ROWS * WIDTH),
            w1: values(HIDDEN * WIDTH),
            b1: values(HIDDEN),
            w2: values(OUT * HIDDEN),
            b2: values(OUT),
        }
    }

    /// `gelu(x·W1ᵀ + b1)·W2ᵀ + b2`, in f64.
    fn reference(&self) -> Vec<f64> {
        let layer = |x: &[f64], w: &[f64], b: &[f64]| -> Vec<f64> {
            let width = w.len() / b.len();
            let dot = |row: &[f64], o: usize| (0..width).map(|i| row[i] * w[o * width + i]).sum::<f64>() + b[o];
            x.chunks(width).flat_map(|row| (0..b.len()).map(|o| dot(row, o)).collect::<Vec<_>>()).collect()
        };
        let hidden: Vec<f64> =
            layer(&self.x, &self.w1, &self.b1).into_iter().map(|x| Activation::Gelu.reference(x)).collect();
        layer(&hidden, &self.w2, &self.b2)
    }

    fn assert_close(&self, got: &[f32]) {
        let want = self.reference();
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-5, "element {i} is {got}, reference {want}");
        }
    }
}

fn device() -> Arc<dyn Device> {
    Lagging::new(0, Duration::from_millis(2))
}

fn registry() -> Registry {
    let mut registry = Registry::standard();
    register(&mut registry);
    registry
}

/// Runs the first row of the registry that takes the problem on the stream's device.
fn run<O: Operator>(
    registry: &Registry,
    stream: &Arc<dyn Stream>,
    fixed: &O::Static,
    call: O::Dynamic,
    inputs: &[Option<View<'_>>],
    output: &mut Tensor,
) {
    let (rows, refused) = registry.table::<O>().unwrap().candidates(fixed, stream.device().hardware());
    let row = rows.first().unwrap_or_else(|| panic!("{fixed}: {refused:?}"));
    assert_eq!(row.device, KIND);
    let launch = Launch::new(stream, None).unwrap();
    let outputs = [output.view_mut().unwrap()];
    row.launch(&launch, fixed, &call, Operands { inputs, outputs: &outputs }).unwrap();
}

fn tensor(stream: &Arc<dyn Stream>, values: &[f64], shape: &[usize]) -> Tensor {
    let mut tensor = empty(stream, shape);
    let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
    tensor.upload(&**stream, &values).unwrap();
    tensor
}

fn empty(stream: &Arc<dyn Stream>, shape: &[usize]) -> Tensor {
    let layout = Layout::contiguous(shape).unwrap();
    let buffer = sinew_memory::Buffer::uninitialised(stream.device(), layout.elements() * 4).unwrap();
    Tensor::new(buffer, DType::F32, layout).unwrap()
}

/// A weight `[out, in]` as the right operand `[1, in, out]`.
fn right(weight: &Tensor) -> View<'_> {
    let &[n, k] = weight.shape() else { panic!("a weight has two dimensions") };
    weight.view().with_layout(Layout::strided(&[1, k, n], &[0, 1, k], 0).unwrap()).unwrap()
}

/// A bias `[n]` repeated over rows.
fn repeated(bias: &Tensor, rows: usize) -> View<'_> {
    let n = bias.shape()[0];
    bias.view().with_layout(Layout::strided(&[1, rows, n], &[0, 0, 1], 0).unwrap()).unwrap()
}

#[test]
fn an_mlp_runs_on_a_foreign_device_and_launching_does_not_wait() {
    let (mlp, registry, device) = (Mlp::random(), registry(), device());
    let stream = device.clone().stream().unwrap();
    assert_eq!(device.location(), Location::Device);

    // Nothing can run before the hold is gone, so whatever returns before has not waited.
    let hold = LaggingStream::hold(&stream).unwrap();
    let x = tensor(&stream, &mlp.x, &[1, ROWS, WIDTH]);
    let (w1, b1) = (tensor(&stream, &mlp.w1, &[HIDDEN, WIDTH]), tensor(&stream, &mlp.b1, &[HIDDEN]));
    let (w2, b2) = (tensor(&stream, &mlp.w2, &[OUT, HIDDEN]), tensor(&stream, &mlp.b2, &[OUT]));
    let (mut h, mut y) = (empty(&stream, &[1, ROWS, HIDDEN]), empty(&stream, &[1, ROWS, OUT]));
    assert!(x.buffer().host_ptr().is_none() && x.as_slice::<f32>().is_err());

    let product = |n, k| GemmStatic::new(n, k, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32);
    let add = BinaryStatic { function: BinaryFunction::Add, a: DType::F32, b: DType::F32, output: DType::F32 };
    let gelu = ActivationStatic { activation: Activation::Gelu, gate: Gate::None, x: DType::F32, out: DType::F32 };
    let call = GemmDynamic { batch: 1, m: ROWS };

    run::<Gemm>(&registry, &stream, &product(HIDDEN, WIDTH), call, &[Some(x.view()), Some(right(&w1))], &mut h);
    let bias = [None, Some(repeated(&b1, ROWS))];
    run::<Binary>(&registry, &stream, &add, BinaryDynamic::new(ROWS * HIDDEN), &bias, &mut h);
    let shape = ActivationDynamic { rows: ROWS, width: HIDDEN };
    run::<Activate>(&registry, &stream, &gelu, shape, &[None], &mut h);
    run::<Gemm>(&registry, &stream, &product(OUT, HIDDEN), call, &[Some(h.view()), Some(right(&w2))], &mut y);
    let bias = [None, Some(repeated(&b2, ROWS))];
    run::<Binary>(&registry, &stream, &add, BinaryDynamic::new(ROWS * OUT), &bias, &mut y);

    let done = stream.record().unwrap();
    assert!(!done.is_complete(), "ten pieces of work are queued and none can have run");
    drop(hold);
    let got = y.to_vec_on::<f32>(&*stream).unwrap();
    assert!(done.is_complete());
    mlp.assert_close(&got);
}

#[test]
fn a_context_chooses_and_runs_rows_that_were_added_outside() {
    let mlp = Mlp::random();
    let ctx = Context::new(device(), Arc::new(registry()), Policy::default()).unwrap();
    let f32s = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let x = ctx.tensor(&f32s(&mlp.x), &[1, ROWS, WIDTH]).unwrap();
    let (w1, b1) =
        (ctx.tensor(&f32s(&mlp.w1), &[HIDDEN, WIDTH]).unwrap(), ctx.tensor(&f32s(&mlp.b1), &[HIDDEN]).unwrap());
    let (w2, b2) = (ctx.tensor(&f32s(&mlp.w2), &[OUT, HIDDEN]).unwrap(), ctx.tensor(&f32s(&mlp.b2), &[OUT]).unwrap());
    let mut h = ctx.uninitialised(DType::F32, &[1, ROWS, HIDDEN]).unwrap();
    let mut y = ctx.uninitialised(DType::F32, &[1, ROWS, OUT]).unwrap();

    let linear = |n, k, activation| {
        GemmStatic::new(n, k, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32).with(Epilogue {
            bias: Some(DType::F32),
            activation,
            ..Epilogue::default()
        })
    };
    let first = linear(HIDDEN, WIDTH, Some(Activation::Gelu));
    let second = linear(OUT, HIDDEN, None);
    let call = GemmDynamic { batch: 1, m: ROWS };
    let planned = ctx.plan::<Gemm>(first.clone(), &[call]).unwrap();
    assert_eq!(planned.rows()[0].1.row().name, "gemm.lagging.f64");
    planned.run(&ctx, &call, &[Some(x.view()), Some(right(&w1)), Some(b1.view())], &[h.view_mut().unwrap()]).unwrap();
    ctx.run::<Gemm>(&second, &call, &[Some(h.view()), Some(right(&w2)), Some(b2.view())], &[y.view_mut().unwrap()])
        .unwrap();
    mlp.assert_close(&y.to_vec_on::<f32>(&**ctx.stream()).unwrap());

    let explained = ctx.explain::<Gemm>(&first, &call).unwrap().to_string();
    assert!(explained.contains("* gemm.lagging.f64"), "{explained}");
    let gated = first.with(Epilogue { gated: true, ..Epilogue::default() });
    let error = ctx.choose::<Gemm>(&gated, &call).unwrap_err().to_string();
    assert!(error.contains("gated epilogues are not supported"), "{error}");
}

#[test]
fn an_error_surfaces_at_synchronisation_under_the_operators_name() {
    let (registry, device) = (registry(), device());
    let stream = device.clone().stream().unwrap();
    let x = tensor(&stream, &[1.0, 2.0, 3.0], &[3]);
    let mut y = empty(&stream, &[2]);
    let mut z = tensor(&stream, &[5.0, 6.0], &[2]);
    let index = Tensor::from_slice(&device, &[1i32, 9], &[2]).unwrap();
    let fixed = GatherStatic { dtype: DType::F32, dim: 0 };
    let call = GatherDynamic { elements: 2, size: 3 };
    run::<Gather>(&registry, &stream, &fixed, call, &[Some(x.view()), Some(index.view())], &mut y);
    // What is enqueued behind the failure is not run on what it left.
    let negate = BinaryStatic { function: BinaryFunction::Mul, a: DType::F32, b: DType::F32, output: DType::F32 };
    run::<Binary>(&registry, &stream, &negate, BinaryDynamic::with_scalar(2, -1.0), &[None, None], &mut z);
    let error = stream.synchronize().unwrap_err().to_string();
    assert_eq!(error, "gather failed on lagging:0: index 9 at position 1 is outside the 3 elements");
    // Reported once; the stream goes on.
    stream.synchronize().unwrap();
    assert_eq!(z.to_vec_on::<f32>(&*stream).unwrap(), [5.0, 6.0]);
}

#[test]
fn kernels_refuse_streams_and_operands_of_other_devices() {
    let (registry, device) = (registry(), device());
    let other = Lagging::new(1, Duration::ZERO);
    let stream = device.clone().stream().unwrap();
    let (here, there) = (tensor(&stream, &[1.0], &[1]), Tensor::from_slice(&other, &[1.0f32], &[1]).unwrap());
    let add = BinaryStatic { function: BinaryFunction::Add, a: DType::F32, b: DType::F32, output: DType::F32 };
    let rows = registry.table::<Binary>().unwrap().rows();
    let lagging = rows.iter().find(|row| row.device == KIND).unwrap();
    let portable = rows.iter().find(|row| row.name == "binary.cpu.portable").unwrap();
    let call = BinaryDynamic::new(1);
    let mut y = empty(&stream, &[1]);
    let inputs = [Some(here.view()), Some(there.view())];
    let outputs = [y.view_mut().unwrap()];
    let operands = Operands { inputs: &inputs, outputs: &outputs };
    let launch = Launch::new(&stream, None).unwrap();
    let error = lagging.launch(&launch, &add, &call, operands).unwrap_err().to_string();
    assert_eq!(error, "binary: an operand is on lagging:1, the kernel runs on lagging:0");
    let error = portable.launch(&launch, &add, &call, operands).unwrap_err().to_string();
    assert_eq!(error, "binary.cpu.portable runs on cpu and was given a stream of lagging:0");
    let cpu = Cpu::get().stream().unwrap();
    let launch = Launch::new(&cpu, None).unwrap();
    assert!(lagging.launch(&launch, &add, &call, operands).is_err());
}
