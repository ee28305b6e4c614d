//! What the host sees of tensors: slices, vectors, `ndarray` arrays; and what it may not write.

use std::sync::Arc;

use float8::F8E4M3;
use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayD, Axis, IxDyn, array};
use sinew_memory::{Buffer, Cpu, Error as MemoryError, SimdLevel};
use sinew_tensor::{DType, Error, Layout, Tensor};

fn counting(shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
    Tensor::from_slice(&Cpu::get(), &values, shape).unwrap()
}

#[test]
fn slices_are_the_elements_themselves() {
    let mut tensor = counting(&[2, 3]);
    tensor.as_mut_slice::<f32>().unwrap()[4] = 40.0;
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 40.0, 5.0]);
    assert_eq!(tensor.select(0, 1).unwrap().as_slice::<f32>().unwrap(), [3.0, 40.0, 5.0]);
    assert!(matches!(tensor.as_slice::<i32>(), Err(Error::DType { .. })));
    assert!(matches!(tensor.as_mut_slice::<f16>(), Err(Error::DType { .. })));
    assert!(matches!(tensor.t().unwrap().as_slice::<f32>(), Err(Error::Shape { .. })));
    assert!(tensor.t().unwrap().as_mut_slice::<f32>().is_err());
}

#[test]
fn a_buffer_of_odd_length_or_address_is_read_where_it_is_aligned() {
    let buffer = Buffer::from_slice::<u8>(&Cpu::get(), &[1, 0, 2, 0, 3, 0, 9]).unwrap();
    let tensor = Tensor::new(buffer.clone(), DType::I16, Layout::contiguous(&[3]).unwrap()).unwrap();
    assert_eq!(tensor.as_slice::<i16>().unwrap(), [1, 2, 3]);
    assert!(Tensor::new(buffer.clone(), DType::I16, Layout::contiguous(&[4]).unwrap()).is_err());
    assert!(Tensor::new(buffer, DType::I16, Layout::strided(&[0], &[1], 4).unwrap()).is_err());
}

