use std::fs::File;

use super::*;
use crate::safetensors::MAX_HEADER_BYTES;
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A safetensors file with the named tensors, each `[2, 3]` in bf16 and filled with its position in the list.
fn file_of(names: &[&str]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = (0..names.len()).map(|i| vec![i as u8; 12]).collect();
    let views = names.iter().zip(&data).map(|(name, data)| {
        let view = TensorView::new(Dtype::BF16, vec![2, 3], data).expect("the size fits");
        (*name, view)
    });
    safetensors::serialize(views, None).expect("serialized")
}

/// A file whose header and data are given.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; data]);
    bytes
}

fn folder_of(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    folder
}

fn sharded(weight_map: Value) -> TempDir {
    let index = json!({ "metadata": {"total_size": 1}, "weight_map": weight_map }).to_string();
    folder_of(&[
        ("a.safetensors", &file_of(&["x", "y"])),
        ("b.safetensors", &file_of(&["z"])),
        (INDEX, index.as_bytes()),
    ])
}

fn refusal(folder: &TempDir) -> String {
    let [mapped, read] =
        [Load::Mmap, Load::Read].map(|load| Tensors::open(folder.path(), load).expect_err("refused").one_line());
    assert_eq!(mapped, read, "both ways of loading refuse alike");
    mapped
}

#[test]
fn mapped_read_and_embedded_tensors_are_the_same() {
    let file = file_of(&["model.x", "model.y"]);
    let folder = folder_of(&[(SINGLE, &file)]);
    let all = [
        Tensors::open(folder.path(), Load::Mmap).expect("opened"),
        Tensors::open(folder.path(), Load::Read).expect("opened"),
        Tensors::open(folder.path().join(SINGLE), Load::Read).expect("opened"),
        Tensors::from_bytes(file).expect("opened"),
    ];
    for checkpoint in all {
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["model.x", "model.y"]);
        assert_eq!(checkpoint.num_bytes(), 24);
        let tensor = checkpoint.tensor("model.y").expect("present");
        assert_eq!((tensor.name, tensor.dtype, tensor.shape), ("model.y", Dtype::BF16, &[2, 3][..]));
        assert_eq!(tensor.bytes[..], [1; 12]);
        assert_eq!(checkpoint.unused().collect::<Vec<_>>(), ["model.x"]);
        assert_eq!(checkpoint.tensor_slice("model.x", 3..7).expect("inside").bytes[..], [0; 4]);
        assert_eq!(checkpoint.unused().count(), 0);
        #[allow(clippy::reversed_empty_ranges)]
        for outside in [0..13, 13..13, 5..4, usize::MAX..usize::MAX] {
            assert!(checkpoint.tensor_slice("model.x", outside.clone()).is_err());
            checkpoint.release_slice("model.x", outside);
        }
        checkpoint.release_slice("model.y", 0..12);
        checkpoint.release_slice("nothing", 0..12);
        assert_eq!(checkpoint.tensor("model.y").expect("present").bytes[..], [1; 12]);
    }
}

#[test]
fn scalars_empty_and_misaligned_tensors_are_readable() {
    let header = r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "e":{"dtype":"F32","shape":[0,7],"data_offsets":[1,1]},"s":{"dtype":"F32","shape":[],"data_offsets":[1,5]}}"#;
    let checkpoint = Tensors::from_bytes(raw(header, 5)).expect("valid");
    assert_eq!(checkpoint.tensor("s").expect("present").bytes.len(), 4);
    assert_eq!(checkpoint.tensor("e").expect("present").shape, [0, 7]);
    assert_eq!(checkpoint.info("b").expect("present").num_bytes, 1);
    assert!(Tensors::from_bytes(raw("{}", 0)).expect("valid").names().next().is_none());
}

