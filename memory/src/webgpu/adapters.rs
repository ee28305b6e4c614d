//! What adapters there are.

use crate::Adapter;

/// What kernels need to read and write 16-bit floats as they are stored. They are moved as integers, since a driver may
/// flush or round what it converts to its own 16-bit floats, and their bits must not depend on it.
pub(super) const F16: wgpu::Features = wgpu::Features::SHADER_I16;

/// The adapters that wgpu offers, at least one, or why there is none.
pub(super) fn enumerate() -> Result<Vec<wgpu::Adapter>, String> {
    let backends = wgpu::Instance::enabled_backend_features() & wgpu::Backends::PRIMARY;
    // Asked first, since wgpu panics where it was built with no backend of this system.
    if backends.is_empty() {
        return Err("wgpu has no backend for this system".into());
    }
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapters = pollster::block_on(instance.enumerate_adapters(backends));
    if adapters.is_empty() {
        return Err("no Vulkan, Metal or DX12 driver offers an adapter".into());
    }
    Ok(adapters)
}

/// The adapters, as [`crate::discover()`] describes them.
pub(crate) fn found() -> Result<Vec<Adapter>, String> {
    Ok(enumerate()?.iter().map(describe).collect())
}

fn describe(adapter: &wgpu::Adapter) -> Adapter {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    Adapter {
        name: info.name,
        backend: info.backend.to_string(),
        device_type: format!("{:?}", info.device_type),
        driver: [info.driver, info.driver_info].join(" ").trim().to_owned(),
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_buffer_bytes: limits.max_buffer_size,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        f16: features.contains(F16),
        subgroups: features.contains(wgpu::Features::SUBGROUP),
        subgroup_size: (info.subgroup_min_size, info.subgroup_max_size),
    }
}

/// Bytes of the adapter's own memory; `None` where its backend does not say.
pub(super) fn memory(adapter: &wgpu::Adapter) -> Option<usize> {
    #[cfg(not(target_vendor = "apple"))]
    {
        // SAFETY: the handles are only asked for properties, and nothing is destroyed.
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
        // SAFETY: the physical device is the instance's own.
        let memory = unsafe {
            hal.shared_instance().raw_instance().get_physical_device_memory_properties(hal.raw_physical_device())
        };
        // The first flag of Vulkan's memory heaps: local to the device.
        let local = |heap: &u32| heap & 1 != 0;
        let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
        heaps.filter(|heap| local(&heap.flags.as_raw())).map(|heap| heap.size as usize).max()
    }
    #[cfg(target_vendor = "apple")]
    {
        let _ = adapter;
        None
    }
}
