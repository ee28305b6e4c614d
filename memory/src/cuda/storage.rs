//! Memory of a GPU, and pinned memory of the host that it reaches.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::driver::{Address, Driver};
use crate::{DeviceId, Location, Storage};

/// A span that kernels reach.
pub struct CudaStorage {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    address: Address,
    /// Where the host reaches it, if it is pinned.
    host: Option<NonNull<u8>>,
    len: usize,
}

// SAFETY: the pointer is to memory of the storage's own, which is reached under the rules of `Buffer`.
unsafe impl Send for CudaStorage {}
// SAFETY: as above.
unsafe impl Sync for CudaStorage {}

impl CudaStorage {
    pub(super) fn on_device(driver: &Arc<dyn Driver>, device: DeviceId, address: Address, len: usize) -> Self {
        Self { driver: driver.clone(), device, address, host: None, len }
    }

    /// # Safety
    /// `pointer` is one of [`Driver::allocate_host`], for `len` bytes, and is given up.
    pub(super) unsafe fn pinned(driver: &Arc<dyn Driver>, device: DeviceId, pointer: NonNull<u8>, len: usize) -> Self {
        // SAFETY: `len` bytes are the storage's own; they are zeroed since the host may read them at once.
        unsafe { pointer.write_bytes(0, len) };
        let address = pointer.as_ptr() as Address;
        Self { driver: driver.clone(), device, address, host: Some(pointer), len }
    }

    /// The storage behind Sinew's own handle, if it is a GPU's.
    pub fn of(storage: &Arc<dyn Storage>) -> Option<&Self> {
        let storage: &dyn Any = &**storage;
        storage.downcast_ref()
    }

    /// The device whose kernels reach it.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The first byte, as kernels see it.
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for CudaStorage {
    fn drop(&mut self) {
        // Work that is enqueued may still use it. This is no place for speed: pools keep what they take.
        drop(self.driver.synchronize());
        // SAFETY: it was allocated by this driver, and nothing runs that uses it.
        drop(match self.host {
            Some(pointer) => unsafe { self.driver.free_host(pointer.as_ptr()) },
            None => unsafe { self.driver.free(self.address) },
        });
    }
}

// SAFETY: pinned memory is `len` bytes that were zeroed, valid until they are freed on drop, and allocations of a
// driver do not overlap.
unsafe impl Storage for CudaStorage {
    fn len(&self) -> usize {
        self.len
    }
    fn location(&self) -> Location {
        if self.host.is_some() { Location::Pinned } else { Location::Device }
    }
    fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.host
    }
}

impl fmt::Debug for CudaStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CudaStorage({} bytes at {:#x}, {} memory of {})",
            self.len,
            self.address,
            self.location(),
            self.device
        )
    }
}
