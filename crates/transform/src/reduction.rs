//! How sums over the batch are added up over devices.

use std::fmt;
use std::str::FromStr;

/// The way of a sum over the batch over several devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// From device to device in the order of the examples: any number of devices has the bits of one.
    #[default]
    Chain,
    /// Every device adds up its own examples, and the connection adds up those sums in an order of its own: bits depend on the number of
    /// devices. Statistics of batch norm, and sums that are not f32, pass from device to device all the same.
    Fast,
}

impl Reduction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Chain, Self::Fast];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Fast => "fast",
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|reduction| reduction.name() == text);
        found.ok_or_else(|| format!("`{text}` is not one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
