//! Graphs, target and line in; plans and their load sheet out.

use crate::placement::{Block, live_peak, place};
use crate::work::Work;
use crate::{
    Buffer, BufferKind, Entry, ExecutionPlan, PlanError, PlanSet, StatePlacement, Target, account, lifetimes,
    order,
};
use plimsoll_graph::Graph;
use std::sync::Arc;

/// What the plans may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The line: arena and everything outside it together stay under it.
    pub line_bytes: usize,
    /// What lies outside the arena: code, stacks, heap, the data pipeline.
    pub outside: Vec<Entry>,
}

/// Plans every batch type of a model into one arena under a line. States are matched by name across the graphs and
/// lie at the same offsets in every plan.
///
/// A pure function: the same graphs, target and budget give the same plans, on any machine. Nothing is allocated of
/// what is planned.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, PlanError, plan, verify};
/// let mut b = Builder::new(32, 8);
/// let x = b.batch_input("x", "f32[32,100]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// let y = b.unary(Unary::Exp, y)?;
/// b.output("y", y);
/// let graph = b.finish()?;
///
/// let budget = |line_bytes| Budget { line_bytes, outside: Vec::new() };
/// let plans = plan(&[("predict".into(), graph.clone())], &NullTarget::default(), &budget(1 << 20))?;
/// assert_eq!(plans.arena_bytes, 2 * 12_800); // the second op goes over the first one's result
/// verify(&plans)?;
///
/// let Err(PlanError::Infeasible(short)) = plan(&[("predict".into(), graph)], &NullTarget::default(), &budget(20_000))
/// else { panic!("it does not fit") };
/// assert_eq!(short.missing_bytes, 5_600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(batches: &[(String, Graph)], target: &dyn Target, budget: &Budget) -> Result<PlanSet, PlanError> {
    let alignment = target.alignment().max(1);
    let (states, states_end) = place_states(batches, alignment)?;
    let plans = batches
        .iter()
        .map(|(name, graph)| plan_one(name, graph, target, &states, states_end))
        .collect::<Result<Vec<_>, _>>()?;
    let arena_bytes = plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
    let sheet =
        account::load_sheet(target.name(), &plans, &states, arena_bytes, &budget.outside, budget.line_bytes);
    sheet.check_line()?;
    Ok(PlanSet { target: target.name(), plans, states, alignment, arena_bytes, sheet })
}

/// Packs the states of all graphs at the bottom of the arena, in the order they first appear, and returns the end.
fn place_states(
    batches: &[(String, Graph)],
    alignment: usize,
) -> Result<(Vec<StatePlacement>, usize), PlanError> {
    let mut states: Vec<StatePlacement> = Vec::new();
    let mut index = std::collections::BTreeMap::new();
    let mut end = 0_usize;
    for (plan, graph) in batches {
        graph.check().map_err(|source| PlanError::Graph { plan: plan.clone(), source })?;
        for state in &graph.states {
            let ty = graph.ty(state.input).clone();
            if let Some(&(i, first_plan)) = index.get(&state.name) {
                let known: &StatePlacement = &states[i];
                if known.ty != ty {
                    return Err(PlanError::States {
                        name: state.name.clone(),
                        first: known.ty.to_string(),
                        first_plan: String::clone(first_plan),
                        second: ty.to_string(),
                        second_plan: plan.clone(),
                    });
                }
                continue;
            }
            index.insert(&state.name, (states.len(), plan));
            let bytes = ty.bytes();
            if bytes.saturating_add(end) > 1 << 62 {
                return Err(PlanError::TooLarge { plan: plan.clone(), ty });
            }
            states.push(StatePlacement {
                name: state.name.clone(),
                ty,
                role: state.role,
                init: state.init,
                offset: end,
            });
            end += bytes.next_multiple_of(alignment);
        }
    }
    Ok((states, end))
}

/// Order, lifetimes and placement of one graph above the states.
fn plan_one(
    name: &str,
    graph: &Graph,
    target: &dyn Target,
    states: &[StatePlacement],
    states_end: usize,
) -> Result<ExecutionPlan, PlanError> {
    let work = Work::new(name, graph, target)?;
    let order = order::order(&work);
    let by_name: std::collections::BTreeMap<&str, usize> =
        states.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    let indices: Vec<usize> =
        graph.states.iter().filter_map(|s| by_name.get(s.name.as_str()).copied()).collect();
    let mut table = lifetimes::timetable(&work, &order, &indices);
    let block =
        |b: &Buffer| Block { size: b.bytes.next_multiple_of(work.alignment), first: b.first, last: b.last };
    let above: Vec<usize> = (0..table.buffers.len())
        .filter(|&i| !matches!(table.buffers[i].kind, BufferKind::State(_)))
        .collect();
    let blocks: Vec<Block> = above.iter().map(|&i| block(&table.buffers[i])).collect();
    let (live_above, peak_step) = live_peak(&blocks);
    for (&i, offset) in above.iter().zip(place(&blocks)) {
        table.buffers[i].offset = states_end + offset;
    }
    for buffer in &mut table.buffers {
        if let BufferKind::State(i) = buffer.kind {
            buffer.offset = states[i].offset;
        }
    }
    let end = table.buffers.iter().map(|b| b.offset + b.bytes).fold(states_end, usize::max);
    Ok(ExecutionPlan {
        name: name.to_string(),
        graph: Arc::new(graph.clone()),
        steps: table.steps,
        buffers: table.buffers,
        outputs: table.outputs,
        peak_bytes: end.next_multiple_of(work.alignment),
        live_bytes: states_end + live_above,
        peak_step,
        nanoseconds: table.nanoseconds,
    })
}
