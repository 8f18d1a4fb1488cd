//! Parameters that one device holds, and the others get before they compute with them.
//!
//! A parameter passes once before the nodes of forward that read it, and once before those of backward: between them a device that does
//! not hold it frees it. Where all that is read of it is a view, or a conversion to fewer bytes, that passes instead, and the device that
//! holds it alone converts it.
//!
//! All that passes has numbers above those of the sums, in the order of the first nodes that read it, and takes turns with the sums
//! ([`Order`]). So the argument there holds: before a node each device gives and takes the same parameters, in the same order, and who waits
//! for another waits for one that comes to the same node.

use crate::replicate::{Order, in_turn};
use crate::rewriter::Rewriter;
use crate::shard::OwnedState;
use crate::{LOSS, SplitError};
use plimsoll_graph::op::{Elementwise, Exchange};
use plimsoll_graph::{BatchMark, Graph, Node, Op, ValueId};

/// A parameter on its way to the devices that read it.
pub(crate) struct Fetch {
    /// What passes: the parameter, or what is read of it.
    value: ValueId,
    mark: BatchMark,
    /// The device that has it.
    owner: usize,
    /// Its number.
    chain: u32,
}

/// All parameters that pass in a step.
pub(crate) struct Fetches {
    /// By the node before which they pass.
    before: Vec<Vec<Fetch>>,
    /// The one device that runs a node, because the others get its result.
    runs_on: Vec<Option<usize>>,
}

impl Fetches {
    /// What passes in the nodes of a step that run in every micro-batch.
    pub fn new(graph: &Graph, once: &[bool], owners: &[OwnedState]) -> Self {
        let readers =
            graph.readers().into_iter().map(|nodes| nodes.iter().map(|node| node.index()).collect());
        let mut search = Search {
            graph,
            once,
            readers: readers.collect(),
            forward: before_loss(graph),
            found: Vec::new(),
            runs_on: vec![None; graph.nodes.len()],
        };
        for state in &graph.states {
            let owned = owners.iter().find(|owned| owned.alone && owned.name == state.name);
            if let Some(owner) = owned.map(|owned| owned.owner) {
                search.pass(state.input, owner, search.early_readers(state.input));
            }
        }
        let Search { mut found, runs_on, .. } = search;
        // A stable sort: parameters that one node reads stay in the order of the states.
        found.sort_by_key(|(at, ..)| *at);
        let (marks, sums) = (graph.batch_marks(), graph.accumulators.len());
        let mut before: Vec<Vec<Fetch>> = graph.nodes.iter().map(|_| Vec::new()).collect();
        for (number, (at, value, owner)) in found.into_iter().enumerate() {
            let (mark, chain) = (marks[value.index()], (sums + number) as u32);
            before[at].push(Fetch { value, mark, owner, chain });
        }
        Self { before, runs_on }
    }

    pub fn is_empty(&self) -> bool {
        self.before.iter().all(Vec::is_empty)
    }

    /// Whether a device runs a node.
    pub fn runs(&self, node: usize, device: usize) -> bool {
        self.runs_on[node].is_none_or(|owner| owner == device)
    }

    /// Whether a device runs a node that no other one does.
    pub fn runs_alone(&self, node: usize, device: usize) -> bool {
        self.runs_on[node] == Some(device)
    }

    /// Passes what a node reads, in the step of one of the devices: those that compute it.
    pub fn pass(
        &self,
        r: &mut Rewriter<'_>,
        order: &mut Order,
        (device, computing): (usize, &[usize]),
        (at, node): (usize, &Node),
    ) -> Result<(), SplitError> {
        let fetches = &self.before[at];
        let passes = |value: &ValueId| fetches.iter().any(|fetch| fetch.value == *value);
        for fetch in fetches {
            // A device does not wait before it has what the node reads beside it.
            let beside = node.inputs.iter().filter(|&value| !passes(value));
            let beside: Vec<ValueId> = beside.filter_map(|value| r.map[value.index()]).collect();
            if fetch.owner == device {
                let given = r.get(fetch.value);
                for &to in computing.iter().filter(|&&to| to != device) {
                    let inputs = std::iter::once(given).chain(beside.iter().copied()).collect();
                    in_turn(r, order, node, Exchange::Give { chain: fetch.chain, to: to as u32 }, inputs)?;
                }
            } else if computing.contains(&device) {
                let (ty, from) = (r.old.ty(fetch.value).clone(), fetch.owner as u32);
                let op = Exchange::Take { chain: fetch.chain, from, wraps: false, ty, mark: fetch.mark };
                let taken = in_turn(r, order, node, op, beside)?[1];
                r.map[fetch.value.index()] = Some(taken);
            }
        }
        Ok(())
    }
}

