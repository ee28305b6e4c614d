//! The memory that a model takes, and what would take less, before anything but headers is read.

mod footprint;
mod planner;
mod room;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::planner::{Change, Planner, Saving};
pub(crate) use self::room::{most_that_fits, refuse_beyond_memory};
pub use crate::limits::{Limits, Plan};
