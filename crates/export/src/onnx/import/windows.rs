//! Convolution, pooling, resizing, norms and products.

use super::{Importer, Known};
use plimsoll_graph::op::{Geometry, MatMul, Norm, ResizeMode, Windows, same_padding};
use plimsoll_graph::{GraphError, Op, Role, ValueId};
use plimsoll_nn::BatchNorm;

impl Importer<'_, '_> {
    /// Two positive numbers of an attribute.
    fn pair(&self, name: &str, default: [usize; 2]) -> Result<[usize; 2], GraphError> {
        let Some(list) = self.list(name) else { return Ok(default) };
        let pair: Option<Vec<usize>> =
            list.iter().map(|&n| usize::try_from(n).ok().filter(|n| *n < 1 << 20)).collect();
        let pair = pair.and_then(|pair| <[usize; 2]>::try_from(pair).ok());
        pair.ok_or_else(|| self.wrong(format!("{name} is {list:?}: images have two axes")))
    }

    fn geometry(&self, window: [usize; 2], image: [usize; 2]) -> Result<Geometry, GraphError> {
        let window = self.pair("kernel_shape", window)?;
        let (stride, dilation) = (self.pair("strides", [1; 2])?, self.pair("dilations", [1; 2])?);
        if stride.contains(&0) || dilation.contains(&0) || window.contains(&0) {
            return Err(self.wrong("window, strides and dilations must be at least 1"));
        }
        let reach = plimsoll_graph::op::reach(window, dilation);
        let padding = match self.text("auto_pad", "NOTSET").as_str() {
            "NOTSET" => self.padding()?,
            "VALID" => [[0; 2]; 2],
            "SAME_UPPER" => same_padding(image, reach, stride),
            "SAME_LOWER" => same_padding(image, reach, stride).map(|[before, after]| [after, before]),
            other => return Err(self.wrong(format!("auto_pad {other} is not read"))),
        };
        Ok(Geometry { window, stride, padding, dilation })
    }

    fn padding(&self) -> Result<[[usize; 2]; 2], GraphError> {
        let pads = self.list("pads").unwrap_or_else(|| vec![0; 4]);
        let pads: Option<Vec<usize>> =
            pads.iter().map(|&n| usize::try_from(n).ok().filter(|n| *n < 1 << 20)).collect();
        match pads.as_deref() {
            Some(&[top, left, bottom, right]) => Ok([[top, bottom], [left, right]]),
            _ => Err(self.wrong("pads must be four numbers, at least 0")),
        }
    }

    /// The kernel of a convolution, with its axes in our order, and its window.
    fn kernel(&mut self) -> Result<(ValueId, [usize; 4]), GraphError> {
        let known = self.needed(1)?;
        let dims = match &known {
            Known::Tensor(name) => self.stored(name)?.dims,
            Known::Plain(value) | Known::Image(value) => self.net.shape(*value).to_vec(),
            Known::Ints(_) => Vec::new(),
        };
        let Ok(dims) = <[usize; 4]>::try_from(dims) else {
            return Err(self.wrong("only convolutions over images are read: the kernel must have four axes"));
        };
        let [o, i, h, w] = dims;
        let kernel = match known {
            Known::Tensor(name) => {
                let role = self.role(&name);
                self.state(&name, &[2, 3, 1, 0], vec![h, w, i, o], role)?
            }
            other => {
                let plain = self.plain_value(other)?;
                self.net.transpose(plain, &[2, 3, 1, 0])?
            }
        };
        Ok((kernel, dims))
    }

    /// Adds the bias, if there is one.
    fn with_bias(&mut self, value: ValueId, input: usize) -> Result<ValueId, GraphError> {
        match self.known(input) {
            None => Ok(value),
            Some(_) => {
                let bias = self.vector(input, None)?;
                self.net.add(value, bias)
            }
        }
    }

    /// An input that is a vector of parameters, or of statistics.
    fn vector(&mut self, input: usize, role: Option<Role>) -> Result<ValueId, GraphError> {
        match self.needed(input)? {
            Known::Tensor(name) => {
                let dims = self.stored(&name)?.dims;
                let role = role.unwrap_or_else(|| self.role(&name));
                self.state(&name, &[], dims, role)
            }
            other => self.plain_value(other),
        }
    }

    fn image_extents(&self, x: ValueId) -> Result<[usize; 2], GraphError> {
        match self.net.shape(x)[..] {
            [_, h, w, _] => Ok([h, w]),
            _ => Err(self.wrong("needs an image")),
        }
    }

    pub(super) fn conv(&mut self) -> Result<(), GraphError> {
        let x = self.image(0)?;
        let (kernel, [_, i, h, w]) = self.kernel()?;
        let geometry = self.geometry([h, w], self.image_extents(x)?)?;
        let groups = match usize::try_from(self.int("group", 1)).unwrap_or(0) {
            // A group for each channel that is left.
            2.. if i == 1 && self.narrowed.is_some() => self.net.shape(x)[3],
            groups => groups,
        };
        let y = self.net.conv2d(x, kernel, geometry, groups)?;
        let y = self.with_bias(y, 2)?;
        self.done_image(y)
    }

