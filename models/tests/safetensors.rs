//! Tensors from and to safetensors files.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use sinew_memory::{Cpu, Error as MemoryError, Location, MappedFile};
use sinew_models::Error;
use sinew_models::safetensors::{FileLayout, Header, MAX_HEADER_BYTES, load, save, save_with_metadata, to_tensor};
use sinew_tensor::{DType, Error as TensorError, Tensor};

fn location(tensor: &Tensor) -> Location {
    tensor.buffer().span().storage.location()
}

#[test]
fn what_is_saved_is_loaded_as_views_into_the_file() {
    let cpu = Cpu::get();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let weight = Tensor::from_slice(&cpu, &[1.5f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let turned = weight.t().unwrap();
    let wide = weight.select(0, 0).unwrap().broadcast_to(&[2, 3]).unwrap();
    let flags = Tensor::from_bools(&cpu, &[true, false, true], &[3]).unwrap();
    let point = Tensor::from_slice(&cpu, &[-7i64], &[]).unwrap();
    let empty = Tensor::from_slice::<u8>(&cpu, &[], &[4, 0]).unwrap();
    let all =
        [("w", &weight), ("w.t", &turned), ("wide", &wide), ("flags", &flags), ("point", &point), ("\"e\"", &empty)];
    save(&path, all).unwrap();

    let loaded = load(&cpu, &path).unwrap();
    assert_eq!(loaded.len(), all.len());
    for (name, tensor) in all {
        assert_eq!((loaded[name].dtype(), loaded[name].shape()), (tensor.dtype(), tensor.shape()), "{name}");
        assert_eq!(loaded[name].to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
        assert_eq!(location(&loaded[name]), Location::MappedFile, "{name} is aligned");
    }
    assert_eq!(loaded["w.t"].as_slice::<f32>().unwrap(), [1.5, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(loaded["flags"].to_bools().unwrap(), [true, false, true]);
    let mut mapped = loaded["w"].clone();
    assert!(matches!(mapped.as_mut_slice::<f32>(), Err(TensorError::Memory(MemoryError::ReadOnly))));
    assert!(matches!(mapped.view_mut(), Err(TensorError::Memory(MemoryError::ReadOnly))));

    // Tensors of the earlier file outlive it.
    save(&path, [("w", &point)]).unwrap();
    assert_eq!(loaded["w"].as_slice::<f32>().unwrap()[0], 1.5);
    assert_eq!(load(&cpu, &path).unwrap()["w"].to_vec::<i64>().unwrap(), [-7]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
}

#[test]
fn the_reference_crate_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let small = Tensor::from_slice(&Cpu::get(), &[1u8, 2, 3], &[3]).unwrap();
    let large = Tensor::from_slice(&Cpu::get(), &[1.0f64], &[1]).unwrap();
    save_with_metadata(&path, [("a", &small), ("b", &large)], Some(HashMap::from([("format".into(), "pt".into())])))
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("a").unwrap().data(), [1, 2, 3]);
    assert_eq!(file.tensor("b").unwrap().dtype(), Dtype::F64);
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    assert_eq!(metadata.offset_keys(), ["b", "a"], "larger elements come first");
    save(&path, Vec::<(String, &Tensor)>::new()).unwrap();
    assert!(load(&Cpu::get(), &path).unwrap().is_empty());
}

#[test]
fn names_that_cannot_be_stored_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let tensor = Tensor::from_slice(&Cpu::get(), &[1u8], &[1]).unwrap();
    assert!(save(&path, [("a", &tensor), ("a", &tensor)]).is_err());
    assert!(save(&path, [("__metadata__", &tensor)]).is_err());
    assert!(save(folder.path().join("none").join("a"), [("a", &tensor)]).is_err());
    assert!(save(folder.path(), [("a", &tensor)]).is_err(), "a folder cannot be replaced by a file");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_reference_crate_finds_tensors_of_any_dtype_and_rank_where_a_header_says() {
    let entry = |name: &str, dtype, shape: &[usize]| (name.to_owned(), dtype, shape.to_vec());
    let entries = [
        entry("fp4", Dtype::F4, &[2, 3]),
        entry("deep", Dtype::U16, &[1; 9]),
        entry("e", Dtype::F32, &[0, 2]),
        entry("z", Dtype::C64, &[1]),
    ];
    let layout = FileLayout::new(entries, None).unwrap();
    assert!(layout.bytes().len().is_multiple_of(8));
    let mut file = layout.bytes().to_vec();
    for (index, (_, place)) in layout.tensors().iter().enumerate() {
        assert_eq!(place.start, file.len());
        file.resize(place.end, index as u8);
    }
    let read = SafeTensors::deserialize(&file).unwrap();
    let names: Vec<&str> = layout.tensors().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["z", "e", "deep", "fp4"]);
    for (index, (name, bytes)) in [("z", 8), ("e", 0), ("deep", 2), ("fp4", 3)].into_iter().enumerate() {
        assert_eq!(read.tensor(name).unwrap().data(), vec![index as u8; bytes], "{name}");
    }

    let part = [entry("fp4", Dtype::F4, &[3])];
    let twice = [entry("a", Dtype::U8, &[1]), entry("a", Dtype::F32, &[1])];
    let huge = [entry("a", Dtype::U8, &[usize::MAX / 8]), entry("b", Dtype::U8, &[usize::MAX / 8 * 7])];
    for refused in [&part[..], &twice, &huge, &[entry("a", Dtype::F64, &[usize::MAX, 2])]] {
        assert!(FileLayout::new(refused.to_vec(), None).is_err(), "{refused:?}");
    }
}

#[test]
fn a_header_that_is_longer_than_what_models_are_read_of_is_refused_by_its_count_and_bytes() {
    let most = MAX_HEADER_BYTES as usize;
    let entries = |len: usize| [("a", 1), ("b", len)].map(|(name, len)| (name.repeat(len), Dtype::U8, vec![1]));
    let empty = FileLayout::new(entries(1), None).unwrap().bytes().len() - size_of::<u64>();
    let longest = FileLayout::new(entries(1 + most - empty), None).unwrap();
    assert_eq!(longest.bytes().len(), size_of::<u64>() + most);
    let refused = FileLayout::new(entries(9 + most - empty), None).unwrap_err().to_string();
    for words in ["header of 2 tensors", &format!("{} bytes", most + 8), &format!("at most {most}")] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

#[test]
fn misaligned_tensors_are_copied() {
    let cpu = Cpu::get();
    let values = [1.0f32, -2.0, 3.5];
    let mut bytes = vec![0u8];
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    let view = TensorView::new(Dtype::F32, vec![3], &bytes[1..]).unwrap();
    assert_eq!(to_tensor(&cpu, &view).unwrap().as_slice::<f32>().unwrap(), values);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    std::fs::write(&path, &bytes).unwrap();
    let file = Arc::new(MappedFile::open(&path).unwrap());
    let copy = Tensor::from_mapped(&cpu, &file, 1..13, DType::F32, &[3]).unwrap();
    assert_eq!((copy.as_slice::<f32>().unwrap(), location(&copy)), (&values[..], Location::Host));
    assert!(Tensor::from_mapped(&cpu, &file, 1..13, DType::F32, &[4]).is_err());
    assert!(Tensor::from_mapped(&cpu, &file, 5..17, DType::F32, &[3]).is_err());
}

#[test]
fn broken_files_are_errors_that_name_them() {
    let cpu = Cpu::get();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let load_error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        load(&cpu, &path).unwrap_err()
    };
    let view = TensorView::new(Dtype::F32, vec![2], &[0; 8]).unwrap();
    let good = serialize([("a", view)], None).unwrap();
    assert!(load_error(&good[..good.len() - 1]).to_string().contains("model.safetensors"));
    for broken in [&b""[..], &[255; 8], &good[..20], &[&good[..], &[0]].concat()] {
        assert!(matches!(load_error(broken), Error::Header { .. }));
    }
    let [one, other] = [[0, 2], [2, 4]].map(|at| format!(r#"{{"dtype":"U8","shape":[2],"data_offsets":{at:?}}}"#));
    let blanks = " ".repeat(MAX_HEADER_BYTES as usize);
    for (header, problem) in [
        (format!(r#"{{"a":{one},"a":{other}}}"#), "`a` is there twice"),
        (format!(r#"{{"__metadata__":{{}},"a":{one},"__metadata__":{{}}}}"#), "`__metadata__` is there twice"),
        (format!(r#"{{"a":{one},"b":{one}}}"#), "`b` begins at byte 0, where what is before it ends at 2"),
        (format!(r#"{{"a":{one},"b":{}}}"#, other.replace("[2]", "[3]")), "bytes 2..4, which U8 [3] does not take"),
        (format!(r#"{{"a":{one}}}"#), "bytes that belong to no tensor"),
        (format!(r#"{{"a":{one},"b":{other}}}{blanks}"#), "at most 16777216 are read"),
    ] {
        let error = load_error(&[&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat());
        let source = std::error::Error::source(&error).expect("what is wrong with the file").to_string();
        assert!(source.contains(problem), "{source}");
    }
    let unsupported = TensorView::new(Dtype::U16, vec![1], &[0; 2]).unwrap();
    let error = load_error(&serialize([("layer.weight", unsupported)], None).unwrap()).to_string();
    assert!(error.contains("layer.weight") && error.contains("U16"), "{error}");
    let deep = TensorView::new(Dtype::U8, vec![1; 9], &[0]).unwrap();
    assert!(load_error(&serialize([("deep", deep)], None).unwrap()).to_string().contains("deep"));
    assert!(load(&cpu, folder.path().join("missing")).is_err());
}

/// Characters of the longest message.
const MOST: usize = 1000;

/// The error with its causes, checked to be one line of bounded length.
#[track_caller]
fn one_line(error: &Error) -> String {
    let text = error.one_line();
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.chars().count() <= MOST, "{} characters: {text}", text.chars().count());
    text
}

/// The error of a file with this header and so many bytes of data.
fn load_error(header: &str, data: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
    std::fs::write(&path, file).unwrap();
    one_line(&load(&Cpu::get(), &path).unwrap_err())
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
        (entry("x", "F32", &ones, 8), "does not take"),
        (entry("x", "F32", &deep, 4), "60000 dimensions"),
        (entry("x", &long, "[1]", 4), "unknown variant"),
        (entry("x", "two\\nlines", "[1]", 4), "unknown variant `two lines`"),
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
    let error = save(folder.path().join("x"), [(&long, &x), (&long, &x)]).unwrap_err();
    assert!(one_line(&error).contains("its name is taken"), "{error}");
}

#[test]
fn tensors_without_elements_load_as_they_were_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let device = Cpu::get();
    let shapes: [&[usize]; 4] = [&[0], &[3, 0], &[0, 2, 5], &[]];
    let tensors: Vec<Tensor> = shapes.iter().map(|s| Tensor::zeros(&device, DType::BF16, s).unwrap()).collect();
    let named = tensors.iter().enumerate().map(|(i, x)| (i.to_string(), x));
    save(&path, named).unwrap();
    let loaded = load(&device, &path).unwrap();
    for (i, x) in tensors.iter().enumerate() {
        let loaded = &loaded[&i.to_string()];
        assert_eq!((loaded.shape(), loaded.dtype()), (x.shape(), x.dtype()));
        assert_eq!(loaded.to_bytes().unwrap(), x.to_bytes().unwrap());
    }
}
