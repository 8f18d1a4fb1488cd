//! Scalar functions of every element, with broadcasting, alone or several in one pass.

use super::{Family, InPlace, OperandPrecision, PrecisionClass, Properties, Rematerialization, require};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, Shape, TensorType};
use serde::{Deserialize, Serialize};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is the function of its name")]
pub enum Unary {
    Neg,
    Abs,
    Square,
    Sqrt,
    /// 1 / sqrt(x).
    Rsqrt,
    Exp,
    /// Natural logarithm.
    Log,
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    Erf,
    /// max(x, 0); NaN stays NaN.
    Relu,
    Sin,
    Cos,
    /// ln(1 + x), exact near zero.
    Log1p,
    /// exp(x) - 1, exact near zero.
    Expm1,
    /// ln(1 + exp(x)) without overflow.
    Softplus,
    /// The largest integer not above.
    Floor,
    /// The smallest integer not below.
    Ceil,
    /// The nearest integer, halves to even.
    Round,
    /// -1, 0 or 1; NaN stays NaN.
    Sign,
}

impl Unary {
    /// Whether it is a step function: its derivative is zero or undefined.
    pub const fn is_step(self) -> bool {
        matches!(self, Self::Floor | Self::Ceil | Self::Round | Self::Sign)
    }
}

/// A function of two elements of the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is the function of its name")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The larger; NaN if either is.
    Max,
    /// The smaller; NaN if either is.
    Min,
    /// The first to the power of the second; floats only.
    Pow,
    /// Whether the first is greater; a bool.
    Greater,
    /// Whether the first is greater or they are equal; a bool.
    GreaterEqual,
    /// Whether they are equal; a bool.
    Equal,
}

impl Binary {
    /// Whether the result is a bool, whatever the operands are.
    pub const fn is_comparison(self) -> bool {
        matches!(self, Self::Greater | Self::GreaterEqual | Self::Equal)
    }
}

/// An elementwise op. Operands are broadcast against each other, aligned at the last axis. Of integers, a result that
/// does not fit its type is the nearest that does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Elementwise {
    /// A function of one element.
    Unary(Unary),
    /// A function of two elements.
    Binary(Binary),
    /// `select(condition, a, b)`: a where the condition is true, else b.
    Select,
    /// Conversion to another element type, rounding to nearest even; floats to integers truncate, and
    /// what does not fit is the nearest that does.
    Cast(DType),
    /// `constant()`: this scalar, rounded to the element type.
    Constant {
        /// The value.
        value: f64,
        /// The element type.
        dtype: DType,
    },
}

impl Elementwise {
    /// The element type of the result for operands of these types.
    pub fn result(&self, operands: &[DType]) -> Result<DType, TypeError> {
        let count =
            |n: usize| require(operands.len() == n, || format!("needs {n} inputs, has {}", operands.len()));
        match self {
            Self::Unary(_) => {
                count(1)?;
                require(operands[0].is_float(), || format!("needs a float, not {}", operands[0]))?;
                Ok(operands[0])
            }
            Self::Binary(op) => {
                count(2)?;
                require(operands[0] == operands[1], || {
                    "operands must have one element type: cast one".into()
                })?;
                // Of bools the smaller is `and`, the larger `or`.
                let takes_bool = matches!(op, Binary::Max | Binary::Min | Binary::Equal);
                require(operands[0] != DType::Bool || takes_bool, || "not defined for bool".into())?;
                require(*op != Binary::Pow || operands[0].is_float(), || {
                    format!("needs floats, not {}", operands[0])
                })?;
                Ok(if op.is_comparison() { DType::Bool } else { operands[0] })
            }
            Self::Select => {
                count(3)?;
                require(operands[0] == DType::Bool, || "the condition must be bool".into())?;
                require(operands[1] == operands[2], || "both choices must have one element type".into())?;
                Ok(operands[1])
            }
            Self::Cast(dtype) => count(1).map(|()| *dtype),
            Self::Constant { dtype, .. } => count(0).map(|()| *dtype),
        }
    }

    /// Rough floating-point operations per element, for cost estimates.
    fn cost(&self) -> u64 {
        match self {
            Self::Binary(Binary::Pow) => 64,
            Self::Unary(
                Unary::Exp
                | Unary::Log
                | Unary::Tanh
                | Unary::Sigmoid
                | Unary::Erf
                | Unary::Sin
                | Unary::Cos
                | Unary::Log1p
                | Unary::Expm1
                | Unary::Softplus,
            ) => 16,
            Self::Unary(Unary::Sqrt | Unary::Rsqrt) | Self::Binary(Binary::Div) => 4,
            Self::Constant { .. } => 0,
            Self::Unary(
                Unary::Neg
                | Unary::Abs
                | Unary::Square
                | Unary::Relu
                | Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Sign,
            )
            | Self::Binary(
                Binary::Add
                | Binary::Sub
                | Binary::Mul
                | Binary::Max
                | Binary::Min
                | Binary::Greater
                | Binary::GreaterEqual
                | Binary::Equal,
            )
            | Self::Select
            | Self::Cast(_) => 1,
        }
    }
}

