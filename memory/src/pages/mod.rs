//! Fixed-size blocks for a paged cache, counted by reference, and the tables that string them into sequences.
//!
//! Only the bookkeeping is here: which block holds which positions, and who shares it. The bytes are somewhere else,
//! often in one buffer for each layer, and a block is at [`PagePool::byte_offset`] in each of them.
//!
//! A block is *free*; or *used*, by as many tables, copies and callers as it has references; or *cached*: nothing
//! refers to it, but it was published ([`BlockTable::publish`]) and its bytes are kept for the next sequence that
//! starts with the same words ([`BlockTable::lookup`]) until a table needs the block.
//!
//! Layers of one kind share a table. A model with layers of several kinds, some over a sliding window, has a table for
//! each kind, from one pool or from several; [`BlockTable::release_before`] is what the sliding ones do with blocks
//! that the window has left. Three things follow for who keeps several tables of a sequence:
//! - A prefix is of use as far as all the tables have it: ask each pool with [`PagePool::matching_tokens`] and look up
//!   the least. In one pool, tables of different kinds need different salts.
//! - The index finds a block through those before it. So a sliding table is to publish blocks before it releases
//!   them, and to look up the whole prefix and then release what the window does not reach; blocks that it has
//!   released without publishing, it can neither publish later nor those behind them.
//! - What is missing is an index that remembers a chain whose first blocks were evicted. Of a prefix beyond the window
//!   only the last blocks would have to stay for a sliding table, but here their eviction starts from the end.

mod copy;
mod index;
mod pool;
mod prefix;
mod recency;
mod state;
mod stats;
mod swap;
mod table;

pub use copy::CopyBlock;
pub use pool::{BlockId, PageConfig, PagePool};
pub use prefix::{PrefixConfig, PrefixHash};
pub use stats::PageStats;
pub use swap::SwapBlocks;
pub use table::BlockTable;
