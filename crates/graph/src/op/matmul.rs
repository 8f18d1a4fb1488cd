//! Matrix product.

use super::{Family, rank, require, same_float};
use crate::{Flow, TypeError};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};

/// What is done to a product's elements before they are stored; made by the `fuse` pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epilogue {
    /// A last input, one element per column, is added.
    pub bias: bool,
    /// Then max(x, 0) is taken.
    pub relu: bool,
}

impl Epilogue {
    /// Splits the bias off the inputs and checks it against the number of columns.
    pub(crate) fn take<'a, 'b>(
        self,
        inputs: &'b [&'a TensorType],
        columns: usize,
    ) -> Result<&'b [&'a TensorType], TypeError> {
        if !self.bias {
            return Ok(inputs);
        }
        let (bias, rest) = inputs.split_last().ok_or_else(|| TypeError("the bias is missing".into()))?;
        require(bias.shape[..] == [columns], || format!("the bias must be [{columns}], it is {bias}"))?;
        Ok(rest)
    }
}

/// `A · B` for matrices, either read transposed, `[m,k] · [k,n] → [m,n]`. Accumulation is f32 at least. A product of
/// two batched operands over their rows (a weight's gradient, `Aᵀ · B`) folds block of examples by block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatMul {
    /// A is stored as `[k,m]`.
    pub transpose_a: bool,
    /// B is stored as `[n,k]`.
    pub transpose_b: bool,
    /// What happens to the elements before they are stored.
    #[serde(default)]
    pub epilogue: Epilogue,
}

impl MatMul {
    /// `(m, n, k)` for operands of these types.
    pub fn extents(&self, inputs: &[&TensorType]) -> Result<(usize, usize, usize), TypeError> {
        require(inputs.len() >= 2, || "needs two matrices".into())?;
        let [a0, a1] = rank("the first matrix", inputs[0])?;
        let [b0, b1] = rank("the second matrix", inputs[1])?;
        let (m, k) = if self.transpose_a { (a1, a0) } else { (a0, a1) };
        let (k2, n) = if self.transpose_b { (b1, b0) } else { (b0, b1) };
        require(k == k2, || format!("inner extents differ: {k} and {k2}"))?;
        Ok((m, n, k))
    }
}

impl Family for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (m, n, _) = self.extents(inputs)?;
        let matrices = self.epilogue.take(inputs, n)?;
        require(matrices.len() == 2, || format!("needs two matrices, has {}", matrices.len()))?;
        Ok(vec![TensorType::new(same_float(inputs)?, [m, n])])
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let product =
            |(m, n, k)| [m, n, k].iter().fold(2u64, |flops, &n: &usize| flops.saturating_mul(n as u64));
        self.extents(inputs).map_or(0, product)
    }

    fn flow(&self, batched: &[bool], _: &[&TensorType]) -> Vec<Flow> {
        vec![match (batched[0], batched[1]) {
            (true, false) if !self.transpose_a => Flow::PerExample,
            (true, true) if self.transpose_a && !self.transpose_b => Flow::Folded,
            _ => Flow::Mixed,
        }]
    }

    fn folds(&self) -> &'static [usize] {
        // A bias or a maximum belongs to the whole sum, not to a block's part of it.
        if self.epilogue == Epilogue::default() { &[0] } else { &[] }
    }
}
