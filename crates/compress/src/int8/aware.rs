//! Quantization-aware training: a model that computes as if it ran on bytes, and learns to.

use super::layers::{Analysis, Layer, Step};
use super::{Int8Grids, KeptLayers, Most, places};
use plimsoll_graph::op::{Binary, Grid, Movement, Reduce, Span, Unary};
use plimsoll_graph::{Builder, Graph, GraphError, Init, NodeId, Op, Role, ValueId};
use plimsoll_nn::step::{self, Report};
use plimsoll_nn::{Field, Head, InitialValues, Loss, Mode, Model, Net, RANGES, Rewritten};
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::Rewriter;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is kept of a place: sums over examples of their largest element, its square, their smallest, its square, and their number.
/// Older steps count less and less. Sums do not depend on how a batch is split.
const SUMS: usize = 5;
/// The weight of all steps before in the sums of the next.
const DECAY: f64 = 0.99;
/// A range ends so many standard deviations beyond the mean of the examples' largest and smallest elements.
const DEVIATIONS: f64 = 3.0;
/// A range is at least this wide, by 255.
const LEAST_SCALE: f64 = 1e-12;
/// Codes that a byte has, less one.
const STEPS: f64 = 255.0;
/// The grid before the first step: so fine and so wide that numbers stay what they are.
const FINE: f64 = 1.0 / (1u64 << 60) as f64;
const WIDE: f64 = 1e30;
/// The largest code of a weight.
const LARGEST_WEIGHT: f64 = 127.0;
/// The layer of what is computed for all places at once.
const LAYER: &str = "quantize";

/// A model that trains as if it ran on bytes: weights are rounded to the codes of their channel or layer, activations to the grid of
/// their place; gradients pass as if they were not, but for activations outside their range. The ranges follow the examples' largest and smallest
/// elements, in a state that checkpoints and weights files hold ([`Int8Grids::learned`]). Evaluation rounds as well, and measures
/// nothing.
///
/// Batch norm is trained as it is. What is folded is a factor for each output channel, which does not change the codes of a
/// convolution's weights: they are symmetric, with a scale for each channel.
///
/// ```
/// use plimsoll_compress::QuantizeAware;
/// use plimsoll_nn::{Sgd, step, zoo};
/// let model = QuantizeAware::new(zoo::lenet())?;
/// let graph = step::training(&model, &Sgd::new(0.1), 8)?;
/// assert!(graph.states.iter().any(|state| state.name == "quantize/ranges"));
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub struct QuantizeAware<M> {
    model: M,
    /// The layers of the places whose ranges are learned.
    places: Vec<String>,
}

impl<M: Model> QuantizeAware<M> {
    /// The model, trained so. An error if none of its layers can run on bytes.
    pub fn new(model: M) -> Result<Self, GraphError> {
        let places = places(&step::evaluation(&model, 1, Report::Classes)?, &KeptLayers::default());
        if places.is_empty() {
            return Err(GraphError::Choice(format!(
                "quantization-aware training: `{}` has no layer that can run on bytes: there are convolutions and dense layers of rows",
                model.name()
            )));
        }
        Ok(Self { model, places })
    }
}

impl<M: Model> Model for QuantizeAware<M> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn inputs(&self) -> Vec<Field> {
        self.model.inputs()
    }

    fn target(&self) -> Field {
        self.model.target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        self.model.forward(net, inputs)
    }

    fn loss(&self) -> &dyn Loss {
        self.model.loss()
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        self.model.initial_values()
    }

    fn rewritten(&self, graph: &Graph, mode: Mode) -> Result<Option<Rewritten>, GraphError> {
        let analysis = Analysis::of(graph, &KeptLayers::default());
        let count = self.places.len();
        let found = places(graph, &KeptLayers::default());
        if !found.starts_with(&self.places) {
            let differs = found.iter().zip(&self.places).find(|(found, own)| found != own);
            let (found, own) =
                differs.map_or(("nothing", "more"), |(found, own)| (found.as_str(), own.as_str()));
            return Err(GraphError::Choice(format!(
                "quantization-aware training: layers differ between training and prediction: `{found}` is where `{own}` should be"
            )));
        }
        let mut rounding = Rounding::new(graph, &analysis, count)?;
        for id in graph.node_ids() {
            rounding.node(id)?;
        }
        rounding.finish(mode).map(Some)
    }
}

