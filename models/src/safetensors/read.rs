//! Reads and checks the header of a safetensors file.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;

use safetensors::tensor::TensorInfo;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{MAX_HEADER_BYTES, METADATA, quoted};

/// A header starts after its length, a little-endian u64.
pub const LENGTH_BYTES: usize = size_of::<u64>();
/// PyTorch limits tensors to this many dimensions.
const MAX_RANK: usize = 64;

/// Describes the fault of a header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header contradicts itself or the file.
    #[error("{0}")]
    Damaged(String),
    /// The text is not JSON of the expected form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Lists the tensors of a safetensors file. Names are unique, and the bytes follow each other without gap or overlap to
/// the file's end. Each tensor has as many bytes as its shape and dtype take.
///
/// ```
/// use sinew_models::safetensors::{Header, LENGTH_BYTES};
///
/// let text = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
/// let file = [&(text.len() as u64).to_le_bytes(), &text[..], &[7, 8]].concat();
/// let len = file.len() as u64;
/// let end = Header::end(&file, len)?;
/// let header = Header::read(&file[LENGTH_BYTES..end], len)?;
/// assert_eq!(header.tensors()["a"].shape, [2]);
/// assert!(Header::read(&file[LENGTH_BYTES..end], len - 1).is_err(), "the file is truncated");
/// # Ok::<(), sinew_models::safetensors::HeaderError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Header {
    tensors: BTreeMap<String, TensorInfo>,
}

impl Header {
    /// Returns the end of the header in a file of `len` bytes that begins with `first`. `first` has at least
    /// [`LENGTH_BYTES`] if the file has so many.
    ///
    /// # Errors
    /// Fails if the file is shorter than its header, or the header is longer than [`MAX_HEADER_BYTES`].
    pub fn end(first: &[u8], len: u64) -> Result<usize, HeaderError> {
        let Some(length) = first.first_chunk() else {
            let problem = format!("the file has {len} bytes, and a header at least {LENGTH_BYTES}");
            return Err(HeaderError::Damaged(problem));
        };
        let header = u64::from_le_bytes(*length);
        if header > MAX_HEADER_BYTES {
            let problem = format!("a header of {header} bytes; at most {MAX_HEADER_BYTES} are read");
            return Err(HeaderError::Damaged(problem));
        }
        let end = LENGTH_BYTES as u64 + header;
        if end > len {
            return Err(HeaderError::Damaged(format!("the header ends at byte {end} of {len}: the file is truncated")));
        }
        // The cast is lossless because the header is small.
        Ok(end as usize)
    }

    /// Reads the text between a header's length and its [`end`](Self::end), in a file of `len` bytes.
    ///
    /// # Errors
    /// Fails if the text is not a header's JSON or has a name twice. Fails if tensors overlap, leave gaps, differ in
    /// size from their shapes, or have over 64 dimensions. Fails if bytes are missing from the file or belong to no
    /// tensor.
    pub fn read(text: &[u8], len: u64) -> Result<Self, HeaderError> {
        let Unique(tensors) = serde_json::from_slice(text)?;
        let data = bytes_of(&tensors).map_err(HeaderError::Damaged)?;
        let start = (LENGTH_BYTES + text.len()) as u64;
        let size = match start.checked_add(data) {
            Some(end) if end == len => return Ok(Self { tensors }),
            Some(end) if end > len => "the file is truncated",
            Some(_) => "the file has bytes that belong to no tensor",
            None => "the sizes overflow",
        };
        Err(HeaderError::Damaged(format!("{data} bytes of tensors after byte {start} of {len}: {size}")))
    }

    /// Returns the tensors by name. Their offsets count from the header's [`end`](Self::end).
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Returns the tensors by name and consumes the header.
    pub fn into_tensors(self) -> BTreeMap<String, TensorInfo> {
        self.tensors
    }
}

/// Returns the total size of the tensors of a header. Checks that they follow each other without gap or overlap, and
/// that each has the size of its shape and dtype.
fn bytes_of(tensors: &BTreeMap<String, TensorInfo>) -> Result<u64, String> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_unstable_by_key(|(_, info)| info.data_offsets);
    let mut last = 0;
    for (name, TensorInfo { dtype, shape, data_offsets: (start, end) }) in in_order {
        let (name, dimensions) = (quoted(name), shape.len());
        if *start != last {
            return Err(format!("{name} begins at byte {start}, where what is before it ends at {last}"));
        }
        if dimensions > MAX_RANK {
            return Err(format!("{name} has {dimensions} dimensions, more than {MAX_RANK}"));
        }
        let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &n| bits.checked_mul(n));
        let size = bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        if size.is_none() || size != end.checked_sub(*start) {
            return Err(format!("{name} has bytes {start}..{end}, which {dtype} {shape:?} does not take"));
        }
        last = *end;
    }
    Ok(last as u64)
}

/// Reads a JSON object with unique names, because a reader would have to guess between two values. The entry
/// `__metadata__` is left out: it describes no tensor.
///
/// ```
/// use sinew_models::safetensors::Unique;
///
/// let Unique(files) = serde_json::from_str::<Unique<String>>(r#"{"a": "1.safetensors"}"#)?;
/// assert_eq!(files["a"], "1.safetensors");
/// assert!(serde_json::from_str::<Unique<u8>>(r#"{"a": 1, "a": 2}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Unique<T>(pub BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = BTreeMap<String, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut entries, mut has_metadata) = (BTreeMap::new(), false);
                while let Some(name) = map.next_key::<String>()? {
                    let is_metadata = name == METADATA;
                    if entries.contains_key(&name) || is_metadata && has_metadata {
                        return Err(de::Error::custom(format!("{} is there twice", quoted(&name))));
                    }
                    if is_metadata {
                        map.next_value::<HashMap<String, String>>()?;
                        has_metadata = true;
                    } else {
                        entries.insert(name, map.next_value()?);
                    }
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData)).map(Self)
    }
}
