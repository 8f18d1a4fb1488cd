//! Memory sizes as text.

use std::{fmt, str::FromStr};
use thiserror::Error;

/// An amount of memory: bytes, or a share of what is available.
///
/// ```
/// use plimsoll_plan::Size;
/// assert_eq!("512MiB".parse(), Ok(Size::Bytes(512 << 20)));
/// assert_eq!("4GB".parse(), Ok(Size::Bytes(4_000_000_000)));
/// assert_eq!("50%".parse(), Ok(Size::Percent(50.0)));
/// assert_eq!("0.5".parse(), Ok(Size::Percent(50.0)));
/// assert_eq!("4000000".parse(), Ok(Size::Bytes(4_000_000)));
/// assert!("64".parse::<Size>().is_err(), "64 what?");
/// assert!("12parsecs".parse::<Size>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// A number of bytes.
    Bytes(usize),
    /// A percentage of what is available.
    Percent(f64),
}

/// Bytes from which on a number needs no unit.
const LEAST_BYTES: f64 = 1e6;

/// Text that is not a size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{text}` {reason}: write a number with a unit, like 512MiB, 4GB or 50%")]
pub struct SizeError {
    text: String,
    reason: &'static str,
}

impl Size {
    /// The size in bytes; a share is of `available`.
    pub fn bytes(self, available: usize) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (available as f64 * percent / 100.0) as usize,
        }
    }
}

/// MiB, for sizes in programs: `MiB(128)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MiB(pub usize);

/// GiB, for sizes in programs: `GiB(4)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GiB(pub usize);

impl From<MiB> for Size {
    fn from(MiB(count): MiB) -> Self {
        Self::Bytes(count.saturating_mul(1 << 20))
    }
}

impl From<GiB> for Size {
    fn from(GiB(count): GiB) -> Self {
        Self::Bytes(count.saturating_mul(1 << 30))
    }
}

impl FromStr for Size {
    type Err = SizeError;
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refuse = |reason| SizeError { text: text.to_string(), reason };
        let bad = || refuse("is not a size");
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let factor = match unit.trim().to_ascii_lowercase().as_str() {
            "" if number > 0.0 && number <= 1.0 => return Ok(Self::Percent(number * 100.0)),
            // So few bytes are never meant.
            "" if number > 1.0 && number < LEAST_BYTES => return Err(refuse("has no unit")),
            "" | "b" => 1.0,
            "k" | "kib" => 1024.0,
            "m" | "mib" => 1024.0 * 1024.0,
            "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
            "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "%" if number > 0.0 && number <= 100.0 => return Ok(Self::Percent(number)),
            "%" => return Err(refuse("is not a share of more than 0 and at most 100%")),
            _ => return Err(bad()),
        };
        let bytes = number * factor;
        match bytes {
            b if b < 1.0 => Err(refuse("is no memory at all")),
            b if b >= 1e18 => Err(refuse("is more than any machine has")),
            b => Ok(Self::Bytes(b as usize)),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}
