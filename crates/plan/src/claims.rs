//! Which results are written straight into a place that holds something else first.
//!
//! An accumulated output goes over its running sum, a carry's and a state's new version over the old one. Each such
//! claim makes every other reader of what is overwritten come first (an anti-dependency). A claim that would close a
//! circle, or that its kernel cannot honour, is not made: the result gets a place of its own, and a copy.

use crate::work::{Deed, Home, ItemId, TaskId, Work, folds, rank_of};
use plimsoll_graph::{Flow, Graph, Origin, ValueId};

/// Settles all claims.
pub(crate) fn settle(work: &mut Work<'_>, flows: &[Flow]) {
    let chains = carry_chains(work.graph, &work.roots, flows);
    let finals = finals(work.graph, &work.roots);
    // Entering values that end elsewhere are read by a copy; it must exist before claims look at the readers.
    let ends: Vec<(ItemId, ItemId, bool)> = ends(work);
    let stores = stores(work);
    let mut search = Search::new(work);
    for task in 0..work.tasks.len() {
        settle_sums(work, &mut search, task, flows, &chains, &finals);
    }
    let in_carry = in_carry(work);
    for (old, new, is_state) in ends {
        // Only running sums pass through several items in one place.
        let here = match work.items[old].home {
            Home::Carry(i) => &in_carry[i][..],
            _ => &[old],
        };
        settle_end(work, &mut search, here, old, new, is_state);
    }
    // Every load is known by now: a store comes after those of its state.
    for (state, new) in stores {
        let rank = work.items[new].writer.map_or(0, |t| work.tasks[t].rank + 1);
        work.add_store(state, new, rank);
    }
}

/// (state, new version) of every state in the spill file that is rewritten.
fn stores(work: &mut Work<'_>) -> Vec<(usize, ItemId)> {
    let graph = work.graph;
    let mut stores = Vec::new();
    for (i, state) in graph.states.iter().enumerate() {
        let root = state.output.map(|v| work.roots[v.index()]).filter(|&root| root != state.input);
        let Some(root) = root.filter(|_| work.is_spilled(state.input) && !work.passes(state.input)) else {
            continue;
        };
        let new = match graph.origin(root) {
            Origin::Node { .. } => work.item(root),
            _ => Some(work.snapshot(root)),
        };
        stores.extend(new.map(|new| (i, new)));
    }
    stores
}

/// (old version, new version, whether it is a state) of every running sum and state that is rewritten; sums first,
/// because they have no other way than their own place to reach the next micro-batch.
fn ends(work: &mut Work<'_>) -> Vec<(ItemId, ItemId, bool)> {
    let graph = work.graph;
    let carries = graph.carries.iter().map(|c| (c.input, Some(c.output), false));
    let states = graph.states.iter().map(|s| (s.input, s.output, true));
    let mut ends = Vec::new();
    for (input, output, is_state) in carries.chain(states) {
        if work.is_spilled(input) {
            continue;
        }
        let Some(root) = output.map(|v| work.roots[v.index()]).filter(|&root| root != input) else {
            continue;
        };
        let new = match graph.origin(root) {
            Origin::Node { .. } => work.item(root),
            _ => Some(work.snapshot(root)),
        };
        if let (Some(old), Some(new)) = (work.item(input), new) {
            ends.push((old, new, is_state));
        }
    }
    ends
}

/// Root values that a state or running sum ends as.
fn finals(graph: &Graph, roots: &[ValueId]) -> Vec<bool> {
    let mut finals = vec![false; roots.len()];
    let ends = (graph.states.iter().filter_map(|s| s.output)).chain(graph.carries.iter().map(|c| c.output));
    ends.for_each(|v| finals[roots[v.index()].index()] = true);
    finals
}

/// Values on the way from a carry's old version to its new one by accumulation alone.
fn carry_chains(graph: &Graph, roots: &[ValueId], flows: &[Flow]) -> Vec<bool> {
    let mut added_to = vec![None; roots.len()];
    for node in graph.nodes.iter().filter(|n| !n.accumulate.is_empty()) {
        for (sum, output) in folds(graph, flows, node) {
            added_to[node.outputs[output].index()] = Some(roots[node.accumulate[sum].index()]);
        }
    }
    let mut on_chain = vec![false; roots.len()];
    for carry in &graph.carries {
        let mut chain = Vec::new();
        let mut value = roots[carry.output.index()];
        while let Some(under) = added_to[value.index()] {
            chain.push(value);
            value = under;
        }
        if value == carry.input {
            chain.into_iter().for_each(|v| on_chain[v.index()] = true);
        }
    }
    on_chain
}

/// Gives each accumulated output of a task the place of its running sum; where the sum is needed again, a copy of it.
fn settle_sums(
    work: &mut Work<'_>,
    search: &mut Search,
    task: TaskId,
    flows: &[Flow],
    chains: &[bool],
    finals: &[bool],
) {
    let Deed::Run(id) = work.tasks[task].deed else { return };
    let node = work.graph.node(id);
    for (sum, output) in folds(work.graph, flows, node) {
        let position = node.inputs.len() + sum;
        let under = work.tasks[task].reads[position];
        let over = work.tasks[task].writes[output];
        let read_once = work.tasks[task].reads.iter().filter(|&&i| i == under).count() == 1;
        let value = work.items[under].value;
        let is_running_sum = match work.items[under].home {
            Home::Carry(_) => chains[node.outputs[output].index()],
            Home::Own | Home::Over(_) => !finals[value.index()],
            Home::State(_) | Home::Input(_) => false,
        };
        let free = is_running_sum
            && read_once
            && !work.items[under].pinned
            && !outlives_carry(work, under, over, finals);
        if free && search.all_before(work, &[under], task) {
            work.items[over].home = Home::Over(under);
            search.take(under);
            continue;
        }
        let copy = work.add_item(value, work.items[over].bytes, Home::Own);
        let copying = work.add_copy(under, copy, work.tasks[task].tail, rank_of(id) - 1);
        work.tasks[copying].after.push(task);
        work.tasks[task].reads[position] = copy;
        if read_once {
            work.items[under].readers.retain(|&t| t != task);
        }
        work.items[copy].readers.push(task);
        work.items[over].home = Home::Over(copy);
        search.grow(work);
        search.take(copy);
    }
}