struct Search<'g> {
    graph: &'g Graph,
    once: &'g [bool],
    readers: Vec<Vec<usize>>,
    forward: Vec<bool>,
    /// Each with the node before which it passes, and the device that has it.
    found: Vec<(usize, ValueId, usize)>,
    runs_on: Vec<Option<usize>>,
}

impl Search<'_> {
    /// The nodes of a micro-batch that read a value.
    fn early_readers(&self, value: ValueId) -> Vec<usize> {
        self.readers[value.index()].iter().copied().filter(|&node| !self.once[node]).collect()
    }

    /// Lets a value pass for some of its readers.
    fn pass(&mut self, value: ValueId, owner: usize, readers: Vec<usize>) {
        if let [only] = readers[..]
            && let Some(narrow) = self.narrowed(only)
        {
            self.runs_on[only] = Some(owner);
            return self.pass(narrow, owner, self.early_readers(narrow));
        }
        let (forward, backward): (Vec<usize>, Vec<usize>) =
            readers.iter().copied().partition(|&node| self.forward[node]);
        if !forward.is_empty() && !backward.is_empty() {
            self.pass(value, owner, forward);
            return self.pass(value, owner, backward);
        }
        self.found.extend(readers.first().map(|&first| (first, value, owner)));
    }

    /// What a node makes of the one value that it reads, if that may pass instead: nothing but nodes of a micro-batch reads it.
    fn narrowed(&self, node: usize) -> Option<ValueId> {
        let (graph, node) = (self.graph, &self.graph.nodes[node]);
        let (&[from], &[to]) = (&node.inputs[..], &node.outputs[..]) else { return None };
        let casts = matches!(node.op, Op::Elementwise(Elementwise::Cast(_)));
        let fits = node.op.is_view() || casts && graph.ty(to).bytes() < graph.ty(from).bytes();
        let leaves = graph.outputs.iter().any(|output| output.value == to)
            || graph.states.iter().any(|state| state.output == Some(to))
            || graph.accumulators.iter().any(|sum| sum.output == to);
        let is_early = self.readers[to.index()].iter().all(|&reader| !self.once[reader]);
        (fits && !leaves && is_early && !self.readers[to.index()].is_empty()).then_some(to)
    }
}

/// The nodes that the loss depends on; all, where there is none.
fn before_loss(graph: &Graph) -> Vec<bool> {
    let Some(loss) = graph.output(LOSS) else { return vec![true; graph.nodes.len()] };
    let (mut before, mut stack) = (vec![false; graph.nodes.len()], vec![loss]);
    while let Some(value) = stack.pop() {
        if let Some(node) = graph.producer(value)
            && !std::mem::replace(&mut before[node.index()], true)
        {
            stack.extend(graph.node(node).reads());
        }
    }
    before
}

/// The step of one device of several that do not train: all run it at once, on the same batch. What another device holds alone passes
/// before it is read.
pub fn fetch_parameters(
    step: &Graph,
    owners: &[OwnedState],
    device: usize,
    devices: usize,
) -> Result<Graph, SplitError> {
    let fetches = Fetches::new(step, &vec![false; step.nodes.len()], owners);
    let holds = |name: &str| owners.iter().find(|owned| owned.name == name).is_none_or(|o| o.is_on(device));
    let mut r = Rewriter::without_states(step, |state| holds(&state.name));
    let (mut order, all) = (Order::new(true), (0..devices).collect::<Vec<_>>());
    for (at, node) in step.nodes.iter().enumerate() {
        fetches.pass(&mut r, &mut order, (device, &all), (at, node))?;
        if fetches.runs(at, device) {
            r.copy(node)?;
        }
    }
    order.end(&mut r);
    Ok(r.finish_updating(|state| holds(&state.name))?)
}
