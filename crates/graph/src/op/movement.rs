//! Moving elements without changing them.

use super::{Family, OperandPrecision, PrecisionClass, Properties, Rematerialization, arity, require};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{Shape, TensorType};
use serde::{Deserialize, Serialize};

/// Evenly spaced places along an axis: `start`, `start + step`, …, as many as `extent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first place.
    pub start: usize,
    /// How many.
    pub extent: usize,
    /// The distance between them; negative goes backwards.
    pub step: isize,
}

impl Span {
    /// All places of an axis.
    pub const fn whole(extent: usize) -> Self {
        Self { start: 0, extent, step: 1 }
    }

    /// Whether every place is on an axis of this extent.
    fn fits(&self, axis: usize) -> bool {
        let last = isize::try_from(self.extent.saturating_sub(1)).ok().and_then(|n| n.checked_mul(self.step));
        let last = last.and_then(|distance| self.start.checked_add_signed(distance));
        self.step != 0 && (self.extent == 0 || (self.start < axis && last.is_some_and(|last| last < axis)))
    }
}

/// Moving elements without changing them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Movement {
    /// The same elements in row-major order under another shape; costs nothing.
    Reshape(Shape),
    /// Output axis i is input axis `axes[i]`.
    Transpose(Vec<usize>),
    /// Repeats along axes of extent one and new leading axes.
    Broadcast(Shape),
    /// The elements at a span of every axis.
    Slice(Vec<Span>),
    /// A tensor of this shape filled with a value, with the input at a span of every axis.
    Pad {
        /// Shape of the result.
        shape: Shape,
        /// Where the input goes.
        spans: Vec<Span>,
        /// The value of the other elements, rounded to the element type.
        value: f64,
    },
    /// The inputs one after another along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Pieces along an axis, an output each: the inverse of [`Movement::Concat`].
    Split {
        /// The axis.
        axis: usize,
        /// Extents of the pieces.
        extents: Vec<usize>,
    },
    /// The input itself, through which no gradient flows; costs nothing.
    Detach,
}

impl Movement {
    fn shapes(&self, inputs: &[&TensorType]) -> Result<Vec<Shape>, TypeError> {
        if let Self::Concat { axis } = self {
            return concatenated(*axis, inputs).map(|shape| vec![shape]);
        }
        let [x] = arity(inputs)?;
        let spans_fit = |spans: &[Span], shape: &Shape| {
            let fits = spans.len() == shape.rank() && spans.iter().zip(shape.iter()).all(|(s, &n)| s.fits(n));
            require(fits, || format!("the spans {} do not lie in {shape}", in_words(spans)))
        };
        Ok(vec![match self {
            Self::Reshape(shape) => {
                require(shape.elements() == x.shape.elements(), || {
                    format!("{shape} has {} elements, {x} has {}", shape.elements(), x.shape.elements())
                })?;
                shape.clone()
            }
            Self::Transpose(axes) => {
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                require(sorted.iter().copied().eq(0..x.shape.rank()), || {
                    format!("{axes:?} is not an order of the {} axes", x.shape.rank())
                })?;
                axes.iter().map(|&a| x.shape[a]).collect::<Vec<_>>().into()
            }
            Self::Broadcast(shape) => {
                require(x.shape.broadcast(shape).as_ref() == Some(shape), || {
                    format!("{} does not broadcast to {shape}", x.shape)
                })?;
                shape.clone()
            }
            Self::Slice(spans) => {
                spans_fit(spans, &x.shape)?;
                spans.iter().map(|s| s.extent).collect::<Vec<_>>().into()
            }
            Self::Pad { shape, spans, .. } => {
                spans_fit(spans, shape)?;
                require(spans.iter().map(|s| s.extent).eq(x.shape.iter().copied()), || {
                    format!("the spans {} do not hold {x}", in_words(spans))
                })?;
                shape.clone()
            }
            Self::Split { axis, extents } => {
                let whole = extents.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
                require(x.shape.get(*axis).copied() == whole && !extents.is_empty(), || {
                    format!("{extents:?} do not add up to axis {axis} of {x}")
                })?;
                let piece = |&extent: &usize| {
                    let mut shape = x.shape.to_vec();
                    shape[*axis] = extent;
                    shape.into()
                };
                return Ok(extents.iter().map(piece).collect());
            }
            Self::Detach | Self::Concat { .. } => x.shape.clone(),
        }])
    }
}

fn in_words(spans: &[Span]) -> String {
    let span = |s: &Span| format!("{}+{}·{}", s.start, s.extent, s.step);
    format!("[{}]", spans.iter().map(span).collect::<Vec<_>>().join(", "))
}

fn concatenated(axis: usize, inputs: &[&TensorType]) -> Result<Shape, TypeError> {
    let first = *inputs.first().ok_or_else(|| TypeError("needs at least one input".into()))?;
    require(axis < first.shape.rank(), || format!("{first} has no axis {axis}"))?;
    let mut shape = first.shape.to_vec();
    for x in &inputs[1..] {
        let same = |a: usize| a == axis || x.shape[a] == shape[a];
        let fits = x.dtype == first.dtype && x.shape.rank() == shape.len() && (0..shape.len()).all(same);
        require(fits, || format!("{first} and {x} differ beside axis {axis}"))?;
        shape[axis] = shape[axis].saturating_add(x.shape[axis]);
    }
    Ok(shape.into())
}

impl Family for Movement {
    fn name(&self) -> &'static str {
        match self {
            Self::Reshape(_) => "reshape",
            Self::Transpose(_) => "transpose",
            Self::Broadcast(_) => "broadcast",
            Self::Slice(_) => "slice",
            Self::Pad { .. } => "pad",
            Self::Concat { .. } => "concat",
            Self::Split { .. } => "split",
            Self::Detach => "detach",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let shapes = self.shapes(inputs)?;
        Ok(shapes.into_iter().map(|shape| TensorType::new(inputs[0].dtype, shape)).collect())
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType]) -> u64 {
        0
    }

    fn batch_relation(&self, _: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        let examples = inputs[0].shape.first().copied().unwrap_or(0);
        let whole = |spans: &[Span]| spans.first() == Some(&Span::whole(examples));
        let stays = match self {
            // Rows may be split or merged as long as examples stay whole: `Graph::batch_relations`, which knows the
            // number of examples, checks that.
            Self::Reshape(shape) => shape.rank() > 0,
            Self::Transpose(axes) => axes.first() == Some(&0),
            Self::Broadcast(shape) => shape.rank() == inputs[0].shape.rank(),
            Self::Slice(spans) => whole(spans),
            Self::Pad { spans, shape, .. } => whole(spans) && shape.first() == Some(&examples),
            Self::Concat { axis } | Self::Split { axis, .. } => *axis > 0,
            Self::Detach => true,
        };
        let outputs = if let Self::Split { extents, .. } = self { extents.len() } else { 1 };
        vec![if stays { BatchRelation::PerExample } else { BatchRelation::Mixed }; outputs]
    }

    fn properties(&self) -> Properties {
        let precision = PrecisionClass { operands: OperandPrecision::AsStored, ..PrecisionClass::WIDE };
        let (rematerialization, is_view) = match self {
            Self::Reshape(_) | Self::Detach => (Rematerialization::Cheap, true),
            Self::Transpose(_)
            | Self::Broadcast(_)
            | Self::Slice(_)
            | Self::Pad { .. }
            | Self::Concat { .. } => (Rematerialization::Cheap, false),
            Self::Split { .. } => (Rematerialization::Costly, false),
        };
        Properties { rematerialization, precision, is_view, ..Properties::GENERAL }
    }
}
