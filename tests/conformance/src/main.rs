//! `sinew-conformance --device cuda`: rows, models and times of a device as three tables, on standard output and in a
//! file. Exits with 1 where a row, a model or a bench failed.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::SystemTime;

use clap::Parser;
use sinew::kernels::Registry;
use sinew::kernels::harness::case::Depth;
use sinew::memory::{self, Device, DeviceKind};
use sinew::ops::Policy;
use sinew::prelude::*;
use sinew_conformance::shapes::SHAPES;
use sinew_conformance::{parity, rows, times};

/// Every row, model and time of a device.
#[derive(Debug, Parser)]
struct Options {
    /// cpu, cuda[:N] or wgpu[:N].
    #[arg(long)]
    device: String,
    /// Folder of the checkpoints with expected values.
    #[arg(long)]
    fixtures: PathBuf,
    /// Where the tables are written besides standard output.
    #[arg(long)]
    output: Option<PathBuf>,
    /// All cases of every row, not only the quick ones.
    #[arg(long)]
    full: bool,
    /// Problems a hundredth as large are timed: to see that they run.
    #[arg(long)]
    small: bool,
    /// The command `sinew`, whose bench is run on each folder of `--model`.
    #[arg(long, requires = "model")]
    sinew: Option<PathBuf>,
    /// A model to bench.
    #[arg(long)]
    model: Vec<PathBuf>,
    /// Write a model of this shape with random weights into each folder of `--model` that is not there yet: llama-8b,
    /// llama-1b or tiny.
    #[arg(long, requires = "model")]
    shape: Option<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Where it cannot be said, the exit code says it.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output and into the file.
struct Tee(Vec<Box<dyn Write>>);

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.iter_mut().try_for_each(|out| out.write_all(bytes))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.iter_mut().try_for_each(|out| out.flush())
    }
}

/// Whether everything passed.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let mut outs: Vec<Box<dyn Write>> = vec![Box::new(io::stdout())];
    if let Some(path) = &options.output {
        outs.push(Box::new(fs::File::create(path)?));
    }
    let out = &mut Tee(outs);
    if let Some(name) = &options.shape {
        let known = || format!("shapes are {}", SHAPES.map(|shape| shape.name).join(", "));
        let shape = SHAPES.iter().find(|shape| shape.name == name).ok_or_else(known)?;
        for folder in options.model.iter().filter(|folder| !folder.exists()) {
            shape.write(folder)?;
        }
    }
    let device = memory::open(&options.device, &memory::DeviceOptions::default())?;
    let registry = Arc::new(Registry::standard());
    writeln!(out, "{} UTC", date(SystemTime::now()))?;
    for found in memory::discover().iter().filter(|found| found.kind == device.id().kind) {
        writeln!(out, "{found}")?;
    }
    if device.id().kind == DeviceKind::CUDA
        && let Some(driver) = kernel_driver()
    {
        writeln!(out, "{driver}")?;
    }
    let command: Vec<String> = std::env::args().collect();
    writeln!(out, "{}\n", command.join(" "))?;

    let depth = if options.full { Depth::Full } else { Depth::Quick };
    let failed = rows::check(registry.tables(), &device, depth, out)?;
    writeln!(out, "{} of {} rows failed\n", failed.rows.len(), failed.of)?;

    let wrong = models(options, &registry, &device, out)?;
    writeln!(out, "{wrong} comparisons with transformers failed\n")?;

    let size = if options.small { times::Size::Small } else { times::Size::Full };
    times::report(&registry, &device, size, out)?;
    let mut benched = true;
    for model in &options.model {
        let Some(sinew) = &options.sinew else { continue };
        let bench = Command::new(sinew)
            .args(["bench", "--device", &options.device, "--model"])
            .arg(model)
            .args(["--prompt-tokens", "128", "--new-tokens", "32", "--repeat", "3"])
            .output()?;
        writeln!(out, "\n{}: sinew bench: {}", model.display(), bench.status)?;
        out.write_all(&bench.stdout)?;
        out.write_all(&bench.stderr)?;
        benched &= bench.status.success();
    }
    Ok(failed.rows.is_empty() && failed.of > 0 && wrong == 0 && benched)
}

/// The version of NVIDIA's driver in the kernel's words; CUDA itself tells only the newest CUDA that it knows.
fn kernel_driver() -> Option<String> {
    let version = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    Some(version.lines().next()?.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The day in UTC as `YYYY-MM-DD`.
fn date(time: SystemTime) -> String {
    let mut days = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

/// Compares every fixture in f32 and, where it is stored so, in 16 bits. Returns how many comparisons failed.
fn models(
    options: &Options,
    registry: &Arc<Registry>,
    device: &Arc<dyn Device>,
    out: &mut dyn Write,
) -> Result<usize, Box<dyn Error>> {
    let policy = Policy::of(device.id().kind);
    let ctx = Arc::new(Context::new(device.clone(), registry.clone(), policy)?);
    let mut wrong = 0;
    for folder in parity::fixtures(&options.fixtures)? {
        let both = [parity::in_f32(&ctx, &folder).map(Some), parity::in_16_bits(&ctx, &folder)];
        for outcome in both {
            match outcome {
                Ok(None) => {}
                Ok(Some(comparison)) => {
                    writeln!(out, "{comparison}")?;
                    wrong += usize::from(!comparison.passes());
                }
                Err(error) => {
                    writeln!(out, "{}: {error}  FAILED", parity::name(&folder))?;
                    wrong += 1;
                }
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        // What `date --utc --date=@SECONDS +%F` says.
        for (seconds, day) in [
            (0, "1970-01-01"),
            (68_255_999, "1972-02-29"),
            (68_256_000, "1972-03-01"),
            (94_694_399, "1972-12-31"),
            (951_782_400, "2000-02-29"),
            (1_767_225_599, "2025-12-31"),
            (1_767_225_600, "2026-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), day);
        }
    }
}
