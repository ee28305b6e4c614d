//! PTX of every module, which serves where a driver is and no compiler.

use std::path::Path;

use clap::Args;
use sinew_kernels::CUDA_MODULES;
use sinew_memory::cuda::Nvrtc;

use crate::Outcome;

/// The least that kernels ask for, as the compiler calls it.
const ARCHITECTURE: &str = "compute_80";
/// The version of PTX that the files say they are: the first of a driver of 2021 (CUDA 11.4), which knows all that
/// kernels for this architecture use. A compiler writes its own, which only drivers of its age read.
const VERSION: &str = ".version 7.4";

/// A hint of newer compilers, which the version above does not know.
const HINT: &str = ".pragma \"used_bytes_mask";

/// Make the PTX that is embedded of every module whose source changed. Needs libnvrtc on the library path.
#[derive(Debug, Args)]
pub struct Ptx {
    /// Of every module.
    #[arg(long)]
    all: bool,
}

impl Ptx {
    pub fn run(&self) -> Outcome {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/src/cuda/ptx");
        for module in CUDA_MODULES.iter().filter(|module| self.all || module.fallback().is_none()) {
            let ptx = Nvrtc.ptx(module.name, &module.text(), ARCHITECTURE)?;
            let lines = ptx.lines().filter(|line| !line.trim_start().starts_with(HINT));
            let lines = lines.map(|line| if line.starts_with(".version ") { VERSION } else { line });
            let packed = module.pack(&lines.collect::<Vec<_>>().join("\n"))?;
            let path = folder.join(format!("{}.gz", module.name));
            std::fs::write(&path, &packed)?;
            println!("{:<20} {:>9} bytes of PTX, {:>7} packed", module.name, ptx.len(), packed.len());
        }
        Ok(())
    }
}
