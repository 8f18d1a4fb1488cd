//! Which results are written in place of something else.
//!
//! An accumulated output overwrites its accumulator; the new version of an accumulator or state overwrites the old one. Each
//! such aliasing makes every other reader of the overwritten tensor come first (an anti-dependency). An aliasing that would
//! close a cycle, or that its kernel does not support, is not made: the result gets memory of its own, and is copied.

use super::build::folds;
use super::task_graph::{Home, TaskGraph, TaskId, TaskKind, TensorId, rank_of};
use plimsoll_graph::{BatchRelation, Graph, Origin, ValueId};

/// Decides every aliasing of a task graph.
pub(crate) fn alias_in_place(task_graph: &mut TaskGraph<'_>, batch_relations: &[BatchRelation]) {
    let chains = accumulation_chains(task_graph.graph, &task_graph.roots, batch_relations);
    let is_new_version = is_new_version(task_graph.graph, &task_graph.roots);
    // States and accumulators that end as another input's value are copied first; readers are counted after that.
    let new_versions: Vec<(TensorId, TensorId, bool)> = new_versions(task_graph);
    let stores = stores(task_graph);
    let mut search = Search::new(task_graph);
    for task in 0..task_graph.tasks.len() {
        alias_accumulated(task_graph, &mut search, task, batch_relations, &chains, &is_new_version);
    }
    let in_accumulator = in_accumulator(task_graph);
    for (old, new, is_state) in new_versions {
        // Only accumulators are shared by several tensors.
        let overwritten = match task_graph.tensors[old].home {
            Home::Accumulator(i) => &in_accumulator[i][..],
            _ => &[old],
        };
        alias_new_version(task_graph, &mut search, overwritten, old, new, is_state);
    }
    // All loads are known by now: a store comes after the loads of its state.
    for (state, new) in stores {
        let rank = task_graph.tensors[new].writer.map_or(0, |t| task_graph.tasks[t].rank + 1);
        task_graph.add_store(state, new, rank);
    }
}

/// (state, new version) of every offloaded state that is rewritten.
fn stores(task_graph: &mut TaskGraph<'_>) -> Vec<(usize, TensorId)> {
    let graph = task_graph.graph;
    let mut stores = Vec::new();
    for (i, state) in graph.states.iter().enumerate() {
        let root = state.output.map(|v| task_graph.roots[v.index()]).filter(|&root| root != state.input);
        let Some(root) =
            root.filter(|_| task_graph.is_offloaded(state.input) && !task_graph.is_chunked(state.input))
        else {
            continue;
        };
        let new = match graph.origin(root) {
            Origin::Node { .. } => task_graph.tensor(root),
            _ => Some(task_graph.snapshot(root)),
        };
        stores.extend(new.map(|new| (i, new)));
    }
    stores
}

/// (old version, new version, whether it is a state) of every accumulator and resident state that is rewritten. Accumulators
/// come first: only their own memory carries them into the next micro-batch.
fn new_versions(task_graph: &mut TaskGraph<'_>) -> Vec<(TensorId, TensorId, bool)> {
    let graph = task_graph.graph;
    let accumulators = graph.accumulators.iter().map(|c| (c.input, Some(c.output), false));
    let states = graph.states.iter().map(|s| (s.input, s.output, true));
    let mut new_versions = Vec::new();
    for (input, output, is_state) in accumulators.chain(states) {
        if task_graph.is_offloaded(input) {
            continue;
        }
        let Some(root) = output.map(|v| task_graph.roots[v.index()]).filter(|&root| root != input) else {
            continue;
        };
        let new = match graph.origin(root) {
            Origin::Node { .. } => task_graph.tensor(root),
            _ => Some(task_graph.snapshot(root)),
        };
        if let (Some(old), Some(new)) = (task_graph.tensor(input), new) {
            new_versions.push((old, new, is_state));
        }
    }
    new_versions
}

/// Root values that are the new version of a state or accumulator.
fn is_new_version(graph: &Graph, roots: &[ValueId]) -> Vec<bool> {
    let mut is_new_version = vec![false; roots.len()];
    let new_versions =
        (graph.states.iter().filter_map(|s| s.output)).chain(graph.accumulators.iter().map(|c| c.output));
    new_versions.for_each(|v| is_new_version[roots[v.index()].index()] = true);
    is_new_version
}

