//! Moving elements, and look-ups.

use super::{Emitter, FROM_IMAGE, Order, element_type, int, ints, text};
use crate::ExportError;
use plimsoll_graph::op::{Index, Movement, Span};
use plimsoll_graph::{Node, ValueId};
use plimsoll_tensor::DType;

impl Emitter<'_> {
    /// The order that a value is known in.
    pub(super) fn order_of(&self, value: ValueId) -> Order {
        if self.is_image(value) { Order::Image } else { Order::Plain }
    }

    /// An axis of ours in an order.
    pub(super) fn axis(&self, axis: usize, order: Order) -> i64 {
        // Axis i of ours is axis FROM_IMAGE[i] of ONNX's.
        (if order == Order::Image { FROM_IMAGE[axis] } else { axis }) as i64
    }

    pub(super) fn movement(&mut self, node: &Node, op: &Movement) -> Result<(), ExportError> {
        let (x, output) = (node.inputs[0], node.outputs[0]);
        let order = self.order_of(x);
        match op {
            Movement::Detach => {
                let name = self.in_order(x, order);
                self.set(output, order, name);
            }
            Movement::Reshape(shape) => {
                if shape.contains(&0) {
                    return Err(self.unsupported(node, " of a tensor without elements"));
                }
                let trivial = order == Order::Image && self.is_trivial(x);
                let x = if trivial { self.image(x) } else { self.plain(x) };
                let shape = self.shape_tensor(output, true);
                let name = self.add("Reshape", vec![x, shape], vec![]);
                self.set(output, Order::Plain, name);
            }
            Movement::Transpose(axes) => {
                let name = self.ordered(x, axes);
                self.set(output, Order::Plain, name);
            }
            Movement::Broadcast(_) => {
                let (x, shape) = (self.plain(x), self.shape_tensor(output, false));
                let name = self.add("Expand", vec![x, shape], vec![]);
                self.set(output, Order::Plain, name);
            }
            Movement::Slice(spans) => self.slice(node, spans, order),
            Movement::Pad { shape, spans, value } => {
                if spans.iter().any(|span| span.step != 1) {
                    return Err(self.unsupported(node, " between elements"));
                }
                let around = |axis: usize| {
                    let span = spans[axis];
                    [span.start, shape[axis] - span.start - span.extent]
                };
                let axes: Vec<usize> = (0..spans.len()).filter(|&axis| around(axis) != [0, 0]).collect();
                let sides = [0, 1].map(|side| axes.iter().map(move |&axis| around(axis)[side] as i64));
                let pads: Vec<i64> = sides.into_iter().flatten().collect();
                let names: Vec<i64> = axes.iter().map(|&axis| self.axis(axis, order)).collect();
                let inputs = vec![
                    self.in_order(x, order),
                    self.ints(&pads),
                    self.number(*value, self.graph.ty(x).dtype),
                    self.ints(&names),
                ];
                let name = self.add("Pad", inputs, vec![text("mode", "constant")]);
                self.set(output, order, name);
            }
            Movement::Concat { axis } => {
                let images = node.inputs.iter().all(|&v| self.is_image(v));
                let order = if images { Order::Image } else { Order::Plain };
                let inputs = node.inputs.iter().map(|&v| self.in_order(v, order)).collect();
                let name = self.add("Concat", inputs, vec![int("axis", self.axis(*axis, order))]);
                self.set(output, order, name);
            }
            Movement::Split { axis, extents } => {
                let sizes: Vec<i64> = extents.iter().map(|&n| n as i64).collect();
                let inputs = vec![self.in_order(x, order), self.ints(&sizes)];
                let axis = int("axis", self.axis(*axis, order));
                let names = self.add_many("Split", inputs, extents.len(), vec![axis]);
                for (&value, name) in node.outputs.iter().zip(names) {
                    self.set(value, order, name);
                }
            }
        }
        Ok(())
    }

    fn slice(&mut self, node: &Node, spans: &[Span], order: Order) {
        let x = node.inputs[0];
        let whole = |axis: usize| spans[axis] == Span::whole(self.shape(x)[axis]);
        let axes: Vec<usize> = (0..spans.len()).filter(|&axis| !whole(axis)).collect();
        let end = |span: Span| {
            let end = span.start as i64 + span.extent as i64 * span.step as i64;
            // Before the first element: counted from the end it would be another.
            if end < 0 { i64::MIN + 1 } else { end }
        };
        let column = |of: &dyn Fn(Span) -> i64| axes.iter().map(|&axis| of(spans[axis])).collect::<Vec<_>>();
        let (starts, ends) = (column(&|span| span.start as i64), column(&end));
        let steps = column(&|span| span.step as i64);
        let names: Vec<i64> = axes.iter().map(|&axis| self.axis(axis, order)).collect();
        let inputs = vec![
            self.in_order(x, order),
            self.ints(&starts),
            self.ints(&ends),
            self.ints(&names),
            self.ints(&steps),
        ];
        let name = self.add("Slice", inputs, vec![]);
        self.set(node.outputs[0], order, name);
    }

    pub(super) fn index(&mut self, node: &Node, op: &Index) -> Result<(), ExportError> {
        let inputs: Vec<String> = node.inputs.iter().map(|&v| self.plain(v)).collect();
        let name = match *op {
            Index::Gather => self.add("Gather", inputs, vec![int("axis", 0)]),
            Index::Take => self.add("GatherElements", inputs, vec![int("axis", -1)]),
            Index::OneHot { classes, dtype } => {
                let depth = self.number(classes as f64, DType::I64);
                let values = self.floats(&[2], [0.0, 1.0].into_iter());
                let hot = self.add("OneHot", [inputs, vec![depth, values]].concat(), vec![int("axis", -1)]);
                match dtype {
                    DType::F32 => hot,
                    _ => self.add("Cast", vec![hot], vec![int("to", i64::from(element_type(dtype)))]),
                }
            }
            Index::Range { extent } => {
                let bytes = (0..extent as i32).flat_map(i32::to_le_bytes).collect();
                self.tensor(&format!("range_{extent}"), element_type(DType::I32), &[extent], bytes)
            }
            Index::ScatterAdd { .. } | Index::Put { .. } => return Err(self.unsupported(node, "")),
        };
        self.set(node.outputs[0], Order::Plain, name);
        Ok(())
    }

    /// A matrix product of two values, and a bias.
    pub(super) fn matmul(
        &mut self,
        node: &Node,
        op: &plimsoll_graph::op::MatMul,
        bias: Option<ValueId>,
    ) -> Result<(), ExportError> {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let rank = self.rank(a);
        let plain = rank == 2 && bias.is_none() && !op.transpose_a && !op.transpose_b;
        let name = if rank == 2 && !plain {
            let inputs: Vec<String> =
                [Some(a), Some(b), bias].into_iter().flatten().map(|v| self.plain(v)).collect();
            let flags = [("transA", op.transpose_a), ("transB", op.transpose_b)].into_iter();
            let flags = flags.filter(|(_, set)| *set).map(|(flag, _)| int(flag, 1)).collect();
            self.add("Gemm", inputs, flags)
        } else {
            let mut last_swapped: Vec<usize> = (0..rank).collect();
            last_swapped.swap(rank - 1, rank - 2);
            let mut operand = |value: ValueId, swap: bool| match swap {
                true => self.ordered(value, &last_swapped),
                false => self.plain(value),
            };
            let inputs = vec![operand(a, op.transpose_a), operand(b, op.transpose_b)];
            self.add("MatMul", inputs, vec![])
        };
        self.set(node.outputs[0], Order::Plain, name);
        Ok(())
    }

    /// A transpose of a value that is known by its name alone.
    pub(super) fn transposed(&mut self, name: String, axes: &[usize]) -> String {
        self.add("Transpose", vec![name], vec![ints("perm", axes)])
    }
}
