//! Where models are tested: on the CPU always, by wgpu where there is an adapter.

pub mod harness;

use std::sync::{Arc, OnceLock};

use sinew::kernels::Registry;
use sinew::memory::{self, Device};
use sinew::ops::Policy;
use sinew::prelude::*;

/// The CPU.
#[allow(dead_code, reason = "not every test that has this module runs there")]
pub fn cpu() -> Arc<Context> {
    Arc::new(Context::cpu().expect("the CPU is there"))
}

/// Runs a test by wgpu, on a device that tests of this process share: its pipelines are compiled once for all.
pub fn on_wgpu(test: impl FnOnce(&Arc<Context>)) {
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    run_on(DEVICE.get_or_init(open).clone(), test);
}

/// [`on_wgpu`] on an adapter that is held down to the least that WebGPU promises.
#[allow(dead_code, reason = "not every test that has this module needs it")]
pub fn on_least_wgpu(test: impl FnOnce(&Arc<Context>)) {
    #[cfg(feature = "wgpu")]
    {
        use sinew::memory::webgpu::{WgpuDevice, WgpuOptions};
        run_on(WgpuDevice::open(0, &WgpuOptions::least()).expect("an adapter"), test);
    }
    #[cfg(not(feature = "wgpu"))]
    on_wgpu(test);
}

/// [`on_wgpu`] on a device of the test's own, whose counters nobody else moves.
#[allow(dead_code, reason = "not every test that has this module counts")]
pub fn alone_on_wgpu(test: impl FnOnce(&Arc<Context>)) {
    run_on(open(), test);
}

fn open() -> Arc<dyn Device> {
    memory::open("wgpu", &memory::DeviceOptions::default()).expect("an adapter")
}

fn run_on(device: Arc<dyn Device>, test: impl FnOnce(&Arc<Context>)) {
    let (registry, policy) = (Arc::new(Registry::standard()), Policy::of(device.id().kind));
    test(&Arc::new(Context::new(device, registry, policy).expect("a context")));
}
