//! Convolution, pooling, resizing.

use super::{Emitter, Order, int, ints, text};
use crate::ExportError;
use crate::onnx::proto::AttributeProto;
use plimsoll_graph::op::{Conv, Geometry, Pool, Resize, ResizeMode, Windows};
use plimsoll_graph::{Node, ValueId};

/// The attributes of a window.
pub(super) fn window(geometry: Geometry) -> Vec<AttributeProto> {
    let [[top, bottom], [left, right]] = geometry.padding;
    let mut attributes = vec![
        ints("kernel_shape", &geometry.window),
        ints("strides", &geometry.stride),
        ints("pads", &[top, left, bottom, right]),
        ints("dilations", &geometry.dilation),
    ];
    attributes.retain(|a| a.name != "dilations" || a.ints != [1, 1]);
    attributes
}

/// Windows of an image that are all of one size.
pub(super) fn sliding(windows: Windows, [h, w]: [usize; 2]) -> Option<Geometry> {
    match windows {
        Windows::Sliding(geometry) => Some(geometry),
        Windows::Adaptive { output: to } if h % to[0] == 0 && w % to[1] == 0 => {
            let window = [h / to[0], w / to[1]];
            Some(Geometry { window, stride: window, padding: [[0; 2]; 2], dilation: [1; 2] })
        }
        Windows::Adaptive { .. } => None,
    }
}

impl Emitter<'_> {
    pub(super) fn conv(&mut self, node: &Node, op: &Conv, bias: Option<ValueId>) -> Result<(), ExportError> {
        let (x, kernel) = (node.inputs[0], node.inputs[1]);
        let (name, attributes) = match *op {
            Conv::Forward { geometry, groups, .. } => {
                let mut attributes = window(geometry);
                attributes.push(int("group", groups as i64));
                ("Conv", attributes)
            }
            // The transposed convolution: kernels are [kh, kw, out, in] here and [in, out, kh, kw] there.
            Conv::InputGrad { geometry, groups: 1, image, .. } => {
                let mut attributes = window(geometry);
                attributes.push(int("group", 1));
                attributes.push(ints("output_padding", &self.output_padding(geometry, image, x)));
                ("ConvTranspose", attributes)
            }
            Conv::InputGrad { .. } => return Err(self.unsupported(node, " in groups")),
            Conv::WeightGrad { .. } => return Err(self.unsupported(node, "")),
        };
        let kernel = self.ordered(kernel, &[3, 2, 0, 1]);
        let mut inputs = vec![self.image(x), kernel];
        inputs.extend(bias.map(|bias| self.plain(bias)));
        let name = self.add(name, inputs, attributes);
        self.set(node.outputs[0], Order::Image, name);
        Ok(())
    }

    /// What the image is larger than the windows reach.
    fn output_padding(&self, g: Geometry, image: [usize; 2], x: ValueId) -> [usize; 2] {
        [0, 1].map(|a| {
            let reach = g.dilation[a] * (g.window[a] - 1) + 1;
            let grown = (self.shape(x)[a + 1] - 1) * g.stride[a] + reach;
            (image[a] + g.padding[a][0] + g.padding[a][1]).saturating_sub(grown)
        })
    }

    pub(super) fn pool(&mut self, node: &Node, op: &Pool) -> Result<(), ExportError> {
        let (x, output) = (node.inputs[0], node.outputs[0]);
        let &[_, h, w, _] = self.shape(x) else { return Err(self.unsupported(node, "")) };
        let (windows, name) = match op {
            Pool::Max { windows } => (windows, "MaxPool"),
            Pool::Average { windows, .. } => (windows, "AveragePool"),
            Pool::MaxGrad { .. } | Pool::AverageGrad { .. } => return Err(self.unsupported(node, "")),
        };
        let geometry = match (sliding(*windows, [h, w]), *windows) {
            (Some(geometry), _) => geometry,
            (_, Windows::Adaptive { output: to }) if name == "AveragePool" => {
                let image = self.image(x);
                let means = self.adaptive_average(image, [h, w], to);
                self.set(output, Order::Image, means);
                return Ok(());
            }
            _ => return Err(self.unsupported(node, " with windows of several sizes")),
        };
        let mut attributes = window(geometry);
        if let Pool::Average { count_padding: true, .. } = op {
            attributes.push(int("count_include_pad", 1));
        }
        let x = self.image(x);
        let name = self.add(name, vec![x], attributes);
        self.set(output, Order::Image, name);
        Ok(())
    }

    /// Means over windows of several sizes, as products with matrices of shares.
    pub(super) fn adaptive_average(&mut self, image: String, from: [usize; 2], to: [usize; 2]) -> String {
        let share = |axis: usize, window: usize, element: usize| {
            let (n, count) = (from[axis], to[axis]);
            let (start, end) = (window * n / count, ((window + 1) * n).div_ceil(count));
            if (start..end).contains(&element) { 1.0 / (end - start) as f64 } else { 0.0 }
        };
        let [h, w] = from;
        let rows = (0..to[0]).flat_map(|i| (0..h).map(move |j| share(0, i, j)));
        let rows = self.floats(&[to[0], h], rows);
        let columns = (0..w).flat_map(|j| (0..to[1]).map(move |i| share(1, i, j)));
        let columns = self.floats(&[w, to[1]], columns);
        let means = self.add("MatMul", vec![rows, image], vec![]);
        self.add("MatMul", vec![means, columns], vec![])
    }

    pub(super) fn resize(&mut self, node: &Node, op: &Resize) -> Result<(), ExportError> {
        let Resize::Forward { mode, .. } = *op else { return Err(self.unsupported(node, "")) };
        let image = self.image(node.inputs[0]);
        let name = self.resized(image, mode, node.outputs[0]);
        self.set(node.outputs[0], Order::Image, name);
        Ok(())
    }

    /// An image at the size of a value. All four extents are given: with those of two axes alone, onnxruntime cannot move a transpose past
    /// it.
    pub(super) fn resized(&mut self, image: String, mode: ResizeMode, output: ValueId) -> String {
        let mut attributes = Vec::new();
        match mode {
            ResizeMode::Nearest => attributes.extend([
                text("mode", "nearest"),
                text("coordinate_transformation_mode", "asymmetric"),
                text("nearest_mode", "floor"),
            ]),
            ResizeMode::Bilinear { align_corners } => {
                let corners = if align_corners { "align_corners" } else { "half_pixel" };
                attributes.extend([text("mode", "linear"), text("coordinate_transformation_mode", corners)]);
            }
        }
        let sizes = self.image_shape_tensor(output);
        self.add("Resize", vec![image, String::new(), String::new(), sizes], attributes)
    }
}
