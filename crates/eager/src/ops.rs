//! Methods and operators: those of the graph builder.

use crate::call::{Operand, Outputs, Text, Words, call, call_op, call_source};
use crate::context::Eager;
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::tensor::{IntoOperand, Tensor, Value};
use plimsoll_graph::op::{Distribution, Elementwise, Geometry, Index, Loss, Random, ResizeMode, Windows};
use plimsoll_graph::{Builder, GraphError, Op, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::ops::{Add, Bound, Div, Mul, Neg, Not, RangeBounds, Sub};
use std::panic::Location;

/// Runs a method of the builder with one result.
fn method<const N: usize>(
    name: &'static str,
    mut operands: Result<[Operand<'_>; N]>,
    words: impl Fn(&mut Vec<u64>),
    build: impl Fn(&mut Builder, [ValueId; N]) -> Result<ValueId, GraphError>,
    site: Site,
) -> Value {
    let build = |b: &mut Builder, values: &[ValueId]| match values.try_into() {
        Ok(values) => build(b, values).map(|value| vec![value]),
        Err(_) => Ok(Vec::new()),
    };
    Value(match operands {
        Ok(ref mut operands) => call(name, operands, &words, &build, site).and_then(Outputs::one),
        Err(error) => Err(error),
    })
}

#[inline]
fn one<'a>(x: impl IntoOperand + 'a) -> Result<[Operand<'a>; 1]> {
    Ok([x.operand()?])
}

#[inline]
fn two<'a>(x: impl IntoOperand + 'a, y: impl IntoOperand + 'a) -> Result<[Operand<'a>; 2]> {
    Ok([x.operand()?, y.operand()?])
}

#[inline]
fn three<'a>(
    x: impl IntoOperand + 'a,
    y: impl IntoOperand + 'a,
    z: impl IntoOperand + 'a,
) -> Result<[Operand<'a>; 3]> {
    Ok([x.operand()?, y.operand()?, z.operand()?])
}

/// Methods of one tensor.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&self $(, $argument: $type)*) -> Value {
                of::$name(self $(, $argument)*, Location::caller())
            })*
        }

        /// Methods of a tensor that is not used again: it may be written over.
        impl Value {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(self $(, $argument: $type)*) -> Self {
                of::$name(self $(, $argument)*, Location::caller())
            })*
        }

        /// The same of both.
        mod of {
            use super::*;

            $(pub(super) fn $name(x: impl IntoOperand $(, $argument: $type)*, site: Site) -> Value {
                let words = |_key: &mut Vec<u64>| { $($argument.push(_key);)* };
                let build = |b: &mut Builder, [x]: [ValueId; 1]| b.$name(x $(, $argument)*);
                method(stringify!($name), one(x), words, build, site)
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
    /// Sum over some axes; with `keep`, they stay with an extent of one.
    sum(axes: &[usize], keep: bool);
    /// Mean over some axes.
    mean(axes: &[usize], keep: bool);
    /// Product over some axes.
    product(axes: &[usize], keep: bool);
    /// The largest over some axes.
    max(axes: &[usize], keep: bool);
    /// The smallest over some axes.
    min(axes: &[usize], keep: bool);
    /// Whether any is true over some axes of a bool.
    any(axes: &[usize], keep: bool);
    /// Whether all are true over some axes of a bool.
    all(axes: &[usize], keep: bool);
    /// Mean squared distance from the mean over some axes; `unbiased` divides by one less than the count.
    variance(axes: &[usize], keep: bool, unbiased: bool);
    /// `ln Σ exp(x)` over some axes, without overflow.
    logsumexp(axes: &[usize], keep: bool);
    /// Index of the first largest element along an axis, which is dropped.
    argmax(axis: usize);
    /// Index of the first smallest element along an axis, which is dropped.
    argmin(axis: usize);
    /// Sums up to each element along an axis; with `reverse`, from each on.
    cumulative_sum(axis: usize, reverse: bool);
    /// Axis i of the result is axis `axes[i]`.
    transpose(axes: &[usize]);
    /// An axis in reverse.
    flip(axis: usize);
    /// Repeats the whole tensor so many times along every axis.
    tile(times: &[usize]);
    /// Another element type.
    cast(dtype: DType);
    /// One at each index, zero elsewhere.
    one_hot(classes: usize, dtype: DType);
    /// The tensor itself, through which no gradient flows.
    detach();
}

/// Methods of two operands, of which either may be a number.
macro_rules! pairs {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&self, other: impl IntoOperand) -> Value {
                pair(stringify!($name), self, other, Builder::$name, Location::caller())
            })*
        }

        impl Value {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(self, other: impl IntoOperand) -> Self {
                pair(stringify!($name), self, other, Builder::$name, Location::caller())
            })*
        }
    };
}

