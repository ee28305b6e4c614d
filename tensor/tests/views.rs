//! Views are right when any chain of them names the elements that the same chain of `ndarray` operations, with a copy
//! after each, gives.

use std::collections::HashSet;

use ndarray::{ArrayD, Axis, IxDyn, Slice};
use proptest::prelude::*;
use sinew_memory::Cpu;
use sinew_tensor::{Layout, MAX_RANK, Result, Tensor};

/// One step of a chain; numbers are taken modulo what the array at hand allows.
#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    numbers: [usize; 4],
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        (0u8..14, any::<[u16; 4]>()).prop_map(|(kind, numbers)| Step { kind, numbers: numbers.map(usize::from) });
    prop::collection::vec(step, 0..8)
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![8 => 1usize..6, 1 => Just(0), 1 => Just(7)], 0..5)
}

/// A shape of as many elements, each of up to three dimensions a divisor of what is left.
fn another_shape(elements: usize, numbers: [usize; 4]) -> Vec<usize> {
    let mut left = elements;
    let mut shape = Vec::new();
    for number in &numbers[..numbers[3] % 4] {
        let divisors: Vec<usize> = (1..=left).filter(|d| left.is_multiple_of(*d)).collect();
        let size = if left == 0 { number % 3 } else { divisors[number % divisors.len()] };
        left = left.checked_div(size).unwrap_or(0);
        shape.push(size);
    }
    // Zero has to stay zero.
    if left != 1 || (elements == 0 && !shape.contains(&0)) {
        shape.push(left);
    }
    shape
}

/// The elements that a view names, in order, as they are in `array`.
fn unfolded(array: &ArrayD<i32>, dim: usize, size: usize, step: usize) -> ArrayD<i32> {
    let mut shape = array.shape().to_vec();
    shape[dim] = (shape[dim] - size) / step + 1;
    shape.push(size);
    ArrayD::from_shape_fn(IxDyn(&shape), |index| {
        let mut from: Vec<usize> = (0..array.ndim()).map(|d| index[d]).collect();
        from[dim] = index[dim] * step + index[array.ndim()];
        array[IxDyn(&from)]
    })
}

/// The layout that `layout` has under another shape, found by looking at every element; `None` where no strides fit.
fn reshaped_by_search(layout: &Layout, shape: &[usize]) -> Option<Vec<usize>> {
    let at: Vec<usize> = layout.indices().collect();
    let mut strides = vec![0; shape.len()];
    let mut inner = 1;
    for d in (0..shape.len()).rev() {
        if shape[d] > 1 {
            strides[d] = at[inner].checked_sub(at[0])?;
        }
        inner *= shape[d];
    }
    let found = Layout::strided(shape, &strides, at[0]).ok()?;
    found.indices().eq(at).then_some(strides)
}

