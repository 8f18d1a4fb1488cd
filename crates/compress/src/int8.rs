//! Post-training quantization to bytes: a graph that does not train, its layers replaced by those of bytes.

mod aware;
mod comparison;
mod fold;
mod layers;

pub use aware::QuantizeAware;
pub use comparison::LayerNoise;

use layers::{Analysis, Layer, Output, Step};
use plimsoll_graph::op::{Codes, Factor, Grid, Int8, Movement, Reduce};
use plimsoll_graph::{Graph, GraphError, Init, NodeId, Op, Role, State, ValueId};
use plimsoll_tensor::{DType, Tensor, TensorType, fixed_point_of, grid_code};
use plimsoll_transform::Rewriter;
use std::collections::BTreeMap;

/// The last parts of the names of a layer's states; the first is its kernel's name.
const STATES: [&str; 4] = ["codes", "bias", "multipliers", "shifts"];

/// The name of the outputs of a calibration: the largest and the smallest element of each example, for each place in turn.
const RANGE: &str = "output/range";

/// The grids of a quantized model: one for each place between its layers whose range was measured, in order.
///
/// Convolutions and dense layers, with the batch norm and the activation behind them, sums of branches, means and maxima of images run
/// on bytes; what is between them and has no such form runs in f32. The scheme is TFLite's: weights symmetric, with a scale for each output channel of
/// a convolution and one for a dense layer; activations with a scale and a zero point; biases in 32 bits at the scale of input times
/// weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Grids(Vec<Grid>);

impl Int8Grids {
    /// The grids of measured ranges: zero is on each.
    pub fn of_ranges(ranges: &[(f32, f32)]) -> Self {
        let grid = |&(low, high): &(f32, f32)| {
            let (low, high) = (low.min(0.0), high.max(0.0));
            let scale = (high - low) / 255.0;
            let scale = if scale > 0.0 { scale } else { 1.0 };
            Grid { scale, zero: grid_code(-low, scale, 0) }
        };
        Self(ranges.iter().map(grid).collect())
    }

    /// Grids that were kept, as scales and zero points. `None` if a scale is not above zero.
    pub fn new(grids: impl IntoIterator<Item = (f32, u8)>) -> Option<Self> {
        let grid =
            |(scale, zero): (f32, u8)| (scale > 0.0 && scale.is_finite()).then_some(Grid { scale, zero });
        grids.into_iter().map(grid).collect::<Option<Vec<Grid>>>().map(Self)
    }

    /// Scale and zero point of each.
    pub fn iter(&self) -> impl Iterator<Item = (f32, u8)> + '_ {
        self.0.iter().map(|grid| (grid.scale, grid.zero))
    }

    /// A graph with its layers on bytes. The weights become other states: see [`Int8Grids::states`].
    pub fn apply(&self, graph: Graph) -> Result<Graph, GraphError> {
        self.apply_with_grids(graph).map(|(graph, _)| graph)
    }

    /// As [`Int8Grids::apply`], with the grid of each value that is codes.
    pub fn apply_with_grids(&self, graph: Graph) -> Result<(Graph, Vec<Option<Grid>>), GraphError> {
        let analysis = Analysis::of(&graph);
        let steps: Vec<&Step> =
            analysis.steps.iter().filter(|step| step.last_place() < self.0.len()).collect();
        let skipped = |id: NodeId| steps.iter().any(|step| step.nodes.contains(&id));
        let needed = needed(&graph, &steps, &skipped);
        let read = |state: &State| needed[state.input.index()];
        let mut emit = Emit {
            grids: &self.0,
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
        for step in Analysis::of(graph).steps.iter().filter(|step| step.last_place() < self.0.len()) {
            let Layer::Product { kernel, per_channel, folds, .. } = &step.layer else { continue };
            let (input, output) = (self.0[step.places[0]], self.0[step.output.place]);
            let name = &graph.states[*kernel].name;
            let weights = read(name)?;
            let (factors, offsets) = fold::affine(graph, folds, &weights, &mut read)?;
            let tensors = quantized(&weights, &factors, &offsets, *per_channel, input, output);
            states
                .extend(STATES.iter().zip(tensors).map(|(leaf, tensor)| (format!("{name}/{leaf}"), tensor)));
        }
        Ok(states)
    }
}

