//! Integers of 4 and 8 bits in words of 32.

use sinew_tensor::BlockValues;

/// Bits of an integer, of which there are as many in a word of 32 bits as fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    Four,
    Eight,
}

impl Bits {
    pub fn of(bits: usize) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Values of a word.
    pub fn per_word(self) -> usize {
        32 / self.count()
    }

    pub fn values(self) -> BlockValues {
        match self {
            Self::Four => BlockValues::Int4,
            Self::Eight => BlockValues::Int8,
        }
    }

    /// 1 for each value of a word.
    pub fn ones(self) -> u32 {
        match self {
            Self::Four => 0x1111_1111,
            Self::Eight => 0x0101_0101,
        }
    }

    /// The word whose values all are in the middle, which stands for 0.
    pub fn middle(self) -> u32 {
        self.ones() << (self.count() - 1)
    }

    /// The word of some values, lowest first, to which the middle is added.
    pub fn packed(self, values: impl Iterator<Item = i8>) -> u32 {
        let (count, mask) = (self.count(), (1 << self.count()) - 1);
        let shifted = |value: i8| (u32::from(value as u8) & mask) ^ (1 << (count - 1));
        let place = |(at, value): (usize, i8)| shifted(value) << (at * count);
        values.enumerate().map(place).fold(0, |word, value| word | value)
    }

    /// The values of a word, lowest first, less the middle.
    pub fn unpacked(self, word: u32) -> impl Iterator<Item = i8> {
        let (bytes, count) = match self {
            Self::Four => (signed_nibbles(word), 8),
            Self::Eight => (u64::from(u32::from_le_bytes(signed_bytes(word))), 4),
        };
        bytes.to_le_bytes().into_iter().take(count).map(|byte| byte as i8)
    }
}

/// The eight nibbles of a word as a byte each, lowest first.
pub(super) fn nibbles(word: u32) -> u64 {
    let mut bytes = u64::from(word);
    bytes = (bytes | bytes << 16) & 0x0000_ffff_0000_ffff;
    bytes = (bytes | bytes << 8) & 0x00ff_00ff_00ff_00ff;
    (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// The same less 8 each, in two's complement.
pub(super) fn signed_nibbles(word: u32) -> u64 {
    // With the highest bit set no byte borrows from the next.
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    ((nibbles(word) | HIGHEST) - 0x0808_0808_0808_0808) ^ HIGHEST
}

/// The four bytes of a word, lowest first, less 128 each, in two's complement.
pub(super) fn signed_bytes(word: u32) -> [u8; 4] {
    (word ^ 0x8080_8080).to_le_bytes()
}

/// The words of a tensor of I32.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}
