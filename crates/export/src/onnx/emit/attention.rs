//! Attention, composed of products and a softmax.

use super::{Emitter, Order, element_type, int};
use crate::ExportError;
use plimsoll_graph::op::Attention;
use plimsoll_graph::{Node, ValueId};
use plimsoll_tensor::DType;

impl Emitter<'_> {
    pub(super) fn attention(&mut self, node: &Node, op: &Attention) -> Result<(), ExportError> {
        match *op {
            Attention::Forward { causal, window, masked } => self.attend(node, causal, window, masked),
            Attention::Rotary { base, inverse, start } => self.rotary(node, base, inverse, start),
            Attention::Grad { .. } => Err(self.unsupported(node, "")),
        }
    }

    fn attend(
        &mut self,
        node: &Node,
        causal: bool,
        window: Option<usize>,
        masked: bool,
    ) -> Result<(), ExportError> {
        let (q, k, v) = (node.inputs[0], node.inputs[1], node.inputs[2]);
        let read = |value: ValueId| self.graph.nodes.iter().any(|other| other.inputs.contains(&value));
        if read(node.outputs[1]) {
            return Err(self.unsupported(node, " whose logsumexp is read"));
        }
        let (&[_, queries, heads, width], &[_, keys, key_heads, _]) = (self.shape(q), self.shape(k)) else {
            return Err(self.unsupported(node, ""));
        };
        if window.is_some() && queries > keys {
            return Err(self.unsupported(node, " with a window and queries past the last key"));
        }
        let groups = heads / key_heads.max(1);
        let [q, k, v] = [q, k, v].map(|value| self.plain(value));
        // [n, positions, heads, width] to [n, heads, positions, width], keys with the width before the positions.
        let mut q = self.transposed(q, &[0, 2, 1, 3]);
        let mut k = self.transposed(k, &[0, 2, 3, 1]);
        let mut v = self.transposed(v, &[0, 2, 1, 3]);
        if groups > 1 {
            let reshaped = |this: &mut Self, x: String, shape: &[usize]| {
                let shape: Vec<i64> = std::iter::once(-1).chain(shape.iter().map(|&n| n as i64)).collect();
                let shape = this.ints(&shape);
                this.add("Reshape", vec![x, shape], vec![])
            };
            q = reshaped(self, q, &[key_heads, groups, queries, width]);
            k = reshaped(self, k, &[key_heads, 1, width, keys]);
            v = reshaped(self, v, &[key_heads, 1, keys, width]);
        }
        let scale = self.number(1.0 / (width as f64).sqrt(), DType::F32);
        let q = self.add("Mul", vec![q, scale], vec![]);
        let mut scores = self.add("MatMul", vec![q, k], vec![]);
        let mut masks = Vec::new();
        if causal {
            let positions = |this: &mut Self, from: usize, count: usize, dims: &[usize]| {
                let numbers = (from..from + count).map(|n| n as i32);
                let bytes = numbers.flat_map(i32::to_le_bytes).collect();
                this.tensor("positions", element_type(DType::I32), dims, bytes)
            };
            let rows = positions(self, 0, queries, &[queries, 1]);
            let columns = positions(self, 0, keys, &[1, keys]);
            masks.push(self.add("GreaterOrEqual", vec![rows.clone(), columns], vec![]));
            if let Some(window) = window.filter(|&window| window < queries) {
                let columns = positions(self, window, keys, &[1, keys]);
                masks.push(self.add("Less", vec![rows, columns], vec![]));
            }
        }
        if masked {
            let mask = self.plain(node.inputs[3]);
            masks.push(match groups {
                1 => mask,
                _ => return Err(self.unsupported(node, " with a mask and shared key heads")),
            });
        }
        for mask in &masks {
            let lowest = self.number(f64::from(f32::MIN), DType::F32);
            scores = self.add("Where", vec![mask.clone(), scores, lowest], vec![]);
        }
        let mut shares = self.add("Softmax", vec![scores], vec![int("axis", -1)]);
        // A query that sees nothing gives zeros.
        if masked && let Some(mask) = masks.last() {
            let zero = self.number(0.0, DType::F32);
            shares = self.add("Where", vec![mask.clone(), shares, zero], vec![]);
        }
        let mut y = self.add("MatMul", vec![shares, v], vec![]);
        if groups > 1 {
            let shape = self.ints(&[-1, heads as i64, queries as i64, width as i64]);
            y = self.add("Reshape", vec![y, shape], vec![]);
        }
        let name = self.transposed(y, &[0, 2, 1, 3]);
        self.set(node.outputs[0], Order::Plain, name);
        Ok(())
    }

    fn rotary(&mut self, node: &Node, base: f64, inverse: bool, start: usize) -> Result<(), ExportError> {
        let &[_, positions, _, width] = self.shape(node.inputs[0]) else {
            return Err(self.unsupported(node, ""));
        };
        let half = width / 2;
        let angle = |i: usize| {
            let (position, pair) = (start + i / half, i % half);
            position as f64 * base.powf(-2.0 * pair as f64 / width as f64)
        };
        let sign = if inverse { -1.0 } else { 1.0 };
        let dims = [positions, 1, half];
        let cosines = self.floats(&dims, (0..positions * half).map(|i| angle(i).cos()));
        let sines = self.floats(&dims, (0..positions * half).map(|i| sign * angle(i).sin()));
        let inputs = vec![self.plain(node.inputs[0]), self.ints(&[half as i64, half as i64])];
        let parts = self.add_many("Split", inputs, 2, vec![int("axis", -1)]);
        let mut product = |a: &String, b: &String| self.add("Mul", vec![a.clone(), b.clone()], vec![]);
        let [a, b] = [product(&parts[0], &cosines), product(&parts[1], &sines)];
        let [c, d] = [product(&parts[1], &cosines), product(&parts[0], &sines)];
        let first = self.add("Sub", vec![a, b], vec![]);
        let second = self.add("Add", vec![c, d], vec![]);
        let name = self.add("Concat", vec![first, second], vec![int("axis", -1)]);
        self.set(node.outputs[0], Order::Plain, name);
        Ok(())
    }
}
