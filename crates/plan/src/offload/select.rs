//! Values that wait in the spill file between two of their uses: which, and the work in which they do.
//!
//! A value that is stored as soon as it is made, and loaded again shortly before it is read, costs memory only around
//! its uses, and time only where the disk is slower than the computing between them. A state that comes from the file
//! need not be stored again: it is loaded twice.

use crate::Offloaded;
use crate::lower::{Home, TaskGraph, TaskId, TaskKind, TensorId};
use crate::lower::{ListEntry, unroll};
use crate::schedule::Liveness;

/// The longest time in which an item lies idle: positions in an order of the uses around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleInterval {
    pub tensor: TensorId,
    pub before: usize,
    pub after: usize,
    pub bytes: usize,
    /// The task that loads it, where that can run again: a state that has not changed in the file by then.
    pub load: Option<TaskId>,
}

/// The longest gap of every item of at least so many bytes that may wait in the file.
pub(crate) fn idle_intervals(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    least_bytes: usize,
) -> Vec<IdleInterval> {
    let mut position = vec![0; task_graph.tasks.len()];
    let mut now = 0_u64;
    // When each position ends.
    let mut ends = Vec::with_capacity(order.len());
    for (at, &task) in order.iter().enumerate() {
        position[task] = at;
        now += task_graph.tasks[task].nanoseconds;
        ends.push(now);
    }
    let mut changed = vec![usize::MAX; task_graph.graph.states.len()];
    for (at, &task) in order.iter().enumerate() {
        if let TaskKind::Store(Offloaded::State(i)) = task_graph.tasks[task].kind {
            changed[i] = at;
        }
    }
    let loads = |writer: TaskId, until: usize| match task_graph.tasks[writer].kind {
        TaskKind::Load(Offloaded::State(i)) => until < changed[i],
        _ => false,
    };
    let mut gaps = Vec::new();
    let mut uses = Vec::new();
    for (id, tensor) in task_graph.tensors.iter().enumerate() {
        let Some(writer) = tensor.writer else { continue };
        if tensor.home != Home::Own || tensor.pinned || tensor.bytes < least_bytes {
            continue;
        }
        uses.clear();
        uses.push(position[writer]);
        uses.extend(tensor.readers.iter().map(|&reader| position[reader]));
        uses.sort_unstable();
        let idle = |w: &[usize]| ends[w[1] - 1].saturating_sub(ends[w[0]]);
        let longest = uses.windows(2).filter(|w| w[1] > w[0] + 1).max_by_key(|w| idle(w));
        gaps.extend(longest.map(|w| IdleInterval {
            tensor: id,
            before: w[0],
            after: w[1],
            bytes: tensor.size,
            load: Some(writer).filter(|&writer| loads(writer, w[1])),
        }));
    }
    gaps
}

/// As few of the gaps as bring live bytes above the states under a line; where none do, all that help at the fullest
/// moment there is.
pub(crate) fn fewest_to_fit(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    gaps: &[IdleInterval],
    line: usize,
) -> Vec<IdleInterval> {
    let mut live = live_profile(task_graph, order);
    let mut left: Vec<IdleInterval> = gaps.to_vec();
    let mut chosen = Vec::new();
    let mut over = vec![0_usize; live.len() + 1];
    while let Some(fullest) = (0..live.len()).max_by_key(|&at| live[at]).filter(|&at| live[at] > line) {
        for at in 0..live.len() {
            over[at + 1] = over[at] + usize::from(live[at] > line);
        }
        let helps = |gap: &IdleInterval| gap.before < fullest && fullest < gap.after;
        let moments = |gap: &IdleInterval| over[gap.after] - over[gap.before + 1];
        let best = (0..left.len())
            .filter(|&i| helps(&left[i]))
            .max_by_key(|&i| (moments(&left[i]), left[i].bytes, std::cmp::Reverse(i)));
        let Some(best) = best else { break };
        let gap = left.swap_remove(best);
        live[gap.before + 1..gap.after].iter_mut().for_each(|l| *l = l.saturating_sub(gap.bytes));
        chosen.push(gap);
    }
    chosen
}

/// Those of the gaps whose items a list spends most time on making again, as many as the disk can move in a time.
pub(crate) fn most_expensive(
    gaps: &[IdleInterval],
    list: &[TaskId],
    task_graph: &TaskGraph<'_>,
    nanoseconds: u64,
) -> Vec<IdleInterval> {
    let mut runs = vec![0_u64; task_graph.tasks.len()];
    list.iter().for_each(|&task| runs[task] += 1);
    // Time for each byte.
    let waste = |gap: &IdleInterval| {
        let again = |maker: TaskId| (runs[maker].max(1) - 1) * task_graph.tasks[maker].nanoseconds;
        (u128::from(task_graph.tensors[gap.tensor].writer.map_or(0, again)) << 32) / gap.bytes.max(1) as u128
    };
    let mut dearest: Vec<IdleInterval> = gaps.iter().copied().filter(|gap| waste(gap) > 0).collect();
    dearest.sort_by_key(|gap| std::cmp::Reverse(waste(gap)));
    let mut moved = 0;
    dearest.retain(|gap| {
        let store = if gap.load.is_some() { 0 } else { task_graph.disk.write_ns(gap.bytes) };
        let time = task_graph.disk.read_ns(gap.bytes) + store;
        let fits = moved + time <= nanoseconds;
        moved += if fits { time } else { 0 };
        fits
    });
    dearest
}

/// The work, as a list in its order, in which the items of the gaps wait in the file.
pub(crate) fn with_offloaded<'a>(
    task_graph: &TaskGraph<'a>,
    order: &[TaskId],
    gaps: &[IdleInterval],
) -> TaskGraph<'a> {
    let mut turns = Vec::with_capacity(order.len() + 2 * gaps.len());
    let mut first_read: Vec<Vec<IdleInterval>> = vec![Vec::new(); order.len()];
    let mut stored = vec![false; task_graph.tensors.len()];
    for gap in gaps {
        first_read[gap.after].push(*gap);
        stored[gap.tensor] = gap.load.is_none();
    }
    for (at, &task) in order.iter().enumerate() {
        turns.extend(
            first_read[at].iter().map(|gap| gap.load.map_or(ListEntry::Reload(gap.tensor), ListEntry::Run)),
        );
        turns.push(ListEntry::Run(task));
        let made = task_graph.tasks[task].writes.iter().filter(|&&tensor| stored[tensor]);
        turns.extend(made.map(|&tensor| ListEntry::Offload(tensor)));
    }
    unroll(task_graph, &turns)
}

/// Live bytes above the states while each task of an order runs.
pub(crate) fn live_profile(task_graph: &TaskGraph<'_>, order: &[TaskId]) -> Vec<usize> {
    let mut liveness = Liveness::new(task_graph);
    let resident = task_graph.resident_bytes();
    let mut in_optimizer_step = false;
    let mut live = Vec::with_capacity(order.len());
    for &task in order {
        if task_graph.tasks[task].optimizer_step && !std::mem::replace(&mut in_optimizer_step, true) {
            liveness.end_body();
        }
        live.push(liveness.run(task) - resident);
    }
    live
}
