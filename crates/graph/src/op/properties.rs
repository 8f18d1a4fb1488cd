//! Properties of an op that passes, planner and checker ask for, beyond its type rule and cost.

use plimsoll_tensor::TensorType;

/// What is true of an op. Each family answers in one `match` that lists its ops, so that a new op does not compile
/// before it has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Who may recompute its output instead of keeping it.
    pub rematerialization: Rematerialization,
    /// How mixed precision computes it.
    pub precision: PrecisionClass,
    /// Which inputs an output may overwrite.
    pub in_place: InPlace,
    /// Whether the output is the input's bytes under another shape: it needs no kernel and no buffer.
    pub is_view: bool,
    /// The outputs that are sums over the batch, folded block by block, where the inputs are per-example: they can be
    /// added to accumulators.
    pub folds: &'static [usize],
}

impl Properties {
    /// An op that is kept for backward, computed in f32, and written apart from its inputs.
    pub(crate) const GENERAL: Self = Self {
        rematerialization: Rematerialization::Costly,
        precision: PrecisionClass::WIDE,
        in_place: InPlace::Never,
        is_view: false,
        folds: &[],
    };
}

/// Who may recompute an op's output from its inputs. Under a memory line, the planner may rematerialize any op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rematerialization {
    /// Every fused region that reads it, and backward: an instruction or two for each element.
    Trivial,
    /// Backward (the `save` pass): about as fast as reading the value from memory. Ops of one output only, because the
    /// pass's minimum cut has one value for each node.
    Cheap,
    /// No pass.
    Costly,
}

/// How mixed precision computes an op that reads per-example floats. *Low* is the 16-bit float that a run stores values
/// in, *wide* is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionClass {
    /// What it reads.
    pub operands: OperandPrecision,
    /// When its f32 result is rounded to a low one.
    pub rounding: Rounding,
    /// Whether it continues a chain of f32 ops: inside a layer it reads an elementwise op's result unrounded.
    pub extends_chain: bool,
}

impl PrecisionClass {
    /// Computed in f32 and left there, as sums and statistics are.
    pub const WIDE: Self =
        Self { operands: OperandPrecision::Wide, rounding: Rounding::Never, extends_chain: false };
    /// Computed in f32 and rounded at once.
    pub const ROUNDED: Self = Self { rounding: Rounding::AtOnce, ..Self::WIDE };
    /// A link of a chain of f32 ops, whose end is rounded.
    pub const CHAIN: Self = Self { rounding: Rounding::EndOfChain, extends_chain: true, ..Self::WIDE };
    /// Reads low operands, accumulates in f32, and rounds once, after its bias.
    pub const PRODUCT: Self =
        Self { operands: OperandPrecision::Low, rounding: Rounding::AfterBias, extends_chain: false };
}

/// What an op reads in mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandPrecision {
    /// Low floats: others are cast.
    Low,
    /// Values as they are stored, low or wide: the op is exact in either.
    AsStored,
    /// The first operand as it is stored, the others wide.
    FirstAsStored,
    /// f32: low floats are widened.
    Wide,
}

/// When a wide result is rounded to a low float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// It is a product: with the bias that is added to it, if one is. The elementwise op that reads a product in f32
    /// rounds.
    AfterBias,
    /// As it is written.
    AtOnce,
    /// Where another layer reads it, or an op that does not extend the chain.
    EndOfChain,
    /// It stays wide.
    Never,
}

/// Which inputs an op's outputs may overwrite. A target may allow less, never more: see [`crate::Numerics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// Any with as many elements of the same size: an element of an output depends on that element of each input alone.
    /// So the op may also run on a chunk of its elements at a time.
    Elementwise,
    /// Any with as many elements of the same size: an element of an input is not read any more once that element of an output
    /// is written.
    ReadFirst,
    /// None.
    Never,
}

impl InPlace {
    /// Whether an output of one type may overwrite an input of another.
    pub fn allows(self, output: &TensorType, input: &TensorType) -> bool {
        let same_size = output.shape.elements() == input.shape.elements() && output.bytes() == input.bytes();
        match self {
            Self::Elementwise | Self::ReadFirst => same_size,
            Self::Never => false,
        }
    }
}