fn pair(
    name: &'static str,
    left: impl IntoOperand,
    right: impl IntoOperand,
    build: impl Fn(&mut Builder, ValueId, ValueId) -> Result<ValueId, GraphError>,
    site: Site,
) -> Value {
    method(name, two(left, right), |_| {}, |b, [x, y]| build(b, x, y), site)
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

/// Methods with arguments that a key takes as text, or that are converted first.
macro_rules! more {
    ($($(#[$doc:meta])* fn $name:ident($self:ident, $($argument:ident: $type:ty),*) $body:block)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&self, $($argument: $type),*) -> Value {
                Value::from(self).$name($($argument),*)
            })*
        }

        impl Value {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name($self, $($argument: $type),*) -> Self $body)*
        }
    };
}

more! {
    /// The same elements under another shape; they are not copied.
    fn reshape(self, shape: impl Into<Shape>) {
        let shape = shape.into();
        let words = |key: &mut Vec<u64>| shape.push(key);
        method("reshape", one(self), words, |b, [x]| b.reshape(x, shape.clone()), Location::caller())
    }

    /// Repeats along axes of extent one and new leading axes.
    fn broadcast_to(self, shape: impl Into<Shape>) {
        let shape = shape.into();
        let words = |key: &mut Vec<u64>| shape.push(key);
        method("broadcast_to", one(self), words, |b, [x]| b.broadcast_to(x, shape.clone()), Location::caller())
    }

    /// A range of an axis, like `x.slice(0, 2..)`.
    fn slice(self, axis: usize, range: impl RangeBounds<usize>) {
        let extent = self.0.as_ref().ok().and_then(|x| x.shape().get(axis).copied()).unwrap_or(0);
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => extent,
        };
        let words = |key: &mut Vec<u64>| key.extend([axis as u64, start as u64, end as u64]);
        method("slice", one(self), words, |b, [x]| b.slice(x, axis, start..end), Location::caller())
    }

    /// The tensor inside a larger one that is filled with a value: so many elements before and behind along every axis.
    fn pad(self, around: &[[usize; 2]], value: f64) {
        let words = |key: &mut Vec<u64>| {
            around.as_flattened().push(key);
            value.push(key);
        };
        method("pad", one(self), words, |b, [x]| b.pad(x, around, value), Location::caller())
    }

    /// A product and sum over named axes, like `bij,bjk->bik`.
    fn einsum(self, spec: &str, other: impl IntoOperand) {
        let words = |key: &mut Vec<u64>| spec.push(key);
        let operands = two(self, other);
        method("einsum", operands, words, |b, [x, y]| b.einsum(spec, x, y), Location::caller())
    }

    /// `self` where the condition (bool) is true, else `other`.
    fn where_true(self, condition: impl IntoOperand, other: impl IntoOperand) {
        let operands = three(self, condition, other);
        method("where_true", operands, |_| {}, |b, [x, c, y]| b.select(c, x, y), Location::caller())
    }

    /// Convolution of images `[examples, height, width, channels]` with a kernel
    /// `[height, width, channels in / groups, channels out]`.
    fn conv2d(self, kernel: impl IntoOperand, geometry: Geometry, groups: usize) {
        let words = |key: &mut Vec<u64>| Text(&(geometry, groups)).push(key);
        let operands = two(self, kernel);
        method("conv2d", operands, words, |b, [x, k]| b.conv2d(x, k, geometry, groups), Location::caller())
    }

    /// The largest element of each window of images.
    fn max_pool(self, windows: Windows) {
        let words = |key: &mut Vec<u64>| Text(&windows).push(key);
        method("max_pool", one(self), words, |b, [x]| b.max_pool(x, windows), Location::caller())
    }

    /// The mean of each window of images; with `count_padding`, padding counts as zeros.
    fn average_pool(self, windows: Windows, count_padding: bool) {
        let words = |key: &mut Vec<u64>| Text(&(windows, count_padding)).push(key);
        let build = |b: &mut Builder, [x]: [ValueId; 1]| b.average_pool(x, windows, count_padding);
        method("average_pool", one(self), words, build, Location::caller())
    }

    /// Images with another height and width.
    fn resize(self, mode: ResizeMode, output: [usize; 2]) {
        let words = |key: &mut Vec<u64>| Text(&(mode, output)).push(key);
        method("resize", one(self), words, |b, [x]| b.resize(x, mode, output), Location::caller())
    }

    /// Scaled dot-product attention of queries `[examples, queries, heads, width]` to keys and values
    /// `[examples, keys, key heads, width]`.
    fn attention(self, keys: impl IntoOperand, values: impl IntoOperand, causal: bool) {
        let operands = three(self, keys, values);
        let build = |b: &mut Builder, qkv: [ValueId; 3]| b.attention(qkv, None, causal);
        method("attention", operands, |key| causal.push(key), build, Location::caller())
    }

    /// `Σ weight · cross entropy` of rows of scores `[rows, classes]`, with an i32 class and a weight for each row. The
    /// weights of a mean are `1 / rows`.
    fn cross_entropy(self, labels: impl IntoOperand, weights: impl IntoOperand) {
        let operands = three(self, labels, weights);
        let build = |b: &mut Builder, inputs: [ValueId; 3]| b.one(Op::Loss(Loss::CrossEntropy), &inputs);
        method("cross_entropy", operands, |_| {}, build, Location::caller())
    }
}

