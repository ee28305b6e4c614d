//! Every wgpu row of every table against its f64 reference, on the adapter that there is: as it is, and held down to
//! the least that WebGPU promises.
//!
//! `cargo test --test wgpu -- --nocapture` prints the table; `SINEW_DEPTH=full` walks all cases.

#[path = "common/harness.rs"]
mod harness;
#[path = "common/support.rs"]
mod support;

use std::sync::Arc;

use sinew::kernels::cast::{Cast, CastStatic};
use sinew::kernels::elementwise::Elements;
use sinew::kernels::embedding::{Embedding, EmbeddingDynamic, EmbeddingStatic, TableKind};
use sinew::kernels::harness::case::Depth;
use sinew::kernels::{Launch, Operands, Operator, Registry};
use sinew::memory::webgpu::{WgpuDevice, WgpuOptions};
use sinew::memory::{Buffer, Device, DeviceKind, Stream};
use sinew::tensor::{DType, Layout, Tensor};
use sinew_conformance::rows;

fn depth() -> Depth {
    match std::env::var("SINEW_DEPTH").as_deref() {
        Ok("full") => Depth::Full,
        _ => Depth::Quick,
    }
}

fn open(options: &WgpuOptions) -> Arc<dyn Device> {
    WgpuDevice::open(0, options).unwrap()
}

/// Walks every wgpu row.
fn every_row_is_within_its_bound(options: &WgpuOptions) {
    let device = open(options);
    let hardware = device.hardware();
    let offers = hardware.accelerator.as_ref().expect("an adapter says what it offers");
    harness::show(format_args!(
        "{}: {} with subgroups {:?}, f16 {}",
        device.id(),
        hardware.name,
        offers.subgroup_size,
        offers.f16
    ));
    harness::show(format_args!(
        "bindings up to {} bytes, {} of them, {} bytes per workgroup",
        offers.max_binding_bytes, offers.max_bindings, offers.workgroup_bytes
    ));
    let mut table = Vec::new();
    let failed = rows::check(Registry::standard().tables(), &device, depth(), &mut table).unwrap();
    let table = String::from_utf8_lossy(&table);
    harness::show(&table);
    assert!(failed.rows.is_empty() && failed.of >= 16, "{table}");
    // An adapter that offers everything lacks nothing.
    assert!(!offers.f16 || offers.subgroup_size.is_none() || !table.contains("not here"), "{table}");
}

fn every_row_is_within_its_bound_on_the_adapter_as_it_is() {
    every_row_is_within_its_bound(&WgpuOptions::default());
}

fn every_row_is_within_its_bound_on_the_least_that_webgpu_promises() {
    every_row_is_within_its_bound(&WgpuOptions::least());
}

fn place(stream: &Arc<dyn Stream>, bytes: &[u8], dtype: DType, shape: &[usize]) -> Tensor {
    let mut buffer = Buffer::uninitialised(stream.device(), bytes.len()).unwrap();
    stream.upload(bytes, &mut buffer, 0).unwrap();
    Tensor::new(buffer, dtype, Layout::contiguous(shape).unwrap()).unwrap()
}

fn bytes<const N: usize, T: Copy>(values: &[T], of: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| of(value)).collect()
}

/// Runs the wgpu row of an operator.
fn run<O: Operator + sinew::kernels::Reference>(
    stream: &Arc<dyn Stream>,
    fixed: &O::Static,
    call: &O::Dynamic,
    inputs: &[&Tensor],
    output: &mut Tensor,
) {
    let registry = Registry::standard();
    let rows = registry.table::<O>().unwrap().rows();
    let row = rows.iter().find(|row| row.device == DeviceKind::WGPU).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|input| Some(input.view())).collect();
    let outputs = [output.view_mut().unwrap()];
    let launch = Launch::new(stream, None).unwrap();
    row.launch(&launch, fixed, call, Operands { inputs: &inputs, outputs: &outputs }).unwrap();
}

fn tables_and_casts_larger_than_a_binding_are_taken_in_parts() {
    let device = open(&WgpuOptions { max_binding_bytes: 64 << 10, ..WgpuOptions::default() });
    let stream = device.clone().stream().unwrap();
    let (vocab, width) = (3000, 64);
    let values: Vec<f32> = (0..vocab * width).map(|i| i as f32).collect();
    let table = place(&stream, &bytes(&values, f32::to_le_bytes), DType::F32, &[vocab, width]);
    let picked: Vec<u32> = (0..48).map(|i| i * 61 % 3000).chain([2999, 0]).collect();
    let ids = place(&stream, &bytes(&picked, u32::to_le_bytes), DType::U32, &[50]);
    let mut out = place(&stream, &vec![0xff; 50 * width * 4], DType::F32, &[50, width]);
    let fixed = EmbeddingStatic { width, vocab, table: TableKind::Strided(DType::F32), out: DType::F32 };
    run::<Embedding>(&stream, &fixed, &EmbeddingDynamic { tokens: 50 }, &[&ids, &table], &mut out);
    let mut back = vec![0; 50 * width * 4];
    stream.download(out.buffer(), 0, &mut back).unwrap();
    let want: Vec<f32> = picked.iter().flat_map(|&id| values[id as usize * width..][..width].to_vec()).collect();
    assert_eq!(back, bytes(&want, f32::to_le_bytes));

    let count = vocab * width;
    let mut doubled = place(&stream, &vec![0xff; count * 4], DType::I32, &[vocab, width]);
    let fixed = CastStatic { input: DType::F32, output: DType::I32 };
    run::<Cast>(&stream, &fixed, &Elements(count), &[&table], &mut doubled);
    let mut back = vec![0; count * 4];
    stream.download(doubled.buffer(), 0, &mut back).unwrap();
    let want: Vec<i32> = (0..count as i32).collect();
    assert!(back == bytes(&want, i32::to_le_bytes));
}