    pub(super) fn conv_transpose(&mut self) -> Result<(), GraphError> {
        let x = self.image(0)?;
        // [in, out, h, w] there, [h, w, out, in] here: the same order as a convolution's.
        let (kernel, [_, _, h, w]) = self.kernel()?;
        if self.int("group", 1) != 1 || self.list("output_shape").is_some() {
            return Err(self.wrong("groups and output_shape are not read"));
        }
        let image = self.image_extents(x)?;
        let geometry = self.geometry([h, w], image)?;
        let more = self.pair("output_padding", [0; 2])?;
        let reach = plimsoll_graph::op::reach(geometry.window, geometry.dilation);
        let to = [0, 1].map(|a| {
            let grown = (image[a].max(1) - 1) * geometry.stride[a] + reach[a] + more[a];
            grown.saturating_sub(geometry.padding[a][0] + geometry.padding[a][1])
        });
        let y = self.net.conv_transpose2d(x, kernel, geometry, to)?;
        let y = self.with_bias(y, 2)?;
        self.done_image(y)
    }

    pub(super) fn pool(&mut self) -> Result<(), GraphError> {
        let x = self.image(0)?;
        if self.node.output.len() > 1 && !self.node.output[1].is_empty() {
            return Err(self.wrong("the indices of a maximum are not read"));
        }
        let image = self.image_extents(x)?;
        let mut geometry = self.geometry([0; 2], image)?;
        if self.int("ceil_mode", 0) != 0 {
            // Windows that begin inside the image or its padding and end behind it.
            let reaches = plimsoll_graph::op::reach(geometry.window, geometry.dilation);
            for (a, reach) in reaches.into_iter().enumerate() {
                let padded = image[a] + geometry.padding[a][0] + geometry.padding[a][1];
                let over = padded.saturating_sub(reach) % geometry.stride[a];
                if over > 0 {
                    let more = geometry.stride[a] - over;
                    let starts = padded.saturating_sub(reach) + more;
                    if starts < image[a] + geometry.padding[a][0] {
                        if self.node.op_type == "AveragePool" && self.int("count_include_pad", 0) != 0 {
                            return Err(self.wrong("ceil_mode with count_include_pad is not read"));
                        }
                        geometry.padding[a][1] += more;
                    }
                }
            }
        }
        let windows = Windows::Sliding(geometry);
        let count_padding = self.int("count_include_pad", 0) != 0;
        let y = match self.node.op_type.as_str() {
            "MaxPool" => self.net.max_pool(x, windows)?,
            _ => self.net.average_pool(x, windows, count_padding)?,
        };
        self.done_image(y)
    }

    pub(super) fn global_pool(&mut self) -> Result<(), GraphError> {
        let x = self.image(0)?;
        self.image_extents(x)?;
        let y = match self.node.op_type.as_str() {
            "GlobalMaxPool" => self.net.max(x, &[1, 2], true)?,
            _ => self.net.mean(x, &[1, 2], true)?,
        };
        self.done_image(y)
    }

    pub(super) fn resize(&mut self) -> Result<(), GraphError> {
        let x = self.image(0)?;
        let [h, w] = self.image_extents(x)?;
        let output = match self.optional_ints(3)? {
            Some(sizes) => match (sizes[..].len(), &sizes[..]) {
                (4, [.., h, w]) | (2, [h, w]) => [*h, *w].map(|n| usize::try_from(n).unwrap_or(0)),
                _ => return Err(self.wrong("sizes must be those of an image")),
            },
            None => {
                let scales = self.scales()?;
                [(h as f64 * scales[0]).floor() as usize, (w as f64 * scales[1]).floor() as usize]
            }
        };
        let coordinates = self.text("coordinate_transformation_mode", "half_pixel");
        let mode = match (self.text("mode", "nearest").as_str(), coordinates.as_str()) {
            ("nearest", "asymmetric") if self.text("nearest_mode", "round_prefer_floor") == "floor" => {
                ResizeMode::Nearest
            }
            // Whole multiples: the same element for every mode.
            ("nearest", _) if output[0] % h.max(1) == 0 && output[1] % w.max(1) == 0 => ResizeMode::Nearest,
            ("linear", "half_pixel" | "pytorch_half_pixel") => ResizeMode::Bilinear { align_corners: false },
            ("linear", "align_corners") => ResizeMode::Bilinear { align_corners: true },
            (mode, coordinates) => return Err(self.wrong(format!("{mode} with {coordinates} is not read"))),
        };
        if output.iter().any(|&n| n > 1 << 16) {
            return Err(self.wrong(format!("an image of {output:?} is too large")));
        }
        let y = self.net.resize(x, mode, output)?;
        self.done_image(y)
    }

