//! Tensors that go to a device whose bytes the host cannot reach, and come back.

use std::time::Duration;

use sinew_foreign_device::{Lagging, LaggingStream};
use sinew_memory::{Cpu, Error as MemoryError};
use sinew_tensor::{DType, Error, Layout, Tensor};

#[test]
fn a_transposed_tensor_goes_to_the_device_and_back() {
    let (cpu, device) = (Cpu::get(), Lagging::new(0, Duration::from_millis(1)));
    let (host, there) = (cpu.clone().stream().unwrap(), device.clone().stream().unwrap());
    let values: Vec<i32> = (0..35).collect();
    let tensor = Tensor::from_slice(&cpu, &values, &[5, 7]).unwrap();

    // What is uploaded late is what the tensor held when it was asked for, though its memory is gone by then.
    let hold = LaggingStream::hold(&there).unwrap();
    let turned = tensor.t().unwrap();
    let away = turned.to_device(&*host, &*there).unwrap();
    let expected = turned.to_vec::<i32>().unwrap();
    drop((tensor, turned));
    drop(hold);
    assert_eq!((away.device().id(), away.shape()), (device.id(), &[7, 5][..]));
    assert!(away.layout().is_contiguous());
    assert!(matches!(away.as_slice::<i32>(), Err(Error::Memory(MemoryError::NotHostVisible { .. }))));

    // Transposed once more on the device: the first tensor, in order.
    let back = away.t().unwrap().to_device(&*there, &*host).unwrap();
    assert_eq!(back.shape(), &[5, 7]);
    assert_eq!(back.as_slice::<i32>().unwrap(), values);
    assert_eq!(away.to_device(&*there, &*host).unwrap().as_slice::<i32>().unwrap(), expected);

    let empty = away.narrow(0, 7, 0).unwrap().to_device(&*there, &*host).unwrap();
    assert_eq!((empty.shape(), empty.as_slice::<i32>().unwrap().len()), (&[0, 5][..], 0));
}

#[test]
fn a_copy_on_one_device_waits_for_the_stream_that_writes() {
    let device = Lagging::new(0, Duration::from_millis(1));
    let (first, second) = (device.clone().stream().unwrap(), device.clone().stream().unwrap());
    let mut tensor = Tensor::zeros(&device, DType::F32, &[2, 3]).unwrap();
    let hold = LaggingStream::hold(&first).unwrap();
    tensor.upload(&*first, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    // Neither call waits: the copy is queued behind the upload that is held.
    let copy = tensor.select(0, 1).unwrap().to_device(&*first, &*second).unwrap();
    drop(hold);
    assert_eq!(copy.to_vec_on::<f32>(&*second).unwrap(), [4.0, 5.0, 6.0]);
    let turned = tensor.t().unwrap().to_device(&*first, &*second).unwrap();
    assert_eq!(turned.layout(), &Layout::contiguous(&[3, 2]).unwrap());
    assert_eq!(turned.to_vec_on::<f32>(&*second).unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn what_cannot_be_copied_says_why() {
    let (cpu, device) = (Cpu::get(), Lagging::new(0, Duration::ZERO));
    let (host, there) = (cpu.clone().stream().unwrap(), device.clone().stream().unwrap());
    let tensor = Tensor::zeros(&cpu, DType::F32, &[1]).unwrap();
    let error = tensor.to_device(&*there, &*host).unwrap_err();
    assert_eq!(error.to_string(), "to_device: the tensor is on cpu, its stream on lagging:0");
    let wide = tensor.broadcast_to(&[1 << 25]).unwrap();
    let error = wide.to_device(&*host, &*there).unwrap_err();
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { .. })), "{error}");
}
