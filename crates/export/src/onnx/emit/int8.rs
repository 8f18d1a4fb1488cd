//! Layers of bytes, as floats between pairs of ops that quantize and dequantize (QDQ): runtimes join them to layers of integers.

use super::windows::{sliding, window};
use super::{Emitter, Order, int};
use crate::ExportError;
use crate::int8::{is_mean, joined, weight_scales};
use crate::onnx::proto::element;
use plimsoll_graph::op::{Codes, Grid, Int8, Windows};
use plimsoll_graph::{Node, Origin, ValueId};
use plimsoll_tensor::SIGMOID_SCALE;

impl Emitter<'_> {
    pub(super) fn int8(&mut self, node: &Node, op: &Int8) -> Result<(), ExportError> {
        let (x, output) = (node.inputs[0], node.outputs[0]);
        let order = if self.is_image(x) { Order::Image } else { Order::Plain };
        match op {
            Int8::Quantize(grid) => {
                let x = self.in_order(x, order);
                self.quantized(output, order, x, *grid);
            }
            Int8::Dequantize(grid) => {
                let x = self.in_order(x, order);
                let name = self.dequantized_by(x, *grid);
                self.set(output, order, name);
            }
            Int8::Conv { geometry, groups, output: codes, .. } => {
                let scales = self.weight_scales(node)?;
                let mut attributes = window(*geometry);
                attributes.push(int("group", *groups as i64));
                let x = self.dequantized(node, x, Order::Image)?;
                let inputs =
                    vec![x, self.weights(node, &[3, 2, 0, 1], &scales, 0)?, self.biases(node, &scales)?];
                let name = self.add("Conv", inputs, attributes);
                self.finish(node, Order::Image, name, *codes)?;
            }
            Int8::Dense { output: codes, .. } => {
                let scales = joined(self.weight_scales(node)?);
                let x = self.dequantized(node, x, Order::Plain)?;
                let inputs = vec![x, self.weights(node, &[], &scales, 1)?, self.biases(node, &scales)?];
                let name = self.add("Gemm", inputs, vec![]);
                self.finish(node, Order::Plain, name, *codes)?;
            }
            Int8::Add { output: codes, .. } => {
                let inputs =
                    vec![self.dequantized(node, x, order)?, self.dequantized(node, node.inputs[1], order)?];
                let name = self.add("Add", inputs, vec![]);
                self.finish(node, order, name, *codes)?;
            }
            Int8::Mul { output: codes, .. } => {
                let inputs =
                    vec![self.dequantized(node, x, order)?, self.dequantized(node, node.inputs[1], order)?];
                let name = self.add("Mul", inputs, vec![]);
                self.finish(node, order, name, *codes)?;
            }
            Int8::Sigmoid(_) => {
                let grid = self.grid(node, output)?;
                let x = self.dequantized(node, x, order)?;
                let name = self.add("Sigmoid", vec![x], vec![]);
                self.quantized(output, order, name, grid);
            }
            Int8::Swish { output: codes, .. } => {
                let gate = self.dequantized(node, x, order)?;
                let gate = self.add("Sigmoid", vec![gate], vec![]);
                let grid = Grid { scale: SIGMOID_SCALE, zero: 0 };
                let [scale, zero] = self.scalars(grid);
                let gate = self.add("QuantizeLinear", vec![gate, scale, zero], vec![]);
                let inputs = vec![self.dequantized(node, x, order)?, self.dequantized_by(gate, grid)];
                let name = self.add("Mul", inputs, vec![]);
                self.finish(node, order, name, *codes)?;
            }
            Int8::Mean { factor, output: codes, .. } => {
                let (from, to) = (self.grid(node, x)?, self.grid(node, output)?);
                if !is_mean(*factor, self.shape(x)[1] * self.shape(x)[2], from, to) {
                    return Err(self.unsupported(node, " that does not divide by its pixels"));
                }
                let x = self.dequantized(node, x, Order::Image)?;
                let name = self.add("GlobalAveragePool", vec![x], vec![]);
                self.finish(node, Order::Image, name, *codes)?;
            }
            Int8::MaxPool { windows } => {
                let grid = self.grid(node, output)?;
                let image = [self.shape(x)[1], self.shape(x)[2]];
                let Some(geometry) = sliding(*windows, image) else {
                    return Err(self.unsupported(node, " with windows of several sizes"));
                };
                let x = self.dequantized(node, x, Order::Image)?;
                let name = self.add("MaxPool", vec![x], window(geometry));
                self.quantized(output, Order::Image, name, grid);
            }
            Int8::AveragePool { windows } => {
                let grid = self.grid(node, output)?;
                let image = [self.shape(x)[1], self.shape(x)[2]];
                let x = self.dequantized(node, x, Order::Image)?;
                let name = match (sliding(*windows, image), *windows) {
                    (None, Windows::Adaptive { output: to }) => self.adaptive_average(x, image, to),
                    (Some(geometry), _) => self.add("AveragePool", vec![x], window(geometry)),
                    (None, Windows::Sliding(_)) => return Err(self.unsupported(node, "")),
                };
                self.quantized(output, Order::Image, name, grid);
            }
            Int8::Resize { mode, .. } => {
                let grid = self.grid(node, output)?;
                let x = self.dequantized(node, x, Order::Image)?;
                let name = self.resized(x, *mode, output);
                self.quantized(output, Order::Image, name, grid);
            }
        }
        Ok(())
    }

    /// The grid of a value that is codes.
    fn grid(&self, node: &Node, value: ValueId) -> Result<Grid, ExportError> {
        self.step.grid(value).ok_or_else(|| self.unsupported(node, " without a scale"))
    }

    fn weight_scales(&self, node: &Node) -> Result<Vec<f32>, ExportError> {
        let (from, to) = (self.grid(node, node.inputs[0])?, self.grid(node, node.outputs[0])?);
        let scales = weight_scales(self.source, node, from, to)?;
        scales.ok_or_else(|| self.unsupported(node, " with factors that are computed"))
    }

    /// A grid as two scalars of the file.
    fn scalars(&mut self, grid: Grid) -> [String; 2] {
        let scale = self.tensor("scale", element::FLOAT, &[], grid.scale.to_le_bytes().to_vec());
        [scale, self.tensor("zero_point", element::UINT8, &[], vec![grid.zero])]
    }

    /// Floats as the codes of a value.
    fn quantized(&mut self, output: ValueId, order: Order, floats: String, grid: Grid) {
        let [scale, zero] = self.scalars(grid);
        let name = self.add("QuantizeLinear", vec![floats, scale, zero], vec![]);
        self.set(output, order, name);
    }

    fn dequantized_by(&mut self, codes: String, grid: Grid) -> String {
        let [scale, zero] = self.scalars(grid);
        self.add("DequantizeLinear", vec![codes, scale, zero], vec![])
    }

    /// The floats of codes, for one reader: runtimes join a layer with the ops around it that nothing else reads.
    fn dequantized(&mut self, node: &Node, value: ValueId, order: Order) -> Result<String, ExportError> {
        let grid = self.grid(node, value)?;
        let codes = self.in_order(value, order);
        Ok(self.dequantized_by(codes, grid))
    }

    /// A layer's result within its bounds, as codes.
    fn finish(&mut self, node: &Node, order: Order, floats: String, codes: Codes) -> Result<(), ExportError> {
        let (output, grid) = (node.outputs[0], self.grid(node, node.outputs[0])?);
        // Bounds at the ends of the bytes are those of any code.
        let floats = match (codes.low, codes.high) {
            (0, 255) => floats,
            (low, 255) if low == grid.zero => self.add("Relu", vec![floats], vec![]),
            (low, high) => {
                let mut bound = |code: u8| {
                    let number = grid.scale * (f32::from(code) - f32::from(grid.zero));
                    self.tensor("bound", element::FLOAT, &[], number.to_le_bytes().to_vec())
                };
                let [low, high] = [bound(low), bound(high)];
                self.add("Clip", vec![floats, low, high], vec![])
            }
        };
        self.quantized(output, order, floats, grid);
        Ok(())
    }

    /// Scales as a tensor of the file: a scalar for all, or one for each channel.
    fn scales(&mut self, scales: &[f32]) -> (String, Vec<usize>) {
        let dims = if scales.len() == 1 { vec![] } else { vec![scales.len()] };
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        (self.tensor("scales", element::FLOAT, &dims, bytes), dims)
    }

    /// Weights as floats. `axis`: that of the output channels in the file.
    fn weights(
        &mut self,
        node: &Node,
        order: &[usize],
        scales: &[f32],
        axis: i64,
    ) -> Result<String, ExportError> {
        let value = node.inputs[1];
        let Origin::State(state) = self.graph.origin(value) else {
            return Err(self.unsupported(node, " with weights that are computed"));
        };
        let shape = self.shape(value);
        let dims = if order.is_empty() { shape.to_vec() } else { order.iter().map(|&a| shape[a]).collect() };
        let codes = self.state_as(state, order, dims, element::INT8);
        let (names, dims) = self.scales(scales);
        let zeros = self.tensor("zero_points", element::INT8, &dims, vec![0; scales.len()]);
        Ok(self.add("DequantizeLinear", vec![codes, names, zeros], vec![int("axis", axis)]))
    }

    /// Biases as floats: their scales are those of input times weights.
    fn biases(&mut self, node: &Node, scales: &[f32]) -> Result<String, ExportError> {
        let from = self.grid(node, node.inputs[0])?;
        let scales: Vec<f32> = scales.iter().map(|scale| from.scale * scale).collect();
        let codes = self.plain(node.inputs[2]);
        let (names, dims) = self.scales(&scales);
        let zeros = vec![0; 4 * scales.len()];
        let zeros = self.tensor("zero_points", element::INT32, &dims, zeros);
        Ok(self.add("DequantizeLinear", vec![codes, names, zeros], vec![int("axis", 0)]))
    }
}
