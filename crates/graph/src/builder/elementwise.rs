//! Elementwise functions composed of ordinary ops.

use super::Builder;
use crate::op::{Binary, Unary};
use crate::{GraphError, ValueId};
use plimsoll_tensor::DType;

/// A method for each function of one element.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Functions of one element.
        impl Builder {
            $($(#[$doc])*
            pub fn $name(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
                self.unary(Unary::$op, x)
            })*
        }
    };
}

unary! {
    /// `-x`.
    neg => Neg;
    /// The magnitude.
    abs => Abs;
    /// `x · x`.
    square => Square;
    /// The square root.
    sqrt => Sqrt;
    /// `1 / √x`.
    rsqrt => Rsqrt;
    /// `eˣ`.
    exp => Exp;
    /// The natural logarithm.
    log => Log;
    /// The hyperbolic tangent.
    tanh => Tanh;
    /// `1 / (1 + exp(-x))`.
    sigmoid => Sigmoid;
    /// The error function.
    erf => Erf;
    /// `max(x, 0)`.
    relu => Relu;
    /// The sine.
    sin => Sin;
    /// The cosine.
    cos => Cos;
    /// `ln(1 + x)`, exact near zero.
    log1p => Log1p;
    /// `exp(x) - 1`, exact near zero.
    expm1 => Expm1;
    /// `ln(1 + exp(x))` without overflow.
    softplus => Softplus;
    /// The largest integer not above x.
    floor => Floor;
    /// The smallest integer not below x.
    ceil => Ceil;
    /// The nearest integer, halves to even.
    round => Round;
    /// -1, 0 or 1.
    sign => Sign;
}

/// Functions of two elements, and compositions of ordinary ops.
impl Builder {
    /// The larger of two, elementwise with broadcasting.
    pub fn maximum(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Max, a, b)
    }

    /// The smaller of two, elementwise with broadcasting.
    pub fn minimum(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Min, a, b)
    }

    /// `x` kept inside `low..=high`. At a bound half of the gradient flows, as for every tie of a maximum.
    pub fn clamp(&mut self, x: ValueId, low: f64, high: f64) -> Result<ValueId, GraphError> {
        let above = self.with_constant(Binary::Max, x, low)?;
        self.with_constant(Binary::Min, above, high)
    }

    /// `a + constant`.
    pub fn shift(&mut self, a: ValueId, constant: f64) -> Result<ValueId, GraphError> {
        self.with_constant(Binary::Add, a, constant)
    }

    /// `constant - a`.
    pub fn subtract_from(&mut self, constant: f64, a: ValueId) -> Result<ValueId, GraphError> {
        let constant = self.constant(constant, self.ty(a).dtype)?;
        self.sub(constant, a)
    }

    /// `a` to a constant power; small whole powers are products.
    pub fn power(&mut self, a: ValueId, exponent: f64) -> Result<ValueId, GraphError> {
        match exponent {
            1.0 => Ok(a),
            2.0 => self.square(a),
            0.5 => self.sqrt(a),
            -0.5 => self.rsqrt(a),
            3.0 => {
                let square = self.square(a)?;
                self.mul(square, a)
            }
            _ => self.with_constant(Binary::Pow, a, exponent),
        }
    }

    /// `a` to the power of `b`, elementwise with broadcasting; floats.
    pub fn pow(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Pow, a, b)
    }

    /// Whether `a > b`.
    pub fn greater(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Greater, a, b)
    }

    /// Whether `a >= b`.
    pub fn greater_equal(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::GreaterEqual, a, b)
    }

    /// Whether `a == b`.
    pub fn equal(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Equal, a, b)
    }

    /// Logical and of bools.
    pub fn and(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.require_bool("and", a)?;
        self.binary(Binary::Min, a, b)
    }

    /// Logical or of bools.
    pub fn or(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.require_bool("or", a)?;
        self.binary(Binary::Max, a, b)
    }

    /// Whether `a < b`.
    pub fn less(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Greater, b, a)
    }

    /// Whether `a <= b`.
    pub fn less_equal(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::GreaterEqual, b, a)
    }

    /// Logical not of a bool.
    pub fn not(&mut self, a: ValueId) -> Result<ValueId, GraphError> {
        let no = self.constant(0.0, DType::Bool)?;
        self.binary(Binary::Equal, a, no)
    }

    /// `exp(x) / Σ exp(x)` over the last axis.
    pub fn softmax(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        let logs = self.log_softmax(x)?;
        self.exp(logs)
    }

    /// The logarithm of [`Builder::softmax`].
    pub fn log_softmax(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        let last = self.shape(x).rank().saturating_sub(1);
        let lse = self.logsumexp(x, &[last], true)?;
        self.sub(x, lse)
    }
}