impl Int8Grids {
    /// The grids that [`QuantizeAware`] learned, from its state `quantize/ranges`. `None` if it has seen no example, or numbers that are not
    /// finite.
    pub fn learned(ranges: &Tensor) -> Option<Self> {
        let rows = ranges.as_f32()?.chunks_exact(SUMS);
        let range = |row: &[f32]| {
            let row: Vec<f64> = row.iter().map(|&sum| f64::from(sum)).collect();
            let end = |sum: f64, squares: f64, side: f64| {
                let mean = sum / row[4];
                mean + side * DEVIATIONS * (squares / row[4] - mean * mean).max(0.0).sqrt()
            };
            let (high, low) = (end(row[0], row[1], 1.0), end(row[2], row[3], -1.0));
            (row[4] > 0.0 && high.is_finite() && low.is_finite()).then_some((low as f32, high as f32))
        };
        let ranges = rows.map(range).collect::<Option<Vec<(f32, f32)>>>()?;
        Some(Self::of_ranges(&ranges))
    }
}

/// A forward graph in the making whose layers round.
struct Rounding<'g> {
    graph: &'g Graph,
    r: Rewriter<'g>,
    /// The steps by their first nodes.
    steps: BTreeMap<NodeId, &'g Step>,
    /// The places of values, and whether all read it rounded, as what a layer on bytes gives.
    places: BTreeMap<ValueId, (usize, bool)>,
    /// The grids of places that have no range.
    fixed: Vec<Option<Grid>>,
    /// The state of the ranges.
    ranges: ValueId,
    /// Of all places: the scale, its inverse, the smallest and the largest number.
    grids: [ValueId; 4],
    /// Values of floats as layers on bytes read them.
    rounded: BTreeMap<ValueId, ValueId>,
    /// The largest and the smallest element of each example, for the values of each place.
    most: Vec<[Vec<ValueId>; 2]>,
}

impl<'g> Rounding<'g> {
    /// With the first places of a graph, so many.
    fn new(graph: &'g Graph, analysis: &'g Analysis, count: usize) -> Result<Self, GraphError> {
        let steps = analysis.steps.iter().filter(|step| step.last_place() < count);
        let steps: BTreeMap<NodeId, &Step> = steps.map(|step| (step.nodes[0], step)).collect();
        // Through dropout or a maximum, a layer reads what was rounded before.
        let through = |step: &Step, value: ValueId, on: usize| {
            step.inputs.iter().zip(&step.places).any(|(&input, &place)| place == on && input != value)
        };
        let given = |value: ValueId, on: usize| {
            steps.values().any(|step| step.output.value == value || through(step, value, on))
        };
        let values = analysis.values().filter(|&(_, place)| place < count);
        let places = values.map(|(value, place)| (value, (place, given(value, place)))).collect();
        let fixed = analysis.places[..count].iter().map(|place| place.fixed).collect();
        let mut r = Rewriter::new(graph);
        let ty = TensorType::new(DType::F32, [count, SUMS]);
        let ranges = r.builder.named_state(RANGES.into(), ty, Role::Statistic, Init::Zeros);
        let grids = r.builder.within(LAYER.into(), |b| grids(b, ranges))?;
        let (rounded, most) = (BTreeMap::new(), vec![[Vec::new(), Vec::new()]; count]);
        let mut rounding = Self { graph, r, steps, places, fixed, ranges, grids, rounded, most };
        for input in &graph.inputs {
            rounding.round(input.value, &LAYER.into())?;
        }
        Ok(rounding)
    }

