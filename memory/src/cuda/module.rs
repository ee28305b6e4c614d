//! Modules of kernels: source text, and what the driver made of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use super::driver::{Driver, DriverCall, Handle};

/// The kernels of one operator, as source.
#[derive(Debug)]
pub struct CudaModule {
    /// A name of its own: what the compiler's messages call the file.
    pub name: &'static str,
    /// What stands before the source, the same for many modules.
    pub prelude: &'static str,
    /// CUDA C++ without `#include`.
    pub source: &'static str,
}

impl CudaModule {
    /// The whole text, with marks by which the compiler's messages name file and line.
    pub fn text(&self) -> String {
        let Self { name, prelude, source } = self;
        format!("#line 1 \"prelude.cuh\"\n{prelude}\n#line 1 \"{name}.cu\"\n{source}\n")
    }
}

/// Shared memory that every kernel may be launched with; more is asked for.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// A kernel of a loaded module.
#[derive(Debug)]
pub(super) struct Function {
    pub handle: Handle,
    shared_allowed: AtomicU32,
}

impl Function {
    /// Makes sure that it may be launched with so much shared memory.
    pub fn allow_shared(&self, driver: &dyn Driver, bytes: u32) -> DriverCall<()> {
        if bytes > self.shared_allowed.load(Ordering::Acquire) {
            driver.allow_shared(self.handle, bytes)?;
            self.shared_allowed.fetch_max(bytes, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// A module that the driver has loaded.
#[derive(Debug)]
pub(super) struct Module {
    driver: Arc<dyn Driver>,
    handle: Handle,
    functions: RwLock<HashMap<&'static str, Arc<Function>>>,
}

impl Module {
    pub fn load(driver: &Arc<dyn Driver>, image: &[u8]) -> DriverCall<Self> {
        Ok(Self { driver: driver.clone(), handle: driver.load_module(image)?, functions: RwLock::default() })
    }

    /// The kernel of that name.
    pub fn function(&self, name: &'static str) -> DriverCall<Arc<Function>> {
        if let Some(function) = self.functions.read().unwrap_or_else(|e| e.into_inner()).get(name) {
            return Ok(function.clone());
        }
        let handle = self.driver.function(self.handle, name)?;
        let function = Arc::new(Function { handle, shared_allowed: AtomicU32::new(SHARED_WITHOUT_ASKING) });
        let mut functions = self.functions.write().unwrap_or_else(|e| e.into_inner());
        Ok(functions.entry(name).or_insert(function).clone())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: modules live as long as their device, which its streams keep alive, and streams wait when they go.
        drop(unsafe { self.driver.unload_module(self.handle) });
    }
}