/// A graph whose outputs are the ranges of every place that needs a grid: of each example the largest and the smallest element.
pub fn calibration(graph: Graph) -> Result<Graph, GraphError> {
    let analysis = Analysis::of(&graph);
    let mut r = Rewriter::new(&graph);
    for node in &graph.nodes {
        r.copy(node)?;
    }
    let values: Vec<ValueId> = analysis.places.iter().map(|&value| r.get(value)).collect();
    let mut b = r.close();
    for (place, value) in values.into_iter().enumerate() {
        let end = b.shape(value).rank();
        for (op, name) in [(Reduce::Max { start: 1, end }, "max"), (Reduce::Min { start: 1, end }, "min")] {
            let found = b.one(Op::Reduce(op), &[value])?;
            b.output(&format!("{RANGE}/{place}/{name}"), found);
        }
    }
    b.finish()
}

/// The places that need grids, in order: the layer that computes each, or an empty name for an input.
pub fn places(graph: &Graph) -> Vec<String> {
    let layer = |&value: &ValueId| graph.producer(value).map_or("", |id| &*graph.node(id).layer).to_string();
    Analysis::of(graph).places.iter().map(layer).collect()
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

/// Codes, biases, multipliers and shifts of a layer's weights, each channel of which is scaled by a factor first.
fn quantized(
    weights: &Tensor,
    factors: &[f64],
    offsets: &[f64],
    per_channel: bool,
    input: Grid,
    output: Grid,
) -> [Tensor; 4] {
    let channels = factors.len().max(1);
    let own = weights.as_f32().unwrap_or_default();
    let scaled = |i: usize| f64::from(own[i]) * factors[i % channels];
    let mut largest = vec![0f64; channels];
    (0..own.len()).for_each(|i| largest[i % channels] = largest[i % channels].max(scaled(i).abs()));
    if !per_channel {
        let all = largest.iter().copied().fold(0.0, f64::max);
        largest.fill(all);
    }
    // As files have them, in f32: what reads a file computes the same factors.
    let scale = |&largest: &f64| Some((largest / 127.0) as f32).filter(|scale| *scale > 0.0).unwrap_or(1.0);
    let scales: Vec<f64> = largest.iter().map(|largest| f64::from(scale(largest))).collect();
    let code = |i: usize| (scaled(i) / scales[i % channels]).round().clamp(-127.0, 127.0) as i8 as u8;
    let mut codes = Tensor::zeros(TensorType::new(DType::U8, weights.ty().shape.clone()));
    if own.len() == weights.ty().shape.elements() {
        codes.copy_from_bytes(&(0..own.len()).map(code).collect::<Vec<u8>>());
    }
    let units: Vec<f64> = scales.iter().map(|scale| f64::from(input.scale) * scale).collect();
    let bias =
        offsets.iter().zip(&units).map(|(b, unit)| (b / unit).round().clamp(-1e9, 1e9)).collect::<Vec<f64>>();
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
    /// The states of a layer, by the old state that is its kernel and its output's place.
    states: BTreeMap<(usize, usize), Vec<ValueId>>,
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
            Layer::Product { kernel, conv, .. } => {
                let zero = grid(step.places[0]).zero;
                let ty = graph.ty(graph.states[*kernel].input);
                let channels = ty.shape.last().copied().unwrap_or(1);
                let builder = &mut self.r.builder;
                let states = self.states.entry((*kernel, place)).or_insert_with(|| {
                    let state = |(i, leaf): (usize, &&str)| {
                        let name = format!("{}/{leaf}", graph.states[*kernel].name);
                        let ty = match i {
                            0 => TensorType::new(DType::U8, ty.shape.clone()),
                            _ => TensorType::new(DType::I32, [channels]),
                        };
                        builder.named_state(name, ty, Role::Parameter, Init::Zeros)
                    };
                    STATES.iter().enumerate().map(state).collect()
                });
                inputs.extend(states.iter().copied());
                let output = self.output(&step.output);
                match conv {
                    Some((geometry, groups)) => {
                        Int8::Conv { geometry: *geometry, groups: *groups, zero, output }
                    }
                    None => Int8::Dense { zero, output },
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
            Layer::Mean { of } => {
                let from = grid(step.places[0]);
                let scale = f64::from(from.scale) * of / f64::from(grid(place).scale);
                Int8::Mean { zero: from.zero, factor: factor(scale), output: self.output(&step.output) }
            }
            Layer::MaxPool(windows) => Int8::MaxPool { windows: *windows },
            Layer::Reshape => {
                let shape = graph.ty(step.output.value).shape.clone();
                let codes = self
                    .r
                    .builder
                    .within(layer, |b| b.one(Op::Movement(Movement::Reshape(shape)), &inputs))?;
                self.set_codes(step.output.value, codes, place);
                return Ok(());
            }
        };
        let shape = graph.ty(step.output.value).shape.clone();
        let codes = self.r.builder.within(layer.clone(), |b| b.one(Op::Int8(op), &inputs))?;
        self.set_codes(step.output.value, codes, place);
        if *self.r.builder.shape(codes) != shape {
            let codes = self.r.builder.within(layer, |b| b.reshape(codes, shape))?;
            self.set_codes(step.output.value, codes, place);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::Origin;
    use plimsoll_nn::{
        BatchNorm, Conv2d, Dense, DepthwiseConv2d, Flatten, GlobalAveragePool, MaxPool2d, Model, Relu, Relu6,
        Residual, Sequential, Sigmoid, step, zoo,
    };
    use plimsoll_reference::evaluate;
    use plimsoll_tensor::random::Stream;

    /// Runs a graph; states by name, inputs by position.
    fn run(graph: &Graph, state: &dyn Fn(&str) -> Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
        let mut values: Vec<Option<Tensor>> = graph
            .value_ids()
            .map(|value| match graph.origin(value) {
                Origin::Input(i) => Some(inputs[i].clone()),
                Origin::State(i) => Some(state(&graph.states[i].name)),
                Origin::Accumulator(_) | Origin::Node { .. } => None,
            })
            .collect();
        for node in &graph.nodes {
            let read: Vec<&Tensor> =
                node.inputs.iter().map(|v| values[v.index()].as_ref().unwrap()).collect();
            let found = evaluate(&node.op, &read, &[], &graph.output_types(node)).unwrap();
            node.outputs.iter().zip(found).for_each(|(v, found)| values[v.index()] = Some(found));
        }
        graph.outputs.iter().map(|output| values[output.value.index()].clone().unwrap()).collect()
    }

    /// States with random numbers: variances and gains above zero.
    fn state(graph: &Graph, name: &str) -> Tensor {
        let state = graph.states.iter().find(|s| s.name == name).unwrap();
        let (ty, stream) = (graph.ty(state.input).clone(), Stream::new(1, 0, name));
        let positive = name.ends_with("variance") || name.ends_with("gain");
        let fan = (ty.shape.elements() / ty.shape.last().copied().unwrap_or(1).max(1)).max(1) as f64;
        let number = |i: usize| {
            let x = f64::from(stream.uniform(0, i as u64)) * 2.0 - 1.0;
            if positive { 1.0 + 0.5 * x } else { x * (2.0 / fan).sqrt() }
        };
        let values: Vec<f64> = (0..ty.shape.elements()).map(number).collect();
        Tensor::from_f64(ty, &values).unwrap()
    }

    fn images(shape: &[usize], part: u64) -> Tensor {
        let (count, stream) = (shape.iter().product::<usize>(), Stream::new(2, part, "images"));
        let values: Vec<f64> = (0..count).map(|i| f64::from(stream.uniform(0, i as u64))).collect();
        Tensor::from_f64(TensorType::new(DType::F32, shape.to_vec()), &values).unwrap()
    }

    /// The largest difference of a model's outputs on bytes from those in f32, as a share of their range; and the graph on bytes.
    fn quantized_difference(model: &dyn Model, image: [usize; 3]) -> (f64, Graph) {
        let graph = step::prediction(model, 6).unwrap();
        let read = |name: &str| state(&graph, name);
        let shape = [&[6], &image[..]].concat();
        let calibrated = run(&calibration(graph.clone()).unwrap(), &read, &[images(&shape, 0)]);
        let ranges: Vec<(f32, f32)> = calibrated[1..]
            .chunks_exact(2)
            .map(|pair| {
                let of = |tensor: &Tensor, f: fn(f32, f32) -> f32| {
                    tensor.as_f32().unwrap().iter().copied().reduce(f).unwrap()
                };
                (of(&pair[1], f32::min), of(&pair[0], f32::max))
            })
            .collect();
        let grids = Int8Grids::of_ranges(&ranges);
        let bytes = grids.apply(graph.clone()).unwrap();
        let states = grids.states(&graph, |name| Ok::<_, GraphError>(read(name))).unwrap();
        let state_of = |name: &str| {
            let found = states.iter().find(|(known, _)| known == name);
            found.map_or_else(|| read(name), |(_, tensor)| tensor.clone())
        };
        let x = images(&shape, 1);
        let x = std::slice::from_ref(&x);
        let (expected, found) = (run(&graph, &read, x), run(&bytes, &state_of, x));
        let (expected, found) = (expected[0].to_f64(), found[0].to_f64());
        let compared = run(&grids.comparison(graph.clone()).unwrap(), &state_of, x);
        // Behind an op in f32 a comparison starts anew from exact floats.
        let on_bytes = bytes.nodes.iter().all(|node| matches!(node.op, Op::Int8(_) | Op::Movement(_)));
        let found_there = on_bytes.then_some(&found[..]);
        check_comparison(&compared[1..], &grids.compared(&graph), &expected, found_there);
        let range = expected.iter().fold(0f64, |a, b| a.max(b.abs()));
        let worst = expected.iter().zip(&found).fold(0f64, |a, (e, f)| a.max((e - f).abs()));
        (worst / range, bytes)
    }

    /// The last layer gives the model's outputs; the first has no noise but its own.
    fn check_comparison(compared: &[Tensor], layers: &[String], expected: &[f64], found: Option<&[f64]>) {
        assert_eq!(
            (compared.len(), &*layers[layers.len() - 1]),
            (LayerNoise::OUTPUTS * layers.len(), "head")
        );
        let sum = |tensor: &Tensor| tensor.to_f64().iter().sum::<f64>();
        let of = |layer: &[Tensor]| LayerNoise {
            signal: sum(&layer[0]),
            noise: sum(&layer[1]),
            own: sum(&layer[2]),
        };
        let layers: Vec<LayerNoise> = compared.chunks_exact(LayerNoise::OUTPUTS).map(of).collect();
        let (first, last) = (layers[0], layers[layers.len() - 1]);
        assert_eq!(first.noise, first.own);
        // Noise from before may also cancel some of a layer's own, so neither need be the larger.
        assert!(last.own > 0.0 && last.own != last.noise, "{last:?}");
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-4 * b, "{a} {b}");
        near(last.signal, expected.iter().map(|e| e * e).sum());
        if let Some(found) = found {
            near(last.noise, expected.iter().zip(found).map(|(e, f)| (e - f) * (e - f)).sum());
        }
        assert!(layers.iter().all(|layer| layer.own_decibels().unwrap() > 15.0), "{layers:?}");
    }

    #[test]
    fn a_model_on_bytes_answers_nearly_the_same() {
        let model = Sequential::classifier([8, 8, 3], 10)
            .layer("first", Conv2d::new(8, 3).without_bias())
            .layer("norm", BatchNorm::new())
            .layer("relu", Relu)
            .layer("block", Residual::new(Conv2d::new(8, 3)))
            .layer("relu2", Relu)
            .layer("depth", DepthwiseConv2d::new(3))
            .layer("relu6", Relu6)
            .layer("pool", MaxPool2d::new(2))
            .layer("flatten", Flatten)
            .layer("head", Dense::new(10));
        let (difference, graph) = quantized_difference(&model, [8, 8, 3]);
        assert!(difference < 0.06, "{difference}");
        let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
        let expected = [
            "int8_quantize",
            "int8_conv2d",
            "int8_conv2d",
            "int8_add",
            "int8_conv2d",
            "int8_max_pool",
            "reshape",
            "int8_dense",
            "int8_dequantize",
        ];
        assert_eq!(ops, expected);
        // Nothing of the floats' weights is left.
        assert!(
            graph.states.iter().all(|s| STATES.contains(&s.name.rsplit('/').next().unwrap())),
            "{:?}",
            graph.states
        );
    }

    #[test]
    fn what_has_no_layer_on_bytes_stays_in_floats() {
        let model = Sequential::classifier([6, 6, 2], 4)
            .layer("conv", Conv2d::new(4, 3))
            .layer("sigmoid", Sigmoid)
            .layer("conv2", Conv2d::new(6, 3))
            .layer("mean", GlobalAveragePool)
            .layer("head", Dense::new(4));
        let (difference, graph) = quantized_difference(&model, [6, 6, 2]);
        assert!(difference < 0.06, "{difference}");
        let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
        assert!(ops.contains(&"sigmoid") && ops.contains(&"int8_mean"), "{ops:?}");
    }

    #[test]
    fn models_of_the_zoo_run_on_bytes() {
        let (difference, graph) = quantized_difference(&zoo::resnet20_of([8, 8, 3], 10), [8, 8, 3]);
        assert!(difference < 0.25, "{difference}");
        let floats = graph.nodes.iter().filter(|node| !matches!(node.op, Op::Int8(_) | Op::Movement(_)));
        assert_eq!(floats.count(), 0);
    }

    /// Recurrences that are unrolled read their weights at every position: they stay in floats.
    #[test]
    fn layers_that_share_weights_stay_in_floats() {
        let entry = zoo::ZOO.iter().find(|entry| entry.name == "seq2seq").unwrap();
        let model = (entry.make)(&entry.small);
        let prediction = step::prediction(&model, 2).unwrap();
        let grids = Int8Grids::new(vec![(0.1, 3); places(&prediction).len()]).unwrap();
        grids.apply(prediction).unwrap();
    }

    /// An evaluation has the same layers, and computes its loss in f32.
    #[test]
    fn evaluations_have_the_same_layers() {
        let model = zoo::lenet();
        let prediction = step::prediction(&model, 2).unwrap();
        let grids = Int8Grids::new(vec![(0.1, 3); places(&prediction).len()]).unwrap();
        let layers = |graph: Graph| {
            let graph = grids.apply(graph).unwrap();
            let layers = graph.nodes.iter().filter(|node| matches!(node.op, Op::Int8(_)));
            layers.map(|node| format!("{:?}", node.op)).collect::<Vec<_>>()
        };
        let evaluation = step::evaluation(&model, 2, step::Report::Classes).unwrap();
        assert_eq!(layers(prediction), layers(evaluation));
        assert_eq!(Int8Grids::new([(0.0, 3)]), None);
    }
}
