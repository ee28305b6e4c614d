//! cuBLASLt on the host, where whoever asks the loader for that library finds it.

use std::ffi::{CString, c_int, c_void};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use sinew_memory::PrivateFolder;

use crate::driver;

const SOURCE: &str = include_str!("cublaslt.cpp");
/// The name under which it is asked for first: the loader gives whoever asks what is loaded under that name already.
const NAME: &str = "libcublasLt.so";

type Work = extern "C" fn(*mut c_void);
type Enqueue = extern "C" fn(u64, Work, *mut c_void) -> c_int;

/// Work that the library hands on with its argument.
struct Job(Work, *mut c_void);

// SAFETY: the library gives the argument up to its work, on whatever thread.
unsafe impl Send for Job {}

impl Job {
    fn run(self) {
        (self.0)(self.1);
    }
}

static JOBS: AtomicUsize = AtomicUsize::new(0);

/// Products that the library was given so far: each spoils its workspace first.
pub fn products() -> usize {
    JOBS.load(Ordering::Relaxed) / 2
}

extern "C" fn enqueue(stream: u64, work: Work, argument: *mut c_void) -> c_int {
    let job = Job(work, argument);
    JOBS.fetch_add(1, Ordering::Relaxed);
    c_int::from(driver::enqueue("cublasLtMatmul", stream, move || job.run()).is_err())
}

/// Loads the library into this process, once.
///
/// # Errors
/// That it cannot be compiled or loaded.
pub fn load(cache: &PrivateFolder, compiler: &str) -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(|| try_load(cache, compiler)).clone()
}

fn try_load(cache: &PrivateFolder, compiler: &str) -> Result<(), String> {
    let image = cache.image("cublaslt", &[compiler, SOURCE], compile)?;
    let io = |error: std::io::Error| format!("cublaslt: {error}");
    let mut file = tempfile::NamedTempFile::new().map_err(io)?;
    file.write_all(&image).map_err(io)?;
    let path = CString::new(file.path().as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the image is of the text above, which runs nothing when it is loaded. It stays loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(driver::loader_error());
    }
    // SAFETY: the library is open.
    let symbol = unsafe { libc::dlsym(library, c"cuda_on_host_enqueue".as_ptr()) };
    if symbol.is_null() {
        return Err(driver::loader_error());
    }
    // SAFETY: the text above declares it so.
    let tell = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(Enqueue)>(symbol) };
    tell(enqueue);
    Ok(())
}

fn compile() -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let (text, image) = (folder.path().join("cublaslt.cpp"), folder.path().join(NAME));
    let io = |error: std::io::Error| format!("cublaslt: {error}");
    fs::write(&text, SOURCE).map_err(io)?;
    let named = format!("-Wl,-soname,{NAME}");
    let options = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Wextra", &named];
    let output = Command::new("g++").args(options).arg(&text).arg("-o").arg(&image).output().map_err(io)?;
    if !output.status.success() {
        return Err(format!("g++: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    fs::read(&image).map_err(io)
}
