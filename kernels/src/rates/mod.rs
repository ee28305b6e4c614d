//! How fast a device is: its limits, measured, and what rows predict of themselves by estimates.

mod loops;
mod peaks;
pub(crate) mod predicted;

pub use peaks::{ArithmeticPeaks, Meter, Peaks};
