//! Fixed-size blocks for a paged cache, counted by reference, and the tables that string them into sequences.
//!
//! Only the bookkeeping is here: which block holds which positions, and who shares it. The bytes are somewhere else,
//! often in one buffer for each layer, and a block is at [`PagePool::byte_offset`] in each of them.

mod index;
mod pool;
mod prefix;
mod recency;
mod state;
mod swap;
mod table;
mod tree;

pub use pool::{BlockId, PageConfig, PagePool, PageStats};
pub use prefix::{PrefixConfig, PrefixHash};
pub use swap::SwapBlocks;
pub use table::{BlockTable, CopyBlock};
