//! Products and sums over named axes, like `bij,bjk->bik`.

use super::Builder;
use crate::op::MatMul;
use crate::{GraphError, Op, ValueId};

/// A value whose axes have names.
#[derive(Clone)]
struct Labelled {
    value: ValueId,
    labels: Vec<char>,
}

impl Labelled {
    fn has(&self, label: char) -> bool {
        self.labels.contains(&label)
    }
}

impl Builder {
    /// Matrix product of operands that may be stored transposed.
    pub fn matmul_transposed(
        &mut self,
        a: ValueId,
        b: ValueId,
        transpose_a: bool,
        transpose_b: bool,
    ) -> Result<ValueId, GraphError> {
        let op = MatMul { transpose_a, transpose_b, ..MatMul::default() };
        self.one(Op::MatMul(op), &[a, b])
    }

    /// The product of two values over named axes, like `bij,bjk->bik`: a letter for each axis. Axes of one name go
    /// together, and what the result does not name is summed.
    pub fn einsum(&mut self, spec: &str, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        let (operands, output) = self.labelled(spec, &[a, b])?;
        let [a, b] = [0, 1].map(|i| operands[i].clone());
        let a = self.keep(&a, |label| b.has(label) || output.contains(&label))?;
        let b = self.keep(&b, |label| a.has(label) || output.contains(&label))?;
        let among = |from: &[char], test: &dyn Fn(char) -> bool| -> Vec<char> {
            from.iter().copied().filter(|&label| test(label)).collect()
        };
        let batch = among(&output, &|label| a.has(label) && b.has(label));
        let free_a = among(&output, &|label| !b.has(label));
        let free_b = among(&output, &|label| !a.has(label));
        let summed = among(&a.labels, &|label| !output.contains(&label));
        let result = if summed.is_empty() {
            self.elementwise(&a, &b, &output)?
        } else if free_a.is_empty() && free_b.is_empty() {
            let product = self.elementwise(&a, &b, &a.labels)?;
            self.keep(&product, |label| output.contains(&label))?
        } else {
            // The first operand's axes come first in a product, and the batch axis has to be among its rows.
            let behind = [&batch[..], &free_b, &free_a].concat() == output && !free_b.is_empty();
            if free_a.is_empty() || behind {
                self.labelled_product(&b, &a, &batch, &free_b, &free_a, &summed)?
            } else {
                self.labelled_product(&a, &b, &batch, &free_a, &free_b, &summed)?
            }
        };
        Ok(self.arranged(&result, &output)?.value)
    }

    /// A value with its named axes in another order, like `ijk->ki`; what the result does not name is summed.
    pub fn einsum1(&mut self, spec: &str, a: ValueId) -> Result<ValueId, GraphError> {
        let (operands, output) = self.labelled(spec, &[a])?;
        let kept = self.keep(&operands[0], |label| output.contains(&label))?;
        Ok(self.arranged(&kept, &output)?.value)
    }

    /// The operands with their labels, and those of the result.
    fn labelled(&self, spec: &str, values: &[ValueId]) -> Result<(Vec<Labelled>, Vec<char>), GraphError> {
        let refuse = |reason: String| self.refuse("einsum", values, format!("`{spec}`: {reason}"));
        let compact: String = spec.chars().filter(|c| !c.is_whitespace()).collect();
        let (operands, output) =
            compact.split_once("->").ok_or_else(|| refuse("needs `->` and the result's axes".into()))?;
        let operands: Vec<&str> = operands.split(',').collect();
        if operands.len() != values.len() {
            return Err(refuse(format!("names {} operands, there are {}", operands.len(), values.len())));
        }
        for labels in operands.iter().chain([&output]) {
            for (i, label) in labels.char_indices() {
                if !label.is_alphabetic() {
                    return Err(refuse(format!("`{label}` is not a letter")));
                }
                if labels[..i].contains(label) {
                    return Err(refuse(format!("`{label}` is twice in `{labels}`")));
                }
            }
        }
        let mut extents: Vec<(char, usize, ValueId)> = Vec::new();
        let mut found = Vec::new();
        for (labels, &value) in operands.into_iter().zip(values) {
            let labels: Vec<char> = labels.chars().collect();
            if labels.len() != self.shape(value).rank() {
                return Err(refuse(format!("names {} axes of {}", labels.len(), self.ty(value))));
            }
            for (&label, &extent) in labels.iter().zip(self.shape(value).iter()) {
                match extents.iter().find(|(other, ..)| *other == label) {
                    Some(&(_, other, of)) if other != extent => {
                        let (first, second) = (self.ty(of), self.ty(value));
                        return Err(refuse(format!(
                            "`{label}` is {other} in {first} and {extent} in {second}"
                        )));
                    }
                    _ => extents.push((label, extent, value)),
                }
            }
            found.push(Labelled { value, labels });
        }
        let output: Vec<char> = output.chars().collect();
        match output.iter().find(|label| !found.iter().any(|operand| operand.has(**label))) {
            Some(label) => Err(refuse(format!("`{label}` is an axis of no operand"))),
            None => Ok((found, output)),
        }
    }

