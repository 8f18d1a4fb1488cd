//! Element types.

pub use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The type of one element of a tensor.
///
/// ```
/// use plimsoll_tensor::DType;
/// assert_eq!(DType::BF16.bytes(), 2);
/// assert_eq!("bf16".parse(), Ok(DType::BF16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float with f32's exponent.
    BF16,
    /// 16-bit IEEE float.
    F16,
    /// 64-bit float.
    F64,
    /// 32-bit signed integer: tokens, labels, indices.
    I32,
    /// 64-bit signed integer.
    I64,
    /// Byte: pixels, window indices.
    U8,
    /// Boolean in one byte.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::BF16, Self::F16, Self::F64, Self::I32, Self::I64, Self::U8, Self::Bool];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::BF16 | Self::F16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether gradients flow through values of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::BF16 | Self::F16 | Self::F64)
    }

    /// Whether it is a 16-bit float: bf16 or f16.
    pub const fn is_low(self) -> bool {
        matches!(self, Self::BF16 | Self::F16)
    }

    /// The type that sums accumulate in: f32 for 16-bit floats, else the type itself.
    pub const fn wide(self) -> Self {
        if self.is_low() { Self::F32 } else { self }
    }

    /// The name used in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|d| d.name() == text)
            .ok_or_else(|| format!("unknown element type `{text}`"))
    }
}