impl Family for Elementwise {
    fn name(&self) -> &'static str {
        match self {
            Self::Unary(op) => match op {
                Unary::Neg => "neg",
                Unary::Abs => "abs",
                Unary::Square => "square",
                Unary::Sqrt => "sqrt",
                Unary::Rsqrt => "rsqrt",
                Unary::Exp => "exp",
                Unary::Log => "log",
                Unary::Tanh => "tanh",
                Unary::Sigmoid => "sigmoid",
                Unary::Erf => "erf",
                Unary::Relu => "relu",
                Unary::Sin => "sin",
                Unary::Cos => "cos",
                Unary::Log1p => "log1p",
                Unary::Expm1 => "expm1",
                Unary::Softplus => "softplus",
                Unary::Floor => "floor",
                Unary::Ceil => "ceil",
                Unary::Round => "round",
                Unary::Sign => "sign",
            },
            Self::Binary(op) => match op {
                Binary::Add => "add",
                Binary::Sub => "sub",
                Binary::Mul => "mul",
                Binary::Div => "div",
                Binary::Max => "max",
                Binary::Min => "min",
                Binary::Pow => "pow",
                Binary::Greater => "greater",
                Binary::GreaterEqual => "greater_equal",
                Binary::Equal => "equal",
            },
            Self::Select => "select",
            Self::Cast(_) => "cast",
            Self::Constant { .. } => "constant",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let dtype = self.result(&inputs.iter().map(|t| t.dtype).collect::<Vec<_>>())?;
        Ok(vec![TensorType::new(dtype, broadcast(inputs)?)])
    }

    fn flops(&self, _: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        self.cost() * outputs[0].shape.elements() as u64
    }

    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        elementwise_relation(batched, inputs, 1)
    }

    fn properties(&self) -> Properties {
        let exact = PrecisionClass { operands: OperandPrecision::AsStored, ..PrecisionClass::CHAIN };
        let (rematerialization, precision) = match self {
            // A chain is rounded before it, so that backward needs no more than relu's stored result.
            Self::Unary(Unary::Relu) => {
                (Rematerialization::Cheap, PrecisionClass { extends_chain: false, ..exact })
            }
            Self::Unary(Unary::Neg | Unary::Abs) => (Rematerialization::Cheap, exact),
            Self::Unary(
                Unary::Square
                | Unary::Sqrt
                | Unary::Rsqrt
                | Unary::Exp
                | Unary::Log
                | Unary::Tanh
                | Unary::Sigmoid
                | Unary::Erf
                | Unary::Sin
                | Unary::Cos
                | Unary::Log1p
                | Unary::Expm1
                | Unary::Softplus
                | Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Sign,
            )
            | Self::Binary(Binary::Div)
            | Self::Select
            | Self::Cast(_)
            | Self::Constant { .. } => (Rematerialization::Cheap, PrecisionClass::CHAIN),
            Self::Binary(
                Binary::Add
                | Binary::Sub
                | Binary::Mul
                | Binary::Max
                | Binary::Min
                | Binary::Pow
                | Binary::Greater
                | Binary::GreaterEqual
                | Binary::Equal,
            ) => (Rematerialization::Trivial, PrecisionClass::CHAIN),
        };
        Properties { rematerialization, precision, in_place: InPlace::Elementwise, ..Properties::GENERAL }
    }
}

/// Where an instruction's operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// The region's input, broadcast to the region's shape.
    Input(usize),
    /// The result of an earlier instruction.
    Result(usize),
}

/// One elementwise op inside a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// The function.
    pub op: Elementwise,
    /// Its operands.
    pub operands: Vec<Operand>,
    /// The element type that the result is rounded to.
    pub dtype: DType,
}

/// Elementwise ops over one shape in one pass: the common broadcast shape of the inputs. Every instruction rounds to
/// its element type, so a region has the bits of its ops run one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// The instructions, each after its operands.
    pub instructions: Vec<Instruction>,
    /// Which instructions' results are written, one output each.
    pub outputs: Vec<usize>,
}

impl Family for Region {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let shape = broadcast(inputs)?;
        let mut dtypes: Vec<DType> = Vec::with_capacity(self.instructions.len());
        for (i, instruction) in self.instructions.iter().enumerate() {
            let operands = instruction.operands.iter().map(|operand| match *operand {
                Operand::Input(k) => inputs.get(k).map(|t| t.dtype),
                Operand::Result(k) => dtypes.get(k).copied(),
            });
            let operands = operands.collect::<Option<Vec<_>>>();
            let operands = operands
                .ok_or_else(|| TypeError(format!("instruction {i} reads an operand that does not exist")))?;
            require(instruction.op.result(&operands)? == instruction.dtype, || {
                format!("instruction {i} does not give {}", instruction.dtype)
            })?;
            dtypes.push(instruction.dtype);
        }
        let output = |&i: &usize| dtypes.get(i).map(|&dtype| TensorType::new(dtype, shape.clone()));
        let outputs = self.outputs.iter().map(output).collect::<Option<Vec<_>>>();
        outputs.ok_or_else(|| TypeError("an output names no instruction".into()))
    }

    fn flops(&self, _: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let per_element: u64 = self.instructions.iter().map(|i| i.op.cost()).sum();
        per_element * outputs.first().map_or(0, |t| t.shape.elements() as u64)
    }

    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        elementwise_relation(batched, inputs, self.outputs.len())
    }

    fn properties(&self) -> Properties {
        Properties { in_place: InPlace::Elementwise, ..Properties::GENERAL }
    }
}

fn broadcast(inputs: &[&TensorType]) -> Result<Shape, TypeError> {
    inputs.iter().try_fold(Shape::scalar(), |shape, t| {
        let reason = || TypeError(format!("{} does not broadcast with {shape}", t.shape));
        shape.broadcast(&t.shape).ok_or_else(reason)
    })
}

/// Per-example if every batched operand has the result's rank; else broadcasting aligns the batch axis with another.
fn elementwise_relation(batched: &[bool], inputs: &[&TensorType], outputs: usize) -> Vec<BatchRelation> {
    let rank = inputs.iter().map(|t| t.shape.rank()).max().unwrap_or(0);
    let aligned = batched.iter().zip(inputs).all(|(&b, t)| !b || t.shape.rank() == rank);
    vec![if aligned { BatchRelation::PerExample } else { BatchRelation::Mixed }; outputs]
}