    /// Sums over the axes that are not kept.
    fn keep(&mut self, x: &Labelled, kept: impl Fn(char) -> bool) -> Result<Labelled, GraphError> {
        let axes: Vec<usize> = (0..x.labels.len()).filter(|&axis| !kept(x.labels[axis])).collect();
        let value = self.sum(x.value, &axes, false)?;
        Ok(Labelled { value, labels: x.labels.iter().copied().filter(|&label| kept(label)).collect() })
    }

    /// The axes in this order; all of them are in it.
    fn arranged(&mut self, x: &Labelled, order: &[char]) -> Result<Labelled, GraphError> {
        let axes = order.iter().filter_map(|label| x.labels.iter().position(|own| own == label)).collect();
        let labels = order.iter().copied().filter(|&label| x.has(label)).collect();
        Ok(Labelled { value: self.permuted(x.value, axes)?, labels })
    }

    /// The extents of axes, in this order; one where the axis is not there.
    fn extents(&self, x: &Labelled, order: &[char]) -> Vec<usize> {
        let extent = |label: &char| {
            x.labels.iter().position(|own| own == label).map_or(1, |axis| self.shape(x.value)[axis])
        };
        order.iter().map(extent).collect()
    }

    /// The elementwise product, broadcast to the axes in this order.
    fn elementwise(&mut self, a: &Labelled, b: &Labelled, order: &[char]) -> Result<Labelled, GraphError> {
        let mut spread = |x: &Labelled| {
            let x = self.arranged(x, order)?;
            let extents = self.extents(&x, order);
            self.reshape(x.value, extents)
        };
        let (a, b) = (spread(a)?, spread(b)?);
        Ok(Labelled { value: self.mul(a, b)?, labels: order.to_vec() })
    }

    /// One matrix product for each index of `batch`, over the axes `summed`.
    fn labelled_product(
        &mut self,
        a: &Labelled,
        b: &Labelled,
        batch: &[char],
        free_a: &[char],
        free_b: &[char],
        summed: &[char],
    ) -> Result<Labelled, GraphError> {
        let extents = [self.extents(a, batch), self.extents(a, free_a), self.extents(b, free_b)].concat();
        // Terms may be summed in the order of either operand: prefer one that saves a transpose.
        let as_in_b: Vec<char> = b.labels.iter().copied().filter(|label| summed.contains(label)).collect();
        let orders = [summed, &as_in_b[..]];
        let transposes = |summed: &&&[char]| {
            let lies = |x: &Labelled, free: &[char]| {
                x.labels == [batch, free, summed].concat() || x.labels == [batch, summed, free].concat()
            };
            usize::from(!lies(a, free_a)) + usize::from(!lies(b, free_b))
        };
        let summed = *orders.iter().min_by_key(transposes).unwrap_or(&summed);
        let (a, transpose_a) = self.matrices(a, batch, free_a, summed)?;
        let (b, straight) = self.matrices(b, batch, summed, free_b)?;
        let value = self.matmul_transposed(a, b, transpose_a, straight)?;
        let value = self.reshape(value, extents)?;
        Ok(Labelled { value, labels: [batch, free_a, free_b].concat() })
    }

