//! Read-only files mapped into memory.
//!
//! Of a checkpoint that is mapped, tensors are repacked one by one, and the mapping lets the pages go as soon as they
//! have been, so that a model never costs its file and its packed weights together.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::host_vec::check_host;
use crate::messages::{self, Severity};
use crate::{Buffer, Device, Location, Span, Storage};

/// A read-only file, mapped.
///
/// The pages are read when they are first touched and can be dropped again with [`release`](Self::release);
/// a page that was dropped comes back from the file at the next touch, with the same bytes.
///
/// # The file must not change
///
/// A mapped file that is truncated by somebody else while it is read ends the process with `SIGBUS`: this is
/// the one failure that no check here can turn into an error. Read the file instead where that can happen.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("weights.bin");
/// std::fs::write(&path, [1, 2, 3])?;
/// let file = sinew_memory::MappedFile::open(&path)?;
/// assert_eq!(file.bytes(), [1, 2, 3]);
/// file.release(0..3);
/// assert_eq!(file.bytes(), [1, 2, 3], "dropped pages are read again");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    path: PathBuf,
}

impl MappedFile {
    /// Maps the whole of the file at `path`. An empty file maps to no bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the path is missing, is no regular file (a folder, a pipe, a device), or the system
    /// refuses to map it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = fs::metadata(path).map_err(|e| Error::io("open", path, e))?;
        if !kind.is_file() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(Error::io("map", path, source));
        }
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        // SAFETY: the mapping is private to this value, read-only, and lives as long as every slice that
        // `bytes` hands out. What the type system cannot rule out, another process that writes to or truncates
        // the file, is the documented condition of this type.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
        debug_assert!(map.len() <= isize::MAX as usize);
        Ok(Self { map, path: path.to_owned() })
    }

    /// The bytes of the file, with the alignment of a page at the front.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The number of bytes in the file.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the file holds nothing.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The path that the file was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Drops the pages that hold `range` from this process, so that they no longer count as resident.
    ///
    /// Pages at the two ends that hold neighbouring bytes are dropped with it: those bytes stay valid and cost
    /// one more page fault. What lies outside the file is ignored. A hint: where the system has no such call, or
    /// refuses, nothing happens.
    pub fn release(&self, range: Range<usize>) {
        let range = self.clamped(range);
        if range.is_empty() {
            return;
        }
        #[cfg(unix)]
        {
            debug_assert!(range.end <= self.map.len());
            // 4096 divides the page size of every system this runs on.
            debug_assert_eq!(self.map.as_ptr().addr() % 4096, 0);
            // SAFETY: the mapping is read-only and backed by the file, so that a dropped page is filled with the
            // same bytes at the next access: no reader can tell. The range lies inside the mapping; memmap2 moves
            // its start down to a page, and the mapping starts on one.
            let done = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            if let Err(error) = done {
                self.refused("DONTNEED", &error);
            }
        }
    }

    /// Tells the system that the file will be read from front to back, which makes it read further ahead.
    pub fn advise_sequential(&self) {
        #[cfg(unix)]
        if !self.is_empty()
            && let Err(error) = self.map.advise(memmap2::Advice::Sequential)
        {
            self.refused("SEQUENTIAL", &error);
        }
    }

    /// Asks the system to start reading `range` from the disk, and does not wait for it.
    ///
    /// What lies outside the file is ignored.
    pub fn prefetch(&self, range: Range<usize>) {
        let range = self.clamped(range);
        if range.is_empty() {
            return;
        }
        #[cfg(unix)]
        if let Err(error) = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len()) {
            self.refused("WILLNEED", &error);
        }
    }

    /// Reports a hint that the system refused: it costs time, and changes no byte.
    #[cfg(unix)]
    fn refused(&self, hint: &str, error: &io::Error) {
        let text = format_args!("madvise({hint}) of {} failed: {error}", self.path.display());
        messages::send(Severity::Debug, text);
    }

    /// A read-only buffer that is `range` of the file, without a copy. Buffers of one file may overlap.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("weights.bin");
    /// use sinew_memory::{Cpu, MappedFile};
    /// std::fs::write(&path, [1, 2, 3])?;
    /// let file = std::sync::Arc::new(MappedFile::open(&path)?);
    /// let mut buffer = file.buffer(&Cpu::get(), 1..3)?;
    /// assert_eq!(buffer.as_slice::<u8>()?, [2, 3]);
    /// assert!(buffer.as_mut_slice::<u8>().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], and [`Error::Invalid`] for a device that does not work on host memory.
    pub fn buffer(self: &Arc<Self>, device: &Arc<dyn Device>, range: Range<usize>) -> Result<Buffer> {
        check_host(device, "a mapped file")?;
        let (start, end, len) = (range.start, range.end, self.len());
        if start > end || end > len {
            return Err(Error::OutOfRange { start, end, len });
        }
        let span = Span { storage: self.clone(), offset: start, len: end - start };
        // SAFETY: the range was checked, and nobody can write a storage that is not writable: to share its bytes among
        // buffers is to read them several times.
        Ok(unsafe { Buffer::from_span(device, span, None) })
    }

    fn clamped(&self, range: Range<usize>) -> Range<usize> {
        range.start.min(self.len())..range.end.min(self.len())
    }
}

