//! The host's memory: small spans from the allocator, others from the system, large ones in huge pages.

use std::alloc::Layout;
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};

#[cfg(target_os = "linux")]
use crate::messages::{self, Severity};
use crate::system;
use crate::{Location, Storage, Team};

/// Alignment of host allocations: a cache line, and the widest vector register.
pub const HOST_ALIGNMENT: usize = 64;

/// Allocations from this size on are the system's pages, zeroed by whoever touches them first: an allocator would have one
/// thread zero them, page by page, before others fill them.
const PAGES_FROM: usize = 256 << 10;
/// From this size on what is behind the last whole huge page is one as well: below, it would cost more than it saves.
const ROUNDED_FROM: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// The smallest page of any system.
const PAGE: usize = 4 << 10;

/// Zeroed host memory.
#[derive(Debug)]
pub(crate) struct HostStorage {
    ptr: NonNull<u8>,
    len: usize,
    held: Held,
}

/// What the memory is given back to.
#[derive(Debug)]
enum Held {
    /// The allocator.
    Heap(Layout),
    /// The system: whole pages, huge where it has them.
    Pages(#[expect(dead_code, reason = "it is dropped")] MmapMut),
}

impl HostStorage {
    /// `len` bytes, if there is the memory.
    pub fn new(len: usize) -> Option<Self> {
        if len >= PAGES_FROM {
            return Self::pages(len);
        }
        let layout =
            Layout::from_size_align(len.max(1).checked_next_multiple_of(HOST_ALIGNMENT)?, HOST_ALIGNMENT).ok()?;
        // SAFETY: `layout` has a size of at least one byte.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { ptr, len, held: Held::Heap(layout) })
    }

    /// Bytes that `len` bytes take once all of them are written.
    pub fn held_bytes(len: usize) -> usize {
        let granule = match len {
            ROUNDED_FROM.. => HUGE_PAGE,
            PAGES_FROM.. => PAGE,
            _ => HOST_ALIGNMENT,
        };
        len.checked_next_multiple_of(granule).unwrap_or(usize::MAX)
    }

    /// Pages of the system, which zeroes each where it is first touched.
    fn pages(len: usize) -> Option<Self> {
        let size = Self::held_bytes(len);
        // Linux would promise the pages and kill the process when they are touched. Asking takes longer than small ones do.
        if len >= ROUNDED_FROM && size > system::memory().available {
            return None;
        }
        // Addresses alone: nobody touches what is before the first huge page.
        let spare = if size < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let mut map = MmapOptions::new().len(size.checked_add(spare)?).map_anon().ok()?;
        let before = if spare == 0 { 0 } else { map.as_ptr().align_offset(HUGE_PAGE) };
        #[cfg(target_os = "linux")]
        if spare != 0
            && let Err(error) = map.advise_range(memmap2::Advice::HugePage, before, size)
        {
            messages::send(Severity::Debug, format_args!("madvise(HUGEPAGE) failed: {error}"));
        }
        let ptr = NonNull::new(map.as_mut_ptr().wrapping_add(before))?;
        Some(Self { ptr, len, held: Held::Pages(map) })
    }

    /// Touches all pages, so that memory that is promised is there: with all threads, as that takes as long as reading
    /// a checkpoint. Nobody else may know of the storage yet.
    pub fn touch(&self, team: &Team) {
        if let Held::Pages(_) = self.held {
            let chunks = Chunks { ptr: self.ptr, len: self.len };
            team.run(self.len.div_ceil(HUGE_PAGE), |chunk, _| chunks.touch(chunk));
        }
    }
}

/// Runs of [`HUGE_PAGE`] bytes, the last of which may be shorter.
struct Chunks {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: each run is touched by one task.
unsafe impl Sync for Chunks {}

impl Chunks {
    fn touch(&self, chunk: usize) {
        for byte in (chunk * HUGE_PAGE..self.len.min((chunk + 1) * HUGE_PAGE)).step_by(PAGE) {
            // SAFETY: the byte is in the mapping that was just made, and nobody else's; it is zero already.
            unsafe { self.ptr.add(byte).write_volatile(0) };
        }
    }
}

impl Drop for HostStorage {
    fn drop(&mut self) {
        if let Held::Heap(layout) = self.held {
            // SAFETY: allocated in `new` with this layout, and freed once.
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

// SAFETY: the span is owned by this value; what is read and written through it is ruled by `Buffer`'s handles.
unsafe impl Send for HostStorage {}
// SAFETY: as above.
unsafe impl Sync for HostStorage {}

// SAFETY: `ptr` points to at least `len` bytes, zeroed at allocation, that live as long as `self` and are its own.
unsafe impl Storage for HostStorage {
    fn len(&self) -> usize {
        self.len
    }
    fn location(&self) -> Location {
        Location::Host
    }
    fn host_ptr(&self) -> Option<NonNull<u8>> {
        Some(self.ptr)
    }
}