fn an_id_outside_the_table_is_an_error_of_the_stream_that_names_the_kernel() {
    let device = open(&WgpuOptions::default());
    let stream = device.clone().stream().unwrap();
    let table = place(&stream, &[0; 40], DType::F32, &[5, 2]);
    let mut out = place(&stream, &[0; 8], DType::F32, &[1, 2]);
    let fixed = EmbeddingStatic { width: 2, vocab: 5, table: TableKind::Strided(DType::F32), out: DType::F32 };
    for (id, fails) in [(4i64, false), (5, true), (-1, true), (1 << 32, true), (0, false)] {
        let ids = place(&stream, &id.to_le_bytes(), DType::I64, &[1]);
        run::<Embedding>(&stream, &fixed, &EmbeddingDynamic { tokens: 1 }, &[&ids, &table], &mut out);
        match stream.synchronize() {
            Ok(()) => assert!(!fails, "{id}"),
            Err(error) => assert!(fails && error.to_string().starts_with("embedding.wgpu failed"), "{id}: {error}"),
        }
    }
}

fn every_pair_of_dtypes_is_cast_as_a_cpu_casts_it() {
    let device = open(&WgpuOptions::default());
    let stream = device.clone().stream().unwrap();
    // Ties of every format, its edges, and integers that are rounded once or wrongly.
    let mut values =
        vec![0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 255.0, 256.0, -129.0, 65519.0, 65520.0, 1e-7, 6e-8, 2.9e-8, 3e-8];
    values.extend([464.0, 465.0, 448.0, 61439.0, 61440.0, 3.4e38, -3.4e38, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    values.extend([16777217.0, 16777219.0, 2147483647.0, -2147483648.0, 4294967295.0, 4294967296.0, 9.2e18, -9.3e18]);
    values.extend([
        2049.0,
        2051.0,
        257.0,
        259.0,
        33554433.0,
        8589934593.0,
        1.17549435e-38,
        1e-40,
        1.0 / 3.0,
        0.0019531,
    ]);
    let count = values.len();
    let registry = Registry::standard();
    let rows = registry.table::<Cast>().unwrap().rows();
    for input in DType::ALL {
        let encoded = sinew::kernels::harness::case::encode(input, &values);
        let x = place(&stream, &encoded, input, &[count]);
        for output in DType::ALL {
            let fixed = CastStatic { input, output };
            let takes = |kind: DeviceKind, device: &dyn Device| {
                rows.iter().find(|row| row.device == kind && (row.admits)(&fixed, device.hardware()).is_ok())
            };
            if takes(DeviceKind::WGPU, &*device).is_none() {
                assert!(input == DType::F64 || output == DType::F64, "{fixed}");
                continue;
            }
            let mut y = place(&stream, &vec![0xee; count * output.size()], output, &[count]);
            run::<Cast>(&stream, &fixed, &Elements(count), &[&x], &mut y);
            let mut found = vec![0; count * output.size()];
            stream.download(y.buffer(), 0, &mut found).unwrap();

            let cpu: Arc<dyn Device> = sinew::memory::Cpu::get();
            let host = cpu.clone().stream().unwrap();
            let row = takes(DeviceKind::CPU, &*cpu).unwrap();
            let x = place(&host, &encoded, input, &[count]);
            let mut y = place(&host, &vec![0xee; count * output.size()], output, &[count]);
            let (inputs, outputs) = ([Some(x.view())], [y.view_mut().unwrap()]);
            let launch = Launch::new(&host, None).unwrap();
            row.launch(&launch, &fixed, &Elements(count), Operands { inputs: &inputs, outputs: &outputs }).unwrap();
            let want = y.buffer().as_slice::<u8>().unwrap();
            let [found, want] = [&found[..], want].map(|bytes| sinew::kernels::harness::case::decode(output, bytes));
            for ((value, found), want) in values.iter().zip(found).zip(want) {
                assert!(
                    found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan(),
                    "{fixed} of {value:e}: {found:e}, not {want:e}"
                );
            }
        }
    }
}

fn what_the_table_of_support_claims_runs_and_all_else_is_refused() {
    let device = open(&WgpuOptions::default());
    let [supported, refused] = support::agrees_with_what_runs(&Registry::standard(), &device);
    assert!(supported > 40 && refused > 40, "{supported} and {refused}");
}

fn main() -> std::process::ExitCode {
    harness::run(
        Vec::new(),
        harness::trials![
            every_row_is_within_its_bound_on_the_adapter_as_it_is,
            every_row_is_within_its_bound_on_the_least_that_webgpu_promises,
            tables_and_casts_larger_than_a_binding_are_taken_in_parts,
            an_id_outside_the_table_is_an_error_of_the_stream_that_names_the_kernel,
            every_pair_of_dtypes_is_cast_as_a_cpu_casts_it,
            what_the_table_of_support_claims_runs_and_all_else_is_refused,
        ],
    )
}
