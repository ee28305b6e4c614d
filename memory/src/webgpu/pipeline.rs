//! Pipelines: compiled WGSL, remembered by name and options, and kept for the next run in the driver's own form.

use std::collections::HashMap;
use std::sync::Arc;

use super::gpu::Gpu;
use super::one_line;
use super::submission::Counters;
use crate::{PrivateFolder, Result};

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) name: &'static str,
    /// What the status word knows it by; 0 is none.
    pub(super) number: u32,
    pub(super) compiled: wgpu::ComputePipeline,
    pub(super) bindings: usize,
    pub(super) reports: bool,
}

/// The text of a kernel and what it binds.
///
/// The entry is `main`. Group 0 holds the storage buffers from binding 0 on, every one of them `read_write`: a pool
/// cuts several buffers from one storage, and WebGPU forbids to read and write one in a dispatch through bindings that
/// differ in that. Binding 0 of group 1 is the uniform parameters, words of which the first is the pipeline's number.
/// Where the kernel reports, binding 0 of group 2 is the status, `array<atomic<u32>>`: the number of the pipeline that
/// met what it cannot take (0 while there is none), and a value to name it by.
#[derive(Clone, Debug)]
pub struct ShaderText {
    /// WGSL.
    pub wgsl: String,
    /// Storage buffers.
    pub bindings: usize,
    /// Where it uses the status, what an error says of the value, which stands for `{}`.
    pub reports: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct Pipelines {
    cache: Option<Cache>,
    /// Pipelines that the cache was given for.
    cached: usize,
    made: HashMap<&'static str, HashMap<Box<[u32]>, Arc<Pipeline>>>,
    /// Names by number, from 1 on, and what an error of each says.
    names: Vec<(&'static str, &'static str)>,
}

impl Pipelines {
    pub(super) fn new(cache: Option<Cache>) -> Self {
        Self { cache, cached: 0, made: HashMap::new(), names: Vec::new() }
    }

    pub(super) fn get(&self, name: &'static str, options: &[u32]) -> Option<Arc<Pipeline>> {
        self.made.get(name)?.get(options).cloned()
    }

    pub(super) fn name(&self, number: u32) -> (&'static str, &'static str) {
        self.names.get((number as usize).wrapping_sub(1)).copied().unwrap_or(("a kernel", "{}"))
    }

    pub(super) fn count(&self, counters: Counters) -> Counters {
        let cache_bytes = self.cache.as_ref().map_or(0, |cache| cache.began_with);
        Counters { pipelines: self.names.len(), cached_pipelines: self.cached, cache_bytes, ..counters }
    }

    /// Compiles.
    ///
    /// # Safety
    /// That of [`super::WgpuDevice::pipeline`].
    pub(super) unsafe fn make(
        &mut self,
        gpu: &Gpu,
        name: &'static str,
        options: &[u32],
        text: &ShaderText,
    ) -> Result<Arc<Pipeline>> {
        let device = &gpu.device;
        let failed = |reason: String| gpu.failed(name, reason);
        let most = gpu.limits.max_storage_buffers_per_shader_stage as usize;
        let needed = text.bindings + usize::from(text.reports.is_some());
        if needed > most {
            return Err(failed(format!("{needed} storage buffers, the device binds {most}")));
        }
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let mut checks = wgpu::ShaderRuntimeChecks::unchecked();
        checks.bounds_checks = true;
        let description =
            wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl((&text.wgsl).into()) };
        // SAFETY: accesses are checked; that loops end and divisors are not 0 is passed on.
        let module = unsafe { device.create_shader_module_trusted(description, checks) };
        let layouts = [Some(gpu.storage_layout(text.bindings)), Some(gpu.layouts.params.clone())];
        let status = text.reports.map(|_| Some(gpu.layouts.status.clone()));
        let layouts: Vec<_> = layouts.into_iter().chain(status).collect();
        let layouts: Vec<_> = layouts.iter().map(Option::as_ref).collect();
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &layouts,
            immediate_size: 0,
        });
        let descriptor = wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels write shared memory before they read it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.cache.as_ref().map(|cache| &cache.pipelines),
        };
        let compiled = device.create_compute_pipeline(&descriptor);
        let errors = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        if let Some(error) = errors.into_iter().flatten().next() {
            return Err(failed(one_line(error)));
        }
        self.cached += usize::from(descriptor.cache.is_some());
        self.names.push((name, text.reports.unwrap_or("{}")));
        let number = self.names.len() as u32;
        let pipeline =
            Arc::new(Pipeline { name, number, compiled, bindings: text.bindings, reports: text.reports.is_some() });
        self.made.entry(name).or_default().insert(options.into(), pipeline.clone());
        Ok(pipeline)
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.as_ref().filter(|_| !self.names.is_empty()) {
            cache.save();
        }
    }
}

/// wgpu's cache of compiled pipelines, and where it is kept for the next run.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) pipelines: wgpu::PipelineCache,
    kept: PrivateFolder,
    /// A file for each adapter.
    file: String,
    driver: String,
    /// Bytes of what was kept that the driver was given.
    pub(super) began_with: usize,
}

impl Cache {
    /// The cache of a device, filled with what was kept of it; `None` where the adapter has no name to keep it by.
    pub(super) fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo, kept: &PrivateFolder) -> Option<Self> {
        let file = wgpu::util::pipeline_cache_key(info)?;
        let driver = format!("{} {}", info.driver, info.driver_info);
        let data = kept.get(&file, &driver);
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the data is what wgpu gave, whole, in a file that nobody but the user could have written.
        let pipelines = unsafe { device.create_pipeline_cache(&descriptor) };
        let began_with = descriptor.data.map_or(0, <[u8]>::len);
        Some(Self { pipelines, kept: kept.clone(), file, driver, began_with })
    }

    pub(super) fn save(&self) {
        if let Some(data) = self.pipelines.get_data() {
            self.kept.keep(&self.file, &self.driver, &data);
        }
    }
}
