//! Sharded updates: which device updates which states, and which of them it holds alone.

use plimsoll_graph::{Graph, Op, Origin, Role, State, ValueId};
use plimsoll_tensor::TensorType;
use std::fmt;
use std::str::FromStr;

/// What of a run's state is on one device alone, instead of on every one. Each has what those before it have, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shard {
    /// Nothing.
    #[default]
    None,
    /// The optimizer's state: what is called stage 1 of ZeRO.
    Optimizer,
    /// Gradients, too: stage 2. A gradient that every device reads, as clipping by the global norm does, is on all of them.
    Gradients,
    /// Parameters, too: stage 3. The others get each of them before forward reads it, and once more before backward does.
    Parameters,
}

impl Shard {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Optimizer, Self::Gradients, Self::Parameters];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
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
    /// What it is.
    pub role: Role,
    /// Its place among all states of the step.
    pub place: usize,
    /// The device.
    pub owner: usize,
    /// Whether no other device holds it. The others get each new version of a state that they hold.
    pub alone: bool,
}

impl OwnedState {
    /// Whether a device holds it.
    pub fn is_on(&self, device: usize) -> bool {
        !self.alone || self.owner == device
    }
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
    // What the outputs of a step follow from is read by every device after the last micro-batch.
    let outputs = Needs::of_outputs(graph, once);
    let is_alone = |state: &State| match state.role {
        Role::Moment => !read_early[state.input.index()],
        Role::Parameter | Role::Average => shard >= Shard::Parameters && !outputs.value(state.input),
        Role::Statistic | Role::Mask => false,
    };
    let updated: Vec<usize> = (0..graph.states.len()).filter(|&i| is_updated(&graph.states[i])).collect();
    let groups = groups(graph, once, &updated);
    let bytes = |group: &[usize]| -> usize {
        // A gradient is as large as its parameter.
        let held = |state: &State| {
            let gradient = shard >= Shard::Gradients && state.role == Role::Parameter;
            graph.ty(state.input).bytes() * (usize::from(is_alone(state)) + usize::from(gradient))
        };
        group.iter().map(|&i| held(&graph.states[i])).sum()
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
            OwnedState { name, ty, role: state.role, place: i, owner, alone: is_alone(state) }
        }));
    }
    owned.sort_by_key(|state| state.place);
    owned
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
        let states = graph.states.iter().filter(|state| is_updated_by(owners, &state.name, device));
        Self::of(graph, once, states.filter_map(|state| state.output).collect())
    }

    /// What a device needs that updates nothing.
    fn of_outputs(graph: &Graph, once: &[bool]) -> Self {
        Self::of(graph, once, Vec::new())
    }

    fn of(graph: &Graph, once: &[bool], mut stack: Vec<ValueId>) -> Self {
        let mut needs =
            Self { nodes: vec![false; graph.nodes.len()], values: vec![false; graph.value_count()] };
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
    /// assert_eq!(whole.sharded(64, Shard::Parameters).total(), 1_875_000_000);
    /// ```
    pub fn sharded(self, devices: usize, shard: Shard) -> Self {
        let part = |bytes: u64, from: Shard| match shard >= from {
            true => bytes.div_ceil(devices.max(1) as u64),
            false => bytes,
        };
        Self {
            parameters: part(self.parameters, Shard::Parameters),
            gradients: part(self.gradients, Shard::Gradients),
            optimizer: part(self.optimizer, Shard::Optimizer),
        }
    }

    /// All of them.
    pub fn total(self) -> u64 {
        self.parameters + self.gradients + self.optimizer
    }
}
