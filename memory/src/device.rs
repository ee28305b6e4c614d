//! Devices: where memory is and where work runs.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Hardware, Result, Stream};

/// The kind of a device: `cpu`, `cuda`, `wgpu`, or a name that another crate brings.
///
/// Kernels name the kind they run on. Kinds compare by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKind(pub &'static str);

impl DeviceKind {
    /// The host's processor.
    pub const CPU: Self = Self("cpu");
    /// NVIDIA GPUs.
    pub const CUDA: Self = Self("cuda");
    /// Vulkan, Metal and DX12 adapters.
    pub const WGPU: Self = Self("wgpu");
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// One device: its kind and its number among those of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// Which one of that kind.
    pub index: u32,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == DeviceKind::CPU { f.write_str("cpu") } else { write!(f, "{}:{}", self.kind, self.index) }
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Location {
    /// Ordinary host memory.
    Host,
    /// Host memory that a device can read and write by itself.
    Pinned,
    /// Memory of the device only.
    Device,
    /// Memory that host and device share.
    Unified,
    /// A file mapped into the host's memory, read-only.
    MappedFile,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Pinned => "pinned",
            Self::Device => "device",
            Self::Unified => "unified",
            Self::MappedFile => "mapped-file",
        })
    }
}

/// Total and free memory of a device, in bytes, with any container's limit applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What the device, or the limit on this process, has in all.
    pub total: usize,
    /// What of it could be allocated now.
    pub available: usize,
}

/// A device that allocates memory and makes streams.
///
/// Devices are shared as `Arc<dyn Device>`; a crate outside adds one by implementing this trait, [`Storage`] and
/// [`Stream`], and rows for the operators it runs.
pub trait Device: fmt::Debug + Send + Sync + Any {
    /// Kind and number.
    fn id(&self) -> DeviceId;
    /// What is known of the hardware: kernels' predicates and costs read it.
    fn hardware(&self) -> &Hardware;
    /// Total and available memory now.
    fn memory(&self) -> Result<MemoryInfo>;
    /// Alignment in bytes of every allocation.
    fn alignment(&self) -> usize;
    /// Where [`Device::allocate`] puts tensors.
    fn location(&self) -> Location;
    /// Allocates `bytes` bytes (which may be 0) with unspecified contents that are nevertheless initialised memory.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] when there is not enough.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>>;
    /// [`Device::allocate`] for an owner that fills the memory at once: where the system supplies pages as they are
    /// first written, they are left to that, whose writes then find them in the caches. Until they are written they
    /// count as available, to the next who asks as well.
    ///
    /// # Errors
    /// Those of [`Device::allocate`].
    fn allocate_to_fill(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        self.allocate(bytes)
    }
    /// Bytes of memory that an allocation of `bytes` bytes takes: more than are asked for where pages are large.
    fn held_bytes(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.alignment().max(1)).unwrap_or(usize::MAX)
    }
    /// Makes a stream: a queue of work in order.
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>>;
}

/// A span of memory that belongs to a device. What it is inside is the device's own affair.
///
/// # Safety
/// [`Storage::host_ptr`], where it is `Some`, must point to [`Storage::len`] initialised bytes that stay valid for
/// reads (and for writes, if [`Storage::writable`]) as long as the storage lives, and that no other storage overlaps.
pub unsafe trait Storage: fmt::Debug + Send + Sync + Any {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether it holds no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Where it is.
    fn location(&self) -> Location;
    /// The first byte, where the host can reach it.
    fn host_ptr(&self) -> Option<NonNull<u8>>;
    /// Whether the bytes may be written.
    fn writable(&self) -> bool {
        true
    }
}
