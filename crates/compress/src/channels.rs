//! Whole channels removed: a model of fewer channels, and the weights of those that are left.

mod sets;

pub use sets::{ChannelSets, KeptChannels};

use plimsoll_graph::{Graph, GraphError, Node, Op};
use plimsoll_nn::{Model, Narrow, step};
use plimsoll_tensor::{DType, Shape, Tensor, TensorType};
use sets::{StateAxis, width_name};
use std::collections::BTreeMap;
use thiserror::Error;

/// Why channels cannot be removed.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// A share outside (0, 1).
    #[error("the share of channels to remove is above 0 and below 1, not {0}: 0.5 removes half of them")]
    Share(f64),
    /// The model has none.
    #[error(
        "`{model}` has no convolution whose channels nothing else fixes: there is nothing to remove{reason}"
    )]
    None {
        /// The model.
        model: String,
        /// What fixes those of the first one, in brackets; empty where there is none.
        reason: String,
    },
    /// A layer of which no channel would be left.
    #[error("a share of {share} leaves none of the {channels} channels of `{layer}`: remove at most {most}")]
    All {
        /// The share.
        share: f64,
        /// The layer.
        layer: String,
        /// Its channels.
        channels: usize,
        /// The largest share, to two places, that leaves one.
        most: f64,
    },
    /// The model is not built from the numbers of channels that its layers have.
    #[error("`{model}` cannot be built with fewer channels: {reason}")]
    Fixed {
        /// The model.
        model: String,
        /// What is in the way.
        reason: String,
    },
    /// The model's graph cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Which channels of a model's layers are left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    widths: BTreeMap<String, usize>,
    /// For each state, the axes that lose elements, and those that they keep.
    cuts: BTreeMap<String, Vec<(usize, Vec<usize>)>>,
    before: usize,
}