#[test]
fn one_file_may_mix_dtypes() {
    let header = r#"{"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"f":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},
        "i":{"dtype":"I64","shape":[1],"data_offsets":[6,14]},"__metadata__":{"format":"pt"}}"#;
    let checkpoint = Tensors::from_bytes(raw(header, 14)).expect("valid");
    let dtypes = checkpoint.names().map(|name| checkpoint.info(name).expect("present").dtype);
    assert_eq!(dtypes.collect::<Vec<_>>(), [Dtype::BF16, Dtype::F32, Dtype::I64]);
}

#[test]
fn a_name_that_is_there_twice_is_refused() {
    let entry = r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let line = Tensors::from_bytes(raw(&format!("{{{entry},{entry}}}"), 0)).expect_err("twice").one_line();
    assert!(line.contains("`a` is there twice"), "{line}");
}

#[test]
fn a_missing_tensor_lists_the_nearest_names() {
    let checkpoint =
        Tensors::from_bytes(file_of(&["model.norm.weight", "model.norm.bias", "lm_head.weight", "q"])).expect("valid");
    let line = checkpoint.tensor("norm.weight").expect_err("missing").one_line();
    assert!(line.contains("`norm.weight`") && line.contains("nearest: model.norm.weight"), "{line}");
    assert!(checkpoint.info("x").is_err());
    let mut names: Vec<String> = (0..2000).map(|i| format!("model.layers.{i}.mlp.weight")).collect();
    names.push("model.norm.weight".to_owned());
    let many = Tensors::from_bytes(file_of(&names.iter().map(String::as_str).collect::<Vec<_>>())).expect("valid");
    let line = many.tensor("model.norm.weights").expect_err("missing").one_line();
    assert!(line.contains("nearest: model.norm.weight, model.layers."), "{line}");
    let line = many.tensor("model.layers.1999.mlp.weights").expect_err("missing").one_line();
    assert!(line.contains("nearest: model.layers.1999.mlp.weight"), "{line}");
}

