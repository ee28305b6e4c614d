//! Byte counts as people read them.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A number of bytes that prints with a binary unit, and is read with any.
///
/// ```
/// use sinew_memory::Bytes;
/// assert_eq!(Bytes(512).to_string(), "512 B");
/// assert_eq!(Bytes(3 << 19).to_string(), "1.5 MiB");
/// assert_eq!(format!("{:>9}", Bytes(7 << 30)), "  7.0 GiB");
/// assert_eq!("1.5 MiB".parse::<Bytes>()?, Bytes(3 << 19));
/// assert_eq!("500MB".parse::<Bytes>()?, Bytes(500_000_000));
/// # Ok::<(), sinew_memory::Error>(())
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

impl FromStr for Bytes {
    type Err = Error;

    /// A number, whole or with a fraction, and a unit: B, which may be left out, KiB to TiB, or kB to TB, which are
    /// powers of 1000.
    fn from_str(text: &str) -> Result<Self, Error> {
        const UNITS: [(&str, f64); 10] = [
            ("", 1.0),
            ("B", 1.0),
            ("KiB", 1024.0),
            ("MiB", 1_048_576.0),
            ("GiB", 1_073_741_824.0),
            ("TiB", 1_099_511_627_776.0),
            ("kB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("TB", 1e12),
        ];
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let factor = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| factor);
        match (number.parse::<usize>(), number.parse::<f64>(), factor) {
            // Exact beyond what a float holds.
            (Ok(bytes), _, Some(1.0)) => Ok(Self(bytes)),
            // A float cast saturates.
            (_, Ok(number), Some(factor)) => Ok(Self((number * factor).round() as usize)),
            _ => Err(Error::Invalid(format!("`{text}` is no number of bytes; such are 2GiB, 500MB and 1048576"))),
        }
    }
}
