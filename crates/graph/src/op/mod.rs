//! The ops: a closed set, one file per family.
//!
//! Each file holds a family's attributes, type rule, cost, batch relation and properties. What an op *means* is said in
//! its doc comment and defined by the reference executor.

mod attention;
mod conv;
mod elementwise;
mod exchange;
mod index;
mod int8;
mod loss;
mod matmul;
mod movement;
mod norm;
mod pool;
mod properties;
mod prune;
mod quantise;
mod random;
mod recurrent;
mod reduce;
mod resize;
#[cfg(test)]
mod tests;

pub use attention::Attention;
pub use conv::{Conv, Geometry, reach, same_padding};
pub use elementwise::{Binary, Elementwise, Instruction, Operand, Region, Unary};
pub use exchange::Exchange;
pub use index::Index;
pub use int8::{ADD_SHIFT, Codes, Factor, Grid, Int8, SHARE_BITS, resize_taps};
pub use loss::Loss;
pub use matmul::{Epilogue, MatMul};
pub use movement::{Movement, Span};
pub use norm::{Norm, NormAxis};
pub use pool::{Pool, Windows};
pub use properties::{InPlace, OperandPrecision, PrecisionClass, Properties, Rematerialization, Rounding};
pub use prune::Prune;
pub use quantise::Quantise;
pub use random::{Distribution, Random};
pub use recurrent::Recurrent;
pub use reduce::Reduce;
pub use resize::{Resize, ResizeMode};

use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// What a node computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// One scalar function applied to every element.
    Elementwise(Elementwise),
    /// Several elementwise ops in one pass, made by the `fuse` pass.
    Fused(Region),
    /// Moves elements without changing them.
    Movement(Movement),
    /// Reductions and other ops along whole axes.
    Reduce(Reduce),
    /// Matrix product.
    MatMul(MatMul),
    /// Convolution and its gradients.
    Conv(Conv),
    /// Pooling and its gradients.
    Pool(Pool),
    /// Resizing images and its gradient.
    Resize(Resize),
    /// Normalisation and its parts.
    Norm(Norm),
    /// Attention and its gradient.
    Attention(Attention),
    /// Recurrences and their gradients.
    Recurrent(Recurrent),
    /// Look-ups by index.
    Index(Index),
    /// Losses and their gradients.
    Loss(Loss),
    /// Random numbers.
    Random(Random),
    /// Floats quantised to bytes.
    Quantise(Quantise),
    /// Masks of pruned weights.
    Prune(Prune),
    /// Layers of bytes.
    Int8(Int8),
    /// Values that pass between devices.
    Exchange(Exchange),
}

/// What every family answers.
pub(crate) trait Family {
    /// The op's name in messages and the text form.
    fn name(&self) -> &'static str;
    /// The types of the outputs, or why the inputs do not fit.
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError>;
    /// Floating-point operations (a fused multiply-add is two).
    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64;
    /// How each output relates to the batch, given which inputs have a batch axis; at least one has.
    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation>;
    /// What is true of the op. A family of several ops matches on them without a wildcard.
    fn properties(&self) -> Properties;
}

impl Op {
    fn family(&self) -> &dyn Family {
        match self {
            Self::Elementwise(op) => op,
            Self::Fused(op) => op,
            Self::Movement(op) => op,
            Self::Reduce(op) => op,
            Self::MatMul(op) => op,
            Self::Conv(op) => op,
            Self::Pool(op) => op,
            Self::Resize(op) => op,
            Self::Norm(op) => op,
            Self::Attention(op) => op,
            Self::Recurrent(op) => op,
            Self::Index(op) => op,
            Self::Loss(op) => op,
            Self::Random(op) => op,
            Self::Quantise(op) => op,
            Self::Prune(op) => op,
            Self::Int8(op) => op,
            Self::Exchange(op) => op,
        }
    }

    /// The op's name in messages.
    pub fn name(&self) -> &'static str {
        self.family().name()
    }

    /// The types of the outputs, or why the inputs do not fit.
    pub fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        self.family().infer(inputs)
    }

    /// Floating-point operations (a fused multiply-add is two).
    pub fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        self.family().flops(inputs, outputs)
    }

    /// Bytes read and written if every operand is touched once.
    pub fn bytes(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        inputs.iter().chain(outputs).map(|t| t.bytes() as u64).sum()
    }

    /// How each output relates to the batch, given which inputs have a batch axis.
    pub fn batch_relation(
        &self,
        batched: &[bool],
        inputs: &[&TensorType],
        outputs: usize,
    ) -> Vec<BatchRelation> {
        if batched.contains(&true) {
            self.family().batch_relation(batched, inputs)
        } else {
            vec![BatchRelation::Independent; outputs]
        }
    }

    /// What is true of the op: whether it is cheap to rematerialize, its precision class, what it may overwrite.
    pub fn properties(&self) -> Properties {
        self.family().properties()
    }

    /// [`Properties::folds`].
    pub fn folds(&self) -> &'static [usize] {
        self.properties().folds
    }

    /// [`Properties::is_view`].
    pub fn is_view(&self) -> bool {
        self.properties().is_view
    }
}

/// Checks the number of inputs.
pub(crate) fn arity<'a, const N: usize>(inputs: &[&'a TensorType]) -> Result<[&'a TensorType; N], TypeError> {
    inputs.try_into().map_err(|_| TypeError(format!("needs {N} inputs, has {}", inputs.len())))
}

/// Fails with a message unless a condition holds.
pub(crate) fn require(condition: bool, reason: impl FnOnce() -> String) -> Result<(), TypeError> {
    if condition { Ok(()) } else { Err(TypeError(reason())) }
}

/// Requires floats of one type and returns it.
pub(crate) fn same_float(inputs: &[&TensorType]) -> Result<DType, TypeError> {
    let dtype = inputs[0].dtype;
    require(dtype.is_float() && inputs.iter().all(|t| t.dtype == dtype), || {
        "needs floats of one type".to_string()
    })?;
    Ok(dtype)
}

/// The element type of a product of low floats: their own, or f32 if the op says so.
pub(crate) fn product_type(operands: DType, output: Option<DType>) -> Result<DType, TypeError> {
    let result = output.unwrap_or(operands);
    require(result == operands || result == operands.wide(), || {
        format!("a product of {operands} gives {operands} or {}, not {result}", operands.wide())
    })?;
    Ok(result)
}

/// Requires a rank.
pub(crate) fn rank<const N: usize>(what: &str, ty: &TensorType) -> Result<[usize; N], TypeError> {
    ty.shape[..].try_into().map_err(|_| TypeError(format!("{what} must have {N} axes, it is {ty}")))
}

/// The relation of an op whose outputs are all per-example.
pub(crate) fn per_example(outputs: usize) -> Vec<BatchRelation> {
    vec![BatchRelation::PerExample; outputs]
}