/// Values on the way from an accumulator's old version to its new one by accumulation alone.
fn accumulation_chains(graph: &Graph, roots: &[ValueId], batch_relations: &[BatchRelation]) -> Vec<bool> {
    let mut added_to = vec![None; roots.len()];
    for node in graph.nodes.iter().filter(|n| !n.accumulate.is_empty()) {
        for (sum, output) in folds(graph, batch_relations, node) {
            added_to[node.outputs[output].index()] = Some(roots[node.accumulate[sum].index()]);
        }
    }
    let mut on_chain = vec![false; roots.len()];
    for accumulator in &graph.accumulators {
        let mut chain = Vec::new();
        let mut value = roots[accumulator.output.index()];
        while let Some(old_sum) = added_to[value.index()] {
            chain.push(value);
            value = old_sum;
        }
        if value == accumulator.input {
            chain.into_iter().for_each(|v| on_chain[v.index()] = true);
        }
    }
    on_chain
}

/// Writes each accumulated output of a task in place of its accumulator; where that is read again later, of a copy.
fn alias_accumulated(
    task_graph: &mut TaskGraph<'_>,
    search: &mut Search,
    task: TaskId,
    batch_relations: &[BatchRelation],
    chains: &[bool],
    is_new_version: &[bool],
) {
    let TaskKind::Run(id) = task_graph.tasks[task].kind else { return };
    let node = task_graph.graph.node(id);
    for (sum, output) in folds(task_graph.graph, batch_relations, node) {
        let position = node.inputs.len() + sum;
        let old_sum = task_graph.tasks[task].reads[position];
        let new_sum = task_graph.tasks[task].writes[output];
        let read_once = task_graph.tasks[task].reads.iter().filter(|&&i| i == old_sum).count() == 1;
        let value = task_graph.tensors[old_sum].value;
        let may_overwrite = match task_graph.tensors[old_sum].home {
            Home::Accumulator(_) => chains[node.outputs[output].index()],
            Home::Own | Home::InPlace(_) => !is_new_version[value.index()],
            Home::State(_) | Home::Input(_) => false,
        };
        let free = may_overwrite
            && read_once
            && !task_graph.tensors[old_sum].pinned
            && !outlives_accumulator(task_graph, old_sum, new_sum, is_new_version);
        if free && search.all_before(task_graph, &[old_sum], task) {
            task_graph.tensors[new_sum].home = Home::InPlace(old_sum);
            search.mark_overwritten(old_sum);
            continue;
        }
        let copy = task_graph.add_tensor(value, task_graph.tensors[new_sum].bytes, Home::Own);
        let copy_task =
            task_graph.add_copy(old_sum, copy, task_graph.tasks[task].optimizer_step, rank_of(id) - 1);
        task_graph.tasks[copy_task].after.push(task);
        task_graph.tasks[task].reads[position] = copy;
        if read_once {
            task_graph.tensors[old_sum].readers.retain(|&t| t != task);
        }
        task_graph.tensors[copy].readers.push(task);
        task_graph.tensors[new_sum].home = Home::InPlace(copy);
        search.grow(task_graph);
        search.mark_overwritten(copy);
    }
}

/// Whether an output in place of an accumulator is live for longer than that memory is its own: the accumulator's final
/// version, which may be copied in at the end of the micro-batch, would overwrite it.
fn outlives_accumulator(
    task_graph: &TaskGraph<'_>,
    old_sum: TensorId,
    new_sum: TensorId,
    is_new_version: &[bool],
) -> bool {
    let Home::Accumulator(i) = task_graph.base(old_sum) else { return false };
    let tensor = &task_graph.tensors[new_sum];
    if task_graph.roots[task_graph.graph.accumulators[i].output.index()] == tensor.value {
        return false;
    }
    is_new_version[tensor.value.index()]
        || tensor.pinned
        || tensor.readers.iter().any(|&t| task_graph.tasks[t].optimizer_step)
}

/// The tensors in the memory of each accumulator.
fn in_accumulator(task_graph: &TaskGraph<'_>) -> Vec<Vec<TensorId>> {
    let mut tensors = vec![Vec::new(); task_graph.graph.accumulators.len()];
    for tensor in 0..task_graph.tensors.len() {
        if let Home::Accumulator(i) = task_graph.base(tensor) {
            tensors[i].push(tensor);
        }
    }
    tensors
}

