//! How activations are packed as integers: what stands before a group of them, and how their bytes lie.

/// The header of a group of integers of `BYTES` bytes, `[words][rows of the tile]` of 32 bits: which word is what.
pub(super) struct Header<const BYTES: usize>;

impl<const BYTES: usize> Header<BYTES> {
    /// f32: what sums of integers are multiplied with.
    pub const SCALE: usize = 0;
    /// i32, one for each byte of a value, the highest first, or as [`QuadLayout::starts`] has them: what sums of products start
    /// from.
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

/// How four integers of one byte or two lie in the words of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuadLayout {
    /// A word of bytes. Of two bytes the upper ones in the first word, and in the second the lower ones, which have a sign of
    /// their own. Each word's products have a sum.
    Bytes,
    /// Whole, 16 bits each: the first and the third in the first word, the second and the fourth in the second. All products
    /// have one sum.
    Whole,
}

impl QuadLayout {
    /// Words of a step of integers of so many bytes.
    pub const fn count(self, bytes: usize) -> usize {
        match self {
            Self::Bytes => bytes,
            Self::Whole => 2,
        }
    }

    /// The words of integers with these upper and lower bytes.
    #[inline(always)]
    pub fn words(self, upper: i32, lower: i32) -> [i32; 2] {
        /// Two whole integers of the bytes at even places: a lower byte's sign takes one off the one above it.
        fn pair(upper: u32, lower: u32) -> i32 {
            const EVEN: u32 = 0xff_00ff;
            let (upper, lower) = (upper & EVEN, lower & EVEN);
            let borrowed = upper + 0xff * (lower >> 7 & 0x1_0001);
            ((borrowed & EVEN) << 8 | lower) as i32
        }
        let bytes = [upper, lower];
        match self {
            Self::Bytes => bytes,
            Self::Whole => {
                let [upper, lower] = bytes.map(|word| word as u32);
                [pair(upper, lower), pair(upper >> 8, lower >> 8)]
            }
        }
    }

    /// What sums start from, of what sums of upper and of lower bytes do.
    #[inline(always)]
    pub const fn starts(self, upper: i32, lower: i32) -> [i32; 2] {
        match self {
            Self::Bytes => [upper, lower],
            Self::Whole => [256 * upper + lower, 0],
        }
    }

    /// The words in which an integer of these bytes is the only one, in place of byte `byte` of a word of bytes.
    #[inline(always)]
    pub fn only(self, byte: usize, bytes: u16) -> [i32; 2] {
        let [upper, lower] = bytes.to_be_bytes().map(|of| i32::from(of) << (8 * byte));
        self.words(upper, lower)
    }

    /// The bytes of the integer in the place of byte `byte` of a word of bytes.
    #[inline(always)]
    pub const fn bytes(self, byte: usize, words: [u32; 2]) -> u16 {
        match self {
            Self::Bytes => {
                let [upper, lower] = [words[0] >> (8 * byte), words[1] >> (8 * byte)];
                u16::from_be_bytes([upper as u8, lower as u8])
            }
            Self::Whole => {
                let whole = (words[byte % 2] >> (16 * (byte / 2))) as u16;
                // What the lower byte's sign took off.
                whole.wrapping_add((whole & 0x80) << 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_packed_as_what_they_are_read_as() {
        for layout in [QuadLayout::Bytes, QuadLayout::Whole] {
            for bytes in 0..=u16::MAX {
                for place in 0..4 {
                    let words = layout.only(place, bytes);
                    assert_eq!(layout.bytes(place, words.map(|word| word as u32)), bytes, "{layout:?}, {place}");
                    // Beside others, the largest among them.
                    for others in [0xff, 0x80, 0x7f].map(|byte| i32::from_ne_bytes([byte; 4])) {
                        let [upper, lower] = bytes
                            .to_be_bytes()
                            .map(|byte| others & !(0xff << (8 * place)) | i32::from(byte) << (8 * place));
                        let words = layout.words(upper, lower).map(|word| word as u32);
                        assert_eq!(layout.bytes(place, words), bytes, "{layout:?}, {place}, beside {others:x}");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_integers_are_256_times_the_upper_byte_and_the_lower_one() {
        let bytes = |word: i32| word.to_le_bytes().map(|byte| i32::from(byte as i8));
        for seed in 1..10_000u32 {
            let [upper, lower] = [0x9e37_79b9, 0x85eb_ca6b].map(|odd: u32| odd.wrapping_mul(seed) as i32);
            let values: [i32; 4] = std::array::from_fn(|i| (256 * bytes(upper)[i] + bytes(lower)[i]) as i16 as i32);
            let [first, second] = QuadLayout::Whole.words(upper, lower).map(|word| [word as i16 as i32, word >> 16]);
            assert_eq!([first[0], second[0], first[1], second[1]], values, "{upper:x}, {lower:x}");
        }
        assert_eq!(QuadLayout::Whole.starts(-3, 7), [-761, 0]);
    }
}
