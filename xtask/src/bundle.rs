//! The bundle: the command, the conformance run and the fixtures, in one archive.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Outcome;

/// Binaries are linked against this C library's symbols, which every distribution since 2014 has: the machine that runs
/// them may be older or newer than the one that built them.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const GLIBC: &str = "2.17";
/// The largest that the archive may be.
const MOST_BYTES: u64 = 60 << 20;
/// Binaries of the bundle, with their packages.
const BINARIES: [(&str, &str); 2] = [("sinew", "sinew"), ("sinew-conformance", "sinew-conformance")];

/// Pack the conformance run for a machine without Rust: `sinew-bundle/run DEVICE`, which needs a driver, and for CUDA
/// NVRTC where kernels are to be compiled for the device found.
#[derive(Debug, Args)]
pub struct Bundle {
    /// The archive to write.
    #[arg(long, default_value = "target/sinew-bundle.tar.gz")]
    output: PathBuf,
}

/// What the bundle's `run` does.
const RUN: &str = r#"#!/bin/sh
# Rows, models and times of a device: ./run cuda [OUTPUT] [MORE ARGUMENTS OF sinew-conformance]
set -eu
here=$(dirname "$0")
device=${1:-cuda}
output=${2:-conformance-$device.txt}
[ $# -lt 2 ] || shift
[ $# -lt 1 ] || shift
exec "$here/sinew-conformance" --device "$device" --fixtures "$here/fixtures" --sinew "$here/sinew" \
    --model "$here/fixtures/llama3_rope_gqa3_hd20_bf16_tied_bpe" --output "$output" "$@"
"#;

impl Bundle {
    pub fn run(&self) -> Outcome {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the workspace has a folder")?;
        self.build(root)?;
        let folder = root.join("target/sinew-bundle");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        for (_, binary) in BINARIES {
            let built = root.join("target").join(TARGET).join("release").join(binary);
            std::fs::copy(&built, folder.join(binary)).map_err(|error| format!("{}: {error}", built.display()))?;
        }
        std::fs::write(folder.join("run"), RUN)?;
        succeeds(Command::new("chmod").arg("755").arg(folder.join("run")))?;
        succeeds(Command::new("cp").arg("-r").arg(root.join("tests/fixtures")).arg(&folder))?;
        let parent = folder.parent().ok_or("the bundle is in a folder")?;
        succeeds(Command::new("tar").arg("-czf").arg(&self.output).arg("-C").arg(parent).arg("sinew-bundle"))?;
        let bytes = std::fs::metadata(&self.output)?.len();
        println!("{}: {:.1} MiB", self.output.display(), bytes as f64 / f64::from(1 << 20));
        if bytes > MOST_BYTES {
            return Err(format!("the bundle has {bytes} bytes; at most {MOST_BYTES} can be sent").into());
        }
        Ok(())
    }

    fn build(&self, root: &Path) -> Outcome {
        let zig = Command::new("cargo-zigbuild").arg("--version").output();
        if !zig.is_ok_and(|found| found.status.success()) {
            return Err("cargo zigbuild is missing: pip install cargo-zigbuild ziglang".into());
        }
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["zigbuild", "--release", "--config", "profile.release.strip=true"]);
        cargo.args(["--target", &format!("{TARGET}.{GLIBC}")]);
        for (package, binary) in BINARIES {
            cargo.args(["--package", package, "--bin", binary]);
        }
        succeeds(&mut cargo)
    }
}

/// Runs a command to its end.
fn succeeds(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
