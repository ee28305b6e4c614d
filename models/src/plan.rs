//! The memory that a model takes, and what would take less, before anything but headers is read.

mod footprint;
pub(crate) mod limits;
pub(crate) mod passes;
mod planner;
pub(crate) mod room;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::limits::{Limits, Plan};
pub use self::planner::{Change, Planner, Saving};
