//! How fast a device is: its limits, measured, what is kept of them, and what rows predict of themselves by estimates.

pub(crate) mod cores;
mod description;
mod fork_join;
mod loops;
mod peaks;
pub(crate) mod predicted;

pub use description::{Bandwidth, Description, ProductRates};
pub use peaks::{ArithmeticPeaks, Meter, Peaks};
