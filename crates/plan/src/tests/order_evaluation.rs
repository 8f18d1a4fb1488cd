//! Incremental evaluation of a changed order against evaluation from scratch.

use super::{Choices, random_graph};
use crate::lower::{StateTier, TaskGraph, TaskId};
use crate::schedule::order::evaluation::OrderEvaluation;
use crate::{NullTarget, Tiers};

/// Tasks in a random order that respects dependencies.
fn shuffled(task_graph: &TaskGraph<'_>, tasks: &[TaskId], choices: &mut Choices) -> Vec<TaskId> {
    let mut left = tasks.to_vec();
    let mut order = Vec::new();
    while !left.is_empty() {
        let body_left = left.iter().any(|&t| !task_graph.tasks[t].optimizer_step);
        let waits = |t: TaskId| left.iter().any(|&earlier| task_graph.tasks[earlier].after.contains(&t));
        let ready = |t: &TaskId| !(waits(*t) || body_left && task_graph.tasks[*t].optimizer_step);
        let ready: Vec<TaskId> = left.iter().copied().filter(ready).collect();
        let next = ready[choices.below(ready.len())];
        left.retain(|&t| t != next);
        order.push(next);
    }
    order
}

#[test]
fn incremental_evaluation_of_an_order_agrees_with_a_full_one() {
    let mut lower = 0;
    for (seed, micro_batches) in (0..40).flat_map(|seed| [(seed, 1), (seed, 4)]) {
        let graph = random_graph(seed, 40, micro_batches);
        let homes = vec![StateTier::Arena; graph.states.len()];
        let task_graph =
            TaskGraph::new("test", &graph, &NullTarget::default(), &homes, &Tiers::default()).unwrap();
        let from_scratch = |order: &[TaskId]| OrderEvaluation::new(&task_graph).evaluate(order.to_vec());
        let choices = &mut Choices::new(seed);
        let mut evaluation = OrderEvaluation::new(&task_graph);
        evaluation.evaluate(shuffled(&task_graph, &(0..task_graph.tasks.len()).collect::<Vec<_>>(), choices));
        for _ in 0..if task_graph.tasks.is_empty() { 0 } else { 40 } {
            let start = choices.below(evaluation.order.len());
            let end = start + 1 + choices.below(evaluation.order.len() - start);
            let tasks = shuffled(&task_graph, &evaluation.order[start..end], choices);
            let mut changed = evaluation.order.clone();
            changed[start..end].copy_from_slice(&tasks);
            let cost = from_scratch(&changed);
            assert_eq!(
                evaluation.if_cheaper(start, &tasks),
                Some(cost).filter(|cost| *cost < evaluation.cost())
            );
            lower += usize::from(cost < evaluation.cost());
            if choices.below(2) == 0 {
                evaluation.permute(start, &tasks);
                assert_eq!((evaluation.cost(), &evaluation.order), (cost, &changed));
            }
        }
    }
    assert!(lower > 100, "{lower}");
}
