//! Layers of bytes.

use super::emit::{Emitter, Scales};
use super::ops::Fill;
use super::schema::{Activation, Code, Options, element};
use crate::ExportError;
use crate::int8::{is_mean, joined, weight_scales};
use plimsoll_graph::op::{Codes, Grid, Int8, Resize};
use plimsoll_graph::{Node, ValueId};
use plimsoll_tensor::{SIGMOID_SCALE, grid_code};

impl Emitter<'_> {
    pub(super) fn int8(&mut self, node: &Node, op: &Int8) -> Result<(), ExportError> {
        let (x, output) = (node.inputs[0], node.outputs[0]);
        match op {
            Int8::Quantize(_) => {
                let tensor = self.value(x)?;
                if self.is_codes(tensor) {
                    // An input that is given as codes.
                    self.set(output, tensor);
                    return Ok(());
                }
                self.finish(node, Code::Quantize, vec![tensor], Options::None)
            }
            Int8::Dequantize(_) => {
                let tensor = self.value(x)?;
                let read = self.graph.nodes.iter().any(|node| node.inputs.contains(&output));
                if !read {
                    // An output that is left as codes.
                    self.set(output, tensor);
                    return Ok(());
                }
                self.finish(node, Code::Dequantize, vec![tensor], Options::None)
            }
            Int8::Conv { geometry, groups, output: codes, .. } => {
                let (stride, dilation) = (geometry.stride, geometry.dilation);
                let (image, padding) = self.windowed(x, *geometry, Fill::Zero, false)?;
                let (activation, most) = self.activation(output, *codes)?;
                let (code, order, axis, options) = if *groups > 1 {
                    let options = Options::Depthwise { padding, stride, dilation, multiplier: 1, activation };
                    (Code::DepthwiseConv2d, [2, 0, 1, 3], 3, options)
                } else {
                    (Code::Conv2d, [3, 0, 1, 2], 0, Options::Conv { padding, stride, dilation, activation })
                };
                let scales = self.weight_scales(node)?;
                // A norm has as many scales as weights: those of its biases follow from the others, and are left out.
                let norm = *groups > 1 && geometry.window == [1, 1];
                let [weights, bias] = self.product(node, &order, Scales { scales, zero: 0, axis }, norm)?;
                self.bounded(node, code, vec![image, weights, bias], options, most)
            }
            Int8::Dense { output: codes, .. } => {
                let (activation, most) = self.activation(output, *codes)?;
                let scales = joined(self.weight_scales(node)?);
                let [weights, bias] =
                    self.product(node, &[1, 0], Scales { scales, zero: 0, axis: 0 }, false)?;
                let inputs = vec![self.value(x)?, weights, bias];
                self.bounded(node, Code::FullyConnected, inputs, Options::FullyConnected { activation }, most)
            }
            Int8::Add { output: codes, .. } => {
                let (activation, most) = self.activation(output, *codes)?;
                let inputs = vec![self.value(x)?, self.value(node.inputs[1])?];
                self.bounded(node, Code::Add, inputs, Options::Add { activation }, most)
            }
            Int8::Mul { output: codes, .. } => {
                let (activation, most) = self.activation(output, *codes)?;
                let inputs = vec![self.value(x)?, self.value(node.inputs[1])?];
                self.bounded(node, Code::Mul, inputs, Options::Mul { activation }, most)
            }
            Int8::Sigmoid(_) => {
                let inputs = vec![self.value(x)?];
                self.finish(node, Code::Logistic, inputs, Options::None)
            }
            Int8::Swish { .. } => {
                let tensor = self.value(x)?;
                let grid = Grid { scale: SIGMOID_SCALE, zero: 0 };
                let gate = self.codes_op(Code::Logistic, vec![tensor], self.shape(x), grid);
                let options = Options::Mul { activation: Activation::None };
                self.finish(node, Code::Mul, vec![tensor, gate], options)
            }
            Int8::Mean { factor, .. } => {
                let (from, to) = (self.grid(x)?, self.grid(output)?);
                if !is_mean(*factor, self.shape(x)[1] * self.shape(x)[2], from, to) {
                    return Err(self.unsupported(node, " that does not divide by its pixels"));
                }
                let inputs = vec![self.value(x)?, self.ints(&[1, 2])];
                self.finish(node, Code::Mean, inputs, Options::Reducer)
            }
            Int8::MaxPool { windows } => self.max_pool(node, *windows, Fill::Code(0)),
            Int8::AveragePool { windows } => {
                self.windows(node, *windows, Code::AveragePool2d, Fill::Zero, false)
            }
            Int8::Resize { mode, output } => {
                self.resize(node, &Resize::Forward { mode: *mode, output: *output })
            }
        }
    }

    /// The activation that bounds a layer's codes, and a bound that none has.
    fn activation(&self, output: ValueId, codes: Codes) -> Result<(Activation, Option<u8>), ExportError> {
        let Grid { scale, zero } = self.grid(output)?;
        // With zero as the smallest code, every layer is one with a relu.
        let relu = codes.low == zero;
        Ok(match codes.high {
            255 if relu && zero > 0 => (Activation::Relu, None),
            255 => (Activation::None, None),
            high if relu && high == grid_code(6.0, scale, zero) => (Activation::Relu6, None),
            high if relu => (Activation::Relu, Some(high)),
            high => (Activation::None, Some(high)),
        })
    }

    /// The scale of each output channel's weights.
    fn weight_scales(&self, node: &Node) -> Result<Vec<f32>, ExportError> {
        let (from, to) = (self.grid(node.inputs[0])?, self.grid(node.outputs[0])?);
        let scales = weight_scales(self.source, node, from, to)?;
        scales.ok_or_else(|| self.unsupported(node, " with factors that are computed"))
    }

    /// Weights, with their axes in another order, and biases of a layer; `bare`: biases without scales.
    fn product(
        &mut self,
        node: &Node,
        order: &[usize],
        weights: Scales,
        bare: bool,
    ) -> Result<[i32; 2], ExportError> {
        let from = self.grid(node.inputs[0])?;
        let biases = Scales {
            scales: weights.scales.iter().map(|scale| from.scale * scale).collect(),
            zero: 0,
            axis: 0,
        };
        let weights = self.integers(node.inputs[1], order, element::INT8, Some(weights))?;
        let biases = Some(biases).filter(|_| !bare);
        Ok([weights, self.integers(node.inputs[2], &[], element::INT32, biases)?])
    }

    /// An op whose codes are not above a bound.
    fn bounded(
        &mut self,
        node: &Node,
        code: Code,
        inputs: Vec<i32>,
        options: Options,
        most: Option<u8>,
    ) -> Result<(), ExportError> {
        self.finish(node, code, inputs, options)?;
        let Some(most) = most else { return Ok(()) };
        let (above, shape) = (self.value(node.outputs[0])?, self.shape(node.outputs[0]));
        let most = self.code(most, above);
        let tensor = self.like_op(Code::Minimum, vec![above, most], shape, Options::None);
        self.set(node.outputs[0], tensor);
        Ok(())
    }
}
