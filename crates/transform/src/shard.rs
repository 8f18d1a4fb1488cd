//! Sharded updates: which device updates which states, and which of them it holds alone.

use plimsoll_graph::{Graph, Op, Origin, Role, State, ValueId};
use plimsoll_tensor::TensorType;
use std::fmt;
use std::str::FromStr;

/// What of a run's state is on one device alone, instead of on every one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shard {
    /// Nothing.
    #[default]
    None,
    /// The optimizer's state: what is called stage 1 of ZeRO.
    Optimizer,
    /// Gradients, too: stage 2. A gradient that every device reads, as clipping by the global norm does, is on all of them.
    Gradients,
}

impl Shard {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Optimizer, Self::Gradients];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|shard| shard.name() == text);
        found.ok_or_else(|| format!("`{text}` is not one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A state that one device updates.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedState {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// The device.
    pub owner: usize,
    /// Whether no other device holds it. The others get each new version of a state that they hold.
    pub alone: bool,
}

/// The states that one device updates, with that device, from a training step and the phases of its nodes. States that an update
/// changes together go together; groups are dealt out by their bytes, largest first, each to the device that has least. So it depends on
/// the step and the number of devices alone.
pub(crate) fn owners(graph: &Graph, once: &[bool], devices: usize, shard: Shard) -> Vec<OwnedState> {
    if shard == Shard::None || devices < 2 {
        return Vec::new();
    }
    let is_updated = |state: &State| {
        let by = state.output.and_then(|v| graph.producer(source(graph, v)));
        by.is_some_and(|node| once[node.index()]) && graph.ty(state.input).shape.elements() > 1
    };
    let mut read_early = vec![false; graph.value_count()];
    for (node, _) in graph.nodes.iter().zip(once).filter(|(_, once)| !**once) {
        node.reads().for_each(|v| read_early[source(graph, v).index()] = true);
    }
    // Masks are in weights files, too, which the first device writes.
    let is_alone = |state: &State| state.role == Role::Moment && !read_early[state.input.index()];
    let updated: Vec<usize> = (0..graph.states.len()).filter(|&i| is_updated(&graph.states[i])).collect();
    let groups = groups(graph, once, &updated);
    let bytes = |group: &[usize]| -> usize {
        // A gradient is as large as its parameter.
        let counts =
            |state: &&State| is_alone(state) || shard == Shard::Gradients && state.role == Role::Parameter;
        let alone = group.iter().map(|&i| &graph.states[i]).filter(counts);
        alone.map(|state| graph.ty(state.input).bytes()).sum()
    };
    let mut groups: Vec<(usize, Vec<usize>)> =
        groups.into_iter().map(|group| (bytes(&group), group)).collect();
    groups.retain(|(bytes, _)| *bytes > 0);
    // A stable sort: equal ones stay in the order of the graph.
    groups.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let (mut held, mut owned) = (vec![0; devices], Vec::new());
    for (bytes, group) in groups {
        let owner = (0..devices).min_by_key(|&device| held[device]).unwrap_or(0);
        held[owner] += bytes;
        owned.extend(group.into_iter().map(|i| {
            let state = &graph.states[i];
            let (name, ty) = (state.name.clone(), graph.ty(state.input).clone());
            (i, OwnedState { name, ty, owner, alone: is_alone(state) })
        }));
    }
    owned.sort_by_key(|(i, _)| *i);
    owned.into_iter().map(|(_, state)| state).collect()
}

/// The value that a value is a view of.
fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Some(node) = graph.producer(value).map(|id| graph.node(id)).filter(|node| node.op.is_view()) {
        value = node.inputs[0];
    }
    value
}

