//! Expressions with operators: values that are added, multiplied and passed on like numbers.

use super::Builder;
use crate::{GraphError, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Not, Range, Sub};

/// The graph that an expression adds to, and its first error.
struct Scope<'m> {
    builder: RefCell<&'m mut Builder>,
    error: RefCell<Option<GraphError>>,
}

impl Scope<'_> {
    /// Adds what `build` adds. After an error nothing is added any more, and `stand_in` is the result.
    fn build(
        &self,
        stand_in: ValueId,
        build: impl FnOnce(&mut Builder) -> Result<ValueId, GraphError>,
    ) -> ValueId {
        let mut error = self.error.borrow_mut();
        if error.is_some() {
            return stand_in;
        }
        build(&mut self.builder.borrow_mut()).unwrap_or_else(|found| {
            *error = Some(found);
            stand_in
        })
    }
}

/// A value inside [`Builder::math`]. It is `Copy`; `+ - * /` and unary minus work on values, with broadcasting, and on a
/// value and a number on either side. Methods are those of [`Builder`]; [`Value::then`] calls any other.
#[derive(Clone, Copy)]
pub struct Value<'m> {
    scope: &'m Scope<'m>,
    id: ValueId,
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.ty())
    }
}

impl Builder {
    /// An expression of these values. The first error inside it, which names layer and op, is returned; nothing is added
    /// after it.
    ///
    /// ```
    /// use plimsoll_graph::Builder;
    /// use plimsoll_tensor::{DType, TensorType};
    /// let mut b = Builder::new(4, 4);
    /// let x = b.batch_input("x", TensorType::new(DType::F32, [4, 3]));
    /// let frequency = b.setting("frequency", TensorType::new(DType::F32, [3]));
    /// let wave = b.math([x, frequency], |[x, f]| x * (x * f).cos())?;
    /// let share = b.math([wave], |[w]| w.exp() / (1.0 + w.exp().sum(&[1], true)))?;
    /// assert_eq!(b.ty(share).to_string(), "f32[4,3]");
    ///
    /// let error = b.math([x, frequency], |[x, f]| -x.matmul(f).relu() + 1.0).unwrap_err();
    /// assert!(error.to_string().starts_with("matmul(f32[4,3], f32[3])"));
    /// # Ok::<(), plimsoll_graph::GraphError>(())
    /// ```
    pub fn math<const N: usize>(
        &mut self,
        values: [ValueId; N],
        expression: impl for<'m> FnOnce([Value<'m>; N]) -> Value<'m>,
    ) -> Result<ValueId, GraphError> {
        let scope = Scope { builder: RefCell::new(self), error: RefCell::new(None) };
        let (scope, result) = {
            let shared = &scope;
            (shared, expression(values.map(|id| Value { scope: shared, id })).id)
        };
        scope.error.take().map_or(Ok(result), Err)
    }
}

/// What stands on the right of a two-sided method: a value, or a number of the left one's element type.
pub trait Operand<'m> {
    /// The value; a number becomes a constant.
    fn value(self, b: &mut Builder, dtype: DType) -> Result<ValueId, GraphError>;
}

impl<'m> Operand<'m> for Value<'m> {
    fn value(self, _: &mut Builder, _: DType) -> Result<ValueId, GraphError> {
        Ok(self.id)
    }
}

impl Operand<'_> for f64 {
    fn value(self, b: &mut Builder, dtype: DType) -> Result<ValueId, GraphError> {
        b.constant(self, dtype)
    }
}

impl<'m> Value<'m> {
    /// Its type.
    pub fn ty(self) -> TensorType {
        self.scope.builder.borrow().ty(self.id).clone()
    }

    /// Its shape.
    pub fn shape(self) -> Shape {
        self.ty().shape
    }

    /// The result of any of the builder's methods, for those that are not methods here.
    pub fn then(self, build: impl FnOnce(&mut Builder, ValueId) -> Result<ValueId, GraphError>) -> Self {
        let id = self.scope.build(self.id, |b| build(b, self.id));
        Self { id, ..self }
    }

    fn with(
        self,
        other: impl Operand<'m>,
        build: impl FnOnce(&mut Builder, ValueId, ValueId) -> Result<ValueId, GraphError>,
    ) -> Self {
        self.then(|b, x| {
            let other = other.value(b, b.ty(x).dtype)?;
            build(b, x, other)
        })
    }

