//! Look-ups by index.

use crate::evaluate::Values;
use crate::tensor::Elements;
use plimsoll_graph::op::Index;
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Index, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    Ok(vec![match *op {
        Index::Gather => {
            let (table, indices) = (&inputs[0], &inputs[1]);
            let [rows, width] = table.extents();
            let mut y = Vec::with_capacity(output.shape.elements());
            for position in 0..indices.data.len() {
                let row = indices.index("gather", "index", position, rows)?;
                y.extend_from_slice(&table.data[row * width..(row + 1) * width]);
            }
            y
        }
        Index::ScatterAdd { rows } => {
            let (indices, dy) = (&inputs[0], &inputs[1]);
            let width = dy.columns();
            let mut sums = vec![0.0; rows * width];
            for position in 0..indices.data.len() {
                let row = indices.index("scatter_add", "index", position, rows)?;
                for c in 0..width {
                    sums[row * width + c] += dy.data[position * width + c];
                }
            }
            sums
        }
        Index::Take => {
            let (x, indices) = (&inputs[0], &inputs[1]);
            let (extent, count) = (x.columns(), indices.columns());
            let mut y = Vec::with_capacity(indices.data.len());
            for position in 0..indices.data.len() {
                let index = indices.index("take", "index", position, extent)?;
                y.push(x.data[position / count * extent + index]);
            }
            y
        }
        Index::Put { extent } => {
            let (indices, dy) = (&inputs[0], &inputs[1]);
            let count = indices.columns();
            let mut sums = vec![0.0; output.shape.elements()];
            for position in 0..indices.data.len() {
                let index = indices.index("put", "index", position, extent)?;
                sums[position / count * extent + index] += dy.data[position];
            }
            sums
        }
        Index::OneHot { classes, .. } => {
            let indices = &inputs[0];
            let mut y = vec![0.0; output.shape.elements()];
            for position in 0..indices.data.len() {
                y[position * classes + indices.index("one_hot", "index", position, classes)?] = 1.0;
            }
            y
        }
        Index::Range { extent } => (0..extent).map(|i| i as f64).collect(),
    }])
}
