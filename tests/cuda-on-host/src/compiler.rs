//! g++ as the compiler of kernels.

use std::fs;
use std::process::Command;

use sinew_memory::cuda::{CompileError, Compiler};

const SHIM: &str = include_str!("shim.h");

/// The machine's own instructions, so that `fmaf` is one of them; products and sums round as they are written.
const OPTIONS: [&str; 9] = [
    "-std=c++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-shared",
    "-fPIC",
    "-w",
];

/// g++, version 12 or later.
#[derive(Debug)]
pub struct Gxx {
    version: String,
}

impl Gxx {
    /// The g++ of this machine.
    ///
    /// # Errors
    /// Why kernels cannot be compiled and run here.
    pub fn find() -> Result<Self, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("CUDA on the host is written for x86-64".into());
        }
        let output = Command::new("g++").arg("-dumpfullversion").output().map_err(|error| format!("g++: {error}"))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match major {
            Some(12..) => Ok(Self { version }),
            _ => Err(format!("g++ 12 or later is needed, found `{version}`")),
        }
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Compiler for Gxx {
    fn describe(&self, _: &str) -> Result<String, String> {
        let processor = sinew_memory::system::cpu_name();
        Ok(format!("g++ {} {} for {processor}\n{SHIM}", self.version, OPTIONS.join(" ")))
    }

    fn compile(&self, name: &str, source: &str, _: &str) -> Result<Vec<u8>, CompileError> {
        build(name, source)
    }
}

/// Compiles a module of kernels to a library.
pub(crate) fn build(name: &str, source: &str) -> Result<Vec<u8>, CompileError> {
    let io = |error: std::io::Error| CompileError::Compiler(format!("{name}: {error}"));
    let folder = tempfile::tempdir().map_err(io)?;
    let (text, image) = (folder.path().join(format!("{name}.cpp")), folder.path().join(format!("{name}.so")));
    fs::write(&text, format!("#define SINEW_HOST\n#line 1 \"shim.h\"\n{SHIM}\n{source}")).map_err(io)?;
    let output = Command::new("g++").args(OPTIONS).arg(&text).arg("-o").arg(&image).output().map_err(io)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(CompileError::Source(format!("g++: {}\n{}", output.status, said.trim_end())));
    }
    fs::read(&image).map_err(io)
}
