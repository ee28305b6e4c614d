//! `cargo run -p xtask -- bundle` and `ptx`: what maintainers run besides tests.

mod bundle;
mod ptx;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

/// A command's outcome: an error is printed in a line.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// What maintainers run besides tests.
#[derive(Debug, Parser)]
enum Task {
    /// Pack the conformance run for a machine without Rust.
    Bundle(bundle::Bundle),
    /// Make the PTX that is embedded.
    Ptx(ptx::Ptx),
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