// SAFETY: the mapping is `len` bytes that stay valid for reads until the value is dropped, and the system puts it where
// no other memory is. It is not writable. Its contents are the file's, under the condition above that the file stays as
// it is; `release` changes no byte.
unsafe impl Storage for MappedFile {
    fn len(&self) -> usize {
        self.map.len()
    }
    fn location(&self) -> Location {
        Location::MappedFile
    }
    fn host_ptr(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.map.as_ptr().cast_mut())
    }
    fn writable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    fn file_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        fs::write(&path, bytes).expect("written");
        (folder, path)
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let (_folder, path) = file_of(&[]);
        let file = MappedFile::open(&path).expect("mapped");
        assert!(file.is_empty());
        file.advise_sequential();
        file.prefetch(0..10);
        file.release(0..10);
        assert_eq!(file.bytes(), b"");
    }

    #[test]
    fn released_pages_come_back_with_the_same_bytes() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let (_folder, path) = file_of(&bytes);
        let file = MappedFile::open(&path).expect("mapped");
        assert_eq!(file.bytes(), bytes);
        file.advise_sequential();
        for range in [0..1, 4095..4097, 5000..90_000, 99_999..100_000, 0..100_000] {
            file.release(range.clone());
            file.prefetch(range);
            assert_eq!(file.bytes(), bytes);
        }
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn ranges_outside_the_file_are_ignored() {
        let (_folder, path) = file_of(&[7; 10]);
        let file = MappedFile::open(&path).expect("mapped");
        for range in [0..usize::MAX, usize::MAX - 1..usize::MAX, 8..3, 10..10] {
            file.release(range.clone());
            file.prefetch(range);
        }
        assert_eq!(file.bytes(), [7; 10]);
    }

    #[test]
    fn a_missing_file_and_a_folder_are_errors_that_name_the_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = folder.path().join("nothing-here");
        let error = MappedFile::open(&missing).expect_err("missing");
        assert!(error.to_string().contains("nothing-here"), "{error}");
        assert!(error.source().is_some());
        let error = MappedFile::open(folder.path()).expect_err("a folder");
        let source = error.source().map(ToString::to_string);
        assert_eq!(source.as_deref(), Some("it is not a regular file"));
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn buffers_of_a_file_share_its_bytes_and_cannot_be_written() {
        let (_folder, path) = file_of(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let file = Arc::new(MappedFile::open(&path).expect("mapped"));
        let cpu = crate::Cpu::get();
        let mut whole = file.buffer(&cpu, 0..8).expect("inside");
        let tail = file.buffer(&cpu, 4..8).expect("inside");
        assert_eq!(tail.as_slice::<u32>().expect("aligned"), [u32::from_le_bytes([5, 6, 7, 8])]);
        assert_eq!(tail.as_slice::<u8>().expect("bytes").as_ptr(), file.bytes()[4..].as_ptr());
        assert_eq!(tail.span().storage.location(), Location::MappedFile);
        assert!(matches!(whole.as_mut_slice::<u8>(), Err(Error::ReadOnly)));
        assert!(file.buffer(&cpu, 8..8).expect("empty").is_empty());
        for range in [0..9, 5..4, usize::MAX..usize::MAX] {
            assert!(matches!(file.buffer(&cpu, range), Err(Error::OutOfRange { .. })));
        }
        drop(file);
        assert_eq!(whole.as_slice::<u8>().expect("still mapped")[7], 8);
        let owned = MappedFile::open(&path).expect("mapped");
        assert_eq!(Buffer::from_storage(&cpu, owned).len(), 8);
    }
}
