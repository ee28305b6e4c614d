//! The memory that a model takes, and what would take less, before anything but headers is read.

mod footprint;
mod planner;
mod purpose;
pub(crate) mod room;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::planner::{Change, Planner, Saving};
pub(crate) use self::purpose::Purpose;
pub use crate::limits::Limits;
pub use crate::load::DeviceBytes;
