//! Memory for tensors: devices, streams, buffers, and the allocators over them.
//!
//! A [`Device`] owns memory and makes [`Stream`]s, which run work in order. A [`Buffer`] is a shared handle to a span
//! of a device's [`Storage`]; it frees itself, or returns to the allocator it came from once every stream that uses
//! it has passed its last use. Nothing here knows shapes or dtypes.
//!
//! Three allocators hand out memory: a [`Pool`] by size, for whatever comes and goes; an [`Arena`] from the bottom up,
//! for activations whose sizes a plan knows; a [`PagePool`] in blocks, for caches that grow by the token.
//! [`discover()`] says what devices there are, [`open`] opens one by name.

mod arena;
mod buffer;
mod bytes;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod discover;
mod error;
mod hardware;
mod host;
mod host_vec;
mod mapped;
pub mod messages;
mod pages;
mod pool;
mod private_folder;
mod stream;
pub mod system;
mod team;
mod unfinished;
#[cfg(feature = "wgpu")]
pub mod webgpu;

pub use arena::{Arena, ArenaPlan, ArenaScope, ArenaStats};
pub use buffer::{Buffer, Home, Husk, Reclaim, Span};
pub use bytes::Bytes;
pub use cpu::{Cpu, CpuStream, level_from_environment};
pub use device::{Device, DeviceId, DeviceKind, Location, MemoryInfo, Storage};
pub use discover::{Adapter, DeviceOptions, Discovered, Found, Gpu, Host, check_name, discover, open};
pub use error::{Error, Result};
pub use hardware::{Accelerator, Caches, Hardware, Rates, SimdLevel};
pub use host::HOST_ALIGNMENT;
pub use mapped::MappedFile;
pub use pages::{
    BlockId, BlockTable, CopyBlock, PageConfig, PagePool, PageStats, PrefixConfig, PrefixHash, SwapBlocks,
};
pub use pool::{MemoryReport, Pool, PoolConfig, PoolStats, TagUsage, leaks};
pub use private_folder::PrivateFolder;
pub use stream::{Completed, Event, Stream};
pub use team::Team;
pub use unfinished::Unfinished;