/// Writes the new version of an accumulator or state in place, over the tensors `overwritten`, or copies it there.
fn alias_new_version(
    task_graph: &mut TaskGraph<'_>,
    search: &mut Search,
    overwritten: &[TensorId],
    old: TensorId,
    new: TensorId,
    is_state: bool,
) {
    if task_graph.base(new) == task_graph.tensors[old].home {
        return;
    }
    if let Some(writer) = task_graph.tensors[new].writer
        && can_write_into(task_graph, search, old, new, writer, is_state)
        && search.all_before(task_graph, overwritten, writer)
    {
        task_graph.tensors[new].home = Home::InPlace(old);
        return;
    }
    // An accumulator must be complete before the next micro-batch, a state only after the last.
    let read_by_optimizer_step =
        |i: &TensorId| task_graph.tensors[*i].readers.iter().any(|&t| task_graph.tasks[t].optimizer_step);
    let writer = task_graph.tensors[new].writer;
    let late = task_graph.has_micro_batches()
        || writer.is_some_and(|t| task_graph.tasks[t].optimizer_step)
        || overwritten.iter().any(read_by_optimizer_step);
    let rank = writer.map_or(0, |t| task_graph.tasks[t].rank + 1);
    let into = task_graph.add_tensor(
        task_graph.tensors[new].value,
        task_graph.tensors[old].bytes,
        Home::InPlace(old),
    );
    let copy_task = task_graph.add_copy(new, into, is_state && late, rank);
    search.grow(task_graph);
    for &tensor in overwritten {
        for reader in task_graph.tensors[tensor].readers.clone() {
            task_graph.tasks[reader].after.push(copy_task);
        }
    }
}

fn can_write_into(
    task_graph: &TaskGraph<'_>,
    search: &Search,
    old: TensorId,
    new: TensorId,
    writer: TaskId,
    is_state: bool,
) -> bool {
    let task = &task_graph.tasks[writer];
    if !matches!(task.kind, TaskKind::Run(_) | TaskKind::ChunkedUpdate(_)) {
        return false;
    }
    let Some(output) = task.writes.iter().position(|&i| i == new) else { return false };
    let untouched = task_graph.tensors[new].home == Home::Own && !search.taken[new] && !search.taken[old];
    let same_bytes = task_graph.tensors[new].bytes == task_graph.tensors[old].bytes;
    // With several micro-batches, an in-place update would be done in each.
    let once = !is_state || task.optimizer_step || !task_graph.has_micro_batches();
    let reads_fit = (task.reads.iter().enumerate())
        .all(|(position, &tensor)| tensor != old || task.in_place.contains(&(output, position)));
    untouched && same_bytes && once && reads_fit
}

/// Searches for cycles among the tasks.
struct Search {
    /// Whether another tensor overwrites this one.
    taken: Vec<bool>,
    /// The last search that visited a task.
    seen: Vec<u32>,
    round: u32,
}

impl Search {
    fn new(task_graph: &TaskGraph<'_>) -> Self {
        Self { taken: vec![false; task_graph.tensors.len()], seen: vec![0; task_graph.tasks.len()], round: 0 }
    }

    fn grow(&mut self, task_graph: &TaskGraph<'_>) {
        self.taken.resize(task_graph.tensors.len(), false);
        self.seen.resize(task_graph.tasks.len(), 0);
    }

    fn mark_overwritten(&mut self, tensor: TensorId) {
        self.taken[tensor] = true;
    }

    /// Makes every other reader of these tensors come before a task, unless that closes a cycle.
    fn all_before(&mut self, task_graph: &mut TaskGraph<'_>, tensors: &[TensorId], task: TaskId) -> bool {
        let readers: Vec<TaskId> = tensors
            .iter()
            .flat_map(|&i| &task_graph.tensors[i].readers)
            .copied()
            .filter(|&t| t != task)
            .collect();
        let late = readers
            .iter()
            .any(|&t| task_graph.tasks[t].optimizer_step && !task_graph.tasks[task].optimizer_step);
        if late || self.reaches(task_graph, task, &readers) {
            return false;
        }
        readers.into_iter().for_each(|t| task_graph.tasks[t].after.push(task));
        true
    }

    /// Whether any of these tasks depends on `from`.
    fn reaches(&mut self, task_graph: &TaskGraph<'_>, from: TaskId, targets: &[TaskId]) -> bool {
        if targets.is_empty() {
            return false;
        }
        self.round += 1;
        let mut stack = vec![from];
        while let Some(task) = stack.pop() {
            for &next in &task_graph.tasks[task].after {
                if targets.contains(&next) {
                    return true;
                }
                if std::mem::replace(&mut self.seen[next], self.round) != self.round {
                    stack.push(next);
                }
            }
        }
        false
    }
}
