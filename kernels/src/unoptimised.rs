//! Kernels that are compiled without optimisation.

/// Makes unoptimised kernels work: gives their tasks a deep stack, and says once on stderr how to optimise them.
///
/// Cargo's dev profile compiles dependencies with `opt-level = 0`. Each vector of a loop then lives on the stack and each
/// intrinsic is a call, so kernels run 50 to 100 times slower.
pub(crate) fn prepare() {
    #[cfg(unoptimised)]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            sinew_memory::Team::use_deep_stacks();
            eprintln!(
                "warning: Sinew's kernels are compiled without optimisation and run 50 to 100 times slower; to optimise \
                 them, add two lines to Cargo.toml: `[profile.dev.package.\"*\"]` and `opt-level = 3`"
            );
        });
    }
}