#[test]
fn shards_are_found_through_the_index() {
    let folder = sharded(json!({"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}));
    for load in [Load::Mmap, Load::Read] {
        let checkpoint = Tensors::open(folder.path(), load).expect("opened");
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["x", "y", "z"]);
        assert_eq!(checkpoint.tensor("y").expect("present").bytes[..], [1; 12]);
    }
}

#[test]
fn an_index_may_have_what_python_alone_reads() {
    let folder = sharded(json!({"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}));
    let path = folder.path().join(INDEX);
    let index = fs::read_to_string(&path).expect("an index");
    for metadata in ["NaN", r#"{"total_size": Infinity, "by": "\ud800"}"#, "1e400"] {
        fs::write(&path, index.replace(r#"{"total_size":1}"#, metadata)).expect("written");
        let checkpoint = Tensors::open(folder.path(), Load::Read).expect(metadata);
        assert_eq!(checkpoint.names().count(), 3, "{metadata}");
    }
    fs::write(&path, index.replace(r#""b.safetensors""#, "NaN")).expect("written");
    assert!(refusal(&folder).contains("`weight_map` must have the file of each tensor"), "{}", refusal(&folder));
}

#[test]
fn an_index_that_leaves_the_folder_or_contradicts_its_shards_is_refused() {
    for (weight_map, expected) in [
        (json!({"x": "../a.safetensors"}), "outside"),
        (json!({"x": "/etc/passwd"}), "outside"),
        (json!({"x": "sub/../../a.safetensors"}), "outside"),
        (json!({"x": ""}), "outside"),
        (json!({"x": "c.safetensors"}), "c.safetensors"),
        (json!({"x": "."}), ""),
        (json!({"x": 5}), "integer `5`"),
        (json!(["x"]), "sequence"),
    ] {
        let line = refusal(&sharded(weight_map));
        assert!(line.contains(expected), "{line}");
    }
    let line = refusal(&folder_of(&[(INDEX, b"{}")]));
    assert!(line.contains("`weight_map` is missing"), "{line}");
    let same = json!({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}).to_string();
    let line = refusal(&folder_of(&[
        ("a.safetensors", &file_of(&["x"])),
        ("b.safetensors", &file_of(&["x", "y"])),
        (INDEX, same.as_bytes()),
    ]));
    assert!(line.contains("`x`") && line.contains("a.safetensors has, too"), "{line}");
}

#[test]
fn headers_decide_where_tensors_are() {
    // transformers reads all tensors of the shards that an index names, and nothing else of it.
    for weight_map in [
        json!({"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}),
        json!({"x": "a.safetensors", "z": "b.safetensors", "w": "a.safetensors"}),
        json!({"y": "a.safetensors", "x": "b.safetensors", "w": "b.safetensors", "v": "a.safetensors"}),
    ] {
        let folder = sharded(weight_map.clone());
        for load in [Load::Mmap, Load::Read] {
            let checkpoint = Tensors::open(folder.path(), load).expect("opened");
            assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["x", "y", "z"], "{weight_map}");
            assert!(checkpoint.tensor("x").is_ok() && !checkpoint.contains("w"));
        }
    }
}

#[test]
fn a_tensor_that_only_an_index_has_is_missing_by_name() {
    let folder = sharded(json!({"x": "a.safetensors", "w": "b.safetensors"}));
    let checkpoint = Tensors::open(folder.path(), Load::Read).expect("opened");
    let line = checkpoint.tensor("w").expect_err("no shard has it").one_line();
    assert!(line.contains(INDEX), "{line}");
    assert!(line.contains("says that `w` is in b.safetensors, which has no such tensor"), "{line}");
    let line = checkpoint.tensor("v").expect_err("nothing names it").one_line();
    assert!(line.contains("no tensor `v`"), "{line}");
}

/// A header of `tensors` empty tensors, padded to `bytes`.
fn header_of(shard: usize, tensors: usize, bytes: usize) -> Vec<u8> {
    let entry = |i: usize| format!(r#""{shard}.{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let mut header = format!("{{{}}}", (0..tensors).map(entry).collect::<Vec<_>>().join(","));
    header.extend(std::iter::repeat_n(' ', bytes.saturating_sub(header.len())));
    raw(&header, 0)
}

#[test]
fn the_headers_of_all_shards_have_a_budget_in_common() {
    let open = |shards: usize, bytes: usize| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut weight_map = serde_json::Map::new();
        for shard in 0..shards {
            let name = format!("{shard:05}.safetensors");
            fs::write(folder.path().join(&name), header_of(shard, 2, bytes)).expect("written");
            weight_map.insert(format!("{shard}.1"), name.into());
        }
        fs::write(folder.path().join(INDEX), json!({ "weight_map": weight_map }).to_string()).expect("written");
        (Tensors::open(folder.path(), Load::Read), folder)
    };
    // As the largest published checkpoints have it, and no byte more than there may be.
    assert_eq!(open(163, 80_000).0.expect("12 MiB of headers").names().count(), 326);
    assert_eq!(open(4, 5 << 20).0.expect("all of the budget").names().count(), 8);
    let (refused, folder) = open(5, 5 << 20);
    let line = refused.expect_err("more than the budget").one_line();
    assert!(line.contains("00004.safetensors") && line.contains("after others"), "{line}");
    // A shard of another checkpoint is what is wrong, and not the size of the rest.
    fs::write(folder.path().join("00000.safetensors"), file_of(&["q"])).expect("written");
    let line = refusal(&folder);
    assert!(line.contains("`0.1` is in 00000.safetensors"), "{line}");

    let many: serde_json::Map<_, _> = (0..=MAX_SHARDS).map(|i| (i.to_string(), i.to_string().into())).collect();
    let line = refusal(&folder_of(&[(INDEX, json!({ "weight_map": many }).to_string().as_bytes())]));
    assert!(line.contains("names 4097 files"), "{line}");
}

#[test]
fn a_folder_without_a_checkpoint_says_what_it_has_instead() {
    let line = refusal(&folder_of(&[("pytorch_model.bin", b"x")]));
    assert!(line.contains("pytorch_model.bin: pickles of PyTorch") && line.contains(SINGLE), "{line}");
    let line = refusal(&folder_of(&[]));
    assert!(line.contains(INDEX), "{line}");
    assert!(Tensors::open("/nowhere/at/all", Load::Mmap).is_err());
}

#[cfg(unix)]
#[test]
fn links_may_lead_to_the_blobs_of_a_hub_cache_and_nowhere_else() {
    use std::os::unix::fs::symlink;
    let outside = folder_of(&[("secret", &file_of(&["x"]))]);
    let folder = tempfile::tempdir().expect("a folder");
    symlink(outside.path().join("secret"), folder.path().join(SINGLE)).expect("linked");
    let line = refusal(&folder);
    assert!(line.contains("outside the model's folder"), "{line}");

    let model = tempfile::tempdir().expect("a folder");
    let snapshot = model.path().join("snapshots/abc");
    fs::create_dir_all(&snapshot).expect("created");
    fs::create_dir(model.path().join("blobs")).expect("created");
    fs::write(model.path().join("blobs/123"), file_of(&["x"])).expect("written");
    symlink("../../blobs/123", snapshot.join(SINGLE)).expect("linked");
    assert!(Tensors::open(&snapshot, Load::Read).is_ok());

    let dangling = tempfile::tempdir().expect("a folder");
    let index = json!({"weight_map": {"x": "a.safetensors"}}).to_string();
    fs::write(dangling.path().join(INDEX), index).expect("written");
    symlink("/dev/zero", dangling.path().join("a.safetensors")).expect("linked");
    assert!(refusal(&dangling).contains("outside"));
}

#[test]
fn hostile_headers_are_errors() {
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (header, data) in [
        (tensor("F32", "[2]", "[0,8]"), 7),
        (tensor("F32", "[2]", "[0,8]"), 9),
        (tensor("F32", "[3]", "[0,8]"), 8),
        (tensor("F32", "[2]", "[8,0]"), 8),
        (tensor("F32", "[2]", "[1,9]"), 9),
        (tensor("F32", "[4294967296,4294967296]", "[0,0]"), 0),
        (tensor("F32", "[18446744073709551615]", "[0,8]"), 8),
        (tensor("F32", "[0]", "[0,18446744073709551615]"), 8),
        (tensor("F32", "[-1]", "[0,8]"), 8),
        (tensor("F4", "[3]", "[0,1]"), 1),
        (tensor("Q4", "[2]", "[0,8]"), 8),
        (r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#.into(), 6),
        (r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}"#.into(), 6),
        (r#"{"a":5}"#.into(), 0),
        ("[]".into(), 0),
        ("".into(), 0),
        ("\u{0}".into(), 0),
        ("[".repeat(100_000), 0),
        (format!("{{\"a\":{}", "[".repeat(100_000)), 0),
    ] {
        let bytes = raw(&header, data);
        let start: String = header.chars().take(80).collect();
        assert!(Tensors::from_bytes(bytes.clone()).is_err(), "{start}");
        let line = refusal(&folder_of(&[(SINGLE, &bytes)]));
        assert!(line.contains(SINGLE), "{line}");
    }
    for length in [u64::MAX, u64::MAX - 7, MAX_HEADER_BYTES + 1, MAX_HEADER_BYTES, 3] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        assert!(Tensors::from_bytes(bytes).is_err(), "{length}");
    }
}

#[test]
fn every_truncation_is_an_error() {
    let file = file_of(&["model.x", "y"]);
    for len in 0..file.len() {
        assert!(Tensors::from_bytes(file[..len].to_vec()).is_err(), "{len}");
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let folder = folder_of(&[(SINGLE, &file_of(&["x"]))]);
    let checkpoint = Tensors::open(folder.path(), Load::Read).expect("opened");
    let file = File::options().write(true).open(folder.path().join(SINGLE)).expect("opened");
    file.set_len(20).expect("truncated");
    let line = checkpoint.tensor("x").expect_err("gone").one_line();
    assert!(line.contains(SINGLE) && line.contains("not what it was"), "{line}");
}

#[test]
fn a_file_that_is_replaced_or_overwritten_while_it_is_read_is_an_error() {
    let bytes = file_of(&["x"]);
    let overwrite = |path: &Path| fs::write(path, &bytes).expect("overwritten");
    let recreate = |path: &Path| {
        fs::remove_file(path).expect("removed");
        fs::write(path, &bytes).expect("written");
    };
    for change in [&overwrite as &dyn Fn(&Path), &recreate] {
        let folder = folder_of(&[(SINGLE, &bytes)]);
        let checkpoint = Tensors::open(folder.path(), Load::Read).expect("opened");
        assert!(checkpoint.tensor("x").is_ok());
        // Clocks of file systems may be as slow as ten milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
        change(&folder.path().join(SINGLE));
        let line = checkpoint.tensor("x").expect_err("another file").one_line();
        assert!(line.contains(SINGLE) && line.contains("not what it was"), "{line}");
    }
}

/// A process may have 256 files open, and a checkpoint more shards.
#[test]
#[cfg(target_os = "linux")]
fn files_of_a_checkpoint_are_not_kept_open() {
    let folder = sharded(json!({"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}));
    for load in [Load::Mmap, Load::Read] {
        let checkpoint = Tensors::open(folder.path(), load).expect("opened");
        assert!(checkpoint.tensor("z").is_ok());
        let open = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
        let open: Vec<_> = open.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).collect();
        assert!(open.iter().all(|path| !path.starts_with(folder.path())), "{load:?}: {open:?}");
    }
}

#[test]
fn slices_of_a_tensor_are_all_of_it() {
    let header = r#"{"x":{"dtype":"U8","shape":[3000000],"data_offsets":[0,3000000]}}"#;
    let mut file = raw(header, 3_000_000);
    *file.last_mut().expect("data") = 1;
    let folder = folder_of(&[(SINGLE, &file)]);
    for load in [Load::Mmap, Load::Read] {
        let checkpoint = Tensors::open(folder.path(), load).expect("opened");
        let mut seen = Vec::new();
        let all = checkpoint.all_slices("x", |bytes| {
            seen.push(bytes.len());
            bytes.iter().all(|&byte| byte == 0)
        });
        assert!(!all.expect("read"), "the last byte is not 0");
        assert_eq!(seen.iter().sum::<usize>(), 3_000_000);
        assert!(seen.iter().all(|&bytes| bytes <= 1 << 20), "{seen:?}");
        assert!(checkpoint.all_slices("x", |bytes| bytes.iter().all(|&byte| byte < 2)).expect("read"));
    }
}

/// Opens whatever the bytes are, and reads all that can be read.
fn read_all(bytes: Vec<u8>) {
    let len = bytes.len();
    if let Ok(checkpoint) = Tensors::from_bytes(bytes) {
        for name in checkpoint.names() {
            let tensor = checkpoint.tensor(name).expect("the header was checked");
            assert!(tensor.bytes.len() <= len);
        }
    }
}

#[test]
fn no_single_byte_can_cause_a_panic() {
    let file = file_of(&["x", "y"]);
    for at in 0..file.len() - 24 {
        for byte in 0..=255 {
            let mut changed = file.clone();
            changed[at] = byte;
            read_all(changed);
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_can_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(bytes);
    }

    #[test]
    fn no_header_can_cause_a_panic(
        start in any::<u64>(), end in any::<u64>(), shape in prop::collection::vec(any::<u64>(), 0..4), data in 0usize..64,
    ) {
        let header = json!({"a": {"dtype": "F16", "shape": shape, "data_offsets": [start, end]}}).to_string();
        read_all(raw(&header, data));
    }
}

#[test]
fn a_shape_has_no_more_dimensions_than_any_tensor() {
    let of_rank = |rank: usize| {
        let header = json!({"x": {"dtype": "U8", "shape": vec![1; rank], "data_offsets": [0, 1]}}).to_string();
        Tensors::from_bytes(raw(&header, 1))
    };
    assert_eq!(of_rank(64).expect("PyTorch's most").num_bytes(), 1);
    assert!(of_rank(65).expect_err("more").one_line().contains("`x` has 65 dimensions, more than 64"));
}
