//! Post-training quantization to bytes: a graph that does not train, its layers replaced by those of bytes.

mod aware;
mod comparison;
mod fold;
mod layers;
mod scores;

pub use aware::QuantizeAware;
pub use comparison::LayerNoise;

use layers::{Analysis, Layer, Output, Step, Weights};
use plimsoll_graph::op::{Binary, Codes, Factor, Geometry, Grid, Int8, Movement, Reduce};
use plimsoll_graph::{Builder, Graph, GraphError, Init, NodeId, Op, Role, State, ValueId};
use plimsoll_nn::Pattern;
use plimsoll_tensor::{DType, SIGMOID_SCALE, Shape, Tensor, TensorType, fixed_point_of, grid_code};
use plimsoll_transform::Rewriter;
use std::collections::BTreeMap;

/// The last part of the name of a layer's weights on bytes, behind the name of its kernel.
pub const CODES: &str = "codes";

/// The last parts of the names of a layer's states; the first is its kernel's name.
const STATES: [&str; 4] = [CODES, "bias", "multipliers", "shifts"];

/// The name of the outputs of a calibration: the largest and the smallest element of each example, for each place in turn.
const RANGE: &str = "output/range";

/// The grids of a quantized model: one for each place between its layers whose range was measured, in order.
///
/// Convolutions and dense layers, with the batch norm and the activation behind them, batch norms of images, sums and products of
/// branches, concatenations, sigmoid and swish, means and maxima of images run on bytes; what is between them and has no such form runs in
/// f32. The scheme is TFLite's: weights symmetric, with a scale for each output channel of a convolution and one for a dense layer;
/// activations with a scale and a zero point; biases in 32 bits at the scale of input times weights. What is concatenated shares a grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Grids {
    grids: Vec<Grid>,
    kept: KeptLayers,
}

/// Layers that stay in f32 though they could run on bytes, by the [`Pattern`]s of their names.
///
/// ```
/// use plimsoll_compress::KeptLayers;
/// let kept = KeptLayers::new(["conv1", "block*/gate"]);
/// assert!(kept.matches("conv1") && kept.matches("block2/gate/fc1") && !kept.matches("conv10"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptLayers(Vec<Pattern>);

impl KeptLayers {
    /// Those that these patterns match.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        Self(patterns.into_iter().map(Pattern::new).collect())
    }

    /// Whether a layer is kept.
    pub fn matches(&self, layer: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(layer))
    }

    /// The patterns.
    pub fn iter(&self) -> impl Iterator<Item = &Pattern> + '_ {
        self.0.iter()
    }

    /// The first pattern that matches no layer of a graph.
    pub fn unknown(&self, graph: &Graph) -> Option<&Pattern> {
        self.0.iter().find(|pattern| !graph.nodes.iter().any(|node| pattern.matches(&node.layer)))
    }

    /// The layers that could run on bytes and are kept, in order.
    pub fn layers(&self, graph: &Graph) -> Vec<String> {
        let all = Analysis::of(graph, &Self::default());
        let measured = all.steps.iter().filter(|step| step.layer.is_measured());
        let mut layers: Vec<String> =
            measured.map(|step| graph.node(step.nodes[0]).layer.to_string()).collect();
        layers.retain(|layer| self.matches(layer));
        layers.dedup();
        layers
    }
}

impl Int8Grids {
    /// The grids of measured ranges: zero is on each.
    pub fn of_ranges(ranges: &[(f32, f32)]) -> Self {
        let grid = |&(low, high): &(f32, f32)| {
            let (low, high) = (low.min(0.0), high.max(0.0));
            let scale = (high - low) / 255.0;
            let scale = if scale > 0.0 { scale } else { 1.0 };
            Grid { scale, zero: grid_code(-low, scale, 0) }
        };
        Self { grids: ranges.iter().map(grid).collect(), kept: KeptLayers::default() }
    }

    /// Grids that were kept, as scales and zero points. `None` if a scale is not above zero.
    pub fn new(grids: impl IntoIterator<Item = (f32, u8)>) -> Option<Self> {
        let grid =
            |(scale, zero): (f32, u8)| (scale > 0.0 && scale.is_finite()).then_some(Grid { scale, zero });
        let grids = grids.into_iter().map(grid).collect::<Option<Vec<Grid>>>()?;
        Some(Self { grids, kept: KeptLayers::default() })
    }

