//! Shapes and tensor types.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Deref, str::FromStr};

/// The extents of a tensor, outermost first. A scalar has no extents and one element.
///
/// ```
/// use plimsoll_tensor::Shape;
/// let images = Shape::from([32, 28, 28, 1]);
/// assert_eq!(images.elements(), 25_088);
/// assert_eq!(images.broadcast(&Shape::from([28, 1])), Some(Shape::from([32, 28, 28, 1])));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The shape of a scalar.
    pub const fn scalar() -> Self {
        Self(Vec::new())
    }

    /// Number of extents.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Product of the extents, saturating: a product past `usize` is never a real tensor.
    pub fn elements(&self) -> usize {
        if self.0.contains(&0) { 0 } else { self.0.iter().fold(1, |n, &d| n.saturating_mul(d)) }
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i] * self.0[i];
        }
        strides
    }

    /// The common shape of two operands, aligned at the last axis; `None` if they do not fit.
    pub fn broadcast(&self, other: &Self) -> Option<Self> {
        let rank = self.rank().max(other.rank());
        let extent = |s: &Self, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |j| s.0[j]);
        (0..rank)
            .map(|i| match (extent(self, i), extent(other, i)) {
                (a, b) if a == b || b == 1 => Some(a),
                (1, b) => Some(b),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Self)
    }

    /// Element strides for reading `self` as if it had the shape `target`: 0 along broadcast axes.
    pub fn strides_in(&self, target: &Self) -> Vec<usize> {
        let own = self.strides();
        let missing = target.rank() - self.rank();
        (0..target.rank())
            .map(|i| match i.checked_sub(missing) {
                Some(j) if self.0[j] == target.0[i] => own[j],
                _ => 0,
            })
            .collect()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Self(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self(dims.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.0.iter().map(usize::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

/// Element type and shape of a value.
///
/// ```
/// use plimsoll_tensor::{DType, TensorType};
/// let ty: TensorType = "f32[2,3]".parse().unwrap();
/// assert_eq!(ty, TensorType::new(DType::F32, [2, 3]));
/// assert_eq!(ty.bytes(), 24);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// A scalar of the given element type.
    pub fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: Shape::scalar() }
    }

    /// Bytes of a dense tensor of this type.
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl FromStr for TensorType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a tensor type like f32[2,3]");
        let (dtype, rest) = text.split_once('[').ok_or_else(bad)?;
        let dims = rest.strip_suffix(']').ok_or_else(bad)?;
        let shape = if dims.is_empty() {
            Vec::new()
        } else {
            dims.split(',').map(|d| d.trim().parse().map_err(|_| bad())).collect::<Result<Vec<usize>, _>>()?
        };
        Ok(Self { dtype: dtype.parse()?, shape: Shape(shape) })
    }
}
