//! Reductions and softmax.

use super::{Importer, Known};
use plimsoll_graph::{GraphError, ValueId};

impl Importer<'_, '_> {
    /// The axes of a reduction: an attribute in older files, an input in newer ones.
    fn axes(&self, rank: usize) -> Result<Vec<usize>, GraphError> {
        let axes = match self.list("axes") {
            Some(axes) => Some(axes),
            None => self.optional_ints(1)?,
        };
        match axes.filter(|axes| !axes.is_empty()) {
            None if self.int("noop_with_empty_axes", 0) != 0 => Ok(Vec::new()),
            None => Ok((0..rank).collect()),
            Some(axes) => axes.into_iter().map(|axis| self.axis(axis, rank)).collect(),
        }
    }

    pub(super) fn reduce(&mut self) -> Result<(), GraphError> {
        if let Some(Known::Ints(ints)) = self.known(0) {
            let product = ints.values.iter().try_fold(1i64, |product, &n| product.checked_mul(n));
            let product = product.filter(|_| self.node.op_type == "ReduceProd" && ints.dims.len() == 1);
            let product = product.ok_or_else(|| self.wrong("a shape that cannot be computed"))?;
            self.set(0, Known::Ints(super::Ints::scalar(product)));
            return Ok(());
        }
        let known = self.needed(0)?;
        let rank = self.rank(&known)?;
        let axes = self.axes(rank)?;
        let keep = self.int("keepdims", 1) != 0;
        // An image stays one, unless axes of it go; without height and width it is rows.
        let spatial = axes.iter().all(|axis| [2, 3].contains(axis)) && axes.len() == 2;
        let (x, axes, image) = match known {
            Known::Image(value) if keep || spatial => {
                (value, axes.iter().map(|&axis| FROM[axis]).collect::<Vec<_>>(), true)
            }
            other => (self.plain_value(other)?, axes, false),
        };
        let net = &mut *self.net;
        let y = match self.node.op_type.as_str() {
            "ReduceMean" => net.mean(x, &axes, keep)?,
            "ReduceSum" => net.sum(x, &axes, keep)?,
            "ReduceMax" => net.max(x, &axes, keep)?,
            "ReduceMin" => net.min(x, &axes, keep)?,
            "ReduceProd" => net.product(x, &axes, keep)?,
            "ReduceSumSquare" => net.square_sum(x, &axes, keep)?,
            "ReduceLogSumExp" => net.logsumexp(x, &axes, keep)?,
            "ReduceL2" => {
                let squares = net.square_sum(x, &axes, keep)?;
                net.sqrt(squares)?
            }
            _ => return Err(self.wrong("this op has no counterpart here")),
        };
        if image && keep { self.done_image(y) } else { self.done(y) }
    }

    pub(super) fn softmax(&mut self) -> Result<(), GraphError> {
        let known = self.needed(0)?;
        let rank = self.rank(&known)?;
        let axis = self.axis(self.int("axis", -1), rank)?;
        let logarithm = self.node.op_type == "LogSoftmax";
        if let (Known::Image(x), 1) = (&known, axis) {
            let y = if logarithm { self.net.log_softmax(*x)? } else { self.net.softmax(*x)? };
            return self.done_image(y);
        }
        let x = self.plain_value(known)?;
        let mut order: Vec<usize> = (0..rank).filter(|&a| a != axis).collect();
        order.push(axis);
        let last = self.net.transpose(x, &order)?;
        let y = if logarithm { self.net.log_softmax(last)? } else { self.net.softmax(last)? };
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(i, &a)| back[a] = i);
        let y = self.net.transpose(y, &back)?;
        self.done(y)
    }

    pub(super) fn argmax(&mut self) -> Result<(), GraphError> {
        let x: ValueId = self.plain(0)?;
        let rank = self.net.shape(x).rank();
        let axis = self.axis(self.int("axis", 0), rank)?;
        let mut shape = self.net.shape(x).to_vec();
        let y = self.net.argmax(x, axis)?;
        shape[axis] = 1;
        let y = if self.int("keepdims", 1) != 0 { self.net.reshape(y, shape)? } else { y };
        self.done(y)
    }

    pub(super) fn cumulative_sum(&mut self) -> Result<(), GraphError> {
        let x = self.plain(0)?;
        let axis = self.ints(1)?.values.first().copied().unwrap_or(0);
        let axis = self.axis(axis, self.net.shape(x).rank())?;
        if self.int("exclusive", 0) != 0 {
            return Err(self.wrong("exclusive sums are not read"));
        }
        let reverse = self.int("reverse", 0) != 0;
        let y = self.net.cumulative_sum(x, axis, reverse)?;
        self.done(y)
    }
}

/// The axis here of an axis of an image in the file.
const FROM: [usize; 4] = [0, 3, 1, 2];
