//! Reductions over any axes, neighbouring or not.

use super::Builder;
use crate::op::{Binary, Movement, Norm, Reduce};
use crate::{BatchRelation, GraphError, Op, TypeError, ValueId};
use plimsoll_tensor::DType;
use std::ops::Range;

/// Helpers over axes in any order; without axes a value stays as it is. With `keep`, reduced axes keep an extent of one,
/// else they are dropped.
impl Builder {
    /// Sum over some axes.
    pub fn sum(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.over("sum", x, axes, keep, |start, end| Reduce::Sum { start, end })
    }

    /// Sum of squares over some axes, the batch axis not among them.
    pub fn square_sum(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        let runs = self.runs("square_sum", x, axes)?;
        match runs[..] {
            [Range { start, end }] => {
                let sum = self.one(Op::Reduce(Reduce::SquareSum { start, end }), &[x])?;
                self.without(sum, axes, keep)
            }
            _ => {
                let squares = self.square(x)?;
                self.sum(squares, axes, keep)
            }
        }
    }

    /// Product over some axes.
    pub fn product(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.over("product", x, axes, keep, |start, end| Reduce::Product { start, end })
    }

    /// The largest over some axes; NaN if there is one.
    pub fn max(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.over("max", x, axes, keep, |start, end| Reduce::Max { start, end })
    }

    /// The smallest over some axes; NaN if there is one.
    pub fn min(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.over("min", x, axes, keep, |start, end| Reduce::Min { start, end })
    }

    /// Logical or over some axes of a bool.
    pub fn any(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.require_bool("any", x)?;
        self.over("any", x, axes, keep, |start, end| Reduce::Max { start, end })
    }

    /// Logical and over some axes of a bool.
    pub fn all(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.require_bool("all", x)?;
        self.over("all", x, axes, keep, |start, end| Reduce::Min { start, end })
    }

    /// Mean over some axes; NaN of nothing. Over the batch axis it is that of the whole batch, however it is split.
    pub fn mean(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        let runs = self.runs("mean", x, axes)?;
        let over_batch = runs.first().is_some_and(|run| run.start == 0)
            && self.batch_mark(x).relation == BatchRelation::PerExample;
        if !over_batch {
            let count = self.count(x, axes);
            let sum = self.sum(x, axes, keep)?;
            return self.with_constant(Binary::Div, sum, count);
        }
        let inside: Vec<usize> = axes.iter().copied().filter(|&axis| axis > 0).collect();
        let rows = self.mean(x, &inside, true)?;
        // A graph sees one micro-batch, so only a sum over the batch can count its rows. (A row with a NaN is not counted,
        // but then the mean is NaN.)
        let there = self.binary(Binary::Equal, rows, rows)?;
        let ones = self.cast(there, self.ty(x).dtype)?;
        let (sum, count) = (self.sum(rows, &[0], true)?, self.sum(ones, &[0], true)?);
        let mean = self.div(sum, count)?;
        self.without(mean, axes, keep)
    }

    /// Mean squared distance from the mean over some axes; `unbiased` divides by one less than the count.
    pub fn variance(
        &mut self,
        x: ValueId,
        axes: &[usize],
        keep: bool,
        unbiased: bool,
    ) -> Result<ValueId, GraphError> {
        let mean = self.mean(x, axes, true)?;
        let centred = self.sub(x, mean)?;
        let squares = self.square(centred)?;
        let sum = self.sum(squares, axes, keep)?;
        let count = self.count(x, axes) - if unbiased { 1.0 } else { 0.0 };
        self.with_constant(Binary::Div, sum, count.max(0.0))
    }

    /// `ln Σ exp(x)` over some axes, without overflow.
    pub fn logsumexp(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        self.runs("logsumexp", x, axes)?;
        if axes.is_empty() {
            return Ok(x);
        }
        let shape = self.shape(x).clone();
        let kept: Vec<usize> = (0..shape.rank()).filter(|axis| !axes.contains(axis)).collect();
        let reduced = (0..shape.rank()).filter(|axis| axes.contains(axis));
        let last = self.permuted(x, kept.iter().copied().chain(reduced).collect())?;
        let rows: Vec<usize> = kept.iter().map(|&axis| shape[axis]).collect();
        let width = axes.iter().map(|&axis| shape[axis]).product();
        let flat = self.reshape(last, [&rows[..], &[width]].concat())?;
        let y = self.one(Op::Norm(Norm::LogSumExp), &[flat])?;
        if !keep {
            return self.reshape(y, rows);
        }
        let extent = |axis: usize| if axes.contains(&axis) { 1 } else { shape[axis] };
        self.reshape(y, (0..shape.rank()).map(extent).collect::<Vec<_>>())
    }