    /// The same for a model some of whose layers stay in f32: the places are [those without](places) them.
    pub fn keeping(self, kept: KeptLayers) -> Self {
        Self { kept, ..self }
    }

    /// The same with the layers behind the last place that has a grid in f32. Training as if on bytes learns no range of scores that
    /// are never there as a whole: those of a loss that reads features and a kernel.
    pub fn keeping_rest(self, prediction: &Graph) -> Self {
        let analysis = Analysis::of(prediction, &self.kept);
        let rest = analysis.steps.iter().filter(|step| step.last_place() >= self.grids.len());
        let rest = rest.map(|step| Pattern::new(&*prediction.node(step.nodes[0]).layer));
        let mut kept = self.kept.0.clone();
        kept.extend(rest);
        kept.dedup();
        self.keeping(KeptLayers(kept))
    }

    /// The layers that stay in f32 though they could run on bytes.
    pub fn kept(&self) -> &KeptLayers {
        &self.kept
    }

    /// Whether there is one for each place of a model's prediction. Those that another version made may be of other places.
    pub fn fit(&self, prediction: &Graph) -> bool {
        Analysis::of(prediction, &self.kept).places.len() == self.grids.len()
    }

    /// Scale and zero point of each.
    pub fn iter(&self) -> impl Iterator<Item = (f32, u8)> + '_ {
        self.grids.iter().map(|grid| (grid.scale, grid.zero))
    }

    /// A graph with its layers on bytes. The weights become other states: see [`Int8Grids::states`].
    pub fn apply(&self, graph: Graph) -> Result<Graph, GraphError> {
        self.apply_with_grids(graph).map(|(graph, _)| graph)
    }

    /// As [`Int8Grids::apply`], with the grid of each value that is codes.
    pub fn apply_with_grids(&self, graph: Graph) -> Result<(Graph, Vec<Option<Grid>>), GraphError> {
        let graph = self.scored(graph)?;
        let analysis = Analysis::of(&graph, &self.kept);
        let steps: Vec<&Step> = self.steps(&analysis).collect();
        let skipped = |id: NodeId| steps.iter().any(|step| step.nodes.contains(&id));
        let needed = needed(&graph, &steps, &skipped);
        let read = |state: &State| needed[state.input.index()];
        let grids = self.grids(&analysis);
        let mut emit = Emit {
            grids: &grids,
            codes: BTreeMap::new(),
            grid_of: BTreeMap::new(),
            states: BTreeMap::new(),
            r: Rewriter::without_states(&graph, read),
        };
        for id in graph.node_ids() {
            if let Some(step) = steps.iter().find(|step| step.nodes.first() == Some(&id)) {
                emit.step(&graph, step)?;
            } else if !skipped(id) && graph.node(id).outputs.iter().any(|v| needed[v.index()]) {
                let node = graph.node(id);
                for &input in &node.inputs {
                    emit.floats(&graph, input, &node.layer)?;
                }
                emit.r.copy(node)?;
            }
        }
        for output in &graph.outputs {
            emit.floats(&graph, output.value, &"".into())?;
        }
        let grid_of = emit.grid_of;
        let bytes = emit.r.finish()?;
        let grids = bytes.value_ids().map(|value| grid_of.get(&value).copied()).collect();
        Ok((bytes, grids))
    }

    /// The states of the layers on bytes, from the graph with its layers on floats; `read` gives a state of that by its name.
    pub fn states<E: From<GraphError>>(
        &self,
        graph: &Graph,
        mut read: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<Vec<(String, Tensor)>, E> {
        let mut states = Vec::new();
        let analysis = Analysis::of(graph, &self.kept);
        let grids = self.grids(&analysis);
        for step in self.steps(&analysis) {
            let Layer::Product { weights, folds } = &step.layer else { continue };
            let (input, output) = (grids[step.places[0]], grids[step.output.place]);
            let channels = graph.ty(step.output.value).shape.last().copied().unwrap_or(1);
            let (factors, offsets) = fold::affine(graph, folds, channels, &mut read)?;
            let elements = match weights.state() {
                Some(state) => read(&graph.states[state].name)?.as_f32().unwrap_or_default().to_vec(),
                None => vec![1.0; channels],
            };
            let shape = weights.shape(graph);
            let elements = match weights {
                Weights::Grow(state) => grown(&elements, &graph.ty(graph.states[*state].input).shape),
                Weights::Dense(_) | Weights::Conv(..) | Weights::Ones(..) => elements,
            };
            let per_channel = !matches!(weights, Weights::Dense(_));
            let tensors = quantized(&elements, &shape, &factors, &offsets, per_channel, input, output);
            let name = weights.name(graph);
            states
                .extend(STATES.iter().zip(tensors).map(|(leaf, tensor)| (format!("{name}/{leaf}"), tensor)));
        }
        Ok(states)
    }

    /// The grid of each place: that of its range, but for ops that have no other than theirs.
    fn grids(&self, analysis: &Analysis) -> Vec<Grid> {
        let places = self.grids.iter().zip(&analysis.places);
        places.map(|(&grid, place)| place.fixed.unwrap_or(grid)).collect()
    }

    /// The layers whose places all have a grid.
    fn steps<'a>(&self, analysis: &'a Analysis) -> impl Iterator<Item = &'a Step> + use<'a> {
        let count = self.grids.len();
        analysis.steps.iter().filter(move |step| step.last_place() < count)
    }
}

