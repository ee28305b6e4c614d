//! One safetensors file: its header, checked, and the bytes that the header speaks of.

use std::borrow::Cow;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::tensor::TensorInfo;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use sinew_memory::MappedFile;
use sinew_tensor::safetensors::MAX_HEADER_BYTES;

use super::Load;
use crate::error::{Error, Result};

/// All headers of a checkpoint. The largest published ones have 140,000 tensors, which take 18 MB.
pub(crate) const MAX_HEADERS_BYTES: u64 = 20 << 20;
/// PyTorch's tensors have no more dimensions.
const MAX_RANK: usize = 64;
/// A header starts after its length, a little-endian u64.
const LENGTH_BYTES: u64 = 8;

pub(super) type Header = BTreeMap<String, TensorInfo>;

#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    /// One that is opened each time that it is read, as a process may have fewer files open than a checkpoint has.
    File(Identity),
    Bytes(Cow<'static, [u8]>),
}

impl Shard {
    /// Opens a file as `load` says.
    pub(super) fn open(path: PathBuf, load: Load) -> Result<Self> {
        let kind = fs::metadata(&path).map_err(|e| Error::io("open", &path, e))?;
        if !kind.is_file() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(Error::io("read", &path, source));
        }
        let source = match load {
            Load::Mmap => {
                let map = MappedFile::open(&path)?;
                map.advise_sequential();
                Source::Mapped(map)
            }
            Load::Read => Source::File(Identity::of(&kind)),
        };
        Ok(Self { path, source })
    }

    /// A file that is in memory already; `path` is what messages call it.
    pub(super) fn in_memory(path: PathBuf, bytes: Cow<'static, [u8]>) -> Self {
        Self { path, source: Source::Bytes(bytes) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The mapping, where the file is mapped.
    pub(super) fn mapping(&self) -> Option<&MappedFile> {
        match &self.source {
            Source::Mapped(map) => Some(map),
            Source::File(_) | Source::Bytes(_) => None,
        }
    }

    /// The tensors of the checked header, and where it ends in the file. Its length comes off `budget`, which the
    /// shards of a checkpoint have in common.
    pub(super) fn header(&self, budget: &mut u64) -> Result<(usize, Header)> {
        let because = |source| Error::Header { file: self.path.display().to_string(), source };
        let damaged = |problem: String| because(problem.into());
        let len = self.len()?;
        if len < LENGTH_BYTES {
            return Err(damaged(format!("the file has {len} bytes, and a header at least {LENGTH_BYTES}")));
        }
        let mut length = [0; LENGTH_BYTES as usize];
        length.copy_from_slice(&self.bytes(0..LENGTH_BYTES as usize)?);
        let header_len = u64::from_le_bytes(length);
        if header_len > MAX_HEADER_BYTES {
            return Err(damaged(format!("a header of {header_len} bytes; at most {MAX_HEADER_BYTES} are read")));
        }
        let Some(rest) = budget.checked_sub(header_len) else {
            return Err(damaged(format!(
                "a header of {header_len} bytes after others; at most {MAX_HEADERS_BYTES} are read of a checkpoint"
            )));
        };
        *budget = rest;
        let header_end = LENGTH_BYTES + header_len;
        if header_end > len {
            return Err(damaged(format!("the header ends at byte {header_end} of {len}: the file is truncated")));
        }
        // Both fit: the header is small.
        let header = self.bytes(LENGTH_BYTES as usize..header_end as usize)?;
        let Unique(tensors) = serde_json::from_slice(&header).map_err(|error| because(error.into()))?;
        let data = check(&tensors).map_err(damaged)?;
        drop(header);
        if let Source::Mapped(map) = &self.source {
            // The pages of many headers would count as this process's memory.
            map.release(0..header_end as usize);
        }
        if header_end.checked_add(data) != Some(len) {
            let size = match header_end.checked_add(data) {
                Some(end) if end > len => "the file is truncated",
                Some(_) => "the file has bytes that belong to no tensor",
                None => "the sizes overflow",
            };
            return Err(damaged(format!("{data} bytes of tensors after byte {header_end} of {len}: {size}")));
        }
        Ok((header_end as usize, tensors))
    }

    fn len(&self) -> Result<u64> {
        Ok(match &self.source {
            Source::Mapped(map) => map.len() as u64,
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::File(identity) => identity.len,
        })
    }

    /// The bytes in `range` of the file: borrowed, or read where it is not in memory.
    pub(super) fn bytes(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>> {
        let borrowed: &[u8] = match &self.source {
            Source::Mapped(map) => map.bytes(),
            Source::Bytes(bytes) => bytes,
            Source::File(identity) => {
                let file = File::open(&self.path).map_err(|e| Error::io("open", &self.path, e))?;
                if Identity::of(&file.metadata().map_err(|e| Error::io("read", &self.path, e))?) != *identity {
                    return Err(Error::Checkpoint {
                        file: self.path.display().to_string(),
                        problem: "it is not what it was when it was opened".to_owned(),
                    });
                }
                // Reserved with a check: a sparse file can claim more than there is memory.
                let mut bytes = Vec::new();
                bytes
                    .try_reserve_exact(range.len())
                    .map_err(|e| Error::io("read", &self.path, io::Error::new(io::ErrorKind::OutOfMemory, e)))?;
                bytes.resize(range.len(), 0);
                read_at(&file, &mut bytes, range.start as u64).map_err(|e| Error::io("read", &self.path, e))?;
                return Ok(Cow::Owned(bytes));
            }
        };
        match borrowed.get(range.clone()) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => Err(Error::Checkpoint {
                file: self.path.display().to_string(),
                problem: format!("no bytes {}..{}", range.start, range.end),
            }),
        }
    }
}

/// The bytes that the tensors of a header have together: they lie one after the other without gap or overlap, and each is
/// as large as its shape and dtype make it.
fn check(tensors: &Header) -> std::result::Result<u64, String> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_unstable_by_key(|(_, info)| info.data_offsets);
    let mut last = 0;
    for (name, TensorInfo { dtype, shape, data_offsets: (start, end) }) in in_order {
        let (name, dimensions) = (name.escape_debug(), shape.len());
        if *start != last {
            return Err(format!("`{name}` begins at byte {start}, where what is before it ends at {last}"));
        }
        if dimensions > MAX_RANK {
            return Err(format!("`{name}` has {dimensions} dimensions, more than {MAX_RANK}"));
        }
        let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &n| bits.checked_mul(n));
        let size = bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        if size.is_none() || size != end.checked_sub(*start) {
            return Err(format!("`{name}` has bytes {start}..{end}, which {dtype} {shape:?} does not take"));
        }
        last = *end;
    }
    Ok(last as u64)
}

/// What tells a file from what it was before, or from another that took its place.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    len: u64,
    /// Where the system keeps it.
    modified: Option<SystemTime>,
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        Self { len: file.len(), modified: file.modified().ok() }
    }
}

/// Reads at a position that is not shared, so that several threads can read one file.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                bytes = &mut bytes[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A JSON object in which no name comes twice: of two values a reader would have to guess which one is meant. The
/// entry `__metadata__`, which says nothing of the tensors, is left out.
pub(super) struct Unique<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = BTreeMap<String, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<HashMap<String, String>>()?;
                    } else {
                        match entries.entry(name) {
                            Slot::Vacant(slot) => drop(slot.insert(map.next_value()?)),
                            Slot::Occupied(slot) => {
                                let problem = format!("`{}` is there twice", slot.key().escape_debug());
                                return Err(de::Error::custom(problem));
                            }
                        }
                    }
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData)).map(Self)
    }
}
