//! Modules of kernels: source text, and what the driver made of it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::driver::{Driver, DriverCall, Handle};
use crate::private_folder::checksum;

/// The kernels of one operator, as source.
#[derive(Debug)]
pub struct CudaModule {
    /// A name of its own: what the compiler's messages call the file.
    pub name: &'static str,
    /// What stands before the source, the same for many modules.
    pub prelude: &'static str,
    /// CUDA C++ without `#include`.
    pub source: &'static str,
    /// What serves where no compiler is: PTX for compute capability 8.0, packed by [`CudaModule::pack`]; may be empty.
    pub ptx: &'static [u8],
}

impl CudaModule {
    /// The whole text, with marks by which the compiler's messages name file and line.
    pub fn text(&self) -> String {
        let Self { name, prelude, source, .. } = self;
        format!("#line 1 \"prelude.cuh\"\n{prelude}\n#line 1 \"{name}.cu\"\n{source}\n")
    }

    /// PTX that a compiler made of this source, as [`CudaModule::ptx`] holds it: compressed, behind a line that says of
    /// which source.
    ///
    /// # Errors
    /// None but those of memory that is not there.
    pub fn pack(&self, ptx: &str) -> std::io::Result<Vec<u8>> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(self.mark().as_bytes())?;
        packed.write_all(ptx.as_bytes())?;
        packed.finish()
    }

    /// The PTX that was packed of this very source.
    pub fn fallback(&self) -> Option<String> {
        let mut text = String::new();
        GzDecoder::new(self.ptx).read_to_string(&mut text).ok()?;
        text.starts_with(&self.mark()).then_some(text)
    }

    /// A comment of PTX that changes with the source.
    fn mark(&self) -> String {
        // This is against forgetting, not against forging.
        format!("// {} {:016x}\n", self.name, checksum(&[self.text().as_bytes()]))
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
