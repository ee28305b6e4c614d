//! Errors are one line of bounded length, whatever a caller or a file says.

use std::error::Error as _;

use sinew_memory::Cpu;
use sinew_tensor::safetensors::{self, Header};
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
    // What `main` prints of an error that it returns.
    assert!(!format!("{error:?}").contains(char::is_control), "{error:?}");
    text
}

/// The error of a file with this header and so many bytes of data.
fn load_error(header: &str, data: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
    std::fs::write(&path, file).unwrap();
    assert_one_line(&safetensors::load(&Cpu::get(), &path).unwrap_err())
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

#[test]
fn names_from_files_are_escaped_and_cut() {
    let long = "w".repeat(1 << 20);
    let entry = |name: &str, dtype: &str, shape: &str, end: usize| {
        format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    let ones = format!("[{}]", vec!["1"; 64].join(","));
    let deep = format!("[{}]", vec!["1"; 60_000].join(","));
    for (header, words) in [
        (entry(&long, "F32", "[1]", 8), "1048576 bytes"),
        (entry("two\\nlines", "F32", "[1]", 8), "two\\nlines"),
        (entry(&long, "F32", &ones, 4), "more than 8 dimensions"),
        (entry("x", "F32", &ones, 8), "and 56 more"),
        (entry("x", "F32", &deep, 4), "60000 dimensions"),
        (entry("x", &long, "[1]", 4), "unknown variant"),
        (entry("x", "two\\nlines", "[1]", 4), "unknown variant `two\\nlines`"),
        (entry(&long, "U16", "[1]", 2), "U16"),
        (format!(r#"{{"{long}":1,"{long}":2}}"#), "invalid type"),
    ] {
        let data = if header.contains("U16") { 2 } else { 4 };
        let error = load_error(&header, data);
        assert!(error.contains(words), "{words}: {error}");
    }
    let good = entry("x", "U8", "[4]", 4);
    assert!(Header::read(good.as_bytes(), 8 + good.len() as u64 + 4).is_ok());
}

#[test]
fn a_name_that_is_taken_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let x = Tensor::from_slice(&Cpu::get(), &[1f32], &[1]).unwrap();
    let long = "two\nlines ".repeat(10_000);
    let error = safetensors::save(folder.path().join("x"), [(&long, &x), (&long, &x)]).unwrap_err();
    assert!(assert_one_line(&error).contains("its name is taken"), "{error}");
}

#[test]
fn tensors_without_elements_load_as_they_were_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let device = Cpu::get();
    let shapes: [&[usize]; 4] = [&[0], &[3, 0], &[0, 2, 5], &[]];
    let tensors: Vec<Tensor> = shapes.iter().map(|s| Tensor::zeros(&device, DType::BF16, s).unwrap()).collect();
    let named = tensors.iter().enumerate().map(|(i, x)| (i.to_string(), x));
    safetensors::save(&path, named).unwrap();
    let loaded = safetensors::load(&device, &path).unwrap();
    for (i, x) in tensors.iter().enumerate() {
        let loaded = &loaded[&i.to_string()];
        assert_eq!((loaded.shape(), loaded.dtype()), (x.shape(), x.dtype()));
        assert_eq!(loaded.to_bytes().unwrap(), x.to_bytes().unwrap());
    }
}
