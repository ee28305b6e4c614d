//! Tensors from and to safetensors files.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Metadata, TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use sinew_memory::{Device, Location, MappedFile, Unfinished};

use crate::error::{Error, Result, shape_error};
use crate::{DType, Element, Layout, Tensor};

/// The longest header that is written, and that is read of a model. A header is JSON, and costs several times its size to
/// parse: this keeps a hostile one below 200 MiB, and holds more than 100,000 tensors, of which the largest published
/// checkpoints have a few thousand in a file.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;

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
/// A file that cannot be read or is not valid, a dtype or shape that tensors cannot have, or out of memory.
pub fn load(device: &Arc<dyn Device>, path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    let file = Arc::new(MappedFile::open(path)?);
    let (header, metadata) =
        SafeTensors::read_metadata(file.bytes()).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let data = size_of::<u64>() + header;
    let mut tensors = BTreeMap::new();
    for (name, info) in metadata.tensors() {
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

/// What a safetensors file begins with: where each tensor is in it.
///
/// Tensors of larger elements come first, and those of a size by name: all are aligned then, as the header's text is
/// padded with blanks to a multiple of 8 bytes.
///
/// ```
/// use safetensors::Dtype;
/// use sinew_tensor::safetensors::Header;
///
/// let tensors = [("codes".to_owned(), Dtype::U16, vec![3]), ("scale".to_owned(), Dtype::F64, vec![2, 1])];
/// let header = Header::new(tensors, None)?;
/// let start = header.bytes().len();
/// assert_eq!(header.tensors(), [("scale".to_owned(), start..start + 16), ("codes".to_owned(), start + 16..start + 22)]);
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Header {
    bytes: Vec<u8>,
    tensors: Vec<(String, Range<usize>)>,
}

impl Header {
    /// Lays out tensors of these names, dtypes and shapes. `metadata` is text for `__metadata__`.
    ///
    /// # Errors
    /// A name that comes twice or is `__metadata__`, a tensor that does not end with a byte, a description of more than
    /// [`MAX_HEADER_BYTES`], or more bytes than a file can have.
    pub fn new(
        tensors: impl IntoIterator<Item = (String, Dtype, Vec<usize>)>,
        metadata: Option<HashMap<String, String>>,
    ) -> Result<Self> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_by(|(a, left, _), (b, right, _)| (Reverse(left.bitsize()), a).cmp(&(Reverse(right.bitsize()), b)));
        let mut places: Vec<(String, Range<usize>)> = Vec::new();
        let (mut infos, mut names, mut start) = (Vec::new(), BTreeSet::new(), 0usize);
        for (name, dtype, shape) in tensors {
            let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &size| bits.checked_mul(size));
            let too_large =
                || shape_error("save", format!("{name}: {shape:?} of {dtype} is more than a file can hold"));
            let end = bits.and_then(|bits| start.checked_add(bits / 8)).ok_or_else(too_large)?;
            if name == "__metadata__" || !names.insert(name.clone()) {
                return Err(shape_error("save", format!("a file cannot hold this tensor {name:?}: its name is taken")));
            }
            places.push((name.clone(), start..end));
            infos.push((name, TensorInfo { dtype, shape, data_offsets: (start, end) }));
            start = end;
        }
        let metadata = Metadata::new(metadata, infos)?;
        let mut text = serde_json::to_vec(&metadata).map_err(SafeTensorError::from)?;
        text.resize(text.len().next_multiple_of(8), b' ');
        if text.len() as u64 > MAX_HEADER_BYTES {
            let (count, len) = (places.len(), text.len());
            let reason =
                format!("the header of {count} tensors has {len} bytes; at most {MAX_HEADER_BYTES} are written");
            return Err(shape_error("save", reason));
        }
        let bytes = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        let too_large = || shape_error("save", format!("{start} bytes are more than a file can hold"));
        start.checked_add(bytes.len()).ok_or_else(too_large)?;
        for (_, place) in &mut places {
            *place = place.start + bytes.len()..place.end + bytes.len();
        }
        Ok(Self { bytes, tensors: places })
    }

    /// The first bytes of the file: the length of its description, and that.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The tensors in the order of the file, and the bytes of it that each has.
    pub fn tensors(&self) -> &[(String, Range<usize>)] {
        &self.tensors
    }
}