/// Groups of states that depend on each other's old versions in the optimizer step, in the order of their first states.
fn groups(graph: &Graph, once: &[bool], updated: &[usize]) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..graph.states.len()).collect();
    // The state whose group a value depends on.
    let mut of: Vec<Option<usize>> = vec![None; graph.value_count()];
    updated.iter().for_each(|&i| of[graph.states[i].input.index()] = Some(i));
    for (node, _) in
        graph.nodes.iter().zip(once).filter(|(node, once)| **once && !matches!(node.op, Op::Exchange(_)))
    {
        let mut found: Option<usize> = None;
        for value in node.reads() {
            let Some(state) = of[value.index()] else { continue };
            join(&mut group, found.unwrap_or(state), state);
            found = Some(state);
        }
        node.outputs.iter().for_each(|v| of[v.index()] = found);
    }
    for &i in updated {
        if let Some(other) = graph.states[i].output.and_then(|v| of[v.index()]) {
            join(&mut group, i, other);
        }
    }
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for &i in updated {
        let root = root(&group, i);
        match groups.iter_mut().find(|(of, _)| *of == root) {
            Some((_, states)) => states.push(i),
            None => groups.push((root, vec![i])),
        }
    }
    groups.into_iter().map(|(_, states)| states).collect()
}

fn root(group: &[usize], mut i: usize) -> usize {
    while group[i] != i {
        i = group[i];
    }
    i
}

fn join(group: &mut [usize], a: usize, b: usize) {
    let (a, b) = (root(group, a), root(group, b));
    group[a.max(b)] = a.min(b);
}

/// For every device, which nodes of the optimizer step it runs: those that the states that it updates depend on, and the outputs.
pub(crate) struct Needs {
    nodes: Vec<bool>,
    values: Vec<bool>,
}

impl Needs {
    pub fn new(graph: &Graph, once: &[bool], owners: &[OwnedState], device: usize) -> Self {
        let mut needs =
            Self { nodes: vec![false; graph.nodes.len()], values: vec![false; graph.value_count()] };
        let states = graph.states.iter().filter(|state| is_updated_by(owners, &state.name, device));
        let mut stack: Vec<ValueId> = states.filter_map(|state| state.output).collect();
        stack.extend(graph.outputs.iter().map(|output| output.value));
        while let Some(value) = stack.pop() {
            if std::mem::replace(&mut needs.values[value.index()], true) {
                continue;
            }
            if let Origin::Node { node, .. } = graph.origin(value)
                && once[node.index()]
            {
                needs.nodes[node.index()] = true;
                stack.extend(graph.node(node).reads());
            }
        }
        needs
    }

    /// Whether a node of the optimizer step runs.
    pub fn node(&self, node: usize) -> bool {
        self.nodes[node]
    }

    /// Whether the optimizer step, or what follows it, reads a value.
    pub fn value(&self, value: ValueId) -> bool {
        self.values[value.index()]
    }
}

/// Whether a device updates a state.
pub(crate) fn is_updated_by(owners: &[OwnedState], name: &str, device: usize) -> bool {
    owners.iter().find(|state| state.name == name).is_none_or(|state| state.owner == device)
}

/// Bytes of what a run holds for its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Parameters as a step reads them.
    pub parameters: u64,
    /// Gradients.
    pub gradients: u64,
    /// The optimizer's state, with a master copy of the parameters if there is one.
    pub optimizer: u64,
}

impl StateBytes {
    /// What is left of them on each of several devices, if they are dealt out evenly.
    ///
    /// ```
    /// use plimsoll_transform::{Shard, StateBytes};
    /// // 7.5 billion parameters in 16-bit floats, with a master copy and two moments in f32.
    /// let whole = StateBytes { parameters: 15_000_000_000, gradients: 15_000_000_000, optimizer: 90_000_000_000 };
    /// assert_eq!(whole.sharded(64, Shard::None).total(), 120_000_000_000);
    /// assert_eq!(whole.sharded(64, Shard::Optimizer).total() / 10_000_000, 3_140);
    /// assert_eq!(whole.sharded(64, Shard::Gradients).total() / 10_000_000, 1_664);
    /// ```
    pub fn sharded(self, devices: usize, shard: Shard) -> Self {
        let part = |bytes: u64| bytes.div_ceil(devices.max(1) as u64);
        match shard {
            Shard::None => self,
            Shard::Optimizer => Self { optimizer: part(self.optimizer), ..self },
            Shard::Gradients => {
                Self { gradients: part(self.gradients), optimizer: part(self.optimizer), ..self }
            }
        }
    }

    /// All of them.
    pub fn total(self) -> u64 {
        self.parameters + self.gradients + self.optimizer
    }
}
