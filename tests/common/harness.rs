//! `main` of tests of which some need a wgpu adapter: where there is none those count as ignored, and it is said why.

use std::env;
use std::fmt::Display;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Functions as trials of their names.
macro_rules! trials {
    ($($(#[$when:meta])* $test:ident),* $(,)?) => {
        Vec::from([$($(#[$when])* libtest_mimic::Trial::test(stringify!($test), || { $test(); Ok(()) })),*])
    };
}
pub(crate) use trials;

/// Runs tests, and those that need an adapter where there is one. `SINEW_REQUIRE_WGPU=1` runs them in any case: they
/// fail where they open it.
pub fn run(anywhere: Vec<Trial>, by_wgpu: Vec<Trial>) -> ExitCode {
    let missing = match env::var("SINEW_REQUIRE_WGPU").as_deref() {
        Ok("1") => None,
        _ => sinew_memory::open("wgpu", &sinew_memory::DeviceOptions::default()).err(),
    };
    let by_wgpu = by_wgpu.into_iter().map(|trial| trial.with_ignored_flag(missing.is_some()));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), anywhere.into_iter().chain(by_wgpu).collect());
    if let (Some(reason), 1..) = (missing, conclusion.num_ignored) {
        println!("skipped: {} tests need a wgpu adapter: {reason}\n", conclusion.num_ignored);
    }
    conclusion.exit_code()
}

/// Prints what is to be seen under `--nocapture` alone: nothing keeps back what these tests print.
#[allow(dead_code, reason = "not every file of tests has something to show")]
pub fn show(text: impl Display) {
    if env::args().any(|arg| arg == "--nocapture") {
        println!("{text}");
    }
}
