//! The plans of devices that hold the parts of one model, seen as one.

use crate::{PlanSet, StatePlacement};
use plimsoll_tensor::TensorType;

/// What a run sees of the plans of its devices, each of which has a part of the model: every state, and the inputs and outputs of every
/// plan. Of one device alone it is what that has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Whole {
    /// The states, those of the first device first.
    pub states: Vec<StatePlacement>,
    /// The device that holds each of them, and its index there.
    pub homes: Vec<(usize, usize)>,
    /// The plans, which all devices have in the same order.
    pub plans: Vec<WholePlan>,
}

/// A plan of all devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WholePlan {
    /// The batch type.
    pub name: String,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// The names of its inputs. Several devices may take the same.
    pub inputs: Vec<String>,
    /// Its outputs.
    pub outputs: Vec<WholeOutput>,
}

/// An output of a plan of all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeOutput {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// The device that computes it.
    pub device: usize,
    /// Its index there.
    pub index: usize,
}

impl Whole {
    /// What the plans of all devices, by device, are together.
    pub fn new<'p>(devices: impl IntoIterator<Item = &'p PlanSet>) -> Self {
        let mut whole = Self::default();
        for (device, set) in devices.into_iter().enumerate() {
            whole.states.extend(set.states.iter().cloned());
            whole.homes.extend((0..set.states.len()).map(|index| (device, index)));
            whole.plans.resize(whole.plans.len().max(set.plans.len()), WholePlan::default());
            for (plan, own) in whole.plans.iter_mut().zip(&set.plans) {
                let graph = &own.graph;
                plan.name.clone_from(&own.name);
                plan.micro_batches = graph.step_micro_batches();
                for input in &graph.inputs {
                    if !plan.inputs.contains(&input.name) {
                        plan.inputs.push(input.name.clone());
                    }
                }
                let output = |(index, output): (usize, &plimsoll_graph::Output)| WholeOutput {
                    name: output.name.clone(),
                    ty: graph.ty(output.value).clone(),
                    device,
                    index,
                };
                plan.outputs.extend(graph.outputs.iter().enumerate().map(output));
            }
        }
        whole
    }

    /// Puts the states in another order, by a key of their names.
    pub fn sort_states<K: Ord>(&mut self, key: impl Fn(&str) -> K) {
        let mut both: Vec<_> =
            std::mem::take(&mut self.states).into_iter().zip(std::mem::take(&mut self.homes)).collect();
        both.sort_by_key(|(state, _)| key(&state.name));
        (self.states, self.homes) = both.into_iter().unzip();
    }
}
