//! The memory that a model takes, and what would take less, before anything but headers is read.

mod footprint;
pub(crate) mod passes;
mod planner;
pub(crate) mod room;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::planner::{Change, Planner, Saving};
pub use crate::limits::Limits;
pub use crate::load::Plan;
