//! Compiles every module of CUDA kernels with NVIDIA's own compiler, which needs no GPU, and prints what each kernel
//! takes of a multiprocessor. Fails on what cannot be compiled, and on registers that are spilled to memory.
//!
//! `LD_LIBRARY_PATH=…/lib cargo run -p sinew-cuda-on-host --bin nvrtc`, with the folder of `libnvrtc.so`.

use std::process::ExitCode;

use sinew_kernels::CUDA_MODULES;
use sinew_memory::cuda::Nvrtc;

/// An A100, an H100 and a B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

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

fn kernels(log: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernels.push(Kernel { name: rest.split('\'').next().unwrap_or_default().to_owned(), ..Kernel::default() });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            kernel.stack = number(line, "bytes stack frame");
            kernel.spilled = number(line, "bytes spill stores") + number(line, "bytes spill loads");
        } else if line.contains("registers") {
            kernel.registers = number(line, "registers");
            kernel.shared = number(line, "bytes smem");
        }
    }
    kernels
}

fn main() -> ExitCode {
    match Nvrtc.version() {
        Ok((major, minor)) => println!("NVRTC {major}.{minor}"),
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    }
    let mut wrong = Vec::new();
    println!("{:32} {:>8} {:>9} {:>7} {:>6} {:>8}", "kernel", "", "registers", "shared", "stack", "spilled");
    for architecture in ARCHITECTURES {
        for module in CUDA_MODULES {
            let log = match Nvrtc.describe_kernels(module.name, &module.text(), architecture) {
                Ok(log) => log,
                Err(reason) => {
                    wrong.push(format!("{} for {architecture}: {reason}", module.name));
                    continue;
                }
            };
            let found = kernels(&log);
            if found.is_empty() {
                wrong.push(format!("{} for {architecture}: no kernel is named in\n{log}", module.name));
            }
            for Kernel { name, registers, shared, stack, spilled } in found {
                println!("{name:32} {architecture:>8} {registers:>9} {shared:>7} {stack:>6} {spilled:>8}");
                if spilled > 0 && !MAY_SPILL.contains(&name.as_str()) {
                    wrong.push(format!("{name} for {architecture} spills {spilled} bytes"));
                }
            }
            for line in log.lines().filter(|line| line.contains("warning")) {
                wrong.push(format!("{} for {architecture}: {line}", module.name));
            }
        }
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
