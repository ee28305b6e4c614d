//! Tensors to safetensors files, in the order in which they are laid out there.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use sinew_memory::Unfinished;
use sinew_tensor::{DType, Element, Error as TensorError, Layout, Tensor};

use super::{MAX_HEADER_BYTES, METADATA, file_dtype, quoted, shape_error};
use crate::error::{Error, Result};

/// Where each tensor is in a safetensors file that is to be written, and what the file begins with to say so.
///
/// Tensors of larger elements come first, and those of a size by name: all are aligned then, as the header's text is
/// padded with blanks to a multiple of 8 bytes.
///
/// ```
/// use safetensors::Dtype;
/// use sinew_models::safetensors::FileLayout;
///
/// let tensors = [("codes".to_owned(), Dtype::U16, vec![3]), ("scale".to_owned(), Dtype::F64, vec![2, 1])];
/// let layout = FileLayout::new(tensors, None)?;
/// let start = layout.bytes().len();
/// assert_eq!(layout.tensors(), [("scale".to_owned(), start..start + 16), ("codes".to_owned(), start + 16..start + 22)]);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct FileLayout {
    bytes: Vec<u8>,
    tensors: Vec<(String, Range<usize>)>,
}

impl FileLayout {
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
            let too_large = || {
                let reason = format!("{}: {dtype} {shape:?} is more than a file can hold", quoted(&name));
                shape_error("save", reason)
            };
            let end = bits.and_then(|bits| start.checked_add(bits / 8)).ok_or_else(too_large)?;
            if name == METADATA || !names.insert(name.clone()) {
                let reason = format!("a file cannot hold tensor {}: its name is taken", quoted(&name));
                return Err(shape_error("save", reason));
            }
            places.push((name.clone(), start..end));
            infos.push((name, TensorInfo { dtype, shape, data_offsets: (start, end) }));
            start = end;
        }
        let invalid = |error: SafeTensorError| shape_error("save", error.to_string());
        let metadata = Metadata::new(metadata, infos).map_err(invalid)?;
        let mut text = serde_json::to_vec(&metadata).map_err(|error| invalid(error.into()))?;
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
    let entry = |(name, tensor): &(S, &Tensor)| {
        Ok((name.as_ref().to_owned(), file_dtype(tensor.dtype())?, tensor.shape().to_vec()))
    };
    let layout = FileLayout::new(tensors.iter().map(entry).collect::<Result<Vec<_>>>()?, metadata)?;
    let of_name: HashMap<&str, &Tensor> = tensors.iter().map(|(name, tensor)| (name.as_ref(), *tensor)).collect();
    let mut out = Output::create(path.as_ref(), &layout)?;
    for (name, _) in layout.tensors() {
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
/// use sinew_models::safetensors;
/// use sinew_tensor::DType;
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
        let layout = FileLayout::new([(name.to_owned(), file_dtype(dtype)?, shape.to_vec())], None)?;
        Ok(Self { out: Output::create(path.as_ref(), &layout)?, dtype, left })
    }

    /// Appends elements.
    ///
    /// # Errors
    /// Elements of another type than the tensor's, more of them than its shape has, or a file that cannot be written.
    pub fn write<T: Element>(&mut self, elements: &[T]) -> Result<()> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::DType { operation: "write", found: self.dtype, asked: T::DTYPE }.into());
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
    fn create(path: &Path, layout: &FileLayout) -> Result<Self> {
        let (unfinished, file) =
            Unfinished::beside(path, |new| File::create_new(new)).map_err(|source| file_error(path, source))?;
        let mut out = Self { file: BufWriter::with_capacity(1 << 20, file), unfinished, path: path.to_owned() };
        out.write(layout.bytes())?;
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
    Error::io("write", path, source)
}