    /// This value and others one after another along an axis.
    pub fn concat(self, others: &[Self], axis: usize) -> Self {
        let ids: Vec<ValueId> = std::iter::once(self.id).chain(others.iter().map(|other| other.id)).collect();
        self.then(|b, _| b.concat(&ids, axis))
    }

    /// A product and sum over named axes, like `bij,bjk->bik`.
    pub fn einsum(self, spec: &str, other: Self) -> Self {
        self.then(|b, x| b.einsum(spec, x, other.id))
    }

    /// `self` where the condition (bool) is true, else `other`.
    pub fn where_true(self, condition: Self, other: impl Operand<'m>) -> Self {
        self.with(other, |b, x, other| b.select(condition.id, x, other))
    }
}

/// Methods of [`Builder`] with the value in front.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        impl Value<'_> {
            $($(#[$doc])*
            pub fn $name(self $(, $argument: $type)*) -> Self {
                self.then(|b, x| b.$name(x $(, $argument)*))
            })*
        }
    };
}

methods! {
    /// The magnitude.
    abs();
    /// `x · x`.
    square();
    /// The square root.
    sqrt();
    /// `1 / √x`.
    rsqrt();
    /// `eˣ`.
    exp();
    /// The natural logarithm.
    log();
    /// The hyperbolic tangent.
    tanh();
    /// `1 / (1 + exp(-x))`.
    sigmoid();
    /// The error function.
    erf();
    /// `max(x, 0)`.
    relu();
    /// The sine.
    sin();
    /// The cosine.
    cos();
    /// `ln(1 + x)`, exact near zero.
    log1p();
    /// `exp(x) - 1`, exact near zero.
    expm1();
    /// `ln(1 + exp(x))` without overflow.
    softplus();
    /// The largest integer not above x.
    floor();
    /// The smallest integer not below x.
    ceil();
    /// The nearest integer, halves to even.
    round();
    /// -1, 0 or 1.
    sign();
    /// x to a constant power.
    power(exponent: f64);
    /// x kept inside `low..=high`.
    clamp(low: f64, high: f64);
    /// `exp(x) / Σ exp(x)` over the last axis.
    softmax();
    /// The logarithm of softmax.
    log_softmax();
    /// Sum over some axes.
    sum(axes: &[usize], keep: bool);
    /// Mean over some axes.
    mean(axes: &[usize], keep: bool);
    /// Product over some axes.
    product(axes: &[usize], keep: bool);
    /// The largest over some axes.
    max(axes: &[usize], keep: bool);
    /// The smallest over some axes.
    min(axes: &[usize], keep: bool);
    /// Mean squared distance from the mean over some axes.
    variance(axes: &[usize], keep: bool, unbiased: bool);
    /// `ln Σ exp(x)` over some axes, without overflow.
    logsumexp(axes: &[usize], keep: bool);
    /// Sums up to each element along an axis; with `reverse`, from each on.
    cumulative_sum(axis: usize, reverse: bool);
    /// The same elements under another shape.
    reshape(shape: impl Into<Shape>);
    /// Axis i of the result is axis `axes[i]`.
    transpose(axes: &[usize]);
    /// Repeats along axes of extent one and new leading axes.
    broadcast_to(shape: impl Into<Shape>);
    /// A range of an axis.
    slice(axis: usize, range: Range<usize>);
    /// An axis in reverse.
    flip(axis: usize);
    /// Another element type.
    cast(dtype: DType);
    /// One at each index, zero elsewhere.
    one_hot(classes: usize, dtype: DType);
    /// The value itself, through which no gradient flows.
    detach();
}

/// Methods of [`Builder`] with a value or a number as the second operand.
macro_rules! pairs {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl<'m> Value<'m> {
            $($(#[$doc])*
            pub fn $name(self, other: impl Operand<'m>) -> Self {
                self.with(other, Builder::$name)
            })*
        }
    };
}

pairs! {
    /// The larger of two.
    maximum;
    /// The smaller of two.
    minimum;
    /// `self` to the power of `other`.
    pow;
    /// Whether `self > other`.
    greater;
    /// Whether `self >= other`.
    greater_equal;
    /// Whether `self < other`.
    less;
    /// Whether `self <= other`.
    less_equal;
    /// Whether they are equal.
    equal;
    /// Logical and of bools.
    and;
    /// Logical or of bools.
    or;
    /// Matrix product.
    matmul;
    /// Of each row the elements at these indices.
    take;
    /// Of a table the rows at these indices.
    gather;
}

