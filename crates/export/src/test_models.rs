//! Models on bytes, for tests.

use crate::{Batch, ExportError, ExportGraph, Weights};
use plimsoll_compress::{Int8Grids, KeptLayers, places};
use plimsoll_graph::{Graph, GraphError, ValueId};
use plimsoll_nn::{
    AveragePool2d, BatchNorm, Conv2d, ConvTranspose2d, Dense, GlobalAveragePool, Layer, MaxPool2d, Model,
    Net, Padding, Relu, Relu6, Sequential, Silu, step,
};
use plimsoll_tensor::Tensor;
use std::collections::BTreeMap;

/// The states of a model on bytes.
pub struct Bytes {
    graph: Graph,
    states: BTreeMap<String, Tensor>,
}

impl Weights for Bytes {
    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExportError> {
        let state = &self.states[&self.graph.states[state].name];
        into.copy_from_slice(&state.as_bytes()[offset..offset + into.len()]);
        Ok(())
    }
}

/// A model on bytes whose weights are all a half, with this grid in every place.
pub fn on_bytes(model: &dyn Model, batch: Batch, grid: (f32, u8)) -> (ExportGraph, Bytes) {
    let floats = step::prediction(model, 1).unwrap();
    let grids = Int8Grids::new(vec![grid; places(&floats, &KeptLayers::default()).len()]).unwrap();
    let half = |name: &str| {
        let state = floats.states.iter().find(|state| state.name == name).unwrap();
        let ty = floats.ty(state.input).clone();
        let values = vec![0.5; ty.shape.elements()];
        Ok::<_, GraphError>(Tensor::from_f64(ty, &values).unwrap())
    };
    let mut states: BTreeMap<String, Tensor> = grids.states(&floats, half).unwrap().into_iter().collect();
    let step = ExportGraph::on_bytes(model, batch, |graph| grids.apply_with_grids(graph)).unwrap();
    for state in &step.graph().states {
        states.entry(state.name.clone()).or_insert_with(|| half(&state.name).unwrap());
    }
    let graph = step.graph().clone();
    (step, Bytes { graph, states })
}

/// A layer of each kind.
pub fn layers_on_bytes() -> Sequential {
    Sequential::classifier([8, 8, 3], 4)
        .layer("conv", Conv2d::new(5, 3).padding(Padding::Explicit([[2, 1], [1, 1]])))
        .layer("relu", Relu)
        .layer("pool", MaxPool2d::new(2))
        .layer("conv2", Conv2d::new(6, 3))
        .layer("relu6", Relu6)
        .layer("mean", GlobalAveragePool)
        .layer("head", Dense::new(4))
}

/// What it reads beside a gated convolution of it, one behind the other.
struct Beside;

impl Layer for Beside {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = net.scope("conv", |net| Conv2d::new(4, 3).forward(net, x))?;
        let y = Silu.forward(net, y)?;
        let gate = net.scope("gate", |net| Conv2d::new(4, 1).forward(net, y))?;
        let gate = net.sigmoid(gate)?;
        let y = net.mul(y, gate)?;
        net.concat(&[x, y], 3)
    }
}

/// Branches that meet, and what is behind them.
pub fn branches_on_bytes() -> Sequential {
    Sequential::classifier([8, 8, 3], 4)
        .layer("first", Conv2d::new(4, 3))
        .layer("beside", Beside)
        .layer("norm", BatchNorm::new())
        .layer("average", AveragePool2d::new(2))
        .layer("grow", ConvTranspose2d::new(5, 2).stride(2).padding(Padding::Valid))
        .layer("mean", GlobalAveragePool)
        .layer("head", Dense::new(4))
}