/// A graph whose outputs are the ranges of every place that needs a grid: of each example the largest and the smallest element.
pub fn calibration(graph: Graph, kept: &KeptLayers) -> Result<Graph, GraphError> {
    let analysis = Analysis::of(&graph, kept);
    let mut r = Rewriter::new(&graph);
    for node in &graph.nodes {
        r.copy(node)?;
    }
    let places: Vec<Vec<ValueId>> = analysis
        .places
        .iter()
        .map(|place| place.values.iter().map(|&value| r.get(value)).collect())
        .collect();
    let mut b = r.close();
    for (place, values) in places.into_iter().enumerate() {
        for (most, name) in [(Most::Largest, "max"), (Most::Smallest, "min")] {
            let each = values.iter().map(|&value| most.of_each(&mut b, value));
            let each = each.collect::<Result<Vec<_>, _>>()?;
            let found = most.of_all(&mut b, &each)?;
            b.output(&format!("{RANGE}/{place}/{name}"), found);
        }
    }
    b.finish()
}

/// The largest or the smallest element.
#[derive(Clone, Copy)]
enum Most {
    Largest,
    Smallest,
}

impl Most {
    /// That of each example, as `[examples, 1]`.
    fn of_each(self, b: &mut Builder, value: ValueId) -> Result<ValueId, GraphError> {
        let (examples, end) = (b.shape(value)[0], b.shape(value).rank());
        let reduce = match self {
            Self::Largest => Reduce::Max { start: 1, end },
            Self::Smallest => Reduce::Min { start: 1, end },
        };
        let found = b.one(Op::Reduce(reduce), &[value])?;
        b.reshape(found, [examples, 1])
    }

    /// That of several of the same shape, element by element.
    fn of_all(self, b: &mut Builder, values: &[ValueId]) -> Result<ValueId, GraphError> {
        let op = match self {
            Self::Largest => Binary::Max,
            Self::Smallest => Binary::Min,
        };
        let (first, rest) =
            values.split_first().ok_or_else(|| GraphError::Broken("a place without values".into()))?;
        rest.iter().try_fold(*first, |found, &value| b.binary(op, found, value))
    }
}

/// The places that need grids, in order: the layer that computes each, or an empty name for an input.
pub fn places(graph: &Graph, kept: &KeptLayers) -> Vec<String> {
    let layer = |value: ValueId| graph.producer(value).map_or("", |id| &*graph.node(id).layer).to_string();
    Analysis::of(graph, kept).places.iter().map(|place| layer(place.values[0])).collect()
}

/// Which values are needed besides those inside layers on bytes.
fn needed(graph: &Graph, steps: &[&Step], skipped: &dyn Fn(NodeId) -> bool) -> Vec<bool> {
    let mut needed = vec![false; graph.value_count()];
    let roots = graph.outputs.iter().map(|output| output.value);
    let roots = roots.chain(steps.iter().flat_map(|step| step.inputs.iter().copied()));
    roots.for_each(|value| needed[value.index()] = true);
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        if !skipped(id) && node.outputs.iter().any(|v| needed[v.index()]) {
            node.inputs.iter().for_each(|v| needed[v.index()] = true);
        }
    }
    needed
}