    /// Rounds a value for all that read it, if it is a place of that kind.
    fn round(&mut self, value: ValueId, layer: &Arc<str>) -> Result<(), GraphError> {
        if let Some(&(place, true)) = self.places.get(&value) {
            let rounded = self.place(place, self.r.get(value), layer)?;
            self.r.map[value.index()] = Some(rounded);
        }
        Ok(())
    }

    /// Copies a node; where it begins a layer on bytes, with what that reads rounded.
    fn node(&mut self, id: NodeId) -> Result<(), GraphError> {
        let graph = self.graph;
        let node = graph.node(id);
        match self.steps.get(&id).copied() {
            Some(step) => {
                let mut inputs = Vec::with_capacity(node.inputs.len());
                for &value in &node.inputs {
                    inputs.push(self.operand(step, value, &node.layer)?);
                }
                let outputs = self.r.emit_with(node, &inputs)?;
                self.r.set(node, &outputs);
            }
            None => self.r.copy(node)?,
        }
        node.outputs.iter().try_for_each(|&value| self.round(value, &node.layer))
    }

    /// What a layer on bytes reads.
    fn operand(&mut self, step: &Step, value: ValueId, layer: &Arc<str>) -> Result<ValueId, GraphError> {
        let own = self.r.get(value);
        if let Layer::Product { weights: kernel, .. } = &step.layer
            && kernel.state().is_some_and(|state| self.graph.states[state].input == value)
        {
            let shared = kernel.shared_axes(self.graph.ty(value).shape.rank());
            return self.r.builder.within(layer.clone(), |b| weights(b, own, shared));
        }
        let Some(&(place, false)) = self.places.get(&value) else { return Ok(own) };
        if let Some(&rounded) = self.rounded.get(&value) {
            return Ok(rounded);
        }
        let rounded = self.place(place, own, layer)?;
        self.rounded.insert(value, rounded);
        Ok(rounded)
    }

    /// Measures a place, and rounds it to its grid.
    fn place(&mut self, place: usize, x: ValueId, layer: &Arc<str>) -> Result<ValueId, GraphError> {
        let (grids, fixed, most) = (self.grids, self.fixed[place], &mut self.most[place]);
        self.r.builder.within(layer.clone(), |b| {
            most[0].push(Most::Largest.of_each(b, x)?);
            most[1].push(Most::Smallest.of_each(b, x)?);
            if let Some(Grid { scale, zero }) = fixed {
                let (scale, zero) = (f64::from(scale), f64::from(zero));
                let above = b.with_constant(Binary::Max, x, -zero * scale)?;
                let within = b.with_constant(Binary::Min, above, (STEPS - zero) * scale)?;
                let [inverse, scale] =
                    [b.constant(scale.recip(), DType::F32)?, b.constant(scale, DType::F32)?];
                return rounded(b, within, inverse, scale);
            }
            let mut part = |all: ValueId| {
                let span = Span { start: place, extent: 1, step: 1 };
                let one = b.one(Op::Movement(Movement::Slice(vec![span, Span::whole(1)])), &[all])?;
                b.reshape(one, [0usize; 0])
            };
            let [scale, inverse, low, high] =
                [part(grids[0])?, part(grids[1])?, part(grids[2])?, part(grids[3])?];
            let above = b.binary(Binary::Max, x, low)?;
            let within = b.binary(Binary::Min, above, high)?;
            rounded(b, within, inverse, scale)
        })
    }