    /// The axes as `[batch, rows, columns]`, or as `[batch, columns, rows]` if they are stored so, and whether they are.
    fn matrices(
        &mut self,
        x: &Labelled,
        batch: &[char],
        rows: &[char],
        columns: &[char],
    ) -> Result<(ValueId, bool), GraphError> {
        let transposed = [batch, columns, rows].concat();
        let is_transposed = x.labels == transposed && !columns.is_empty();
        let (rows, columns) = if is_transposed { (columns, rows) } else { (rows, columns) };
        let x = self.arranged(x, &[batch, rows, columns].concat())?;
        let extent = |labels: &[char]| self.extents(&x, labels).iter().product::<usize>();
        let shape = [self.extents(&x, batch), vec![extent(rows), extent(columns)]].concat();
        Ok((self.reshape(x.value, shape)?, is_transposed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchRelation;
    use plimsoll_tensor::{DType, TensorType};

    /// The ops of a product of two values, each batched or not.
    fn ops(spec: &str, a: (&[usize], bool), b: (&[usize], bool)) -> (Vec<&'static str>, BatchRelation) {
        let mut builder = Builder::new(4, 2);
        let a = builder.input("a", TensorType::new(DType::F32, a.0), a.1);
        let b = builder.input("b", TensorType::new(DType::F32, b.0), b.1);
        let y = builder.einsum(spec, a, b).unwrap_or_else(|e| panic!("{e}"));
        let graph = builder.graph();
        (graph.nodes.iter().map(|n| n.op.name()).collect(), graph.batch_relations()[y.index()])
    }

    #[test]
    fn nothing_moves_that_need_not() {
        let per_example = BatchRelation::PerExample;
        let (m, r, t) = ("matmul", "reshape", "transpose");
        assert_eq!(ops("ij,jk->ik", (&[4, 3], true), (&[3, 5], false)), (vec![m], per_example));
        assert_eq!(ops("ij,kj->ik", (&[4, 3], true), (&[5, 3], false)), (vec![m], per_example));
        // A weight on the left, the batch on the right: the operands are swapped.
        assert_eq!(ops("oi,bi->bo", (&[5, 3], false), (&[4, 3], true)), (vec![m], per_example));
        assert_eq!(ops("bij,bjk->bik", (&[4, 2, 3], true), (&[4, 3, 5], true)), (vec![m], per_example));
        assert_eq!(ops("bij,bkj->bik", (&[4, 2, 3], true), (&[4, 5, 3], true)), (vec![m], per_example));
        assert_eq!(
            ops("bhij,bhjk->bhik", (&[4, 2, 2, 3], true), (&[4, 2, 3, 5], true)),
            (vec![m], per_example)
        );
        assert_eq!(ops("bij,jk->bik", (&[4, 2, 3], true), (&[3, 5], false)), (vec![r, m, r], per_example));
        // A weight's gradient is reduced over the batch.
        assert_eq!(ops("bi,bj->ij", (&[4, 3], true), (&[4, 5], true)), (vec![m], BatchRelation::Reduced));
        assert_eq!(
            ops("bti,btj->ij", (&[4, 2, 3], true), (&[4, 2, 5], true)),
            (vec![r, r, m], BatchRelation::Reduced)
        );
        assert_eq!(ops("b,bj->j", (&[4], true), (&[4, 5], true)), (vec![r, m, r], BatchRelation::Reduced));
        assert_eq!(ops("i,bi->b", (&[3], false), (&[4, 3], true)), (vec![r, m, r], per_example));
        // Neither needs a matrix product.
        assert_eq!(ops("bi,bi->b", (&[4, 3], true), (&[4, 3], true)), (vec!["mul", "sum", r], per_example));
        assert_eq!(ops("bi,i->bi", (&[4, 3], true), (&[3], false)), (vec![r, "mul"], per_example));
        assert_eq!(
            ops("bthd,bshd->bhts", (&[4, 2, 3, 5], true), (&[4, 6, 3, 5], true)),
            (vec![t, t, m], per_example)
        );
        assert_eq!(
            ops("bik,jl->bij", (&[4, 3, 2], true), (&[5, 2], false)).0,
            ["sum", r, "sum", r, r, r, "mul"]
        );
    }

    #[test]
    fn mistakes_are_named() {
        let mut builder = Builder::new(1, 1);
        let a = builder.setting("a", TensorType::new(DType::F32, [2, 3]));
        let b = builder.setting("b", TensorType::new(DType::F32, [4, 5]));
        let mut refused = |spec: &str, words: &str| {
            let error = builder.scope("mix", |g| g.einsum(spec, a, b)).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("layer `mix`: einsum(f32[2,3], f32[4,5]): `{spec}`: ")),
                "{error}"
            );
            assert!(error.contains(words), "no `{words}` in: {error}");
        };
        refused("ij,jk->ik", "`j` is 3 in f32[2,3] and 4 in f32[4,5]");
        refused("ij,kl->im", "`m` is an axis of no operand");
        refused("ij,jkl->ik", "names 3 axes of f32[4,5]");
        refused("ii,jk->ik", "`i` is twice in `ii`");
        refused("ij,kl->kk", "`k` is twice in `kk`");
        refused("ij,k1->ik", "`1` is not a letter");
        refused("ij->i", "names 1 operands, there are 2");
        refused("ij,kl", "needs `->`");
    }
}
