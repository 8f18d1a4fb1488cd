//! From nodes to TFLite ops.

use super::emit::Emitter;
use super::schema::{Activation, Code, Options, Padding};
use crate::ExportError;
use crate::pattern::Pattern;
use plimsoll_graph::op::{
    Attention, Binary, Conv, Elementwise, Geometry, Index, MatMul, Movement, Norm, Pool, Reduce, Resize,
    ResizeMode, Span, Unary, Windows, reach, same_padding,
};
use plimsoll_graph::{Node, NodeId, Op, Origin, ValueId};
use plimsoll_tensor::DType;

/// What an image is padded with.
#[derive(Clone, Copy)]
pub(super) enum Fill {
    /// Zero, or its code.
    Zero,
    Number(f32),
    /// A code of bytes.
    Code(u8),
}

impl Emitter<'_> {
    pub(super) fn node(&mut self, id: NodeId) -> Result<(), ExportError> {
        let graph = self.graph;
        let node = graph.node(id);
        if let Some(pattern) = self.patterns[id.index()].clone() {
            return self.pattern(node, &pattern);
        }
        match &node.op {
            Op::Elementwise(op) => self.elementwise(node, op),
            Op::Movement(op) => self.movement(node, op),
            Op::Reduce(op) => self.reduce(node, op),
            Op::MatMul(op) => self.matmul(node, op, None),
            Op::Conv(op) => self.conv(node, op, None),
            Op::Pool(op) => self.pool(node, op),
            Op::Resize(op) => self.resize(node, op),
            Op::Norm(op) => self.norm(node, op),
            Op::Attention(op) => self.attention(node, op),
            Op::Int8(op) => self.int8(node, op),
            Op::Index(Index::Gather) => {
                let inputs = self.all(node)?;
                self.finish(node, Code::Gather, inputs, Options::None)
            }
            Op::Index(_)
            | Op::Fused(_)
            | Op::Recurrent(_)
            | Op::Loss(_)
            | Op::Random(_)
            | Op::Quantise(_)
            | Op::Prune(_)
            | Op::Exchange(_) => Err(self.unsupported(node, "")),
        }
    }

    fn all(&mut self, node: &Node) -> Result<Vec<i32>, ExportError> {
        node.inputs.iter().map(|&value| self.value(value)).collect()
    }

    fn pattern(&mut self, node: &Node, pattern: &Pattern) -> Result<(), ExportError> {
        match *pattern {
            Pattern::BatchNorm { x, gain, bias, mean, variance, eps } => {
                // Known numbers: one factor and one summand for each channel.
                let read = [gain, bias, mean, variance].map(|v| self.source.vector(v, f32::from_le_bytes));
                let [Ok(Some(gain)), Ok(Some(bias)), Ok(Some(mean)), Ok(Some(variance))] = read else {
                    return Err(self.unsupported(node, " of statistics that are computed"));
                };
                let factor = |c: usize| f64::from(gain[c]) / (f64::from(variance[c]) + eps).sqrt();
                let factors: Vec<f32> = (0..gain.len()).map(|c| factor(c) as f32).collect();
                let shifts: Vec<f32> = (0..gain.len())
                    .map(|c| (f64::from(bias[c]) - f64::from(mean[c]) * factor(c)) as f32)
                    .collect();
                let (x, shape) = (self.value(x)?, self.shape(x));
                let factors = self.floats(&[gain.len()], &factors);
                let scaled = self.float_op(Code::Mul, vec![x, factors], shape, Options::None);
                let shifts = self.floats(&[gain.len()], &shifts);
                self.finish(node, Code::Add, vec![scaled, shifts], Options::None)
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
                let shape = self.shape(x);
                let x = self.value(x)?;
                if high == 6.0 {
                    return self.finish(node, Code::Relu6, vec![x], Options::None);
                }
                let above = self.float_op(Code::Relu, vec![x], shape, Options::None);
                let high = self.number(high, DType::F32);
                self.finish(node, Code::Minimum, vec![above, high], Options::None)
            }
            Pattern::Gelu { x } => {
                let x = self.value(x)?;
                self.finish(node, Code::Gelu, vec![x], Options::None)
            }
            Pattern::Fill { value } => {
                let ty = self.graph.ty(node.outputs[0]).clone();
                let values = vec![value as f32; ty.shape.elements()];
                let tensor = self.floats(&ty.shape, &values);
                self.set(node.outputs[0], tensor);
                Ok(())
            }
        }
    }

    fn elementwise(&mut self, node: &Node, op: &Elementwise) -> Result<(), ExportError> {
        if let Elementwise::Constant { value, dtype } = *op {
            let tensor = self.number(value, dtype);
            self.set(node.outputs[0], tensor);
            return Ok(());
        }
        let inputs = self.all(node)?;
        let code = match *op {
            Elementwise::Unary(op) => match op {
                Unary::Neg => Code::Neg,
                Unary::Abs => Code::Abs,
                Unary::Square => Code::Square,
                Unary::Sqrt => Code::Sqrt,
                Unary::Rsqrt => Code::Rsqrt,
                Unary::Exp => Code::Exp,
                Unary::Log => Code::Log,
                Unary::Tanh => Code::Tanh,
                Unary::Sigmoid => Code::Logistic,
                Unary::Relu => Code::Relu,
                Unary::Sin => Code::Sin,
                Unary::Cos => Code::Cos,
                Unary::Floor => Code::Floor,
                Unary::Round => Code::Round,
                Unary::Erf | Unary::Log1p | Unary::Expm1 | Unary::Softplus | Unary::Ceil | Unary::Sign => {
                    return Err(self.unsupported(node, ""));
                }
            },
            Elementwise::Binary(op) => match op {
                Binary::Add => Code::Add,
                Binary::Sub => Code::Sub,
                Binary::Mul => Code::Mul,
                Binary::Div => Code::Div,
                Binary::Max => Code::Maximum,
                Binary::Min => Code::Minimum,
                Binary::Pow => Code::Pow,
                Binary::Greater => Code::Greater,
                Binary::GreaterEqual => Code::GreaterEqual,
                Binary::Equal => Code::Equal,
            },
            Elementwise::Select => Code::SelectV2,
            Elementwise::Cast(_) => Code::Cast,
            Elementwise::Constant { .. } => return Ok(()),
        };
        self.finish(node, code, inputs, Options::None)
    }

    fn movement(&mut self, node: &Node, op: &Movement) -> Result<(), ExportError> {
        let (x, output) = (node.inputs[0], node.outputs[0]);
        let to: Vec<i32> = super::emit::extents(self.shape(output));
        match op {
            Movement::Detach => {
                let tensor = self.value(x)?;
                self.set(output, tensor);
                Ok(())
            }
            Movement::Reshape(_) => {
                let inputs = vec![self.value(x)?, self.ints(&to)];
                self.finish(node, Code::Reshape, inputs, Options::None)
            }
            Movement::Transpose(axes) => {
                let axes: Vec<i32> = axes.iter().map(|&axis| axis as i32).collect();
                let inputs = vec![self.value(x)?, self.ints(&axes)];
                self.finish(node, Code::Transpose, inputs, Options::None)
            }
            Movement::Broadcast(_) => {
                let inputs = vec![self.value(x)?, self.ints(&to)];
                self.finish(node, Code::BroadcastTo, inputs, Options::None)
            }
            Movement::Slice(spans) => {
                let inputs = self.slice(x, spans)?;
                self.finish(node, Code::StridedSlice, inputs, Options::None)
            }
            Movement::Split { axis, extents } => {
                let mut start = 0;
                for (&output, &extent) in node.outputs.iter().zip(extents) {
                    let mut spans: Vec<Span> = self.shape(x).iter().map(|&n| Span::whole(n)).collect();
                    spans[*axis] = Span { start, extent, step: 1 };
                    let inputs = self.slice(x, &spans)?;
                    let shape = self.shape(output);
                    let tensor = self.float_op(Code::StridedSlice, inputs, shape, Options::None);
                    self.set(output, tensor);
                    start += extent;
                }
                Ok(())
            }
            Movement::Pad { shape, spans, value } => {
                if spans.iter().any(|span| span.step != 1) {
                    return Err(self.unsupported(node, " between elements"));
                }
                let sides = |axis: usize| {
                    let Span { start, extent, .. } = spans[axis];
                    [start, shape[axis] - start - extent]
                };
                let around: Vec<[usize; 2]> = (0..spans.len()).map(sides).collect();
                let x = self.value(x)?;
                let inputs = self.padded(x, &around, *value);
                self.finish(node, Code::PadV2, inputs, Options::None)
            }
            Movement::Concat { axis } => {
                let inputs = self.all(node)?;
                self.finish(node, Code::Concatenation, inputs, Options::Concatenation { axis: *axis })
            }
        }
    }

    /// The inputs of a padding op.
    fn padded(&mut self, x: i32, around: &[[usize; 2]], value: f64) -> Vec<i32> {
        vec![x, self.pads(around), self.floats(&[], &[value as f32])]
    }

    /// How much is added before and after each axis.
    fn pads(&mut self, around: &[[usize; 2]]) -> i32 {
        let bytes = around.iter().flatten().flat_map(|&n| (n as i32).to_le_bytes()).collect();
        self.constant(super::schema::element::INT32, vec![around.len() as i32, 2], bytes)
    }

    /// The inputs of a slice.
    fn slice(&mut self, x: ValueId, spans: &[Span]) -> Result<Vec<i32>, ExportError> {
        let start: Vec<i32> = spans.iter().map(|span| span.start as i32).collect();
        // Backwards, the end before the first element is one below minus the extent.
        let end = |(span, &extent): (&Span, &usize)| {
            let end = span.start as i64 + span.extent as i64 * span.step as i64;
            (if end < 0 { end - extent as i64 } else { end }) as i32
        };
        let end: Vec<i32> = spans.iter().zip(self.shape(x)).map(end).collect();
        let step: Vec<i32> = spans.iter().map(|span| span.step as i32).collect();
        Ok(vec![self.value(x)?, self.ints(&start), self.ints(&end), self.ints(&step)])
    }

    fn reduce(&mut self, node: &Node, op: &Reduce) -> Result<(), ExportError> {
        let (start, end, code) = match *op {
            Reduce::Sum { start, end } => (start, end, Code::Sum),
            Reduce::Max { start, end } => (start, end, Code::ReduceMax),
            _ => return Err(self.unsupported(node, "")),
        };
        let axes: Vec<i32> = (start..end).map(|axis| axis as i32).collect();
        let inputs = vec![self.value(node.inputs[0])?, self.ints(&axes)];
        self.finish(node, code, inputs, Options::Reducer)
    }

    fn matmul(&mut self, node: &Node, op: &MatMul, bias: Option<ValueId>) -> Result<(), ExportError> {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let rank = self.shape(a).len();
        if rank == 2 && !op.transpose_a && matches!(self.graph.origin(b), Origin::State(_)) {
            // Weights are [outputs, inputs].
            let order: &[usize] = if op.transpose_b { &[] } else { &[1, 0] };
            let mut inputs = vec![self.value(a)?, self.weight(b, order, Some(None))?];
            if let Some(bias) = bias {
                inputs.push(self.value(bias)?);
            }
            let options = Options::FullyConnected { activation: Activation::None };
            return self.finish(node, Code::FullyConnected, inputs, options);
        }
        if bias.is_some() {
            return Err(self.unsupported(node, " with a bias and no weights"));
        }
        let mut swapped: Vec<usize> = (0..rank).collect();
        swapped.swap(rank - 1, rank - 2);
        let mut operand = |value: ValueId, swap: bool| match swap {
            true => self.weight(value, &swapped, None),
            false => self.value(value),
        };
        let inputs = vec![operand(a, op.transpose_a)?, operand(b, op.transpose_b)?];
        self.finish(node, Code::BatchMatmul, inputs, Options::None)
    }

    /// The padding of a window as TFLite has it.
    pub(super) fn padding(g: Geometry, image: [usize; 2]) -> Option<Padding> {
        let same = same_padding(image, reach(g.window, g.dilation), g.stride);
        match g.padding {
            [[0, 0], [0, 0]] => Some(Padding::Valid),
            padding if padding == same => Some(Padding::Same),
            _ => None,
        }
    }

    /// An image as a window takes it: padded before where TFLite has no padding of that kind, or where `always` is set.
    pub(super) fn windowed(
        &mut self,
        x: ValueId,
        g: Geometry,
        fill: Fill,
        always: bool,
    ) -> Result<(i32, Padding), ExportError> {
        let &[n, h, w, c] = self.shape(x) else { return Ok((self.value(x)?, Padding::Valid)) };
        let tensor = self.value(x)?;
        Ok(match Self::padding(g, [h, w]) {
            Some(padding) if padding == Padding::Valid || !always => (tensor, padding),
            _ => {
                let [[top, bottom], [left, right]] = g.padding;
                let pads = self.pads(&[[0, 0], [top, bottom], [left, right], [0, 0]]);
                let mut inputs = vec![tensor, pads];
                let code = match fill {
                    Fill::Zero => Code::Pad,
                    Fill::Number(value) => {
                        inputs.push(self.floats(&[], &[value]));
                        Code::PadV2
                    }
                    Fill::Code(code) => {
                        inputs.push(self.code(code, tensor));
                        Code::PadV2
                    }
                };
                let shape = [n, h + top + bottom, w + left + right, c];
                (self.like_op(code, inputs, &shape, Options::None), Padding::Valid)
            }
        })
    }

    fn conv(&mut self, node: &Node, op: &Conv, bias: Option<ValueId>) -> Result<(), ExportError> {
        let (x, kernel) = (node.inputs[0], node.inputs[1]);
        match *op {
            Conv::Forward { geometry, groups, .. } => {
                let (stride, dilation, activation) = (geometry.stride, geometry.dilation, Activation::None);
                let (image, padding) = self.windowed(x, geometry, Fill::Zero, false)?;
                let channels = self.shape(x)[3];
                let depthwise = groups == channels && groups > 1;
                let (code, weights, options) = if depthwise {
                    let multiplier = self.shape(kernel)[3] / channels.max(1);
                    let weights = self.weight(kernel, &[2, 0, 1, 3], Some(Some(3)))?;
                    (
                        Code::DepthwiseConv2d,
                        weights,
                        Options::Depthwise { padding, stride, dilation, multiplier, activation },
                    )
                } else {
                    let weights = self.weight(kernel, &[3, 0, 1, 2], Some(Some(0)))?;
                    (Code::Conv2d, weights, Options::Conv { padding, stride, dilation, activation })
                };
                let bias = match bias {
                    Some(bias) => self.value(bias)?,
                    None => {
                        let outputs = self.shape(kernel)[3];
                        self.floats(&[outputs], &vec![0.0; outputs])
                    }
                };
                self.finish(node, code, vec![image, weights, bias], options)
            }
            Conv::InputGrad { geometry, groups: 1, image, .. } => {
                let Some(padding) = Self::padding(geometry, image) else {
                    return Err(self.unsupported(node, " with this padding"));
                };
                let exact = (0..2).all(|a| {
                    let grown = (self.shape(x)[a + 1] - 1) * geometry.stride[a] + geometry.window[a];
                    padding == Padding::Same || grown == image[a]
                });
                if !exact || geometry.dilation != [1, 1] {
                    return Err(self.unsupported(node, " of this size"));
                }
                let shape = self.shape(node.outputs[0]);
                let to = super::emit::extents(shape);
                // Weights are [outputs, height, width, inputs]; ours [height, width, outputs, inputs].
                let inputs = vec![self.ints(&to), self.weight(kernel, &[2, 0, 1, 3], None)?, self.value(x)?];
                let options = Options::TransposeConv { padding, stride: geometry.stride };
                let Some(bias) = bias else { return self.finish(node, Code::TransposeConv, inputs, options) };
                let grown = self.float_op(Code::TransposeConv, inputs, shape, options);
                let inputs = vec![grown, self.value(bias)?];
                self.finish(node, Code::Add, inputs, Options::None)
            }
            Conv::InputGrad { .. } => Err(self.unsupported(node, " in groups")),
            Conv::WeightGrad { .. } => Err(self.unsupported(node, "")),
        }
    }

    fn pool(&mut self, node: &Node, op: &Pool) -> Result<(), ExportError> {
        match *op {
            Pool::Max { windows } => self.max_pool(node, windows, Fill::Number(f32::MIN)),
            Pool::Average { windows, count_padding } => {
                self.windows(node, windows, Code::AveragePool2d, Fill::Zero, count_padding)
            }
            Pool::MaxGrad { .. } | Pool::AverageGrad { .. } => Err(self.unsupported(node, "")),
        }
    }

    /// The largest elements of windows, which are padded with what is never the largest.
    pub(super) fn max_pool(&mut self, node: &Node, windows: Windows, fill: Fill) -> Result<(), ExportError> {
        self.windows(node, windows, Code::MaxPool2d, fill, false)
    }

    /// Elements of windows as one. `counts`: padding is a part of the image.
    pub(super) fn windows(
        &mut self,
        node: &Node,
        windows: Windows,
        code: Code,
        fill: Fill,
        counts: bool,
    ) -> Result<(), ExportError> {
        let x = node.inputs[0];
        let &[_, h, w, _] = self.shape(x) else { return Err(self.unsupported(node, "")) };
        let geometry = match windows {
            Windows::Sliding(geometry) => geometry,
            Windows::Adaptive { output } if h % output[0] == 0 && w % output[1] == 0 => {
                let window = [h / output[0], w / output[1]];
                Geometry { window, stride: window, padding: [[0; 2]; 2], dilation: [1; 2] }
            }
            // Every window is the one element.
            Windows::Adaptive { output } if [h, w] == [1, 1] => {
                let times = self.ints(&[1, output[0] as i32, output[1] as i32, 1]);
                let inputs = vec![self.value(x)?, times];
                return self.finish(node, Code::Tile, inputs, Options::None);
            }
            Windows::Adaptive { .. } => {
                return Err(self.unsupported(node, " with windows of several sizes"));
            }
        };
        if geometry.dilation != [1, 1] {
            return Err(self.unsupported(node, " with dilated windows"));
        }
        // TFLite's means count elements of the image alone; zeros that are added before are a part of it.
        let (tensor, padding) = self.windowed(x, geometry, fill, counts)?;
        if code == Code::AveragePool2d && !counts && tensor != self.value(x)? {
            return Err(self.unsupported(node, " with this padding"));
        }
        let options = Options::Pool { padding, stride: geometry.stride, window: geometry.window };
        self.finish(node, code, vec![tensor], options)
    }

    pub(super) fn resize(&mut self, node: &Node, op: &Resize) -> Result<(), ExportError> {
        let Resize::Forward { mode, output } = *op else { return Err(self.unsupported(node, "")) };
        let inputs = vec![self.value(node.inputs[0])?, self.ints(&output.map(|n| n as i32))];
        match mode {
            ResizeMode::Nearest => self.finish(node, Code::ResizeNearestNeighbor, inputs, Options::Nearest),
            ResizeMode::Bilinear { align_corners } => {
                self.finish(node, Code::ResizeBilinear, inputs, Options::Bilinear { align_corners })
            }
        }
    }

    fn norm(&mut self, node: &Node, op: &Norm) -> Result<(), ExportError> {
        let Norm::Layer { eps } = *op else { return Err(self.unsupported(node, "")) };
        let shape = self.shape(node.inputs[0]);
        let last = [shape.len() as i32 - 1];
        let mut rows = shape.to_vec();
        rows[last[0] as usize] = 1;
        let (x, axis) = (self.value(node.inputs[0])?, self.ints(&last));
        let mean = self.float_op(Code::Mean, vec![x, axis], &rows, Options::Reducer);
        let centred = self.float_op(Code::Sub, vec![x, mean], shape, Options::None);
        let squares = self.float_op(Code::Mul, vec![centred, centred], shape, Options::None);
        let variance = self.float_op(Code::Mean, vec![squares, axis], &rows, Options::Reducer);
        let eps = self.number(eps, DType::F32);
        let shifted = self.float_op(Code::Add, vec![variance, eps], &rows, Options::None);
        let rstd = self.float_op(Code::Rsqrt, vec![shifted], &rows, Options::None);
        let normal = self.float_op(Code::Mul, vec![centred, rstd], shape, Options::None);
        let gain = self.value(node.inputs[1])?;
        let scaled = self.float_op(Code::Mul, vec![normal, gain], shape, Options::None);
        let bias = self.value(node.inputs[2])?;
        self.finish(node, Code::Add, vec![scaled, bias], Options::None)
    }

    fn attention(&mut self, node: &Node, op: &Attention) -> Result<(), ExportError> {
        let Attention::Forward { causal: false, masked: false, .. } = *op else {
            return Err(self.unsupported(node, " with a mask"));
        };
        let [q, k, v] = [node.inputs[0], node.inputs[1], node.inputs[2]];
        let (&[n, queries, heads, width], &[_, keys, key_heads, _]) = (self.shape(q), self.shape(k)) else {
            return Err(self.unsupported(node, ""));
        };
        if heads != key_heads {
            return Err(self.unsupported(node, " with shared key heads"));
        }
        let [q, k, v] = [self.value(q)?, self.value(k)?, self.value(v)?];
        let q = self.transposed(q, &[n, heads, queries, width], &[0, 2, 1, 3]);
        let k = self.transposed(k, &[n, heads, width, keys], &[0, 2, 3, 1]);
        let v = self.transposed(v, &[n, heads, keys, width], &[0, 2, 1, 3]);
        let scale = self.number(1.0 / (width as f64).sqrt(), DType::F32);
        let q = self.float_op(Code::Mul, vec![q, scale], &[n, heads, queries, width], Options::None);
        let pairs = [n, heads, queries, keys];
        let scores = self.float_op(Code::BatchMatmul, vec![q, k], &pairs, Options::None);
        let shares = self.float_op(Code::Softmax, vec![scores], &pairs, Options::Softmax);
        let y = self.float_op(Code::BatchMatmul, vec![shares, v], &[n, heads, queries, width], Options::None);
        let order = self.ints(&[0, 2, 1, 3]);
        self.finish(node, Code::Transpose, vec![y, order], Options::None)
    }
}
