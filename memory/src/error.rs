//! What can go wrong with memory, said in one line.

use std::path::PathBuf;

use crate::{Bytes, DeviceId, Location};

/// The result of a memory operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the memory crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device has less free memory than an allocation asks for.
    #[error("out of memory on {device}: {}", out_of_memory(*asked, [*available, *total, *fits], holders.as_deref()))]
    OutOfMemory {
        /// The device that was asked.
        device: DeviceId,
        /// Bytes asked for.
        asked: usize,
        /// Bytes free when it was asked.
        available: usize,
        /// Bytes that the device or the limit has in all.
        total: usize,
        /// What holds the rest, largest first, where that is known.
        holders: Option<String>,
        /// The largest allocation that would succeed now, as far as is known.
        fits: usize,
    },
    /// A device makes no allocation of that size, however much memory is free.
    #[error(
        "{} ({asked} bytes) asked at once on {device}, which allocates at most {} ({largest} bytes) at once",
        Bytes(*asked), Bytes(*largest)
    )]
    TooLarge {
        /// The device that was asked.
        device: DeviceId,
        /// Bytes asked for.
        asked: usize,
        /// Bytes that an allocation may have.
        largest: usize,
    },
    /// A page pool has fewer blocks to give than are needed. Nothing was changed.
    #[error("out of KV cache blocks: {asked} needed, {free} of {total} free; end or swap a sequence, or add blocks")]
    OutOfBlocks {
        /// Blocks needed.
        asked: usize,
        /// Blocks free, or cached for whoever starts with the same words.
        free: usize,
        /// Blocks in all.
        total: usize,
    },
    /// No device of that name can be used here.
    #[error("no device `{name}`: {reason}")]
    NoDevice {
        /// The name as asked.
        name: String,
        /// Why there is none, and what there is instead.
        reason: String,
    },
    /// The host asked for bytes that only the device can reach.
    #[error("buffer at {location} memory of {device} cannot be reached by the host; download it through a stream")]
    NotHostVisible {
        /// Where the bytes are.
        location: Location,
        /// Whose they are.
        device: DeviceId,
    },
    /// Something else holds a handle to the buffer that was to be written.
    #[error("buffer is shared by {handles} handles and cannot be written; copy it, or drop the other views first")]
    Shared {
        /// Handles alive, this one included.
        handles: usize,
    },
    /// The bytes are mapped from a file that must not change.
    #[error("buffer is a read-only mapping of a file; copy it before writing")]
    ReadOnly,
    /// A range reaches past the end of a buffer.
    #[error("range {start}..{end} is outside a buffer of {len} bytes")]
    OutOfRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the buffer.
        len: usize,
    },
    /// The bytes cannot be seen as elements of that type.
    #[error("{len} bytes at {address:#x} are not a slice of {element} (size {size}, alignment {align})")]
    Misaligned {
        /// Address of the first byte.
        address: usize,
        /// Bytes.
        len: usize,
        /// Element type.
        element: &'static str,
        /// Element size.
        size: usize,
        /// Element alignment.
        align: usize,
    },
    /// A file could not be opened, read or mapped.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried, as it reads after "cannot".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Work on a device failed; it may have been enqueued some time ago.
    #[error("{operation} failed on {device}: {reason}")]
    Device {
        /// The device.
        device: DeviceId,
        /// The operator or call that caused it.
        operation: String,
        /// The device's own words.
        reason: String,
    },
    /// An argument breaks a stated rule.
    #[error("{0}")]
    Invalid(String),
}

/// What was asked reads as another number than what is free and what would fit.
fn out_of_memory(asked: usize, others: [usize; 3], holders: Option<&str>) -> String {
    let bytes = others[2];
    let (asked, [available, total, fits]) = Bytes(asked).beside(others);
    let holders = holders.map(|holders| format!("; held by {holders}")).unwrap_or_default();
    format!("{asked} asked, {available} of {total} free{holders}; at most {fits} ({bytes} bytes) would fit")
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}
