//! What commands say, and how.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sinew::memory::{self, Bytes, MemoryReport};
use sinew::models::printable;
use sinew::ops::Context;

/// The bar of a model that loads.
pub const LOADING: &str = "loading {bar:32} {bytes}/{total_bytes} {bytes_per_sec}";

/// A bar on standard error, where that is a terminal.
pub fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Peak resident memory of this process, in bytes.
pub fn peak_rss_bytes() -> usize {
    memory::system::peak_resident_bytes()
}

/// Says on standard error who holds the memory of a context's device.
pub fn report_memory(ctx: &Context) {
    // Where it cannot be said, nothing is lost but the report.
    let _ = write!(std::io::stderr(), "{}", ctx.memory_report());
}

/// What is left of devices' memory where all should be gone: in builds with debug assertions a line for each pool.
pub fn leaks() -> Vec<String> {
    let in_words = |report: &MemoryReport| {
        let live = report.live.iter().map(|usage| format!("{} {}", usage.tag, Bytes(usage.bytes)));
        format!("warning: buffers of {} are left: {}", report.device, live.collect::<Vec<_>>().join(", "))
    };
    memory::leaks().iter().map(in_words).collect()
}

/// Tokens in a second, where there is anything to divide.
pub fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// A rate, or a dash where nothing was measured.
pub fn rate_text(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

pub fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Prints one line on standard error.
pub fn complain(text: &str) {
    // Where it cannot be said, the exit code says it.
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}
