//! What differs between targets and decides the bits of results, or what may be planned: plain data.

use crate::Op;
use crate::op::InPlace;
use plimsoll_tensor::{DType, TensorType};
use std::fmt;

/// The numerics of a target. The target states them, steps and passes build graphs by them, plans are checked against
/// them, and checkpoints record them. The default is the CPU's.
///
/// ```
/// use plimsoll_graph::Numerics;
/// let wide_blocks = Numerics { block_rows: 64, ..Numerics::default() };
/// assert_ne!(wide_blocks.to_string(), Numerics::default().to_string());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// The least number of rows in a block of the fold over the batch, so that sums over the batch fill the vector
    /// registers or the threads of a kernel.
    pub block_rows: usize,
    /// What products and convolutions do to their elements before they are stored.
    pub epilogues: Epilogues,
    /// The type of a 16-bit product that a bias is added to: wide, it is rounded once, after the bias; as its operands, it
    /// is rounded before the bias, too.
    pub product_before_bias: ProductType,
    /// The type of the gradient of a 16-bit product's per-example operand. A wide one is not rounded where the operand was
    /// rounded from an f32. (Gradients that are reduced over the batch are wide on every target: otherwise micro-batches
    /// would change bits.)
    pub input_gradient: ProductType,
    /// Where the loss of a linear layer and its gradients are one kernel, if a step needs both. It changes the time, not bits.
    pub loss_with_gradient: JoinedLoss,
    /// Whether recurrences in f32 are one op over all positions; otherwise they are unrolled.
    pub recurrences: bool,
    /// Whether the f32 operands of products, convolutions and attention are rounded to TF32, 10 bits behind the binary point. Sums are f32.
    pub tf32: bool,
    /// Which kernels may work in place. It changes plans, not bits.
    pub in_place: InPlaceKernels,
}

/// What may be fused into the product or convolution before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogues {
    /// A bias of this type, added to a product that is wide. Without one, the addition is an op of its own, in f32.
    pub bias: Option<ProductType>,
    /// `max(x, 0)`.
    pub relu: bool,
    /// The rounding of a wide product to its operands' type.
    pub rounding: bool,
}

/// The element type of a value beside a product, from the type of the product's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductType {
    /// What the product is summed in: f32 of 16-bit floats.
    Wide,
    /// The operands' type.
    AsOperands,
}

/// Which losses of linear layers are one kernel with their gradients. The logits are computed once then; but the gradients are there
/// sooner, so the lowest line of a small gpt in bf16 rose by 4 % on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JoinedLoss {
    /// None.
    Never,
    /// Those of features that are no 16-bit floats.
    OfWide,
    /// All.
    Always,
}

/// The classes of kernels ([`InPlace`]) that may write an output over an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InPlaceKernels {
    /// Elementwise ones. Without them, no state is updated in chunks either, because a chunk is updated in place.
    pub elementwise: bool,
    /// Those that read an element of an input for the last time before they write that of an output.
    pub read_first: bool,
}

impl Default for Numerics {
    fn default() -> Self {
        Self {
            block_rows: 32,
            epilogues: Epilogues { bias: Some(ProductType::Wide), relu: true, rounding: true },
            product_before_bias: ProductType::Wide,
            input_gradient: ProductType::AsOperands,
            loss_with_gradient: JoinedLoss::OfWide,
            recurrences: true,
            tf32: false,
            in_place: InPlaceKernels { elementwise: true, read_first: true },
        }
    }
}

impl Numerics {
    /// The numerics of a step whose layers are on targets with these two: folds in the longer blocks, of all else only what both do, and
    /// where values differ in precision, the wider.
    ///
    /// ```
    /// use plimsoll_graph::Numerics;
    /// let (cpu, other) = (Numerics::default(), Numerics { block_rows: 64, recurrences: false, ..Numerics::default() });
    /// assert_eq!(cpu.common(&other), other);
    /// ```
    pub fn common(&self, other: &Self) -> Self {
        let (own, theirs) = (&self.epilogues, &other.epilogues);
        Self {
            block_rows: self.block_rows.max(other.block_rows),
            epilogues: Epilogues {
                bias: own.bias.filter(|_| own.bias == theirs.bias),
                relu: own.relu && theirs.relu,
                rounding: own.rounding && theirs.rounding,
            },
            product_before_bias: self.product_before_bias.wider(other.product_before_bias),
            input_gradient: self.input_gradient.wider(other.input_gradient),
            loss_with_gradient: self.loss_with_gradient.min(other.loss_with_gradient),
            recurrences: self.recurrences && other.recurrences,
            tf32: self.tf32 && other.tf32,
            in_place: InPlaceKernels {
                elementwise: self.in_place.elementwise && other.in_place.elementwise,
                read_first: self.in_place.read_first && other.in_place.read_first,
            },
        }
    }

    /// Whether the kernel of an op may write an output of one type over an input of another.
    pub fn may_overwrite(&self, op: &Op, output: &TensorType, input: &TensorType) -> bool {
        let class = op.properties().in_place;
        self.in_place.includes(class) && class.allows(output, input)
    }

    /// Whether an op may update its operands in place, a chunk of their elements at a time.
    pub fn may_run_in_chunks(&self, op: &Op) -> bool {
        self.in_place.elementwise && op.properties().in_place == InPlace::Elementwise
    }
}

