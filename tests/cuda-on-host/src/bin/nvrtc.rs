//! Compiles every module of CUDA kernels with NVIDIA's own compiler, which needs no GPU, and prints what each kernel
//! takes of a multiprocessor. Fails on what cannot be compiled, and on registers that are spilled to memory. With the
//! path of `ptxas`, which a driver has within it, the embedded PTX is assembled as well.
//!
//! `LD_LIBRARY_PATH=…/lib cargo run -p sinew-cuda-on-host --bin nvrtc -- …/ptxas`, with the folder of `libnvrtc.so`.

use std::ffi::OsStr;
use std::io::Write;
use std::num::NonZero;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sinew_kernels::CUDA_MODULES;
use sinew_memory::cuda::{CudaModule, Nvrtc};

/// An A100, an H100 and a B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// For which the embedded PTX is assembled.
const EMBEDDED_FOR: [&str; 2] = ["sm_80", "sm_90"];

/// Kernels that may spill, each with the reason in the source. None does.
const MAY_SPILL: [&str; 0] = [];

/// What the assembler says of one kernel.
#[derive(Default)]
struct Kernel {
    name: String,
    registers: u64,
    shared: u64,
    stack: u64,
    spilled: u64,
}

/// The number before `unit` in a line of numbers, each followed by what it counts.
fn number(line: &str, unit: &str) -> u64 {
    let before = line.find(unit).map_or("", |at| &line[..at]);
    let digits = before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// What a log says of each kernel. Behind a kernel's own properties come those of the functions that it calls, each
/// with a frame and spills of its own.
fn kernels(log: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernels.push(Kernel { name: rest.split('\'').next().unwrap_or_default().to_owned(), ..Kernel::default() });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            kernel.stack = kernel.stack.max(number(line, "bytes stack frame"));
            kernel.spilled += number(line, "bytes spill stores") + number(line, "bytes spill loads");
        } else if line.contains("registers") {
            kernel.registers = number(line, "registers");
            kernel.shared = number(line, "bytes smem");
        }
    }
    kernels
}

/// Assembles the PTX that is embedded of a module.
fn assemble(ptxas: &OsStr, module: &CudaModule, architecture: &str) -> Result<(), String> {
    let ptx = module.fallback().ok_or("the embedded PTX is not of the present source")?;
    let mut command = Command::new(ptxas);
    command.args([&format!("--gpu-name={architecture}"), "--output-file=/dev/null", "-"]);
    let mut assembler =
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    if let Some(mut input) = assembler.stdin.take() {
        input.write_all(ptx.as_bytes()).map_err(|error| error.to_string())?;
    }
    let output = assembler.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// What is found of a module, and what is wrong with it.
#[derive(Default)]
struct Findings {
    lines: Vec<String>,
    wrong: Vec<String>,
}

/// Compiles a module for an architecture.
fn compile(module: &CudaModule, architecture: &str) -> Findings {
    let mut found = Findings::default();
    let log = match Nvrtc.describe_kernels(module.name, &module.text(), architecture) {
        Ok(log) => log,
        Err(reason) => {
            found.wrong.push(format!("{} for {architecture}: {reason}", module.name));
            return found;
        }
    };
    let kernels = kernels(&log);
    if kernels.is_empty() {
        found.wrong.push(format!("{} for {architecture}: no kernel is named in\n{log}", module.name));
    }
    for Kernel { name, registers, shared, stack, spilled } in kernels {
        found.lines.push(format!("{name:32} {architecture:>8} {registers:>9} {shared:>7} {stack:>6} {spilled:>8}"));
        if spilled > 0 && !MAY_SPILL.contains(&name.as_str()) {
            found.wrong.push(format!("{name} for {architecture} spills {spilled} bytes"));
        }
    }
    let warnings = log.lines().filter(|line| line.contains("warning"));
    found.wrong.extend(warnings.map(|line| format!("{} for {architecture}: {line}", module.name)));
    found
}

/// What `find` finds of each module for each architecture, one to a core at a time, in their order.
fn of_all(architectures: &[&str], find: impl Fn(&CudaModule, &str) -> Findings + Sync) -> Vec<Findings> {
    let modules = architectures.iter().flat_map(|&architecture| CUDA_MODULES.iter().map(move |m| (architecture, m)));
    let jobs: Vec<_> = modules.map(|(architecture, module)| (architecture, module, OnceLock::new())).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((architecture, module, found)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.get_or_init(|| find(module, architecture));
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    jobs.into_iter().map(|(.., found)| found.into_inner().unwrap_or_default()).collect()
}

fn main() -> ExitCode {
    let ptxas = std::env::args_os().nth(1);
    match Nvrtc.version() {
        Ok((major, minor)) => println!("NVRTC {major}.{minor}"),
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    }
    let mut wrong = Vec::new();
    println!("{:32} {:>8} {:>9} {:>7} {:>6} {:>8}", "kernel", "", "registers", "shared", "stack", "spilled");
    for found in of_all(&ARCHITECTURES, compile) {
        found.lines.iter().for_each(|line| println!("{line}"));
        wrong.extend(found.wrong);
    }
    if let Some(ptxas) = &ptxas {
        let assembled = of_all(&EMBEDDED_FOR, |module, architecture| match assemble(ptxas, module, architecture) {
            Ok(()) => Findings::default(),
            Err(reason) => {
                let wrong = vec![format!("PTX of {} for {architecture}: {reason}", module.name)];
                Findings { wrong, ..Findings::default() }
            }
        });
        println!("PTX of {} modules assembled for {}", CUDA_MODULES.len(), EMBEDDED_FOR.join(" and "));
        wrong.extend(assembled.into_iter().flat_map(|found| found.wrong));
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_functions_spill_that_a_kernel_calls_is_the_kernels() {
        let log = "\
ptxas info    : Compiling entry function 'calls' for 'sm_80'
ptxas info    : Function properties for calls
ptxas         .     968 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 364 bytes cmem[0]
ptxas info    : Function properties for heavy
ptxas         .     0 bytes stack frame, 1192 bytes spill stores, 1208 bytes spill loads
ptxas info    : Compiling entry function 'both' for 'sm_80'
ptxas info    : Function properties for both
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for light
ptxas         .     24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";
        let found = kernels(log).into_iter();
        let found: Vec<_> = found.map(|k| (k.name, k.registers, k.shared, k.stack, k.spilled)).collect();
        assert_eq!(found, [("calls".to_owned(), 255, 0, 968, 2400), ("both".to_owned(), 40, 4096, 24, 12)]);
    }
}
