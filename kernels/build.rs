//! Tells the crate whether it is compiled without optimisation.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(unoptimised)");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo::rustc-cfg=unoptimised");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
