//! NVIDIA's run-time compiler, found at run time.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use super::driver::{CompileError, Compiler};

/// What every kernel is compiled with besides its architecture. Products and sums round as they are written, so that
/// the same source gives the same bits wherever it runs; where one rounding is meant it says `fmaf`.
/// A module leaves much of the prelude unused, which is no warning (177).
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "-diag-suppress=177"];

/// The NVRTC library.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc;

/// Every call that is made, here and by cudarc's own helpers. CUDA 11.2 is the first version that has all of them.
const CALLS: [&str; 12] = [
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

/// Whether the library is there, and new enough.
fn ready() -> Result<(), String> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    READY.get_or_init(look).clone()
}

/// Looks for the library and each call of it: cudarc panics at the first call into a library that is not there, or of
/// one that the library lacks.
fn look() -> Result<(), String> {
    // SAFETY: this loads the compiler's library, whose initialisers are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "kernels cannot be compiled: NVIDIA's run-time compiler (libnvrtc, of a CUDA toolkit or the package \
                    nvidia-cuda-nvrtc) was not found; put its folder on the library path"
                .into(),
        );
    }
    // SAFETY: it was just found; symbols are looked up, and none is used as the type that is named here.
    let has = |call: &str| unsafe { sys::culib().get::<*const ()>(call.as_bytes()) }.is_ok();
    let Some(lacking) = CALLS.into_iter().find(|call| !has(call)) else { return Ok(()) };
    let version = match has("nvrtcVersion") {
        true => told_version().map_or_else(|_| String::new(), |(major, minor)| format!(" {major}.{minor}")),
        false => String::new(),
    };
    Err(format!(
        "kernels cannot be compiled: NVRTC{version} is too old (its library lacks {lacking}); that of CUDA 11.2 or \
         later is needed"
    ))
}

/// What a library that has `nvrtcVersion` says of itself.
fn told_version() -> Result<(u32, u32), String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are valid places to write to.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(failed("nvrtcVersion"))?;
    Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
}

fn failed(call: &'static str) -> impl Fn(NvrtcError) -> String {
    move |error| format!("{call}: {error}")
}

fn options(architecture: &str) -> Vec<String> {
    let architecture = format!("--gpu-architecture={architecture}");
    OPTIONS.into_iter().map(str::to_owned).chain([architecture]).collect()
}

impl Nvrtc {
    /// Major and minor version.
    ///
    /// # Errors
    /// No such library, or one that is too old.
    pub fn version(self) -> Result<(u32, u32), String> {
        ready()?;
        told_version()
    }

    /// What the assembler says of a source's kernels: registers, stack, shared memory, spills.
    ///
    /// # Errors
    /// What the compiler says of a source that it refuses.
    pub fn describe_kernels(self, name: &str, source: &str, architecture: &str) -> Result<String, String> {
        let options = [options(architecture), vec!["--ptxas-options=-v".into()]].concat();
        build(name, source, &options).map(|(_, log)| log).map_err(|error| error.to_string())
    }

    /// PTX for an architecture such as `compute_80`, which any driver turns into kernels for that GPU and later ones.
    ///
    /// # Errors
    /// What the compiler says of a source that it refuses.
    pub fn ptx(self, name: &str, source: &str, architecture: &str) -> Result<String, String> {
        let (program, _) = build(name, source, &options(architecture)).map_err(|error| error.to_string())?;
        // SAFETY: the program was compiled.
        let ptx = unsafe { result::get_ptx(program.0) }.map_err(failed("nvrtcGetPTX"))?;
        let bytes: Vec<u8> = ptx.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        String::from_utf8(bytes).map_err(|error| format!("{name}: {error}"))
    }

    /// The architectures that it compiles for, by their number: 90 for `sm_90` and `sm_90a`.
    fn architectures(self) -> Result<Vec<c_int>, String> {
        let mut count = 0;
        // SAFETY: `count` is a valid place to write to.
        unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(failed("nvrtcGetNumSupportedArchs"))?;
        let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many as were just told.
        unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }
            .result()
            .map_err(failed("nvrtcGetSupportedArchs"))?;
        Ok(numbers)
    }
}

impl Compiler for Nvrtc {
    fn describe(&self, architecture: &str) -> Result<String, String> {
        let (major, minor) = self.version()?;
        let number = architecture.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let known = self.architectures()?;
        if !known.iter().any(|known| known.to_string() == number) {
            let newest = known.iter().max().copied().unwrap_or(0);
            return Err(format!(
                "NVRTC {major}.{minor} does not compile for {architecture} (the newest it knows is sm_{newest}); \
                 another version is needed"
            ));
        }
        Ok(format!("NVRTC {major}.{minor} {}", options(architecture).join(" ")))
    }

    fn compile(&self, name: &str, source: &str, architecture: &str) -> Result<Vec<u8>, CompileError> {
        build(name, source, &options(architecture))?.0.image().map_err(CompileError::Compiler)
    }
}

/// A compiled program, and what the compiler says of it.
fn build(name: &str, source: &str, options: &[String]) -> Result<(Program, String), CompileError> {
    ready().map_err(CompileError::Compiler)?;
    let text = |text: &str| CString::new(text).map_err(|error| CompileError::Source(format!("{name}: {error}")));
    let (source, file) = (text(source)?, text(&format!("{name}.cu"))?);
    let program = result::create_program(&source, Some(&file)).map_err(failed("nvrtcCreateProgram"));
    let program = Program(program.map_err(CompileError::Compiler)?);
    // SAFETY: the program was just made, and lives to the end of this function.
    unsafe {
        let compiled = result::compile_program(program.0, options);
        let log = result::get_program_log(program.0).unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        let log = String::from_utf8_lossy(&log).trim_end().to_owned();
        compiled.map_err(|error| refused(error, &log))?;
        Ok((program, log))
    }
}

/// Whose fault it is: only one of the results speaks of the source.
fn refused(error: NvrtcError, log: &str) -> CompileError {
    let said = format!("nvrtcCompileProgram: {error}\n{log}");
    match error.0 {
        sys::nvrtcResult::NVRTC_ERROR_COMPILATION => CompileError::Source(said),
        sys::nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => CompileError::Compiler(format!(
            "kernels cannot be compiled: NVIDIA's run-time compiler lacks its second library (libnvrtc-builtins, of \
             the same version); put it beside libnvrtc ({})",
            log.split_whitespace().collect::<Vec<_>>().join(" ")
        )),
        _ => CompileError::Compiler(said),
    }
}

/// A program that is destroyed when it goes.
struct Program(sys::nvrtcProgram);

impl Program {
    /// What was compiled for a GPU's own architecture.
    fn image(&self) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program was compiled, and the image has room for as many bytes as were just told.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut len).result().map_err(failed("nvrtcGetCUBINSize"))?;
            let mut image = vec![0u8; len];
            let to = image.as_mut_ptr().cast::<c_char>();
            sys::nvrtcGetCUBIN(self.0, to).result().map_err(failed("nvrtcGetCUBIN"))?;
            Ok(image)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was made by `create_program`, and is destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
