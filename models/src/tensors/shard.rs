//! One safetensors file: its header, checked, and the bytes that the header speaks of.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::safetensors::{Header, HeaderError, LENGTH_BYTES};
use safetensors::tensor::TensorInfo;
use sinew_memory::MappedFile;

use super::Load;
use crate::error::{Error, Result};

/// All headers of a checkpoint. The largest published ones have 140,000 tensors, which take 18 MB.
pub(crate) const MAX_HEADERS_BYTES: u64 = 20 << 20;

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
    pub(super) fn header(&self, budget: &mut u64) -> Result<(usize, BTreeMap<String, TensorInfo>)> {
        let because = |source| Error::Header { file: self.path.display().to_string(), source };
        let damaged = |error: HeaderError| because(error.into());
        let len = self.len();
        let first = self.bytes(0..len.min(LENGTH_BYTES as u64) as usize)?;
        let end = Header::end(&first, len).map_err(damaged)?;
        let header_len = (end - LENGTH_BYTES) as u64;
        let Some(rest) = budget.checked_sub(header_len) else {
            let most = MAX_HEADERS_BYTES;
            let problem =
                format!("a header of {header_len} bytes after others; at most {most} are read of a checkpoint");
            return Err(because(problem.into()));
        };
        *budget = rest;
        let header = Header::read(&self.bytes(LENGTH_BYTES..end)?, len);
        if let Source::Mapped(map) = &self.source {
            // The pages of many headers would count as this process's memory.
            map.release(0..end);
        }
        Ok((end, header.map_err(damaged)?.into_tensors()))
    }

    fn len(&self) -> u64 {
        match &self.source {
            Source::Mapped(map) => map.len() as u64,
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::File(identity) => identity.len,
        }
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