impl InPlaceKernels {
    fn includes(self, class: InPlace) -> bool {
        match class {
            InPlace::Elementwise => self.elementwise,
            InPlace::ReadFirst => self.read_first,
            InPlace::Never => false,
        }
    }
}

impl JoinedLoss {
    /// Whether the loss of features of this type is one kernel with its gradients.
    pub fn includes(self, features: DType) -> bool {
        match self {
            Self::Never => false,
            Self::OfWide => !features.is_low(),
            Self::Always => true,
        }
    }
}

impl ProductType {
    fn wider(self, other: Self) -> Self {
        if self == Self::Wide { self } else { other }
    }

    /// The element type beside a product of operands of this one.
    pub fn of(self, operands: DType) -> DType {
        match self {
            Self::Wide => operands.wide(),
            Self::AsOperands => operands,
        }
    }
}

/// In words: what decides bits. Checkpoints store it, and a run resumes only with the same. Kernels that work in place, and
/// whether a loss and its gradients are one, are not part of it.
impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            block_rows,
            epilogues,
            product_before_bias,
            input_gradient,
            loss_with_gradient: _,
            recurrences,
            tf32,
            in_place: _,
        } = self;
        let Epilogues { bias, relu, rounding } = epilogues;
        let bias = bias.map(|ty| format!("{ty} bias"));
        let fused = [bias.as_deref(), relu.then_some("relu"), rounding.then_some("rounding")];
        let fused: Vec<&str> = fused.into_iter().flatten().collect();
        let fused = if fused.is_empty() { "nothing".to_string() } else { fused.join(", ") };
        write!(
            f,
            "blocks of {block_rows} rows, epilogues of {fused}, {product_before_bias} products before a bias, \
             {input_gradient} input gradients{}{}",
            if *recurrences { "" } else { ", unrolled recurrences" },
            if *tf32 { ", products in tf32" } else { "" }
        )
    }
}

impl fmt::Display for ProductType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wide => "wide",
            Self::AsOperands => "rounded",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Attention, Elementwise, MatMul, Unary};

    #[test]
    fn words_tell_apart_all_numerics_that_change_a_graph() {
        let (default, rounded) = (Numerics::default(), ProductType::AsOperands);
        let epilogues = |change: fn(&mut Epilogues)| {
            let mut numerics = default;
            change(&mut numerics.epilogues);
            numerics
        };
        let all = [
            default,
            Numerics { block_rows: 64, ..default },
            Numerics { product_before_bias: rounded, ..default },
            Numerics { input_gradient: ProductType::Wide, ..default },
            Numerics { recurrences: false, ..default },
            Numerics { tf32: true, ..default },
            epilogues(|e| e.bias = None),
            epilogues(|e| e.bias = Some(ProductType::AsOperands)),
            epilogues(|e| e.relu = false),
            epilogues(|e| e.rounding = false),
            epilogues(|e| *e = Epilogues { bias: None, relu: false, rounding: false }),
        ];
        let words: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), all.len(), "{words:#?}");
        // Checkpoints hold these words.
        assert_eq!(
            default.to_string(),
            "blocks of 32 rows, epilogues of wide bias, relu, rounding, wide products before a bias, \
             rounded input gradients"
        );
    }

    #[test]
    fn targets_have_in_common_what_both_do() {
        let cpu = Numerics::default();
        assert_eq!(cpu.common(&cpu), cpu);
        let tf32 = Numerics { tf32: true, ..cpu };
        assert_eq!([tf32.common(&tf32), tf32.common(&cpu)], [tf32, cpu]);
        let gpu = Numerics {
            block_rows: 8192,
            epilogues: Epilogues { bias: Some(ProductType::AsOperands), relu: false, rounding: true },
            input_gradient: ProductType::Wide,
            loss_with_gradient: JoinedLoss::Always,
            recurrences: false,
            in_place: InPlaceKernels { elementwise: true, read_first: false },
            ..cpu
        };
        let both = Numerics {
            block_rows: 8192,
            epilogues: Epilogues { bias: None, relu: false, rounding: true },
            input_gradient: ProductType::Wide,
            loss_with_gradient: JoinedLoss::OfWide,
            recurrences: false,
            in_place: InPlaceKernels { elementwise: true, read_first: false },
            ..cpu
        };
        assert_eq!([cpu.common(&gpu), gpu.common(&cpu)], [both, both]);
    }

    #[test]
    fn a_class_of_kernels_works_in_place_if_the_target_says_so() {
        let exp = Op::Elementwise(Elementwise::Unary(Unary::Exp));
        let rotary = Op::Attention(Attention::Rotary { base: 1.0, inverse: false, start: 0 });
        let product = Op::MatMul(MatMul::default());
        let ty: TensorType = "f32[2,2]".parse().unwrap();
        for (elementwise, read_first) in [(true, true), (true, false), (false, true), (false, false)] {
            let in_place = InPlaceKernels { elementwise, read_first };
            let numerics = Numerics { in_place, ..Numerics::default() };
            let found = [&exp, &rotary, &product].map(|op| numerics.may_overwrite(op, &ty, &ty));
            assert_eq!(found, [elementwise, read_first, false]);
            let chunks = [&exp, &rotary, &product].map(|op| numerics.may_run_in_chunks(op));
            assert_eq!(chunks, [elementwise, false, false]);
        }
        let other: TensorType = "bf16[2,2]".parse().unwrap();
        assert!(!Numerics::default().may_overwrite(&exp, &other, &ty));
    }
}