    /// The graph; in training with what is new of the ranges.
    fn finish(mut self, mode: Mode) -> Result<Rewritten, GraphError> {
        if mode == Mode::Train {
            let (ranges, most) = (self.ranges, &self.most);
            let next = self.r.builder.within(LAYER.into(), |b| {
                let sums = most.iter().map(|most| measured(b, most)).collect::<Result<Vec<_>, _>>()?;
                let new = b.one(Op::Movement(Movement::Concat { axis: 0 }), &sums)?;
                let old = b.scale(ranges, DECAY)?;
                b.add(old, new)
            })?;
            self.r.builder.set_state(ranges, next);
        }
        let values = self.r.map.clone();
        Ok(Rewritten { builder: self.r.close(), values })
    }
}

/// Scale, its inverse, smallest and largest number of every place, each `[places, 1]`.
fn grids(b: &mut Builder, ranges: ValueId) -> Result<[ValueId; 4], GraphError> {
    let places = b.shape(ranges)[0];
    let column = |b: &mut Builder, i: usize| {
        let spans = vec![Span::whole(places), Span { start: i, extent: 1, step: 1 }];
        b.one(Op::Movement(Movement::Slice(spans)), &[ranges])
    };
    let seen = column(b, 4)?;
    let known = b.with_constant(Binary::Greater, seen, 0.0)?;
    let seen = b.with_constant(Binary::Max, seen, f64::from(f32::MIN_POSITIVE))?;
    let end = |b: &mut Builder, i: usize, side: f64| {
        let (sum, squares) = (column(b, i)?, column(b, i + 1)?);
        let (mean, square) = (b.div(sum, seen)?, b.div(squares, seen)?);
        let own = b.unary(Unary::Square, mean)?;
        let variance = b.sub(square, own)?;
        let variance = b.with_constant(Binary::Max, variance, 0.0)?;
        let deviation = b.unary(Unary::Sqrt, variance)?;
        let beyond = b.scale(deviation, side * DEVIATIONS)?;
        b.add(mean, beyond)
    };
    let (high, low) = (end(b, 0, 1.0)?, end(b, 2, -1.0)?);
    let high = b.with_constant(Binary::Max, high, 0.0)?;
    let low = b.with_constant(Binary::Min, low, 0.0)?;
    let width = b.sub(high, low)?;
    let scale = b.scale(width, 1.0 / STEPS)?;
    let scale = b.with_constant(Binary::Max, scale, LEAST_SCALE)?;
    // Zero is on the grid.
    let codes = b.div(low, scale)?;
    let codes = b.unary(Unary::Round, codes)?;
    let low = b.mul(codes, scale)?;
    let width = b.scale(scale, STEPS)?;
    let high = b.add(low, width)?;
    let mut before = |value: ValueId, constant: f64| {
        let constant = b.constant(constant, DType::F32)?;
        b.select(known, value, constant)
    };
    let (scale, low, high) = (before(scale, FINE)?, before(low, -WIDE)?, before(high, WIDE)?);
    let one = b.constant(1.0, DType::F32)?;
    Ok([scale, b.div(one, scale)?, low, high])
}

/// What a batch adds to the sums of a place, by the largest and the smallest elements of each example in its values: `[1, 5]`.
fn measured(b: &mut Builder, most: &[Vec<ValueId>; 2]) -> Result<ValueId, GraphError> {
    let [largest, smallest] = [Most::Largest.of_all(b, &most[0])?, Most::Smallest.of_all(b, &most[1])?];
    let squares = [b.unary(Unary::Square, largest)?, b.unary(Unary::Square, smallest)?];
    let none = b.scale(largest, 0.0)?;
    let one = b.with_constant(Binary::Add, none, 1.0)?;
    let all = [largest, squares[0], smallest, squares[1], one];
    let all = b.one(Op::Movement(Movement::Concat { axis: 1 }), &all)?;
    b.one(Op::Reduce(Reduce::Sum { start: 0, end: 1 }), &[all])
}