/// The weights `[h, w, outputs, inputs]` of a transposed convolution as those of a dense layer, `[inputs, h · w · outputs]`.
fn grown(kernel: &[f32], shape: &Shape) -> Vec<f32> {
    let inputs = shape.last().copied().unwrap_or(1);
    let outputs = kernel.len() / inputs.max(1);
    (0..kernel.len()).map(|i| kernel[i % outputs * inputs + i / outputs]).collect()
}

/// The largest bias of a layer.
const LARGEST_BIAS: f64 = 1e9;

/// Codes, biases, multipliers and shifts of a layer's weights, whose last axis is channels. Each is scaled by its factor first, of
/// which there may be fewer: they repeat.
fn quantized(
    weights: &[f32],
    shape: &Shape,
    factors: &[f64],
    offsets: &[f64],
    per_channel: bool,
    input: Grid,
    output: Grid,
) -> [Tensor; 4] {
    let channels = shape.last().copied().unwrap_or(1).max(1);
    let offset = |channel: usize| offsets[channel % offsets.len()];
    let scaled = |i: usize| f64::from(weights[i]) * factors[i % channels % factors.len()];
    let mut largest = vec![0f64; channels];
    (0..weights.len()).for_each(|i| largest[i % channels] = largest[i % channels].max(scaled(i).abs()));
    // Biases are at the scale of the weights, and must fit, too.
    let of_bias = |channel: usize| 127.0 * offset(channel).abs() / (f64::from(input.scale) * LARGEST_BIAS);
    largest.iter_mut().enumerate().for_each(|(i, largest)| *largest = largest.max(of_bias(i)));
    if !per_channel {
        let all = largest.iter().copied().fold(0.0, f64::max);
        largest.fill(all);
    }
    // As files have them, in f32: what reads a file computes the same factors.
    let scale = |&largest: &f64| Some((largest / 127.0) as f32).filter(|scale| *scale > 0.0).unwrap_or(1.0);
    let scales: Vec<f64> = largest.iter().map(|largest| f64::from(scale(largest))).collect();
    let code = |i: usize| (scaled(i) / scales[i % channels]).round().clamp(-127.0, 127.0) as i8 as u8;
    let mut codes = Tensor::zeros(TensorType::new(DType::U8, shape.clone()));
    if weights.len() == shape.elements() {
        codes.copy_from_bytes(&(0..weights.len()).map(code).collect::<Vec<u8>>());
    }
    let units: Vec<f64> = scales.iter().map(|scale| f64::from(input.scale) * scale).collect();
    let in_units =
        |(channel, unit): (usize, &f64)| (offset(channel) / unit).round().clamp(-LARGEST_BIAS, LARGEST_BIAS);
    let bias: Vec<f64> = units.iter().enumerate().map(in_units).collect();
    let fixed: Vec<(i32, i32)> =
        units.iter().map(|unit| fixed_point_of(unit / f64::from(output.scale))).collect();
    let words = |values: Vec<f64>| {
        Tensor::from_f64(TensorType::new(DType::I32, [channels]), &values)
            .unwrap_or_else(|_| Tensor::zeros(TensorType::scalar(DType::I32)))
    };
    [
        codes,
        words(bias),
        words(fixed.iter().map(|(multiplier, _)| f64::from(*multiplier)).collect()),
        words(fixed.iter().map(|(_, shift)| f64::from(*shift)).collect()),
    ]
}

/// The graph on bytes in the making.
struct Emit<'g> {
    grids: &'g [Grid],
    /// The codes of an old value, and their place.
    codes: BTreeMap<ValueId, (ValueId, usize)>,
    /// The grid of each new value that is codes.
    grid_of: BTreeMap<ValueId, Grid>,
    /// The states of a layer, by what their names start with and its output's place.
    states: BTreeMap<(String, usize), Vec<ValueId>>,
    r: Rewriter<'g>,
}