impl Tensor {
    /// The k largest elements along an axis, largest first, and their indices.
    #[track_caller]
    pub fn top_k(&self, k: usize, axis: usize) -> Result<(Self, Self)> {
        let words = |key: &mut Vec<u64>| key.extend([k as u64, axis as u64]);
        let build = |b: &mut Builder, x: &[ValueId]| b.top_k(x[0], k, axis).map(|(y, i)| vec![y, i]);
        let found = call("top_k", &mut [Operand::from(self)], &words, &build, Location::caller())?;
        match <[Self; 2]>::try_from(found.into_vec()) {
            Ok([values, indices]) => Ok((values, indices)),
            Err(_) => Err(Error::Argument("top_k has two results".into())),
        }
    }

    /// Pieces of these extents along an axis.
    #[track_caller]
    pub fn split(&self, axis: usize, extents: &[usize]) -> Result<Vec<Self>> {
        let words = |key: &mut Vec<u64>| {
            axis.push(key);
            extents.push(key);
        };
        let build = |b: &mut Builder, x: &[ValueId]| b.split(x[0], axis, extents);
        let operands = &mut [Operand::from(self)];
        call("split", operands, &words, &build, Location::caller()).map(Outputs::into_vec)
    }

    /// Random numbers from this tensor as the key, i64 `[seed, step]`: for each of `shape[0]` examples, a function of
    /// key, stream, the example's number and the element alone.
    #[track_caller]
    pub fn draw(&self, distribution: Distribution, stream: &str, shape: impl Into<Shape>) -> Value {
        let shape = shape.into();
        let Some((&examples, rest)) = shape.split_first() else {
            return Value(Err(Error::Argument("random numbers need an axis of examples".into())));
        };
        let op = Op::Random(Random { distribution, stream: stream.into(), shape: rest.into() });
        let build = |b: &mut Builder, [key]: [ValueId; 1]| {
            let numbers = b.range(examples)?;
            b.one(op.clone(), &[key, numbers])
        };
        let words = |key: &mut Vec<u64>| Text(&(&op, examples)).push(key);
        method("draw", one(self), words, build, Location::caller())
    }
}

