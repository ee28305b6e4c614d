//! The device and its memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sinew_memory::{
    Caches, Device, DeviceId, DeviceKind, Error, Hardware, Location, MemoryInfo, Rates, Result, SimdLevel, Storage,
    Stream,
};

use crate::stream::LaggingStream;

/// The kind of [`Lagging`] devices.
pub const KIND: DeviceKind = DeviceKind("lagging");

/// Bytes that the device has.
const CAPACITY: usize = 64 << 20;

/// What fresh memory holds, so that a missing upload shows.
const GARBAGE: u8 = 0xcd;

/// A device whose bytes only its own stream reaches, and whose stream is slow.
#[derive(Debug)]
pub struct Lagging {
    index: u32,
    hardware: Hardware,
    lag: Duration,
    used: Arc<AtomicUsize>,
}

impl Lagging {
    /// A device whose streams wait for `lag` before each piece of work.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(index: u32, lag: Duration) -> Arc<dyn Device> {
        let hardware = Hardware {
            kind: KIND,
            name: "lagging device".into(),
            simd: SimdLevel::Portable,
            threads: 1,
            caches: Caches { l1d: 0, l2: 0, l3: 0 },
            rates: Rates {
                read_bytes_per_s: 1e9,
                f32_flops_per_s: 1e8,
                bf16_flops_per_s: 1e8,
                launch_s: lag.as_secs_f64(),
            },
            accelerator: None,
        };
        Arc::new(Self { index, hardware, lag, used: Arc::default() })
    }

    /// Bytes of storage that are alive on a device of this kind: in buffers, and in work that is still queued.
    pub fn used_bytes(device: &Arc<dyn Device>) -> usize {
        let device: &dyn std::any::Any = &**device;
        device.downcast_ref::<Self>().map_or(0, |device| device.used.load(Ordering::Acquire))
    }
}

impl Device for Lagging {
    fn id(&self) -> DeviceId {
        DeviceId { kind: KIND, index: self.index }
    }
    fn hardware(&self) -> &Hardware {
        &self.hardware
    }
    fn memory(&self) -> Result<MemoryInfo> {
        let used = self.used.load(Ordering::Acquire);
        Ok(MemoryInfo { total: CAPACITY, available: CAPACITY.saturating_sub(used) })
    }
    fn alignment(&self) -> usize {
        256
    }
    fn location(&self) -> Location {
        Location::Device
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|&total| total <= CAPACITY)
        });
        match taken {
            Ok(_) => Ok(Arc::new(LaggingStorage { bytes: Mutex::new(vec![GARBAGE; bytes]), used: self.used.clone() })),
            Err(used) => Err(Error::OutOfMemory {
                device: self.id(),
                asked: bytes,
                available: CAPACITY - used,
                total: CAPACITY,
                holders: None,
                fits: CAPACITY - used,
            }),
        }
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        let lag = self.lag;
        Ok(LaggingStream::start(self, lag)?)
    }
}

/// Bytes that the host has no address of.
#[derive(Debug)]
pub(crate) struct LaggingStorage {
    bytes: Mutex<Vec<u8>>,
    used: Arc<AtomicUsize>,
}

impl LaggingStorage {
    /// The storage behind Sinew's own handle, if it is one of this device's.
    pub(crate) fn of(storage: &Arc<dyn Storage>) -> Option<&Self> {
        let storage: &dyn std::any::Any = &**storage;
        storage.downcast_ref()
    }

    /// The bytes, for work of a stream.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for LaggingStorage {
    fn drop(&mut self) {
        let len = self.bytes.get_mut().unwrap_or_else(|e| e.into_inner()).len();
        self.used.fetch_sub(len, Ordering::AcqRel);
    }
}

// SAFETY: there is no host pointer for which anything would have to hold.
unsafe impl Storage for LaggingStorage {
    fn len(&self) -> usize {
        self.lock().len()
    }
    fn location(&self) -> Location {
        Location::Device
    }
    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }
}
