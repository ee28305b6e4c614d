//! Byte counts as people read them.

use std::fmt;

/// A number of bytes that prints with a binary unit.
///
/// ```
/// use sinew_memory::Bytes;
/// assert_eq!(Bytes(512).to_string(), "512 B");
/// assert_eq!(Bytes(3 << 19).to_string(), "1.5 MiB");
/// assert_eq!(format!("{:>9}", Bytes(7 << 30)), "  7.0 GiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1 << 10 {
            return f.pad(&format!("{} B", self.0));
        }
        // One decimal is shown, so that 1023.96 KiB is 1.0 MiB.
        let (mut value, mut unit) = (self.0 as f64 / 1024.0, 0);
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}