/// An operator between values, and between a value and a number on either side.
macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl<'m, O: Operand<'m>> $trait<O> for Value<'m> {
            type Output = Self;
            fn $method(self, other: O) -> Self {
                self.with(other, Builder::$method)
            }
        }

        impl<'m> $trait<Value<'m>> for f64 {
            type Output = Value<'m>;
            fn $method(self, other: Value<'m>) -> Value<'m> {
                other.with(self, |b, x, number| b.$method(number, x))
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl Neg for Value<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        self.then(Builder::neg)
    }
}

/// Logical not of a bool.
impl Not for Value<'_> {
    type Output = Self;
    fn not(self) -> Self {
        self.then(Builder::not)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(types: [&str; 2]) -> (Builder, [ValueId; 2]) {
        let mut b = Builder::new(2, 1);
        let values = types.map(|ty| b.batch_input(ty, ty.parse().unwrap()));
        (b, values)
    }

    #[test]
    fn an_expression_adds_the_nodes_of_its_methods() {
        let (mut b, [x, y]) = with(["f32[2,3]", "f32[2,3]"]);
        let found = b.math([x, y], |[x, y]| (1.0 - x) * y.exp() / 2.0 + -x).unwrap();
        let (mut by_hand, _) = with(["f32[2,3]", "f32[2,3]"]);
        let rest = by_hand.subtract_from(1.0, x).unwrap();
        let exp = by_hand.exp(y).unwrap();
        let product = by_hand.mul(rest, exp).unwrap();
        let two = by_hand.constant(2.0, DType::F32).unwrap();
        let half = by_hand.div(product, two).unwrap();
        let minus = by_hand.neg(x).unwrap();
        let wanted = by_hand.add(half, minus).unwrap();
        assert_eq!((b.graph().to_string(), found), (by_hand.graph().to_string(), wanted));
    }

    #[test]
    fn the_first_error_is_returned_and_nothing_is_added_after_it() {
        let (mut b, [x, y]) = with(["f32[2,3]", "f32[2,4]"]);
        let error = b.scope("block/wave", |b| b.math([x, y], |[x, y]| (x.cos() + y).sum(&[7], false) * x));
        assert_eq!(
            error.unwrap_err().to_string(),
            "layer `block/wave`: add(f32[2,3], f32[2,4]): [2,4] does not broadcast with [2,3]"
        );
        assert_eq!(b.graph().nodes.len(), 1, "the cosine alone");
        assert!(b.math([x], |[x]| x + 1.0).is_ok(), "a later expression starts anew");
    }

    #[test]
    fn numbers_have_the_type_of_the_value_beside_them() {
        let (mut b, [i, f]) = with(["i32[2]", "f64[2]"]);
        let i = b.math([i], |[i]| 2.0 * i + 1.0).unwrap();
        let f = b.math([f], |[f]| f.maximum(0.5) / f.less(1.0).cast(DType::F64)).unwrap();
        assert_eq!([i, f].map(|v| b.ty(v).to_string()), ["i32[2]", "f64[2]"]);
    }

    #[test]
    fn a_condition_chooses() {
        let (mut b, [x, y]) = with(["f32[2,3]", "f32[2,3]"]);
        let chosen = b.math([x, y], |[x, y]| x.where_true(!x.greater(0.0), y * 0.1)).unwrap();
        assert_eq!(b.ty(chosen).to_string(), "f32[2,3]");
        let joined = b.math([x, y], |[x, y]| x.concat(&[y, x], 1).einsum("bi,bi->b", x.concat(&[x, y], 1)));
        assert_eq!(b.ty(joined.unwrap()).to_string(), "f32[2]");
        let ops: Vec<&str> = b.graph().nodes.iter().map(|node| node.op.name()).collect();
        assert!(ops.starts_with(&[
            "constant", "greater", "constant", "equal", "constant", "mul", "select", "concat"
        ]));
        let error = b.math([x, y], |[x, y]| x.where_true(y, 0.0)).unwrap_err().to_string();
        assert!(error.contains("select(f32[2,3], f32[2,3], f32[]): the condition must be bool"), "{error}");
    }
}
