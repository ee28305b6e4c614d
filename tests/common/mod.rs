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

/// Runs a test by wgpu. Where there is no adapter it is skipped and says so, unless `SINEW_REQUIRE_WGPU` is set.
pub fn on_wgpu(test: impl FnOnce(&Arc<Context>)) {
    // Made once: its pipelines are compiled once for all tests of a process.
    static DEVICE: OnceLock<Result<Arc<dyn Device>, String>> = OnceLock::new();
    match DEVICE.get_or_init(|| memory::open("wgpu", None, None).map_err(|error| error.to_string())) {
        Ok(device) => {
            let (registry, policy) = (Arc::new(Registry::standard()), Policy::of(device.id().kind));
            test(&Arc::new(Context::new(device.clone(), registry, policy).expect("a context")));
        }
        Err(reason) => {
            assert!(std::env::var_os("SINEW_REQUIRE_WGPU").is_none(), "{reason}");
            println!("skipped: {reason}");
        }
    }
}