    /// The factors of height and width.
    fn scales(&self) -> Result<[f64; 2], GraphError> {
        let missing = || self.wrong("needs constant scales or sizes");
        let Some(Known::Tensor(name)) = self.known(2) else { return Err(missing()) };
        let tensor = self.stored(&name)?;
        let count = tensor.elements();
        if !tensor.is_float() || !(count == 4 || count == 2) {
            return Err(missing());
        }
        let mut bytes = vec![0; count * 4];
        self.model.file.read(&tensor, 0, &mut bytes).map_err(|e| self.wrong(e.to_string()))?;
        let scales: Vec<f64> =
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
        let last = [scales[count - 2], scales[count - 1]];
        last.iter().all(|s| s.is_finite() && *s > 0.0).then_some(last).ok_or_else(missing)
    }

    pub(super) fn batch_norm(&mut self) -> Result<(), GraphError> {
        if self.int("training_mode", 0) != 0 {
            return Err(self.wrong("the model was exported for training: export it for inference"));
        }
        let known = self.needed(0)?;
        let rank = self.rank(&known)?;
        let (x, image) = match rank {
            4 => (self.image_value(known)?, true),
            2 => (self.plain_value(known)?, false),
            _ => return Err(self.wrong(format!("needs images or rows, it has {rank} axes"))),
        };
        let [gain, bias] = [self.vector(1, None)?, self.vector(2, None)?];
        let statistic = Some(Role::Statistic);
        let [mean, variance] = [self.vector(3, statistic)?, self.vector(4, statistic)?];
        let norm =
            BatchNorm::new().eps(self.float("epsilon", 1e-5)).momentum(1.0 - self.float("momentum", 0.9));
        let y = match self.model.trains_norms {
            true => norm.normalise(self.net, x, [gain, bias, mean, variance])?,
            false => norm.with_running(self.net, x, [gain, bias, mean, variance])?,
        };
        if image { self.done_image(y) } else { self.done(y) }
    }

    pub(super) fn layer_norm(&mut self) -> Result<(), GraphError> {
        let x = self.plain(0)?;
        let rank = self.net.shape(x).rank();
        if self.axis(self.int("axis", -1), rank)? + 1 != rank {
            return Err(self.wrong("only norms over the last axis are read"));
        }
        if self.node.output.iter().skip(1).any(|name| !name.is_empty()) {
            return Err(self.wrong("statistics as outputs are not read"));
        }
        let gain = self.vector(1, None)?;
        let bias = match self.known(2) {
            Some(_) => self.vector(2, None)?,
            None => {
                let dtype = self.net.dtype;
                let zero = self.net.constant(0.0, dtype)?;
                let shape = self.net.shape(gain).clone();
                self.net.broadcast_to(zero, shape)?
            }
        };
        let eps = self.float("epsilon", 1e-5);
        let y = self.net.one(Op::Norm(Norm::Layer { eps }), &[x, gain, bias])?;
        self.done(y)
    }

    pub(super) fn gemm(&mut self) -> Result<(), GraphError> {
        if self.float("alpha", 1.0) != 1.0 || (self.float("beta", 1.0) != 1.0 && self.known(2).is_some()) {
            return Err(self.wrong("alpha and beta other than 1 are not read"));
        }
        let (a, b) = (self.plain(0)?, self.plain(1)?);
        let op = MatMul {
            transpose_a: self.int("transA", 0) != 0,
            transpose_b: self.int("transB", 0) != 0,
            ..MatMul::default()
        };
        let y = self.net.one(Op::MatMul(op), &[a, b])?;
        let y = self.with_bias(y, 2)?;
        self.done(y)
    }

    pub(super) fn matmul(&mut self) -> Result<(), GraphError> {
        let (a, b) = (self.plain(0)?, self.plain(1)?);
        let (left, right) = (self.net.shape(a).to_vec(), self.net.shape(b).to_vec());
        if left.len() < 2 || right.len() < 2 {
            return Err(self.wrong("needs matrices on both sides"));
        }
        let y = match (left.len(), right.len()) {
            (2, 2) => self.net.matmul(a, b)?,
            (_, 2) => self.net.linear(a, b, None)?,
            // A matrix from the left of many: transposed, it comes from the right.
            (2, rank) => {
                let mut swapped: Vec<usize> = (0..rank).collect();
                swapped.swap(rank - 1, rank - 2);
                let turned = self.net.transpose(b, &swapped)?;
                let shape = self.net.shape(turned).clone();
                let width = right[rank - 2];
                let rows = self.net.reshape(turned, [shape.elements() / width.max(1), width])?;
                let product = self.net.matmul_transposed(rows, a, false, true)?;
                let product = self.net.reshape(product, [&shape[..rank - 1], &[left[0]]].concat())?;
                self.net.transpose(product, &swapped)?
            }
            _ => {
                let lead = |shape: &[usize]| plimsoll_tensor::Shape::from(shape[..shape.len() - 2].to_vec());
                let common = lead(&left).broadcast(&lead(&right));
                let common =
                    common.ok_or_else(|| self.wrong(format!("{left:?} and {right:?} do not fit")))?;
                let spread = |shape: &[usize]| [&common[..], &shape[shape.len() - 2..]].concat();
                let a = self.net.broadcast_to(a, spread(&left))?;
                let b = self.net.broadcast_to(b, spread(&right))?;
                self.net.matmul(a, b)?
            }
        };
        self.done(y)
    }
}