impl Channels {
    /// Removes this share of the channels of every convolution, those whose kernels have the smallest magnitudes. `read` gives a
    /// parameter by its name.
    ///
    /// Channels that other layers share go together: those of batch norm, of a depthwise convolution, of both branches of a residual
    /// block, and the rows of the layer that reads them. Channels that something else fixes stay, like those of the model's outputs,
    /// of concatenations and of reshapes that mix them. A share that would leave none of several is an error.
    pub fn smallest<E: From<ChannelError>>(
        model: &dyn Model,
        share: f64,
        mut read: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<Self, E> {
        if !(share > 0.0 && share < 1.0) {
            return Err(ChannelError::Share(share).into());
        }
        let graph = step::prediction(model, 1).map_err(ChannelError::from)?;
        let sets = ChannelSets::of(&graph);
        let mut scores: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut widths = BTreeMap::new();
        let producers = sets.producers();
        for &(state, set) in &producers {
            let magnitudes = magnitudes(&read(&graph.states[state].name)?);
            let scores = scores.entry(set).or_insert_with(|| vec![0.0; magnitudes.len()]);
            // Relative to the layer's own, so that each layer of a set counts as much.
            let mean = magnitudes.iter().sum::<f64>() / magnitudes.len().max(1) as f64;
            let scale = if mean > 0.0 { mean.recip() } else { 0.0 };
            scores.iter_mut().zip(&magnitudes).for_each(|(score, magnitude)| *score += magnitude * scale);
        }
        for &(state, set) in &producers {
            let channels = sets.extent(set);
            if channels > 1 && left(channels, share) == 0 {
                let layer = width_name(&graph.states[state].name).to_string();
                let most = (100.0 - 50.0 / channels as f64).floor() / 100.0;
                return Err(ChannelError::All { share, layer, channels, most }.into());
            }
        }
        let kept: BTreeMap<usize, Vec<usize>> =
            scores.into_iter().map(|(set, scores)| (set, largest(&scores, share))).collect();
        let mut before = 0;
        for (state, set) in producers {
            let layer = width_name(&graph.states[state].name);
            before += graph.ty(graph.states[state].input).shape.last().copied().unwrap_or(0);
            widths.insert(layer.to_string(), kept[&set].len());
        }
        if widths.is_empty() {
            let reason = sets.first_fixed().map_or(String::new(), |reason| format!(" ({reason})"));
            return Err(ChannelError::None { model: model.name().to_string(), reason }.into());
        }
        let mut cuts: BTreeMap<String, Vec<(usize, Vec<usize>)>> = BTreeMap::new();
        for StateAxis { state, axis, set, inner } in sets.state_axes() {
            let Some(kept) = kept.get(&set) else { continue };
            let (name, length) = (&graph.states[state].name, graph.ty(graph.states[state].input).shape[axis]);
            // Rows that read a flattened image are the channels of each of its pixels, or the pixels of each channel.
            let extent = sets.extent(set);
            let rows = (0..length / (extent * inner)).flat_map(|pixel| {
                let of_channel = move |channel: &usize| {
                    let first = (pixel * extent + channel) * inner;
                    first..first + inner
                };
                kept.iter().flat_map(of_channel)
            });
            cuts.entry(name.clone()).or_default().push((axis, rows.collect()));
        }
        let channels = Self { widths, cuts, before };
        channels.check(model, &graph)?;
        Ok(channels)
    }

    /// The [`Channels::widths`] that are left when this share is removed, whatever the weights are.
    pub fn widths_after(model: &dyn Model, share: f64) -> Result<BTreeMap<String, usize>, ChannelError> {
        // Only the number of channels counts.
        let graph = step::prediction(model, 1)?;
        let sizes: BTreeMap<&str, usize> = graph
            .states
            .iter()
            .map(|state| (state.name.as_str(), graph.ty(state.input).shape.last().copied().unwrap_or(1)))
            .collect();
        let equal = |name: &str| {
            let channels = sizes.get(name).copied().unwrap_or(1);
            Ok::<_, ChannelError>(Tensor::zeros(TensorType::new(DType::F32, [channels])))
        };
        Self::smallest(model, share, equal).map(|channels| channels.widths)
    }

    /// The output channels of every layer that lost some, by its name: what [`Narrow`] takes.
    pub fn widths(&self) -> &BTreeMap<String, usize> {
        &self.widths
    }

    /// Channels of these layers before, and those that are left.
    pub fn counts(&self) -> (usize, usize) {
        (self.before, self.widths.values().sum())
    }

    /// What is left of a state.
    pub fn cut(&self, name: &str, state: &Tensor) -> Tensor {
        let cuts = self.cuts.get(name).into_iter().flatten();
        cuts.fold(state.clone(), |state, (axis, kept)| take(&state, *axis, kept))
    }

    fn shape(&self, name: &str, shape: &Shape) -> Shape {
        let mut shape = shape.to_vec();
        for (axis, kept) in self.cuts.get(name).into_iter().flatten() {
            shape[*axis] = kept.len();
        }
        Shape::from(shape)
    }

    /// Builds the smaller model, and compares it with what the cuts leave.
    fn check(&self, model: &dyn Model, graph: &Graph) -> Result<(), ChannelError> {
        let fixed = |reason: String| ChannelError::Fixed { model: model.name().to_string(), reason };
        let small = step::prediction(&Narrow::new(model, self.widths.clone()), 1)?;
        for state in &graph.states {
            let wanted = self.shape(&state.name, &graph.ty(state.input).shape);
            let found = small.states.iter().find(|s| s.name == state.name).map(|s| &small.ty(s.input).shape);
            if found != Some(&wanted) {
                let has = found.map_or("is not there".to_string(), |shape| format!("is {shape}"));
                return Err(fixed(format!("`{}` {has}, not {wanted}", state.name)));
            }
        }
        // With a single channel some elements need not be moved.
        let computes = |node: &&Node| !matches!(node.op, Op::Movement(_));
        let ops = |graph: &Graph| {
            graph.nodes.iter().filter(computes).map(|node| node.op.name()).collect::<Vec<_>>()
        };
        match small.states.len() == graph.states.len() && ops(&small) == ops(graph) {
            true => Ok(()),
            false => Err(fixed("with them its layers are connected in another way".into())),
        }
    }
}

/// The sum of the magnitudes of each output channel of a kernel.
fn magnitudes(kernel: &Tensor) -> Vec<f64> {
    let channels = kernel.ty().shape.last().copied().unwrap_or(1).max(1);
    let mut sums = vec![0.0; channels];
    for (i, weight) in kernel.to_f64().into_iter().enumerate() {
        sums[i % channels] += weight.abs();
    }
    sums
}

/// How many of these channels a share leaves.
fn left(channels: usize, share: f64) -> usize {
    (channels as f64 * (1.0 - share)).round() as usize
}

/// The numbers of the channels that are left, in order; of equal scores the first.
fn largest(scores: &[f64], share: f64) -> Vec<usize> {
    let count = left(scores.len(), share).clamp(1, scores.len());
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let mut kept = order[..count].to_vec();
    kept.sort_unstable();
    kept
}

/// Some elements of an axis.
fn take(tensor: &Tensor, axis: usize, kept: &[usize]) -> Tensor {
    let (shape, size) = (&tensor.ty().shape, tensor.ty().dtype.bytes());
    let inside: usize = shape[axis + 1..].iter().product::<usize>() * size;
    let mut new = shape.to_vec();
    new[axis] = kept.len();
    let mut left = Tensor::zeros(TensorType::new(tensor.ty().dtype, new));
    let outer = tensor.as_bytes().chunks_exact((shape[axis] * inside).max(1));
    let into = left.as_bytes_mut().chunks_exact_mut((kept.len() * inside).max(1));
    for (from, into) in outer.zip(into) {
        for (&row, into) in kept.iter().zip(into.chunks_exact_mut(inside.max(1))) {
            into.copy_from_slice(&from[row * inside..][..inside]);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::ValueId;
    use plimsoll_nn::{
        BatchNorm, Conv2d, Dense, DepthwiseConv2d, Flatten, GlobalAveragePool, Layer, MaxPool2d, Net, Relu,
        Residual, Sequential, zoo,
    };

    /// Kernels whose channel c has magnitude `c % 4`, so that channels 2 and 3 of every four are left.
    fn read(name: &str, graph: &Graph) -> Tensor {
        let state = graph.states.iter().find(|s| s.name == name).unwrap();
        let ty = graph.ty(state.input).clone();
        let channels = ty.shape.last().copied().unwrap();
        let values: Vec<f64> = (0..ty.shape.elements()).map(|i| (i % channels % 4) as f64 + 0.5).collect();
        Tensor::from_f64(ty, &values).unwrap()
    }

    fn half(model: &dyn Model) -> Result<Channels, ChannelError> {
        let graph = step::prediction(model, 1).unwrap();
        Channels::smallest(model, 0.5, |name| Ok::<_, ChannelError>(read(name, &graph)))
    }

    #[test]
    fn channels_go_with_all_that_shares_them() {
        let model = Sequential::classifier([8, 8, 3], 10)
            .layer("first", Conv2d::new(8, 3).without_bias())
            .layer("norm", BatchNorm::new())
            .layer("relu", Relu)
            .layer("block", Residual::new(Conv2d::new(8, 3)))
            .layer("depth", DepthwiseConv2d::new(3))
            .layer("pool", MaxPool2d::new(2))
            .layer("flatten", Flatten)
            .layer("head", Dense::new(10));
        let found = half(&model).unwrap();
        assert_eq!(
            found.widths().iter().map(|(name, n)| (name.as_str(), *n)).collect::<Vec<_>>(),
            [("block", 4), ("first", 4)]
        );
        assert_eq!(found.counts(), (16, 8));
        let cuts = |name: &str| found.cuts.get(name).cloned().unwrap_or_default();
        let kept = vec![2, 3, 6, 7];
        assert_eq!(cuts("first/kernel"), [(3, kept.clone())]);
        assert_eq!(cuts("block/kernel"), [(2, kept.clone()), (3, kept.clone())]);
        for vector in [
            "norm/gain",
            "norm/bias",
            "norm/running_mean",
            "norm/running_variance",
            "block/bias",
            "depth/bias",
        ] {
            assert_eq!(cuts(vector), [(0, kept.clone())], "{vector}");
        }
        assert_eq!(cuts("depth/kernel"), [(3, kept.clone())]);
        // The channels of each of sixteen pixels.
        let rows: Vec<usize> = (0..16).flat_map(|pixel| kept.iter().map(move |c| pixel * 8 + c)).collect();
        assert_eq!(cuts("head/kernel"), [(0, rows)]);
        assert!(cuts("head/bias").is_empty());
    }

    #[test]
    fn models_of_the_zoo_get_smaller() {
        for (model, layers) in
            [(zoo::resnet20(), 21), (zoo::resnet18_of([32, 32, 3], 10, 16), 20), (zoo::lenet(), 2)]
        {
            let found = half(&model).unwrap();
            assert_eq!(*found.widths(), Channels::widths_after(&model, 0.5).unwrap(), "{}", model.name());
            assert_eq!(found.widths().len(), layers, "{}", model.name());
            let (before, after) = found.counts();
            assert_eq!(after * 2, before, "{}", model.name());
        }
        let found = half(&zoo::mobilenet_v2_of([32, 32, 3], 10, 32, 0.0)).unwrap();
        assert!(found.widths().len() > 30, "{}", found.widths().len());
    }

    #[test]
    fn what_is_fixed_stays_and_nothing_to_remove_is_an_error() {
        let only = Sequential::classifier([4, 4, 1], 5)
            .layer("conv", Conv2d::new(5, 3))
            .layer("mean", GlobalAveragePool);
        assert!(matches!(half(&only), Err(ChannelError::None { .. })));
        let dense =
            Sequential::classifier([4], 5).layer("hidden", Dense::new(8)).layer("head", Dense::new(5));
        assert!(matches!(half(&dense), Err(ChannelError::None { .. })));
        for share in [0.0, 1.0, -0.5, f64::NAN] {
            let found = Channels::smallest(&zoo::resnet20(), share, |_| panic!("nothing is read"));
            assert!(matches!(found, Err(ChannelError::Share(_))), "{share}");
        }
    }

    /// Rectifies images of eight channels, and no others.
    struct RectifiesEight;

    impl Layer for RectifiesEight {
        fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
            if net.shape(x).last() == Some(&8) { Relu.forward(net, x) } else { Ok(x) }
        }
    }

    #[test]
    fn a_model_that_is_another_one_with_fewer_channels_is_refused() {
        let model = Sequential::classifier([4, 4, 1], 5)
            .layer("conv", Conv2d::new(8, 3))
            .layer("eight", RectifiesEight)
            .layer("mean", GlobalAveragePool)
            .layer("head", Dense::new(5));
        let error = half(&model).unwrap_err().to_string();
        assert!(error.contains("its layers are connected in another way"), "{error}");
    }

    #[test]
    fn elements_are_taken_from_an_axis() {
        let ty = TensorType::new(DType::F32, [2, 3, 2]);
        let tensor = Tensor::from_f64(ty, &(0..12).map(f64::from).collect::<Vec<_>>()).unwrap();
        assert_eq!(take(&tensor, 1, &[0, 2]).as_f32().unwrap(), [0.0, 1.0, 4.0, 5.0, 6.0, 7.0, 10.0, 11.0]);
        assert_eq!(take(&tensor, 2, &[1]).as_f32().unwrap(), [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
        assert_eq!(take(&tensor, 0, &[1]).as_f32().unwrap(), [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    }
}