    /// Index of the first largest element along an axis, which is dropped; NaN counts as largest.
    pub fn argmax(&mut self, x: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        let x = self.with_last("argmax", x, axis)?;
        self.one(Op::Reduce(Reduce::Argmax), &[x])
    }

    /// Index of the first smallest element along an axis, which is dropped; NaN counts as smallest.
    pub fn argmin(&mut self, x: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        let x = self.with_last("argmin", x, axis)?;
        self.one(Op::Reduce(Reduce::Argmin), &[x])
    }

    /// Sums of the elements up to each along an axis, itself included; with `reverse`, from each on.
    pub fn cumulative_sum(&mut self, x: ValueId, axis: usize, reverse: bool) -> Result<ValueId, GraphError> {
        self.one(Op::Reduce(Reduce::CumulativeSum { axis, reverse }), &[x])
    }

    /// The k largest elements along an axis, largest first, and their indices.
    pub fn top_k(&mut self, x: ValueId, k: usize, axis: usize) -> Result<(ValueId, ValueId), GraphError> {
        let last = self.with_last("top_k", x, axis)?;
        let outputs = self.node(Op::Reduce(Reduce::TopK { k }), &[last])?;
        // The last axis moves back to where it was.
        let rank = self.shape(x).rank();
        let back = |a: usize| {
            if a < axis {
                a
            } else if a == axis {
                rank - 1
            } else {
                a - 1
            }
        };
        let back: Vec<usize> = (0..rank).map(back).collect();
        Ok((self.permuted(outputs[0], back.clone())?, self.permuted(outputs[1], back)?))
    }

    /// The value with its axes in another order.
    pub(super) fn permuted(&mut self, x: ValueId, axes: Vec<usize>) -> Result<ValueId, GraphError> {
        if axes.is_sorted() { Ok(x) } else { self.one(Op::Movement(Movement::Transpose(axes)), &[x]) }
    }

    /// An error of an op of this name on these values, in the current layer.
    pub fn refuse(&self, op: &'static str, inputs: &[ValueId], reason: String) -> GraphError {
        GraphError::Type {
            layer: self.layer.to_string(),
            op,
            inputs: inputs.iter().map(|&v| self.ty(v).clone()).collect(),
            reason: TypeError(reason),
        }
    }

    /// Reduces run after run of neighbouring axes, the last first: axes inside an example before the batch axis.
    fn over(
        &mut self,
        op: &'static str,
        x: ValueId,
        axes: &[usize],
        keep: bool,
        reduce: impl Fn(usize, usize) -> Reduce,
    ) -> Result<ValueId, GraphError> {
        let mut value = x;
        for run in self.runs(op, x, axes)?.into_iter().rev() {
            value = self.one(Op::Reduce(reduce(run.start, run.end)), &[value])?;
        }
        self.without(value, axes, keep)
    }