impl Emit<'_> {
    /// The codes of a value: those that a layer gave, or those of its floats at a place.
    fn codes_of(
        &mut self,
        value: ValueId,
        place: usize,
        layer: &std::sync::Arc<str>,
    ) -> Result<ValueId, GraphError> {
        if let Some(&(codes, _)) = self.codes.get(&value) {
            return Ok(codes);
        }
        let (floats, grid) = (self.r.get(value), self.grids[place]);
        let codes =
            self.r.builder.within(layer.clone(), |b| b.one(Op::Int8(Int8::Quantize(grid)), &[floats]))?;
        self.set_codes(value, codes, place);
        Ok(codes)
    }

    /// These are the codes of an old value, on the grid of a place.
    fn set_codes(&mut self, value: ValueId, codes: ValueId, place: usize) {
        self.codes.insert(value, (codes, place));
        self.grid_of.insert(codes, self.grids[place]);
    }

    /// Makes sure that a value is there as floats.
    fn floats(
        &mut self,
        graph: &Graph,
        value: ValueId,
        layer: &std::sync::Arc<str>,
    ) -> Result<(), GraphError> {
        let Some(&(codes, place)) = self.codes.get(&value).filter(|_| self.r.map[value.index()].is_none())
        else {
            return Ok(());
        };
        let layer = graph.producer(value).map_or_else(|| layer.clone(), |id| graph.node(id).layer.clone());
        let grid = self.grids[place];
        let floats = self.r.builder.within(layer, |b| b.one(Op::Int8(Int8::Dequantize(grid)), &[codes]))?;
        self.r.map[value.index()] = Some(floats);
        Ok(())
    }

    /// The codes that a layer's output may have.
    fn output(&self, output: &Output) -> Codes {
        let Grid { scale, zero } = self.grids[output.place];
        Codes {
            zero,
            low: if output.relu { zero } else { 0 },
            high: output.most.map_or(255, |most| grid_code(most as f32, scale, zero)),
        }
    }

    fn step(&mut self, graph: &Graph, step: &Step) -> Result<(), GraphError> {
        let node = graph.node(step.nodes[0]);
        let layer = node.layer.clone();
        let mut inputs = Vec::new();
        for (&value, &place) in step.inputs.iter().zip(&step.places) {
            inputs.push(self.codes_of(value, place, &layer)?);
        }
        let place = step.output.place;
        let grid = |place: usize| self.grids[place];
        let factor = |factor: f64| {
            let (multiplier, shift) = fixed_point_of(factor);
            Factor { multiplier, shift }
        };
        let op = match &step.layer {
            Layer::Product { weights, .. } => {
                let zero = grid(step.places[0]).zero;
                let (shape, name) = (weights.shape(graph), weights.name(graph));
                let channels = shape.last().copied().unwrap_or(1);
                let builder = &mut self.r.builder;
                let states = self.states.entry((name.to_string(), place)).or_insert_with(|| {
                    let state = |(i, leaf): (usize, &&str)| {
                        let ty = match i {
                            0 => TensorType::new(DType::U8, shape.clone()),
                            _ => TensorType::new(DType::I32, [channels]),
                        };
                        builder.named_state(format!("{name}/{leaf}"), ty, Role::Parameter, Init::Zeros)
                    };
                    STATES.iter().enumerate().map(state).collect()
                });
                inputs.extend(states.iter().copied());
                let output = self.output(&step.output);
                match weights {
                    Weights::Dense(_) => Int8::Dense { zero, output },
                    Weights::Conv(_, geometry, groups) => {
                        Int8::Conv { geometry: *geometry, groups: *groups, zero, output }
                    }
                    Weights::Grow(_) => Int8::Conv { geometry: POINTS, groups: 1, zero, output },
                    Weights::Ones(..) => Int8::Conv { geometry: POINTS, groups: channels, zero, output },
                }
            }
            Layer::Sum => {
                // Both operands at twice the larger scale keep bits to spare.
                let scales =
                    step.places.iter().map(|&place| f64::from(grid(place).scale)).collect::<Vec<_>>();
                let unit = 2.0 * scales.iter().copied().fold(0.0, f64::max);
                let operand = |i: usize| (grid(step.places[i]).zero, factor(scales[i] / unit));
                let shifted = f64::from(1u32 << plimsoll_graph::op::ADD_SHIFT);
                Int8::Add {
                    operands: [operand(0), operand(1)],
                    factor: factor(unit / (shifted * f64::from(grid(place).scale))),
                    output: self.output(&step.output),
                }
            }
            Layer::Mul => {
                let [a, b] = [grid(step.places[0]), grid(step.places[1])];
                let scale = f64::from(a.scale) * f64::from(b.scale) / f64::from(grid(place).scale);
                Int8::Mul {
                    zeros: [a.zero, b.zero],
                    factor: factor(scale),
                    output: self.output(&step.output),
                }
            }
            Layer::Sigmoid => Int8::Sigmoid(grid(step.places[0])),
            Layer::Swish => {
                let from = grid(step.places[0]);
                let scale = f64::from(from.scale) * f64::from(SIGMOID_SCALE) / f64::from(grid(place).scale);
                Int8::Swish { from, factor: factor(scale), output: self.output(&step.output) }
            }
            Layer::Mean { of } => {
                let from = grid(step.places[0]);
                let scale = f64::from(from.scale) * of / f64::from(grid(place).scale);
                Int8::Mean { zero: from.zero, factor: factor(scale), output: self.output(&step.output) }
            }
            Layer::MaxPool(windows) => Int8::MaxPool { windows: *windows },
            Layer::AveragePool(windows) => Int8::AveragePool { windows: *windows },
            Layer::Resize(mode, output) => Int8::Resize { mode: *mode, output: *output },
            Layer::Reshape => {
                let shape = graph.ty(step.output.value).shape.clone();
                return self.moved(step, &layer, Movement::Reshape(shape), &inputs).map(|_| ());
            }
            Layer::Concat { axis } => {
                return self.moved(step, &layer, Movement::Concat { axis: *axis }, &inputs).map(|_| ());
            }
        };
        let shape = graph.ty(step.output.value).shape.clone();
        let mut codes = self.r.builder.within(layer.clone(), |b| b.one(Op::Int8(op), &inputs))?;
        self.set_codes(step.output.value, codes, place);
        if let (Layer::Product { weights: Weights::Grow(state), .. }, &[n, h, w, _]) =
            (&step.layer, &self.r.builder.shape(codes)[..])
        {
            // Blocks `[kh, kw · c]` of pixels become pixels: rows of them go behind each other.
            let (block, channels) = (&graph.ty(graph.states[*state].input).shape, shape.last().copied());
            let row = block[1] * channels.unwrap_or(1);
            let blocks = Movement::Reshape(Shape::from([n, h, w, block[0], row]));
            codes = self.moved(step, &layer, blocks, &[codes])?;
            codes = self.moved(step, &layer, Movement::Transpose(vec![0, 1, 3, 2, 4]), &[codes])?;
        }
        if *self.r.builder.shape(codes) != shape {
            self.moved(step, &layer, Movement::Reshape(shape), &[codes])?;
        }
        Ok(())
    }

    /// Moves codes to what are those of a step's output.
    fn moved(
        &mut self,
        step: &Step,
        layer: &std::sync::Arc<str>,
        op: Movement,
        codes: &[ValueId],
    ) -> Result<ValueId, GraphError> {
        let moved = self.r.builder.within(layer.clone(), |b| b.one(Op::Movement(op), codes))?;
        self.set_codes(step.output.value, moved, step.output.place);
        Ok(moved)
    }
}

/// A window of one pixel.
const POINTS: Geometry = Geometry { window: [1, 1], stride: [1, 1], padding: [[0, 0]; 2], dilation: [1, 1] };

impl Weights {
    /// The shape of the layer's weights on bytes: the last axis is channels.
    fn shape(&self, graph: &Graph) -> Shape {
        let of = |state: usize| graph.ty(graph.states[state].input).shape.clone();
        match *self {
            Self::Dense(state) | Self::Conv(state, ..) => of(state),
            Self::Grow(state) => {
                let kernel = of(state);
                let inputs = kernel.last().copied().unwrap_or(1);
                Shape::from([1, 1, inputs, kernel.elements() / inputs.max(1)])
            }
            Self::Ones(channels, _) => Shape::from([1, 1, 1, channels]),
        }
    }
}

#[cfg(test)]
mod tests;
