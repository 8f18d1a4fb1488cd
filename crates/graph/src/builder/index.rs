//! Look-ups by i32 index.

use super::Builder;
use crate::op::Index;
use crate::{GraphError, Op, ValueId};
use plimsoll_tensor::DType;

impl Builder {
    /// Rows of a table `[rows, width]` by index: `[.., width]`.
    pub fn gather(&mut self, table: ValueId, indices: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::Index(Index::Gather), &[table, indices])
    }

    /// Adds the rows of `updates` `[.., width]` at their indices into zeros `[rows, width]`, in order.
    pub fn scatter_add(
        &mut self,
        indices: ValueId,
        updates: ValueId,
        rows: usize,
    ) -> Result<ValueId, GraphError> {
        self.one(Op::Index(Index::ScatterAdd { rows }), &[indices, updates])
    }

    /// Of each row of `x` `[.., n]` the elements at `indices` `[.., k]`.
    pub fn take(&mut self, x: ValueId, indices: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::Index(Index::Take), &[x, indices])
    }

    /// Adds the elements of each row of `updates` at its `indices` into zeros `[.., extent]`, in order.
    pub fn put(&mut self, indices: ValueId, updates: ValueId, extent: usize) -> Result<ValueId, GraphError> {
        self.one(Op::Index(Index::Put { extent }), &[indices, updates])
    }

    /// One at each index, zero elsewhere: `[.., classes]`.
    pub fn one_hot(&mut self, indices: ValueId, classes: usize, dtype: DType) -> Result<ValueId, GraphError> {
        self.one(Op::Index(Index::OneHot { classes, dtype }), &[indices])
    }

    /// 0, 1, 2, … as i32.
    pub fn range(&mut self, extent: usize) -> Result<ValueId, GraphError> {
        self.one(Op::Index(Index::Range { extent }), &[])
    }
}
