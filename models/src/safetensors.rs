//! Loads and saves tensors in safetensors files.

mod read;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sinew_memory::{Device, MappedFile};
use sinew_tensor::{DType, Error as TensorError, Tensor};

pub use self::read::{Header, HeaderError, LENGTH_BYTES, Unique};
pub use self::write::{FileLayout, Writer, save, save_with_metadata};
use crate::error::{Error, Result, cut_to};

/// Maximum length of a header. Parsing costs several times its size, so a hostile header stays below 200 MiB. It has
/// room for 100,000 tensors; published files have a few thousand.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;
/// This entry of a header is text and describes no tensor.
const METADATA: &str = "__metadata__";

/// Tensors and files share these dtypes.
const DTYPES: [(DType, Dtype); 13] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F8E4M3, Dtype::F8_E4M3),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U32, Dtype::U32),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

/// Returns the tensors' dtype for a dtype of safetensors files, if tensors can have it.
pub fn tensor_dtype(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(_, in_file)| *in_file == dtype).map(|(in_memory, _)| *in_memory)
}

/// Returns the dtype that safetensors files use for tensors of `dtype`.
///
/// # Errors
/// Fails for a dtype that files do not have.
pub fn file_dtype(dtype: DType) -> Result<Dtype> {
    let found = DTYPES.iter().find(|(in_memory, _)| *in_memory == dtype).map(|(_, in_file)| *in_file);
    found.ok_or_else(|| shape_error("save", format!("safetensors files cannot hold {dtype}")))
}

fn supported(dtype: Dtype) -> Result<DType, TensorError> {
    let reason = || format!("dtype {dtype} is not one that tensors can have");
    tensor_dtype(dtype).ok_or_else(|| TensorError::Shape { operation: "safetensors", reason: reason() })
}

/// Copies a tensor of a safetensors file into a contiguous tensor. The bytes in the file may have any alignment.
///
/// # Errors
/// Fails for a dtype or shape that tensors cannot have, or without enough memory.
pub fn to_tensor(device: &Arc<dyn Device>, view: &TensorView<'_>) -> Result<Tensor> {
    Ok(Tensor::from_bytes(device, view.data(), supported(view.dtype())?, view.shape())?)
}

/// Quotes a name from a file or a caller in backquotes, with control characters escaped and a long name cut.
fn quoted(name: &str) -> String {
    const MOST: usize = 100;
    match cut_to(name, MOST) {
        Cow::Owned(beginning) => format!("`{}` ({} bytes)", beginning.escape_debug(), name.len()),
        Cow::Borrowed(name) => format!("`{}`", name.escape_debug()),
    }
}

fn shape_error(operation: &'static str, reason: String) -> Error {
    TensorError::Shape { operation, reason }.into()
}

/// Loads the tensors of a safetensors file by name. On devices that work on host memory they are read-only views into
/// the mapped file, which must not change meanwhile (see [`MappedFile`]). An unaligned tensor is copied.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// use sinew_memory::Cpu;
/// use sinew_models::safetensors;
/// use sinew_tensor::Tensor;
/// let weight = Tensor::from_slice(&Cpu::get(), &[1i32, 2, 3, 4], &[2, 2])?;
/// safetensors::save(&path, [("weight", &weight.t()?)])?;
/// let tensors = safetensors::load(&Cpu::get(), &path)?;
/// assert_eq!(tensors["weight"].as_slice::<i32>()?, &[1, 3, 2, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Fails if the file cannot be read, its [`Header`] is invalid, tensors cannot have a dtype or shape, or memory runs
/// out.
pub fn load(device: &Arc<dyn Device>, path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    let file = Arc::new(MappedFile::open(path)?);
    let damaged = |source: HeaderError| Error::Header { file: path.display().to_string(), source: source.into() };
    let (bytes, len) = (file.bytes(), file.len() as u64);
    let data = Header::end(bytes, len).map_err(damaged)?;
    let header = Header::read(bytes.get(LENGTH_BYTES..data).unwrap_or_default(), len).map_err(damaged)?;
    let mut tensors = BTreeMap::new();
    for (name, info) in header.into_tensors() {
        let (start, end) = info.data_offsets;
        let place = data + start..data + end;
        let tensor = supported(info.dtype)
            .and_then(|dtype| Tensor::from_mapped(device, &file, place, dtype, &info.shape))
            .map_err(|error| named(&name, error))?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Puts the tensor's name before the reason of an error.
fn named(name: &str, error: TensorError) -> Error {
    match error {
        TensorError::Shape { operation, reason } => shape_error(operation, format!("{}: {reason}", quoted(name))),
        other => other.into(),
    }
}
