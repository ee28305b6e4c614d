//! Errors are one line of bounded length, whatever a caller or a file says.

use std::error::Error as _;

use sinew_memory::Cpu;
use sinew_tensor::{DType, Error, Layout, Tensor};

/// Characters of the longest message.
const MOST: usize = 500;

#[track_caller]
fn assert_one_line(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.chars().count() <= MOST, "{} characters: {text}", text.chars().count());
    // `main` prints this form of an error that it returns.
    assert!(!format!("{error:?}").contains(char::is_control), "{error:?}");
    text
}

#[test]
fn a_number_of_values_that_does_not_fit_is_named() {
    let cpu = Cpu::get();
    for (error, words) in [
        (Tensor::from_slice(&cpu, &[1f32], &[1024]), "shape [1024] has 1024 elements; values given: 1"),
        (Tensor::from_slice(&cpu, &[1f32; 7], &[2, 3]), "shape [2, 3] has 6 elements; values given: 7"),
        (Tensor::from_vec(&cpu, vec![1i64], &[]), ""),
        (Tensor::from_vec(&cpu, Vec::<u8>::new(), &[]), "shape [] has 1 elements; values given: 0"),
        (Tensor::from_bools(&cpu, &[true], &[0]), "shape [0] has 0 elements; values given: 1"),
        (Tensor::from_bytes(&cpu, &[0; 9], DType::F64, &[1]), "f64 of shape [1] has 8 bytes; bytes given: 9"),
    ] {
        match error.err() {
            None => assert_eq!(words, "", "a scalar has one value"),
            Some(error) => assert!(assert_one_line(&error).contains(words), "{error}"),
        }
    }
}

#[test]
fn shapes_of_many_dimensions_are_cut_short() {
    let x = Tensor::from_slice(&Cpu::get(), &[1f32; 6], &[2, 3]).unwrap();
    let many = vec![1; 100_000];
    for error in [
        Layout::contiguous(&many).map(drop),
        x.reshape(&many).map(drop),
        x.broadcast_to(&many).map(drop),
        x.permute(&many).map(drop),
        x.split(0, &many).map(drop),
        x.with_layout(Layout::strided(&[usize::MAX >> 8; 8], &[0; 8], 0).unwrap_or(*x.layout())).map(|_| ()),
    ] {
        if let Err(error) = error {
            assert_one_line(&error);
        }
    }
    let error = Layout::contiguous(&many).unwrap_err();
    assert!(assert_one_line(&error).contains("[1, 1, 1, 1, 1, 1, 1, 1] and 99992 more"), "{error}");
}
