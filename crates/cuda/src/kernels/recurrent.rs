//! Recurrences: for every position a product of the state and the kernel, and a kernel for the cells.

use super::builder::{CallBuilder, define, parameters};
use super::{Call, Matrix, Operand, Pointer, Product};
use plimsoll_graph::op::Recurrent;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const FLOAT: usize = size_of::<f32>();

/// The sizes of a long short-term memory.
struct Shape {
    examples: usize,
    positions: usize,
    units: usize,
    reverse: bool,
}

pub(super) fn find(op: Recurrent, query: &KernelQuery<'_>) -> Option<Call> {
    if query.inputs.iter().any(|ty| ty.dtype != DType::F32) {
        return None;
    }
    let (sequence, reverse) = match op {
        Recurrent::Lstm { reverse } => (query.inputs[0], reverse),
        Recurrent::LstmGrad { reverse, .. } => (query.inputs[3], reverse),
    };
    let &[examples, positions, columns] = &sequence.shape[..] else { return None };
    let shape = Shape { examples, positions, units: columns / 4, reverse };
    if examples * shape.units == 0 {
        return Some(Call::default());
    }
    Some(match op {
        Recurrent::Lstm { .. } => lstm(&shape),
        Recurrent::LstmGrad { cells, .. } => lstm_grad(&shape, cells),
    })
}

/// A row for each example, of one position's units or gates in a tensor over all positions, or of a state.
struct Rows {
    start: Pointer,
    row_stride: usize,
}

impl Rows {
    /// All rows of a matrix.
    fn whole(start: Pointer, columns: usize) -> Self {
        Self { start, row_stride: columns }
    }

    fn matrix(&self) -> Matrix {
        let Self { start, row_stride } = *self;
        Matrix { start, dtype: DType::F32, transposed: false, row_stride, stride: 0 }
    }
}

impl Shape {
    /// The positions in the order of the recurrence.
    fn order(&self) -> Vec<usize> {
        if self.reverse { (0..self.positions).rev().collect() } else { (0..self.positions).collect() }
    }

    /// A position of a tensor with so many columns.
    fn at(&self, operand: Operand, position: usize, columns: usize) -> Rows {
        Rows { start: operand.at(position * columns * FLOAT), row_stride: self.positions * columns }
    }

    fn threads(&self) -> usize {
        self.examples * self.units
    }
}

fn lstm(shape: &Shape) -> Call {
    let [x, kernel, h, c] = [0, 1, 2, 3].map(Operand::Read);
    let [y, cells, gates] = [0, 1, 2].map(Operand::Write);
    let units = shape.units;
    let mut b = CallBuilder::default();
    let product = b.scratch(shape.threads() * 4 * FLOAT);
    let mut state = [h, c].map(|first| Rows::whole(first.at(0), units));
    for position in shape.order() {
        let [h, c] = &state;
        b.product(Product {
            m: shape.examples,
            n: 4 * units,
            k: units,
            a: h.matrix(),
            b: Rows::whole(kernel.at(0), 4 * units).matrix(),
            c: Rows::whole(product, 4 * units).matrix(),
            accumulate: false,
            count: 1,
            bias: None,
            tf32: false,
        });
        let mut all = parameters![x, product, c.start, y, cells, gates];
        all.extend(parameters![shape.threads(), units, shape.positions, position, c.row_stride]);
        b.each(shape.threads(), define(&[], include_str!("recurrent/step.cu")), all);
        state = [y, cells].map(|all| shape.at(all, position, units));
    }
    b.finish()
}

fn lstm_grad(shape: &Shape, with_cells: bool) -> Call {
    let [kernel, c, cells, gates, dy] = [0, 1, 2, 3, 4].map(Operand::Read);
    let dcells = if with_cells { Operand::Read(5) } else { dy };
    let [dx, dh, dc] = [0, 1, 2].map(Operand::Write);
    let (units, threads) = (shape.units, shape.threads());
    let mut b = CallBuilder::default();
    if shape.positions == 0 {
        b.zero(dh, threads, DType::F32);
        b.zero(dc, threads, DType::F32);
    }
    let running = [(); 2].map(|()| b.scratch(threads * FLOAT));
    let mut order = shape.order();
    while let Some(position) = order.pop() {
        let is_last = order.len() + 1 == shape.positions;
        let (before, [to_state, to_cell]) = match order.last() {
            Some(&earlier) => (shape.at(cells, earlier, units), running),
            None => (Rows::whole(c.at(0), units), [dh.at(0), dc.at(0)]),
        };
        let macros = [("LAST", is_last), ("CELLS", with_cells)];
        let macros = macros.map(|(name, holds)| (name, if holds { "1" } else { "0" }));
        let mut all =
            parameters![before.start, cells, gates, dy, dcells, running[0], running[1], dx, to_cell];
        all.extend(parameters![threads, units, shape.positions, position, before.row_stride]);
        b.each(threads, define(&macros, include_str!("recurrent/step_grad.cu")), all);
        b.product(Product {
            m: shape.examples,
            n: units,
            k: 4 * units,
            a: shape.at(dx, position, 4 * units).matrix(),
            b: Rows::whole(kernel.at(0), 4 * units).matrix().transposed(),
            c: Rows::whole(to_state, units).matrix(),
            accumulate: false,
            count: 1,
            bias: None,
            tf32: false,
        });
    }
    b.finish()
}
