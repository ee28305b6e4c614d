//! Byte counts as people read them.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A number of bytes that prints with a binary unit, and is read with any. The largest stands for all that are more than
/// can be counted.
///
/// ```
/// use sinew_memory::Bytes;
/// assert_eq!(Bytes(512).to_string(), "512 B");
/// assert_eq!(Bytes(3 << 19).to_string(), "1.5 MiB");
/// assert_eq!(format!("{:>9}", Bytes(7 << 30)), "  7.0 GiB");
/// assert_eq!(Bytes(usize::MAX).to_string(), "more than 16 EiB");
/// assert_eq!("1.5 MiB".parse::<Bytes>()?, Bytes(3 << 19));
/// assert_eq!("500MB".parse::<Bytes>()?, Bytes(500_000_000));
/// # Ok::<(), sinew_memory::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

impl Bytes {
    /// This number and those that it is held against, each in words of which none that differs from it reads the same:
    /// with one decimal, as each prints alone, or with as many as that takes, or in bytes.
    ///
    /// ```
    /// use sinew_memory::Bytes;
    ///
    /// assert_eq!(Bytes(3 << 20).beside([1 << 20]), ("3.0 MiB".to_owned(), ["1.0 MiB".to_owned()]));
    /// let (asked, [free, total]) = Bytes(1100 << 20).beside([1099 << 20, 8 << 30]);
    /// assert_eq!(format!("{asked} of {free}, {total} in all"), "1.074 GiB of 1.073 GiB, 8.0 GiB in all");
    /// assert_eq!(Bytes(5 << 20).beside([(5 << 20) - 1]), ("5242880 B".to_owned(), ["5242879 B".to_owned()]));
    /// ```
    pub fn beside<const N: usize>(self, others: [usize; N]) -> (String, [String; N]) {
        /// As many are read at a glance.
        const MOST_DECIMALS: usize = 3;
        // `None` are bytes.
        let least = |other: &usize| {
            let differs =
                |&decimals: &usize| *other == self.0 || Self(*other).rounded(decimals) != self.rounded(decimals);
            (1..=MOST_DECIMALS).find(differs)
        };
        let words = |bytes: Self, decimals: Option<usize>| match decimals {
            Some(decimals) => bytes.rounded(decimals),
            None => format!("{} B", bytes.0),
        };
        let finest = others.iter().map(least).try_fold(1, |most, decimals| Some(most.max(decimals?)));
        (words(self, finest), others.map(|other| words(Self(other), least(&other))))
    }

    fn rounded(self, decimals: usize) -> String {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        match self.0 {
            usize::MAX => return "more than 16 EiB".to_owned(),
            bytes if bytes < 1 << 10 => return format!("{bytes} B"),
            _ => {}
        }
        // What is shown of 1023.96 KiB with one decimal is 1.0 MiB.
        let next = 1024.0 - 0.5 * 0.1f64.powi(decimals as i32);
        let (mut value, mut unit) = (self.0 as f64 / 1024.0, 0);
        while value >= next && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        format!("{value:.decimals$} {}", UNITS[unit])
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.rounded(1))
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
