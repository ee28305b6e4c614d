//! Tensors as text. What is expected here is what NumPy 2 prints for the same arrays.

use half::bf16;
use sinew_memory::Cpu;
use sinew_tensor::{DType, Element, Tensor};

fn text<T: Element>(values: &[T], shape: &[usize]) -> String {
    Tensor::from_slice(&Cpu::get(), values, shape).unwrap().to_string()
}

#[test]
fn columns_are_aligned_at_the_point() {
    assert_eq!(text(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]), "[[1. 2.]\n [3. 4.]]");
    assert_eq!(text(&[1.0f32, -22.5, 3.25, 0.0], &[2, 2]), "[[  1.   -22.5 ]\n [  3.25   0.  ]]");
    assert_eq!(text(&[0.1f32, 0.2], &[2]), "[0.1 0.2]");
    assert_eq!(text(&[1.0f64 / 3.0], &[1]), "[0.33333333]");
    assert_eq!(text(&[bf16::from_f32(0.1), bf16::from_f32(1.0)], &[2]), "[0.1 1. ]");
    assert_eq!(text(&[1i32, -20, 300], &[3]), "[  1 -20 300]");
    assert_eq!(text(&[i64::MAX, 1], &[2]), "[9223372036854775807                   1]");
}

#[test]
fn wide_ranges_are_written_with_exponents() {
    assert_eq!(text(&[1e10f32, 1.5], &[2]), "[1.0e+10 1.5e+00]");
    assert_eq!(text(&[1e-5f64, 1.0], &[2]), "[1.e-05 1.e+00]");
    assert_eq!(text(&[1e8f32, 2e8], &[2]), "[1.e+08 2.e+08]");
    assert_eq!(text(&[1e-300f64], &[1]), "[1.e-300]");
}

#[test]
fn what_is_not_a_number_is_said_so() {
    assert_eq!(text(&[f32::NAN, 1.0, f32::NEG_INFINITY], &[3]), "[ nan   1. -inf]");
    assert_eq!(text(&[f32::NAN, f32::INFINITY], &[2]), "[nan inf]");
}

#[test]
fn dimensions_nest_and_blocks_are_set_apart() {
    let values: Vec<i32> = (0..8).collect();
    assert_eq!(text(&values, &[2, 2, 2]), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
    assert_eq!(text(&[5i32], &[]), "5");
    assert_eq!(text(&[5i32], &[1, 1]), "[[5]]");
    assert_eq!(text::<f32>(&[], &[0]), "[]");
    assert_eq!(text::<f32>(&[], &[2, 0, 3]), "[]");
}

#[test]
fn large_tensors_are_shown_by_their_ends() {
    let values: Vec<i32> = (0..2000).collect();
    assert_eq!(text(&values, &[2000]), "[   0    1    2 ... 1997 1998 1999]");
    assert_eq!(
        text(&values, &[4, 500]),
        "[[   0    1    2 ...  497  498  499]\n [ 500  501  502 ...  997  998  999]\n [1000 1001 1002 ... 1497 1498 1499]\n [1500 1501 1502 ... 1997 1998 1999]]"
    );
    assert_eq!(
        text(&values, &[1000, 2]),
        "[[   0    1]\n [   2    3]\n [   4    5]\n ...\n [1994 1995]\n [1996 1997]\n [1998 1999]]"
    );
    assert!(!text(&values[..1000], &[1000]).contains("..."), "a thousand is still shown whole");
}

#[test]
fn long_rows_continue_in_the_next_line() {
    let values: Vec<i32> = (0..30).collect();
    let expected = "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n 24 25 26 27 28 29]";
    assert_eq!(text(&values, &[30]), expected);
}

#[test]
fn views_print_what_they_name_and_debug_says_what_they_are() {
    let cpu = Cpu::get();
    let tensor = Tensor::from_slice(&cpu, &[1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    assert_eq!(tensor.t().unwrap().to_string(), "[[1 4]\n [2 5]\n [3 6]]");
    assert_eq!(tensor.select(1, 2).unwrap().broadcast_to(&[2, 2]).unwrap().to_string(), "[[3 6]\n [3 6]]");
    let debug = format!("{:?}", tensor.narrow(0, 1, 1).unwrap());
    assert_eq!(debug, "Tensor(i32 shape [1, 3] strides [3, 1] offset 3 on cpu)\n[[4 5 6]]");
    assert_eq!(Tensor::from_bools(&cpu, &[true, false], &[2]).unwrap().to_string(), "[ True False]");
    assert_eq!(Tensor::from_bytes(&cpu, &[0x38, 0x7f], DType::F8E4M3, &[2]).unwrap().to_string(), "[ 1. nan]");
}