/// Whether an output over a carry's place is needed for longer than the place can be promised: the carry's final
/// version, which may have to be copied in at the end of the body, would go over it.
fn outlives_carry(work: &Work<'_>, under: ItemId, over: ItemId, finals: &[bool]) -> bool {
    let Home::Carry(i) = work.base(under) else { return false };
    let item = &work.items[over];
    if work.roots[work.graph.carries[i].output.index()] == item.value {
        return false;
    }
    finals[item.value.index()] || item.pinned || item.readers.iter().any(|&t| work.tasks[t].tail)
}

/// The items in the place of each running sum.
fn in_carry(work: &Work<'_>) -> Vec<Vec<ItemId>> {
    let mut items = vec![Vec::new(); work.graph.carries.len()];
    for item in 0..work.items.len() {
        if let Home::Carry(i) = work.base(item) {
            items[i].push(item);
        }
    }
    items
}

/// Lets the new version of a running sum or state be written into its place, where the items `here` lie, or copies it
/// there.
fn settle_end(
    work: &mut Work<'_>,
    search: &mut Search,
    here: &[ItemId],
    old: ItemId,
    new: ItemId,
    is_state: bool,
) {
    if work.base(new) == work.items[old].home {
        return;
    }
    if let Some(writer) = work.items[new].writer
        && can_write_into(work, search, old, new, writer, is_state)
        && search.all_before(work, here, writer)
    {
        work.items[new].home = Home::Over(old);
        return;
    }
    // A running sum must be in its place before the next micro-batch, a state only once, after the last.
    let reader_in_tail = |i: &ItemId| work.items[*i].readers.iter().any(|&t| work.tasks[t].tail);
    let writer = work.items[new].writer;
    let late =
        work.repeats() || writer.is_some_and(|t| work.tasks[t].tail) || here.iter().any(reader_in_tail);
    let rank = writer.map_or(0, |t| work.tasks[t].rank + 1);
    let into = work.add_item(work.items[new].value, work.items[old].bytes, Home::Over(old));
    let copying = work.add_copy(new, into, is_state && late, rank);
    search.grow(work);
    for &item in here {
        for reader in work.items[item].readers.clone() {
            work.tasks[reader].after.push(copying);
        }
    }
}

fn can_write_into(
    work: &Work<'_>,
    search: &Search,
    old: ItemId,
    new: ItemId,
    writer: TaskId,
    is_state: bool,
) -> bool {
    let task = &work.tasks[writer];
    if !matches!(task.deed, Deed::Run(_) | Deed::Stream(_)) {
        return false;
    }
    let Some(output) = task.writes.iter().position(|&i| i == new) else { return false };
    let untouched = work.items[new].home == Home::Own && !search.taken[new] && !search.taken[old];
    let same_bytes = work.items[new].bytes == work.items[old].bytes;
    // In a body that repeats, an update in place would happen once per micro-batch.
    let once = !is_state || task.tail || !work.repeats();
    let reads_fit = (task.reads.iter().enumerate())
        .all(|(position, &item)| item != old || task.in_place.contains(&(output, position)));
    untouched && same_bytes && once && reads_fit
}

/// Looks for circles among the tasks.
struct Search {
    /// Whether another item goes over this one.
    taken: Vec<bool>,
    /// The last search that saw a task.
    seen: Vec<u32>,
    round: u32,
}

impl Search {
    fn new(work: &Work<'_>) -> Self {
        Self { taken: vec![false; work.items.len()], seen: vec![0; work.tasks.len()], round: 0 }
    }

    fn grow(&mut self, work: &Work<'_>) {
        self.taken.resize(work.items.len(), false);
        self.seen.resize(work.tasks.len(), 0);
    }

    fn take(&mut self, item: ItemId) {
        self.taken[item] = true;
    }

    /// Makes every other reader of these items come before a task, unless one of them needs the task first.
    fn all_before(&mut self, work: &mut Work<'_>, items: &[ItemId], task: TaskId) -> bool {
        let readers: Vec<TaskId> =
            items.iter().flat_map(|&i| &work.items[i].readers).copied().filter(|&t| t != task).collect();
        let late = readers.iter().any(|&t| work.tasks[t].tail && !work.tasks[task].tail);
        if late || self.reaches(work, task, &readers) {
            return false;
        }
        readers.into_iter().for_each(|t| work.tasks[t].after.push(task));
        true
    }

    /// Whether any of these tasks comes after `from`.
    fn reaches(&mut self, work: &Work<'_>, from: TaskId, targets: &[TaskId]) -> bool {
        if targets.is_empty() {
            return false;
        }
        self.round += 1;
        let mut stack = vec![from];
        while let Some(task) = stack.pop() {
            for &next in &work.tasks[task].after {
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
