//! Memory under work that is still queued.

use std::sync::Arc;
use std::time::Duration;

use sinew_foreign_device::{Lagging, LaggingStream, binary_rows};
use sinew_kernels::elementwise::{BinaryDynamic, BinaryFunction, BinaryStatic};
use sinew_kernels::{Launch, Operands};
use sinew_memory::{Buffer, Device, Pool, PoolConfig, Stream};
use sinew_tensor::{DType, Layout, Tensor};

const N: usize = 1000;

fn device() -> Arc<dyn Device> {
    Lagging::new(0, Duration::from_millis(1))
}

fn tensor(buffer: Buffer) -> Tensor {
    Tensor::new(buffer, DType::F32, Layout::contiguous(&[N]).unwrap()).unwrap()
}

/// Enqueues `y = a + b`.
fn add(stream: &Arc<dyn Stream>, a: &Tensor, b: &Tensor, y: &mut Tensor) {
    let fixed = BinaryStatic { function: BinaryFunction::Add, a: DType::F32, b: DType::F32, output: DType::F32 };
    let (inputs, outputs) = ([Some(a.view()), Some(b.view())], [y.view_mut().unwrap()]);
    let launch = Launch::new(stream, None).unwrap();
    let operands = Operands { inputs: &inputs, outputs: &outputs };
    binary_rows()[0].launch(&launch, &fixed, &BinaryDynamic::new(N), operands).unwrap();
}

#[test]
fn a_pool_does_not_hand_out_what_queued_work_still_reads() {
    let device = device();
    let pool = Pool::new(device.clone(), PoolConfig::default());
    let (work, other) = (device.clone().stream().unwrap(), device.clone().stream().unwrap());
    let new = || tensor(pool.uninitialised(4 * N).unwrap());
    let (mut a, mut b, mut y) = (new(), new(), new());
    a.upload(&*work, &[1.0f32; N]).unwrap();
    b.upload(&*work, &[2.0f32; N]).unwrap();
    work.synchronize().unwrap();

    let hold = LaggingStream::hold(&work).unwrap();
    add(&work, &a, &b, &mut y);
    let place = |t: &Tensor| (Arc::as_ptr(&t.buffer().span().storage).cast::<u8>(), t.buffer().span().offset);
    let in_use = [place(&a), place(&b)];
    drop((a, b));
    assert_eq!(pool.stats().pending_spans, 2, "the queue still reads both");
    // Another stream, which is not held, overwrites whatever the pool hands out meanwhile.
    let mut fresh: Vec<Tensor> = (0..4).map(|_| new()).collect();
    for t in &mut fresh {
        assert!(!in_use.contains(&place(t)), "handed out under queued work");
        t.upload(&*other, &[-7.0f32; N]).unwrap();
    }
    other.synchronize().unwrap();

    drop(hold);
    assert_eq!(y.to_vec_on::<f32>(&*work).unwrap(), [3.0f32; N]);
    // Now that the work is done, the places come back.
    let again: Vec<Tensor> = (0..2).map(|_| new()).collect();
    assert!(again.iter().all(|t| in_use.contains(&place(t))), "freed memory is used again");
    assert_eq!(pool.stats().pending_spans, 0);
}

#[test]
fn buffers_outside_a_pool_live_as_long_as_work_on_them_is_queued() {
    let device = device();
    let stream = device.clone().stream().unwrap();
    let new = || tensor(Buffer::uninitialised(&device, 4 * N).unwrap());
    let (mut a, mut b, mut y) = (new(), new(), new());
    let hold = LaggingStream::hold(&stream).unwrap();
    a.upload(&*stream, &[1.0f32; N]).unwrap();
    b.upload(&*stream, &[2.0f32; N]).unwrap();
    add(&stream, &a, &b, &mut y);
    drop((a, b));
    assert_eq!(Lagging::used_bytes(&device), 3 * 4 * N);
    drop(hold);
    assert_eq!(y.to_vec_on::<f32>(&*stream).unwrap(), [3.0f32; N]);
    assert_eq!(Lagging::used_bytes(&device), 4 * N);
    drop(y);
    assert_eq!(Lagging::used_bytes(&device), 0);
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let device = device();
    let (first, second) = (device.clone().stream().unwrap(), device.clone().stream().unwrap());
    let new = || tensor(Buffer::uninitialised(&device, 4 * N).unwrap());
    let (mut a, mut y) = (new(), new());
    let hold = LaggingStream::hold(&first).unwrap();
    a.upload(&*first, &[4.0f32; N]).unwrap();
    let uploaded = first.record().unwrap();
    second.wait(&uploaded).unwrap();
    add(&second, &a, &a, &mut y);
    let added = second.record().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!uploaded.is_complete() && !added.is_complete(), "the second stream has overtaken the first");
    drop(hold);
    assert_eq!(y.to_vec_on::<f32>(&*second).unwrap(), [8.0f32; N]);
    assert!(uploaded.is_complete() && added.is_complete());
}

#[test]
fn a_device_that_is_full_says_so_before_anything_is_enqueued() {
    let device = device();
    let held = Buffer::uninitialised(&device, 60 << 20).unwrap();
    let error = Buffer::uninitialised(&device, 8 << 20).unwrap_err().to_string();
    assert!(error.starts_with("out of memory on lagging:0"), "{error}");
    drop(held);
    Buffer::uninitialised(&device, 8 << 20).unwrap();
}
