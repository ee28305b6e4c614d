//! Tensors from and to safetensors files.

mod read;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sinew_memory::{Device, Location, MappedFile};

pub use self::read::{Header, HeaderError, LENGTH_BYTES, Unique};
pub use self::write::{FileLayout, Writer, save, save_with_metadata};
use crate::error::{Error, Result, shape_error};
use crate::{DType, Layout, Tensor};

/// The longest header that is written, and that is read. A header is JSON, and costs several times its size to
/// parse: this keeps a hostile one below 200 MiB, and holds more than 100,000 tensors, of which the largest published
/// checkpoints have a few thousand in a file.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;
/// The entry of a header that is text, and no tensor.
const METADATA: &str = "__metadata__";

impl DType {
    /// The dtype of that name in safetensors files, if tensors can have it.
    pub fn from_safetensors(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F64 => Self::F64,
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::BF16,
            Dtype::F8_E4M3 => Self::F8E4M3,
            Dtype::F8_E5M2 => Self::F8E5M2,
            Dtype::I64 => Self::I64,
            Dtype::I32 => Self::I32,
            Dtype::I16 => Self::I16,
            Dtype::I8 => Self::I8,
            Dtype::U32 => Self::U32,
            Dtype::U8 => Self::U8,
            Dtype::BOOL => Self::Bool,
            _ => return None,
        })
    }

    /// The dtype as safetensors files name it.
    pub fn to_safetensors(self) -> Dtype {
        match self {
            Self::F64 => Dtype::F64,
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::BF16 => Dtype::BF16,
            Self::F8E4M3 => Dtype::F8_E4M3,
            Self::F8E5M2 => Dtype::F8_E5M2,
            Self::I64 => Dtype::I64,
            Self::I32 => Dtype::I32,
            Self::I16 => Dtype::I16,
            Self::I8 => Dtype::I8,
            Self::U32 => Dtype::U32,
            Self::U8 => Dtype::U8,
            Self::Bool => Dtype::BOOL,
        }
    }
}

fn supported(dtype: Dtype) -> Result<DType> {
    let refused = || shape_error("safetensors", format!("dtype {dtype} is not one that tensors can have"));
    DType::from_safetensors(dtype).ok_or_else(refused)
}

impl Tensor {
    /// A contiguous tensor with a copy of a tensor in a safetensors file, at whatever address its bytes are.
    ///
    /// # Errors
    /// A dtype or shape that tensors cannot have, or out of memory.
    pub fn from_safetensors(device: &Arc<dyn Device>, view: &TensorView<'_>) -> Result<Self> {
        Self::from_bytes(device, view.data(), supported(view.dtype())?, view.shape())
    }

    /// A contiguous, read-only tensor that is `range` of a mapped file, without a copy. Where the bytes are not aligned
    /// for the dtype, or the device does not work on host memory, it is a copy of them.
    ///
    /// # Errors
    /// A range outside the file or of another length than the shape's, or out of memory.
    pub fn from_mapped(
        device: &Arc<dyn Device>,
        file: &Arc<MappedFile>,
        range: Range<usize>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        let bytes = file.bytes().get(range.clone());
        let Some(bytes) = bytes.filter(|bytes| bytes.len() == layout.elements() * dtype.size()) else {
            let reason = format!("bytes {range:?} of a file of {} for {layout:?} of {dtype}", file.len());
            return Err(shape_error("mapped tensor", reason));
        };
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(dtype.size());
        if !aligned || device.location() != Location::Host {
            return Self::from_bytes(device, bytes, dtype, shape);
        }
        Self::new(file.buffer(device, range)?, dtype, layout)
    }
}

/// The tensors of a safetensors file by name. On devices that work on host memory they are read-only views into the
/// mapped file, which must not change meanwhile (see [`MappedFile`]); those that are not aligned there are copies.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// use sinew_memory::Cpu;
/// use sinew_tensor::{Tensor, safetensors};
/// let weight = Tensor::from_slice(&Cpu::get(), &[1i32, 2, 3, 4], &[2, 2])?;
/// safetensors::save(&path, [("weight", &weight.t()?)])?;
/// let tensors = safetensors::load(&Cpu::get(), &path)?;
/// assert_eq!(tensors["weight"].as_slice::<i32>()?, &[1, 3, 2, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A file that cannot be read or whose [`Header`] is not valid, a dtype or shape that tensors cannot have, or out of
/// memory.
pub fn load(device: &Arc<dyn Device>, path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    let file = Arc::new(MappedFile::open(path)?);
    let damaged = |source: HeaderError| Error::File { path: path.to_owned(), source: source.into() };
    let (bytes, len) = (file.bytes(), file.len() as u64);
    let data = Header::end(bytes, len).map_err(damaged)?;
    let header = Header::read(bytes.get(LENGTH_BYTES..data).unwrap_or_default(), len).map_err(damaged)?;
    let mut tensors = BTreeMap::new();
    for (name, info) in header.into_tensors() {
        let (start, end) = info.data_offsets;
        let tensor = supported(info.dtype)
            .and_then(|dtype| Tensor::from_mapped(device, &file, data + start..data + end, dtype, &info.shape))
            .map_err(|error| named(&name, error))?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// The same error with the name of the tensor in it.
fn named(name: &str, error: Error) -> Error {
    match error {
        Error::Shape { operation, reason } => Error::Shape { operation, reason: format!("{name}: {reason}") },
        other => other,
    }
}
