//! Reductions and norms.

use super::{Emitter, Order, element_type, float, int};
use crate::ExportError;
use plimsoll_graph::op::{Norm, NormAxis, Reduce};
use plimsoll_graph::{Node, ValueId};
use plimsoll_tensor::DType;

impl Emitter<'_> {
    /// Whether anything reads a value.
    fn is_read(&self, value: ValueId) -> bool {
        self.graph.nodes.iter().any(|node| node.inputs.contains(&value))
            || self.graph.outputs.iter().any(|output| output.value == value)
    }

    pub(super) fn reduce(&mut self, node: &Node, op: &Reduce) -> Result<(), ExportError> {
        let (x, output) = (node.inputs[0], node.outputs[0]);
        let to_i32 = |this: &mut Self, name: String| {
            this.add("Cast", vec![name], vec![int("to", i64::from(element_type(DType::I32)))])
        };
        let (start, end, name) = match *op {
            Reduce::Sum { start, end } => (start, end, "ReduceSum"),
            Reduce::SquareSum { start, end } => (start, end, "ReduceSumSquare"),
            Reduce::Max { start, end } => (start, end, "ReduceMax"),
            Reduce::Min { start, end } => (start, end, "ReduceMin"),
            Reduce::Product { start, end } => (start, end, "ReduceProd"),
            Reduce::ProductGrad { .. } => return Err(self.unsupported(node, "")),
            Reduce::Argmax | Reduce::Argmin => {
                let name = if matches!(op, Reduce::Argmax) { "ArgMax" } else { "ArgMin" };
                let x = self.plain(x);
                let found = self.add(name, vec![x], vec![int("axis", -1), int("keepdims", 0)]);
                let name = to_i32(self, found);
                self.set(output, Order::Plain, name);
                return Ok(());
            }
            Reduce::CumulativeSum { axis, reverse } => {
                let inputs = vec![self.plain(x), self.number(axis as f64, DType::I64)];
                let name = self.add("CumSum", inputs, vec![int("reverse", i64::from(reverse))]);
                self.set(output, Order::Plain, name);
                return Ok(());
            }
            Reduce::TopK { k } => {
                let inputs = vec![self.plain(x), self.ints(&[k as i64])];
                let names = self.add_many("TopK", inputs, 2, vec![int("axis", -1)]);
                self.set(output, Order::Plain, names[0].clone());
                let indices = to_i32(self, names[1].clone());
                self.set(node.outputs[1], Order::Plain, indices);
                return Ok(());
            }
        };
        let order = self.order_of(x);
        let axes: Vec<i64> = (start..end).map(|axis| self.axis(axis, order)).collect();
        let inputs = vec![self.in_order(x, order), self.ints(&axes)];
        let name = self.add(name, inputs, vec![int("keepdims", 1)]);
        self.set(output, order, name);
        Ok(())
    }

    pub(super) fn norm(&mut self, node: &Node, op: &Norm) -> Result<(), ExportError> {
        let output = node.outputs[0];
        match *op {
            Norm::Layer { eps } => {
                if node.outputs[1..].iter().any(|&v| self.is_read(v)) {
                    return Err(self.unsupported(node, " whose statistics are read"));
                }
                let inputs = node.inputs.iter().map(|&v| self.plain(v)).collect();
                let name =
                    self.add("LayerNormalization", inputs, vec![int("axis", -1), float("epsilon", eps)]);
                self.set(output, Order::Plain, name);
            }
            Norm::LogSumExp => {
                let inputs = vec![self.plain(node.inputs[0]), self.ints(&[-1])];
                let name = self.add("ReduceLogSumExp", inputs, vec![int("keepdims", 1)]);
                self.set(output, Order::Plain, name);
            }
            Norm::Stats { axis: NormAxis::Row } => {
                let (x, axes) = (self.plain(node.inputs[0]), self.ints(&[-1]));
                let mean = self.add("ReduceMean", vec![x.clone(), axes.clone()], vec![int("keepdims", 1)]);
                let centred = self.add("Sub", vec![x, mean.clone()], vec![]);
                let squares = self.add("Mul", vec![centred.clone(), centred], vec![]);
                let variance = self.add("ReduceMean", vec![squares, axes], vec![int("keepdims", 1)]);
                self.set(output, Order::Plain, mean);
                self.set(node.outputs[1], Order::Plain, variance);
            }
            Norm::Batch { .. }
            | Norm::Stats { axis: NormAxis::Channel }
            | Norm::Moments
            | Norm::StatsOfMoments { .. }
            | Norm::Sums { .. } => {
                return Err(self.unsupported(node, " over the batch"));
            }
        }
        Ok(())
    }
}
