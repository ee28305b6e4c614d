//! What everything of a device rests on: wgpu's handles, limits, layouts, bind groups, and the memory that it holds.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;
use crate::{DeviceId, Error, Result};

/// An opened adapter.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) id: DeviceId,
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) limits: wgpu::Limits,
    pub(super) layouts: Layouts,
    pub(super) groups: Mutex<Groups>,
    /// Bytes of the device's memory.
    pub(super) memory: usize,
    /// The most bytes that may be held.
    most_held: usize,
    /// Bytes held by storages, and for the device's own needs.
    pub(super) storages: Arc<AtomicUsize>,
    persistent: Arc<AtomicUsize>,
    next_storage: AtomicU64,
}

/// Layouts that pipelines and bind groups share.
#[derive(Debug)]
pub(super) struct Layouts {
    pub(super) params: wgpu::BindGroupLayout,
    pub(super) status: wgpu::BindGroupLayout,
    /// By how many storage buffers there are.
    storage: Mutex<Vec<wgpu::BindGroupLayout>>,
}

/// A buffer, whose bytes count as held for as long as it is there.
#[derive(Debug)]
pub(super) struct Held {
    raw: wgpu::Buffer,
    _share: Share,
}

impl Deref for Held {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

/// So many bytes of a count.
#[derive(Debug)]
struct Share {
    count: Arc<AtomicUsize>,
    bytes: usize,
}

impl Share {
    fn take(count: &Arc<AtomicUsize>, bytes: usize) -> Self {
        count.fetch_add(bytes, Ordering::SeqCst);
        Self { count: count.clone(), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

fn layout(device: &wgpu::Device, entries: impl IntoIterator<Item = wgpu::BufferBindingType>) -> wgpu::BindGroupLayout {
    let entry = |(binding, ty)| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: ty == wgpu::BufferBindingType::Uniform,
            min_binding_size: None,
        },
        count: None,
    };
    let entries: Vec<_> = (0..).zip(entries).map(entry).collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
}

const STORAGE: wgpu::BufferBindingType = wgpu::BufferBindingType::Storage { read_only: false };

impl Gpu {
    pub(super) fn new(
        id: DeviceId,
        device: wgpu::Device,
        queue: wgpu::Queue,
        memory: usize,
        most_held: usize,
    ) -> Arc<Self> {
        let layouts = Layouts {
            params: layout(&device, [wgpu::BufferBindingType::Uniform]),
            status: layout(&device, [STORAGE]),
            storage: Mutex::default(),
        };
        Arc::new(Self {
            id,
            limits: device.limits(),
            device,
            queue,
            layouts,
            groups: Mutex::default(),
            memory,
            most_held,
            storages: Arc::default(),
            persistent: Arc::default(),
            next_storage: AtomicU64::new(0),
        })
    }

    pub(super) fn failed(&self, operation: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Device { device: self.id, operation: operation.into(), reason: reason.into() }
    }

    /// The layout of a group of so many storage buffers.
    pub(super) fn storage_layout(&self, buffers: usize) -> wgpu::BindGroupLayout {
        let mut layouts = lock(&self.layouts.storage);
        while layouts.len() <= buffers {
            let entries = std::iter::repeat_n(STORAGE, layouts.len());
            layouts.push(layout(&self.device, entries));
        }
        layouts[buffers].clone()
    }

    /// Bytes that nothing holds.
    pub(super) fn available(&self) -> usize {
        self.memory.saturating_sub(self.held())
    }

    /// Bytes held for the device's own needs.
    pub(super) fn persistent_bytes(&self) -> usize {
        self.persistent.load(Ordering::SeqCst)
    }

    fn held(&self) -> usize {
        self.storages.load(Ordering::SeqCst).saturating_add(self.persistent_bytes())
    }

    /// A buffer that can be copied from and to; `None` where there is no memory for it.
    pub(super) fn buffer(
        &self,
        label: &str,
        size: usize,
        usage: wgpu::BufferUsages,
        count: &Arc<AtomicUsize>,
    ) -> Option<Held> {
        // Counted before it is compared, so that of two at a time neither overlooks the other.
        let share = Share::take(count, size);
        if self.held() > self.most_held {
            return None;
        }
        // Read back is all that a buffer may be which the host reads.
        let copies = if usage == wgpu::BufferUsages::MAP_READ {
            wgpu::BufferUsages::COPY_DST
        } else {
            wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST
        };
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: size as u64,
            usage: usage | copies,
            mapped_at_creation: false,
        });
        pollster::block_on(scope.pop()).is_none().then_some(Held { raw, _share: share })
    }

    /// A buffer for the device's own needs.
    pub(super) fn persistent(&self, label: &str, size: usize, usage: wgpu::BufferUsages) -> Result<Held> {
        self.buffer(label, size, usage, &self.persistent).ok_or_else(|| self.failed(label, "out of memory"))
    }

    /// A number that no storage had before.
    pub(super) fn storage_id(&self) -> u64 {
        self.next_storage.fetch_add(1, Ordering::Relaxed)
    }
}

/// A range of a storage: its number, first byte and bytes.
pub(super) type Slot = (u64, u64, u64);

/// Bind groups at most: a program whose operands move about forever starts over.
const MOST_GROUPS: usize = 8192;

/// Bind groups, kept over steps by what they bind.
#[derive(Debug, Default)]
pub(super) struct Groups {
    made: HashMap<Box<[Slot]>, wgpu::BindGroup>,
    /// The groups of each storage.
    of: HashMap<u64, Vec<Box<[Slot]>>>,
}

impl Groups {
    pub(super) fn get(&self, slots: &[Slot]) -> Option<wgpu::BindGroup> {
        self.made.get(slots).cloned()
    }

    pub(super) fn insert(&mut self, slots: &[Slot], group: wgpu::BindGroup) {
        if self.made.len() == MOST_GROUPS {
            *self = Self::default();
        }
        for &(storage, ..) in slots {
            self.of.entry(storage).or_default().push(slots.into());
        }
        self.made.insert(slots.into(), group);
    }

    /// Drops the groups of a storage.
    pub(super) fn forget(&mut self, storage: u64) {
        for slots in self.of.remove(&storage).into_iter().flatten() {
            if self.made.remove(&slots).is_some() {
                for other in slots.iter().map(|slot| slot.0).filter(|&other| other != storage) {
                    if let Some(groups) = self.of.get_mut(&other) {
                        groups.retain(|group| *group != slots);
                    }
                }
            }
        }
    }
}