#[test]
fn vectors_become_tensors_without_a_copy() {
    let values = vec![1.0f32, 2.0, 3.0];
    let address = values.as_ptr();
    let tensor = Tensor::from_vec(&Cpu::get(), values, &[3, 1]).unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap().as_ptr(), address);
    assert!(Tensor::from_vec(&Cpu::get(), vec![1u8], &[2]).is_err());
    assert_eq!(tensor.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn truth_values_are_one_byte_each() {
    let tensor = Tensor::from_bools(&Cpu::get(), &[true, false, true, true], &[2, 2]).unwrap();
    assert_eq!(tensor.dtype(), DType::Bool);
    assert_eq!(tensor.t().unwrap().to_bools().unwrap(), [true, true, false, true]);
    assert!(counting(&[1]).to_bools().is_err());
    assert!(tensor.as_slice::<u8>().is_err(), "bool is not u8");
}

#[test]
fn what_others_see_cannot_be_written() {
    let mut tensor = counting(&[2, 3]);
    let other = tensor.t().unwrap();
    let shared = |error: Error| matches!(error, Error::Memory(MemoryError::Shared { handles: 2 }));
    assert!(shared(tensor.as_mut_slice::<f32>().unwrap_err()));
    assert!(shared(tensor.as_ndarray_mut::<f32>().unwrap_err()));
    assert!(shared(tensor.view_mut().unwrap_err()));
    drop(other);
    assert!(tensor.view_mut().is_ok());
    let mut wide = tensor.broadcast_to(&[4, 2, 3]).unwrap();
    drop(tensor);
    assert!(wide.view_mut().is_err() && wide.as_ndarray_mut::<f32>().is_err() && wide.as_mut_slice::<f32>().is_err());
    let mut row = wide.select(0, 0).unwrap();
    drop(wide);
    row.as_mut_slice::<f32>().unwrap()[0] = 1.0;
}

#[test]
fn ndarray_sees_every_layout_and_writes_through_it() {
    let mut tensor = counting(&[4, 6]);
    {
        let view = tensor.slice(1, 1..6, 2).unwrap().t().unwrap();
        let seen = view.as_ndarray::<f32>().unwrap();
        assert_eq!(seen.shape(), &[3, 4]);
        assert_eq!(seen[[2, 3]], 23.0);
        assert_eq!(seen.as_ptr(), tensor.as_slice::<f32>().unwrap()[1..].as_ptr());
        let wide = tensor.select(0, 0).unwrap().broadcast_to(&[3, 6]).unwrap();
        assert_eq!(
            wide.as_ndarray::<f32>().unwrap().sum_axis(Axis(0)),
            (0..6).map(|i| 3.0 * i as f32).collect::<Array1<_>>().into_dyn()
        );
    }
    tensor = tensor.transpose(0, 1).unwrap();
    tensor.as_ndarray_mut::<f32>().unwrap().index_axis_mut(Axis(0), 2).fill(-1.0);
    assert_eq!(tensor.select(1, 3).unwrap().as_slice::<f32>().unwrap(), [18.0, 19.0, -1.0, 21.0, 22.0, 23.0]);
    assert_eq!(tensor.to_ndarray::<f32>().unwrap(), tensor.as_ndarray::<f32>().unwrap());
    assert!(tensor.as_ndarray::<f64>().is_err());
    let mut point = Tensor::from_slice(&Cpu::get(), &[2i64], &[]).unwrap();
    point.as_ndarray_mut::<i64>().unwrap().fill(5);
    assert_eq!(point.as_ndarray::<i64>().unwrap()[IxDyn(&[])], 5);
}

#[test]
fn arrays_become_tensors_without_a_copy_where_strides_allow() {
    let cpu = Cpu::get();
    let array = Array2::from_shape_fn((3, 4), |(i, j)| (i * 4 + j) as i32);
    let address = array.as_ptr();
    let turned = Tensor::from_ndarray(&cpu, array.clone().reversed_axes()).unwrap();
    assert_eq!(turned.as_ndarray::<i32>().unwrap(), array.t().into_dyn());
    assert_eq!(turned.layout().strides(), &[1, 4]);
    let same = Tensor::from_ndarray(&cpu, array).unwrap();
    assert_eq!(same.as_slice::<i32>().unwrap().as_ptr(), address);

    let mut sliced = same.to_ndarray::<i32>().unwrap();
    sliced.slice_axis_inplace(Axis(1), (1..4).into());
    sliced.slice_axis_inplace(Axis(0), ndarray::Slice::new(1, None, 2));
    let expected = sliced.clone();
    let kept = Tensor::from_ndarray(&cpu, sliced).unwrap();
    assert_eq!((kept.shape(), kept.layout().offset()), (&[1, 3][..], 5));
    assert_eq!(kept.as_ndarray::<i32>().unwrap(), expected);

    let mut backwards = array![1, 2, 3];
    backwards.invert_axis(Axis(0));
    assert_eq!(Tensor::from_ndarray(&cpu, backwards).unwrap().as_slice::<i32>().unwrap(), [3, 2, 1]);
    assert_eq!(Tensor::from_ndarray(&cpu, ArrayD::<f32>::zeros(IxDyn(&[2, 0, 3]))).unwrap().shape(), &[2, 0, 3]);
    assert_eq!(Tensor::from_ndarray(&cpu, ndarray::arr0(4u8)).unwrap().as_slice::<u8>().unwrap(), [4]);
    assert!(Tensor::from_ndarray(&cpu, ArrayD::<f32>::zeros(IxDyn(&[1; 9]))).is_err());

    let borrowed = array![[1.0f32, 2.0], [3.0, 4.0]];
    let copy = Tensor::copy_of_ndarray(&cpu, &borrowed.t()).unwrap();
    assert_eq!(copy.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(Tensor::copy_of_ndarray(&cpu, &borrowed.view()).unwrap().shape(), &[2, 2]);
}

#[test]
fn every_dtype_widens_to_f64() {
    let cpu = Cpu::get();
    let stream = cpu.clone().stream().unwrap();
    let widened = |tensor: Tensor| tensor.to_f64_vec(&*stream).unwrap();
    assert_eq!(widened(Tensor::from_slice(&cpu, &[f16::from_f32(0.5)], &[1]).unwrap()), [0.5]);
    assert_eq!(widened(Tensor::from_slice(&cpu, &[bf16::from_f32(-2.0)], &[1]).unwrap()), [-2.0]);
    assert_eq!(widened(Tensor::from_slice(&cpu, &[-3i64, 9], &[2]).unwrap()), [-3.0, 9.0]);
    assert_eq!(widened(Tensor::from_bools(&cpu, &[true], &[]).unwrap()), [1.0]);
    for (dtype, bits) in [(DType::F8E4M3, 0x38), (DType::F8E5M2, 0x3c)] {
        assert_eq!(widened(Tensor::from_bytes(&cpu, &[bits], dtype, &[1]).unwrap()), [1.0]);
    }
    let eighths = Tensor::from_slice(&cpu, &[F8E4M3::from_f64(0.125)], &[1]).unwrap();
    assert_eq!(eighths.as_slice::<F8E4M3>().unwrap()[0].to_f64(), 0.125);
    for (dtype, bits) in [(DType::F8E4M3, 0xb8), (DType::F8E5M2, 0xbc)] {
        assert_eq!(widened(Tensor::from_bytes(&cpu, &[bits], dtype, &[1]).unwrap()), [-1.0]);
    }
}

#[test]
fn a_copy_to_another_device_is_contiguous_whatever_the_strides() {
    let (cpu, other) = (Cpu::get(), Cpu::with(1, SimdLevel::Portable).unwrap());
    let (from, to) = (cpu.stream().unwrap(), other.clone().stream().unwrap());
    let tensor = counting(&[4, 6]);
    let views = [
        tensor.clone(),
        tensor.t().unwrap(),
        tensor.slice(1, 1..6, 2).unwrap(),
        tensor.select(0, 3).unwrap(),
        tensor.select(1, 5).unwrap().broadcast_to(&[3, 4]).unwrap(),
        tensor.narrow(0, 4, 0).unwrap(),
        tensor.select(0, 2).unwrap().select(0, 1).unwrap(),
    ];
    for view in views {
        let copy = view.to_device(&*from, &*to).unwrap();
        assert!(Arc::ptr_eq(copy.device(), &other));
        assert_eq!((copy.shape(), copy.dtype()), (view.shape(), view.dtype()));
        assert_eq!(copy.layout(), &Layout::contiguous(view.shape()).unwrap());
        assert_eq!(copy.to_vec_on::<f32>(&*to).unwrap(), view.to_vec::<f32>().unwrap(), "{:?}", view.layout());
    }
    // The copy is nobody else's: it may be written, and the original stays.
    let mut copy = tensor.to_device(&*from, &*to).unwrap();
    copy.as_mut_slice::<f32>().unwrap()[0] = -1.0;
    assert_eq!(tensor.as_slice::<f32>().unwrap()[0], 0.0);
    let truth = Tensor::from_bools(&Cpu::get(), &[true, false], &[2]).unwrap().to_device(&*from, &*to).unwrap();
    assert_eq!(truth.to_bools().unwrap(), [true, false]);
}
