//! NVIDIA's run-time compiler, as an old library has it: in a process of its own, since a library stays loaded.
#![cfg(target_os = "linux")]

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use sinew_cuda_on_host::Gxx;
use sinew_memory::cuda::{Compiler, Nvrtc};

/// A library of the version 10.1, which has only what every version has.
const OLD: &str = r#"
extern "C" int nvrtcVersion(int *major, int *minor) { *major = 10; *minor = 1; return 0; }
extern "C" int nvrtcCompileProgram(void *, int, const char *const *) { return 0; }
"#;

/// Loads it under the name that is asked for first: the loader gives whoever asks what it has loaded under that name.
fn load_old() {
    let folder = tempfile::tempdir().unwrap();
    let (text, image) = (folder.path().join("nvrtc.cpp"), folder.path().join("nvrtc.so"));
    fs::write(&text, OLD).unwrap();
    let options = ["-shared", "-fPIC", "-Wl,-soname,libnvrtc.so"];
    assert!(Command::new("g++").args(options).arg(&text).arg("-o").arg(&image).status().unwrap().success());
    let path = CString::new(image.as_os_str().as_bytes()).unwrap();
    // SAFETY: the library runs nothing when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
}

#[test]
fn a_library_that_is_too_old_is_refused_in_words() {
    match Gxx::find() {
        Ok(_) => {}
        Err(reason) if std::env::var_os("SINEW_REQUIRE_GXX").is_some() => panic!("{reason}"),
        Err(reason) => return println!("skipped: {reason}"),
    }
    load_old();
    let refused = [
        Nvrtc.version().map(drop).unwrap_err(),
        Nvrtc.describe("sm_80").map(drop).unwrap_err(),
        Nvrtc.compile("nothing", "", "sm_80").map(drop).unwrap_err().to_string(),
        Nvrtc.ptx("nothing", "", "compute_80").map(drop).unwrap_err(),
    ];
    for words in refused {
        assert!(words.contains("NVRTC 10.1 is too old") && words.contains("11.2 or later"), "{words}");
    }
}