    /// The value without these axes of extent one, unless they are kept.
    fn without(&mut self, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, GraphError> {
        if keep {
            return Ok(x);
        }
        let extents = self.shape(x).iter().enumerate();
        let left: Vec<usize> = extents.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &n)| n).collect();
        self.reshape(x, left)
    }

    /// The runs of neighbouring axes, in order; every axis must be there, and only once.
    fn runs(&self, op: &'static str, x: ValueId, axes: &[usize]) -> Result<Vec<Range<usize>>, GraphError> {
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        let mut runs: Vec<Range<usize>> = Vec::new();
        for axis in sorted {
            if axis >= self.shape(x).rank() {
                return Err(self.refuse(op, &[x], format!("{} has no axis {axis}", self.ty(x))));
            }
            match runs.last_mut() {
                Some(run) if axis < run.end => {
                    return Err(self.refuse(op, &[x], format!("axis {axis} is named twice")));
                }
                Some(run) if axis == run.end => run.end += 1,
                _ => runs.push(axis..axis + 1),
            }
        }
        Ok(runs)
    }

    fn count(&self, x: ValueId, axes: &[usize]) -> f64 {
        axes.iter().map(|&axis| self.shape(x)[axis]).product::<usize>() as f64
    }

    /// The value with an axis moved to the end.
    fn with_last(&mut self, op: &'static str, x: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        self.runs(op, x, &[axis])?;
        let others = (0..self.shape(x).rank()).filter(|&a| a != axis);
        self.permuted(x, others.chain([axis]).collect())
    }

    pub(super) fn require_bool(&self, op: &'static str, x: ValueId) -> Result<(), GraphError> {
        let is_bool = self.ty(x).dtype == DType::Bool;
        if is_bool { Ok(()) } else { Err(self.refuse(op, &[x], "needs a bool".into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tensor::TensorType;

    fn with(ty: &str) -> (Builder, ValueId) {
        let mut b = Builder::new(2, 1);
        let x = b.batch_input("x", ty.parse::<TensorType>().unwrap());
        (b, x)
    }

    fn ops(b: &Builder) -> Vec<&'static str> {
        b.graph().nodes.iter().map(|n| n.op.name()).collect()
    }

    #[test]
    fn axes_are_checked_and_named() {
        let (mut b, x) = with("f32[2,3,4]");
        let error = b.scope("head", |b| b.mean(x, &[1, 3], true)).unwrap_err().to_string();
        assert_eq!(error, "layer `head`: mean(f32[2,3,4]): f32[2,3,4] has no axis 3");
        let error = b.sum(x, &[2, 2], true).unwrap_err().to_string();
        assert!(error.contains("axis 2 is named twice"), "{error}");
        assert!(b.any(x, &[1], true).unwrap_err().to_string().contains("needs a bool"));
        assert!(b.argmin(x, 3).unwrap_err().to_string().contains("has no axis 3"));
        assert!(b.top_k(x, 5, 2).unwrap_err().to_string().contains("at least 5"));
        let (mut b, x) = with("f32[2,0]");
        assert!(b.max(x, &[1], true).unwrap_err().to_string().contains("nothing to choose from"));
    }

    #[test]
    fn axes_stay_or_go() {
        let (mut b, x) = with("f32[2,3,4,5]");
        let check = |b: &Builder, v, shape: &[usize]| assert_eq!(b.shape(v)[..], *shape);
        let y = b.sum(x, &[3, 1], true).unwrap();
        check(&b, y, &[2, 1, 4, 1]);
        let y = b.product(x, &[1, 2], false).unwrap();
        check(&b, y, &[2, 5]);
        let y = b.variance(x, &[2], false, true).unwrap();
        check(&b, y, &[2, 3, 5]);
        for (keep, shape) in [(true, &[2, 1, 4, 1][..]), (false, &[2, 4])] {
            let y = b.logsumexp(x, &[1, 3], keep).unwrap();
            check(&b, y, shape);
        }
        let y = b.argmax(x, 1).unwrap();
        check(&b, y, &[2, 4, 5]);
        let (values, indices) = b.top_k(x, 2, 1).unwrap();
        check(&b, values, &[2, 2, 4, 5]);
        check(&b, indices, &[2, 2, 4, 5]);
        assert_eq!(b.sum(x, &[], false).unwrap(), x);
    }

    #[test]
    fn neighbouring_axes_are_one_reduction() {
        let (mut b, x) = with("f32[2,3,4,5]");
        b.max(x, &[2, 1, 3], true).unwrap();
        assert_eq!(ops(&b), ["reduce_max"]);
        let (mut b, x) = with("f32[2,3,4,5]");
        b.sum(x, &[3, 0], true).unwrap();
        assert_eq!(ops(&b), ["sum", "sum"]);
        assert!(matches!(b.graph().nodes[0].op, Op::Reduce(Reduce::Sum { start: 3, .. })));
    }

    /// A graph sees one micro-batch; only sums that fold see the whole batch.
    #[test]
    fn a_mean_over_the_batch_counts_its_examples() {
        let (mut b, x) = with("f32[2,3]");
        let mean = b.mean(x, &[0, 1], false).unwrap();
        assert_eq!(b.graph().batch_relations()[mean.index()], BatchRelation::Reduced);
        assert_eq!(ops(&b).iter().filter(|op| **op == "equal").count(), 1);
        let (mut b, x) = with("f32[2,3]");
        let most = b.max(x, &[0], false).unwrap();
        assert_eq!(b.graph().batch_relations()[most.index()], BatchRelation::Mixed);
    }
}
