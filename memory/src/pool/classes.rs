//! Size classes: what requests are rounded up to, and the bins in which free spans are kept.
//!
//! A class is a number of granules: 1, 2 and 3, then four to each power of two (4, 5, 6, 7, 8, 10, 12, …).

/// The smallest class, unless the device's alignment is larger.
const SMALLEST: usize = 256;
/// The largest class: 512 MiB. Above it sizes are rounded to [`LARGE_STEP`] and found by best fit.
pub(super) const LARGEST: usize = 512 << 20;
/// Rounding above the largest class: a huge page, so at most 0.4 % is lost.
const LARGE_STEP: usize = 2 << 20;
/// Classes of the finest granule (see [`bin`]), and so the most bins there can be: 80.
pub(super) const BINS: usize = bin((LARGEST / SMALLEST) as u64) + 1;
const _: () = assert!(BINS == 80 && BINS <= u128::BITS as usize);

/// The classes of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classes {
    /// Every span starts and ends at a multiple of it.
    granule: usize,
    /// The bin of the largest class, in which spans are searched for the best fit.
    last_bin: usize,
}

impl Classes {
    /// Those of a device with this alignment.
    pub fn new(alignment: usize) -> Self {
        // Devices align to powers of two; a larger granule than the largest class would leave no classes.
        let granule = alignment.clamp(SMALLEST, 1 << 20).next_power_of_two();
        Self { granule, last_bin: bin((LARGEST / granule) as u64) }
    }

    pub fn granule(self) -> usize {
        self.granule
    }

    /// Bytes of the fewest granules that hold a request.
    pub fn rounded(self, bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(self.granule)
    }

    /// Bytes of a request's class.
    pub fn class(self, bytes: usize) -> Option<usize> {
        let rounded = self.rounded(bytes)?;
        if rounded > LARGEST {
            return rounded.checked_next_multiple_of(LARGE_STEP);
        }
        Some(class_units(rounded / self.granule) * self.granule)
    }

    /// All of them in bytes, smallest first.
    pub fn all(self) -> Vec<usize> {
        let mut classes = Vec::new();
        let mut units = 1;
        while units * self.granule <= LARGEST {
            classes.push(units * self.granule);
            units = class_units(units + 1);
        }
        classes
    }

    /// The bin of free spans of so many bytes: all that are as large as its class and smaller than the next, but in the
    /// [last](Self::is_last) of any size from its class on.
    pub fn bin(self, bytes: usize) -> usize {
        bin((bytes / self.granule) as u64).min(self.last_bin)
    }

    pub fn is_last(self, bin: usize) -> bool {
        bin == self.last_bin
    }

    /// Whether every span of its bin holds a request of this size: it is the bin's class. Not in the last bin, which is
    /// searched for the best fit.
    pub fn is_least_of_bin(self, size: usize) -> bool {
        !self.is_last(self.bin(size)) && class_units(size / self.granule) * self.granule == size
    }
}

/// Rounds granules up to a class.
fn class_units(units: usize) -> usize {
    if units <= 4 { units } else { units.next_multiple_of(1 << (units.ilog2() - 2)) }
}

/// The bin of free spans of `units` granules: the largest class that is not larger. 1, 2 and 3 are bins 0 to 2; from
/// there every power of two has four.
const fn bin(units: u64) -> usize {
    if units < 4 {
        return units as usize - 1;
    }
    let power = units.ilog2();
    3 + (power as usize - 2) * 4 + ((units >> (power - 2)) & 3) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_the_bottom_of_its_bin() {
        let mut units = 1;
        let mut expected = 0;
        while units * SMALLEST <= LARGEST {
            assert_eq!(bin(units as u64), expected);
            assert_eq!(class_units(units), units);
            let next = class_units(units + 1);
            assert_eq!(bin(next as u64 - 1), expected, "sizes below the next class stay in the bin");
            assert!(next <= 4 || (next - units) * 4 <= next, "steps of at most a quarter");
            (units, expected) = (next, expected + 1);
        }
        assert_eq!(expected, BINS);
    }
}
