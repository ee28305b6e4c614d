//! The driver's compiled pipelines, kept for the next run.

use crate::PrivateFolder;

/// wgpu's cache and where it is kept.
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
