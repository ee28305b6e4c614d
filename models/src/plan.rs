//! The memory that a model takes, and what would take less, before anything but headers is read.

mod footprint;
mod planner;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::planner::{Change, Planner, Saving};
pub use crate::limits::{Limits, Plan};
