//! The conformance run of a device: every row against its reference, models against transformers, and times beside the
//! device's own copy rate.
//!
//! The binary of this crate prints all three as tables. What it does is also what tests do: see [`parity`]. Another one
//! writes models in the formats that others publish: see [`published`].

pub mod parity;
pub mod published;
pub mod rows;
pub mod shapes;
pub mod times;
