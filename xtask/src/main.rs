//! `cargo run -p xtask -- bundle` and `ptx`: what maintainers run besides tests.

mod bundle;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser};
use sinew_kernels::CUDA_MODULES;
use sinew_memory::cuda::Nvrtc;

/// A command's outcome: an error is printed in a line.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// What maintainers run besides tests.
#[derive(Debug, Parser)]
enum Task {
    /// Pack the conformance run for a machine without Rust.
    Bundle(bundle::Bundle),
    /// Make the PTX that is embedded.
    Ptx(Ptx),
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Bundle(bundle) => bundle.run(),
        Task::Ptx(ptx) => ptx.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The least architecture that kernels ask for, as the compiler calls it.
const ARCHITECTURE: &str = "compute_80";
/// The version of PTX that the files say they are: the first of a driver of 2021 (CUDA 11.4), which knows all that
/// kernels for this architecture use. A compiler writes its own, which only drivers of its age read.
const VERSION: &str = ".version 7.4";

/// A hint of newer compilers, which the version above does not know.
const HINT: &str = ".pragma \"used_bytes_mask";

/// Make the PTX that is embedded of every module whose source changed. Needs libnvrtc on the library path.
#[derive(Debug, Args)]
struct Ptx {
    /// Of every module.
    #[arg(long)]
    all: bool,
}

impl Ptx {
    fn run(&self) -> Outcome {
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
