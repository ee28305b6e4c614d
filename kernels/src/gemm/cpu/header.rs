//! What stands before a group of a packed row of integers.

/// The header of a group of integers of `BYTES` bytes, `[words][rows of the tile]` of 32 bits: which word is what.
pub(super) struct Header<const BYTES: usize>;

impl<const BYTES: usize> Header<BYTES> {
    /// f32: what sums of integers are multiplied with.
    pub const SCALE: usize = 0;
    /// i32, one for each byte of a value, the highest first: what the sums of its products start from.
    pub const STARTS: usize = Self::SCALE + 1;
    /// Of two bytes only, as what follows: not 0, in the words of all rows, where any row of the tile has values in bf16.
    pub const HAS_APART: usize = Self::STARTS + BYTES;
    /// A bit for each value of the row that is in bf16, in the order of the steps, the lowest first.
    pub const MARKS: usize = Self::HAS_APART + 1;

    /// Words of [`MARKS`](Self::MARKS) of a group of so many values.
    pub const fn marks(group: usize) -> usize {
        group.div_ceil(u32::BITS as usize)
    }

    /// All words before such a group.
    pub const fn words(group: usize) -> usize {
        if BYTES == 1 { Self::HAS_APART } else { Self::MARKS + Self::marks(group) }
    }
}
