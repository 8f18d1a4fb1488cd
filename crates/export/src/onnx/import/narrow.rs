//! A file's model with fewer channels than the file has.
//!
//! What the file says of shapes stays true of the whole model alone. So the whole model is built first, and gives the shapes of all
//! values and tensors with the channels that are left; the nodes are then added once more, with these in place of the file's.

use super::{Importer, Known, OnnxModel};
use plimsoll_compress::ChannelSets;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::Shape;
use std::collections::{BTreeMap, HashMap};

#[cfg(test)]
mod tests;

/// The shapes of a model with fewer channels.
pub(super) struct Narrowed {
    /// Of states, by the tensor that they hold.
    states: BTreeMap<String, Shape>,
    /// Of the file's values, by name.
    values: HashMap<String, ValueShapes>,
}

struct ValueShapes {
    /// In the file.
    whole: Vec<usize>,
    /// With the channels that are left, in the order of axes here.
    left: Shape,
}

impl OnnxModel {
    /// The shapes of the model where layers have these output channels.
    pub(super) fn narrowed(
        &self,
        examples: usize,
        widths: &BTreeMap<String, usize>,
    ) -> Result<Narrowed, GraphError> {
        let (mut net, walked) = self.whole(examples)?;
        for (i, &output) in walked.outputs.iter().enumerate() {
            net.output(&format!("output{i}"), output);
        }
        let graph = net.graph();
        let sets = ChannelSets::of(graph);
        let wrong = |reason| GraphError::Choice(format!("{}: {reason}", self.file.path.display()));
        let kept = sets.kept(widths).map_err(wrong)?;
        let states = graph.states.iter().enumerate();
        let states = states.map(|(i, state)| (state.name.clone(), sets.state_shape(i, &kept))).collect();
        let shapes = |value: ValueId, image: bool| {
            let shape = &graph.ty(value).shape;
            let whole = match image {
                true => super::values::FROM_FILE.iter().map(|&axis| shape[axis]).collect(),
                false => shape.to_vec(),
            };
            ValueShapes { whole, left: sets.value_shape(value, &kept) }
        };
        let values = walked.known.into_iter().filter_map(|(name, known)| match known {
            Known::Plain(value) => Some((name.to_string(), shapes(value, false))),
            Known::Image(value) => Some((name.to_string(), shapes(value, true))),
            Known::Tensor(_) | Known::Ints(_) => None,
        });
        Ok(Narrowed { states, values: values.collect() })
    }
}

impl Importer<'_, '_> {
    /// The shape of a tensor's state where the model has fewer channels than the file.
    pub(super) fn narrowed_state(&self, tensor: &str) -> Option<Shape> {
        self.narrowed.as_ref()?.states.get(tensor).cloned()
    }

    /// The shape of the first output where the model has fewer channels than the file.
    pub(super) fn narrowed_output(&self) -> Option<Shape> {
        let values = &self.narrowed.as_ref()?.values;
        values.get(self.node.output.first()?).map(|shapes| shapes.left.clone())
    }

    /// The shape that the first input has in the file, where the model has fewer channels. What the file computes from shapes holds
    /// for this one.
    pub(super) fn whole_input(&self) -> Option<Vec<usize>> {
        let values = &self.narrowed.as_ref()?.values;
        values.get(self.node.input.first()?).map(|shapes| shapes.whole.clone())
    }
}