/// Weights rounded to their codes: those along the shared axes have one scale.
fn weights(b: &mut Builder, x: ValueId, (start, end): (usize, usize)) -> Result<ValueId, GraphError> {
    let magnitude = b.unary(Unary::Abs, x)?;
    let largest = b.one(Op::Reduce(Reduce::Max { start, end }), &[magnitude])?;
    let largest = b.with_constant(Binary::Max, largest, LEAST_SCALE)?;
    let scale = b.scale(largest, 1.0 / LARGEST_WEIGHT)?;
    let one = b.constant(1.0, DType::F32)?;
    let inverse = b.div(one, scale)?;
    rounded(b, x, inverse, scale)
}

/// Numbers rounded to multiples of a scale, with the gradient of numbers that are not.
fn rounded(b: &mut Builder, x: ValueId, inverse: ValueId, scale: ValueId) -> Result<ValueId, GraphError> {
    let codes = b.mul(x, inverse)?;
    let codes = b.unary(Unary::Round, codes)?;
    let rounded = b.mul(codes, scale)?;
    let difference = b.sub(rounded, x)?;
    let difference = b.one(Op::Movement(Movement::Detach), &[difference])?;
    b.add(x, difference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::Origin;
    use plimsoll_nn::{
        BatchNorm, Conv2d, Dense, Dropout, Flatten, GlobalAveragePool, MaxPool2d, Relu, Relu6, Residual,
        Sequential, Sgd, zoo,
    };

    fn model() -> Sequential {
        Sequential::classifier([8, 8, 3], 10)
            .layer("first", Conv2d::new(8, 3).without_bias())
            .layer("norm", BatchNorm::new())
            .layer("relu", Relu)
            .layer("block", Residual::new(Conv2d::new(8, 3)))
            .layer("relu6", Relu6)
            .layer("pool", MaxPool2d::new(2))
            .layer("flatten", Flatten)
            .layer("dropout", Dropout::new(0.5))
            .layer("head", Dense::new(10))
    }

    /// Places are the same in training, with the batch's statistics and dropout, as in prediction.
    #[test]
    fn training_rounds_what_prediction_has_on_bytes() {
        let graph = step::training(&QuantizeAware::new(model()).unwrap(), &Sgd::new(0.1), 4).unwrap();
        let ranges = graph.states.iter().find(|state| state.name == RANGES).unwrap();
        let expected = places(&step::prediction(&model(), 1).unwrap(), &KeptLayers::default());
        assert_eq!(expected, ["", "relu", "block", "relu6", "head"]);
        assert_eq!(graph.ty(ranges.input).shape[..], [expected.len(), SUMS]);
        assert!(ranges.output.is_some());
        let rounds = graph.nodes.iter().filter(|node| node.op.name() == "round").count();
        // Places, kernels, and the zero points of all places.
        assert_eq!(rounds, expected.len() + 3 + 1);
        // No kernel is read as it is by a product.
        for node in graph.nodes.iter().filter(|node| matches!(node.op.name(), "conv2d" | "matmul")) {
            let weights = node.inputs[1];
            assert!(!matches!(graph.origin(weights), Origin::State(_)), "{}", node.layer);
        }
    }

    #[test]
    fn models_of_the_zoo_train_so_and_others_say_why_not() {
        for entry in &zoo::ZOO {
            let make = || (entry.make)(&entry.small);
            match QuantizeAware::new(make()) {
                Ok(model) => {
                    for graph in [step::training(&model, &Sgd::new(0.1), 4), step::prediction(&model, 4)] {
                        graph.unwrap_or_else(|e| panic!("{}: {e}", entry.name));
                    }
                }
                Err(error) => {
                    assert!(error.to_string().contains("no layer that can run on bytes"), "{error}")
                }
            }
        }
        let mean = Sequential::classifier([4, 4, 3], 3).layer("mean", GlobalAveragePool);
        let error = QuantizeAware::new(mean).err().unwrap().to_string();
        assert!(error.contains("no layer that can run on bytes"), "{error}");
    }

    /// Values that are concatenated are rounded to one grid, whose range is that of all; a sigmoid is rounded to its own.
    #[test]
    fn places_that_are_joined_are_measured_together() {
        struct Beside;
        impl plimsoll_nn::Layer for Beside {
            fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
                let y = net.scope("conv", |net| Conv2d::new(4, 3).forward(net, x))?;
                let y = net.sigmoid(y)?;
                let y = net.scope("conv2", |net| Conv2d::new(4, 3).forward(net, y))?;
                net.concat(&[x, y], 3)
            }
        }
        let model = || {
            Sequential::classifier([8, 8, 3], 10)
                .layer("first", Conv2d::new(8, 3))
                .layer("beside", Beside)
                .layer("norm", BatchNorm::new())
                .layer("flatten", Flatten)
                .layer("head", Dense::new(10))
        };
        let graph = step::training(&QuantizeAware::new(model()).unwrap(), &Sgd::new(0.1), 4).unwrap();
        let ranges = graph.states.iter().find(|state| state.name == RANGES).unwrap();
        let expected = places(&step::prediction(&model(), 1).unwrap(), &KeptLayers::default());
        assert_eq!(expected, ["", "first", "beside/conv", "beside", "norm", "head"]);
        assert_eq!(graph.ty(ranges.input).shape[..], [expected.len(), SUMS]);
        // Each of the two that are concatenated, for one row of sums.
        let largest = |layer: &str| {
            let reads =
                |node: &&plimsoll_graph::Node| node.op.name() == "reduce_max" && *node.layer == *layer;
            graph.nodes.iter().filter(reads).count()
        };
        // A kernel has a largest magnitude, too, and the first layer reads the input's.
        assert_eq!(["first", "beside/conv2", "beside"].map(largest), [3, 2, 1]);
    }

    /// The scores of a loss that computes them itself are never there in training: their layer stays in f32.
    #[test]
    fn a_head_whose_scores_have_no_range_stays_in_floats() {
        let gpt =
            zoo::Gpt { layers: 1, width: 8, heads: 2, context: 4, vocabulary: 12, ..zoo::Gpt::default() };
        let prediction = step::prediction(&gpt, 1).unwrap();
        let count = QuantizeAware::new(gpt).unwrap().places.len();
        let grids = Int8Grids::new(vec![(0.1, 9); count]).unwrap();
        assert!(!grids.fit(&prediction));
        let grids = grids.keeping_rest(&prediction);
        assert!(grids.fit(&prediction));
        assert_eq!(grids.kept(), &KeptLayers::new(["head"]));
        for graph in [prediction, step::evaluation(&gpt, 1, Report::Output).unwrap()] {
            let bytes = grids.apply(graph).unwrap();
            assert!(bytes.states.iter().any(|state| state.name == "head/kernel"));
            assert!(bytes.states.iter().any(|state| state.name.ends_with("/codes")));
        }
    }

    #[test]
    fn learned_ranges_reach_beyond_the_mean_by_deviations() {
        let ty = TensorType::new(DType::F32, [2, SUMS]);
        // Two examples with the largest elements 3 and 5, the smallest -1 and -1; and one place that is never below zero.
        let sums = [8.0, 34.0, -2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 2.0];
        let tensor = |sums: &[f64]| Tensor::from_f64(ty.clone(), sums).unwrap();
        let grids: Vec<(f32, u8)> = Int8Grids::learned(&tensor(&sums)).unwrap().iter().collect();
        assert_eq!(grids, [(8.0 / 255.0, 32), (1.0 / 255.0, 0)]);
        let mut none = sums;
        none[9] = 0.0;
        assert_eq!(Int8Grids::learned(&tensor(&none)), None);
        none[9] = f64::NAN;
        assert_eq!(Int8Grids::learned(&tensor(&none)), None);
        none[9] = 2.0;
        none[5] = f64::INFINITY;
        assert_eq!(Int8Grids::learned(&tensor(&none)), None);
    }
}
