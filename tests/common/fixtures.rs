//! The fixtures, and copies of them to change.
#![allow(dead_code, reason = "not every file of tests needs all of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use sinew::models::Load;
use tempfile::TempDir;

/// Where a fixture is.
pub fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// [`fixture_path`] as an argument of the command.
pub fn fixture(name: &str) -> String {
    fixture_path(name).into_os_string().into_string().expect("the path is UTF-8")
}

/// A copy of a fixture, with the folders inside it, but not of what is expected of the model.
pub fn copy(name: &str) -> TempDir {
    copy_of(&fixture_path(name))
}

/// A copy of a folder, as [`copy`] makes one of a fixture.
pub fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    copy_files(folder, copy.path());
    copy
}

/// A copy of an embedding model with its transformer in a folder of its own, as sentence-transformers may keep it. One
/// without `modules.json` gets one, and averages tokens.
pub fn copy_with_transformer_in(transformer: &str, name: &str) -> TempDir {
    let (source, folder) = (copy(name), tempfile::tempdir().expect("a folder"));
    let (root, inside) = (folder.path(), folder.path().join(transformer));
    fs::create_dir_all(&inside).expect("created");
    copy_files(source.path(), &inside);
    let pooling = root.join("1_Pooling");
    fs::create_dir(&pooling).expect("created");
    let module = |class: &str, path: &str| {
        let class = format!("sentence_transformers.models.{class}");
        serde_json::json!({ "type": class, "path": path })
    };
    let normalize = module("Normalize", "2_Normalize");
    let mut modules = serde_json::json!([module("Transformer", ""), module("Pooling", "1_Pooling"), normalize]);
    if let Ok(text) = fs::read_to_string(inside.join("modules.json")) {
        modules = serde_json::from_str(&text).expect("JSON");
        fs::rename(inside.join("1_Pooling/config.json"), pooling.join("config.json")).expect("moved");
        fs::remove_file(inside.join("modules.json")).expect("removed");
        fs::remove_dir(inside.join("1_Pooling")).expect("empty");
    } else {
        fs::write(pooling.join("config.json"), r#"{"pooling_mode": "mean"}"#).expect("written");
    }
    modules[0]["path"] = transformer.into();
    fs::write(root.join("modules.json"), modules.to_string()).expect("written");
    let prompts = "config_sentence_transformers.json";
    if inside.join(prompts).is_file() {
        fs::rename(inside.join(prompts), root.join(prompts)).expect("moved");
    }
    folder
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("the fixture is there") {
        let entry = entry.expect("the fixture is there");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            fs::create_dir(&to).expect("a new folder");
            copy_files(&from, &to);
        } else if !entry.file_name().to_string_lossy().starts_with("expected") {
            fs::copy(from, to).expect("copied");
        }
    }
}

/// Gives a field of a folder's config another value; takes it away for `null`.
pub fn with_field(folder: &Path, field: &str, value: &Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).expect("a config")).expect("valid JSON");
    match value {
        Value::Null => drop(config.as_object_mut().expect("an object").remove(field)),
        _ => config[field] = value.clone(),
    }
    fs::write(path, config.to_string()).expect("written");
}

/// Tensors by their names: dtype, shape and bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// All tensors of a folder.
pub fn tensors(folder: &Path) -> Tensors {
    let checkpoint = sinew::models::Tensors::open(folder, Load::Mmap).expect("a checkpoint");
    let of = |name: &str| {
        let tensor = checkpoint.tensor(name).expect("it is there");
        (tensor.dtype, tensor.shape.to_vec(), tensor.bytes.into_owned())
    };
    checkpoint.names().map(|name| (name.to_owned(), of(name))).collect()
}

/// Writes all tensors of a folder, to one file.
pub fn save(folder: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    let file = safetensors::serialize(views, None).expect("a file");
    fs::write(folder.join("model.safetensors"), file).expect("written");
}

/// Changes the tensors of a folder.
pub fn with_tensors(folder: &Path, change: impl FnOnce(&mut Tensors)) {
    let mut all = tensors(folder);
    change(&mut all);
    save(folder, &all);
}

/// What numbers are compared by that must be the same.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