/// Writes tensors to a safetensors file in row-major order, whatever their layouts and devices.
///
/// The file appears under its name when it is complete: an earlier one that is mapped stays valid.
///
/// # Errors
/// A name that comes twice or is `__metadata__`, a file that cannot be written, or a failed device.
pub fn save<'a, S: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (S, &'a Tensor)>,
) -> Result<()> {
    save_with_metadata(path, tensors, None)
}

/// [`save`] with text for the header's `__metadata__`.
///
/// # Errors
/// Those of [`save`].
pub fn save_with_metadata<'a, S: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (S, &'a Tensor)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let tensors: Vec<(S, &Tensor)> = tensors.into_iter().collect();
    let entry =
        |name: &str, tensor: &Tensor| (name.to_owned(), tensor.dtype().to_safetensors(), tensor.shape().to_vec());
    let header = Header::new(tensors.iter().map(|(name, tensor)| entry(name.as_ref(), tensor)), metadata)?;
    let of_name: HashMap<&str, &Tensor> = tensors.iter().map(|(name, tensor)| (name.as_ref(), *tensor)).collect();
    let mut out = Output::create(path.as_ref(), &header)?;
    for (name, _) in header.tensors() {
        out.write(&of_name[name.as_str()].to_bytes()?)?;
    }
    out.complete()
}

/// Writes one tensor to a safetensors file as its elements come, in row-major order: what [`save`] writes, without the
/// whole tensor in memory.
///
/// The file appears under its name when [`Writer::finish`] is called; without that nothing is left of it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("rows.safetensors");
/// use sinew_memory::Cpu;
/// use sinew_tensor::{DType, safetensors};
/// let mut rows = safetensors::Writer::create(&path, "rows", DType::I32, &[2, 2])?;
/// rows.write(&[1i32, 2])?;
/// rows.write(&[3i32, 4])?;
/// assert!(rows.write(&[5i32]).is_err(), "the shape has no room for it");
/// rows.finish()?;
/// assert_eq!(safetensors::load(&Cpu::get(), &path)?["rows"].as_slice::<i32>()?, &[1, 2, 3, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Writer {
    out: Output,
    dtype: DType,
    /// Elements still to come.
    left: usize,
}

impl Writer {
    /// Starts a file that will hold one tensor.
    ///
    /// # Errors
    /// The name `__metadata__`, a shape that tensors cannot have, or a file that cannot be written.
    pub fn create(path: impl AsRef<Path>, name: &str, dtype: DType, shape: &[usize]) -> Result<Self> {
        let left = Layout::contiguous(shape)?.elements();
        let header = Header::new([(name.to_owned(), dtype.to_safetensors(), shape.to_vec())], None)?;
        Ok(Self { out: Output::create(path.as_ref(), &header)?, dtype, left })
    }

    /// Appends elements.
    ///
    /// # Errors
    /// Elements of another type than the tensor's, more of them than its shape has, or a file that cannot be written.
    pub fn write<T: Element>(&mut self, elements: &[T]) -> Result<()> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { operation: "write", found: self.dtype, asked: T::DTYPE });
        }
        let (new, left) = (elements.len(), self.left);
        let too_many = || shape_error("write", format!("{new} elements for the last {left} of the tensor"));
        self.left = left.checked_sub(new).ok_or_else(too_many)?;
        self.out.write(bytemuck::cast_slice(elements))
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// Elements that never came, or a file that cannot be written.
    pub fn finish(self) -> Result<()> {
        if self.left > 0 {
            return Err(shape_error("finish", format!("the last {} elements of the tensor are missing", self.left)));
        }
        self.out.complete()
    }
}

/// A file that appears under its name when it is complete.
#[derive(Debug)]
struct Output {
    file: BufWriter<File>,
    unfinished: Unfinished,
    path: PathBuf,
}

impl Output {
    fn create(path: &Path, header: &Header) -> Result<Self> {
        let (unfinished, file) =
            Unfinished::beside(path, |new| File::create_new(new)).map_err(|source| file_error(path, source))?;
        let mut out = Self { file: BufWriter::with_capacity(1 << 20, file), unfinished, path: path.to_owned() };
        out.write(header.bytes())?;
        Ok(out)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| file_error(&self.path, source))
    }

    fn complete(self) -> Result<()> {
        let Self { file, unfinished, path } = self;
        let written = file.into_inner().map_err(|e| e.into_error()).and_then(|file| file.sync_all());
        written.and_then(|()| unfinished.complete(&path)).map_err(|source| file_error(&path, source))
    }
}

fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { path: path.to_owned(), source: SafeTensorError::IoError(source) }
}
