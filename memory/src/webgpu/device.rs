//! The device.

use std::sync::{Arc, Mutex};

use super::gpu::Gpu;
use super::pipeline::{Cache, Pipeline, Pipelines, ShaderText};
use super::storage::{Binding, WgpuStorage};
use super::stream::WgpuStream;
use super::submission::{Counters, Queue};
use super::{adapters, lock, one_line};
use crate::{
    Accelerator, Caches, Device, DeviceId, DeviceKind, Error, Hardware, Location, MemoryInfo, PrivateFolder, Rates,
    Result, SimdLevel, Storage, Stream, system,
};

/// What of an adapter is used. By default all of it; less shows how kernels fare on a smaller one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WgpuOptions {
    /// The most bytes that buffers take, those included that stage and read back.
    pub max_memory_bytes: usize,
    /// The largest range of a buffer in bytes that a kernel may see at once.
    pub max_binding_bytes: u64,
    /// The most storage buffers of a kernel; no adapter has fewer than 8.
    pub max_storage_buffers: u32,
    /// The most memory in bytes that the threads of a workgroup share; no adapter has less than 16 KiB.
    pub max_workgroup_bytes: u32,
    /// Whether every limit is the least that WebGPU promises, those included that are not named here: sizes of buffers
    /// and workgroups, groups of a dispatch, alignments.
    pub least_limits: bool,
    /// Whether 16-bit floats are read and written as they are stored, where kernels can.
    pub f16: bool,
    /// Whether subgroups are used where there are any.
    pub subgroups: bool,
    /// Where compiled pipelines are kept.
    pub cache: PrivateFolder,
}

impl Default for WgpuOptions {
    fn default() -> Self {
        Self {
            max_memory_bytes: usize::MAX,
            max_binding_bytes: u64::MAX,
            max_storage_buffers: u32::MAX,
            max_workgroup_bytes: u32::MAX,
            least_limits: false,
            f16: true,
            subgroups: true,
            cache: PrivateFolder::of_user("kernels"),
        }
    }
}

impl WgpuOptions {
    /// The least that WebGPU promises: what kernels must do with.
    pub fn least() -> Self {
        Self {
            max_binding_bytes: 128 << 20,
            max_storage_buffers: 8,
            max_workgroup_bytes: 16 << 10,
            least_limits: true,
            f16: false,
            subgroups: false,
            ..Self::default()
        }
    }
}

/// A Vulkan, Metal or DX12 adapter, opened.
#[derive(Debug)]
pub struct WgpuDevice {
    queue: Arc<Queue>,
    pipelines: Mutex<Pipelines>,
    hardware: Hardware,
}

/// Rates and units by what kind of adapter it is, where nothing was measured: orders of magnitude, by which rows are
/// compared with one another.
fn rates(kind: wgpu::DeviceType) -> (usize, Rates) {
    let (units, read_bytes_per_s, flops, launch_s) = match kind {
        wgpu::DeviceType::DiscreteGpu => (64, 5e11, 3e11, 5e-6),
        wgpu::DeviceType::Cpu => (system::available_threads(), 1e10, 1e10, 5e-5),
        _ => (8, 5e10, 2e11, 2e-5),
    };
    (units, Rates { read_bytes_per_s, f32_flops_per_s: flops, bf16_flops_per_s: flops, launch_s })
}

