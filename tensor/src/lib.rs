//! Tensors: dtypes, layouts, and views that copy nothing.

mod blocks;
mod dtype;
mod error;
mod host;
mod interop;
mod layout;
mod paged;
mod print;
mod tensor;
mod view;
mod views;

pub use blocks::{BlockFormat, BlockValues};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use layout::{Layout, MAX_RANK, Shape};
pub use paged::PagedLayout;
pub use tensor::Tensor;
pub use view::{View, ViewMut};
