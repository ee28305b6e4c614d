//! Where models are tested: on the CPU always, by wgpu where there is an adapter.

use std::sync::{Arc, OnceLock};

use sinew::kernels::Registry;
use sinew::memory::{self, Device};
use sinew::ops::Policy;
use sinew::prelude::*;

/// The CPU.
pub fn cpu() -> Arc<Context> {
    Arc::new(Context::cpu().expect("the CPU is there"))
}

/// Runs a test by wgpu, on a device that tests of this process share: its pipelines are compiled once for all. Where
/// there is no adapter the test is skipped and says so, unless `SINEW_REQUIRE_WGPU` is set.
pub fn on_wgpu(test: impl FnOnce(&Arc<Context>)) {
    static DEVICE: OnceLock<Result<Arc<dyn Device>, String>> = OnceLock::new();
    run_on(DEVICE.get_or_init(open).clone(), test);
}

/// [`on_wgpu`] on an adapter that is held down to the least that WebGPU promises.
#[allow(dead_code, reason = "not every test that has this module needs it")]
pub fn on_least_wgpu(test: impl FnOnce(&Arc<Context>)) {
    #[cfg(feature = "wgpu")]
    {
        use sinew::memory::webgpu::{WgpuDevice, WgpuOptions};
        let device = WgpuDevice::open(0, &WgpuOptions::least()).map_err(|error| error.to_string());
        run_on(device.map(|device| device as Arc<dyn Device>), test);
    }
    #[cfg(not(feature = "wgpu"))]
    on_wgpu(test);
}

/// [`on_wgpu`] on a device of the test's own, whose counters nobody else moves.
#[allow(dead_code, reason = "not every test that has this module counts")]
pub fn alone_on_wgpu(test: impl FnOnce(&Arc<Context>)) {
    run_on(open(), test);
}

fn open() -> Result<Arc<dyn Device>, String> {
    memory::open("wgpu", None, None).map_err(|error| error.to_string())
}

fn run_on(device: Result<Arc<dyn Device>, String>, test: impl FnOnce(&Arc<Context>)) {
    match device {
        Ok(device) => {
            let (registry, policy) = (Arc::new(Registry::standard()), Policy::of(device.id().kind));
            test(&Arc::new(Context::new(device, registry, policy).expect("a context")));
        }
        Err(reason) => {
            assert!(std::env::var_os("SINEW_REQUIRE_WGPU").is_none(), "{reason}");
            println!("skipped: {reason}");
        }
    }
}