impl WgpuDevice {
    /// Opens the adapter with a number, as [`crate::discover()`] counts them.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there is none, or it cannot be opened.
    pub fn open(index: usize, options: &WgpuOptions) -> Result<Arc<Self>> {
        let name = || format!("{}:{index}", DeviceKind::WGPU);
        let no_device = |reason: String| Error::NoDevice { name: name(), reason };
        let adapters = adapters::enumerate().map_err(no_device)?;
        let count = adapters.len();
        let adapter = adapters.into_iter().nth(index);
        let adapter = adapter.ok_or_else(|| no_device(format!("there are {count} adapters, from wgpu:0 on")))?;
        let info = adapter.get_info();
        let wanted = [
            (options.f16, adapters::F16),
            (options.subgroups, wgpu::Features::SUBGROUP),
            (options.cache != PrivateFolder::none(), wgpu::Features::PIPELINE_CACHE),
        ];
        let features = wanted.into_iter().filter(|&(on, feature)| on && adapter.features().contains(feature));
        let features = features.fold(wgpu::Features::empty(), |all, (_, feature)| all | feature);
        let mut limits = adapter.limits();
        if options.least_limits {
            limits = limits.or_worse_values_from(&wgpu::Limits::default());
        }
        limits.max_storage_buffer_binding_size = limits.max_storage_buffer_binding_size.min(options.max_binding_bytes);
        limits.max_storage_buffers_per_shader_stage =
            limits.max_storage_buffers_per_shader_stage.min(options.max_storage_buffers);
        limits.max_compute_workgroup_storage_size =
            limits.max_compute_workgroup_storage_size.min(options.max_workgroup_bytes);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("sinew"),
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| no_device(one_line(error)))?;
        let id = DeviceId { kind: DeviceKind::WGPU, index: index as u32 };
        let cached = features.contains(wgpu::Features::PIPELINE_CACHE);
        let cache = if cached { Cache::open(&device, &info, &options.cache) } else { None };
        let memory = adapters::memory(&adapter).unwrap_or_else(|| system::memory().total);
        let most_held = options.max_memory_bytes;
        let memory = memory.min(most_held);
        let limits = device.limits();
        let (threads, rates) = rates(info.device_type);
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        let hardware = Hardware {
            kind: DeviceKind::WGPU,
            name: info.name,
            simd: SimdLevel::Portable,
            threads,
            caches: Caches { l1d: 0, l2: 0, l3: 0 },
            rates,
            accelerator: Some(Accelerator {
                compute_capability: None,
                f16: features.contains(adapters::F16),
                bf16_products: false,
                subgroup_size: subgroups.then_some((info.subgroup_min_size as usize, info.subgroup_max_size as usize)),
                workgroup_bytes: limits.max_compute_workgroup_storage_size as usize,
                workgroup_threads: limits.max_compute_invocations_per_workgroup as usize,
                max_binding_bytes: usize::try_from(limits.max_storage_buffer_binding_size).unwrap_or(usize::MAX),
                max_bindings: limits.max_storage_buffers_per_shader_stage as usize,
            }),
        };
        let gpu = Gpu::new(id, device, queue, memory, most_held);
        let pipelines = Mutex::new(Pipelines::new(cache));
        Ok(Arc::new(Self { queue: Arc::new(Queue::new(gpu)), pipelines, hardware }))
    }

    /// The kernel of a name, compiled for these options. The text is made where it was not compiled before.
    ///
    /// # Errors
    /// WGSL that does not compile, named by its kernel.
    ///
    /// # Safety
    /// Loops of the kernel end, and it divides no integer by 0: neither is checked while it runs. Where it reads and
    /// writes is.
    pub unsafe fn pipeline(
        &self,
        name: &'static str,
        options: &[u32],
        text: impl FnOnce() -> ShaderText,
    ) -> Result<Arc<Pipeline>> {
        let mut pipelines = lock(&self.pipelines);
        match pipelines.get(name, options) {
            Some(pipeline) => Ok(pipeline),
            // SAFETY: passed on.
            None => unsafe { pipelines.make(&self.queue.gpu, name, options, &text()) },
        }
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub(super) fn count_pipelines(&self, counters: Counters) -> Counters {
        lock(&self.pipelines).count(counters)
    }

    /// The name of the kernel with a number, and what an error of it says.
    pub(super) fn kernel(&self, number: u32) -> (&'static str, &'static str) {
        lock(&self.pipelines).name(number)
    }
}

impl Device for WgpuDevice {
    fn id(&self) -> DeviceId {
        self.queue.gpu.id
    }
    fn hardware(&self) -> &Hardware {
        &self.hardware
    }
    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: self.queue.gpu.memory, available: self.queue.gpu.available() })
    }
    fn alignment(&self) -> usize {
        Binding::ALIGNMENT
    }
    fn location(&self) -> Location {
        Location::Device
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(WgpuStorage::allocate(&self.queue.gpu, bytes)?))
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        Ok(Arc::new(WgpuStream::new(self)?))
    }
}