/// Takes one step with both; returns nothing where the step does not apply.
fn advance(tensor: &Tensor, array: &ArrayD<i32>, step: &Step) -> Result<Option<(Tensor, ArrayD<i32>)>> {
    let [a, b, c, _] = step.numbers;
    let rank = array.ndim();
    let (dim, size) = if rank > 0 { (a % rank, array.shape()[a % rank]) } else { (0, 1) };
    let axis = Axis(dim);
    let small = array.len() <= 3000;
    Ok(match step.kind {
        0 if rank > 0 => {
            let mut dims: Vec<usize> = (0..rank).collect();
            dims.rotate_left(a % rank);
            dims.swap(b % rank, c % rank);
            Some((tensor.permute(&dims)?, array.clone().permuted_axes(IxDyn(&dims))))
        }
        1 if rank > 0 => {
            let mut swapped = array.clone();
            swapped.swap_axes(dim, b % rank);
            Some((tensor.transpose(dim, b % rank)?, swapped))
        }
        2 if rank > 1 => {
            let mut swapped = array.clone();
            swapped.swap_axes(rank - 2, rank - 1);
            Some((tensor.t()?, swapped))
        }
        3 if rank > 0 => {
            let start = b % (size + 1);
            let (end, by) = (start + c % (size - start + 1), 1 + step.numbers[3] % 3);
            let slice = Slice::new(start as isize, Some(end as isize), by as isize);
            Some((tensor.slice(dim, start..end, by)?, array.slice_axis(axis, slice).to_owned()))
        }
        4 if rank > 0 => {
            let start = b % (size + 1);
            let len = c % (size - start + 1);
            let slice = Slice::from(start..start + len);
            Some((tensor.narrow(dim, start, len)?, array.slice_axis(axis, slice).to_owned()))
        }
        5 if rank > 0 && size > 0 => Some((tensor.select(dim, b % size)?, array.index_axis(axis, b % size).to_owned())),
        6 | 7 => {
            let shape = another_shape(array.len(), step.numbers);
            let reshaped = array.as_standard_layout().into_owned().into_shape_with_order(IxDyn(&shape)).ok();
            let searched = if array.is_empty() { Some(vec![]) } else { reshaped_by_search(tensor.layout(), &shape) };
            match tensor.reshape(&shape) {
                Ok(view) => reshaped.map(|array| (view, array)),
                Err(error) => {
                    assert_eq!(searched, None, "{error}, and yet strides exist");
                    None
                }
            }
        }
        8 if rank + 1 < MAX_RANK && small => {
            let mut shape: Vec<usize> =
                array.shape().iter().map(|&size| if size == 1 { 1 + b % 3 } else { size }).collect();
            shape.insert(0, c % 3 + 1);
            let wide = array.broadcast(IxDyn(&shape)).map(|wide| wide.to_owned());
            wide.map(|wide| Ok::<_, sinew_tensor::Error>((tensor.broadcast_to(&shape)?, wide))).transpose()?
        }
        9 if rank > 0 && rank < MAX_RANK && small => {
            let (window, by) = (b % (size + 1), 1 + c % 3);
            Some((tensor.unfold(dim, window, by)?, unfolded(array, dim, window, by)))
        }
        10 if rank < MAX_RANK => {
            let dim = a % (rank + 1);
            Some((tensor.unsqueeze(dim)?, array.clone().insert_axis(Axis(dim))))
        }
        11 if rank > 0 && size == 1 => Some((tensor.squeeze(dim)?, array.clone().index_axis_move(axis, 0))),
        12 if rank > 0 => {
            let cut = b % (size + 1);
            let first = c % 2 == 0;
            let parts = tensor.split(dim, &[cut, size - cut])?;
            let slice = if first { Slice::from(0..cut) } else { Slice::from(cut..size) };
            Some((parts[usize::from(!first)].clone(), array.slice_axis(axis, slice).to_owned()))
        }
        13 if rank > 0 => {
            let parts = tensor.chunk(dim, 1 + b % 4)?;
            let part = &parts[c % parts.len()];
            let start: usize = parts[..c % parts.len()].iter().map(|part| part.shape()[dim]).sum();
            assert_eq!(parts.iter().map(|part| part.shape()[dim]).sum::<usize>(), size);
            let slice = Slice::from(start..start + part.shape()[dim]);
            Some((part.clone(), array.slice_axis(axis, slice).to_owned()))
        }
        _ => None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_chain_of_views_names_the_elements_that_ndarray_copies(shape in shapes(), steps in steps()) {
        let elements: usize = shape.iter().product();
        let values: Vec<i32> = (0..elements as i32).collect();
        let mut tensor = Tensor::from_slice(&Cpu::get(), &values, &shape).unwrap();
        let mut array = ArrayD::from_shape_vec(IxDyn(&shape), values).unwrap();
        for step in &steps {
            if let Some((next, expected)) = advance(&tensor, &array, step).unwrap() {
                (tensor, array) = (next, expected.as_standard_layout().into_owned());
            }
            prop_assert_eq!(tensor.shape(), array.shape(), "after {:?}", step);
            prop_assert_eq!(tensor.to_vec::<i32>().unwrap(), array.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(tensor.as_ndarray::<i32>().unwrap(), array.view());
            let layout = tensor.layout();
            let contiguous = layout.indices().eq(layout.offset()..layout.offset() + layout.elements());
            prop_assert_eq!(layout.is_contiguous(), contiguous, "{:?}", layout);
            let named: HashSet<usize> = layout.indices().collect();
            prop_assert_eq!(layout.overlaps(), named.len() < layout.elements(), "{:?}", layout);
            prop_assert!(named.iter().all(|&at| at < layout.end()));
            prop_assert!(layout.end() * 4 <= tensor.buffer().len());
        }
    }

    #[test]
    fn overlap_of_small_layouts_of_any_strides_is_exact(
        dims in prop::collection::vec((0usize..5, 0usize..12), 0..6), offset in 0usize..4,
    ) {
        let (shape, strides): (Vec<usize>, Vec<usize>) = dims.into_iter().unzip();
        let layout = Layout::strided(&shape, &strides, offset).unwrap();
        let named: HashSet<usize> = layout.indices().collect();
        prop_assert_eq!(layout.overlaps(), named.len() < layout.elements(), "{:?}", layout);
    }

    #[test]
    fn reshape_finds_strides_wherever_there_are_some(
        dims in prop::collection::vec((1usize..7, 0usize..12), 0..5), numbers in any::<[u16; 4]>(),
    ) {
        let (shape, strides): (Vec<usize>, Vec<usize>) = dims.into_iter().unzip();
        let layout = Layout::strided(&shape, &strides, 1).unwrap();
        let shape = another_shape(layout.elements(), numbers.map(usize::from));
        let found = layout.reshape(&shape).ok();
        prop_assert_eq!(found.is_some(), reshaped_by_search(&layout, &shape).is_some(), "{:?} to {:?}", layout, shape);
        if let Some(found) = found {
            prop_assert!(found.indices().eq(layout.indices()));
        }
    }
}

#[test]
fn views_refuse_what_is_not_there() {
    let layout = Layout::contiguous(&[2, 3]).unwrap();
    let point = Layout::contiguous(&[]).unwrap();
    assert!(layout.permute(&[0]).is_err() && layout.permute(&[0, 0]).is_err() && layout.permute(&[0, 2]).is_err());
    assert!(layout.transpose(0, 2).is_err() && point.transpose(0, 0).is_err() && point.t().is_err());
    assert!(
        layout.slice(1, 0..4, 1).is_err() && layout.slice(1, 0..3, 0).is_err() && layout.slice(2, 0..0, 1).is_err()
    );
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = layout.slice(1, 2..1, 1);
    assert!(backwards.is_err());
    assert!(layout.narrow(1, 2, 2).is_err() && layout.narrow(1, usize::MAX, 2).is_err());
    assert!(layout.select(0, 2).is_err() && layout.select(2, 0).is_err() && point.select(0, 0).is_err());
    assert!(layout.squeeze(0).is_err() && layout.squeeze(2).is_err() && layout.unsqueeze(3).is_err());
    assert!(layout.flatten(0..3).is_err() && layout.t().unwrap().flatten(0..2).is_err());
    assert!(layout.unfold(1, 4, 1).is_err() && layout.unfold(1, 2, 0).is_err() && layout.unfold(2, 1, 1).is_err());
    assert!(layout.split(1, &[1, 1]).is_err() && layout.split(1, &[usize::MAX, 4]).is_err());
    assert!(layout.chunk(1, 0).is_err() && layout.chunk(2, 1).is_err());
    assert!(layout.reshape(&[7]).is_err() && layout.reshape(&[usize::MAX, 2]).is_err());
    for refused in [&[2][..], &[1, 3], &[0, 3], &[3, 2, 1]] {
        assert!(layout.broadcast_to(refused).is_err(), "{refused:?}");
    }
}

#[test]
fn more_than_eight_dimensions_and_sizes_past_the_address_space_are_errors() {
    let full = Layout::contiguous(&[1; MAX_RANK]).unwrap();
    assert!(Layout::contiguous(&[1; MAX_RANK + 1]).is_err());
    assert!(full.unsqueeze(0).is_err() && full.unfold(0, 1, 1).is_err());
    assert!(full.reshape(&[1; MAX_RANK + 1]).is_err() && full.broadcast_to(&[1; MAX_RANK + 1]).is_err());
    assert!(full.flatten(3..3).is_err());
    assert!(Layout::contiguous(&[1 << 40, 1 << 40]).is_err());
    assert!(Layout::contiguous(&[1 << 40, 0, 1 << 40]).is_err(), "a size of 0 hides nothing");
    assert!(Layout::contiguous(&[1]).unwrap().broadcast_to(&[usize::MAX, 1]).is_err());
    assert!(Layout::strided(&[2], &[usize::MAX], 0).is_err());
    assert!(Layout::strided(&[1], &[0], usize::MAX).is_err());
    let wide = Layout::contiguous(&[1]).unwrap().broadcast_to(&[1 << 59]).unwrap();
    assert!(wide.unfold(0, 1 << 58, 1).is_err(), "windows that would be too many elements");
    assert!(Tensor::zeros(&Cpu::get(), sinew_tensor::DType::F64, &[1 << 60]).is_err());
    assert_eq!(Layout::contiguous(&[5]).unwrap().slice(0, 4..5, usize::MAX).unwrap().shape(), &[1]);
}

#[test]
fn tensors_without_dimensions_or_elements_are_tensors() {
    let cpu = Cpu::get();
    let point = Tensor::from_slice(&cpu, &[7i32], &[]).unwrap();
    assert_eq!((point.shape(), point.to_vec::<i32>().unwrap()), (&[][..], vec![7]));
    assert_eq!(
        point.reshape(&[1, 1]).unwrap().flatten(0..2).unwrap().squeeze(0).unwrap().as_slice::<i32>().unwrap(),
        [7]
    );
    assert_eq!(point.flatten(0..0).unwrap().shape(), &[1]);
    assert_eq!(point.permute(&[]).unwrap().broadcast_to(&[2]).unwrap().to_vec::<i32>().unwrap(), [7, 7]);

    let empty = Tensor::from_slice::<i32>(&cpu, &[], &[3, 0, 2]).unwrap();
    for view in [
        empty.t().unwrap(),
        empty.select(0, 2).unwrap(),
        empty.narrow(2, 1, 1).unwrap(),
        empty.slice(0, 1..3, 2).unwrap(),
        empty.reshape(&[0, 9]).unwrap(),
        empty.flatten(0..3).unwrap(),
        empty.broadcast_to(&[4, 3, 0, 2]).unwrap(),
        empty.unfold(0, 2, 1).unwrap(),
        empty.unfold(1, 0, 1).unwrap(),
    ] {
        assert_eq!(view.layout().elements(), 0);
        assert!(view.as_slice::<i32>().unwrap().is_empty());
        assert!(view.to_vec::<i32>().unwrap().is_empty());
        assert!(view.layout().is_contiguous() && !view.layout().overlaps());
        assert!(view.as_ndarray::<i32>().unwrap().is_empty());
    }
    assert_eq!(empty.chunk(1, 3).unwrap().len(), 1);
    let full = Tensor::from_slice(&cpu, &[1i32, 2, 3], &[3]).unwrap();
    let past = full.narrow(0, 3, 0).unwrap();
    assert!(past.to_vec::<i32>().unwrap().is_empty());
    assert_eq!(past.layout().offset(), 0, "an offset past the end could not be copied from");
}

#[test]
fn chunks_are_those_of_pytorch() {
    let sizes = |size: usize, chunks: usize| -> Vec<usize> {
        let layout = Layout::contiguous(&[size]).unwrap();
        layout.chunk(0, chunks).unwrap().iter().map(|part| part.shape()[0]).collect()
    };
    assert_eq!(sizes(10, 4), [3, 3, 3, 1]);
    assert_eq!(sizes(5, 4), [2, 2, 1]);
    assert_eq!(sizes(3, 7), [1, 1, 1]);
    assert_eq!(sizes(6, 2), [3, 3]);
}

#[test]
fn views_to_read_and_to_write_have_the_same_methods() {
    let mut tensor = Tensor::from_slice(&Cpu::get(), &[0i32, 1, 2, 3, 4, 5], &[2, 3]).unwrap();
    let column = tensor.view().select(1, 2).unwrap();
    assert_eq!((column.layout().offset(), column.strides()), (2, &[3][..]));
    assert_eq!(tensor.view().chunk(0, 2).unwrap()[1].as_slice::<i32>().unwrap(), [3, 4, 5]);
    let rows = tensor.view_mut().unwrap().narrow(0, 1, 1).unwrap().t().unwrap();
    assert_eq!(rows.shape(), &[3, 1]);
    assert!(tensor.view_mut().unwrap().broadcast_to(&[4, 2, 3]).is_err(), "written elements must not be shared");
    assert!(tensor.view_mut().unwrap().unfold(1, 2, 1).is_err());
}
