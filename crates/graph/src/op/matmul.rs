//! Matrix product.

use super::{Family, PrecisionClass, Properties, product_type, require, same_float};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// What is done to a product's elements before they are stored; made by the `fuse` pass. Of 16-bit floats the bias is f32,
/// or a 16-bit float that is widened: it is added, and the maximum taken, before the element is rounded.
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
        let fits = |t: &&TensorType| [t.dtype, t.dtype.wide()].contains(&bias.dtype);
        require(rest.iter().all(fits), || {
            format!("the bias must have the operands' type or the one that they are summed in, it is {bias}")
        })?;
        require(bias.shape[..] == [columns], || format!("the bias must be [{columns}], it is {bias}"))?;
        Ok(rest)
    }
}

/// `A · B` for matrices, either read transposed, `[m,k] · [k,n] → [m,n]`. Accumulation is f32 at least; the result is rounded
/// once, to the operands' type or to [`MatMul::output`]. A product of two batched operands over their rows (a weight's
/// gradient, `Aᵀ · B`) folds over the batch, block by block; a target's blocks may be single rows.
///
/// With equal extents before the last two, one product for each: `[..,m,k] · [..,k,n] → [..,m,n]`, without epilogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatMul {
    /// A is stored as `[k,m]`.
    pub transpose_a: bool,
    /// B is stored as `[n,k]`.
    pub transpose_b: bool,
    /// What happens to the elements before they are stored.
    #[serde(default)]
    pub epilogue: Epilogue,
    /// The result's element type, if not the operands': of 16-bit floats it may be f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<DType>,
}

impl MatMul {
    /// `(m, n, k)` of each product for operands of these types.
    pub fn extents(&self, inputs: &[&TensorType]) -> Result<(usize, usize, usize), TypeError> {
        require(inputs.len() >= 2, || "needs two matrices".into())?;
        let (a_lead, [a0, a1]) = split("first", inputs[0])?;
        let (b_lead, [b0, b1]) = split("second", inputs[1])?;
        require(a_lead == b_lead, || "extents before the last two differ".into())?;
        let (m, k) = if self.transpose_a { (a1, a0) } else { (a0, a1) };
        let (k2, n) = if self.transpose_b { (b1, b0) } else { (b0, b1) };
        require(k == k2, || format!("inner extents differ: {k} and {k2}"))?;
        Ok((m, n, k))
    }
}

/// The extents before the last two, and the last two.
fn split<'a>(what: &str, ty: &'a TensorType) -> Result<(&'a [usize], [usize; 2]), TypeError> {
    let too_few = || TypeError(format!("the {what} matrix must have 2 axes or more, it is {ty}"));
    ty.shape.split_last_chunk().map(|(lead, &matrix)| (lead, matrix)).ok_or_else(too_few)
}

impl Family for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (m, n, _) = self.extents(inputs)?;
        let matrices = self.epilogue.take(inputs, n)?;
        require(matrices.len() == 2, || format!("needs two matrices, has {}", matrices.len()))?;
        let (lead, _) = split("first", inputs[0])?;
        require(lead.is_empty() || self.epilogue == Epilogue::default(), || {
            "only a product of two matrices can have an epilogue".into()
        })?;
        let dtype = product_type(same_float(matrices)?, self.output)?;
        Ok(vec![TensorType::new(dtype, [lead, &[m, n]].concat())])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let depth = self.extents(inputs).map_or(0, |(_, _, k)| k as u64);
        (outputs[0].shape.elements() as u64).saturating_mul(depth).saturating_mul(2)
    }

    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        vec![match (batched[0], batched[1]) {
            // One product or more for each example, if both operands are batched.
            (true, true) if inputs[0].shape.rank() > 2 => BatchRelation::PerExample,
            _ if inputs[0].shape.rank() > 2 => BatchRelation::Mixed,
            (true, false) if !self.transpose_a => BatchRelation::PerExample,
            (true, true) if self.transpose_a && !self.transpose_b => BatchRelation::Reduced,
            _ => BatchRelation::Mixed,
        }]
    }

    fn properties(&self) -> Properties {
        // A bias or a maximum belongs to the whole sum, not to a block's part of it.
        let folds: &[usize] = if self.epilogue == Epilogue::default() { &[0] } else { &[] };
        Properties { precision: PrecisionClass::PRODUCT, folds, ..Properties::GENERAL }
    }
}
