//! Elementwise functions composed of ordinary ops.

use super::Builder;
use crate::op::{Binary, Unary};
use crate::{GraphError, ValueId};
use plimsoll_tensor::DType;

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
            2.0 => self.unary(Unary::Square, a),
            0.5 => self.unary(Unary::Sqrt, a),
            -0.5 => self.unary(Unary::Rsqrt, a),
            3.0 => {
                let square = self.unary(Unary::Square, a)?;
                self.mul(square, a)
            }
            _ => self.with_constant(Binary::Pow, a, exponent),
        }
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

    /// max(x, 0).
    pub fn relu(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.unary(Unary::Relu, x)
    }

    /// 1 / (1 + exp(-x)).
    pub fn sigmoid(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.unary(Unary::Sigmoid, x)
    }

    /// The hyperbolic tangent.
    pub fn tanh(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.unary(Unary::Tanh, x)
    }

    /// `exp(x) / Σ exp(x)` over the last axis.
    pub fn softmax(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        let logs = self.log_softmax(x)?;
        self.unary(Unary::Exp, logs)
    }

    /// The logarithm of [`Builder::softmax`].
    pub fn log_softmax(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        let last = self.shape(x).rank().saturating_sub(1);
        let lse = self.logsumexp(x, &[last], true)?;
        self.sub(x, lse)
    }
}
