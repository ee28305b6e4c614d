//! What rows of the CPU share: their SIMD levels, and how they walk rows and spans of operands.

pub(crate) mod leveled;
pub(crate) mod line;
pub(crate) mod row_walk;

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Rounds up to whole cache lines, or to `usize::MAX` where that overflows: no workspace is as large.
pub(crate) fn whole_lines(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(CACHE_LINE).unwrap_or(usize::MAX)
}