/// Tensors one after another along an axis.
#[track_caller]
pub fn concat(tensors: &[&Tensor], axis: usize) -> Value {
    many("concat", tensors, axis, |b, values| b.concat(values, axis), Location::caller())
}

/// Tensors of one shape along a new axis.
#[track_caller]
pub fn stack(tensors: &[&Tensor], axis: usize) -> Value {
    many("stack", tensors, axis, |b, values| b.stack(values, axis), Location::caller())
}

fn many(
    name: &'static str,
    tensors: &[&Tensor],
    axis: usize,
    build: impl Fn(&mut Builder, &[ValueId]) -> Result<ValueId, GraphError>,
    site: Site,
) -> Value {
    let mut operands: Vec<Operand<'_>> = tensors.iter().map(|&tensor| Operand::from(tensor)).collect();
    let build = |b: &mut Builder, values: &[ValueId]| build(b, values).map(|value| vec![value]);
    Value(call(name, &mut operands, &|key| axis.push(key), &build, site).and_then(Outputs::one))
}

/// Any op of graphs, with all of its results.
#[track_caller]
pub fn op(op: &Op, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    call_op(op, inputs.iter().map(|&tensor| tensor.clone()).collect(), Location::caller())
}

/// Tensors made of nothing.
impl Eager {
    /// An op of graphs without operands.
    #[track_caller]
    pub fn source(&self, op: &Op) -> Result<Vec<Tensor>> {
        call_source(&self.0, op, Location::caller())
    }

    /// 0, 1, 2, … as i32.
    #[track_caller]
    pub fn range(&self, extent: usize) -> Value {
        let found = call_source(&self.0, &Op::Index(Index::Range { extent }), Location::caller());
        Value(found.map(Outputs::Many).and_then(Outputs::one))
    }

    /// A tensor of one number.
    #[track_caller]
    pub fn full(&self, ty: &TensorType, value: f64) -> Value {
        let constant = Op::Elementwise(Elementwise::Constant { value, dtype: ty.dtype });
        let found = call_source(&self.0, &constant, Location::caller());
        Value(found.map(Outputs::Many).and_then(Outputs::one)).broadcast_to(ty.shape.clone())
    }

    /// The key of random numbers: see [`Tensor::draw`].
    #[track_caller]
    pub fn key(&self, seed: u64, step: u64) -> Result<Tensor> {
        self.tensor(vec![seed as i64, step as i64])
    }
}

/// An operator between tensors, values, results and numbers.
macro_rules! operator {
    ($trait:ident, $method:ident) => {
        operator!($trait, $method, impl<R: IntoOperand> Tensor, R);
        operator!($trait, $method, impl<R: IntoOperand> &Tensor, R);
        operator!($trait, $method, impl<R: IntoOperand> Value, R);
        operator!($trait, $method, impl<> f64, Tensor);
        operator!($trait, $method, impl<> f64, &Tensor);
        operator!($trait, $method, impl<> f64, Value);
        operator!($trait, $method, impl<> Result<Tensor>, Tensor);
        operator!($trait, $method, impl<> Result<Tensor>, &Tensor);
        operator!($trait, $method, impl<> Result<Tensor>, Value);
    };
    ($trait:ident, $method:ident, impl<$($r:ident: $bound:ident)?> $left:ty, $right:ty) => {
        impl<$($r: $bound)?> $trait<$right> for $left {
            type Output = Value;
            #[track_caller]
            fn $method(self, other: $right) -> Value {
                pair(stringify!($method), self, other, Builder::$method, Location::caller())
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

/// An operator of one tensor or value.
macro_rules! prefix {
    ($trait:ident, $method:ident, $($type:ty),*) => {
        $(impl $trait for $type {
            type Output = Value;
            #[track_caller]
            fn $method(self) -> Value {
                let build = |b: &mut Builder, [x]: [ValueId; 1]| b.$method(x);
                method(stringify!($method), one(self), |_| {}, build, Location::caller())
            }
        })*
    };
}

prefix!(Neg, neg, Tensor, &Tensor, Value);
prefix!(Not, not, Tensor, &Tensor, Value);
