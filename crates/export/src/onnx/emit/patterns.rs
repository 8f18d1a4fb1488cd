//! Patterns as ONNX ops.

use super::{Emitter, Order, float};
use crate::ExportError;
use crate::pattern::Pattern;
use plimsoll_graph::{Node, Op};
use plimsoll_tensor::DType;

impl Emitter<'_> {
    pub(super) fn pattern(&mut self, node: &Node, pattern: &Pattern) -> Result<(), ExportError> {
        let output = node.outputs[0];
        match *pattern {
            Pattern::BatchNorm { x, gain, bias, mean, variance, eps } => {
                let order = if self.rank(x) == 4 { Order::Image } else { Order::Plain };
                let x = self.in_order(x, order);
                let others = [gain, bias, mean, variance].map(|v| self.plain(v));
                let inputs = std::iter::once(x).chain(others).collect();
                let name = self.add("BatchNormalization", inputs, vec![float("epsilon", eps)]);
                self.set(output, order, name);
                Ok(())
            }
            Pattern::Bias { product, bias } => {
                let graph = self.graph;
                let mut joined = graph.node(product).clone();
                joined.outputs.clone_from(&node.outputs);
                match &graph.node(product).op {
                    Op::Conv(op) => self.conv(&joined, op, Some(bias)),
                    Op::MatMul(op) => self.matmul(&joined, op, Some(bias)),
                    _ => Err(self.unsupported(node, "")),
                }
            }
            Pattern::Clip { x, high } => {
                let order = if self.is_image(x) { Order::Image } else { Order::Plain };
                let inputs = vec![
                    self.in_order(x, order),
                    self.number(0.0, DType::F32),
                    self.number(high, DType::F32),
                ];
                let name = self.add("Clip", inputs, vec![]);
                self.set(output, order, name);
                Ok(())
            }
            Pattern::Gelu { x } => {
                let order = if self.is_image(x) { Order::Image } else { Order::Plain };
                let x = self.in_order(x, order);
                let name = self.add("Gelu", vec![x], vec![]);
                self.set(output, order, name);
                Ok(())
            }
            Pattern::Fill { value } => {
                let shape = self.shape_tensor(output, false);
                let value = self.number(value, self.graph.ty(output).dtype);
                let name = self.add("Expand", vec![value, shape], vec![]);
                self.set(output, Order::Plain, name);
                Ok(())
            }
        }
    }
}
